//! The lab: a load generator, the servers in use today ("peers"), and experiments that compare them
//! with Millpond.
//!
//! Millpond is one more target: it is started by its command line, loaded over its protocols, and
//! queried for its counters like by any client. So anyone can repeat every figure with a built
//! binary; `docs/measuring.md` has the commands.
//!
//! Processes, guests, targets and loads are also the kit of the end-to-end tests in `tests/e2e`.
//!
//! *Architecture Invariant:* of the project this crate uses the clients in `millpond-export` alone,
//! and has no access to the engine's internals.
#![forbid(unsafe_code)]

pub mod drive;
pub mod experiment;
pub mod guest;
pub mod load;
pub mod monitor;
mod mounted;
pub mod peer;
pub mod process;
pub mod report;
pub mod scene;
pub mod units;
