//! Cache modes: their promises after kills and power cuts, and clients during a change of the mode.

use super::lab::program;
use super::subject::Subject;
use super::vhost_user::export;
use anyhow::{Context, Result, ensure};
use millpond_lab::load::vhost::Disk;
use millpond_lab::load::{Client, Endpoint, Ledger, Op, audit, write_blocks};
use millpond_lab::peer::{CacheMode, Contender, DISK, Millpond, POOL, VolatileDisk, millpond_binary};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

const BLOCK: usize = 4096;
const SIZE: u64 = 48 << 20;
/// Blocks of each of three writers.
const SHARE: usize = SIZE as usize / BLOCK / 3;
const SWITCHES: usize = 25;
const DEPTH: usize = 8;
/// Blocks written between two power cuts.
const FEW: u64 = 64;

/// Runs the lab's loss experiment at a small scale: its goals must be met, and it must show losses
/// where they are certain, else it would prove nothing.
pub fn loss(subject: &mut Subject) -> Result<()> {
    let dir = subject.file("lab");
    std::fs::create_dir_all(&dir)?;
    let place = dir.display().to_string();
    let mut command = program()?;
    command.env("MILLPOND_BIN", millpond_binary()?).current_dir(&dir);
    command.args(["run", "loss", "--scale", "0.01", "--reps", "1", "--strict", "--media", "disk", "--disk-dir", &place, "--out", "out"]);
    let ended = command.output().context("starting the lab")?;
    let said = format!("{}\n{}", String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    ensure!(ended.status.success(), "{said}");
    let results: Value = serde_json::from_str(&std::fs::read_to_string(dir.join("out/results.json"))?)?;
    let samples = results.pointer("/experiments/0/samples").and_then(Value::as_array).context("no samples")?;
    let of = |whose: &str, case: &str, metric: &str| -> f64 {
        let wanted = |s: &&Value| s["contender"] == whose && s["case"] == case && s["metric"] == metric;
        samples.iter().filter(wanted).filter_map(|s| s["value"].as_f64()).sum()
    };
    let verdicts = results.pointer("/experiments/0/verdicts").and_then(Value::as_array).map_or(0, Vec::len);
    ensure!(verdicts > 60 && of("millpond linear, none", "server", "unflushed") >= 200.0, "{verdicts} goals: {said}");
    ensure!(of("millpond linear, unsafe", "power", "lost_flushed") > 0.0, "nothing was lost by the power cut: it was none");
    ensure!(of("millpond linear, writeback", "power", "lost_unflushed") > 0.0, "nothing was lost by the power cut: it was none");
    ensure!(of("qemu-nbd-overlay, writeback", "server", "lost_unflushed") > 0.0, "an overlay survived a kill: it was none");
    Ok(())
}

/// Changes the mode while three clients write.
pub fn switch(subject: &mut Subject) -> Result<()> {
    let endpoint = subject.start(SIZE)?;
    let (dir, mount) = (subject.file("server"), subject.file("mnt"));
    let millpond = subject.millpond()?;
    let socket = export(millpond, &dir, DISK)?;
    millpond.cli(&["export", "fuse", POOL, &mount.display().to_string()])?;
    let stop = AtomicBool::new(false);
    let mut ledger = Ledger::new(3, SIZE as usize / BLOCK, BLOCK);
    let (over_vhost, over_fuse) = thread::scope(|scope| -> Result<(Vec<u64>, Vec<u64>)> {
        let nbd = {
            let (ledger, stop, endpoint) = (&mut ledger, &stop, &endpoint);
            scope.spawn(move || write_blocks(endpoint, ledger, (0..SHARE).cycle(), DEPTH, stop, &AtomicU64::new(0)))
        };
        let vhost = scope.spawn(|| vhost_writer(&socket, &stop));
        let fuse = scope.spawn(|| fuse_writer(&mount.join("disk"), &stop));
        let switch = || -> Result<()> {
            for turn in 0..SWITCHES {
                // an order of modes with many different transitions
                let mode = CacheMode::ALL[(turn * (1 + turn / CacheMode::ALL.len())) % CacheMode::ALL.len()];
                millpond.cli(&["set", &format!("cache={}", mode.name()), DISK])?;
                let shown = millpond.cli(&["get", "cache", DISK, "-H", "-o", "value"])?;
                ensure!(shown.trim() == mode.name(), "{shown} after {}", mode.name());
            }
            Ok(())
        };
        let switched = switch();
        stop.store(true, Ordering::Relaxed);
        let nbd = nbd.join().expect("the NBD writer")?;
        let (vhost, fuse) = (vhost.join().expect("the vhost-user writer")?, fuse.join().expect("the FUSE writer")?);
        switched?;
        ensure!(nbd.broken.is_none() && nbd.acknowledged > 0, "over NBD: {nbd:?}");
        Ok((vhost, fuse))
    })?;
    let (_, found) = audit(&endpoint, &ledger, |block, data| {
        let version = match block / SHARE {
            0 => return ledger.judge(block, data),
            1 => over_vhost[block - SHARE],
            _ => over_fuse[block - 2 * SHARE],
        };
        judge_stamp(block, version, data)
    })?;
    ensure!(found.lost + found.wrong == 0, "{found:?}");
    ensure!(over_vhost.iter().any(|v| *v > 0) && over_fuse.iter().any(|v| *v > 0), "somebody wrote nothing");
    Ok(())
}

/// Content of a block: its number and the round in which it was written.
fn stamped(block: usize, round: u64) -> Vec<u8> {
    [block as u64, round].map(u64::to_le_bytes).concat().repeat(BLOCK / 16)
}

fn judge_stamp(block: usize, round: u64, data: &[u8]) -> millpond_lab::load::Verdict {
    use millpond_lab::load::Verdict;
    let whole = if round == 0 { data.iter().all(|b| *b == 0) } else { data == stamped(block, round) };
    if whole { Verdict::Kept(round) } else { Verdict::Wrong }
}

fn vhost_writer(socket: &Path, stop: &AtomicBool) -> Result<Vec<u64>> {
    let mut disk = Disk::connect(socket, DEPTH, BLOCK, false)?;
    let mut rounds = vec![0u64; SHARE];
    let mut at = 0;
    while !stop.load(Ordering::Relaxed) {
        write_some(&mut disk, (0..DEPTH).map(|slot| (SHARE + (at + slot) % SHARE, rounds[(at + slot) % SHARE] + 1)))?;
        (0..DEPTH).for_each(|slot| rounds[(at + slot) % SHARE] += 1);
        at = (at + DEPTH) % SHARE;
    }
    Ok(rounds)
}

/// Writes blocks with their rounds, at most as many as there are slots, and waits for all.
fn write_some(disk: &mut Disk, blocks: impl Iterator<Item = (usize, u64)>) -> Result<()> {
    let mut left = 0;
    for (slot, (block, round)) in blocks.enumerate() {
        disk.data(slot).copy_from_slice(&stamped(block, round));
        disk.submit(slot, Op::Write, (block * BLOCK) as u64, BLOCK)?;
        left += 1;
    }
    let mut done = Vec::new();
    while done.len() < left {
        disk.wait(&mut done)?;
    }
    ensure!(done.iter().all(|done| done.error == 0), "a write over vhost-user failed: {done:?}");
    Ok(())
}

fn fuse_writer(path: &Path, stop: &AtomicBool) -> Result<Vec<u64>> {
    let file = File::options().write(true).open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut rounds = vec![0u64; SHARE];
    let mut at = 0;
    while !stop.load(Ordering::Relaxed) {
        let block = 2 * SHARE + at;
        file.write_all_at(&stamped(block, rounds[at] + 1), (block * BLOCK) as u64).context("writing to the mount")?;
        rounds[at] += 1;
        at = (at + 1) % SHARE;
        if at % 50 == 0 {
            file.sync_data().context("syncing the mount")?;
        }
    }
    file.sync_data().context("syncing the mount")?;
    Ok(rounds)
}

/// A daemon on a disk with a volatile cache.
struct Harness<'a> {
    millpond: &'a mut Millpond,
    disk: VolatileDisk,
    endpoint: Endpoint,
    socket: PathBuf,
    round: u64,
}

