//! `millpond-lab`: loads and experiments from the command line; `millpond lab` runs it.
#![forbid(unsafe_code)]

mod command;

use clap::{CommandFactory, FromArgMatches};
use command::{Cli, called};
use std::process::ExitCode;

fn main() -> ExitCode {
    let words = Cli::command().name(called()).bin_name(called()).get_matches();
    let outcome = Cli::from_arg_matches(&words).unwrap_or_else(|error| error.exit()).run();
    match outcome {
        Ok(code) => code,
        Err(error) => {
            let name = called().split(' ').next().unwrap_or_default();
            eprintln!("{name}: {}", format!("{error:#}").replace(['\n', '\r'], " "));
            ExitCode::FAILURE
        }
    }
}
