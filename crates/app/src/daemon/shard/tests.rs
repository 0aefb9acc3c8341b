mod client;
mod control;
mod double;
mod endings;
mod engine;
mod mount;
mod serving;
mod vhost;
