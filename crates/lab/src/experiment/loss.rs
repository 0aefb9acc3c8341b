//! `loss`: counts lost writes, separately for those acknowledged before the last flush and after
//! it, when the client disconnects, the server is killed, or the power is cut: for every cache
//! mode, every layout, and peers.
//!
//! Disks have a volatile write cache ([`VolatileDisk`]), of which a power cut loses everything.
//! That is the largest loss of unflushed data, but one of many possible ones: the simulator keeps
//! any part of the cache, in any order (`docs/simulator.md`).

mod harness;
mod table;

use super::Setup;
use crate::load::{Audit, Client, Ledger, Op, Permutation, audit, write_blocks, write_over};
use crate::peer::{CacheMode, VolatileDisk};
use crate::report::{Claim, Goal, Results};
use anyhow::{Context, Result, anyhow, ensure};
use harness::Harness;
use rustix::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use table::Row;

/// Size of the disk, a third for each event. No block is written twice, so that every write needs a
/// new allocation, which a server may lose, too.
const SIZE: u64 = 32 << 20;
const BLOCK: usize = 4096;
const DEPTH: usize = 16;
/// Writes before the flush, and minimum after it; as in the article on cache modes.
const WRITES: u64 = 1000;
const LEAST_WRITES: u64 = 200;
/// Scale below which only two layouts are measured.
const ALL_LAYOUTS_FROM: f64 = 0.1;

/// Event that interrupts the writes: loss of the client, the server or the power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Client,
    Server,
    Power,
}

impl Event {
    const ALL: [Event; 3] = [Event::Client, Event::Server, Event::Power];

    fn name(self) -> &'static str {
        match self {
            Event::Client => "client",
            Event::Server => "server",
            Event::Power => "power",
        }
    }
}

/// Counts of acknowledged writes and their losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    /// Blocks whose newest write was acknowledged before the last flush began, and those of them
    /// with older data.
    flushed: u64,
    lost_flushed: u64,
    /// Writes acknowledged after this, and those of them that were lost.
    unflushed: u64,
    lost_unflushed: u64,
    /// Blocks with data that was never written to them.
    wrong: u64,
}

pub fn run_loss(setup: &Setup, results: &mut Results) -> Result<()> {
    if let Err(reason) = VolatileDisk::possible() {
        results.leave_out(&format!("{reason:#}"));
        return Ok(());
    }
    let names = setup.contenders(&["millpond", "qemu-nbd-raw", "qemu-nbd-overlay"], results);
    let writes = setup.scaled(WRITES, LEAST_WRITES).min(WRITES);
    let layouts = if setup.scale < ALL_LAYOUTS_FROM { &harness::LAYOUTS[..2] } else { &harness::LAYOUTS };
    results.note("disks have a volatile write cache (nbdkit's, through nbdfuse) that is lost as a whole when the power is cut");
    let mut rows: Vec<Row> = Vec::new();
    for rep in 0..setup.reps {
        for name in &names {
            let kinds: Vec<Option<&harness::Layout>> = if name == "millpond" { layouts.iter().map(Some).collect() } else { vec![None] };
            for layout in kinds {
                let whose = layout.map_or_else(|| name.clone(), |layout| format!("{name} {}", layout.name));
                for mode in CacheMode::ALL {
                    results.say(&format!("repetition {} of {}: {whose}, {}", rep + 1, setup.reps, mode.name()));
                    let counts = one(setup, name, layout, mode, setup.seed_of(rep), writes);
                    let counts = counts.with_context(|| format!("{whose}, {}", mode.name()))?;
                    let place = rows.iter().position(|row| row.whose == whose && row.mode == mode);
                    let place = place.unwrap_or_else(|| {
                        rows.push(Row { whose: whose.clone(), mode, counts: Default::default() });
                        rows.len() - 1
                    });
                    for ((event, count), sum) in Event::ALL.iter().zip(counts).zip(&mut rows[place].counts) {
                        note(results, rep, &format!("{whose}, {}", mode.name()), *event, &count);
                        sum.add(&count);
                    }
                }
            }
        }
    }
    results.keep("table.md", &table::table(&rows))?;
    results.matrices = table::matrices(&rows);
    goals(results, &rows);
    claims(results);
    Ok(())
}

/// Takes one server on fresh disks through all three events.
fn one(setup: &Setup, name: &str, layout: Option<&harness::Layout>, mode: CacheMode, seed: u64, writes: u64) -> Result<Vec<Count>> {
    let mut harness = Harness::start(setup, name, layout, mode, SIZE)?;
    let mut ledger = Ledger::new(seed, SIZE as usize / BLOCK, BLOCK);
    let order = Permutation::new(ledger.blocks() as u64, seed);
    let share = ledger.blocks() as u64 / Event::ALL.len() as u64;
    let rounds = Event::ALL.iter().zip(0..);
    rounds
        .map(|(event, nth)| {
            let blocks: Vec<usize> = (nth * share..(nth + 1) * share).map(|at| order.at(at) as usize).collect();
            round(&mut harness, &mut ledger, *event, &blocks, writes as usize).context(event.name())
        })
        .collect()
}

