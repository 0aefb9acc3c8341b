//! Opening a pool: creates a new one, or finds the newest checkpoint and replays the log after it.

mod create;
mod forsake;
mod hunt;
mod import;
mod level;
mod load;
mod members;
mod replay;
mod rewind;
mod ring;
mod scan;
mod survey;

pub(crate) use create::create;
pub(crate) use import::Import;
