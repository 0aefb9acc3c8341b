//! The lab: a load generator, the servers people use today, and the experiments that measure them side by side with Millpond.
//!
//! Millpond is one more contender here: it is started by its command line, spoken to over NBD, and asked for its counters like
//! any client would. So every figure can be rerun by a stranger with a built binary; `docs/measuring.md` names the commands.
//!
//! *Architecture Invariant:* this crate depends on no other crate of the project. It learns nothing from inside the engine.
#![forbid(unsafe_code)]

pub mod drive;
pub mod experiment;
pub mod guest;
pub mod load;
pub mod monitor;
pub mod peer;
pub mod process;
pub mod report;
pub mod scene;
pub mod units;
