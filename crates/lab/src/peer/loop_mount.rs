//! A file system in a file, mounted through a loop device. Needs root. Dropping it unmounts, then
//! detaches the device.

use crate::process::run_tool;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// A loop device, detached when dropped.
#[derive(Debug)]
pub struct Loop(String);

impl Loop {
    /// Attaches a file. With `direct`, I/O bypasses the page cache of the file's file system if
    /// that is possible.
    ///
    /// # Errors
    /// Not root, or no loop device is free.
    pub fn attach(file: &Path, direct: bool) -> Result<Loop> {
        let file = file.display().to_string();
        let direct = format!("--direct-io={}", if direct { "on" } else { "off" });
        run_tool("losetup", &["--find", "--show", &direct, &file]).map(|text| Loop(text.trim().to_owned())).context("a loop device")
    }

    /// Path of the device.
    pub fn path(&self) -> &str {
        &self.0
    }

    /// Stops the kernel from merging requests while the device is attached, so that each block of
    /// the file system is a request of its own. The size of merged requests does not show what they
    /// are.
    ///
    /// # Errors
    /// The kernel refuses.
    /// The kernel does not let it.
    pub fn without_merges(self) -> Result<Loop> {
        self.set_merges("2")?;
        Ok(self)
    }

    /// Makes a file system (`mkfs.KIND`) on the device.
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
        // the device node stays, and another file may be attached to it
        let _ = self.set_merges("0");
        let _ = run_tool("losetup", &["--detach", &self.0]);
    }
}

/// A mounted file system, unmounted when dropped.
#[derive(Debug)]
pub struct LoopMount {
    dir: PathBuf,
    _device: Loop,
}

impl LoopMount {
    /// Makes a file system (`mkfs.KIND`) on the device and mounts it.
    ///
    /// # Errors
    /// The program is not installed, the kernel does not support the file system, or not root.
    pub fn make(device: Loop, kind: &str, options: &[&str], dir: &Path) -> Result<LoopMount> {
        device.format(kind, options)?;
        LoopMount::mount(device, "defaults", dir)
    }

    /// Mounts the file system on the device, with options as for `mount -o`.
    ///
    /// # Errors
    /// There is no file system, or not root.
    pub fn mount(device: Loop, options: &str, dir: &Path) -> Result<LoopMount> {
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        run_tool("mount", &["-o", options, device.path(), &dir.display().to_string()])?;
        Ok(LoopMount { dir: dir.to_owned(), _device: device })
    }

    /// Directory of the mount.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        let _ = run_tool("umount", &[&self.dir]);
    }
}

/// Checks whether loop devices and mounts can be made here.
///
/// # Errors
/// The reason why not.
pub fn can_mount() -> Result<()> {
    anyhow::ensure!(rustix::process::geteuid().is_root(), "loop devices and mounts take root");
    anyhow::ensure!(Path::new("/dev/loop-control").exists(), "there is no /dev/loop-control");
    Ok(())
}

/// Checks whether the kernel supports a file system.
///
/// # Errors
/// The reason why not.
pub fn knows_filesystem(kind: &str) -> Result<()> {
    let known =
        || fs::read_to_string("/proc/filesystems").unwrap_or_default().lines().any(|line| line.split_whitespace().last() == Some(kind));
    if !known() {
        let _ = run_tool("modprobe", &[kind]);
    }
    anyhow::ensure!(known(), "this kernel has no {kind}");
    Ok(())
}
