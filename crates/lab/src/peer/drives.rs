//! Simulated drives for an experiment: this same program as `millpond-lab drives`, and its mount.

use super::loop_mount::can_mount;
use crate::process::{Daemon, Workspace, run_tool};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Drives that are there while this is; the mount goes with it, and what is on them.
#[derive(Debug)]
pub struct Drives {
    mount: PathBuf,
    count: usize,
    daemon: Daemon,
    _backing: Workspace,
}

impl Drives {
    /// Whether drives can be simulated here.
    ///
    /// # Errors
    /// Why not.
    pub fn check() -> Result<()> {
        can_mount()?;
        ensure!(Path::new("/dev/fuse").exists(), "there is no /dev/fuse");
        Ok(())
    }

    /// Drives as `mn08aca14t=4G`, mounted in `dir`. Their bytes are kept in memory: a disk's own time would be added to the model's.
    ///
    /// # Errors
    /// They cannot be mounted.
    pub fn start(dir: &Path, drives: &[String]) -> Result<Drives> {
        let backing = Workspace::new(Path::new("/dev/shm"), "drives")?;
        let mount = dir.join("drives");
        fs::create_dir_all(&mount).with_context(|| format!("making {}", mount.display()))?;
        let mut command = Command::new(std::env::current_exe().context("the path of this program")?);
        command.arg("drives").arg(&mount).arg("--backing").arg(backing.path()).args(drives);
        let mut daemon = Daemon::spawn(&mut command, &dir.join("drives.log"))?;
        let last = mount.join(format!("disk{}", drives.len().saturating_sub(1)));
        daemon.wait_ready(Duration::from_secs(20), || last.exists())?;
        Ok(Drives { mount, count: drives.len(), daemon, _backing: backing })
    }

    /// The files, in the order of the models.
    pub fn files(&self) -> Vec<PathBuf> {
        (0..self.count).map(|n| self.mount.join(format!("disk{n}"))).collect()
    }

    /// Process id of what serves them.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }
}

impl Drop for Drives {
    fn drop(&mut self) {
        // lazily: a server that was killed may still be about to let go
        let _ = run_tool("umount", &["--lazy".as_ref(), self.mount.as_os_str()]);
    }
}
