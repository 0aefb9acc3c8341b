//! `evacuate`: removes a device under load; measures how fast it is emptied, and the effect on the
//! load. Compares data afterwards, and checks that the reported progress advances.

use super::Setup;
use crate::load::{Ledger, LoadResult, LoadSpec, Mix, audit, run, run_until, write_blocks};
use crate::peer::{Contender, DISK, Millpond, POOL, millpond_binary};
use crate::process::Workspace;
use crate::report::{Claim, Goal, Results, median};
use anyhow::{Context, Result, anyhow};
use serde_json::Value;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const SIZE: u64 = 2 << 30;
const PATIENCE: Duration = Duration::from_secs(600);
const BLOCK: usize = 4096;
const DEPTH: usize = 32;
const BETWEEN_REPORTS: Duration = Duration::from_millis(20);
/// With fewer reports of its progress, a removal is too short to judge them; and how often the
/// progress must advance in a longer one.
const REPORTS: f64 = 20.0;
const STEPS: f64 = 3.0;
const CASE: &str = "a device is removed";

pub fn run_evacuate(setup: &Setup, results: &mut Results) -> Result<()> {
    if setup.contenders(&["millpond"], results).is_empty() {
        return Ok(());
    }
    for rep in 0..setup.reps {
        results.say(&format!("repetition {} of {}", rep + 1, setup.reps));
        one(setup, results, rep)?;
    }
    results.promise(CASE, "lost or wrong", "millpond", Goal::NeverAbove(0.0));
    let long_enough = results.values(CASE, "progress_reports", "millpond").iter().all(|reports| *reports >= REPORTS);
    results.goal_where(long_enough, CASE, "progress_steps", "millpond", Goal::NeverBelow(STEPS));
    results.goal(CASE, "p99_during_to_before", "millpond", Goal::AtMost(1.5));
    let ours = median(&results.values(CASE, "mb_s", "millpond"));
    let why = "an HDD there; ours on this machine's storage, with a load beside it";
    results.claim(Claim::new("C-remove", "data copied off a device that is removed", 142.0, "MB/s").ours(ours).because(why));
    Ok(())
}

/// Makes a pool of two devices with all data on the first: in a linear pool, that is filled first.
/// Each device has room for all data, and for overwritten data until it is cleaned.
fn open(dir: &Path, size: u64) -> Result<Millpond> {
    let mut millpond = Millpond::new(millpond_binary()?);
    millpond.start_empty(dir)?;
    let bytes = 6 * size + (4 << 30);
    let [one, two] = [0, 1].map(|n| format!("{}:{bytes}", device(dir, n)));
    millpond.cli(&["pool", "create", POOL, "linear", &one, &two])?;
    millpond.cli(&["create", DISK, "-L", &size.to_string()])?;
    Ok(millpond)
}

fn device(dir: &Path, number: u32) -> String {
    dir.join(format!("disk{number}")).display().to_string()
}

