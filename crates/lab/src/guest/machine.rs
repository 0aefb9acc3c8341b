//! A guest with a file system on its only disk that writes files on command. Its serial console
//! takes a command per line and answers in lines.

use super::{Archive, Console, Kernel};
use crate::load::{Content, Endpoint, Round};
use crate::process::{find_tool, tail};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

/// Init script of the guest. Every command is answered by `DONE`, after lines with its figures, or
/// by `FAILED`. `$SECTORS` is the size of the file system in units of 512 bytes.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /mnt /tmp /run
/bin/busybox --install -s /bin
export PATH=/sbin:/bin DM_DISABLE_UDEV=1
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
for module in /modules/*; do insmod $module || echo "insmod $module failed"; done
stty -echo < /dev/console
. /settings
disk=/dev/vda
prepare() {
  if [ -n "$MAPPER" ]; then
    /sbin/dmsetup create real --table "0 $SECTORS linear /dev/vda 0" &&
    /sbin/dmsetup create origin --table "0 $SECTORS snapshot-origin /dev/dm-0" || return 1
    disk=/dev/dm-1
  fi
  /sbin/mke2fs -q -t ext4 -F -E lazy_itable_init=0,lazy_journal_init=0 $disk $((SECTORS / 2))k && mount -t ext4 $disk /mnt
}
# nobody makes names below /dev/mapper: dm-0 is real, dm-1 the origin, dm-2 and dm-4 the stores
# as lvcreate -s makes them: a store of its own for each, in pieces of 4 KiB
take() {
  /sbin/dmsetup create store$1 --table "0 $SECTORS linear /dev/vda $((SECTORS * $1))" &&
  dd if=/dev/zero of=/dev/dm-$((2 * $1)) bs=64k count=1 2> /dev/null &&
  /sbin/dmsetup suspend origin &&
  /sbin/dmsetup create snap$1 --table "0 $SECTORS snapshot /dev/dm-0 /dev/dm-$((2 * $1)) P 8" &&
  /sbin/dmsetup resume origin
}
prepare && echo READY || echo FAILED
while read word one two; do
  case $word in
    files) millpond-lab files /mnt --count $one --content $two && echo DONE || echo FAILED ;;
    check) millpond-lab files /mnt --count $one --content $two --check && echo DONE || echo FAILED ;;
    clear) rm -rf /mnt/d* && sync && echo DONE || echo FAILED ;;
    take) take $one && echo DONE || echo FAILED ;;
    off) umount /mnt; echo DONE; poweroff -f ;;
  esac
done
"#;
/// A round of files takes long at full scale on a slow peer.
const PATIENCE: Duration = Duration::from_secs(3600);
const BOOT: Duration = Duration::from_secs(180);
/// Time for a guest to boot with KVM, which usually takes a second or two; after it, guests are
/// emulated.
const KVM_BOOT: Duration = Duration::from_secs(20);
/// Memory of the guest in MiB: less than the files of a full run, so that its page cache cannot
/// hold them.
const MEMORY: u32 = 1024;
const PROGRAMS: [&str; 4] = ["qemu-system-x86_64", "busybox", "mke2fs", "ldd"];

/// Set when a guest failed to boot with KVM; later guests do not try it.
static KVM_FAILS: AtomicBool = AtomicBool::new(false);

/// Layer between the guest's file system and its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapper {
    /// No layer.
    None,
    /// The kernel's device mapper with snapshots, as LVM uses it. The disk must have three times
    /// the size of the file system.
    Snapshots,
}

/// A running guest.
#[derive(Debug)]
pub struct Guest {
    console: Console,
}

impl Guest {
    /// Checks whether a guest can boot here.
    ///
    /// # Errors
    /// A requirement that is missing.
    pub fn check(mapper: Mapper) -> Result<()> {
        if let Some(missing) = PROGRAMS.iter().find(|program| find_tool(program).is_none()) {
            bail!("{missing} is not installed");
        }
        let kernel = Kernel::find()?;
        if mapper == Mapper::Snapshots {
            ensure!(find_tool("dmsetup").is_some(), "dmsetup is not installed");
            ensure!(!kernel.modules(&["dm-snapshot"])?.is_empty(), "the guest's kernel has no dm-snapshot");
        }
        Ok(())
    }

    /// Boots a guest with the export as its disk and makes a file system of `bytes` on it. Uses KVM
    /// if it works, else emulation.
    ///
    /// # Errors
    /// A program is missing, QEMU does not start, or the guest fails.
    pub fn boot(dir: &Path, endpoint: &Endpoint, bytes: u64, mapper: Mapper) -> Result<Guest> {
        if !KVM_FAILS.load(Ordering::Relaxed) {
            match Guest::boot_by("kvm", dir, endpoint, bytes, mapper) {
                Ok(guest) => return Ok(guest),
                // maybe QEMU or the host is the reason; if it is the guest, emulation fails too
                Err(_) => KVM_FAILS.store(true, Ordering::Relaxed),
            }
        }
        Guest::boot_by("tcg", dir, endpoint, bytes, mapper)
    }

    /// Whether guests are emulated, which makes them many times slower.
    pub fn are_emulated() -> bool {
        KVM_FAILS.load(Ordering::Relaxed)
    }

    fn boot_by(accelerator: &str, dir: &Path, endpoint: &Endpoint, bytes: u64, mapper: Mapper) -> Result<Guest> {
        let kernel = Kernel::find()?;
        let initramfs = dir.join("initramfs");
        fs::write(&initramfs, archive(&kernel, bytes, mapper)?).context("writing the initramfs")?;
        let socket = endpoint.socket().context("the guest needs a unix socket")?;
        let disk = format!(
            "driver=nbd,node-name=disk,server.type=unix,server.path={},export={},discard=unmap",
            socket.display(),
            endpoint.export()
        );
        let mut command = Command::new(find_tool("qemu-system-x86_64").context("qemu-system-x86_64 is not installed")?);
        let machine = format!("pc,accel={accelerator}");
        command.args(["-machine", &machine, "-cpu", "max", "-smp", "2", "-m", &MEMORY.to_string()]);
        command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        command.args(["-serial", "stdio", "-append", "console=ttyS0 quiet panic=-1"]);
        command.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(&initramfs);
        command.args(["-blockdev", &disk, "-device", "virtio-blk-pci,drive=disk"]);
        let log_file = dir.join("qemu.log");
        let log = fs::File::create(&log_file).context("making QEMU's log")?;
        let mut guest = Guest { console: Console::start(&mut command, log)? };
        let patience = if accelerator == "kvm" { KVM_BOOT } else { BOOT };
        let ready = guest.expect("READY", patience);
        ready.with_context(|| tail(&fs::read_to_string(&log_file).unwrap_or_default(), 300).to_owned())?;
        Ok(guest)
    }

    /// Process id of QEMU.
    pub fn pid(&self) -> u32 {
        self.console.pid()
    }

    /// Writes every file once, with cold caches.
    ///
    /// # Errors
    /// The guest failed.
    pub fn write(&mut self, count: u64, content: Content) -> Result<Round> {
        self.tell(&format!("files {count} {content}"))?;
        let round = self.expect("ROUND", PATIENCE)?;
        self.expect("DONE", BOOT)?;
        serde_json::from_str(&round).context("the guest's figures are no JSON")
    }

    /// Reads and verifies every file.
    ///
    /// # Errors
    /// A file has other content, or the guest failed.
    pub fn verify(&mut self, count: u64, content: Content) -> Result<()> {
        self.tell(&format!("check {count} {content}"))?;
        self.expect("DONE", PATIENCE).map(|_| ())
    }

    /// Removes all files.
    ///
    /// # Errors
    /// The guest failed.
    pub fn clear(&mut self) -> Result<()> {
        self.tell("clear")?;
        self.expect("DONE", PATIENCE).map(|_| ())
    }

    /// Takes the n-th snapshot (from 1) with the guest's device mapper.
    ///
    /// # Errors
    /// The guest failed.
    pub fn take(&mut self, number: usize) -> Result<()> {
        self.tell(&format!("take {number}"))?;
        self.expect("DONE", BOOT).map(|_| ())
    }

    /// Unmounts the file system and powers the guest off.
    ///
    /// # Errors
    /// The guest or QEMU does not end cleanly.
    pub fn off(mut self) -> Result<()> {
        self.tell("off")?;
        self.expect("DONE", BOOT)?;
        self.console.wait()
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        self.console.write_line(line)
    }

    /// Waits for a line that starts with `start`; returns the rest of the line.
    fn expect(&mut self, start: &str, patience: Duration) -> Result<String> {
        let end = Instant::now() + patience;
        loop {
            let line = match self.console.read_line(end.saturating_duration_since(Instant::now())) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => bail!("no '{start}' from the guest in {patience:?}: {}", self.console.transcript(600)),
                Err(RecvTimeoutError::Disconnected) => bail!("QEMU ended before '{start}': {}", self.console.transcript(600)),
            };
            if let Some(rest) = line.strip_prefix(start) {
                return Ok(rest.trim().to_owned());
            }
            if line == "FAILED" {
                bail!("the guest failed: {}", self.console.transcript(600));
            }
        }
    }
}

fn archive(kernel: &Kernel, bytes: u64, mapper: Mapper) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for dir in ["proc", "sys", "dev", "mnt", "tmp"] {
        archive.directory(dir);
    }
    archive.file("init", 0o755, INIT.as_bytes());
    let mapped = if mapper == Mapper::Snapshots { "yes" } else { "" };
    archive.file("settings", 0o644, format!("SECTORS={}\nMAPPER={mapped}\n", bytes / 512).as_bytes());
    archive.file("bin/busybox", 0o755, &fs::read(find_tool("busybox").context("busybox is not installed")?)?);
    let own = std::env::current_exe().context("the path of this program")?;
    let mut programs: Vec<(PathBuf, &str)> =
        vec![(own, "sbin/millpond-lab"), (find_tool("mke2fs").context("mke2fs is not installed")?, "sbin/mke2fs")];
    let mut modules = vec!["virtio_pci", "virtio_blk", "crc32c_generic", "crc32c-intel", "ext4"];
    if mapper == Mapper::Snapshots {
        programs.push((find_tool("dmsetup").context("dmsetup is not installed")?, "sbin/dmsetup"));
        modules.push("dm-snapshot");
    }
    archive.programs(&programs)?;
    archive.modules(kernel, &modules)?;
    Ok(archive.finish())
}
