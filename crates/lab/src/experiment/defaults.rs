//! `defaults`: measures what a user gets without the lab's best settings: a sparse pool file
//! without configuration, beside a pool file that was fully written before.

use super::sample::measure_into;
use super::{OpenMillpond, Setup};
use crate::load::{Durability, LoadSpec, Mix, run, run_until};
use crate::peer::{Contender, Millpond};
use crate::report::{Goal, Results};
use anyhow::{Context, Result, anyhow};
use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const SIZE: u64 = 512 << 20;
const MIB: f64 = 1_048_576.0;
/// Size of the pool as a multiple of the volume: enough for ten snapshots of a volume that is
/// completely overwritten between them. As many bytes as the pool has are written before the
/// measurement.
const POOL: u64 = 16;
const LABELS: [&str; 2] = ["default", "written"];
const PAUSES: usize = 5;
const PAUSE: Duration = Duration::from_secs(3);
const SNAPSHOTS: u32 = 10;
/// Phases of the timeline: seconds at scale 1, and the minimum.
const PHASES: [(&str, f64, f64); 4] =
    [("load alone", 10.0, 3.0), ("ten snapshots come", 10.0, 3.0), ("ten snapshots held", 10.0, 3.0), ("after them", 10.0, 3.0)];

const FIRST: &str = "first pass a second after the creation, 1m write q4";
const SMALL: &str = "4k randwrite q32";
const LARGE: &str = "1m randwrite q4";
const RESTED: &str = "4k randwrite q32 after pauses of 3 s";
const RESTED_LARGE: &str = "1m randwrite q4 after pauses of 3 s";
const SYNC: &str = "4k write + flush q1";
const SYNC_MANY: &str = "4k write + flush q16";
/// Time between the creation of a pool and the first pass: the pool prepares its first segments.
const SETTLE: Duration = Duration::from_secs(1);
/// Idle times after which an automatically shrinking pool file is measured, in seconds: within ten
/// minutes, while space is retained for a rewind, and when that time is over.
const RESTS: [(&str, u64); 2] = [("after 9.5 minutes of rest", 570), ("after 12 minutes of rest", 720)];
/// Allowed excess of the file over the allocated bytes: a share, and MiB.
const KEPT: (f64, f64) = (0.05, 256.0);

pub fn run_defaults(setup: &Setup, results: &mut Results) -> Result<()> {
    let size = setup.size_or(SIZE);
    let names = setup.contenders(&["millpond", "qsd-raw"], results);
    setup.need(2 * POOL * size)?;
    for rep in 0..setup.reps {
        if names.iter().any(|name| name == "millpond") {
            for turn in 0..LABELS.len() {
                let Some(label) = LABELS.get((turn + rep) % LABELS.len()) else { continue };
                results.say(&format!("repetition {} of {}: {label}", rep + 1, setup.reps));
                let open = match *label {
                    "written" => setup.open_millpond_written(size, POOL * size)?,
                    _ => setup.open_millpond(size, POOL * size, &[])?,
                };
                one(setup, results, rep, label, open).with_context(|| (*label).to_owned())?;
            }
        }
        if names.iter().any(|name| name == "qsd-raw") {
            results.say(&format!("repetition {} of {}: qsd-raw", rep + 1, setup.reps));
            let open = setup.open("qsd-raw", size)?;
            run(&open.contender.endpoint()?, &LoadSpec::fill())?;
            flushes(setup, results, rep, "qsd-raw", open.contender.as_ref())?;
        }
    }
    goals(results);
    Ok(())
}

