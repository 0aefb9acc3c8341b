//! Programs for the end-to-end tests that come from crates.io or are built with Go, because Debian
//! has no package of them.

use crate::packages;
use anyhow::{Context, Result, ensure};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file system exerciser fsx. This version was tested, and builds with the toolchain of this
/// repository.
const FSX: [&str; 3] = ["fsx", "--version", "=0.3.2"];

/// Object stores with their modules of Go, in the versions that were tested. versitygw had a race of
/// creates before 2026-08.
const STORES: [(&str, &str); 2] = [
    ("versitygw", "github.com/versity/versitygw/cmd/versitygw@v1.8.0"),
    ("minio", "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c"),
];

/// Returns the directory of these programs. It is in the target directory, so that a cache of that
/// directory includes them.
fn folder(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from).join("tools")
}

/// Returns true if a program is missing.
pub fn are_missing(root: &Path) -> bool {
    packages::find(FSX[0]).is_none() && !folder(root).join("bin").join(FSX[0]).is_file()
}

/// Returns the path of a program, here or among those that are installed.
pub fn find(root: &Path, program: &str) -> Option<PathBuf> {
    let own = folder(root).join("bin").join(program);
    if own.is_file() { Some(own) } else { packages::find(program) }
}

/// Builds the missing programs.
///
/// # Errors
/// When the registry cannot be reached, or a build fails.
pub fn install(root: &Path) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let folder = folder(root);
    let mut command = Command::new(cargo);
    command.args(["install", "--quiet", "--locked", "--root"]).arg(&folder).args(FSX);
    let status = command.env("CARGO_TARGET_DIR", folder.join("build")).status().context("starting cargo")?;
    ensure!(status.success(), "cargo install {}: {status}", FSX.join(" "));
    Ok(())
}

/// A store that takes long to build; it is a second opinion.
const SECOND: &str = "minio";
/// Variable that asks for it.
const WITH_SECOND: &str = "MILLPOND_MINIO";
/// Most seconds of a build.
const BUILD_SECONDS: &str = "900";

/// Returns the object stores that are missing, with their modules; MinIO only if `MILLPOND_MINIO` is
/// set.
pub fn missing_stores(root: &Path) -> Vec<(&'static str, &'static str)> {
    let wanted = |program: &str| program != SECOND || std::env::var_os(WITH_SECOND).is_some();
    STORES.into_iter().filter(|(program, _)| wanted(program) && find(root, program).is_none()).collect()
}

/// Builds object stores with Go, which takes some minutes.
///
/// # Errors
/// When Go is not installed, its proxy cannot be reached, or a build fails.
pub fn install_stores(root: &Path, stores: &[(&str, &str)]) -> Result<()> {
    let go = packages::find("go").context("go is not installed (golang-go, or from go.dev)")?;
    for (_, module) in stores {
        let mut build = Command::new("timeout");
        build.arg(BUILD_SECONDS).arg(&go).args(["install", module]).env("GOBIN", folder(root).join("bin"));
        let status = build.status().context("starting go")?;
        ensure!(status.success(), "go install {module}: {status}");
    }
    Ok(())
}

/// Returns PATH with the directory of these programs appended.
///
/// # Errors
/// When the directory's name cannot be part of PATH.
pub fn path(root: &Path) -> Result<OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::join_paths(std::env::split_paths(&path).chain([folder(root).join("bin")])).context("a path with a colon")
}
