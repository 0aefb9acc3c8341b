//! An image in a file system that shares blocks between files: a snapshot is a copy by reference
//! (`cp --reflink`). qemu-storage-daemon serves the image as a raw file; the file system is on a
//! loop device.

use super::loop_mount::{Loop, LoopMount};
use super::{Contender, ImageFormat, Qsd};
use crate::load::Endpoint;
use crate::process::run_tool;
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// An image with snapshots by reflink; see the module.
#[derive(Debug)]
pub struct Reflink {
    name: &'static str,
    kind: &'static str,
    server: Qsd,
    mount: Option<LoopMount>,
    snapshots: Vec<PathBuf>,
}

impl Reflink {
    /// Describes a target; starts nothing. `kind` is `xfs` or `btrfs`.
    pub fn new(name: &'static str, kind: &'static str) -> Reflink {
        Reflink { name, kind, server: Qsd::new(name, ImageFormat::Raw), mount: None, snapshots: Vec::new() }
    }

    fn image(&self, name: &str) -> Result<PathBuf> {
        Ok(self.mount.as_ref().context("not mounted")?.dir().join(name))
    }
}

impl Contender for Reflink {
    fn name(&self) -> &'static str {
        self.name
    }

    fn start(&mut self, dir: &Path, size: u64) -> Result<()> {
        let file = dir.join("filesystem.img");
        File::create_new(&file).and_then(|f| f.set_len(6 * size + (2 << 30))).context("making the filesystem's file")?;
        let options: &[&str] = if self.kind == "xfs" { &["-q", "-m", "reflink=1,crc=1"] } else { &["-q"] };
        let mount = LoopMount::make(Loop::attach(&file, false)?, self.kind, options, &dir.join("mnt"))?;
        let place = mount.dir().to_owned();
        self.mount = Some(mount);
        self.server.start(&place, size)
    }

    fn endpoint(&self) -> Result<Endpoint> {
        self.server.endpoint()
    }

    fn file(&mut self) -> Result<PathBuf> {
        self.image("layer0.img")
    }

    fn pid(&self) -> Result<u32> {
        self.server.pid()
    }

    fn snapshot(&mut self, name: &str) -> Result<()> {
        let (from, to) = (self.image("layer0.img")?, self.image(&format!("{name}.snap"))?);
        run_tool("cp", &["--reflink=always", &from.display().to_string(), &to.display().to_string()])?;
        self.snapshots.push(to);
        Ok(())
    }

    fn delete_snapshots(&mut self) -> Result<()> {
        self.snapshots.drain(..).try_for_each(|file| fs::remove_file(&file).with_context(|| format!("removing {}", file.display())))
    }

    fn kill9(&mut self) -> Result<()> {
        self.server.kill9()
    }

    fn restart(&mut self) -> Result<()> {
        bail!("it is not asked to start again")
    }

    fn stop(&mut self) -> Result<()> {
        let stopped = self.server.stop();
        self.mount = None;
        stopped
    }
}

impl Drop for Reflink {
    fn drop(&mut self) {
        let _ = self.stop(); // the server first: it holds the mount
    }
}
