//! A guest: QEMU with emulation, a Debian kernel, busybox, and a shell script that waits on the
//! console for commands.

use anyhow::{Context, Result, bail, ensure};
use millpond_lab::guest::{Archive, Console, Kernel};
use millpond_lab::load::Endpoint;
use millpond_lab::process::{cpu_time, find_tool};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /mnt /tmp
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
for module in /modules/*; do insmod $module || echo "insmod $module failed"; done
stty -echo < /dev/console
sh -ex /script
echo "ENDED $?"
poweroff -f
"#;
/// Time without output after which a guest fails if it has used less CPU time than [`LEAST_WORK`].
/// CPU time distinguishes a guest that hangs from a slow one on a busy machine.
const SILENCE: Duration = Duration::from_secs(180);
/// Minimum CPU time in [`SILENCE`]. An idle guest uses less, for timer ticks and QEMU itself.
const LEAST_WORK: Duration = Duration::from_secs(15);
/// Time limit for a guest that is busy, but silent.
const LAST: Duration = Duration::from_secs(1800);

/// Memory of the guest in MiB.
const MEMORY: u32 = 384;

/// Protocol of the guest's disks.
pub enum Protocol<'a> {
    /// One disk over NBD.
    Nbd(&'a Endpoint),
    /// A disk for each socket, over vhost-user.
    VhostUser(&'a [PathBuf]),
}

/// A running guest.
pub struct Guest {
    console: Console,
}

impl Guest {
    /// Boots a guest with the export as /dev/vda. `script` runs under `sh -ex`, so that the
    /// transcript shows which command failed.
    pub fn boot(dir: &Path, endpoint: &Endpoint, script: &str) -> Result<Guest> {
        Guest::boot_with(dir, Protocol::Nbd(endpoint), script)
    }

    /// Boots a guest with disks /dev/vda, /dev/vdb and so on.
    pub fn boot_with(dir: &Path, protocol: Protocol<'_>, script: &str) -> Result<Guest> {
        Guest::boot_as(dir, protocol, script, &[])
    }

    /// Boots a guest with more options for QEMU.
    pub fn boot_as(dir: &Path, protocol: Protocol<'_>, script: &str, more: &[String]) -> Result<Guest> {
        Guest::boot_prepared(&prepare(dir, script)?, protocol, more)
    }

    /// Boots this kernel and this initramfs, with more options for QEMU.
    pub fn boot_prepared((kernel, initramfs): &(PathBuf, PathBuf), protocol: Protocol<'_>, more: &[String]) -> Result<Guest> {
        let mut command = Command::new(find_tool("qemu-system-x86_64").context("qemu-system-x86_64 is not installed")?);
        command.args(["-append", "console=ttyS0 quiet panic=-1"]);
        command.arg("-kernel").arg(kernel).arg("-initrd").arg(initramfs);
        command.args(protocol.options()?).args(more);
        Guest::start(command)
    }

    /// Boots from the disks by firmware; they must have the kernel, the initramfs, and a script for
    /// the firmware that starts them.
    pub fn boot_firmware(protocol: Protocol<'_>, firmware: &str) -> Result<Guest> {
        let mut command = Command::new(find_tool("qemu-system-x86_64").context("qemu-system-x86_64 is not installed")?);
        command.args(["-bios", firmware]).args(protocol.options()?);
        Guest::start(command)
    }

    /// Starts QEMU with a command that has the guest's kernel and disks.
    pub fn start(command: Command) -> Result<Guest> {
        Guest::start_with(command, MEMORY)
    }

    /// Starts QEMU with this much memory, in MiB.
    pub fn start_with(mut command: Command, memory: u32) -> Result<Guest> {
        command.args(["-cpu", "max", "-m", &memory.to_string(), "-serial", "stdio"]);
        command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        Ok(Guest { console: Console::start(&mut command, Stdio::inherit())? })
    }

    /// Waits for a line that starts with `start`; returns the rest of the line.
    pub fn expect(&mut self, start: &str) -> Result<String> {
        self.read_until(start, |_| ())
    }

    /// Waits until the guest is off; passes on each of its lines.
    pub fn record(mut self, seen: impl FnMut(&str)) -> Result<()> {
        self.read_until("ENDED", seen)?;
        self.console.wait()
    }

    fn read_until(&mut self, start: &str, mut seen: impl FnMut(&str)) -> Result<String> {
        let (begin, mut worked) = (Instant::now(), cpu_time(self.console.pid())?);
        loop {
            match self.console.read_line(SILENCE) {
                Ok(line) => {
                    worked = cpu_time(self.console.pid()).unwrap_or(worked);
                    seen(&line);
                    if let Some(rest) = line.strip_prefix(start) {
                        return Ok(rest.trim().to_owned());
                    }
                    if line.starts_with("ENDED") {
                        bail!("the guest ended before '{start}': {}", self.console.transcript(2000));
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    let before = std::mem::replace(&mut worked, cpu_time(self.console.pid())?);
                    let work = worked.saturating_sub(before);
                    ensure!(
                        work >= LEAST_WORK && begin.elapsed() < LAST,
                        "no '{start}' from the guest: silent for {SILENCE:?}, in which it worked {work:?}: {}",
                        self.console.transcript(2000)
                    );
                }
                Err(RecvTimeoutError::Disconnected) => bail!("QEMU ended before '{start}': {}", self.console.transcript(2000)),
            }
        }
    }

    /// Lets a script continue that waits in `read`.
    pub fn go_on(&mut self) -> Result<()> {
        self.send("go")
    }

    /// Sends a word to a script that waits in `read`.
    pub fn send(&mut self, word: &str) -> Result<()> {
        self.console.write_line(word)
    }

    /// Waits until the script has succeeded and the guest is off.
    pub fn finish(mut self) -> Result<()> {
        let code = self.expect("ENDED")?;
        ensure!(code == "0", "the guest's script failed with {code}: {}", self.console.transcript(2000));
        self.console.wait()
    }
}

impl Protocol<'_> {
    /// Returns QEMU's options for the disks.
    fn options(&self) -> Result<Vec<String>> {
        let mut options: Vec<String> = Vec::new();
        match self {
            Protocol::Nbd(endpoint) => {
                options.extend(["-machine", "pc,accel=tcg"].map(str::to_owned));
                options.extend(nbd_disk(endpoint)?);
            }
            Protocol::VhostUser(sockets) => {
                let memory = format!("memory-backend-memfd,id=memory,size={MEMORY}M,share=on");
                options.extend(["-machine", "pc,accel=tcg,memory-backend=memory", "-object", &memory].map(str::to_owned));
                for (index, socket) in sockets.iter().enumerate() {
                    let socket = format!("socket,id=c{index},path={},reconnect=1", socket.display());
                    let device = format!("vhost-user-blk-pci,chardev=c{index},num-queues=2");
                    options.extend(["-chardev", &socket, "-device", &device].map(str::to_owned));
                }
            }
        }
        Ok(options)
    }
}

/// Returns QEMU's options for a disk over NBD.
pub fn nbd_disk(endpoint: &Endpoint) -> Result<Vec<String>> {
    let socket = endpoint.socket().context("the guest needs a unix socket")?;
    let disk = format!(
        "driver=nbd,node-name=disk,server.type=unix,server.path={},export={},reconnect-delay=120,discard=unmap",
        socket.display(),
        endpoint.export()
    );
    Ok(["-blockdev", &disk, "-device", "virtio-blk-pci,drive=disk"].map(str::to_owned).to_vec())
}

/// Makes an initramfs that runs the script; returns the paths of the kernel and the initramfs.
pub fn prepare(dir: &Path, script: &str) -> Result<(PathBuf, PathBuf)> {
    prepare_with(dir, script, &[], &[])
}

/// Makes an initramfs with more programs, which go to `sbin`, and more modules.
pub fn prepare_with(dir: &Path, script: &str, programs: &[&str], modules: &[&str]) -> Result<(PathBuf, PathBuf)> {
    let kernel = Kernel::find()?;
    let initramfs = dir.join("initramfs");
    fs::write(&initramfs, archive(&kernel, script, programs, modules)?).context("writing the initramfs")?;
    Ok((kernel.image, initramfs))
}

fn archive(kernel: &Kernel, script: &str, programs: &[&str], modules: &[&str]) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for dir in ["proc", "sys", "dev", "mnt", "tmp"] {
        archive.directory(dir);
    }
    archive.file("init", 0o755, INIT.as_bytes());
    archive.file("script", 0o755, script.as_bytes());
    let busybox = find_tool("busybox").context("busybox is not installed")?;
    archive.file("bin/busybox", 0o755, &fs::read(busybox)?);
    let tool = |name: &str| find_tool(name).with_context(|| format!("{name} is not installed"));
    let names: Vec<(&str, String)> = ["mke2fs", "e2fsck"].iter().chain(programs).map(|name| (*name, format!("sbin/{name}"))).collect();
    let programs = names.iter().map(|(name, place)| Ok((tool(name)?, place.as_str()))).collect::<Result<Vec<_>>>()?;
    archive.programs(&programs)?;
    let always = ["virtio_pci", "virtio_blk", "crc32c_generic", "crc32c-intel", "vfat", "nls_cp437", "nls_ascii"];
    archive.modules(kernel, &[&always, modules].concat())?;
    Ok(archive.finish())
}
