//! The storage engine of one pool: log, maps, snapshots, space, checkpoints and recovery.
//!
//! *Architecture Invariant (I8):* no threads, clock, randomness or system calls. The engine is a
//! state machine: requests, commands, device completions and time go in; device operations, guest
//! completions and replies come out. Production and simulator run the same code.
#![forbid(unsafe_code)]

mod api;
mod cache;
mod check;
mod codec;
mod core;
mod engine;
mod error;
mod io;
mod log;
mod machine;
mod open;
mod options;
mod pool;
mod read_ahead;
mod read_cache;
mod restore_points;
mod slab;
mod space;
mod startup;
mod store;
mod task;
mod throttle;
mod tree;
mod tuning;

pub use api::*;
pub use check::{Audit, Media, Objects};
pub use codec::{Codec, CodecWork};
pub use engine::Engine;
pub use error::*;
pub use machine::StateMachine;
pub use options::{Limits, Rate, VolumeOptions};
pub use read_cache::ReadCacheUse;
pub use restore_points::{RestorePointScan, Surveyed};
pub use startup::{Decision, Evidence, ImportRules, Labelled, Looked, Refusal};
pub use store::{LOCK_TAG, check_name};
pub use throttle::{Entry, LimitEffect, Throttles};
pub use tuning::{Aim, Discard, Gather, NewestLabel, Planted, ReadCacheSize, ReadySpace, Tuning, UploadLimits};
