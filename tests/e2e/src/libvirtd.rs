//! A guest of a libvirtd, with the XML of `docs/libvirt.md`: its disk is over vhost-user, and one over
//! NBD comes later. Start, snapshot under load, restart of the daemon, a disk that is added and goes,
//! growth of both, rollback.
//!
//! libvirt before 9.2 does not pass `reconnect` of NBD disks on to QEMU. There the part with NBD over
//! restarts and growth is skipped visibly.

use super::PATIENCE;
use super::guest::prepare;
use super::guest_disk::room;
use super::libvirt::QEMU_CONF;
use super::subject::Subject;
use anyhow::{Context, Result, bail, ensure};
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

/// First version of libvirt that passes `reconnect` of NBD disks on to QEMU.
const RECONNECTS: (u32, u32) = (9, 2);

/// Works on the first disk all the time, and on the second one while `/tmp/both` is there. `RECONNECTS`
/// is `yes` if the second one survives a restart of the daemon.
const WORK: &str = r#"
/sbin/mke2fs -q -t ext4 -F /dev/vda
mount -t ext4 /dev/vda /mnt
dd if=/dev/zero bs=1k count=1024 2>/dev/null | tr '\0' x > /tmp/x
(n=0; while [ ! -e /tmp/stop ]; do
  n=$((n + 1))
  dd if=/dev/urandom of=/mnt/file bs=1k count=200 2>/dev/null
  md5sum < /mnt/file > /mnt/sum
  sync
  [ ! -e /tmp/both ] || dd if=/tmp/x of=/dev/vdb bs=64k conv=fsync 2>/dev/null || echo "FAILED"
  [ $((n % 10)) != 0 ] || echo "ROUND $n"
done) &
echo "READY"
first=$(cat /sys/block/vda/size)
while [ ! -e /sys/block/vdb ]; do sleep 1; done
second=$(cat /sys/block/vdb/size)
dd if=/tmp/x of=/dev/vdb bs=64k conv=fsync 2>/dev/null
[ RECONNECTS = no ] || touch /tmp/both
echo "PLUGGED"
while [ "$(cat /sys/block/vda/size)" = $first ]; do sleep 1; done
[ RECONNECTS = no ] || while [ "$(cat /sys/block/vdb/size)" = $second ]; do sleep 1; done
rm -f /tmp/both
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

/// Returns whether libvirtd passes `reconnect` of NBD disks on to QEMU.
fn reconnects() -> Result<bool> {
    let said = run_tool("libvirtd", &["--version"])?;
    let words = said.split_whitespace().last().context("libvirtd prints no version")?;
    let mut numbers = words.split('.').map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { bail!("no version in '{said}'") };
    Ok((major, minor) >= RECONNECTS)
}

pub fn run(subject: &mut Subject) -> Result<()> {
    let reconnects = reconnects()?;
    if !reconnects {
        let (major, minor) = RECONNECTS;
        println!("SKIPPED a part of libvirtd: libvirt is older than {major}.{minor}, so an NBD disk sees neither restarts nor growth");
    }
    let dir = room(subject, "libvirtd")?;
    subject.start(64 * MIB)?;
    let server = subject.file("server");
    let millpond = subject.millpond()?;
    let (vhost, nbd) = (server.join("vm1.sock").display().to_string(), server.join("fast.sock").display().to_string());
    millpond.cli(&["create", "lab/vm1", "-L", "64M"])?;
    millpond.cli(&["create", "lab/second", "-L", "32M"])?;
    millpond.cli(&["export", "vhost-user", "lab/vm1", "--unix", &vhost, "--owner", USER])?;
    millpond.cli(&["export", "nbd", "lab/second", "--unix", &nbd, "--owner", USER])?;
    let disks = Disks::of_page(&vhost, &nbd)?;
    let second = dir.join("second.xml").display().to_string();
    fs::write(&second, &disks.nbd)?;
    let (file, console) = (dir.join("vm1.xml").display().to_string(), dir.join("console"));
    fs::write(&console, "")?;
    fs::write(&file, domain(&dir, &console, &disks, reconnects)?)?;

    let mut libvirt = Libvirt::start(&dir)?;
    libvirt.virsh(&["define", &file])?;
    // the disk with TLS of the page is one that libvirt accepts
    let tls = dir.join("tls.xml").display().to_string();
    fs::write(&tls, block(&["tls='yes'"])?)?;
    libvirt.virsh(&["attach-device", "vm1", &tls, "--config"])?;
    libvirt.virsh(&["detach-device", "vm1", &tls, "--config"])?;
    libvirt.virsh(&["start", "vm1"]).with_context(|| libvirt.words())?;
    let outcome = steps(&libvirt, millpond, &console, &second, reconnects);
    if let Err(error) = outcome {
        let _ = libvirt.virsh(&["destroy", "vm1"]);
        return Err(error.context(libvirt.words()));
    }
    wait_until("the guest is off", PATIENCE, || libvirt.virsh(&["domstate", "vm1"]).is_ok_and(|state| state.contains("shut off")))?;
    millpond.cli(&["rollback", "lab/vm1@load"])?;
    libvirt.daemon.terminate(PATIENCE)?;
    Ok(())
}

