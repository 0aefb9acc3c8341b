//! A guest of a libvirtd, with the XML of `docs/libvirt.md`: start, snapshot under load, restart of
//! the daemon, disks that are added, grow and go while it runs, rollback.

use super::PATIENCE;
use super::guest::prepare;
use super::guest_disk::room;
use super::libvirt::QEMU_CONF;
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::peer::Contender;
use millpond_lab::process::{Daemon, find_tool, run_tool, tail, wait_until};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The page with the XML.
const PAGE: &str = include_str!("../../../docs/libvirt.md");
/// User of QEMU in Debian's libvirt.
const USER: &str = "libvirt-qemu";
const MIB: u64 = 1 << 20;

const LIBVIRTD_CONF: &str = r#"
auth_unix_rw = "none"
auth_unix_ro = "none"
log_level = 3
"#;

/// Runs libvirtd with directories of its own in the place of the host's.
const START: &str = r#"
set -e
for dir in /etc/libvirt /var/lib/libvirt /var/cache/libvirt /var/log/libvirt; do mkdir -p $dir; mount -t tmpfs none $dir; done
mkdir -p /run/libvirt
mount -t tmpfs none /run/libvirt
chmod 755 /var/lib/libvirt /run/libvirt
cp "$1/qemu.conf" /etc/libvirt/qemu.conf
exec "$2" --config "$1/libvirtd.conf"
"#;

/// Works on the first disk all the time; uses the others as they come.
const WORK: &str = r#"
/sbin/mke2fs -q -t ext4 -F /dev/vda
mount -t ext4 /dev/vda /mnt
(n=0; while [ ! -e /tmp/stop ]; do
  n=$((n + 1))
  dd if=/dev/urandom of=/mnt/file bs=1k count=200 2>/dev/null
  md5sum < /mnt/file > /mnt/sum
  sync
  echo $n > /tmp/count
  [ $((n % 10)) != 0 ] || echo "ROUND $n"
done) &
echo "READY"
size=$(cat /sys/block/vda/size)
while [ ! -e /sys/block/vdb ]; do sleep 1; done
second=$(cat /sys/block/vdb/size)
dd if=/dev/zero bs=1k count=1024 2>/dev/null | tr '\0' x > /tmp/x
dd if=/tmp/x of=/dev/vdb bs=64k conv=fsync 2>/dev/null
echo "PLUGGED"
while [ "$(cat /sys/block/vdb/size)" = $second ]; do sleep 1; done
while [ "$(cat /sys/block/vda/size)" = $size ]; do sleep 1; done
echo "GROWN $(cat /sys/block/vda/size) $(cat /sys/block/vdb/size)"
dd if=/dev/vdb bs=64k count=16 2>/dev/null | cmp - /tmp/x
while [ -e /sys/block/vdb ]; do sleep 1; done
echo "UNPLUGGED"
echo 1 > /tmp/stop
wait
(cd /mnt && [ "$(md5sum < file)" = "$(cat sum)" ])
umount /mnt
/sbin/e2fsck -fn /dev/vda
if dmesg | grep -i "I/O error"; then exit 9; fi
"#;

