//! The walk of a new user, from the book alone: the blocks of commands of `docs/walk.md` run as they
//! are printed on a fresh Debian with systemd, in one shell.
//!
//! The Debian is a guest of QEMU, which emulates it with AMD's virtualization, so that its own guest
//! of libvirt uses KVM. Differences to the page:
//!
//! | on the page | here |
//! |---|---|
//! | `apt install` with packages of Debian | they are part of the tree, because the guest has no network; the package of Millpond is installed by the command |
//! | `vm1.qcow2`, a cloud image | a disk with a boot loader, Debian's kernel and busybox |
//! | `virsh console` | the terminal that it would use |
//! | the next day | the clock of the host is moved |

use super::book::page::{MARK, Page, Runner};
use super::debian::{Machine, Tree};
use super::packages::xtask;
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::guest::{Archive, Kernel};
use millpond_lab::process::{find_tool, run_command};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const PAGE: &str = include_str!("../../../docs/walk.md");
const PRELUDE: &str = include_str!("walk/prelude.sh");
/// Init of the guest of the page.
const INIT: &str = include_str!("walk/init.sh");
/// Init of its initramfs.
const EARLY_INIT: &str = r#"#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /new
/bin/busybox --install -s /bin
export PATH=/bin
mount -t devtmpfs devtmpfs /dev
for module in /modules/*; do insmod $module || echo "insmod $module failed"; done
mount -t ext4 /dev/vda1 /new
mount --move /dev /new/dev
exec switch_root /new /sbin/init
"#;
const LOADER: &str = "DEFAULT linux\nLABEL linux\n  KERNEL vmlinuz\n  INITRD initramfs\n  APPEND console=ttyS0 quiet panic=-1\n";
/// Code of the boot sector, of the package syslinux.
const BOOT_SECTOR: &str = "/usr/lib/SYSLINUX/mbr.bin";

/// Packages of the fresh Debian: a system with a kernel and AppArmor, and those that the page
/// installs.
const INCLUDED: &str = "systemd,systemd-sysv,udev,dbus,linux-image-cloud-amd64,apparmor,kmod,\
                        libvirt-daemon-system,libvirt-clients,qemu-system-x86,nbd-client";
const PACKAGE: &str = "millpond_0.1.0-1_amd64.deb";
/// Bytes of the root file system and of each disk of the host.
const ROOT_BYTES: u64 = 4 << 30;
const DISK_BYTES: u64 = 1 << 30;
/// Memory of the host, in MiB.
const MEMORY: u32 = 1536;
/// Time at the start of the walk, far enough from midnight and from the next hour.
const CLOCK: &str = "2027-03-01T09:05:00";
/// Sizes of the partitions of the guest's image in MiB: its files, and its boot loader and kernel.
const FILES_MIB: u64 = 32;
const BOOT_MIB: u64 = 48;
/// Where partitions begin, in MiB.
const FIRST_MIB: u64 = 1;

pub fn run(subject: &mut Subject) -> Result<()> {
    let dir = subject.dir().to_owned();
    let page = Page::parse(PAGE, Runner::Walk)?;
    ensure!(page.left_out.is_empty(), "docs/walk.md has blocks that are not run: {:?}", page.left_out);
    let package = xtask(&["deb"], &dir)?;
    let tree = match Tree::bootstrap(&dir, "walk", INCLUDED) {
        Ok(tree) => tree,
        Err(error) => {
            println!("SKIPPED walk: no clean Debian tree, so nothing is installed: {error:#}");
            return Ok(());
        }
    };
    let kernel = Kernel::find_below(tree.path())?;
    tree.copy(&package, &format!("root/{PACKAGE}"))?;
    tree.copy(&image(&dir, &kernel)?, "root/vm1.qcow2")?;
    let machine = Machine { kernel: &kernel, root: ROOT_BYTES, memory: MEMORY, options: hardware(&dir)? };
    let begin = Instant::now();
    let mut said = String::new();
    tree.boot(&dir, &machine, &page.script(PRELUDE))?.record(|line| {
        if let Some(mark) = line.strip_prefix(MARK) {
            println!("walk: docs/walk.md:{mark} after {} s", begin.elapsed().as_secs());
        }
        said.push_str(line);
        said.push('\n');
    })?;
    page.judge(&said).context("docs/walk.md")
}

/// Makes the three disks of the page; returns QEMU's options for them, for processors and the clock.
fn hardware(dir: &Path) -> Result<Vec<String>> {
    let mut options: Vec<String> =
        ["-smp", "2", "-rtc", &format!("base={CLOCK}"), "-device", "virtio-scsi-pci,id=scsi"].map(str::to_owned).into();
    for name in ["A", "B", "C"] {
        let file = dir.join(format!("{name}.img"));
        fs::File::create(&file)?.set_len(DISK_BYTES)?;
        options.extend(["-drive".to_owned(), format!("if=none,id={name},file={},format=raw,cache=unsafe", file.display())]);
        options.extend(["-device".to_owned(), format!("scsi-hd,bus=scsi.0,drive={name},serial={name}")]);
    }
    Ok(options)
}

/// Makes the image of the guest: a partition with its files and one with its boot loader.
fn image(dir: &Path, kernel: &Kernel) -> Result<PathBuf> {
    let busybox = fs::read(find_tool("busybox").context("busybox")?)?;
    let program = |name: &str| find_tool(name).with_context(|| format!("{name} is not installed")).map(Command::new);
    let mib = |count: u64| count << 20;

    let (files, root) = (dir.join("files.img"), dir.join("files"));
    for name in ["bin", "sbin", "proc", "sys", "dev", "srv"] {
        fs::create_dir_all(root.join(name))?;
    }
    for (name, content) in [("bin/busybox", busybox.as_slice()), ("sbin/init", INIT.as_bytes())] {
        fs::write(root.join(name), content)?;
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o755))?;
    }
    run_command(Command::new("chroot").arg(&root).args(["/bin/busybox", "--install", "-s", "/bin"]))?;
    fs::File::create(&files)?.set_len(mib(FILES_MIB))?;
    run_command(program("mke2fs")?.args(["-q", "-F", "-t", "ext4", "-d"]).arg(&root).arg(&files))?;

    let (boot, initramfs, loader) = (dir.join("boot.img"), dir.join("guest-initramfs"), dir.join("syslinux.cfg"));
    let mut archive = Archive::default();
    archive.file("init", 0o755, EARLY_INIT.as_bytes());
    archive.file("bin/busybox", 0o755, &busybox);
    archive.modules(kernel, &["virtio_pci", "virtio_blk", "crc32c_generic", "ext4", "button", "evdev"])?;
    fs::write(&initramfs, archive.finish())?;
    fs::write(&loader, LOADER)?;
    fs::File::create(&boot)?.set_len(mib(BOOT_MIB))?;
    let hidden = mib(FIRST_MIB + FILES_MIB) / 512;
    run_command(program("mkfs.fat")?.args(["-F", "16", "-h", &hidden.to_string()]).arg(&boot))?;
    for (file, name) in [(&kernel.image, "vmlinuz"), (&initramfs, "initramfs"), (&loader, "syslinux.cfg")] {
        run_command(program("mcopy")?.arg("-i").arg(&boot).arg(file).arg(format!("::{name}")))?;
    }
    run_command(program("syslinux")?.arg("--install").arg(&boot))?;

    let (disk, image) = (dir.join("vm1.img"), dir.join("vm1.qcow2"));
    let size = mib(FIRST_MIB + FILES_MIB + BOOT_MIB);
    let table = format!("label: dos\nstart={FIRST_MIB}MiB, size={FILES_MIB}MiB, type=83\nsize={BOOT_MIB}MiB, type=c, bootable\n");
    let (script, sector) = (dir.join("table"), fs::read(BOOT_SECTOR).with_context(|| BOOT_SECTOR.to_owned())?);
    fs::write(&script, table)?;
    fs::File::create(&disk)?.set_len(size)?;
    run_command(Command::new("sh").args(["-c", "sfdisk --quiet \"$1\" < \"$2\"", "sh"]).arg(&disk).arg(&script))?;
    let file = fs::File::options().write(true).open(&disk)?;
    for (at, content) in [(0, sector), (mib(FIRST_MIB), fs::read(&files)?), (mib(FIRST_MIB + FILES_MIB), fs::read(&boot)?)] {
        std::os::unix::fs::FileExt::write_all_at(&file, &content, at)?;
    }
    run_command(program("qemu-img")?.args(["convert", "-f", "raw", "-O", "qcow2"]).arg(&disk).arg(&image))?;
    Ok(image)
}
