//! `millpond`: the daemon, its client, and the stand-alone `up`, in one binary.
#![forbid(unsafe_code)]

mod command;
mod config;
mod output;
mod progress;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use millpond_api::failure::{Code, Failure};

use crate::command::{Cli, answer_shell, describe_elsewhere};

/// A pool's map allocates and frees millions of small pieces, with which the C library's allocator
/// becomes slow.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long blocking work on other threads, such as inspecting a device, may continue after the
/// command has ended.
const LAST_WORK: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    match answer_shell() {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("millpond: {failure}");
            return ExitCode::from(failure.code as u8);
        }
    }
    let words = || std::env::args_os().skip(1).filter_map(|word| word.into_string().ok());
    // many commands would take such a word for a name, and report a misleading error
    if let Some(hint) = millpond_api::names::describe_odd_option(words()) {
        eprintln!("millpond: {hint}");
        return ExitCode::from(Code::Usage as u8);
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return wrong_usage(&error),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => {
            let outcome = runtime.block_on(cli.run());
            // work that waits for a hanging device or file system must not keep the process from
            // ending
            runtime.shutdown_timeout(LAST_WORK);
            outcome
        }
        Err(e) => Err(Failure::failed(format!("cannot start: {e}"))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_said() {
                eprintln!("millpond: {failure}");
            }
            ExitCode::from(failure.code as u8)
        }
    }
}

/// Prints the help if it was requested, else the error, and names characters that look like ASCII
/// but are not.
fn wrong_usage(error: &clap::Error) -> ExitCode {
    // clap suggests the command with the most similar spelling, which is rarely what a user of
    // another system means
    let words: Vec<String> = std::env::args_os().filter_map(|word| word.into_string().ok()).collect();
    if let Some(hint) = describe_elsewhere(error, &words) {
        eprintln!("millpond: {hint}");
        return ExitCode::from(Code::Usage as u8);
    }
    // An error while printing cannot be reported.
    let _ = error.print();
    if error.use_stderr() {
        let hint = std::env::args().skip(1).find_map(|word| millpond_api::names::describe_look_alike(&word));
        if let Some(hint) = hint {
            eprintln!("millpond: {hint}");
        }
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}
