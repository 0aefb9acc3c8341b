//! Background tasks: checkpoints and the cleaner.

mod checkpoint;
mod cleaner;
mod reserve;

pub(crate) use checkpoint::{CHUNKS_PER_CHECKPOINT, Checkpointer, second_area};
pub(crate) use cleaner::Cleaner;
pub(crate) use reserve::Purse;
