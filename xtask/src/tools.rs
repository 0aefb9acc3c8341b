//! Programs for the end-to-end tests that come from crates.io: Debian has no package of them.

use crate::packages;
use anyhow::{Context, Result, ensure};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file system exerciser; this version was tried, and builds with the toolchain of this repository.
const FSX: [&str; 3] = ["fsx", "--version", "=0.3.2"];

/// Where they are kept: beside what is built, so that a cache of that has them too.
fn folder(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from).join("tools")
}

/// True when one is missing.
pub fn are_missing(root: &Path) -> bool {
    packages::find(FSX[0]).is_none() && !folder(root).join("bin").join(FSX[0]).is_file()
}

/// Builds what is missing.
///
/// # Errors
/// There is no way to the registry, or it does not build.
pub fn install(root: &Path) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let folder = folder(root);
    let mut command = Command::new(cargo);
    command.args(["install", "--quiet", "--locked", "--root"]).arg(&folder).args(FSX);
    let status = command.env("CARGO_TARGET_DIR", folder.join("build")).status().context("starting cargo")?;
    ensure!(status.success(), "cargo install {}: {status}", FSX.join(" "));
    Ok(())
}

/// PATH with these programs in it.
///
/// # Errors
/// A folder's name cannot stand in PATH.
pub fn path(root: &Path) -> Result<OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::join_paths(std::env::split_paths(&path).chain([folder(root).join("bin")])).context("a path with a colon")
}
