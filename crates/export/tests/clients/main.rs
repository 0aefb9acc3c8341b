//! Real clients against a session on a real socket. A tool that is not installed is skipped, and named on standard error.
#![allow(clippy::disallowed_methods, reason = "runs real programs on real sockets and files")]

mod server;
mod tools;
