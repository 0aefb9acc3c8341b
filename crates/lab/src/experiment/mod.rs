//! The experiments. Each measures all its contenders in one run, interleaved, several times; the report has medians and paired ratios.

mod absent;
mod aging;
mod cleaner;
mod delete;
mod flat;
mod fuse_speed;
mod kill9;
mod list;
mod nbd_speed;
mod recovery;
mod sample;
mod setup;
mod snap_under_load;
mod sync;
mod vhost_speed;

pub use list::{EXPERIMENTS, Experiment};
pub use setup::{Media, Open, OpenMillpond, Setup};
