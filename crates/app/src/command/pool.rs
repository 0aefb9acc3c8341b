//! The `pool` commands, one file per command.

mod advise;
mod checkpoints;
mod create;
mod destroy;
mod device_limit;
mod devices;
mod import;
mod iostat;
pub mod jobs;
mod plan;
mod publish;
mod rebalance;
mod scrub;
mod show;
mod spec;
mod upgrade;
mod verbs;
mod wipe;

pub use verbs::Pool;
