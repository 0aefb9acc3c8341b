//! The cache: copies, on fast devices, of blocks that were read more than once from other devices.
//!
//! The pool never depends on it. INV-CACHE-1: a copy is found by the address in the map, which
//! never means other bytes (I11), and is used only if it matches the checksum beside the address
//! (I5); otherwise the block is read from the pool. So it does not matter what a cache device has
//! lost, kept from another time, or mixed up.

mod devices;
mod drive;
mod ghosts;
mod index;

pub(crate) use devices::{CacheDevices, Scan, SegmentWrite};
pub(crate) use drive::CacheSlot;
pub(crate) use ghosts::Ghosts;
