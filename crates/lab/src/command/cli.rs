//! The command line: its definition, and the dispatch to the command that was chosen.

use super::{drives, files, list, load, monitor, report, run};
use anyhow::Result;
use clap::{Parser, Subcommand};
use millpond_lab::peer::{memory_mount, serve_ceiling};
use millpond_lab::units::parse_size;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures Millpond and other storage servers on the same machine.
#[derive(Parser)]
#[command(
    version,
    max_term_width = 110,
    after_help = "\
Example:
  millpond lab list
  millpond lab run all --scale 0.01 --out lab-results     a short run of every experiment
  millpond lab run snapshots --reps 5                     one experiment at full scale
  millpond lab monitor --secs 60 > run.csv                processors, memory and disks each second
  millpond lab report lab-results                         the reports again, from its results.json"
)]
pub struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    List(list::List),
    Run(run::Run),
    Report(report::Report),
    Load(load::LoadArgs),
    Monitor(monitor::MonitorArgs),
    Drives(drives::Drives),
    #[command(hide = true)]
    Files(files::Files),
    /// Serves memory over NBD or as a file of a mount: the contender `ceiling`
    #[command(hide = true)]
    Ceiling {
        /// Size of the memory in bytes
        #[arg(long, value_parser = parse_size)]
        size: u64,
        /// Serves the file `disk` of the directory instead of a socket
        #[arg(long)]
        mount: bool,
        /// Path of the unix socket, or of the directory
        path: PathBuf,
    },
}

impl Cli {
    /// Runs the chosen command.
    ///
    /// # Errors
    /// An error for the user, shown as one line.
    pub fn run(self) -> Result<ExitCode> {
        match self.verb {
            Verb::List(list) => list.run(),
            Verb::Run(run) => run.run(),
            Verb::Report(report) => report.run(),
            Verb::Load(load) => load.run(),
            Verb::Monitor(monitor) => monitor.run(),
            Verb::Drives(drives) => drives.run(),
            Verb::Files(files) => files.run(),
            Verb::Ceiling { size, mount: true, path } => memory_mount::serve(&path, size).map(|()| ExitCode::SUCCESS),
            Verb::Ceiling { size, mount: false, path } => serve_ceiling(&path, size).map(|()| ExitCode::SUCCESS),
        }
    }
}

/// Returns the name by which this program was called: `millpond lab` if the daemon's command line
/// started it.
pub fn called() -> &'static str {
    if std::env::args_os().next().is_some_and(|name| name == "millpond lab") { "millpond lab" } else { "millpond-lab" }
}