/// The disks of the page, with the sockets of this test.
struct Disks {
    /// Domain of the page.
    domain: String,
    /// Its disk over NBD.
    nbd_of_domain: String,
    /// The disk over vhost-user, as the first one.
    vhost: String,
    /// The disk over NBD, as the second one.
    nbd: String,
}

impl Disks {
    fn of_page(vhost: &str, nbd: &str) -> Result<Disks> {
        let domain = block(&["<domain", "protocol='nbd'"])?;
        let at = |word: &str| domain.find(word).with_context(|| format!("the domain of docs/libvirt.md has no {word}"));
        let nbd_of_domain = domain[at("<disk")?..at("</disk>")?].to_owned() + "</disk>";
        let vhost = replaced(&replaced(&block(&["vhostuser"])?, "/run/millpond/fast.sock", vhost)?, "dev='vdc'", "dev='vda'")?;
        let nbd = replaced(&replaced(&nbd_of_domain, "/run/millpond/vm1.sock", nbd)?, "dev='vda'", "dev='vdb'")?;
        Ok(Disks { domain, nbd_of_domain, vhost, nbd })
    }
}

/// Returns the domain of the page with its first disk over vhost-user, and with what a test guest
/// needs: its kernel, a console, and less memory.
fn domain(dir: &Path, console: &Path, disks: &Disks, reconnects: bool) -> Result<String> {
    let (kernel, initramfs) = prepare(dir, &WORK.replace("RECONNECTS", if reconnects { "yes" } else { "no" }))?;
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
    let mut domain = disks.domain.clone();
    for (from, to) in [
        (disks.nbd_of_domain.as_str(), disks.vhost.as_str()),
        ("type='kvm'", "type='qemu'"),
        ("2048", "384"),
        ("<vcpu>2<", "<vcpu>1<"),
        ("hvm</type>", boot.as_str()),
        ("<devices>", serial.as_str()),
    ] {
        domain = replaced(&domain, from, to)?;
    }
    Ok(domain)
}

fn steps(libvirt: &Libvirt, millpond: &mut millpond_lab::peer::Millpond, console: &Path, second: &str, reconnects: bool) -> Result<()> {
    expect(console, "READY")?;
    expect(console, "ROUND 10")?;
    millpond.cli(&["snapshot", "lab/vm1@load"])?;
    restart(millpond, console)?;
    libvirt.virsh(&["attach-device", "vm1", second, "--live"])?;
    expect(console, "PLUGGED")?;
    let mut sizes = (80 * MIB, 32 * MIB);
    if reconnects {
        restart(millpond, console)?;
        sizes.1 = 40 * MIB;
        millpond.cli(&["resize", "lab/second", "40M", "--reconnect"])?;
        libvirt.virsh(&["blockresize", "vm1", "vdb", "40M"])?;
    }
    millpond.cli(&["resize", "lab/vm1", "80M"])?;
    expect(console, &format!("GROWN {} {}", sizes.0 / 512, sizes.1 / 512))?;
    libvirt.virsh(&["detach-device", "vm1", second, "--live"])?;
    expect(console, "UNPLUGGED")?;
    expect(console, "ENDED 0")
}

/// Kills the daemon, and stops it; the guest waits and goes on.
fn restart(millpond: &mut millpond_lab::peer::Millpond, console: &Path) -> Result<()> {
    for kill in [true, false] {
        if kill {
            millpond.kill9()?;
        } else {
            millpond.stop()?;
        }
        millpond.restart()?;
        let before = number(console);
        wait_until("the guest goes on", 4 * PATIENCE, || number(console) >= before + 20)?;
    }
    Ok(())
}
