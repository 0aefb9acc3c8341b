//! The command line: its definition, and the dispatch to the command that was chosen.

use super::{drives, files, list, load, report, run};
use anyhow::Result;
use clap::{Parser, Subcommand};
use millpond_lab::peer::serve_ceiling;
use millpond_lab::units::parse_size;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures Millpond and the servers people use today, side by side.
#[derive(Parser)]
#[command(
    version,
    max_term_width = 110,
    after_help = "\
Example:
  millpond lab list
  millpond lab run all --scale 0.01 --out lab-results     a look at every experiment
  millpond lab run snapshots --reps 5                     one of them as specified
  millpond lab report lab-results                         the table again, and report.html"
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
    Drives(drives::Drives),
    #[command(hide = true)]
    Files(files::Files),
    /// Serves plain memory over NBD: the contender `ceiling`
    #[command(hide = true)]
    Ceiling {
        /// Bytes
        #[arg(long, value_parser = parse_size)]
        size: u64,
        /// Where to listen
        socket: PathBuf,
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
            Verb::Drives(drives) => drives.run(),
            Verb::Files(files) => files.run(),
            Verb::Ceiling { size, socket } => serve_ceiling(&socket, size).map(|()| ExitCode::SUCCESS),
        }
    }
}

/// Returns the name by which this program was called: `millpond lab` if the daemon's command line
/// started it.
pub fn called() -> &'static str {
    if std::env::args_os().next().is_some_and(|name| name == "millpond lab") { "millpond lab" } else { "millpond-lab" }
}
