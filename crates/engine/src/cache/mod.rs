//! The cache: copies on fast devices of blocks that were read more than once from the others.
//!
//! Nothing is ever needed from it. INV-CACHE-1: a copy is found by the address that the map has, which never means other bytes (I11), and is
//! used when it matches the checksum that the map has beside it (I5); else what it stands for is read. So it makes no difference what a device
//! of the cache lost, kept of another time, or mixed up.

mod drive;
mod ghosts;
mod index;
mod store;

pub(crate) use drive::Spot;
pub(crate) use ghosts::Ghosts;
pub(crate) use store::{Scan, SegmentWrite, Store};
