//! Commands of `millpond-lab`, also called as `millpond lab`.

mod cli;
mod drives;
mod files;
mod list;
mod load;
mod monitor;
mod report;
mod run;

pub use cli::{Cli, called};
