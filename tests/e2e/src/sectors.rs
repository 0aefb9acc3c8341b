//! A disk that was converted to another sector size still boots: the firmware finds its partitions
//! and the loader's files, and a kernel its file systems.

use super::guest::{Guest, Protocol, prepare};
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::process::run_tool;
use std::fs;
use std::path::Path;

pub const NEEDS: &[&str] = &["qemu-system-x86_64", "busybox", "mke2fs", "e2fsck", "ldd", "md5sum", "sgdisk", "mkfs.fat", "mcopy", FIRMWARE];

const FIRMWARE: &str = "/usr/share/ovmf/OVMF.fd";
const DISK: u64 = 192 << 20;
/// Start and length in MiB of the partitions: the EFI system partition, and a root file system.
const ESP: (u64, u64) = (1, 96);
const ROOT: (u64, u64) = (97, 90);
/// Script that the firmware's shell runs.
const STARTUP: &str = "fs0:\r\nvmlinuz.efi initrd=\\initrd console=ttyS0 quiet panic=-1\r\n";
/// Prints the sector sizes that the kernel sees, and checks both file systems.
const SCRIPT: &str = r#"
echo "SECTORS $(cat /sys/block/vda/queue/logical_block_size) $(cat /sys/block/vda/queue/physical_block_size)"
mount -t vfat -o ro /dev/vda1 /mnt
(cd /mnt && md5sum -c sums)
umount /mnt
/sbin/e2fsck -fn /dev/vda2
mount -t ext4 /dev/vda2 /mnt
(cd /mnt && md5sum -c sums > /dev/null && [ "$(wc -l < sums)" = 20 ])
echo written > /mnt/new
umount /mnt
/sbin/e2fsck -fn /dev/vda2
if dmesg | grep -i "I/O error"; then exit 9; fi
"#;

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Writes the MD5 sums of files into a file of the same directory.
fn sums(dir: &Path, files: &[String]) -> Result<()> {
    let mut list = String::new();
    for file in files {
        let line = run_tool("md5sum", &[text(&dir.join(file))])?;
        let sum = line.split_whitespace().next().context("md5sum says nothing")?;
        list += &format!("{sum}  {file}\n");
    }
    fs::write(dir.join("sums"), list).context("writing the sums")
}

/// Makes a bootable disk of 512-byte sectors.
fn make(room: &Path) -> Result<String> {
    let (disk, esp, root) = (room.join("disk.raw"), room.join("esp"), room.join("root"));
    let (kernel, initramfs) = prepare(room, SCRIPT)?;
    fs::File::create(&disk)?.set_len(DISK)?;
    let partition = |number: u32, (start, length): (u64, u64)| format!("--new={number}:{}:+{length}M", start * 2048);
    run_tool("sgdisk", &[&partition(1, ESP), "--typecode=1:ef00", &partition(2, ROOT), "--typecode=2:8300", &text(&disk)])?;

    let files = room.join("esp-files");
    fs::create_dir_all(&files)?;
    fs::copy(kernel, files.join("vmlinuz.efi"))?;
    fs::copy(initramfs, files.join("initrd"))?;
    fs::write(files.join("startup.nsh"), STARTUP)?;
    sums(&files, &["vmlinuz.efi", "initrd", "startup.nsh"].map(str::to_owned))?;
    fs::File::create(&esp)?.set_len(ESP.1 << 20)?;
    run_tool("mkfs.fat", &["-F", "32", "-n", "ESP", &text(&esp)])?;
    for file in ["vmlinuz.efi", "initrd", "startup.nsh", "sums"] {
        run_tool("mcopy", &["-i", &text(&esp), &text(&files.join(file)), "::/"])?;
    }

    let files = room.join("root-files");
    fs::create_dir_all(&files)?;
    let names: Vec<String> = (0..20).map(|n| format!("file-{n}")).collect();
    for (n, name) in names.iter().enumerate() {
        fs::write(files.join(name), name.repeat(1 + n * 997))?;
    }
    sums(&files, &names)?;
    fs::File::create(&root)?.set_len(ROOT.1 << 20)?;
    run_tool("mke2fs", &["-q", "-t", "ext4", "-b", "4096", "-d", &text(&files), &text(&root)])?;
    for (part, (start, _)) in [(&esp, ESP), (&root, ROOT)] {
        let (from, to) = (format!("if={}", part.display()), format!("of={}", disk.display()));
        run_tool("dd", &[&from, &to, "bs=1M", &format!("seek={start}"), "conv=notrunc,sparse", "status=none"])?;
    }
    Ok(text(&disk))
}

fn boot(subject: &mut Subject, profiles: &[&str], sectors: &str) -> Result<()> {
    let (dir, room) = (subject.file("server"), subject.file("room"));
    fs::create_dir_all(&room)?;
    let disk = make(&room)?;
    let millpond = subject.millpond()?;
    millpond.start_empty(&dir)?;
    millpond.cli(&["pool", "create", "tank", &format!("{}:2G", dir.join("pool.img").display())])?;
    let refused = millpond.command(&["import-image", &disk, "tank/disk", "--sector", "4kn"]).output()?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(refused.status.code() == Some(1) && said.contains("--sector 512e"), "the wrong sectors are taken: {said}");
    millpond.cli(&["import-image", &disk, "tank/disk"])?;
    for profile in profiles {
        let output = millpond.cli(&["convert-sectors", "tank/disk", profile])?;
        ensure!(output.contains(&format!("tank/disk is {profile} now")), "{output}");
    }
    if profiles.len() > 1 {
        let out = room.join("back.raw");
        millpond.cli(&["export-image", "tank/disk", &text(&out)])?;
        let output = run_tool("sgdisk", &["--verify", &text(&out)])?;
        ensure!(output.contains("No problems found"), "{output}");
    }
    let socket = dir.join("guest.sock");
    millpond.cli(&["export", "vhost-user", "tank/disk", "--force", "--unix", &text(&socket)])?;
    let mut guest = Guest::boot_firmware(Protocol::VhostUser(&[socket]), FIRMWARE)?;
    let seen = guest.expect("SECTORS")?;
    ensure!(seen == sectors, "the guest sees sectors of {seen}");
    guest.finish()
}

/// Boots after a conversion to 4096-byte sectors.
pub fn boot_4kn(subject: &mut Subject) -> Result<()> {
    boot(subject, &["4kn"], "4096 4096")
}

/// Boots after a conversion to 4096-byte sectors and back.
pub fn boot_512e(subject: &mut Subject) -> Result<()> {
    boot(subject, &["4kn", "512e"], "512 4096")
}
