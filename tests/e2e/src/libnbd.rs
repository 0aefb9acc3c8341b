//! Calls of libnbd, made by programs in its shell.

use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::process::{find_tool, run_command, run_tool};
use std::fs;
use std::process::Command;

const SIZE: u64 = 96 << 20;
const PROGRAM: &str = include_str!("libnbd.py");
/// A size beyond the 32-bit lengths of headers that are not extended.
const LARGE: u64 = 6 << 30;
const EXTENDED: &str = include_str!("libnbd_extended.py");

/// Calls of versions before extended headers.
pub fn run(subject: &mut Subject) -> Result<()> {
    let uri = subject.start(SIZE)?.uri();
    play(subject, &uri, SIZE, PROGRAM)
}

/// Extended headers; needs a libnbd that supports them.
pub fn extended(subject: &mut Subject) -> Result<()> {
    let uri = subject.start(LARGE)?.uri();
    subject.server().snapshot("monday")?;
    play(subject, &uri, LARGE, EXTENDED)
}

/// Returns the installed version of libnbd: major, minor.
pub fn version() -> Option<(u32, u32)> {
    let said = run_tool("nbdinfo", &["--version"]).ok()?;
    let (major, minor) = said.lines().next()?.split_whitespace().next_back()?.split_once('.')?;
    Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
}

/// Runs a program, which must end with a certain line.
fn play(subject: &Subject, uri: &str, size: u64, program: &str) -> Result<()> {
    let file = subject.file("program.py");
    fs::write(&file, program)?;
    let program = format!("URI = {uri:?}; SIZE = {size}; exec(open({file:?}).read())");
    // The shell runs the first python3 in the path, and libnbd's module is installed for the
    // distribution's.
    let shell = find_tool("nbdsh").context("nbdsh is not installed")?;
    let said = run_command(Command::new(shell).arg("-c").arg(program).env("PATH", "/usr/bin:/bin"))?;
    ensure!(said.trim().ends_with("all of it"), "{said}");
    Ok(())
}
