//! qemu-nbd with a raw file, or with a qcow2 overlay on a disk of its own, as in a volume chain of
//! Proxmox VE on LVM; in any cache mode.

use super::qsd::CHAIN_OPTIONS;
use super::{CacheMode, Contender};
use crate::load::Endpoint;
use crate::process::{Daemon, find_tool, run_tool};
use anyhow::{Context, Result};
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A qemu-nbd server.
#[derive(Debug)]
pub struct QemuNbd {
    overlay: bool,
    cache: CacheMode,
    /// Image to serve; `None` for an image in its directory.
    image: Option<PathBuf>,
    dir: PathBuf,
    daemon: Option<Daemon>,
}

impl QemuNbd {
    /// Describes a server of a raw file or of an overlay; starts nothing.
    pub fn new(overlay: bool) -> QemuNbd {
        QemuNbd { overlay, cache: CacheMode::default(), image: None, dir: PathBuf::new(), daemon: None }
    }

    /// Sets the cache mode.
    pub fn with_cache(mut self, mode: CacheMode) -> QemuNbd {
        self.cache = mode;
        self
    }

    /// Sets an existing image: a raw one, or one of [`QemuNbd::make_overlay`].
    pub fn with_image(mut self, image: &Path) -> QemuNbd {
        self.image = Some(image.to_owned());
        self
    }

    /// Makes an overlay with the options of the article on snapshots, on a base of `size` bytes in
    /// `dir`.
    ///
    /// # Errors
    /// qemu-img failed.
    pub fn make_overlay(image: &Path, dir: &Path, size: u64) -> Result<()> {
        let base = dir.join("base.qcow2").display().to_string();
        run_tool("qemu-img", &["create", "-q", "-f", "qcow2", &base, &size.to_string()])?;
        let image = image.display().to_string();
        run_tool("qemu-img", &["create", "-q", "-f", "qcow2", "-o", CHAIN_OPTIONS, "-b", &base, "-F", "qcow2", &image, &size.to_string()])?;
        Ok(())
    }

    fn image(&self) -> PathBuf {
        self.image.clone().unwrap_or_else(|| self.dir.join("disk.img"))
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("qemu-nbd.sock")
    }

    fn launch(&mut self) -> Result<()> {
        let socket = self.socket();
        let _ = std::fs::remove_file(&socket);
        let mut command = Command::new(find_tool("qemu-nbd").context("qemu-nbd is not installed")?);
        command.args(["--persistent", "--shared=16", "--export-name=disk"]).arg(format!("--cache={}", self.cache.name()));
        command.arg(format!("--format={}", if self.overlay { "qcow2" } else { "raw" }));
        command.arg("--socket").arg(&socket).arg(self.image());
        let mut daemon = Daemon::spawn(&mut command, &self.dir.join("qemu-nbd.log"))?;
        daemon.wait_ready(Duration::from_secs(20), || UnixStream::connect(&socket).is_ok())?;
        self.daemon = Some(daemon);
        Ok(())
    }
}

impl Contender for QemuNbd {
    fn name(&self) -> &'static str {
        if self.overlay { "qemu-nbd-overlay" } else { "qemu-nbd-raw" }
    }

    fn start(&mut self, dir: &Path, size: u64) -> Result<()> {
        dir.clone_into(&mut self.dir);
        match (self.image(), self.overlay) {
            (image, _) if image.exists() => {}
            (image, true) => QemuNbd::make_overlay(&image, dir, size)?,
            (image, false) => File::create(image).and_then(|f| f.set_len(size)).context("making the image")?,
        }
        self.launch()
    }

    fn endpoint(&self) -> Result<Endpoint> {
        Ok(Endpoint::unix(&self.socket(), "disk"))
    }

    fn pid(&self) -> Result<u32> {
        Ok(self.daemon.as_ref().context("not running")?.pid())
    }

    fn kill9(&mut self) -> Result<()> {
        self.daemon.take().context("not running")?.kill9()
    }

    fn restart(&mut self) -> Result<()> {
        self.launch()
    }

    fn stop(&mut self) -> Result<()> {
        match self.daemon.take() {
            Some(mut daemon) => daemon.terminate(Duration::from_secs(20)).map(|_| ()),
            None => Ok(()),
        }
    }
}
