//! A guest: QEMU with emulation, a Debian kernel, busybox, and a shell script that waits on the
//! console for commands.

use anyhow::{Context, Result, bail, ensure};
use millpond_lab::guest::{Archive, Kernel};
use millpond_lab::load::Endpoint;
use millpond_lab::process::{cpu_time, find_tool, run_tool, tail};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
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
pub enum Door<'a> {
    /// One disk over NBD.
    Nbd(&'a Endpoint),
    /// A disk for each socket, over vhost-user.
    VhostUser(&'a [PathBuf]),
}

/// A running guest.
pub struct Guest {
    child: Child,
    console: ChildStdin,
    lines: Receiver<String>,
    transcript: String,
}

impl Guest {
    /// Boots a guest with the export as /dev/vda. `script` runs under `sh -ex`, so that the
    /// transcript shows which command failed.
    pub fn boot(dir: &Path, endpoint: &Endpoint, script: &str) -> Result<Guest> {
        Guest::boot_with(dir, Door::Nbd(endpoint), script)
    }

    /// Boots a guest with disks /dev/vda, /dev/vdb and so on.
    pub fn boot_with(dir: &Path, door: Door<'_>, script: &str) -> Result<Guest> {
        Guest::boot_as(dir, door, script, &[])
    }

    /// Boots a guest with more options for QEMU.
    pub fn boot_as(dir: &Path, door: Door<'_>, script: &str, more: &[String]) -> Result<Guest> {
        let (kernel, initramfs) = prepare(dir, script)?;
        let mut command = Command::new(find_tool("qemu-system-x86_64").context("qemu-system-x86_64 is not installed")?);
        command.args(["-append", "console=ttyS0 quiet panic=-1"]);
        command.arg("-kernel").arg(&kernel).arg("-initrd").arg(&initramfs);
        command.args(door.options()?).args(more);
        Guest::start(command)
    }

    /// Boots from the disks by firmware; they must have the kernel, the initramfs, and a script for
    /// the firmware that starts them.
    pub fn boot_firmware(door: Door<'_>, firmware: &str) -> Result<Guest> {
        let mut command = Command::new(find_tool("qemu-system-x86_64").context("qemu-system-x86_64 is not installed")?);
        command.args(["-bios", firmware]).args(door.options()?);
        Guest::start(command)
    }

    fn start(mut command: Command) -> Result<Guest> {
        command.args(["-cpu", "max", "-m", &MEMORY.to_string(), "-serial", "stdio"]);
        command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().context("starting QEMU")?;
        let console = child.stdin.take().context("no console")?;
        let output = child.stdout.take().context("no console")?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                    return;
                }
            }
        });
        Ok(Guest { child, console, lines, transcript: String::new() })
    }

    /// Waits for a line that starts with `start`; returns the rest of the line.
    pub fn expect(&mut self, start: &str) -> Result<String> {
        let (begin, mut worked) = (Instant::now(), cpu_time(self.child.id())?);
        loop {
            match self.lines.recv_timeout(SILENCE) {
                Ok(line) => {
                    worked = cpu_time(self.child.id()).unwrap_or(worked);
                    self.transcript.push_str(&line);
                    self.transcript.push('\n');
                    if let Some(rest) = line.strip_prefix(start) {
                        return Ok(rest.trim().to_owned());
                    }
                    if line.starts_with("ENDED") {
                        bail!("the guest ended before '{start}': {}", tail(&self.transcript, 2000));
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    let before = std::mem::replace(&mut worked, cpu_time(self.child.id())?);
                    let work = worked.saturating_sub(before);
                    ensure!(
                        work >= LEAST_WORK && begin.elapsed() < LAST,
                        "no '{start}' from the guest: silent for {SILENCE:?}, in which it worked {work:?}: {}",
                        tail(&self.transcript, 2000)
                    );
                }
                Err(RecvTimeoutError::Disconnected) => bail!("QEMU ended before '{start}': {}", tail(&self.transcript, 2000)),
            }
        }
    }

    /// Lets a script continue that waits in `read`.
    pub fn go_on(&mut self) -> Result<()> {
        self.console.write_all(b"go\n").context("speaking to the guest")
    }

    /// Waits until the script has succeeded and the guest is off.
    pub fn finish(mut self) -> Result<()> {
        let code = self.expect("ENDED")?;
        ensure!(code == "0", "the guest's script failed with {code}: {}", tail(&self.transcript, 2000));
        let status = self.child.wait().context("waiting for QEMU")?;
        ensure!(status.success(), "QEMU: {status}");
        Ok(())
    }
}

impl Door<'_> {
    /// Returns QEMU's options for the disks.
    fn options(&self) -> Result<Vec<String>> {
        let mut options: Vec<String> = Vec::new();
        match self {
            Door::Nbd(endpoint) => {
                let socket = endpoint.socket().context("the guest needs a unix socket")?;
                let disk = format!(
                    "driver=nbd,node-name=disk,server.type=unix,server.path={},export={},reconnect-delay=120,discard=unmap",
                    socket.display(),
                    endpoint.export()
                );
                options.extend(["-machine", "pc,accel=tcg", "-blockdev", &disk, "-device", "virtio-blk-pci,drive=disk"].map(str::to_owned));
            }
            Door::VhostUser(sockets) => {
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

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes an initramfs that runs the script; returns the paths of the kernel and the initramfs.
pub fn prepare(dir: &Path, script: &str) -> Result<(PathBuf, PathBuf)> {
    let kernel = Kernel::find()?;
    let initramfs = dir.join("initramfs");
    fs::write(&initramfs, archive(&kernel, script)?).context("writing the initramfs")?;
    Ok((kernel.image, initramfs))
}

fn archive(kernel: &Kernel, script: &str) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for dir in ["proc", "sys", "dev", "mnt", "tmp"] {
        archive.directory(dir);
    }
    archive.file("init", 0o755, INIT.as_bytes());
    archive.file("script", 0o755, script.as_bytes());
    let busybox = find_tool("busybox").context("busybox is not installed")?;
    archive.file("bin/busybox", 0o755, &fs::read(busybox)?);
    let mut libraries = Vec::new();
    for tool in ["mke2fs", "e2fsck"] {
        let path = find_tool(tool).with_context(|| format!("{tool} is not installed"))?;
        for word in run_tool("ldd", &[&path])?.split_whitespace().filter(|w| w.starts_with('/')) {
            let library = word.trim_end_matches(':').to_owned();
            if !libraries.contains(&library) {
                libraries.push(library);
            }
        }
        archive.file(&format!("sbin/{tool}"), 0o755, &fs::read(path)?);
    }
    for library in libraries {
        archive.file(library.trim_start_matches('/'), 0o755, &fs::read(&library).with_context(|| format!("reading {library}"))?);
    }
    let modules = kernel.modules(&["virtio_pci", "virtio_blk", "crc32c_generic", "crc32c-intel", "vfat", "nls_cp437", "nls_ascii"])?;
    for (index, (name, content)) in modules.into_iter().enumerate() {
        archive.file(&format!("modules/{index:02}-{}", name.split(".ko").next().unwrap_or(&name)), 0o644, &content);
    }
    Ok(archive.finish())
}
