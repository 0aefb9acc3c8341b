//! Test doubles and drivers: a disk in memory, messages of a client, drivers for sessions and
//! queues, and the bodies of fuzz tests.
//!
//! Compiled only for tests and with the feature `testing`.

mod disk;
pub mod driver;
mod fuse_fuzz;
mod fuse_mount;
mod fuse_tree;
mod fuzz;
mod fuzz_queue;
mod loopback;
mod replies;

pub use crate::nbd::client::message::{
    extended_request, go, hello, hello_and_go, hello_structured_and_go, meta_context, name_option, option, request, write,
};
pub use disk::{MemoryDisk, Order};
pub use fuse_fuzz::{HostileRequests, fuzz_mount, fuzz_random_mount};
pub use fuse_mount::MemoryMount;
pub use fuse_tree::MemoryTree;
pub use fuzz::fuzz_session;
pub use fuzz_queue::fuzz_queue;
pub use loopback::Loopback;
pub use replies::{Extents, Reads, Reply, parse_replies};
