//! File systems on a loop device on a volume's file.

use super::fuse;
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::load::Rng;
use millpond_lab::peer::Contender;
use millpond_lab::process::{find_tool, run_tool};
use std::fs;
use std::path::{Path, PathBuf};

/// Size in bytes, enough for XFS, which needs 300 MB.
const SIZE: u64 = 400 << 20;
/// Seconds of a load of many programs, if stress-ng is installed.
const STRESS: &str = "4";

/// A loop device, detached when dropped.
struct Loop(String);

impl Loop {
    fn attach(file: &Path, sector: &str, read_only: bool) -> Result<Loop> {
        let file = file.display().to_string();
        let mut args = vec!["--find", "--show", "--direct-io=on", "--sector-size", sector, &file];
        if read_only {
            args.push("--read-only");
        }
        let device = Loop(run_tool("losetup", &args)?.trim().to_owned());
        let direct = run_tool("losetup", &["--noheadings", "--output", "DIO", &device.0])?;
        ensure!(direct.trim() == "1", "{} does not use direct I/O", device.0);
        Ok(device)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = run_tool("losetup", &["--detach", &self.0]);
    }
}

/// A mounted file system, unmounted when dropped.
struct Mount(PathBuf);

impl Mount {
    fn new(device: &Loop, dir: PathBuf, options: &str) -> Result<Mount> {
        fs::create_dir_all(&dir)?;
        run_tool("mount", &["-o", options, &device.0, &dir.display().to_string()])?;
        Ok(Mount(dir))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = run_tool("umount", &[&self.0]);
    }
}

fn content(seed: u64) -> Vec<u8> {
    let mut data = vec![0; 1 + (seed * 7919 % 60_000) as usize];
    Rng::new(seed).fill(&mut data);
    data
}

fn write_files(dir: &Path, seeds: impl Iterator<Item = u64>) -> Result<()> {
    for seed in seeds {
        let folder = dir.join(format!("d{}", seed % 10));
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(format!("f{seed}")), content(seed))?;
    }
    Ok(())
}

fn check_files(dir: &Path, seeds: impl Iterator<Item = u64>) -> Result<()> {
    for seed in seeds {
        let path = dir.join(format!("d{}/f{seed}", seed % 10));
        ensure!(fs::read(&path).with_context(|| format!("reading {}", path.display()))? == content(seed), "{} differs", path.display());
    }
    Ok(())
}

/// Writes files, runs a mixed load, fstrim and the file system's check, and repeats the check after
/// a restart of the daemon.
fn filesystem(subject: &mut Subject, make: &str, check: &[&str], sector: &str, snapshot_options: &str) -> Result<()> {
    let (dir, snapshot_dir) = (subject.file("fs"), subject.file("snapshot"));
    let (file, millpond) = fuse::volume(subject, SIZE)?;
    let check = |device: &Loop| {
        let (program, options) = check.split_first().context("no check")?;
        let args: Vec<&str> = options.iter().copied().chain([device.0.as_str()]).collect();
        run_tool(program, &args).map(|_| ()).context("the filesystem is not sound")
    };
    let device = Loop::attach(&file, sector, false)?;
    run_tool(make, &["-q", &device.0])?;
    let mount = Mount::new(&device, dir.clone(), "defaults")?;
    write_files(&dir, 0..400)?;
    if find_tool("stress-ng").is_some() {
        let place = dir.join("stress");
        fs::create_dir(&place)?;
        let place = place.display().to_string();
        let load = ["--hdd", "1", "--hdd-bytes", "32M", "--fallocate", "1", "--fallocate-bytes", "32M", "--seek", "1", "--rename", "1"];
        let more = ["--dentry", "1", "--fpunch", "1", "--timeout", STRESS, "--quiet", "--temp-path", &place];
        run_tool("stress-ng", &load.into_iter().chain(more).collect::<Vec<_>>())?;
        fs::remove_dir_all(&place)?;
    } else {
        println!("SKIPPED a part of this test: stress-ng is not installed");
    }
    (0..400).filter(|seed| seed % 3 == 0).try_for_each(|seed| fs::remove_file(dir.join(format!("d{}/f{seed}", seed % 10))))?;
    // frozen, so that no data is only in the file system's log, which a read-only mount without
    // recovery ignores
    run_tool("fsfreeze", &["--freeze", &dir.display().to_string()])?;
    let taken = millpond.snapshot("frozen");
    run_tool("fsfreeze", &["--unfreeze", &dir.display().to_string()])?;
    taken?;
    let trimmed = run_tool("fstrim", &["-v", &dir.display().to_string()])?;
    ensure!(!trimmed.contains(" 0 B"), "{trimmed}");
    write_files(&dir, 400..600)?;
    drop(mount);
    check(&device)?;
    drop(device);

    millpond.stop()?;
    millpond.launch()?;
    let kept = |seed: &u64| *seed >= 400 || !seed.is_multiple_of(3);
    let device = Loop::attach(&file, sector, false)?;
    let mount = Mount::new(&device, dir.clone(), "defaults")?;
    check_files(&dir, (0..600).filter(kept))?;
    drop(mount);
    check(&device)?;
    drop(device);

    // the state at the time of the snapshot, mounted without writes
    let (folder, name) = (file.parent().context("a directory")?, file.file_name().context("a name")?);
    let device = Loop::attach(&folder.join(".snapshots").join(name).join("frozen"), sector, true)?;
    let mount = Mount::new(&device, snapshot_dir.clone(), snapshot_options)?;
    check_files(&snapshot_dir, (0..400).filter(kept))?;
    ensure!(!snapshot_dir.join("d0/f400").exists(), "a snapshot shows what came later");
    drop(mount);
    Ok(())
}

/// ext4 with 4 KiB sectors.
pub fn ext4(subject: &mut Subject) -> Result<()> {
    filesystem(subject, "mkfs.ext4", &["e2fsck", "-f", "-n"], "4096", "ro,noload")
}

/// XFS with 512-byte sectors.
pub fn xfs(subject: &mut Subject) -> Result<()> {
    filesystem(subject, "mkfs.xfs", &["xfs_repair", "-n"], "512", "ro,norecovery,nouuid")
}