fn one(setup: &Setup, results: &mut Results, rep: usize, label: &str, open: OpenMillpond) -> Result<()> {
    let size = setup.size_or(SIZE);
    let (_workspace, mut millpond) = open.into_parts();
    let spec =
        |mix, block, depth, nth: u64| LoadSpec { secs: setup.secs, seed: setup.seed_of(rep) + nth, ..LoadSpec::random(mix, block, depth) };
    thread::sleep(SETTLE);
    measure_into(results, rep, FIRST, label, &millpond, &LoadSpec::fill())?;
    flushes(setup, results, rep, label, &millpond)?;
    // one pass over the size of the pool per request size, because freed space is reused most
    // recently freed first, and each request size needs space of its own
    for (block, depth) in [(1 << 20, 4), (4096, 32)] {
        let pass = LoadSpec {
            ops: POOL * size / 2 / block as u64,
            secs: 3600.0,
            ramp: 0.0,
            seed: setup.seed_of(rep),
            ..LoadSpec::random(Mix::Write, block, depth)
        };
        run(&millpond.endpoint()?, &pass)?;
    }
    run(&millpond.endpoint()?, &LoadSpec::scramble(setup.seed_of(rep)))?;
    for (case, block, depth) in [(SMALL, 4096, 32), (LARGE, 1 << 20, 4)] {
        measure_into(results, rep, case, label, &millpond, &spec(Mix::Write, block, depth, 1))?;
    }
    for (case, block, depth) in [(RESTED, 4096, 32), (RESTED_LARGE, 1 << 20, 4)] {
        let mut slowest = f64::INFINITY;
        for pause in 0..PAUSES {
            thread::sleep(PAUSE);
            let load = LoadSpec { ramp: 0.0, secs: setup.secs / 2.0, ..spec(Mix::Write, block, depth, 2 + pause as u64) };
            slowest = slowest.min(run(&millpond.endpoint()?, &load)?.iops);
        }
        results.add(rep, label, case, "slowest_iops", slowest);
    }
    timeline(setup, results, rep, label, &mut millpond)?;
    results.add(rep, label, "the pool's file at the end", "mib", file_mib(&millpond)?);
    // the idle time does not scale, and repetitions would give the same result
    if setup.scale >= 1.0 && rep + 1 == setup.reps && label == "default" {
        rest(results, rep, label, &millpond)?;
    }
    Ok(())
}

/// Measures the pool's file after each of the idle times, compared with the allocated bytes: those
/// in use and those retained for a rewind.
fn rest(results: &mut Results, rep: usize, label: &str, millpond: &Millpond) -> Result<()> {
    results.say("twelve minutes of rest");
    let begun = Instant::now();
    for (case, seconds) in RESTS {
        thread::sleep(Duration::from_secs(seconds).saturating_sub(begun.elapsed()));
        let pool = millpond.control()?.get(&format!("/v1/pools/{}", crate::peer::POOL))?;
        let bytes = |name: &str| pool.pointer(&format!("/space/{name}")).and_then(Value::as_f64).context("the pool's status has no space");
        let allocated = (bytes("in_use")? + bytes("resting")?) / MIB;
        let file = file_mib(millpond)?;
        results.add(rep, label, case, "file_mib", file);
        results.add(rep, label, case, "allocated_mib", allocated);
        results.add(rep, label, case, "beyond_what_is_kept_mib", file - allocated * (1.0 + KEPT.0) - KEPT.1);
    }
    Ok(())
}

fn file_mib(millpond: &Millpond) -> Result<f64> {
    let blocks = std::fs::metadata(millpond.device()).context("looking at the pool's file")?.blocks();
    Ok((blocks * 512) as f64 / MIB)
}

/// Measures writes that are each followed by a flush, on sequentially written data.
fn flushes(setup: &Setup, results: &mut Results, rep: usize, label: &str, contender: &dyn Contender) -> Result<()> {
    for (case, depth) in [(SYNC, 1), (SYNC_MANY, 16)] {
        let spec = LoadSpec {
            durability: Durability::Flush,
            secs: setup.secs,
            seed: setup.seed_of(rep),
            ..LoadSpec::random(Mix::Write, 4096, depth)
        };
        measure_into(results, rep, case, label, contender, &spec)?;
    }
    Ok(())
}

