//! Protocol servers. They turn the protocols of hypervisors and tools into requests for a
//! [`millpond_block::Disk`].
//!
//! [`nbd::Session`] is the server side of one NBD connection. It takes received bytes and returns
//! bytes to send; sockets, threads and timeouts belong to the loop that drives it. [`vhost_user`]
//! does the same for queues in a guest's memory, [`fuse::Session`] for a mount of a pool as a
//! directory of images.
//!
//! *Architecture Invariant:* this crate depends on `millpond-block` only. It has no sockets, no
//! clock, no threads and no `unsafe`.
#![forbid(unsafe_code)]

mod exports;
pub mod fuse;
pub mod nbd;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod vhost_user;

pub use exports::{ExportId, ExportInfo, Exports};
