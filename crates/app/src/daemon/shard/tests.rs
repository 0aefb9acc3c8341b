mod client;
mod control;
pub(super) mod double;
mod endings;
mod engine;
mod mount;
mod serving;
mod vhost;
