//! `beside-jobs`: latencies of a guest while the pool is scrubbed, and while a device is replaced,
//! relative to those before and after.

use super::Setup;
use crate::load::{Endpoint, LoadResult, LoadSpec, Mix, run, run_until};
use crate::peer::{Contender, DISK, Millpond, POOL, millpond_binary};
use crate::process::Workspace;
use crate::report::{Goal, Results};
use anyhow::{Result, anyhow, ensure};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const SIZE: u64 = 4 << 30;
/// A job that is shorter says nothing about a percentile.
const LEAST_JOB: Duration = Duration::from_secs(1);
/// Loads end when the job does; this one is only a limit.
const LONGEST_SECS: f64 = 1200.0;
/// Most of the idle p99 that a guest may see beside a job.
const MOST_OF_IDLE: f64 = 1.5;
const LOADS: [(&str, Mix, usize); 3] =
    [("4k randread q1", Mix::Read, 1), ("4k randwrite q1", Mix::Write, 1), ("4k 50/50 q8", Mix::Both(50), 8)];

/// A job of a pool.
#[derive(Clone, Copy)]
enum Job {
    Scrub,
    Replace,
}

impl Job {
    const ALL: [Job; 2] = [Job::Scrub, Job::Replace];

    fn name(self) -> &'static str {
        match self {
            Job::Scrub => "scrub",
            Job::Replace => "replace",
        }
    }

    /// Runs the job to its end.
    fn run(self, millpond: &Millpond, devices: &mut Devices<'_>) -> Result<Duration> {
        let begin = Instant::now();
        match self {
            Job::Scrub => millpond.cli(&["pool", "scrub", POOL, "--wait"])?,
            Job::Replace => {
                // the older one of the two
                let (old, new) = (device(devices.dir, devices.count - 2), devices.file(devices.count));
                devices.count += 1;
                millpond.cli(&["pool", "replace", POOL, &old, &new, "--wait"])?
            }
        };
        Ok(begin.elapsed())
    }
}

/// Files of devices that the pool has or had, named by their number.
struct Devices<'a> {
    dir: &'a Path,
    /// Size of each in bytes.
    bytes: u64,
    count: usize,
}

impl Devices<'_> {
    /// Returns the argument that makes a new file.
    fn file(&self, number: usize) -> String {
        format!("{}:{}", device(self.dir, number), self.bytes)
    }
}

pub fn run_beside_jobs(setup: &Setup, results: &mut Results) -> Result<()> {
    if setup.contenders(&["millpond"], results).is_empty() {
        return Ok(());
    }
    let mut shortest = LEAST_JOB;
    for rep in 0..setup.reps {
        results.say(&format!("repetition {} of {}", rep + 1, setup.reps));
        shortest = shortest.min(one(setup, results, rep)?);
    }
    for job in Job::ALL {
        for (load, ..) in LOADS {
            let case = case_of(job, load);
            results.goal_where(shortest >= LEAST_JOB, &case, "p99_to_idle", "millpond", Goal::AtMost(MOST_OF_IDLE));
        }
    }
    Ok(())
}

fn case_of(job: Job, load: &str) -> String {
    format!("{load}, {}", job.name())
}

fn device(dir: &Path, number: usize) -> String {
    dir.join(format!("disk{number}")).display().to_string()
}

/// Returns the duration of the shortest job.
fn one(setup: &Setup, results: &mut Results, rep: usize) -> Result<Duration> {
    let size = setup.size_or(SIZE);
    setup.need(3 * size)?;
    let workspace = Workspace::new(&setup.dir, "beside-jobs")?;
    let mut millpond = Millpond::new(millpond_binary()?);
    millpond.start_empty(workspace.path())?;
    let mut devices = Devices { dir: workspace.path(), bytes: 2 * size + (2 << 30), count: 2 };
    let [one, two] = [0, 1].map(|number| devices.file(number));
    millpond.cli(&["pool", "create", POOL, "mirror", &one, &two])?;
    millpond.cli(&["create", DISK, "-L", &size.to_string()])?;
    let endpoint = millpond.export(DISK)?;
    run(&endpoint, &LoadSpec::fill())?;
    let mut shortest = Duration::MAX;
    for job in Job::ALL {
        for (name, mix, depth) in LOADS {
            let load = LoadSpec { secs: setup.secs.max(1.0), seed: setup.seed_of(rep), ..LoadSpec::random(mix, 4096, depth) };
            let before = run(&endpoint, &load)?;
            let (took, busy) = beside(&endpoint, &load, || job.run(&millpond, &mut devices))?;
            let after = run(&endpoint, &load)?;
            ensure!(busy.errors == 0, "{} requests were refused", busy.errors);
            shortest = shortest.min(took);
            let idle = |of: fn(&LoadResult) -> f64| (of(&before) + of(&after)) / 2.0;
            for (metric, value) in [
                ("p99_us", p99(&busy)),
                ("p99_to_idle", p99(&busy) / idle(p99)),
                ("iops_to_idle", busy.iops / idle(|load| load.iops)),
                ("seconds", took.as_secs_f64()),
            ] {
                results.add(rep, "millpond", &case_of(job, name), metric, value);
            }
        }
    }
    millpond.stop()?;
    Ok(shortest)
}

/// Runs a job, and a load for as long. Returns the duration of the job and the result of the load.
fn beside(endpoint: &Endpoint, load: &LoadSpec, job: impl FnOnce() -> Result<Duration>) -> Result<(Duration, LoadResult)> {
    let load = LoadSpec { secs: LONGEST_SECS, ..load.clone() };
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let busy = scope.spawn(|| run_until(endpoint, &load, &stop));
        thread::sleep(Duration::from_secs_f64(load.ramp));
        let took = job();
        stop.store(true, Ordering::Relaxed);
        let busy = busy.join().unwrap_or_else(|_| Err(anyhow!("the load panicked")))?;
        Ok((took?, busy))
    })
}

/// Returns the higher one of the 99th percentiles of reads and writes, in microseconds.
fn p99(load: &LoadResult) -> f64 {
    load.read.p99_us.max(load.write.p99_us)
}
