//! `snap-under-load`: measures the latency of snapshots, deletions, rollbacks and clones, and their
//! effect on a guest's speed.

use super::Setup;
use super::aging::Writer;
use crate::load::{Latency, LoadResult, LoadSpec, Mix, precondition, run, run_until};
use crate::peer::{Contender, Control, DISK, POOL};
use crate::report::{Goal, Results};
use anyhow::{Context, Result, anyhow};
use serde_json::{Value, json};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

const SIZE: u64 = 512 << 20;
const ROOM: u64 = 13 << 30; // for what 100 snapshots keep
const HUGE: u64 = 10 << 40;
const SNAPSHOTS: u64 = 100;
const UNDER_LOAD: &str = "100 snapshots under load";
const FIRST_WRITES: u64 = 16_384; // copies every leaf of the usual volume many times over

pub fn run_under_load(setup: &Setup, results: &mut Results) -> Result<()> {
    if !setup.contenders(&["millpond"], results).is_empty() {
        for rep in 0..setup.reps {
            results.say(&format!("repetition {} of {}", rep + 1, setup.reps));
            let open = setup.open_millpond_written(setup.size_or(SIZE), ROOM)?;
            let millpond = &open.millpond;
            precondition(&millpond.endpoint()?)?;
            let mut control = millpond.control()?;
            let before = millpond.counters()?;
            take_and_delete(setup, rep, &millpond.endpoint()?, &mut control, results)?;
            let (longest, long) = millpond.counters()?.turns_since(&before);
            results.add(rep, "millpond", UNDER_LOAD, "longest_turn_us", longest);
            results.add(rep, "millpond", UNDER_LOAD, "turns_of_1_ms", long);
            back_and_forth(rep, "rollback and clone", DISK, &mut control, results, || {
                Writer::new(&millpond.endpoint()?, rep as u64)?.write(256)
            })?;
            let huge = format!("{POOL}/huge");
            control.post("/v1/volumes", &json!({"name": huge, "size": HUGE})).context("making the 10 TiB volume")?;
            let endpoint = millpond.export(&huge)?;
            back_and_forth(rep, "rollback and clone, 10 TiB", &huge, &mut control, results, || {
                Writer::new(&endpoint, rep as u64)?.write(256)
            })?;
        }
        results.goal(UNDER_LOAD, "create_p99_us", "millpond", Goal::AtMost(5000.0));
        results.goal(UNDER_LOAD, "worst_second_to_mean", "millpond", Goal::AtLeast(0.9));
        for case in ["rollback and clone", "rollback and clone, 10 TiB"] {
            results.goal(case, "rollback_max_us", "millpond", Goal::AtMost(10_000.0));
            results.goal(case, "clone_max_us", "millpond", Goal::AtMost(10_000.0));
        }
    }
    first_writes(setup, results)
}

fn timed(control: &mut Control, path: &str, body: &Value) -> Result<f64> {
    let begin = Instant::now();
    control.post(path, body)?;
    Ok(begin.elapsed().as_secs_f64() * 1e6)
}

/// Returns the ratio of the worst second's operations to the mean second's.
fn worst_to_mean(load: &LoadResult) -> Result<f64> {
    let seconds: Vec<f64> = load.series.iter().map(|p| p.ops as f64).collect();
    let mean = seconds.iter().sum::<f64>() / seconds.len().max(1) as f64;
    let worst = seconds.iter().copied().reduce(f64::min).context("the load was shorter than a second")?;
    Ok(worst / mean)
}