impl Harness<'_> {
    fn set(&self, mode: &str) -> Result<()> {
        self.millpond.cli(&["set", &format!("cache={mode}"), DISK]).map(|_| ())
    }

    /// Writes without flushes, cuts the power, and counts the lost blocks.
    fn lost(&mut self, guest: &mut Disk) -> Result<u64> {
        self.round += 1;
        for first in (0..FEW as usize).step_by(DEPTH) {
            write_some(guest, (first..first + DEPTH).map(|block| (block, self.round)))?;
        }
        self.cut()?;
        let mut client = Client::connect(&self.endpoint, 1, BLOCK, false)?;
        let mut lost = 0;
        for block in 0..FEW as usize {
            client.call(Op::Read, (block * BLOCK) as u64, BLOCK)?;
            lost += u64::from(client.data(0) != stamped(block, self.round));
        }
        Ok(lost)
    }

    fn cut(&mut self) -> Result<()> {
        self.millpond.kill9()?;
        self.disk.power_off()?;
        self.disk.power_on()?;
        self.millpond.restart()
    }
}

/// A guest keeps the durability that its configuration space promised although the mode is
/// loosened, until it reads the configuration space again. A tightened mode applies at once.
pub fn promise(subject: &mut Subject) -> Result<()> {
    let dir = subject.file("server");
    let disk = VolatileDisk::start(&subject.file("disk"), 1 << 30)?;
    let millpond = subject.millpond()?;
    std::fs::create_dir_all(&dir)?;
    millpond.start_empty(&dir)?;
    millpond.cli(&["pool", "create", POOL, "linear", &disk.path().display().to_string()])?;
    millpond.cli(&["create", DISK, "-L", "16M", "--cache", "writethrough"])?;
    let endpoint = millpond.export(DISK)?;
    let socket = export(millpond, &dir, DISK)?;
    let mut harness = Harness { millpond, disk, endpoint, socket, round: 0 };

    let mut guest = Disk::connect(&harness.socket, DEPTH, BLOCK, false)?;
    ensure!(harness.lost(&mut guest)? == 0, "writethrough");
    guest.reconnect(&harness.socket)?;
    harness.set("writeback")?;
    ensure!(harness.lost(&mut guest)? == 0, "a guest that was told so under writethrough");
    guest.reconnect(&harness.socket)?;
    ensure!(harness.lost(&mut guest)? == 0, "the same guest after the daemon's death, which it has not asked anything");
    drop(guest);
    let mut guest = Disk::connect(&harness.socket, DEPTH, BLOCK, false)?;
    let lost = harness.lost(&mut guest)?;
    ensure!(lost > 0, "a guest that reads the configuration anew knows of the cache, and nothing was lost: was the power cut?");
    guest.reconnect(&harness.socket)?;
    harness.set("directsync")?;
    ensure!(harness.lost(&mut guest)? == 0, "tightened under a guest that was told of a cache");
    println!("{lost} of {FEW} writes lost where they may be");
    Ok(())
}
