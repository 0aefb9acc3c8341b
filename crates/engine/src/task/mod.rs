//! Background tasks: checkpoints, the cleaner, releasing and preparing space, labels, the claim;
//! and jobs: filling and emptying devices, spares, rebalancing, scrub, wiping.

mod checkpoint;
mod claim;
mod cleaner;
mod evacuate;
mod fill;
mod give_back;
mod host;
mod jobs;
mod pace;
mod prepare;
mod rebalance;
mod relabel;
mod reserve;
mod scrub;
mod spares;
mod stock;
mod wipe;

pub(crate) use checkpoint::{CHUNKS_PER_CHECKPOINT, Checkpointer, META_HEAD_PAGES, OBJECT_WRITE, pieces, second_area};
pub(crate) use claim::{BEAT_MILLIS, ClaimIo, Keeper, LEASE_MILLIS, claim_at, first_claim, lease_of, read_claim};
pub(crate) use cleaner::Cleaner;
pub(crate) use evacuate::{Evacuation, Rejoiner, Removals, runs};
pub(crate) use fill::{FillPiece, Filler};
pub(crate) use pace::Pace;
pub(crate) use prepare::Preparer;
pub(crate) use rebalance::Rebalancer;
pub(crate) use relabel::Relabeler;
pub(crate) use reserve::{Estimate, LEAST_LOG, Purse, Waiting};
pub(crate) use scrub::{ScrubArea, ScrubRead, Scrubber};
pub(crate) use spares::Spares;
pub(crate) use stock::Stock;
pub(crate) use wipe::Wiper;
