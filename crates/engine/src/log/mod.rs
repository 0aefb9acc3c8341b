//! The log: streams of batches, each batch a header and its payload, ordered by one sequence over all streams.
//!
//! - INV-LOG-1: a batch gets its number when it is sealed; the map was changed in that order (I10).
//! - INV-LOG-2: batches are acknowledged in order: one is complete when it and all before it are.
//! - INV-LOG-3: while a batch with a clear or record is open no other is: those touch blocks that other streams may be writing.

mod batch;
mod stream;

pub(crate) use batch::{BatchKind, InFlight, OpenBatch};
pub(crate) use stream::{Cursor, Log, OpenChunk};

/// Lifetime class of chunks of nodes.
pub(crate) const META_CLASS: u8 = 255;
/// Stream of blocks that replace short-lived ones (SepBIT, FAST'22, class 1).
pub(crate) const SHORT: usize = 0;
/// Stream of new blocks, blocks that replace long-lived ones, and records (class 2).
pub(crate) const LONG: usize = 1;
/// Stream of compressed blocks.
pub(crate) const PACKED: usize = 2;
/// First of the cleaner's four streams (classes 3 to 6).
pub(crate) const CLEANED: usize = 3;
