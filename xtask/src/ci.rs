//! `cargo xtask ci`: all checks, each with a time budget. Checks that cannot run here are reported
//! as skipped.

use crate::packages;
use crate::part::{Outcome, Parts, within};
use crate::{book, tidy, tools};
use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The bounded simulation. For a longer one: `cargo run --release -p millpond-sim -- --count N`.
/// Begins behind the seeds of the digests, which look for findings too; so do the others.
const WORLDS: [&str; 6] = ["--from", "64", "--count", "350", "--jobs", "2"];
/// Digests of runs of all kinds, which a change that keeps the behaviour keeps.
const DIGESTS: &str = "crates/sim/digests.txt";
/// The bounded simulation of power cuts at every event of short traces.
const POWER_CUTS: [&str; 7] = ["--power-cut", "--from", "6", "--count", "14", "--jobs", "2"];
/// Kinds of worlds that the bounded simulation never runs. The counts are small, because the first
/// two kinds are long.
const KINDS: [&[&str]; 10] = [
    &["--long-tables", "--from", "1", "--count", "2", "--jobs", "2"],
    &["--full", "--from", "2", "--count", "6", "--jobs", "2", "--turn-limit", "100"],
    &["--rescue", "--from", "24", "--count", "76", "--jobs", "2"],
    &["--restarts", "--from", "32", "--count", "168", "--jobs", "2"],
    &["--gate", "--from", "16", "--count", "44", "--jobs", "2"],
    &["--strict", "--from", "24", "--count", "76", "--jobs", "2"],
    &["--buffered", "--from", "16", "--count", "84", "--jobs", "2"],
    &["--bases", "--from", "16", "--count", "84", "--jobs", "2"],
    &["--capacity", "--from", "32", "--count", "68", "--jobs", "2"],
    &["--buckets", "--count", "500"],
];
/// Cargo profile of all builds, so that everything is built once.
const PROFILE: [&str; 2] = ["--profile", "ci"];
/// Directory of that profile, beside the directory of this program.
const PLACE: &str = "ci";
/// Builds the programs as they are installed, without the features that tests add to their crates.
/// Dependencies get the features of the whole workspace: with `-p`, cargo uses those of one
/// package, and would compile nearly all dependencies again.
const PROGRAMS: [&str; 3] = ["build", "--workspace", "--bins"];

/// Runs all parts; returns true if none failed.
pub fn run(root: &Path, install: bool, quick: bool) -> Result<bool> {
    let mut parts = Parts::default();
    system_packages(&mut parts, install);
    other_programs(root, &mut parts, install);
    parts.command("format", 2, &mut cargo(root, &["fmt", "--all", "--check"]));
    // with the profile of the tests, so that the outputs of build scripts are built once
    let mut lints = cargo(root, &["clippy", "--workspace", "--all-targets"]);
    parts.command("lints", 25, lints.args(PROFILE).args(["--", "-D", "warnings"]));
    // plain `cargo test` does not run e2e, so "all targets" does not include it
    let mut lints = cargo(root, &["clippy", "--workspace", "--test", "e2e"]);
    parts.command("lints of e2e", 10, lints.args(PROFILE).args(["--", "-D", "warnings"]));
    parts.check("tidy", || {
        let findings = tidy::check(root)?;
        findings.iter().for_each(|finding| println!("{finding}"));
        Ok(if findings.is_empty() { Outcome::Passed } else { Outcome::Failed(format!("{} findings", findings.len())) })
    });
    parts.check("book", || book::build(root));
    let mut tests = cargo(root, &["test", "--workspace", "--quiet"]);
    // the end-to-end tests are a separate part below
    parts.command(
        "unit, model and corpus tests",
        45,
        tests.args(PROFILE).args(["--lib", "--bins", "--test", "engine", "--test", "cli", "--test", "clients"]),
    );
    if packages::find("cargo-deny").is_some() {
        parts.command("licences and advisories", 2, &mut cargo(root, &["deny", "check"]));
    } else {
        parts.skip("licences and advisories", "cargo-deny is not installed (cargo install cargo-deny)");
    }
    if quick {
        parts.skip("simulation, planted bugs, end to end", "--quick");
        return Ok(parts.finish());
    }
    parts.command("programs", 20, cargo(root, &PROGRAMS).args(PROFILE));
    parts.check("digests", || compare_digests(root, "--compare"));
    parts.check("simulation", || within(minutes(25), simulator(root)?.args(WORLDS)));
    for kind in KINDS {
        parts.check(&format!("simulation {}", kind.first().unwrap_or(&"")), || within(minutes(15), simulator(root)?.args(kind)));
    }
    parts.check("simulation of power cuts", || within(minutes(10), simulator(root)?.args(POWER_CUTS)));
    parts.command("end-to-end tests are built", 20, &mut end_to_end_tests(root, &["--no-run"]));
    parts.check("end to end", || Ok(if end_to_end(root, &[])? { Outcome::Passed } else { Outcome::Failed("see above".into()) }));
    // the last part, because it replaces the simulator by one with planted bugs
    parts.check("planted bugs are found", || planted_bugs(root));
    Ok(parts.finish())
}

/// Builds the simulator and compares the digests of its runs with the recorded ones, or records
/// them again.
pub fn digests(root: &Path, record: bool) -> Result<Outcome> {
    let mut build = cargo(root, &["build", "--workspace", "--bin", "millpond-sim"]);
    match within(minutes(20), build.args(PROFILE))? {
        Outcome::Passed => compare_digests(root, if record { "--record" } else { "--compare" }),
        failed => Ok(failed),
    }
}

