//! The storage plugin for Proxmox VE, by its own tests.

use super::subject::Subject;
use anyhow::{Result, ensure};
use millpond_lab::peer::millpond_binary;
use millpond_lab::process::run_command;
use std::path::Path;
use std::process::Command;

/// Runs the plugin's tests, which start daemons of their own.
pub fn plugin(_: &mut Subject) -> Result<()> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integrations/proxmox/run-tests");
    let said = run_command(Command::new(tests).env("MILLPOND_BIN", millpond_binary()?))?;
    let skipped = said.lines().filter(|line| line.contains("skipped: "));
    skipped.for_each(|line| println!("SKIPPED proxmox: {line}"));
    ensure!(said.contains("All tests successful") || said.contains("Result: NOTESTS"), "{said}");
    Ok(())
}
