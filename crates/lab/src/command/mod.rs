//! The verbs of `millpond-lab`, which is `millpond lab` too.

mod cli;
mod drives;
mod files;
mod list;
mod load;
mod report;
mod run;

pub use cli::{Cli, called};
