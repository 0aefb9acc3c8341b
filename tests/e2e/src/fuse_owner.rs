//! A mount for another user than the daemon's: owner, group and mode, and programs that copy images
//! from it.

use super::PATIENCE;
use super::fuse::{export_id, mount};
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::load::Rng;
use millpond_lab::peer::{Contender, POOL};
use millpond_lab::process::{run_tool, wait_until};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};

const SIZE: u64 = 32 << 20;
/// Ids that need not be in the tables of users and groups.
const USER: u32 = 65_531;
const GROUP: u32 = 65_532;
const STRANGER: u32 = 65_533;

/// Runs a shell command as a user and group; true if it succeeds.
fn as_somebody(user: u32, group: u32, script: &str) -> Result<bool> {
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={user}"), &format!("--regid={group}"), "--clear-groups", "sh", "-c", script]);
    Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().context("starting setpriv")?.success())
}

fn attributes(path: &Path) -> Result<(u32, u32, u32)> {
    let meta = fs::metadata(path).with_context(|| path.display().to_string())?;
    Ok((meta.uid(), meta.gid(), meta.mode() & 0o7777))
}

pub fn run(subject: &mut Subject) -> Result<()> {
    let dir = mount(subject, SIZE)?;
    for path in dir.ancestors().skip(1).take_while(|path| *path != std::env::temp_dir() && path.parent().is_some()) {
        rustix::fs::chmod(path, 0o755.into())?;
    }
    let copies = subject.file("copies");
    fs::create_dir(&copies)?;
    std::os::unix::fs::chown(&copies, Some(USER), Some(GROUP))?;
    let millpond = subject.millpond()?;
    millpond.cli(&["unexport", &export_id(millpond)?])?;
    let place = dir.display().to_string();
    for wrong in [["--mode", "0755"], ["--mode", "rw"], ["--owner", "nobody-of-this-name"], ["--owner", ":"]] {
        ensure!(millpond.cli(&[&["export", "fuse", POOL, &place][..], &wrong].concat()).is_err(), "{wrong:?} was accepted");
    }
    millpond.cli(&["export", "fuse", POOL, &place, "--owner", &format!("{USER}:{GROUP}"), "--mode", "0640"])?;
    check(&dir)?;
    let export = millpond.json(&["exports", &export_id(millpond)?])?;
    ensure!(export["uid"] == USER && export["gid"] == GROUP && export["mode"] == 0o640, "{export}");
    // The settings survive a restart.
    millpond.stop()?;
    millpond.launch()?;
    wait_until("the mount comes back", PATIENCE, || dir.join("disk").exists())?;
    check(&dir)?;
    copy(subject, &dir, &copies)
}

/// Checks owners, modes, and who may read and write.
fn check(dir: &Path) -> Result<()> {
    let disk = dir.join("disk");
    ensure!(attributes(&disk)? == (USER, GROUP, 0o640), "{:?}", attributes(&disk)?);
    for folder in [dir, &dir.join(".snapshots"), &dir.join(".snapshots/disk")] {
        ensure!(attributes(folder)? == (USER, GROUP, 0o750), "{}: {:?}", folder.display(), attributes(folder)?);
    }
    let disk = disk.display();
    let read = format!("dd if={disk} of=/dev/null bs=64k count=2");
    let write = format!("dd if=/dev/zero of={disk} bs=4k count=1 conv=notrunc");
    let may = [(USER, GROUP, true, true), (STRANGER, GROUP, true, false), (STRANGER, STRANGER, false, false)];
    for (user, group, reads, writes) in may {
        ensure!(as_somebody(user, group, &read)? == reads, "user {user} of group {group} reads: should be {reads}");
        ensure!(as_somebody(user, group, &write)? == writes, "user {user} of group {group} writes: should be {writes}");
    }
    ensure!(!as_somebody(USER, GROUP, &format!("chmod 0666 {disk}"))?, "the mode was changed from within");
    Ok(())
}

/// Programs that copy disks, run by the owner: from a volume and from a snapshot, and into the
/// volume.
fn copy(subject: &mut Subject, dir: &Path, copies: &Path) -> Result<()> {
    let mut expected = vec![0; SIZE as usize];
    Rng::new(8).fill(&mut expected[3 << 20..9 << 20]);
    let file = File::options().write(true).open(dir.join("disk"))?;
    file.write_all_at(&expected[3 << 20..9 << 20], 3 << 20)?;
    subject.millpond()?.snapshot("monday")?;
    file.write_all_at(&[1; 4096], 3 << 20)?;
    let snapshot = dir.join(".snapshots/disk/monday");
    ensure!(attributes(&snapshot)? == (USER, GROUP, 0o440), "{:?}", attributes(&snapshot)?);
    let at = |name: &str| copies.join(name).display().to_string();
    let from = snapshot.display().to_string();
    let raw = at("convert.raw");
    let commands = [
        (format!("cp --reflink=auto {from} {}", at("reflink.raw")), "reflink.raw"),
        (format!("cp --sparse=always {from} {}", at("sparse.raw")), "sparse.raw"),
        (format!("qemu-img convert -f raw -O raw {from} {raw}"), "convert.raw"),
        (format!("qemu-img convert -f raw -O qcow2 {from} {0} && qemu-img convert -O raw {0} {1}", at("a.qcow2"), at("b.raw")), "b.raw"),
    ];
    for (script, name) in commands {
        ensure!(as_somebody(USER, GROUP, &script)?, "failed: {script}");
        ensure!(fs::read(copies.join(name))? == expected, "another image: {script}");
        let taken = fs::metadata(copies.join(name))?.blocks() * 512;
        ensure!(taken < 12 << 20, "{taken} bytes are taken: the holes are lost: {script}");
    }
    // And back, over a volume that has changed.
    ensure!(as_somebody(USER, GROUP, &format!("qemu-img convert -n -f raw -O raw {raw} {}", dir.join("disk").display()))?, "convert -n");
    run_tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", &raw, &dir.join("disk").display().to_string()])?;
    // cp truncates its target, which volumes refuse.
    ensure!(!as_somebody(USER, GROUP, &format!("cp {raw} {}", dir.join("disk").display()))?, "cp emptied a volume");
    Ok(())
}
