//! A pool in service: guest requests, commands, the log's tail, and the tasks behind them.

mod append;
mod cached;
mod census;
mod clear;
mod codec;
mod command;
mod complete;
mod destroy;
mod devices;
mod diff;
mod full;
mod hold;
mod info;
mod memory;
mod op;
mod read;
mod silence;
mod spans;
mod state;
mod streams;
mod turn;
mod write;

pub use command::check_name;
pub(crate) use full::{FULL_PATIENCE_MILLIS, FULL_RETRY_MILLIS};
pub(crate) use memory::STUCK_MILLIS;
pub use op::Target;
pub(crate) use op::{Owner, Work};
pub(crate) use read::check_node;
pub(crate) use state::Pool;
pub(crate) use turn::Grain;
