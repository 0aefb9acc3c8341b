//! Opening a pool: making a new one, or finding the newest checkpoint and replaying the log after it.

mod create;
mod import;
mod load;
mod replay;
mod ring;
mod scan;

pub(crate) use create::create;
pub(crate) use import::Import;
