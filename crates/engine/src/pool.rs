//! A pool in service: guest requests, commands, the log's tail, and the tasks behind them.

mod ahead;
mod append;
mod cached;
mod catalog;
mod clean;
mod clear;
mod codec;
mod command;
mod destroy;
mod devices;
mod diff;
mod durable;
mod fault;
mod finish;
mod full;
mod gather;
mod go_on;
mod info;
mod jobs;
mod joined;
mod memory;
mod op;
mod read;
mod reclaimer;
mod record;
mod requests;
mod state;
mod turn;
mod waits;
mod write;
mod write_sizes;

pub(crate) use full::{FULL_PATIENCE_MILLIS, FULL_RETRY_MILLIS};
pub(crate) use read::check_node;
pub(crate) use state::Pool;
pub(crate) use turn::Grain;
