mod client;
mod control;
mod double;
mod serving;
