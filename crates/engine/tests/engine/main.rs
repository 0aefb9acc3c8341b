//! The engine over memory devices that complete at once: what it stores, snapshots, frees and recovers, against a plain model.
#![allow(clippy::unwrap_used, missing_docs)]

mod bytes;
mod cache;
mod census;
mod claim;
mod cleaner;
mod crowded;
mod evacuate;
mod faults;
mod flips;
mod golden;
mod jobs;
mod mirror;
mod model;
mod options;
mod parity;
mod queries;
mod read_cache;
mod rewind;
mod rig;
mod scrub;
mod snapshots;
mod spares;
mod special;
mod wipe;
mod writes;
