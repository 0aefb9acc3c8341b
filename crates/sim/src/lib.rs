//! Runs the engine over simulated devices with seeded scheduling, faults and crashes, and checks
//! every answer with an oracle. Worlds of another kind have hosts that fight for the terms of a
//! bucket.
//!
//! *Architecture Invariant:* everything in a world follows from its seed. There are no clocks, no
//! threads, no outside randomness and no iteration over hash tables: the same seed gives the same
//! trace, byte for byte.
#![forbid(unsafe_code)]

mod base;
mod bucket;
mod bytes;
mod config;
mod content;
mod disk;
mod fault;
mod grid;
mod machine;
mod oracle;
mod power_cut;
mod rng;
mod runner;
mod shard;
mod system;
mod terms;
mod trace;
mod workload;
mod world;

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

pub use config::Options;
pub use fault::FaultKind;
pub use runner::{Finding, Mode, Outcome, quiet_panics, run};
pub use system::{System, Target};
pub use terms::{TermOptions, TermOutcome, TermStats, run_terms};
pub use world::Stats;
