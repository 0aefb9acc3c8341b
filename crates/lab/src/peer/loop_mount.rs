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
}

impl Drop for Loop {
    fn drop(&mut self) {
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
        run_tool(&format!("mkfs.{kind}"), &[options, &[device.path()]].concat())?;
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        run_tool("mount", &[device.path(), &dir.display().to_string()])?;
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
