//! The storage engine of one pool: log, maps, snapshots, space, checkpoints and recovery.
//!
//! *Architecture Invariant:* no threads, clock, randomness or system calls. The engine is a state machine: requests, commands, device
//! completions and time go in; device operations, guest completions and replies come out. Production and simulator run the same code.
mod api;

pub use api::*;
