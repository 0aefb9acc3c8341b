//! `kill9`: counts acknowledged, unflushed writes that are lost when a server is killed by SIGKILL.

use super::Setup;
use crate::load::{Audit, Client, Ledger, Op, Permutation, Rng, audit, write_blocks};
use crate::peer::{Contender, DISK, Millpond};
use crate::report::{Goal, Results};
use anyhow::{Context, Result, anyhow, ensure};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const SIZE: u64 = 256 << 20;
const BLOCK: usize = 4096;
const KILLS: u64 = 50;
const WRITES_PER_KILL: u64 = 2000; // times 50 kills = 100,000
const DEPTH: usize = 16;

pub fn run_kill9(setup: &Setup, results: &mut Results) -> Result<()> {
    let names = setup.contenders(&["millpond", "nbdkit-file", "qsd-raw", "qsd-qcow2-128k", "qsd-chain"], results);
    let kills = setup.scaled(KILLS, 2);
    for name in &names {
        if name == "millpond" {
            for (case, snapshots) in [("kill -9", false), ("kill -9, snapshots", true)] {
                let size = setup.fixed_size_or(SIZE);
                // a fifth of the pool is free, so the cleaner works all the time
                let mut open = setup.open_millpond(size, size * 5 / 4 + (96 << 20), &[])?;
                let mut tally = Tally::default();
                let mut ledger = first_pass(&mut open.millpond, setup.seed)?;
                for kill in 0..kills {
                    let snapshot = if snapshots { Some(format!("kill{kill}")) } else { None };
                    ours(&mut open.millpond, &mut ledger, setup.seed + kill, snapshot.as_deref(), &mut tally)?;
                }
                tally.note(case, name, results);
                results.add(0, name, case, "segments_cleaned", tally.segments_cleaned);
            }
        } else {
            theirs(setup, name, kills.div_ceil(10), results)?;
        }
    }
    for case in ["kill -9", "kill -9, snapshots"] {
        results.promise(case, "lost_writes", "millpond", Goal::NeverAbove(0.0));
        results.promise(case, "wrong_blocks", "millpond", Goal::NeverAbove(0.0));
        results.goal(case, "segments_cleaned", "millpond", Goal::AtLeast(1.0));
        results.promise(case, "acknowledged_unflushed", "millpond", Goal::AtLeast((kills * WRITES_PER_KILL) as f64));
    }
    Ok(())
}

/// Measures a peer with a tenth of the kills; if it has snapshots, also with a new one before every
/// kill.
fn theirs(setup: &Setup, name: &str, kills: u64, results: &mut Results) -> Result<()> {
    for (case, snapshots) in [("kill -9", false), ("kill -9, snapshots", true)] {
        if snapshots && !name.starts_with("qsd-qcow2") && name != "qsd-chain" {
            continue;
        }
        let mut open = setup.open(name, setup.fixed_size_or(SIZE))?;
        let mut tally = Tally::default();
        let mut ledger = first_pass(open.contender.as_mut(), setup.seed)?;
        for kill in 0..kills {
            if snapshots {
                open.contender.snapshot(&format!("kill{kill}"))?;
            }
            round(open.contender.as_mut(), &mut ledger, setup.seed + kill, &mut tally)?;
        }
        tally.note(case, name, results);
    }
    Ok(())
}

#[derive(Default)]
struct Tally {
    kills: u64,
    acknowledged: u64,
    lost: u64,
    wrong: u64,
    snapshots_checked: u64,
    /// Segments cleaned between a start of the server and the next round of writes.
    segments_cleaned: f64,
    examples: Vec<String>,
}

impl Tally {
    fn add(&mut self, audit: &Audit) {
        self.lost += audit.lost; // a round writes no block twice
        self.wrong += audit.wrong;
        self.examples.extend(audit.examples.iter().take(3).cloned());
    }

    fn note(&self, case: &str, name: &str, results: &mut Results) {
        results.add(0, name, case, "lost_writes", self.lost as f64);
        results.add(0, name, case, "wrong_blocks", self.wrong as f64);
        results.add(0, name, case, "acknowledged_unflushed", self.acknowledged as f64);
        results.add(0, name, case, "kills", self.kills as f64);
        if self.snapshots_checked > 0 {
            results.add(0, name, case, "snapshots_checked", self.snapshots_checked as f64);
        }
        for example in self.examples.iter().take(5) {
            results.note(&format!("{name}, {case}: {example}"));
        }
    }
}

