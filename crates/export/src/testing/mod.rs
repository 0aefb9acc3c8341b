//! Test doubles and drivers: a disk in memory, a client that builds messages, a session driven without sockets, and the fuzz bodies.
//!
//! Compiled for tests and with the feature `testing` alone.

mod client;
mod disk;
mod fuzz;
mod loopback;

pub use client::{Reply, go, hello, hello_and_go, name_option, option, parse_replies, request, write};
pub use disk::{MemoryDisk, Order};
pub use fuzz::fuzz_session;
pub use loopback::Loopback;
