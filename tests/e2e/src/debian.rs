//! A guest that boots a clean Debian tree with systemd and runs a script.

use super::guest::Guest;
use anyhow::{Context, Result, ensure};
use millpond_lab::guest::{Archive, Kernel};
use millpond_lab::process::{find_tool, run_command, tail};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Init of the initramfs, which only mounts the root file system: Debian's kernel has drivers of
/// virtio as modules.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /new
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
for module in /modules/*; do insmod $module || echo "insmod $module failed"; done
mount -t ext4 /dev/vda /new
mount --move /dev /new/dev
umount /proc /sys
exec switch_root /new /sbin/init
"#;
/// Unit that runs the script in the guest, with the console as its output.
const UNIT: &str = "\
[Unit]
After=basic.target
[Service]
Type=simple
WorkingDirectory=/root
ExecStart=/bin/sh -c '/packages/script; echo \"ENDED $?\"; sync; systemctl poweroff --force'
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
";
/// Directory in which clean trees are kept for later runs.
const KEPT: &str = "MILLPOND_TREES";

/// A Debian system in a directory.
pub struct Tree {
    path: PathBuf,
}

/// The machine that boots a tree.
pub struct Machine<'a> {
    pub kernel: &'a Kernel,
    /// Bytes of the root file system.
    pub root: u64,
    /// Memory in MiB.
    pub memory: u32,
    /// Options of QEMU for further disks.
    pub options: Vec<String>,
}

impl Tree {
    /// Makes a clean tree in `dir` with the release of this host and these packages, which are
    /// separated by commas.
    ///
    /// # Errors
    /// This host is no Debian, or a package cannot be fetched.
    pub fn bootstrap(dir: &Path, name: &str, packages: &str) -> Result<Tree> {
        let path = dir.join("tree");
        let Some(kept) = std::env::var_os(KEPT).map(|kept| PathBuf::from(kept).join(name)) else {
            fetch(&path, packages)?;
            return Ok(Tree { path });
        };
        if !kept.exists() {
            let unfinished = kept.with_extension("unfinished");
            fetch(&unfinished, packages)?;
            fs::rename(&unfinished, &kept).context("keeping the tree")?;
        }
        run_command(Command::new("cp").arg("-a").arg(&kept).arg(&path))?;
        Ok(Tree { path })
    }

    /// Directory of the tree.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Copies a file to a path of the tree.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn copy(&self, from: &Path, to: &str) -> Result<()> {
        let to = self.path.join(to);
        fs::create_dir_all(to.parent().context("a directory")?)?;
        fs::copy(from, &to).with_context(|| format!("copying {} to {}", from.display(), to.display())).map(drop)
    }

    /// Boots the tree; the script runs while the system starts, with `/root` as its directory.
    ///
    /// # Errors
    /// A program is missing, or QEMU does not start.
    pub fn boot(&self, dir: &Path, machine: &Machine<'_>, script: &str) -> Result<Guest> {
        let root = self.image(dir, machine.root, script)?;
        let drive = format!("file={},format=raw,if=virtio,cache=unsafe", root.display());
        machine.boot(dir, &["-drive".to_owned(), drive])
    }

    /// Makes an image of the root file system, with a script that runs while the system starts.
    ///
    /// # Errors
    /// A program is missing.
    pub fn image(&self, dir: &Path, bytes: u64, script: &str) -> Result<PathBuf> {
        self.add(script)?;
        let root = dir.join("root.img");
        fs::File::create(&root)?.set_len(bytes)?;
        let mut make = Command::new(find_tool("mke2fs").context("mke2fs")?);
        run_command(make.args(["-q", "-F", "-t", "ext4", "-d"]).arg(&self.path).arg(&root))?;
        Ok(root)
    }

    fn add(&self, script: &str) -> Result<()> {
        let (file, units) = (self.path.join("packages/script"), self.path.join("etc/systemd/system"));
        fs::create_dir_all(self.path.join("packages"))?;
        fs::write(&file, script)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
        fs::write(units.join("script.service"), UNIT)?;
        fs::create_dir_all(units.join("multi-user.target.wants"))?;
        symlink("../script.service", units.join("multi-user.target.wants/script.service"))?;
        // it would take the console away from the script
        symlink("/dev/null", units.join("serial-getty@ttyS0.service"))?;
        Ok(())
    }
}

impl Machine<'_> {
    /// Boots the root file system that is on QEMU's first disk.
    ///
    /// # Errors
    /// A program is missing, or QEMU does not start.
    pub fn boot(&self, dir: &Path, disk: &[String]) -> Result<Guest> {
        let initramfs = dir.join("initramfs");
        let mut archive = Archive::default();
        archive.file("init", 0o755, INIT.as_bytes());
        archive.file("bin/busybox", 0o755, &fs::read(find_tool("busybox").context("busybox")?)?);
        archive.modules(self.kernel, &["virtio_pci", "virtio_blk", "crc32c_generic", "ext4", "fuse"])?;
        fs::write(&initramfs, archive.finish())?;
        let mut command = Command::new(find_tool("qemu-system-x86_64").context("qemu-system-x86_64")?);
        command.args(["-machine", "pc,accel=tcg", "-append", "console=ttyS0 loglevel=2 panic=-1 systemd.show_status=no"]);
        command.arg("-kernel").arg(&self.kernel.image).arg("-initrd").arg(&initramfs).args(disk).args(&self.options);
        Guest::start_with(command, self.memory)
    }
}

fn fetch(path: &Path, packages: &str) -> Result<()> {
    let release = fs::read_to_string("/etc/os-release").context("reading /etc/os-release")?;
    let suite = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).context("this is no release of Debian")?;
    let mut command = Command::new("mmdebstrap");
    command.args(["--quiet", "--variant=minbase", "--include", packages, suite]).arg(path);
    let output = command.output().context("starting mmdebstrap")?;
    ensure!(output.status.success(), "{}", tail(String::from_utf8_lossy(&output.stderr).trim(), 300));
    Ok(())
}
