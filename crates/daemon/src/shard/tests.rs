//! The shard's tests: its loop over a pool that is a test double, and over the engine.

pub(crate) mod client;
mod control;
pub(super) mod double;
mod endings;
mod engine;
mod mount;
mod serving;
mod tls;
mod vhost;
