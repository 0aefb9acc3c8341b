//! A disk with a volatile write cache whose power can be cut. nbdkit's cache filter keeps unflushed
//! writes in an unlinked file; nbdfuse makes a file of the disk that supports direct I/O and fsync.
//! When both are killed, unflushed writes are lost.

use crate::process::{Daemon, find_tool, run_tool};
use anyhow::{Context, Result};
use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const READY: Duration = Duration::from_secs(300);

/// A disk with a volatile write cache; see the module.
#[derive(Debug)]
pub struct VolatileDisk {
    dir: PathBuf,
    bytes: u64,
    nbdkit: Option<Daemon>,
    nbdfuse: Option<Daemon>,
}

impl VolatileDisk {
    /// Checks whether such disks can be made here.
    ///
    /// # Errors
    /// A program is missing, or mounts are not possible.
    pub fn possible() -> Result<()> {
        for tool in ["nbdkit", "nbdfuse", "umount"] {
            find_tool(tool).with_context(|| format!("{tool} is not installed"))?;
        }
        anyhow::ensure!(Path::new("/dev/fuse").exists(), "there is no /dev/fuse");
        anyhow::ensure!(rustix::process::geteuid().is_root(), "mounting a disk with a volatile cache needs root");
        Ok(())
    }

    /// Starts a disk in `dir` on its medium, [`VolatileDisk::medium`], which is made empty if it is
    /// missing.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(dir: &Path, bytes: u64) -> Result<VolatileDisk> {
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let mut disk = VolatileDisk { dir: dir.to_owned(), bytes, nbdkit: None, nbdfuse: None };
        disk.power_on()?;
        Ok(disk)
    }

    /// Path of the stable medium of a disk in `dir`.
    pub fn medium(dir: &Path) -> PathBuf {
        dir.join("medium.img")
    }

    /// Path of the disk as a file.
    pub fn path(&self) -> PathBuf {
        self.dir.join("disk.img")
    }

    /// Restores the power.
    ///
    /// # Errors
    /// nbdkit or nbdfuse does not start.
    pub fn power_on(&mut self) -> Result<()> {
        let (medium, socket, log) = (VolatileDisk::medium(&self.dir), self.dir.join("disk.sock"), self.dir.join("disk.log"));
        let file = File::options().create(true).truncate(false).write(true).open(&medium).context("making the medium")?;
        if file.metadata().context("looking at the medium")?.len() < self.bytes {
            file.set_len(self.bytes).context("sizing the medium")?;
        }
        let _ = fs::remove_file(&socket);
        let mut command = Command::new(find_tool("nbdkit").context("nbdkit is not installed")?);
        command.args(["--foreground", "--filter=cache", "--unix"]).arg(&socket).arg("file").arg(&medium);
        // the cache is an unlinked file in this directory
        let mut nbdkit = Daemon::spawn(command.env("TMPDIR", &self.dir), &log)?;
        nbdkit.wait_ready(READY, || UnixStream::connect(&socket).is_ok())?;
        self.nbdkit = Some(nbdkit);
        File::create(self.path()).context("making the file that becomes the disk")?;
        let mut command = Command::new(find_tool("nbdfuse").context("nbdfuse is not installed")?);
        let mut nbdfuse = Daemon::spawn(command.arg(self.path()).arg("--unix").arg(&socket), &log)?;
        let (path, bytes) = (self.path(), self.bytes);
        nbdfuse.wait_ready(READY, || fs::metadata(&path).is_ok_and(|found| found.len() >= bytes))?;
        self.nbdfuse = Some(nbdfuse);
        Ok(())
    }

    /// Cuts the power: unflushed writes are lost.
    ///
    /// # Errors
    /// A process cannot be killed, or the file cannot be unmounted.
    pub fn power_off(&mut self) -> Result<()> {
        if let Some(mut nbdkit) = self.nbdkit.take() {
            nbdkit.kill9()?;
        }
        if let Some(mut nbdfuse) = self.nbdfuse.take() {
            nbdfuse.kill9()?;
            run_tool("umount", &["-l", &self.path().display().to_string()])?;
        }
        Ok(())
    }
}

impl Drop for VolatileDisk {
    fn drop(&mut self) {
        let _ = self.power_off();
    }
}
