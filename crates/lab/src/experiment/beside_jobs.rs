//! `beside-jobs`: latencies of a guest while the pool is scrubbed, while a device is replaced, and
//! while one is removed, relative to those before and after.
//!
//! A job only has to run during a load, not to end. Its rate is a figure with a goal of its own:
//! guests notice nothing of a job that stands still.

mod job;
mod plan;

use self::job::{Job, Pool, Progress};
use self::plan::{JOB_RATE, Plan, SETTLE};
use super::Setup;
use crate::load::{Endpoint, LoadResult, LoadSpec, Mix, run, run_until};
use crate::peer::{Contender, Control, DISK, Millpond, POOL, millpond_binary};
use crate::process::Workspace;
use crate::report::{Goal, Results};
use anyhow::{Context, Result, anyhow, ensure};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// A shorter load beside a job says nothing about a percentile.
const LEAST_SECS: f64 = 1.0;
/// Seconds of load before a job starts.
const WARM_SECS: f64 = 0.2;
/// Limit of the load during which a job starts; it ends when the job has started.
const LONGEST_START_SECS: f64 = 60.0;
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);
/// Most of the idle p99 that a guest may see beside a job.
const MOST_OF_IDLE: f64 = 1.5;
/// Least rate of a job beside guests in MB/s: half of its limit.
const LEAST_JOB_MB_S: f64 = JOB_RATE as f64 / 2.0 / 1e6;
const LOADS: [(&str, Mix, usize); 3] =
    [("4k randread q1", Mix::Read, 1), ("4k randwrite q1", Mix::Write, 1), ("4k 50/50 q8", Mix::Both(50), 8)];

pub fn run_beside_jobs(setup: &Setup, results: &mut Results) -> Result<()> {
    if setup.contenders(&["millpond"], results).is_empty() {
        return Ok(());
    }
    let plan = Plan::of(setup);
    results.say(&format!("a repetition takes at most {:.0} s", plan.longest().as_secs_f64()));
    let mut shortest = f64::MAX;
    for rep in 0..setup.long_reps {
        results.say(&format!("repetition {} of {}", rep + 1, setup.long_reps));
        shortest = shortest.min(one(setup, plan, results, rep)?);
    }
    let is_long = shortest >= LEAST_SECS;
    for job in Job::ALL {
        for (load, ..) in LOADS {
            let case = case_of(job, load);
            results.goal_where(is_long, &case, "p99_to_idle", "millpond", Goal::AtMost(MOST_OF_IDLE));
            results.goal_where(is_long, &case, "job_mb_s", "millpond", Goal::AtLeast(LEAST_JOB_MB_S));
        }
    }
    Ok(())
}

fn case_of(job: Job, load: &str) -> String {
    format!("{load}, {}", job.name())
}

/// Returns the seconds of the shortest load beside a job.
fn one(setup: &Setup, plan: Plan, results: &mut Results, rep: usize) -> Result<f64> {
    setup.need(plan.all_devices_bytes())?;
    let workspace = Workspace::new(&setup.dir, "beside-jobs")?;
    let mut millpond = Millpond::new(millpond_binary()?);
    millpond.start_empty(workspace.path())?;
    let shortest = measure(setup, Pool::create(&millpond, workspace.path(), plan)?, plan, results, rep)?;
    millpond.stop()?;
    Ok(shortest)
}

fn measure(setup: &Setup, mut pool: Pool<'_>, plan: Plan, results: &mut Results, rep: usize) -> Result<f64> {
    // jobs begin with the oldest data, which no load touches
    for (volume, size) in [(format!("{POOL}/still"), plan.still), (DISK.to_owned(), plan.disk)] {
        pool.millpond.cli(&["create", &volume, "-L", &size.to_string()])?;
        run(&pool.millpond.export(&volume)?, &LoadSpec::fill()).context("filling")?;
    }
    let endpoint = pool.millpond.endpoint()?;
    let mut shortest = f64::MAX;
    for (name, mix, depth) in LOADS {
        let load = LoadSpec { secs: plan.secs, ramp: plan.ramp, seed: setup.seed_of(rep), ..LoadSpec::random(mix, 4096, depth) };
        let mut before = idle(&endpoint, &load)?;
        for job in Job::ALL {
            pool.time_left()?;
            let (busy, rate) = beside(&endpoint, &load, &mut pool, job).with_context(|| case_of(job, name))?;
            pool.end(job)?;
            let after = idle(&endpoint, &load)?;
            shortest = shortest.min(busy.secs);
            let mean = |of: fn(&LoadResult) -> f64| (of(&before) + of(&after)) / 2.0;
            for (metric, value) in [
                ("p99_us", p99(&busy)),
                ("p99_to_idle", p99(&busy) / mean(p99)),
                ("iops_to_idle", busy.iops / mean(|load| load.iops)),
                ("job_mb_s", rate / 1e6),
                ("seconds", busy.secs),
            ] {
                results.add(rep, "millpond", &case_of(job, name), metric, value);
            }
            before = after;
        }
    }
    Ok(shortest)
}

fn idle(endpoint: &Endpoint, load: &LoadSpec) -> Result<LoadResult> {
    let result = run(endpoint, load)?;
    ensure!(result.errors == 0, "{} requests were refused", result.errors);
    Ok(result)
}

/// Starts a job beside a load, then runs the measured load, which ends early if the job has no work
/// left. Returns its result, and the rate of the job in bytes per second. The job still runs.
fn beside(endpoint: &Endpoint, load: &LoadSpec, pool: &mut Pool<'_>, job: Job) -> Result<(LoadResult, f64)> {
    let first = LoadSpec { secs: LONGEST_START_SECS, ..load.clone() };
    let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut control = pool.millpond.control()?;
    thread::scope(|scope| {
        let busy = scope.spawn(|| {
            let first = run_until(endpoint, &first, &begun)?;
            let busy = run_until(endpoint, load, &over)?;
            ensure!(first.errors + busy.errors == 0, "{} requests were refused", first.errors + busy.errors);
            Ok(busy)
        });
        thread::sleep(Duration::from_secs_f64(WARM_SECS));
        let started = pool.begin(job);
        thread::sleep(SETTLE);
        begun.store(true, Ordering::Relaxed);
        let rate = started.and_then(|()| rate_until(&mut control, job, || busy.is_finished()));
        over.store(true, Ordering::Relaxed);
        let busy = busy.join().unwrap_or_else(|_| Err(anyhow!("the load panicked")))?;
        Ok((busy, rate?))
    })
}

/// Watches a job until `is_over`, or until the job has no work left. Returns its rate in bytes per
/// second.
fn rate_until(control: &mut Control, job: Job, is_over: impl Fn() -> bool) -> Result<f64> {
    let Some(first) = Progress::of(control, job)? else { return Ok(0.0) };
    let mut last = first;
    while !is_over() {
        thread::sleep(BETWEEN_LOOKS);
        match Progress::of(control, job)? {
            Some(progress) => last = progress,
            None => break,
        }
    }
    Ok(last.rate_since(&first))
}

/// Returns the higher one of the 99th percentiles of reads and writes, in microseconds.
fn p99(load: &LoadResult) -> f64 {
    load.read.p99_us.max(load.write.p99_us)
}
