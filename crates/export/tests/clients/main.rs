//! Real clients against a session on a real socket. Tests of tools that are not installed are
//! skipped, with a message on standard error.
#![allow(clippy::disallowed_methods, reason = "runs real programs on real sockets and files")]

mod server;
mod tools;
