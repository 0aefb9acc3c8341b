//! Protocol servers: what hypervisors and tools speak, turned into requests for a [`millpond_block::Disk`].
//!
//! [`nbd::Session`] is the NBD server side of one connection. It is fed bytes and hands out bytes; sockets, threads and timeouts
//! belong to the loop that drives it. [`vhost_user`] is the same for queues in a guest's memory, [`fuse::Session`] for a mount of a pool as a
//! directory of images.
//!
//! *Architecture Invariant:* this crate knows `millpond-block` alone. It has no sockets, no clock, no threads and no `unsafe`.
#![forbid(unsafe_code)]

mod exports;
pub mod fuse;
pub mod nbd;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod vhost_user;

pub use exports::{ExportId, ExportInfo, Exports};