/// Runs a load while ten snapshots are taken, held and destroyed.
fn timeline(setup: &Setup, results: &mut Results, rep: usize, label: &str, contender: &mut dyn Contender) -> Result<()> {
    let endpoint = contender.endpoint()?;
    let spec = LoadSpec {
        secs: 86_400.0,
        jobs: 2,
        series_ms: 1000,
        ramp: 1.0,
        seed: setup.seed_of(rep),
        ..LoadSpec::random(Mix::Both(50), 8192, 16)
    };
    let lengths = PHASES.map(|(_, usual, least)| (usual * setup.scale).max(least));
    let stop = AtomicBool::new(false);
    let load = thread::scope(|scope| {
        let load = scope.spawn(|| run_until(&endpoint, &spec, &stop));
        thread::sleep(Duration::from_secs_f64(spec.ramp));
        let done = phases(contender, lengths);
        stop.store(true, Ordering::Relaxed);
        let load = load.join().unwrap_or_else(|_| Err(anyhow!("the load panicked")))?;
        done.map(|()| load)
    })?;
    anyhow::ensure!(load.errors == 0, "{} requests were refused", load.errors);
    let mut begin = 0.0;
    let mut alone = f64::NAN;
    for ((text, ..), length) in PHASES.into_iter().zip(lengths) {
        // only seconds that lie completely in the phase
        let seconds = f64::ceil(begin) as usize..((begin + length).floor() as usize).min(load.series.len());
        let points: Vec<f64> = load.series.get(seconds).unwrap_or_default().iter().map(|point| point.ops as f64).collect();
        let mean = points.iter().sum::<f64>() / points.len().max(1) as f64;
        if begin == 0.0 {
            alone = mean;
        }
        results.add(rep, label, text, "iops", mean);
        results.add(rep, label, text, "of_alone", mean / alone);
        results.add(rep, label, text, "worst_second_of_alone", points.iter().copied().fold(f64::INFINITY, f64::min) / alone);
        begin += length;
    }
    Ok(())
}

fn phases(contender: &mut dyn Contender, lengths: [f64; 4]) -> Result<()> {
    for ((text, ..), length) in PHASES.into_iter().zip(lengths) {
        let whole = Duration::from_secs_f64(length);
        match text {
            "ten snapshots come" => {
                for n in 0..SNAPSHOTS {
                    contender.snapshot(&format!("t{n}"))?;
                    thread::sleep(whole / SNAPSHOTS);
                }
                continue;
            }
            "after them" => contender.delete_snapshots()?,
            _ => {}
        }
        thread::sleep(whole);
    }
    Ok(())
}

fn goals(results: &mut Results) {
    let [ours, best] = LABELS;
    results.goal(FIRST, "iops", ours, Goal::times_of(best, 0.8));
    for case in [SMALL, LARGE] {
        results.goal(case, "iops", ours, Goal::times_of(best, 0.95));
    }
    for case in [RESTED, RESTED_LARGE] {
        results.goal(case, "slowest_iops", ours, Goal::times_of(best, 0.95));
    }
    for (phase, ..) in PHASES.into_iter().skip(1) {
        results.goal(phase, "of_alone", ours, Goal::AtLeast(0.95));
        results.goal(phase, "worst_second_of_alone", ours, Goal::AtLeast(0.85));
    }
    for (case, _) in RESTS {
        if !results.values(case, "file_mib", ours).is_empty() {
            results.goal(case, "beyond_what_is_kept_mib", ours, Goal::AtMost(0.0));
        }
    }
    if !results.values(SYNC, "iops", "qsd-raw").is_empty() {
        results.goal(SYNC, "iops", ours, Goal::times_of("qsd-raw", 0.95));
        results.goal(SYNC_MANY, "iops", ours, Goal::times_of("qsd-raw", 1.5));
    }
}