fn one(setup: &Setup, results: &mut Results, rep: usize) -> Result<()> {
    let size = setup.size_or(SIZE);
    let workspace = Workspace::new(&setup.dir, "evacuate")?;
    let mut millpond = open(workspace.path(), size)?;
    let leaving = device(workspace.path(), 0);
    let endpoint = millpond.export(DISK)?;
    // the first half holds data that is compared afterwards, the second is under load
    let mut ledger = Ledger::new(setup.seed_of(rep), usize::try_from(size / 2)? / BLOCK, BLOCK);
    let blocks = 0..ledger.blocks();
    let written = write_blocks(&endpoint, &mut ledger, blocks, DEPTH, &AtomicBool::new(false), &AtomicU64::new(0))?;
    anyhow::ensure!(written.broken.is_none(), "the server went away: {:?}", written.broken);
    run(&endpoint, &LoadSpec { offset: size / 2, ..LoadSpec::fill() })?;
    let moved = on_device(&millpond, &leaving)?;
    let load =
        LoadSpec { offset: size / 2, secs: setup.secs.max(1.0), seed: setup.seed_of(rep), ..LoadSpec::random(Mix::Both(50), 4096, 8) };
    let idle = run(&endpoint, &load)?;
    let stop = AtomicBool::new(false);
    let endless = LoadSpec { secs: 2.0 * PATIENCE.as_secs_f64(), ..load.clone() };
    let (removal, busy) = thread::scope(|scope| {
        let busy = scope.spawn(|| run_until(&endpoint, &endless, &stop));
        thread::sleep(Duration::from_secs_f64(load.ramp));
        let removal = remove(&millpond, &leaving);
        stop.store(true, Ordering::Relaxed);
        let busy = busy.join().unwrap_or_else(|_| Err(anyhow!("the load panicked")))?;
        removal.map(|removal| (removal, busy))
    })?;
    anyhow::ensure!(busy.errors == 0, "{} requests were refused", busy.errors);
    // no cache may answer for the devices
    millpond.stop()?;
    millpond.restart()?;
    let (_, found) = audit(&endpoint, &ledger, |block, data| ledger.judge(block, data))?;
    let p99 = |load: &LoadResult| load.read.p99_us.max(load.write.p99_us);
    let seconds = removal.took.as_secs_f64();
    for (metric, value) in [
        ("mb_s", moved / 1e6 / seconds),
        ("seconds", seconds),
        ("moved_mb", moved / 1e6),
        ("iops_during_to_before", busy.iops / idle.iops),
        ("p99_during_to_before", p99(&busy) / p99(&idle)),
        ("progress_reports", removal.reports.len() as f64),
        ("progress_steps", steps(&removal.reports) as f64),
        ("lost or wrong", (found.lost + found.wrong) as f64),
    ] {
        results.add(rep, "millpond", CASE, metric, value);
    }
    millpond.stop()
}

/// A removal that ended.
struct Removal {
    took: Duration,
    /// Bytes done, as the list of jobs reported them one after another.
    reports: Vec<u64>,
}

/// Removes a device and reads the progress of the job until the device is gone.
fn remove(millpond: &Millpond, path: &str) -> Result<Removal> {
    let mut control = millpond.control()?;
    let begin = Instant::now();
    millpond.cli(&["pool", "remove", POOL, path])?;
    let mut reports = Vec::new();
    while on_device(millpond, path).is_ok() {
        anyhow::ensure!(begin.elapsed() < PATIENCE, "the device is not gone within {PATIENCE:?}");
        let jobs = control.get("/v1/jobs")?;
        let job = jobs.as_array().into_iter().flatten().find(|job| job["kind"] == "remove");
        reports.extend(job.and_then(|job| job["done_bytes"].as_u64()));
        thread::sleep(BETWEEN_REPORTS);
    }
    Ok(Removal { took: begin.elapsed(), reports })
}

/// Counts how often the reported progress advanced.
fn steps(reports: &[u64]) -> usize {
    reports.windows(2).filter(|pair| pair[1] > pair[0]).count()
}

/// Returns the bytes allocated on a device of the pool.
///
/// # Errors
/// The device does not belong to the pool.
fn on_device(millpond: &Millpond, path: &str) -> Result<f64> {
    let pool = millpond.control()?.get(&format!("/v1/pools/{POOL}"))?;
    let devices = pool.get("devices").and_then(Value::as_array).context("the pool lists no devices")?;
    let device = devices.iter().find(|d| d.get("path").and_then(Value::as_str) == Some(path)).context("no such device")?;
    device.get("allocated").and_then(Value::as_f64).context("a device does not tell what is allocated")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_that_stands_still_has_no_steps() {
        assert_eq!(steps(&[0, 0, 0, 0]), 0);
        assert_eq!(steps(&[0, 5, 5, 3, 9]), 2);
    }
}
