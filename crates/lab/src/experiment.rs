//! The experiments. Each measures all of its targets in one run, interleaved and repeated; reports
//! have medians and paired ratios.

mod aged_reads;
mod aging;
mod beside_jobs;
mod cache_mode;
mod cdm;
mod cleaner;
mod clone_storm;
mod defaults;
mod delete;
mod evacuate;
mod file_system;
mod fill;
mod flat;
mod fuse_speed;
mod kill9;
mod list;
mod looked_at;
mod loss;
mod lost_special;
mod nbd_speed;
mod parity;
mod read_share;
mod recovery;
mod rewind;
mod sample;
mod scrub;
mod sectors;
mod setup;
mod snap_under_load;
mod snapshot_timeline;
mod snapshots;
mod special;
mod stripe;
mod sync;
mod vhost_speed;
mod watch;

pub use list::{EXPERIMENTS, Experiment};
pub use setup::{Media, Open, OpenMillpond, Setup};
