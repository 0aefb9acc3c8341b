//! `special`: measures ext4 on a volume of a pool with one simulated hard disk, without and with a
//! simulated SSD of class `special`: files are written, found and read, each from a cold start.
//!
//! For a block volume, a file system's metadata are small writes. The SSD stores map nodes; with
//! `special_small_blocks` of at least the file system's block size also inodes and directories, and
//! above that small files.

use super::Setup;
use crate::load::Tree;
use crate::peer::{Contender, DISK, Drives, Loop, LoopMount, Millpond, POOL, can_mount, knows_filesystem, millpond_binary};
use crate::process::{Workspace, find_tool};
use crate::report::{Claim, Goal, Results, median};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Instant;

const HDD: &str = "mn08aca14t";
const SSD: &str = "sata-ssd";
const FILES: u64 = 72_208;
const LEAST_FILES: u64 = 700;
const NONE: &str = "no special";
const NODES: &str = "special, nodes";
const META: &str = "special, 16 KiB";
const SMALL: &str = "special, 128 KiB";
/// Name, and `special_small_blocks`; `None` for a pool without an SSD.
const POOLS: [(&str, Option<&str>); 5] =
    [(NONE, None), (NODES, Some("0")), (META, Some("16k")), ("special, 64 KiB", Some("64k")), (SMALL, Some("128k"))];
const WRITE: &str = "write all files";
const FIND: &str = "find all files";
const READ: &str = "read all files";
/// Mount options of ext4: no background initialization.
const OPTIONS: &str = "noinit_itable";
/// Counter of a device's reads since import, in the pool's status.
const READS: &str = "/io/reads";

pub fn run_special(setup: &Setup, results: &mut Results) -> Result<()> {
    let needs = || -> Result<()> {
        find_tool("mkfs.ext4").context("mkfs.ext4 is not installed")?;
        can_mount()?;
        knows_filesystem("ext4")?;
        Drives::check()
    };
    if let Err(reason) = needs() {
        results.leave_out(&format!("{reason:#}"));
        return Ok(());
    }
    if setup.contenders(&["millpond"], results).is_empty() {
        return Ok(());
    }
    results.skip("zfs-zvol", "the lab does not drive ZFS; the article's figures stand beside ours");
    let count = setup.scaled(FILES, LEAST_FILES);
    results.note(&format!(
        "{count} files, 150 KiB in the mean, sixteen to a directory, on ext4 on a loop device that joins no requests, on the volume's file (FUSE); the pool's \
         disk is a simulated {HDD}, the special device a simulated {SSD}; before a case the filesystem is unmounted and the daemon started again"
    ));
    let reps = setup.long_reps;
    for rep in 0..reps {
        for turn in 0..POOLS.len() {
            let Some((name, small)) = POOLS.get((turn + rep) % POOLS.len()) else { continue };
            results.say(&format!("repetition {} of {reps}: {name}", rep + 1));
            one(setup, results, rep, name, *small, count).with_context(|| (*name).to_owned())?;
        }
    }
    results.goal(FIND, "files_s", META, Goal::times_of(NONE, 7.0));
    claims(results);
    Ok(())
}

fn claims(results: &mut Results) {
    let times = |results: &Results, case: &str, name: &str| median(&results.ratios(case, "files_s", name, NONE));
    let why = "the article's are ZFS on its own drives, whole files of 10.3 GiB";
    for (says, figure, case, name) in [
        ("find: times as fast with metadata on an SSD", 17.8 / 2.5, FIND, META),
        ("read: times as fast with metadata on an SSD", 539.0 / 493.0, READ, META),
        ("read: times as fast with blocks up to 64k there", 539.0 / 433.0, READ, "special, 64 KiB"),
        ("read: times as fast with blocks up to 128k there", 539.0 / 203.0, READ, SMALL),
    ] {
        let ours = times(results, case, name);
        results.claim(Claim::new("C-special", says, figure, "x").ours(ours).because(why));
    }
}

/// A volume's file, mounted as a file system.
struct Scene {
    millpond: Millpond,
    file: PathBuf,
    mounted: PathBuf,
}

