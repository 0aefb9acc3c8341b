//! Disk images: formats, backing chains, copies between images and exports; and what a disk's
//! contents say about its sector size.
//!
//! Images are parsed in the process that converts them, and data moves over an NBD export, so that a
//! hostile image never reaches the daemon: it can end a command, but not the service of other
//! clients.
#![forbid(unsafe_code)]

pub mod chain;
pub mod copy;
pub mod extended;
pub mod format;
pub mod library;
pub mod names;
pub mod nbd;
pub mod pipe;
pub mod qcow2;
pub mod qemu;
pub mod raw;
pub mod sectors;
pub mod served;
pub mod source;
pub mod states;
pub mod stream;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod whole;
