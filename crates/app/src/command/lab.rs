//! `lab`: runs the experiments, which are the separate program `millpond-lab`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use millpond_api::failure::{Failure, Outcome};

const PROGRAM: &str = "millpond-lab";

/// Measure Millpond and other storage servers on the same machine
#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Example:
  millpond lab list
  millpond lab run all --scale 0.01 --out lab-results
  millpond lab report lab-results
  millpond lab run --help

It runs millpond-lab from the directory of this program; `cargo build --release -p millpond-lab` builds it."
)]
pub struct Lab {
    /// Arguments for the lab: list, run, report, load; see --help
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORDS")]
    words: Vec<OsString>,
}

impl Lab {
    /// Replaces this process with the lab's program; returns only on failure.
    ///
    /// # Errors
    /// When the program is not found or cannot be started.
    pub fn run(self) -> Outcome {
        let own = std::env::current_exe().map_err(|e| Failure::failed(format!("lab cannot find its own program: {e}")))?;
        let program = find(&own).ok_or_else(|| {
            Failure::failed(format!(
                "lab is a separate program, {PROGRAM}, which is neither beside {} nor in PATH; build it with `cargo build --release -p {PROGRAM}`",
                own.display()
            ))
        })?;
        let mut command = Command::new(&program);
        command.arg0("millpond lab").args(self.words);
        if std::env::var_os("MILLPOND_BIN").is_none() {
            command.env("MILLPOND_BIN", &own); // the lab measures this build
        }
        Err(Failure::failed(format!("lab cannot start {}: {}", program.display(), command.exec())))
    }
}

fn find(own: &Path) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let beside = own.parent().map(Path::to_owned);
    beside.into_iter().chain(std::env::split_paths(&path)).map(|dir| dir.join(PROGRAM)).find(|file| file.is_file())
}
