//! Simulated drives for an experiment: this program, run as `millpond-lab drives`, and its mount.

use super::loop_mount::can_mount;
use crate::process::{Daemon, Workspace, run_tool};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Mounted simulated drives. Dropping it removes the mount and their data.
#[derive(Debug)]
pub struct Drives {
    mount: PathBuf,
    count: usize,
    daemon: Daemon,
    _backing: Workspace,
}

impl Drives {
    /// Checks whether drives can be simulated here.
    ///
    /// # Errors
    /// The reason why not.
    pub fn check() -> Result<()> {
        can_mount()?;
        ensure!(Path::new("/dev/fuse").exists(), "there is no /dev/fuse");
        Ok(())
    }

    /// Mounts drives given as `mn08aca14t=4G` in `dir`. Their data is kept in memory, because the
    /// time of a disk would be added to the model's.
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

    /// Returns the files of the drives, in the order of the models.
    pub fn files(&self) -> Vec<PathBuf> {
        (0..self.count).map(|n| self.mount.join(format!("disk{n}"))).collect()
    }

    /// Process id of the server of the drives.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }
}

impl Drop for Drives {
    fn drop(&mut self) {
        // lazily: a server that was killed may still have files open
        let _ = run_tool("umount", &["--lazy".as_ref(), self.mount.as_os_str()]);
    }
}
