//! `evacuate`: removes a device under load; measures how fast it is emptied, and the effect on the
//! load.

use super::Setup;
use crate::load::{LoadResult, LoadSpec, Mix, run, run_until};
use crate::peer::{Contender, DISK, Millpond, POOL, millpond_binary};
use crate::process::{Workspace, wait_until};
use crate::report::{Claim, Results, median};
use anyhow::{Context, Result, anyhow};
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const SIZE: u64 = 2 << 30;
const PATIENCE: Duration = Duration::from_secs(600);
const CASE: &str = "a device is removed";

pub fn run_evacuate(setup: &Setup, results: &mut Results) -> Result<()> {
    if setup.contenders(&["millpond"], results).is_empty() {
        return Ok(());
    }
    for rep in 0..setup.reps {
        results.say(&format!("repetition {} of {}", rep + 1, setup.reps));
        one(setup, results, rep)?;
    }
    let ours = median(&results.values(CASE, "mb_s", "millpond"));
    let why = "an HDD there; ours on this machine's storage, with a load beside it";
    results.claim(Claim::new("C-remove", "data copied off a device that is removed", 142.0, "MB/s").ours(ours).because(why));
    Ok(())
}

fn one(setup: &Setup, results: &mut Results, rep: usize) -> Result<()> {
    let size = setup.size_or(SIZE);
    let workspace = Workspace::new(&setup.dir, "evacuate")?;
    let mut millpond = Millpond::new(millpond_binary()?);
    millpond.start_empty(workspace.path())?;
    // in a linear pool, the first device is filled first; each device has room for all data, and
    // for overwritten data until it is cleaned
    let device = |n: u32| workspace.path().join(format!("disk{n}")).display().to_string();
    let bytes = 6 * size + (4 << 30);
    let (one, two) = (format!("{}:{bytes}", device(0)), format!("{}:{bytes}", device(1)));
    millpond.cli(&["pool", "create", POOL, "linear", &one, &two])?;
    millpond.cli(&["create", DISK, "-L", &size.to_string()])?;
    let endpoint = millpond.export(DISK)?;
    run(&endpoint, &LoadSpec::fill())?;
    let moved = on_device(&millpond, &device(0))?;
    let spec = LoadSpec { secs: setup.secs.max(1.0), seed: setup.seed_of(rep), ..LoadSpec::random(Mix::Both(50), 4096, 8) };
    let idle = run(&endpoint, &spec)?;
    let stop = AtomicBool::new(false);
    let endless = LoadSpec { secs: 2.0 * PATIENCE.as_secs_f64(), ..spec.clone() };
    let (took, busy) = thread::scope(|scope| {
        let load = scope.spawn(|| run_until(&endpoint, &endless, &stop));
        thread::sleep(Duration::from_secs_f64(spec.ramp));
        let begin = Instant::now();
        let removed = millpond.cli(&["pool", "remove", POOL, &device(0)]);
        let gone = removed.and_then(|_| wait_until("the device is gone", PATIENCE, || on_device(&millpond, &device(0)).is_err()));
        let took = begin.elapsed();
        stop.store(true, Ordering::Relaxed);
        let load = load.join().unwrap_or_else(|_| Err(anyhow!("the load panicked")))?;
        gone.map(|_| (took, load))
    })?;
    anyhow::ensure!(busy.errors == 0, "{} requests were refused", busy.errors);
    let p99 = |load: &LoadResult| load.read.p99_us.max(load.write.p99_us);
    results.add(rep, "millpond", CASE, "mb_s", moved / 1e6 / took.as_secs_f64());
    results.add(rep, "millpond", CASE, "seconds", took.as_secs_f64());
    results.add(rep, "millpond", CASE, "moved_mb", moved / 1e6);
    results.add(rep, "millpond", CASE, "iops_during_to_before", busy.iops / idle.iops);
    results.add(rep, "millpond", CASE, "p99_during_to_before", p99(&busy) / p99(&idle));
    millpond.stop()
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
