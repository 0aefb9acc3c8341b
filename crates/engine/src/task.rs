//! Background tasks: checkpoints, the cleaner, releasing and preparing space, labels, the claim;
//! and jobs: filling and emptying devices, spares, rebalancing, scrub, wiping.

mod checkpoint;
mod cleaner;
mod evacuate;
mod gather;
mod jobs;
mod key_writer;
mod label_writer;
mod lease;
mod prepare;
mod rebalance;
mod release;
mod resilver;
mod scrub;
mod spares;
mod uploads;
mod wipe;

pub(crate) use checkpoint::{CHUNKS_PER_CHECKPOINT, Checkpointer, Slice, checkpoint_brings_space, checkpoint_due, pieces};
pub(crate) use cleaner::Cleaner;
pub(crate) use evacuate::{Beside, Rejoiner, begin_removal, rehearse_removal, removal_waits, step_evacuation};
pub(crate) use gather::Gatherer;
pub(crate) use jobs::{JobTasks, Jobs};
pub(crate) use key_writer::KeyWriter;
pub(crate) use label_writer::{LabelWriter, fresh_area};
pub(crate) use lease::{HEARTBEAT_MILLIS, LEASE_MILLIS, Lease, claim_at, first_claim, lease_of, read_claim};
pub(crate) use prepare::Preparer;
pub(crate) use release::{release_retained, step_give_back};
pub(crate) use resilver::Resilver;
pub(crate) use spares::Spares;
