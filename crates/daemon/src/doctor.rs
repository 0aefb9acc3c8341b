//! A look at the host: kernel, limits, permissions, and the devices and file systems below pools.
//! It needs no daemon, and changes nothing.
//!
//! Files of the host are read below a root directory, so that tests can invent a host.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

mod devices;
mod files;
mod kernel;
mod smart;
#[cfg(test)]
mod tests;

pub use smart::Health;

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    /// As it should be.
    Ok,
    /// The host does not say.
    Unknown,
    /// Works, with a disadvantage that `found` names.
    Warn,
    /// Data is at risk, or something does not work.
    Fail,
}

impl CheckState {
    /// Returns the word, as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            CheckState::Ok => "ok",
            CheckState::Unknown => "unknown",
            CheckState::Warn => "warn",
            CheckState::Fail => "fail",
        }
    }
}

/// A check of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Name of the check. Names do not change.
    pub check: &'static str,
    /// The device, file or setting that was looked at.
    pub subject: String,
    /// Result.
    pub state: CheckState,
    /// Finding in one line.
    pub found: String,
    /// The change that is advised; empty if nothing is to be changed.
    pub remedy: String,
}

impl Check {
    fn new(check: &'static str, subject: impl Into<String>, state: CheckState, found: impl Into<String>, remedy: &str) -> Check {
        Check { check, subject: subject.into(), state, found: found.into(), remedy: remedy.to_owned() }
    }

    fn ok(check: &'static str, subject: impl Into<String>, found: impl Into<String>) -> Check {
        Check::new(check, subject, CheckState::Ok, found, "")
    }

    fn unknown(check: &'static str, subject: impl Into<String>, found: impl Into<String>) -> Check {
        Check::new(check, subject, CheckState::Unknown, found, "")
    }
}

/// The host to look at.
#[derive(Clone, Debug)]
pub struct Host {
    /// Directory that stands for `/`.
    pub root: PathBuf,
    /// Process whose limits are checked: the daemon's; without one, this process.
    pub pid: Option<u32>,
    /// State directory of the daemon.
    pub state: PathBuf,
    /// Control socket of the daemon.
    pub socket: PathBuf,
    /// Devices of pools.
    pub devices: Vec<PathBuf>,
}

impl Host {
    /// Runs all checks, in a fixed order.
    pub fn checks(&self) -> Vec<Check> {
        let mut checks = kernel::checks(self);
        checks.extend(files::permissions(self));
        for device in &self.devices {
            checks.extend(devices::checks(self, device));
        }
        checks
    }

    /// Returns a path below the root.
    fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        below(&self.root, path.as_ref())
    }

    /// Reads a small file without the line end.
    fn read(&self, path: impl AsRef<Path>) -> io::Result<String> {
        fs::read_to_string(self.at(path)).map(|text| text.trim().to_owned())
    }
}

/// Returns a path below a root.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Returns the report of the disk of a device about itself. Blocks on the disk.
pub fn wear_of(device: &Path) -> Health {
    let root = Path::new("/");
    match devices::number_of(device).and_then(|number| devices::disk_of(root, number)) {
        Some(disk) => smart::read(root, &devices::name_of(&disk)),
        None => Health::NotReadable("no block device is below it".to_owned()),
    }
}

/// Returns the devices of the pools in the state file of a daemon that need not run.
///
/// # Errors
/// When there is a state file and it cannot be read.
pub fn known_devices(state: &Path) -> Result<Vec<PathBuf>, String> {
    let path = state.join("state.json");
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
    };
    let value: serde_json::Value = serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    let pools = value["pools"].as_array().into_iter().flatten();
    let lists = pools.flat_map(|pool| [&pool["devices"], &pool["replacements"]]);
    let paths = lists.filter_map(|list| list.as_array()).flatten().filter_map(|path| path.as_str()).filter(|path| !path.is_empty());
    // paths inside the state directory are relative to it
    let unique: BTreeSet<PathBuf> = paths.map(|path| state.join(path)).collect();
    Ok(unique.into_iter().collect())
}
