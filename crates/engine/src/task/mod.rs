//! Background tasks: checkpoints, the cleaner, giving space back, labels.

mod checkpoint;
mod cleaner;
mod evacuate;
mod fill;
mod give_back;
mod relabel;
mod reserve;

pub(crate) use checkpoint::{CHUNKS_PER_CHECKPOINT, Checkpointer, second_area};
pub(crate) use cleaner::Cleaner;
pub(crate) use evacuate::Evacuation;
pub(crate) use fill::{FillPiece, Filler};
pub(crate) use relabel::Relabeler;
pub(crate) use reserve::{Purse, Waiting};
