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
const MIDDLE: &str = "special, 64 KiB";
const SMALL: &str = "special, 128 KiB";
const NONE_TUNED: &str = "no special, tuned";
const META_TUNED: &str = "special, 16 KiB, tuned";
/// A pool, and the file system on its volume.
struct Pool {
    name: &'static str,
    /// `special_small_blocks`; `None` for a pool without an SSD.
    small: Option<&'static str>,
    tuning: Tuning,
}

/// Options of the file system and of its loop device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tuning {
    /// Defaults of mkfs.ext4 and mount; the loop device has direct I/O, like a guest's disk.
    Defaults,
    /// ext4 writes its inode tables neither when it is made nor afterwards, and the loop device does
    /// not merge requests: data that is written in one large piece is not small, and stays on the
    /// hard disk.
    SmallPieces,
}

impl Tuning {
    fn mkfs(self) -> &'static [&'static str] {
        match self {
            Tuning::Defaults => &["-q", "-F"],
            // empty inode tables are not written: a new volume reads as zeroes there anyway
            Tuning::SmallPieces => &["-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard"],
        }
    }

    fn mount(self) -> &'static str {
        match self {
            Tuning::Defaults => "defaults",
            Tuning::SmallPieces => "noinit_itable",
        }
    }
}

const fn pool(name: &'static str, small: Option<&'static str>, tuning: Tuning) -> Pool {
    Pool { name, small, tuning }
}

const POOLS: [Pool; 7] = [
    pool(NONE, None, Tuning::Defaults),
    pool(NODES, Some("0"), Tuning::Defaults),
    pool(META, Some("16k"), Tuning::Defaults),
    pool(MIDDLE, Some("64k"), Tuning::Defaults),
    pool(SMALL, Some("128k"), Tuning::Defaults),
    pool(NONE_TUNED, None, Tuning::SmallPieces),
    pool(META_TUNED, Some("16k"), Tuning::SmallPieces),
];
const WRITE: &str = "write all files";
const FIND: &str = "find all files";
const READ: &str = "read all files";
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
        "{count} files, 150 KiB in the mean, sixteen to a directory, on ext4 on a loop device on the volume's file (FUSE); \"tuned\" is ext4 that never writes its \
         inode tables on a loop device that merges no requests, all else has the defaults; the pool's disk is a simulated {HDD}, the special device a simulated {SSD}; before a case the filesystem is unmounted and the daemon started again"
    ));
    let reps = setup.long_reps;
    for rep in 0..reps {
        for turn in 0..POOLS.len() {
            let Some(pool) = POOLS.get((turn + rep) % POOLS.len()) else { continue };
            results.say(&format!("repetition {} of {reps}: {}", rep + 1, pool.name));
            one(setup, results, rep, pool, count).with_context(|| pool.name.to_owned())?;
        }
    }
    results.goal(FIND, "files_s", META, Goal::times_of(NONE, 7.0));
    results.goal(FIND, "files_s", META_TUNED, Goal::times_of(NONE_TUNED, 7.0));
    claims(results);
    Ok(())
}

fn claims(results: &mut Results) {
    let times = |results: &Results, case: &str, name: &str| median(&results.ratios(case, "files_s", name, NONE));
    let why = "the article's are ZFS on its own drives; there, metadata are the file system's, for a volume small writes of its guest";
    for (says, figure, case, name) in [
        ("find: times as fast, metadata only; ours map nodes only", 17.8 / 2.5, FIND, NODES),
        ("find: times as fast, metadata only; ours up to 16k", 17.8 / 2.5, FIND, META),
        ("find: times as fast, blocks up to 64k", 17.8 / 2.6, FIND, MIDDLE),
        ("find: times as fast, blocks up to 128k", 17.8 / 2.8, FIND, SMALL),
        ("read: times as fast, metadata only; ours map nodes only", 539.0 / 493.0, READ, NODES),
        ("read: times as fast, metadata only; ours up to 16k", 539.0 / 493.0, READ, META),
        ("read: times as fast, blocks up to 64k", 539.0 / 433.0, READ, MIDDLE),
        ("read: times as fast, blocks up to 128k", 539.0 / 203.0, READ, SMALL),
        ("write: times as fast, metadata only; ours up to 16k", 284.0 / 281.0, WRITE, META),
        ("write: times as fast, blocks up to 128k", 284.0 / 280.0, WRITE, SMALL),
    ] {
        let ours = times(results, case, name);
        results.claim(Claim::new("C-special", says, figure, "x").ours(ours).because(why));
    }
    let why = "10.3 GiB there; MiB of special devices, which grow with the number of files";
    for (says, figure, name) in
        [("metadata only; ours up to 16k", 319.0, META), ("blocks up to 64k", 684.0, MIDDLE), ("blocks up to 128k", 13_824.0, SMALL)]
    {
        let ours = median(&results.values(WRITE, "special_mb", name)).map(|mb| mb * 1e6 / f64::from(1 << 20));
        let says = format!("space of the special device, {says}");
        results.claim(Claim::new("C-special", &says, figure, "MiB").ours(ours).because(why));
    }
}

/// A volume's file, mounted as a file system.
struct Scene {
    millpond: Millpond,
    file: PathBuf,
    mounted: PathBuf,
    tuning: Tuning,
}

impl Scene {
    fn device(&self) -> Result<Loop> {
        let device = Loop::attach(&self.file, true)?;
        if self.tuning == Tuning::SmallPieces { device.without_merges() } else { Ok(device) }
    }

    /// Mounts the file system with cold caches: the daemon is restarted, and the file system was
    /// not mounted.
    fn cold(&mut self) -> Result<LoopMount> {
        self.millpond.stop()?;
        self.millpond.restart()?;
        LoopMount::mount(self.device()?, self.tuning.mount(), &self.mounted)
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

fn one(setup: &Setup, results: &mut Results, rep: usize, pool: &Pool, count: u64) -> Result<()> {
    let name = pool.name;
    let workspace = Workspace::new(&setup.dir, "special")?;
    let mounted = workspace.path().join("files");
    let tree = Tree::new(&mounted.join("tree"), count, setup.seed_of(rep));
    let size = (tree.bytes() * 3 / 2 + (256 << 20)) >> 20 << 20;
    let drives = Drives::start(workspace.path(), &[format!("{HDD}={}", 2 * size + (2 << 30)), format!("{SSD}={}", size + (2 << 30))])?;
    let mut scene = open(workspace.path(), &drives.files(), size, pool, mounted)?;
    let device = scene.device()?;
    device.format("ext4", pool.tuning.mkfs())?;
    let mount = LoopMount::mount(device, pool.tuning.mount(), &scene.mounted)?;
    timed(results, rep, name, WRITE, count, || tree.write())?;
    drop(mount);
    if pool.small.is_some() {
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

fn open(dir: &Path, drives: &[PathBuf], size: u64, pool: &Pool, mounted: PathBuf) -> Result<Scene> {
    let [hdd, ssd] = drives else { anyhow::bail!("two drives") };
    let mut devices = vec![hdd.display().to_string()];
    if pool.small.is_some() {
        devices.extend(["special".to_owned(), ssd.display().to_string()]);
    }
    let mut millpond = Millpond::new(millpond_binary()?);
    millpond.start_with(dir, &devices, size)?;
    if let Some(small) = pool.small {
        millpond.cli(&["set", &format!("special_small_blocks={small}"), DISK])?;
    }
    let file = millpond.file()?;
    Ok(Scene { millpond, file, mounted, tuning: pool.tuning })
}