fn compare_digests(root: &Path, option: &str) -> Result<Outcome> {
    within(minutes(20), simulator(root)?.args([option, DIGESTS, "--jobs", "2"]))
}

/// Builds the daemon, then runs the end-to-end tests; returns true if none failed.
pub fn end_to_end(root: &Path, arguments: &[&str]) -> Result<bool> {
    let built = cargo(root, &PROGRAMS).args(PROFILE).status().context("starting cargo")?;
    if !built.success() {
        return Ok(false);
    }
    let mut tests = end_to_end_tests(root, &[]);
    tests.env("PATH", tools::path(root)?);
    Ok(tests.arg("--").args(arguments).status().context("starting cargo")?.success())
}

/// Writes the pages of `docs/reference` again; returns true if that was possible. The tests that
/// compare them write them, if `MILLPOND_REFERENCE` is set.
pub fn reference(root: &Path) -> Result<bool> {
    let mut tests = cargo(root, &["test", "--quiet", "-p", "millpond", "-p", "millpond-daemon", "--lib", "--bins"]);
    tests.args(PROFILE).args(["--", "page_of_the_reference"]).env("MILLPOND_REFERENCE", "write");
    Ok(tests.status().context("starting cargo")?.success())
}

fn end_to_end_tests(root: &Path, more: &[&str]) -> Command {
    let mut tests = cargo(root, &["test", "--quiet", "--workspace", "--test", "e2e"]);
    tests.args(PROFILE).args(more);
    tests
}

fn system_packages(parts: &mut Parts, install: bool) {
    let missing = packages::missing();
    if missing.is_empty() {
        return;
    }
    if install {
        parts.check("install packages", || packages::install(&missing).map(|()| Outcome::Passed));
    } else {
        let reason =
            format!("not installed: {0}; tests that need them are skipped (as root: apt-get install {0}, or --install)", missing.join(" "));
        parts.skip("install packages", &reason);
    }
}

fn other_programs(root: &Path, parts: &mut Parts, install: bool) {
    object_stores(root, parts, install);
    if !tools::are_missing(root) {
        return;
    }
    if install {
        // Without access to the registry fsx is skipped; everything else can run.
        parts.check("build fsx", || Ok(tools::install(root).map_or_else(|e| Outcome::Skipped(format!("{e:#}")), |()| Outcome::Passed)));
    } else {
        parts.skip(
            "build fsx",
            "not installed; the test that needs it is skipped (cargo install fsx --version =0.3.2 --locked, or --install)",
        );
    }
}

fn object_stores(root: &Path, parts: &mut Parts, install: bool) {
    let missing = tools::missing_stores(root);
    if missing.is_empty() {
        return;
    }
    if install {
        let built = || Ok(tools::install_stores(root, &missing).map_or_else(|e| Outcome::Skipped(format!("{e:#}")), |()| Outcome::Passed));
        parts.check("build object stores", built);
    } else {
        let modules: Vec<&str> = missing.iter().map(|(_, module)| *module).collect();
        let reason = format!("not installed; the tests that need them are skipped (go install {}, or --install)", modules.join(" "));
        parts.skip("build object stores", &reason);
    }
}

/// Makes the golden pools of this version with its own program, in `tests/golden`. Ids and times
/// differ each time, so the files do; their content is the same.
pub fn golden_pools(root: &Path) -> Result<Outcome> {
    let mut test = cargo(root, &["test", "--package", "millpond", "--test", "cli", "golden::pools"]);
    within(minutes(30), test.args(PROFILE).env("MILLPOND_GOLDEN", "write"))
}

/// Checks that every planted bug is found within the simulator's own number of seeds.
pub fn planted_bugs(root: &Path) -> Result<Outcome> {
    let mut build = cargo(root, &["build", "--workspace", "--bin", "millpond-sim", "--features", "millpond-sim/planted"]);
    let built = within(minutes(20), build.args(PROFILE))?;
    if built != Outcome::Passed {
        return Ok(built);
    }
    let answer = simulator(root)?.args(["--planted", "list"]).output().context("starting the simulator")?;
    let words = String::from_utf8_lossy(&answer.stderr).into_owned();
    let names = words.lines().find_map(|line| line.split_once("known: ")).map(|(_, names)| names.trim().to_owned());
    let names = names.with_context(|| format!("the simulator names no bugs to plant: {words}"))?;
    let mut missed = Vec::new();
    for name in names.split(", ") {
        if within(minutes(10), simulator(root)?.args(["--planted", name]))? != Outcome::Passed {
            missed.push(name.to_owned());
        }
    }
    Ok(if missed.is_empty() { Outcome::Passed } else { Outcome::Failed(format!("not found: {}", missed.join(", "))) })
}

/// Returns a command for the simulator that was built last.
fn simulator(root: &Path) -> Result<Command> {
    let own = std::env::current_exe().context("the path of this program")?;
    // the program is TARGET/debug/xtask, wherever the target directory is
    let target = own.ancestors().nth(2).context("this program is not in cargo's target")?;
    let mut command = Command::new(target.join(PLACE).join("millpond-sim"));
    // a world allocates and frees large buffers all the time; keeping their memory saves a quarter
    // of the time
    command.current_dir(root).env("MIMALLOC_PURGE_DELAY", "-1");
    Ok(command)
}

fn minutes(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}

fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root);
    command
}
