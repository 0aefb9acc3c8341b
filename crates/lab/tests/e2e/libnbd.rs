//! libnbd, call by call, as a program in its shell.

use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::process::{find_tool, run_command};
use std::fs;
use std::process::Command;

const SIZE: u64 = 96 << 20;
const PROGRAM: &str = include_str!("libnbd.py");

/// Runs the program; it ends with a line that says so.
pub fn run(subject: &mut Subject) -> Result<()> {
    let uri = subject.start(SIZE)?.uri();
    let file = subject.file("program.py");
    fs::write(&file, PROGRAM)?;
    let program = format!("URI = {uri:?}; SIZE = {SIZE}; exec(open({file:?}).read())");
    // The shell runs the first python3 of the path, and libnbd's module belongs to the distribution's.
    let shell = find_tool("nbdsh").context("nbdsh is not installed")?;
    let said = run_command(Command::new(shell).arg("-c").arg(program).env("PATH", "/usr/bin:/bin"))?;
    ensure!(said.trim().ends_with("all of it"), "{said}");
    Ok(())
}
