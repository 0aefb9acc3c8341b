//! A filesystem on a file: a loop device and where it is mounted. Takes root. Both go when this is dropped, the mount first.

use crate::process::run_tool;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// A loop device, detached when dropped.
#[derive(Debug)]
pub struct Loop(String);

impl Loop {
    /// On a file. With `direct`, past the page cache of the file's filesystem where that can.
    ///
    /// # Errors
    /// Not root, or no device is free.
    pub fn attach(file: &Path, direct: bool) -> Result<Loop> {
        let file = file.display().to_string();
        let direct = format!("--direct-io={}", if direct { "on" } else { "off" });
        run_tool("losetup", &["--find", "--show", &direct, &file]).map(|text| Loop(text.trim().to_owned())).context("a loop device")
    }

    /// Its path.
    pub fn path(&self) -> &str {
        &self.0
    }

    /// With every block of a filesystem's own in a request of its own, as long as this is attached: the kernel joins neighbours otherwise, and their size
    /// says no more what they are.
    ///
    /// # Errors
    /// The kernel does not let it.
    pub fn without_merges(self) -> Result<Loop> {
        self.set_merges("2")?;
        Ok(self)
    }

    /// Makes a filesystem (`mkfs.KIND`) on it.
    ///
    /// # Errors
    /// The program is not installed, or fails.
    pub fn format(&self, kind: &str, options: &[&str]) -> Result<()> {
        run_tool(&format!("mkfs.{kind}"), &[options, &[self.path()]].concat()).map(|_| ())
    }

    fn set_merges(&self, value: &str) -> Result<()> {
        let path = format!("/sys/block/{}/queue/nomerges", self.0.trim_start_matches("/dev/"));
        fs::write(&path, value).with_context(|| format!("writing {path}"))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = self.set_merges("0"); // the device stays, for whoever attaches a file next
        let _ = run_tool("losetup", &["--detach", &self.0]);
    }
}

/// A mounted filesystem, unmounted when dropped.
#[derive(Debug)]
pub struct LoopMount {
    dir: PathBuf,
    _device: Loop,
}

impl LoopMount {
    /// Makes a filesystem (`mkfs.KIND`) on the device and mounts it.
    ///
    /// # Errors
    /// The program is not installed, the kernel does not know the filesystem, or not root.
    pub fn make(device: Loop, kind: &str, options: &[&str], dir: &Path) -> Result<LoopMount> {
        device.format(kind, options)?;
        LoopMount::mount(device, "defaults", dir)
    }

    /// Mounts the filesystem that is on the device, with options as `mount -o` takes them.
    ///
    /// # Errors
    /// There is none, or not root.
    pub fn mount(device: Loop, options: &str, dir: &Path) -> Result<LoopMount> {
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        run_tool("mount", &["-o", options, device.path(), &dir.display().to_string()])?;
        Ok(LoopMount { dir: dir.to_owned(), _device: device })
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        let _ = run_tool("umount", &[&self.dir]);
    }
}

/// Whether loop devices and mounts can be made here; the reason if not.
///
/// # Errors
/// The reason.
pub fn can_mount() -> Result<()> {
    anyhow::ensure!(rustix::process::geteuid().is_root(), "loop devices and mounts take root");
    anyhow::ensure!(Path::new("/dev/loop-control").exists(), "there is no /dev/loop-control");
    Ok(())
}

/// Whether the kernel knows a filesystem; the reason if not.
///
/// # Errors
/// The reason.
pub fn knows_filesystem(kind: &str) -> Result<()> {
    let known =
        || fs::read_to_string("/proc/filesystems").unwrap_or_default().lines().any(|line| line.split_whitespace().last() == Some(kind));
    if !known() {
        let _ = run_tool("modprobe", &[kind]);
    }
    anyhow::ensure!(known(), "this kernel has no {kind}");
    Ok(())
}
