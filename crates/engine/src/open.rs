//! Opening a pool: creates a new one, or finds the newest checkpoint and replays the log after it.

mod checkpoint_scan;
mod create;
mod drop_lost_special;
mod import;
mod load;
mod log_replication;
mod members;
mod replay;
mod restore_points;
mod rewind;
mod ring;
mod scan;

pub(crate) use create::create;
pub(crate) use import::Import;
