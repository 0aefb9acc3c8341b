//! `cargo xtask ci`: all checks, each with a budget; what cannot run here says so.

use crate::packages;
use crate::part::{Outcome, Parts, within};
use crate::{tidy, tools};
use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The bounded simulation. Longer: `cargo run --release -p millpond-sim -- --count N`.
const WORLDS: [&str; 4] = ["--count", "600", "--jobs", "2"];
/// The same for power cuts at every event of short traces.
const POWER_CUTS: [&str; 5] = ["--power-cut", "--count", "20", "--jobs", "2"];
/// What everything is built with, so that it is built once.
const PROFILE: [&str; 2] = ["--profile", "ci"];

/// Runs all parts; true when none failed.
pub fn run(root: &Path, install: bool, quick: bool) -> Result<bool> {
    let mut parts = Parts::default();
    system_packages(&mut parts, install);
    other_programs(root, &mut parts, install);
    parts.command("format", 2, &mut cargo(root, &["fmt", "--all", "--check"]));
    parts.command("lints", 25, &mut cargo(root, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]));
    // it is no test for plain `cargo test`, so "all targets" leaves it out
    parts.command("lints of e2e", 10, &mut cargo(root, &["clippy", "-p", "millpond-lab", "--test", "e2e", "--", "-D", "warnings"]));
    parts.check("tidy", || {
        let findings = tidy::check(root)?;
        findings.iter().for_each(|finding| println!("{finding}"));
        Ok(if findings.is_empty() { Outcome::Passed } else { Outcome::Failed(format!("{} findings", findings.len())) })
    });
    let mut tests = cargo(root, &["test", "--workspace", "--quiet"]);
    // the end-to-end tests have a part of their own below
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
    parts.command("simulation", 25, &mut simulator(root, &[], &WORLDS));
    parts.command("simulation of power cuts", 10, &mut simulator(root, &[], &POWER_CUTS));
    parts.check("planted bugs are found", || planted_bugs(root));
    parts.check("end to end", || {
        if end_to_end(root, &[])? {
            return Ok(Outcome::Passed);
        }
        // guests under emulation share the machine with whatever else runs: one failure is shown, two count
        println!("end to end: FAILED once, see above; once more");
        Ok(if end_to_end(root, &[])? { Outcome::Passed } else { Outcome::Failed("twice, see above".into()) })
    });
    Ok(parts.finish())
}

/// Builds the daemon, then runs the end-to-end tests; true when none failed.
pub fn end_to_end(root: &Path, arguments: &[&str]) -> Result<bool> {
    let built = cargo(root, &["build", "-p", "millpond"]).args(PROFILE).status().context("starting cargo")?;
    if !built.success() {
        return Ok(false);
    }
    let mut tests = cargo(root, &["test", "--quiet", "-p", "millpond-lab", "--test", "e2e"]);
    tests.env("PATH", tools::path(root)?);
    Ok(tests.args(PROFILE).arg("--").args(arguments).status().context("starting cargo")?.success())
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
    if !tools::are_missing(root) {
        return;
    }
    if install {
        // Who has no way to the registry has no fsx; everything else can run.
        parts.check("build fsx", || Ok(tools::install(root).map_or_else(|e| Outcome::Skipped(format!("{e:#}")), |()| Outcome::Passed)));
    } else {
        parts.skip(
            "build fsx",
            "not installed; the test that needs it is skipped (cargo install fsx --version =0.3.2 --locked, or --install)",
        );
    }
}

/// Every bug that can be planted is found within the seeds that the simulator allows itself.
pub fn planted_bugs(root: &Path) -> Result<Outcome> {
    let build = ["--features", "planted"];
    let answer = simulator(root, &build, &["--planted", "list"]).output().context("starting the simulator")?;
    let words = String::from_utf8_lossy(&answer.stderr).into_owned();
    let names = words.lines().find_map(|line| line.split_once("known: ")).map(|(_, names)| names.trim().to_owned());
    let names = names.with_context(|| format!("the simulator names no bugs to plant: {words}"))?;
    let mut missed = Vec::new();
    for name in names.split(", ") {
        if within(Duration::from_secs(10 * 60), &mut simulator(root, &build, &["--planted", name]))? != Outcome::Passed {
            missed.push(name.to_owned());
        }
    }
    Ok(if missed.is_empty() { Outcome::Passed } else { Outcome::Failed(format!("not found: {}", missed.join(", "))) })
}

fn simulator(root: &Path, build: &[&str], arguments: &[&str]) -> Command {
    let mut command = cargo(root, &["run", "--quiet", "-p", "millpond-sim"]);
    command.args(PROFILE).args(build).arg("--").args(arguments);
    command
}

fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root);
    command
}
