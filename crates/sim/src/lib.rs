//! The engine over simulated devices: seeded scheduling, faults, crashes, and an oracle that knows every legal answer.
//!
//! *Architecture Invariant:* everything a world does follows from its seed. No clock, no threads, no randomness from outside, no iteration over
//! hash tables; the same seed gives the same trace to the last byte.
#![forbid(unsafe_code)]

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
pub use world::Stats;
