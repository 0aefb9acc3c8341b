//! Background tasks: checkpoints and the cleaner.

mod checkpoint;
mod cleaner;

pub(crate) use checkpoint::{CHUNKS_PER_CHECKPOINT, Checkpointer, second_area};
pub(crate) use cleaner::Cleaner;
