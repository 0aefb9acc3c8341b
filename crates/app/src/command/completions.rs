//! `completions`: scripts that complete the command line in a shell.
//!
//! The scripts run this program with [`VARIABLE`] set, so candidates always come from the definition
//! of the command line and, for names, from the daemon.

use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::CompleteEnv;
use millpond_api::failure::{Failure, Outcome};

use super::Cli;
use crate::output::write_out;

/// Variable with the name of the shell for which candidates are requested.
const VARIABLE: &str = "MILLPOND_COMPLETE";

/// Shells with completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Print a script that completes commands, options and names in a shell
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  source <(millpond completions bash)                                        in ~/.bashrc
  millpond completions zsh > /usr/local/share/zsh/site-functions/_millpond
  millpond completions fish > ~/.config/fish/completions/millpond.fish

Names of pools, volumes, snapshots, devices and exports come from the daemon; without one they are not completed.
The Debian package installs the scripts.")]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub fn run(self) -> Outcome {
        let script = match self.shell {
            Shell::Bash => include_str!("completions/millpond.bash"),
            Shell::Zsh => include_str!("completions/millpond.zsh"),
            Shell::Fish => include_str!("completions/millpond.fish"),
        };
        write_out(script)
    }
}

/// Prints candidates and returns true if a shell requests them.
///
/// # Errors
/// When the shell is not known, or requests candidates for no word.
pub fn answer_shell() -> Outcome<bool> {
    let answered = CompleteEnv::with_factory(Cli::command).var(VARIABLE).try_complete(std::env::args_os(), None);
    answered.map_err(|error| Failure::failed(format!("{VARIABLE}: {}", error.to_string().trim_start_matches("error: ").trim())))
}
