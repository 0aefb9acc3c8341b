//! Background tasks: checkpoints, the cleaner, giving space back.

mod checkpoint;
mod cleaner;
mod give_back;
mod reserve;

pub(crate) use checkpoint::{CHUNKS_PER_CHECKPOINT, Checkpointer, second_area};
pub(crate) use cleaner::Cleaner;
pub(crate) use reserve::Purse;