/// Runs a steady load for some seconds; 100 snapshots are taken in the first half and deleted in
/// the second. Before that, the same load runs without snapshots, with as many requests to the
/// daemon that change nothing, to show the noise of the machine.
fn take_and_delete(
    setup: &Setup,
    rep: usize,
    endpoint: &crate::load::Endpoint,
    control: &mut Control,
    results: &mut Results,
) -> Result<()> {
    let secs = (12.0 * setup.scale).max(4.0);
    let pace = Duration::from_secs_f64(secs / 2.0 / SNAPSHOTS as f64 * 0.9);
    let spec = LoadSpec { secs, jobs: 2, series_ms: 1000, seed: setup.seed_of(rep), ..LoadSpec::random(Mix::Both(50), 8192, 16) };
    let never = AtomicBool::new(false);
    let mut idle = Vec::new();
    let alone: LoadResult = thread::scope(|scope| {
        let load = scope.spawn(|| run_until(endpoint, &spec, &never));
        thread::sleep(Duration::from_secs_f64(spec.ramp));
        for _ in 0..2 * SNAPSHOTS {
            let begin = Instant::now();
            control.get("/v1/exports")?;
            idle.push(begin.elapsed().as_secs_f64() * 1e6);
            thread::sleep(pace);
        }
        load.join().unwrap_or_else(|_| Err(anyhow!("the load panicked")))
    })?;
    let (mut create, mut delete) = (Vec::new(), Vec::new());
    let load: LoadResult = thread::scope(|scope| {
        let load = scope.spawn(|| run_until(endpoint, &spec, &never));
        thread::sleep(Duration::from_secs_f64(spec.ramp));
        for n in 0..SNAPSHOTS {
            create.push(timed(control, "/v1/snapshots", &json!({"names": [format!("{DISK}@load{n}")]}))?);
            thread::sleep(pace);
        }
        for n in 0..SNAPSHOTS {
            delete.push(timed(control, "/v1/destroy", &json!({"name": format!("{DISK}@load{n}")}))?);
            thread::sleep(pace);
        }
        load.join().unwrap_or_else(|_| Err(anyhow!("the load panicked")))
    })?;
    let case = UNDER_LOAD;
    let (create, delete) = (Latency::of_samples(&create), Latency::of_samples(&delete));
    let idle = Latency::of_samples(&idle);
    results.add(rep, "millpond", case, "worst_second_to_mean", worst_to_mean(&load)?);
    results.add(rep, "millpond", case, "worst_second_without", worst_to_mean(&alone)?);
    results.add(rep, "millpond", case, "iops", load.iops);
    results.add(rep, "millpond", case, "iops_without", alone.iops);
    results.add(rep, "millpond", case, "list_p99_us", idle.p99_us);
    results.add(rep, "millpond", case, "create_p50_us", create.p50_us);
    results.add(rep, "millpond", case, "create_p99_us", create.p99_us);
    results.add(rep, "millpond", case, "delete_p99_us", delete.p99_us);
    results.add(rep, "millpond", case, "guest_max_us", load.read.max_us.max(load.write.max_us));
    Ok(())
}

/// Measures rollbacks and clones of a volume, with writes between them.
fn back_and_forth(
    rep: usize,
    case: &str,
    volume: &str,
    control: &mut Control,
    results: &mut Results,
    mut write: impl FnMut() -> Result<()>,
) -> Result<()> {
    let (mut rollback, mut clone) = (Vec::new(), Vec::new());
    for n in 0..10 {
        write()?;
        control.post("/v1/snapshots", &json!({"names": [format!("{volume}@back{n}")]}))?;
        write()?;
        let base = format!("/v1/snapshots/{volume}/back{n}");
        rollback.push(timed(control, &format!("{base}/rollback"), &json!({}))?);
        let name = format!("{volume}-clone{n}");
        clone.push(timed(control, &format!("{base}/clone"), &json!({"name": name}))?);
        control.post("/v1/destroy", &json!({"name": name}))?;
    }
    let (rollback, clone) = (Latency::of_samples(&rollback), Latency::of_samples(&clone));
    results.add(rep, "millpond", case, "rollback_p50_us", rollback.p50_us);
    results.add(rep, "millpond", case, "rollback_max_us", rollback.max_us);
    results.add(rep, "millpond", case, "clone_p50_us", clone.p50_us);
    results.add(rep, "millpond", case, "clone_max_us", clone.max_us);
    Ok(())
}

/// Compares the first writes after a snapshot with writes after all blocks were overwritten again.
fn first_writes(setup: &Setup, results: &mut Results) -> Result<()> {
    let names = setup.contenders(&["millpond", "millpond-tuned", "qsd-qcow2", "qsd-chain"], results);
    let case = "first writes after a snapshot";
    for rep in 0..setup.reps {
        for turn in 0..names.len() {
            let Some(name) = names.get((turn + rep) % names.len()) else { continue };
            let mut open = setup.open(name, setup.size_or(SIZE))?;
            let endpoint = open.contender.endpoint()?;
            precondition(&endpoint)?;
            let burst = |seed| LoadSpec { ops: FIRST_WRITES, secs: 600.0, ramp: 0.0, seed, ..LoadSpec::random(Mix::Write, 4096, 32) };
            run(&endpoint, &LoadSpec::scramble(setup.seed_of(rep)))?;
            let (mut fresh, mut steady) = (0.0, 0.0);
            const SNAPS: usize = 3;
            for n in 0..SNAPS {
                run(&endpoint, &LoadSpec::scramble(setup.seed_of(rep) + n as u64))?;
                steady += run(&endpoint, &burst(n as u64))?.iops / SNAPS as f64;
                open.contender.snapshot(&format!("first{n}"))?;
                fresh += run(&endpoint, &burst(n as u64 + 100))?.iops / SNAPS as f64;
            }
            results.add(rep, name, case, "fresh_to_steady", fresh / steady);
            results.add(rep, name, case, "fresh_iops", fresh);
            results.add(rep, name, case, "steady_iops", steady);
        }
    }
    results.goal(case, "fresh_to_steady", "millpond", Goal::AtLeast(0.9));
    Ok(())
}
