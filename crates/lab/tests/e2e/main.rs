//! End-to-end tests: real clients (QEMU's tools, libnbd's, fio, a guest) against a running daemon.
//!
//! `cargo test --release -p millpond-lab --test e2e -- [--subject NAME] [--list] [--no-skip] [FILTER…]`. The subject is `millpond` unless
//! another contender of the lab is named: the same tests against today's servers show that the tests themselves are sound.
//! A test whose programs are missing is skipped with a visible line.

mod cases;
mod cpio;
mod fio;
mod full;
mod guest;
mod guest_disk;
mod hostile;
mod images;
mod kernel;
mod model;
mod subject;

use cases::{Asks, CASES, Case};
use millpond_lab::process::{Workspace, find_tool};
use std::process::ExitCode;
use std::time::Instant;
use subject::{Subject, has_snapshots};

struct Options {
    subject: String,
    filters: Vec<String>,
    list: bool,
    no_skip: bool,
}

fn options() -> Options {
    let mut options = Options { subject: "millpond".into(), filters: Vec::new(), list: false, no_skip: false };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--subject" => options.subject = args.next().unwrap_or_default(),
            "--list" => options.list = true,
            "--no-skip" => options.no_skip = true,
            _ => options.filters.push(arg),
        }
    }
    options
}

fn main() -> ExitCode {
    let options = options();
    let chosen: Vec<&Case> =
        CASES.iter().filter(|c| options.filters.is_empty() || options.filters.iter().any(|f| c.name.contains(f.as_str()))).collect();
    if options.list {
        chosen.iter().for_each(|c| println!("{:24} {}", c.name, c.about));
        return ExitCode::SUCCESS;
    }
    let (mut failed, mut skipped) = (Vec::new(), 0);
    for case in &chosen {
        if let Some(reason) = missing(case, &options.subject) {
            println!("SKIPPED {}: {reason}", case.name);
            skipped += 1;
            continue;
        }
        let begin = Instant::now();
        match attempt(case, &options.subject) {
            Ok(()) => println!("ok      {} ({:.1} s)", case.name, begin.elapsed().as_secs_f64()),
            Err(error) => {
                println!("FAILED  {} ({:.1} s): {error:#}", case.name, begin.elapsed().as_secs_f64());
                failed.push(case.name);
            }
        }
    }
    println!("{}: {} passed, {} failed, {skipped} skipped", options.subject, chosen.len() - failed.len() - skipped, failed.len());
    if failed.is_empty() && (skipped == 0 || !options.no_skip) && !chosen.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn attempt(case: &Case, subject: &str) -> anyhow::Result<()> {
    let workspace = Workspace::new(&std::env::temp_dir(), case.name)?;
    let mut subject = Subject::new(subject, workspace.path())?;
    let outcome = (case.run)(&mut subject);
    if outcome.is_err() {
        eprintln!("--- last words of the server\n{}", subject.last_words());
    }
    outcome
}

fn missing(case: &Case, subject: &str) -> Option<String> {
    let able = match case.asks {
        Asks::Nothing => true,
        Asks::Snapshots => has_snapshots(subject),
        Asks::Everything => subject == "millpond",
    };
    if !able {
        return Some(format!("{subject} is not asked for this"));
    }
    if let Err(reason) = millpond_lab::peer::make(subject) {
        return Some(format!("{reason:#}"));
    }
    if let Some(tool) = case.needs.iter().find(|tool| find_tool(tool).is_none()) {
        return Some(format!("{tool} is not installed"));
    }
    if case.guest { kernel::Kernel::find().err().map(|reason| format!("{reason:#}")) } else { None }
}
