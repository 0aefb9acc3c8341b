//! Background tasks: checkpoints, the cleaner, releasing and preparing space, labels, the claim;
//! and jobs: filling and emptying devices, spares, rebalancing, scrub, wiping.

mod checkpoint;
mod claim;
mod cleaner;
mod evacuate;
mod fill;
mod give_back;
mod jobs;
mod prepare;
mod rebalance;
mod relabel;
mod scrub;
mod spares;
mod wipe;

pub(crate) use checkpoint::{CHUNKS_PER_CHECKPOINT, Checkpointer, pieces};
pub(crate) use claim::{BEAT_MILLIS, Keeper, LEASE_MILLIS, claim_at, first_claim, lease_of, read_claim};
pub(crate) use cleaner::Cleaner;
pub(crate) use evacuate::Rejoiner;
pub(crate) use fill::Filler;
pub(crate) use prepare::Preparer;
pub(crate) use rebalance::Rebalancer;
pub(crate) use relabel::Relabeler;
pub(crate) use scrub::Scrubber;
pub(crate) use spares::Spares;
pub(crate) use wipe::Wiper;