impl Scene {
    fn device(&self) -> Result<Loop> {
        Loop::attach(&self.file, true)?.without_merges()
    }

    /// Mounts the file system with cold caches: the daemon is restarted, and the file system was
    /// not mounted.
    fn cold(&mut self) -> Result<LoopMount> {
        self.millpond.stop()?;
        self.millpond.restart()?;
        LoopMount::mount(self.device()?, OPTIONS, &self.mounted)
    }

    /// Returns a figure of the pool's device of a class.
    fn figure(&self, class: &str, pointer: &str) -> Result<f64> {
        let pool = self.millpond.control()?.get(&format!("/v1/pools/{POOL}"))?;
        let devices = pool.get("devices").and_then(Value::as_array).context("the pool lists no devices")?;
        let device = devices.iter().find(|d| d.get("class").and_then(Value::as_str) == Some(class));
        device.and_then(|d| d.pointer(pointer)?.as_f64()).with_context(|| format!("no device of class {class} tells {pointer}"))
    }
}

fn timed<T>(results: &mut Results, rep: usize, name: &str, case: &str, files: u64, step: impl FnOnce() -> Result<T>) -> Result<T> {
    let begin = Instant::now();
    let value = step().with_context(|| case.to_owned())?;
    let seconds = begin.elapsed().as_secs_f64();
    results.add(rep, name, case, "files_s", files as f64 / seconds);
    results.add(rep, name, case, "seconds", seconds);
    Ok(value)
}

fn one(setup: &Setup, results: &mut Results, rep: usize, name: &str, small: Option<&str>, count: u64) -> Result<()> {
    let workspace = Workspace::new(&setup.dir, "special")?;
    let mounted = workspace.path().join("files");
    let tree = Tree::new(&mounted.join("tree"), count, setup.seed_of(rep));
    let size = (tree.bytes() * 3 / 2 + (256 << 20)) >> 20 << 20;
    let drives = Drives::start(workspace.path(), &[format!("{HDD}={}", 2 * size + (2 << 30)), format!("{SSD}={}", size + (2 << 30))])?;
    let mut scene = open(workspace.path(), &drives.files(), size, small, mounted)?;
    let device = scene.device()?;
    // empty inode tables are not written: a new volume reads as zeroes there anyway
    device.format("ext4", &["-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard"])?;
    let mount = LoopMount::mount(device, OPTIONS, &scene.mounted)?;
    timed(results, rep, name, WRITE, count, || tree.write())?;
    drop(mount);
    if small.is_some() {
        results.add(rep, name, WRITE, "special_mb", scene.figure("special", "/allocated")? / 1e6);
    }
    let mount = scene.cold()?;
    let before = scene.figure("data", READS)?;
    let found = timed(results, rep, name, FIND, count, || tree.find())?;
    results.add(rep, name, FIND, "hard_disk_reads", scene.figure("data", READS)? - before);
    ensure!(found as u64 == count, "{found} files of {count} were found");
    drop(mount);
    let mount = scene.cold()?;
    let before = scene.figure("data", READS)?;
    timed(results, rep, name, READ, count, || tree.read())?;
    results.add(rep, name, READ, "hard_disk_reads", scene.figure("data", READS)? - before);
    drop(mount);
    scene.millpond.stop()
}

fn open(dir: &Path, drives: &[PathBuf], size: u64, small: Option<&str>, mounted: PathBuf) -> Result<Scene> {
    let [hdd, ssd] = drives else { anyhow::bail!("two drives") };
    let mut devices = vec!["linear".to_owned(), hdd.display().to_string()];
    if small.is_some() {
        devices.extend(["special".to_owned(), ssd.display().to_string()]);
    }
    let mut millpond = Millpond::new(millpond_binary()?);
    millpond.start_with(dir, &devices, size)?;
    if let Some(small) = small {
        millpond.cli(&["set", &format!("special_small_blocks={small}"), DISK])?;
    }
    let file = millpond.file()?;
    Ok(Scene { millpond, file, mounted })
}