/// Returns a block of XML of the page that contains these words.
fn block(words: &[&str]) -> Result<String> {
    let blocks = PAGE.split("```xml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let found = blocks.into_iter().find(|block| words.iter().all(|word| block.contains(word)));
    found.map(str::to_owned).with_context(|| format!("no XML with {words:?} in docs/libvirt.md"))
}

fn replaced(text: &str, from: &str, to: &str) -> Result<String> {
    ensure!(text.contains(from), "the XML of docs/libvirt.md has no {from}");
    Ok(text.replace(from, to))
}

/// A libvirtd with directories of its own.
struct Libvirt {
    daemon: Daemon,
    log: PathBuf,
    uri: String,
}

impl Libvirt {
    fn start(dir: &Path) -> Result<Libvirt> {
        let program = find_tool("libvirtd").context("libvirtd is not installed")?;
        fs::write(dir.join("qemu.conf"), QEMU_CONF)?;
        let sockets = dir.join("sockets");
        fs::create_dir_all(&sockets)?;
        fs::write(dir.join("libvirtd.conf"), format!("unix_sock_dir = \"{}\"\n{LIBVIRTD_CONF}", sockets.display()))?;
        let log = dir.join("libvirtd.log");
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", START, "sh"]).arg(dir).arg(program);
        let daemon = Daemon::spawn(&mut command, &log)?;
        let uri = format!("qemu+unix:///system?socket={}", sockets.join("libvirt-sock").display());
        let libvirt = Libvirt { daemon, log, uri };
        let answers = wait_until("libvirtd", PATIENCE, || libvirt.virsh(&["list"]).is_ok());
        answers.with_context(|| libvirt.words())?;
        Ok(libvirt)
    }

    fn words(&self) -> String {
        tail(&fs::read_to_string(&self.log).unwrap_or_default(), 1500).to_owned()
    }

    fn virsh(&self, words: &[&str]) -> Result<String> {
        run_tool("virsh", &[&["--quiet", "--connect", self.uri.as_str()], words].concat())
    }
}

/// Waits for a line of the guest's console.
fn expect(console: &Path, line: &str) -> Result<()> {
    let said = || fs::read_to_string(console).unwrap_or_default();
    let there = wait_until(line, 4 * PATIENCE, || said().contains(line) || said().contains("ENDED"));
    ensure!(there.is_ok() && said().contains(line), "no '{line}' from the guest: {}", tail(&said(), 1500));
    Ok(())
}

fn number(console: &Path) -> u64 {
    let said = fs::read_to_string(console).unwrap_or_default();
    said.lines().filter_map(|line| line.strip_prefix("ROUND ")?.trim().parse().ok()).max().unwrap_or(0)
}

pub fn run(subject: &mut Subject) -> Result<()> {
    let dir = room(subject, "libvirtd")?;
    subject.start(64 * MIB)?;
    let server = subject.file("server");
    let millpond = subject.millpond()?;
    let (nbd, vhost) = (server.join("vm1.sock").display().to_string(), server.join("fast.sock").display().to_string());
    millpond.cli(&["create", "lab/vm1", "-L", "64M"])?;
    millpond.cli(&["create", "lab/fast", "-L", "32M"])?;
    millpond.cli(&["export", "nbd", "lab/vm1", "--unix", &nbd, "--owner", USER])?;
    millpond.cli(&["export", "vhost-user", "lab/fast", "--unix", &vhost, "--owner", USER])?;

    // what a test guest needs beside the XML of the page: its kernel, a console, and less memory
    let (kernel, initramfs) = prepare(&dir, WORK)?;
    let console = dir.join("console");
    fs::write(&console, "")?;
    let mut domain = block(&["<domain", "protocol='nbd'"])?;
    let boot = format!(
        "hvm</type><kernel>{}</kernel><initrd>{}</initrd><cmdline>console=ttyS0 quiet panic=-1</cmdline>",
        kernel.display(),
        initramfs.display()
    );
    let serial = format!(
        "<devices><emulator>{}</emulator><serial type='file'><source path='{}'/></serial><memballoon model='none'/>",
        find_tool("qemu-system-x86_64").context("qemu-system-x86_64 is not installed")?.display(),
        console.display()
    );
    for (from, to) in [
        ("type='kvm'", "type='qemu'"),
        ("2048", "384"),
        ("<vcpu>2<", "<vcpu>1<"),
        ("hvm</type>", boot.as_str()),
        ("<devices>", serial.as_str()),
        ("/run/millpond/vm1.sock", nbd.as_str()),
    ] {
        domain = replaced(&domain, from, to)?;
    }
    let plugged = replaced(&block(&["vhostuser"])?, "/run/millpond/fast.sock", &vhost)?;
    let plugged = replaced(&plugged, "dev='vdc'", "dev='vdb'")?;
    let (file, disk) = (dir.join("vm1.xml").display().to_string(), dir.join("fast.xml").display().to_string());
    fs::write(&file, domain)?;
    fs::write(&disk, plugged)?;

    let mut libvirt = Libvirt::start(&dir)?;
    libvirt.virsh(&["define", &file])?;
    // the disk with TLS of the page is one that libvirt accepts
    let tls = dir.join("tls.xml").display().to_string();
    fs::write(&tls, block(&["tls='yes'"])?)?;
    libvirt.virsh(&["attach-device", "vm1", &tls, "--config"])?;
    libvirt.virsh(&["detach-device", "vm1", &tls, "--config"])?;
    libvirt.virsh(&["start", "vm1"]).with_context(|| libvirt.words())?;
    let outcome = steps(&libvirt, millpond, &console, &disk);
    if let Err(error) = outcome {
        let _ = libvirt.virsh(&["destroy", "vm1"]);
        return Err(error.context(libvirt.words()));
    }
    wait_until("the guest is off", PATIENCE, || libvirt.virsh(&["domstate", "vm1"]).is_ok_and(|state| state.contains("shut off")))?;
    millpond.cli(&["rollback", "lab/vm1@load"])?;
    libvirt.daemon.terminate(PATIENCE)?;
    Ok(())
}

fn steps(libvirt: &Libvirt, millpond: &mut millpond_lab::peer::Millpond, console: &Path, disk: &str) -> Result<()> {
    expect(console, "READY")?;
    expect(console, "ROUND 10")?;
    millpond.cli(&["snapshot", "lab/vm1@load"])?;
    // the daemon is killed, and stopped; the guest waits and goes on
    for kill in [true, false] {
        if kill {
            millpond.kill9()?
        } else {
            millpond.stop()?
        }
        millpond.restart()?;
        let before = number(console);
        wait_until("the guest goes on", 4 * PATIENCE, || number(console) >= before + 20)?;
    }
    libvirt.virsh(&["attach-device", "vm1", disk, "--live"])?;
    expect(console, "PLUGGED")?;
    millpond.cli(&["resize", "lab/fast", "40M"])?;
    millpond.cli(&["resize", "lab/vm1", "80M", "--reconnect"])?;
    libvirt.virsh(&["blockresize", "vm1", "vda", "80M"])?;
    expect(console, &format!("GROWN {} {}", 80 * MIB / 512, 40 * MIB / 512))?;
    libvirt.virsh(&["detach-device", "vm1", disk, "--live"])?;
    expect(console, "UNPLUGGED")?;
    expect(console, "ENDED 0")
}
