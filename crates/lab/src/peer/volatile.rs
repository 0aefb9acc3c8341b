//! A disk with a volatile write cache, whose power can be cut: nbdkit's cache filter holds in its own unlinked file what was written and not
//! flushed, and nbdfuse makes a file of it that takes direct I/O and fsync. When both die, what was not flushed is gone.

use crate::process::{Daemon, find_tool, run_tool};
use anyhow::{Context, Result};
use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const READY: Duration = Duration::from_secs(300);

/// See the module.
#[derive(Debug)]
pub struct VolatileDisk {
    dir: PathBuf,
    bytes: u64,
    nbdkit: Option<Daemon>,
    nbdfuse: Option<Daemon>,
}

impl VolatileDisk {
    /// Why there can be none here.
    ///
    /// # Errors
    /// A program is missing, or nothing may be mounted.
    pub fn possible() -> Result<()> {
        for tool in ["nbdkit", "nbdfuse", "umount"] {
            find_tool(tool).with_context(|| format!("{tool} is not installed"))?;
        }
        anyhow::ensure!(Path::new("/dev/fuse").exists(), "there is no /dev/fuse");
        anyhow::ensure!(rustix::process::geteuid().is_root(), "mounting a disk with a volatile cache needs root");
        Ok(())
    }

    /// A disk on the medium [`VolatileDisk::medium`] in `dir`, empty unless that is there.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(dir: &Path, bytes: u64) -> Result<VolatileDisk> {
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let mut disk = VolatileDisk { dir: dir.to_owned(), bytes, nbdkit: None, nbdfuse: None };
        disk.power_on()?;
        Ok(disk)
    }

    /// What is on the stable medium of a disk in `dir`.
    pub fn medium(dir: &Path) -> PathBuf {
        dir.join("medium.img")
    }

    /// The disk as a file.
    pub fn path(&self) -> PathBuf {
        self.dir.join("disk.img")
    }

    /// Power comes back.
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
        // the cache is an unlinked file there
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

    /// The power goes: what was not flushed is lost.
    ///
    /// # Errors
    /// The file stays mounted.
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
