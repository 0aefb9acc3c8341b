//! A guest run by libvirt, with its disk as configured by `millpond exports`, over NBD and over
//! vhost-user.

use super::PATIENCE;
use super::guest::prepare;
use super::guest_disk::{SIZE, room};
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::peer::DISK;
use millpond_lab::process::{Daemon, find_tool, tail, wait_until};
use std::fs;
use std::path::Path;
use std::process::Command;

/// User of QEMU in Debian's libvirt.
const USER: &str = "libvirt-qemu";

/// Configuration of libvirt's QEMU driver in directories of its own: no cgroups, and QEMU with
/// Debian's user.
pub(super) const QEMU_CONF: &str = r#"
user = "libvirt-qemu"
group = "libvirt-qemu"
security_driver = "none"
cgroup_controllers = [ ]
namespaces = [ ]
remember_owner = 0
stdio_handler = "file"
"#;

/// Checks the file of the previous guest, or makes a file system with a file for the next one.
const USE: &str = r#"
[ "$(cat /sys/block/vda/queue/logical_block_size)" = 4096 ]
[ "$(cat /sys/block/vda/queue/write_cache)" = "write back" ]
[ "$(cat /sys/block/vda/queue/discard_max_bytes)" -gt 0 ]
[ "$(cat /sys/block/vda/ro)" = 0 ]
if mount -t ext4 /dev/vda /mnt; then
  (cd /mnt && md5sum -c sums > /dev/null)
  echo "FOUND"
else
  /sbin/mke2fs -q -t ext4 -F /dev/vda
  mount -t ext4 /dev/vda /mnt
  dd if=/dev/urandom of=/mnt/file bs=1k count=3000 2>/dev/null
  (cd /mnt && md5sum file > sums)
fi
umount /mnt
/sbin/e2fsck -fn /dev/vda
"#;

/// Runs a domain with these elements until its guest has ended, with libvirt's own files in `root`;
/// returns the guest's output.
fn domain(dir: &Path, root: &Path, elements: &str) -> Result<String> {
    let (kernel, initramfs) = prepare(dir, USE)?;
    fs::create_dir_all(root.join("etc"))?;
    fs::write(root.join("etc/qemu.conf"), QEMU_CONF)?;
    let qemu = find_tool("qemu-system-x86_64").context("qemu-system-x86_64 is not installed")?;
    let at = elements.find("<disk").context("no disk in the line")?;
    let (outside, disk) = elements.split_at(at);
    let console = dir.join("console");
    fs::write(&console, "")?;
    let xml = format!(
        "<domain type='qemu'><name>guest</name><memory unit='MiB'>384</memory>{outside}<vcpu>1</vcpu><os><type arch='x86_64' machine='pc'>hvm</type>\
         <kernel>{}</kernel><initrd>{}</initrd><cmdline>console=ttyS0 quiet panic=-1</cmdline></os><features><acpi/></features>\
         <cpu mode='maximum'/><on_reboot>destroy</on_reboot><devices><emulator>{}</emulator>{disk}\
         <serial type='file'><source path='{}'/></serial><memballoon model='none'/></devices></domain>",
        kernel.display(),
        initramfs.display(),
        qemu.display(),
        console.display()
    );
    let file = dir.join("guest.xml");
    fs::write(&file, xml)?;
    let mut command = Command::new(find_tool("virt-qemu-run").context("virt-qemu-run is not installed")?);
    let log = dir.join("libvirt.log");
    let mut runner = Daemon::spawn(command.arg("-r").arg(root).arg(&file), &log)?;
    let said = || fs::read_to_string(&console).unwrap_or_default();
    let ended = wait_until("the guest", PATIENCE, || said().contains("ENDED ") || !runner.is_running());
    runner.terminate(PATIENCE)?; // it waits for more than the guest's end
    let said = said();
    let words = fs::read_to_string(&log).unwrap_or_default();
    ensure!(ended.is_ok() && said.contains("ENDED 0"), "libvirt: {}\nthe guest: {}", tail(&words, 1500), tail(&said, 1500));
    Ok(said)
}

pub fn run(subject: &mut Subject) -> Result<()> {
    subject.start(SIZE)?;
    let rooms = [room(subject, "nbd")?, room(subject, "vhost-user")?];
    let root = room(subject, "libvirt")?; // shared, so that libvirt probes QEMU only once
    let dir = subject.file("server");
    let millpond = subject.millpond()?;
    millpond.cli(&["create", "lab/native", "-L", &SIZE.to_string(), "--sector", "4kn"])?;
    for (kind, name) in [("nbd", "native.sock"), ("vhost-user", "native.vu")] {
        let socket = dir.join(name).display().to_string();
        millpond.cli(&["export", kind, "lab/native", "--force", "--unix", &socket, "--owner", USER])?;
    }
    let list = millpond.json(&["exports"])?;
    for (kind, dir) in ["nbd", "vhost-user"].iter().zip(&rooms) {
        let is_it = |export: &&serde_json::Value| export["kind"] == *kind && export["name"] != DISK;
        let id = list.as_array().into_iter().flatten().find(is_it).with_context(|| format!("no export over {kind}"))?["id"].to_string();
        let shown = millpond.json(&["exports", &id])?;
        let elements = shown["lines"]["libvirt"].as_str().with_context(|| format!("no line for libvirt: {shown}"))?;
        let said = domain(dir, &root, elements).with_context(|| format!("over {kind}"))?;
        ensure!(said.contains("FOUND") == (*kind == "vhost-user"), "over {kind}, the guest before was not the one it should be: {said}");
    }
    Ok(())
}
