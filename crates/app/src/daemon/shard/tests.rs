mod client;
mod control;
mod double;
mod endings;
mod engine;
mod serving;
mod vhost;
