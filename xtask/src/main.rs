//! The project's own chores: `cargo xtask tidy`, `cargo xtask digests`, `cargo xtask e2e`, `cargo xtask ci`.
#![forbid(unsafe_code)]

mod book;
mod ci;
mod packages;
mod part;
mod release;
mod tidy;
mod tools;

use anyhow::{Context, Result};
use release::Options;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const HELP: &str = "\
cargo xtask ci [--install] [--quick]   everything that has to hold before a change lands, in under half an hour on two cores
    --install   as root: install the Debian packages that the end-to-end tests need, and build fsx
    --quick     without the simulator and the end-to-end tests
cargo xtask tidy                       rules about the source itself: arrows, lengths, words, paths, invariants
cargo xtask book                       builds the book of docs with mdBook into target/book
cargo xtask reference                  writes the pages of docs/reference again, from the command line and the API
cargo xtask circles [CRATE]            files of a crate whose methods call each other in a circle, and where to cut it
cargo xtask floors                     imports of the engine's modules that do not go down to a lower floor
cargo xtask digests [--record]         compares the digests of simulator runs with crates/sim/digests.txt, or records them again
cargo xtask golden                     makes the golden pools of this version in tests/golden, before its release
cargo xtask planted                    every planted bug is found by the simulator
cargo xtask e2e [ARGS...]              builds the daemon and runs the end-to-end tests with these arguments (try --list)
cargo xtask deb [OPTIONS]              builds the Debian package
cargo xtask tarball [OPTIONS]          builds the tarball with a static program
cargo xtask image [OPTIONS]            builds the OCI image
    --version VERSION   version of the release [default: the workspace's]
    --out DIR           directory for the result [default: target/packages]
    --built DIR         take the programs from this directory [default: build them with the profile release]";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<bool> {
    let root = root()?;
    match words {
        ["tidy"] => {
            let findings = tidy::check(&root)?;
            let lines: String = findings.iter().map(|finding| format!("{finding}\n")).collect();
            write_out(&format!("{lines}tidy: {} findings\n", findings.len()))?;
            Ok(findings.is_empty())
        }
        ["ci", options @ ..] if options.iter().all(|o| ["--install", "--quick"].contains(o)) => {
            ci::run(&root, options.contains(&"--install"), options.contains(&"--quick"))
        }
        ["book"] => {
            let outcome = book::build(&root)?;
            println!("book: {outcome:?}");
            Ok(outcome == part::Outcome::Passed)
        }
        ["reference"] => ci::reference(&root),
        ["circles"] => write_out(&tidy::describe_circles(&root, None)?),
        ["circles", name] => write_out(&tidy::describe_circles(&root, Some(name))?),
        ["floors"] => write_out(&tidy::describe_floors(&root)?),
        ["digests", options @ ..] if options.is_empty() || options == ["--record"] => {
            let outcome = ci::digests(&root, !options.is_empty())?;
            println!("digests: {outcome:?}");
            Ok(outcome == part::Outcome::Passed)
        }
        ["golden"] => {
            let outcome = ci::golden_pools(&root)?;
            println!("golden pools: {outcome:?}");
            Ok(outcome == part::Outcome::Passed)
        }
        ["planted"] => {
            let outcome = ci::planted_bugs(&root)?;
            println!("planted bugs: {outcome:?}");
            Ok(outcome == part::Outcome::Passed)
        }
        ["e2e", arguments @ ..] => ci::end_to_end(&root, arguments),
        ["deb", words @ ..] => print_path(&release::deb(&root, &Options::parse(&root, words)?)?),
        ["tarball", words @ ..] => print_path(&release::tarball(&root, &Options::parse(&root, words)?)?),
        ["image", words @ ..] => print_path(&release::image(&root, &Options::parse(&root, words)?)?),
        _ => {
            write_out(&format!("{HELP}\n"))?;
            Ok(words.is_empty() || words == ["--help"])
        }
    }
}

/// Writes to standard output; returns true. A reader that has closed the pipe (`| head`) is no error.
fn write_out(text: &str) -> Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("cannot write to standard output"),
        _ => Ok(true),
    }
}

fn print_path(path: &Path) -> Result<bool> {
    write_out(&format!("{}\n", path.display()))
}

/// Returns the top directory of the checkout, the parent of this crate's.
fn root() -> Result<PathBuf> {
    let own = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").context("run it as `cargo xtask`")?);
    Ok(own.parent().context("xtask lies in the workspace")?.to_owned())
}
