//! `flat`: compares speed and work per request with 0, 1,000 and 10,000 snapshots, and measures
//! reads of data older than 100 snapshots.

use super::Setup;
use super::aging::Aging;
use super::sample::measure_into;
use crate::load::{LoadSpec, Mix, run};
use crate::peer::{Contender, Control, Counters, DISK, Millpond};
use crate::report::{Goal, Results};
use anyhow::{Context, Result};
use serde_json::json;

const SIZE: u64 = 128 << 20;
const LEVELS: [u64; 3] = [0, 1000, 10_000];
const REWRITES: u64 = 10; // times the whole volume, over all rounds
const COUNTED: u64 = 20_000;
/// Share of a request's device operations that background work may add.
const BACKGROUND: f64 = 0.01;

pub fn run_flat(setup: &Setup, results: &mut Results) -> Result<()> {
    if !setup.contenders(&["millpond"], results).is_empty() {
        by_count(setup, results)?;
    }
    old_data(setup, results)
}

/// Takes the n-th snapshot of Millpond's disk over an open connection.
fn snapshot_by(control: &mut Control, n: u64) -> Result<()> {
    control.post("/v1/snapshots", &json!({"names": [format!("{DISK}@s{n}")]})).map(|_| ())
}

fn by_count(setup: &Setup, results: &mut Results) -> Result<()> {
    let size = setup.size_or(SIZE);
    let rounds = setup.scaled(10_000, 100);
    let blocks = (REWRITES * size / 4096).div_ceil(rounds);
    results.note(&format!(
        "the volume of {} MiB is rewritten at random {REWRITES} times in all before it is measured, {blocks} blocks of 4 KiB in each of \
         {rounds} rounds: with as many snapshots, that much lies between two of them",
        size >> 20
    ));
    let mut states = Vec::new();
    for level in LEVELS {
        let snapshots = setup.scaled(level, 0).min(rounds);
        results.say(&format!("ageing a volume with {snapshots} snapshots"));
        let room = 3 * size + rounds * blocks * 4096 * 9 / 4 + (2 << 30);
        let mut open = setup.open_millpond(size, room, &[])?;
        let mut control = open.millpond.control()?;
        let aging = Aging { rounds, blocks, snapshots, seed: setup.seed };
        aging.apply(&mut open.millpond, |_, n| snapshot_by(&mut control, n))?;
        // all heads get the same data, and each leaf is rewritten after the last snapshot
        run(&open.millpond.endpoint()?, &LoadSpec::scramble(setup.seed + 1))?;
        states.push((format!("{snapshots} snapshots"), open));
    }
    for rep in 0..setup.reps {
        for turn in 0..states.len() {
            let Some((label, open)) = states.get((turn + rep) % states.len()) else { continue };
            results.say(&format!("repetition {} of {}: {label}", rep + 1, setup.reps));
            for (case, mix) in [("4k randread q32", Mix::Read), ("4k randwrite q32", Mix::Write)] {
                let spec = LoadSpec { secs: setup.secs, seed: setup.seed_of(rep), ..LoadSpec::random(mix, 4096, 32) };
                measure_into(results, rep, case, label, &open.millpond, &spec)?;
            }
            work_per_request(&open.millpond, setup.seed_of(rep), rep, label, results)?;
        }
    }
    let base = states.first().map(|s| s.0.clone()).context("no states")?;
    for (label, _) in states.iter().skip(1) {
        for case in ["4k randread q32", "4k randwrite q32"] {
            results.goal(case, "iops", label, Goal::times_of(&base, 0.97));
        }
        results.goal("work per read", "nodes", label, Goal::EqualTo(base.clone(), 0.0));
        // checkpoints and the cleaner read and write too, at times that differ
        results.goal("work per read", "device_reads", label, Goal::EqualTo(base.clone(), BACKGROUND));
        results.goal("work per write", "nodes", label, Goal::EqualTo(base.clone(), 0.0));
        results.goal("work per write", "device_writes", label, Goal::EqualTo(base.clone(), BACKGROUND));
    }
    Ok(())
}

/// Measures with one request at a time, so that each is a batch of its own and the counters are
/// exact.
fn work_per_request(millpond: &Millpond, seed: u64, rep: usize, label: &str, results: &mut Results) -> Result<()> {
    for (case, mix) in [("work per read", Mix::Read), ("work per write", Mix::Write)] {
        let before = millpond.counters()?;
        let spec = LoadSpec { ops: COUNTED, secs: 60.0, ramp: 0.0, seed, ..LoadSpec::random(mix, 4096, 1) };
        run(&millpond.endpoint()?, &spec)?;
        let after = millpond.counters()?;
        let requests = (after.guest_reads - before.guest_reads + after.guest_writes - before.guest_writes).max(1.0);
        let per = |counter: fn(&Counters) -> f64| (counter(&after) - counter(&before)) / requests;
        results.add(rep, label, case, "nodes", per(|c| c.nodes_touched));
        results.add(rep, label, case, "device_reads", per(|c| c.device_reads));
        results.add(rep, label, case, "device_writes", per(|c| c.device_writes));
    }
    Ok(())
}

/// Reads data that was written before 100 snapshots, on Millpond and on a qcow2 chain.
fn old_data(setup: &Setup, results: &mut Results) -> Result<()> {
    let names = setup.contenders(&["millpond", "qsd-chain"], results);
    let size = setup.size_or(4 * SIZE);
    let rounds = setup.scaled(100, 4);
    let mut states = Vec::new();
    for name in &names {
        for snapshots in [0, rounds] {
            results.say(&format!("ageing {name} with {snapshots} snapshots"));
            let mut open = setup.open(name, size)?;
            let aging = Aging { rounds, blocks: 1024, snapshots, seed: setup.seed };
            aging.apply(open.contender.as_mut(), |contender, n| contender.snapshot(&format!("s{n}")))?;
            states.push((format!("{name}, {snapshots} snapshots"), open));
        }
    }
    for rep in 0..setup.reps {
        for turn in 0..states.len() {
            let Some((label, open)) = states.get((turn + rep) % states.len()) else { continue };
            results.say(&format!("repetition {} of {}: {label}", rep + 1, setup.reps));
            for (case, block, depth) in [("old data, 4k randread q32", 4096, 32), ("old data, 1m randread q4", 1 << 20, 4)] {
                let spec = LoadSpec { secs: setup.secs, seed: setup.seed_of(rep), ..LoadSpec::random(Mix::Read, block, depth) };
                measure_into(results, rep, case, label, open.contender.as_ref(), &spec)?;
            }
        }
    }
    for name in &names {
        for case in ["old data, 4k randread q32", "old data, 1m randread q4"] {
            let (with, without) = (format!("{name}, {rounds} snapshots"), format!("{name}, 0 snapshots"));
            if name == "millpond" {
                results.goal(case, "iops", &with, Goal::times_of(&without, 0.97));
            } else {
                let ratio = crate::report::median(&results.ratios(case, "iops", &with, &without)).unwrap_or(f64::NAN);
                results.note(&format!("{case}: {name} falls to {ratio:.3} of its own speed under {rounds} snapshots"));
            }
        }
    }
    Ok(())
}
