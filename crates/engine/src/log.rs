//! The log: streams of batches, each a header and its payload, numbered in one sequence over all
//! streams.
//!
//! - INV-LOG-1: a batch gets its number when it is sealed; the map was changed in that order (I10).
//! - INV-LOG-2: batches are acknowledged in order: a batch is complete when it and all batches
//!   before it are written.
//! - INV-LOG-3: while a batch with a clear or a record is open, no other batch is, because it may
//!   touch blocks that other streams are writing.

mod batch;
mod class;
mod small_write_index;
mod stream;

pub(crate) use batch::{BatchKind, InFlight, OpenBatch};
pub(crate) use class::{Lifetime, META_CLASS, NODES_HEAD, OBJECT_CLASS, OBJECTS_HEAD, Stream, UPLOAD_HEAD};
pub(crate) use small_write_index::SmallWriteIndex;
pub(crate) use stream::{Cursor, Log, OpenChunk};