/// Writes every block once to fill the volume, and flushes, so that these writes do not count.
fn first_pass(contender: &mut dyn Contender, seed: u64) -> Result<Ledger> {
    let endpoint = contender.endpoint()?;
    let bytes = Client::connect(&endpoint, 1, BLOCK, false)?.size();
    let mut ledger = Ledger::new(seed, usize::try_from(bytes)? / BLOCK, BLOCK);
    let blocks = 0..ledger.blocks();
    let written = write_blocks(&endpoint, &mut ledger, blocks, DEPTH, &AtomicBool::new(false), &AtomicU64::new(0))?;
    ensure!(written.broken.is_none(), "the server went away: {:?}", written.broken);
    Client::connect(&endpoint, 1, BLOCK, false)?.call(Op::Flush, 0, 0)?;
    Ok(ledger)
}

/// Writes without flushes, kills the server in the middle, restarts it, and verifies all blocks.
fn round(contender: &mut dyn Contender, ledger: &mut Ledger, seed: u64, tally: &mut Tally) -> Result<()> {
    let endpoint = contender.endpoint()?;
    let order = Permutation::new(ledger.blocks() as u64, seed);
    let after = WRITES_PER_KILL + Rng::new(seed).below(WRITES_PER_KILL);
    let progress = AtomicU64::new(0);
    let never = AtomicBool::new(false);
    let total = ledger.blocks() as u64;
    let written = thread::scope(|scope| {
        let writer = {
            let (endpoint, progress, never, ledger) = (&endpoint, &progress, &never, &mut *ledger);
            scope.spawn(move || write_blocks(endpoint, ledger, (0..total).map(|i| order.at(i) as usize), DEPTH, never, progress))
        };
        while progress.load(Ordering::Relaxed) < after && !writer.is_finished() {
            thread::sleep(Duration::from_micros(50));
        }
        contender.kill9()?;
        writer.join().unwrap_or_else(|_| Err(anyhow!("the writer panicked")))
    })?;
    ensure!(written.broken.is_some(), "all {} writes were done before the kill; take a larger volume", written.acknowledged);
    tally.kills += 1;
    tally.acknowledged += written.acknowledged;
    contender.restart().context("restarting after the kill")?;
    let (versions, found) = audit(&contender.endpoint()?, ledger, |block, data| ledger.judge(block, data))?;
    tally.add(&found);
    settle(ledger, &versions);
    Ok(())
}

fn settle(ledger: &mut Ledger, versions: &[Option<u64>]) {
    for (block, version) in versions.iter().enumerate() {
        if let Some(version) = version {
            ledger.settle(block, *version);
        }
    }
}

/// Runs [`round`]. With `snapshot`, it follows a snapshot of unflushed writes, which is verified
/// after the kill and destroyed.
fn ours(millpond: &mut Millpond, ledger: &mut Ledger, seed: u64, snapshot: Option<&str>, tally: &mut Tally) -> Result<()> {
    tally.segments_cleaned += millpond.counters()?.segments_cleaned;
    let Some(name) = snapshot else { return round(millpond, ledger, seed, tally) };
    let endpoint = millpond.endpoint()?;
    let mut rng = Rng::new(seed ^ 0x5A5A);
    let order = Permutation::new(ledger.blocks() as u64, rng.next());
    let some = (0..500).map(|i| order.at(i) as usize);
    let written = write_blocks(&endpoint, ledger, some, DEPTH, &AtomicBool::new(false), &AtomicU64::new(0))?;
    ensure!(written.broken.is_none(), "the server went away: {:?}", written.broken);
    tally.acknowledged += written.acknowledged;
    millpond.snapshot(name)?;
    let (at_least, at_most) = ledger.bounds();
    round(millpond, ledger, seed, tally)?;
    let full = format!("{DISK}@{name}");
    let (frozen, id) = millpond.export_with_id(&full)?;
    let bound = |bounds: &[u64], block: usize| bounds.get(block).copied().unwrap_or(0);
    let judge = |block: usize, data: &[u8]| ledger.judge_between(block, data, bound(&at_least, block), bound(&at_most, block));
    tally.add(&audit(&frozen, ledger, judge)?.1);
    tally.snapshots_checked += 1;
    millpond.cli(&["unexport", &id, "--force"])?;
    millpond.cli(&["destroy", &full, "-y"]).map(|_| ())
}