/// Writes, flushes, writes again and triggers the event during these writes; then verifies all
/// blocks.
fn round(harness: &mut Harness, ledger: &mut Ledger, event: Event, blocks: &[usize], writes: usize) -> Result<Count> {
    let endpoint = harness.server().endpoint()?;
    let (before, after) = blocks.split_at(writes);
    let never = AtomicBool::new(false);
    let written = write_blocks(&endpoint, ledger, before.iter().copied(), DEPTH, &never, &AtomicU64::new(0))?;
    ensure!(written.broken.is_none(), "the server went away: {:?}", written.broken);
    Client::connect(&endpoint, 1, BLOCK, false)?.call(Op::Flush, 0, 0)?;
    let (flushed, _) = ledger.bounds();

    let client = Client::connect(&endpoint, DEPTH, BLOCK, false)?;
    let socket = client.socket().context("the client's socket")?;
    let progress = AtomicU64::new(0);
    let written = thread::scope(|scope| {
        let writer = {
            let (progress, never, ledger) = (&progress, &never, &mut *ledger);
            scope.spawn(move || write_over(client, ledger, after.iter().copied(), DEPTH, never, progress))
        };
        while progress.load(Ordering::Relaxed) < writes as u64 && !writer.is_finished() {
            thread::sleep(Duration::from_micros(50));
        }
        match event {
            Event::Client => rustix::net::shutdown(&socket, Shutdown::Both).context("ending the client")?,
            Event::Server => harness.server().kill9()?,
            Event::Power => harness.power_off()?,
        }
        writer.join().unwrap_or_else(|_| Err(anyhow!("the writer panicked")))
    })?;
    match event {
        Event::Client => {}
        Event::Server => harness.server().restart()?,
        Event::Power => harness.power_on()?,
    }
    let endpoint = harness.server().endpoint()?;
    let (versions, found) = audit(&endpoint, ledger, |block, data| ledger.judge(block, data))?;
    let count = judge(&flushed, written.acknowledged, &versions, &found);
    for (block, version) in versions.iter().enumerate() {
        ledger.settle(block, version.unwrap_or(0));
    }
    Ok(count)
}

/// Separates losses of flushed writes from losses of unflushed ones.
fn judge(flushed: &[u64], unflushed: u64, versions: &[Option<u64>], found: &Audit) -> Count {
    let older = flushed.iter().zip(versions).filter(|(flushed, found)| found.is_some_and(|found| found < **flushed)).count() as u64;
    let acknowledged = flushed.iter().filter(|version| **version > 0).count() as u64;
    Count { flushed: acknowledged, lost_flushed: older, unflushed, lost_unflushed: found.lost - older, wrong: found.wrong }
}

fn note(results: &mut Results, rep: usize, whose: &str, event: Event, count: &Count) {
    let metrics = [
        ("lost_flushed", count.lost_flushed),
        ("flushed", count.flushed),
        ("lost_unflushed", count.lost_unflushed),
        ("unflushed", count.unflushed),
        ("wrong_blocks", count.wrong),
    ];
    for (metric, value) in metrics {
        results.add(rep, whose, event.name(), metric, value as f64);
    }
}

/// Sets goals for Millpond by its promises, and goals that the power cut took data which nothing
/// promised: else no power was cut. Peers have none.
fn goals(results: &mut Results, rows: &[Row]) {
    for row in rows.iter().filter(|row| row.whose.starts_with("millpond")) {
        let whose = format!("{}, {}", row.whose, row.mode.name());
        for event in Event::ALL {
            let every_write = matches!(row.mode, CacheMode::Directsync | CacheMode::Writethrough);
            let promises = [
                ("lost_flushed", event != Event::Power || row.mode != CacheMode::Unsafe),
                ("lost_unflushed", event != Event::Power || every_write),
                ("wrong_blocks", true),
            ];
            for (metric, _) in promises.into_iter().filter(|(_, promised)| *promised) {
                results.promise(event.name(), metric, &whose, Goal::NeverAbove(0.0));
            }
        }
        let taken: &[&str] = match row.mode {
            CacheMode::None | CacheMode::Writeback => &["lost_unflushed"],
            CacheMode::Unsafe => &["lost_unflushed", "lost_flushed"],
            CacheMode::Directsync | CacheMode::Writethrough => &[],
        };
        for metric in taken {
            results.promise(Event::Power.name(), metric, &whose, Goal::NeverBelow(1.0));
        }
    }
}

/// Compares with the article's table of the modes: writes that a power cut may take.
fn claims(results: &mut Results) {
    const PEER: &str = "qemu-nbd-raw";
    for (mode, unflushed, flushed) in [
        (CacheMode::None, true, false),
        (CacheMode::Directsync, false, false),
        (CacheMode::Writethrough, false, false),
        (CacheMode::Writeback, true, false),
        (CacheMode::Unsafe, true, true),
    ] {
        for (metric, words, loses) in [("lost_unflushed", "writes without a flush", unflushed), ("lost_flushed", "flushed writes", flushed)]
        {
            let lost = |whose: &str| {
                let values = results.values(Event::Power.name(), metric, &format!("{whose}, {}", mode.name()));
                (!values.is_empty()).then(|| f64::from(values.iter().sum::<f64>() > 0.0))
            };
            let says = format!("{}: a power cut takes {words} (1 = yes)", mode.name());
            let (theirs, ours) = (lost(PEER), lost("millpond linear"));
            let why = if theirs.is_none() { results.why(PEER, "it was not asked to run") } else { String::new() };
            results.claim(Claim::new("E-modes", &says, f64::from(loses), "").by(PEER, theirs, 1.0).ours(ours).because(&why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_told_apart() {
        // flushed versions; the second and third block were written again afterwards, the fourth
        // has data that was never written
        let found = Audit { lost: 3, wrong: 1, ..Audit::default() };
        let count = judge(&[2, 2, 2, 2, 0], 3, &[Some(1), Some(2), Some(1), None, Some(0)], &found);
        assert_eq!(count, Count { flushed: 4, lost_flushed: 2, unflushed: 3, lost_unflushed: 1, wrong: 1 });
    }
}
