mod client;
mod control;
mod double;
mod engine;
mod serving;
