//! `recovery`: measures the time until the disk is available after a kill with a long log to
//! replay, and the memory of the daemon with a huge volume.

use super::Setup;
use crate::load::{LoadSpec, Mix, run, run_until};
use crate::peer::{Contender, POOL};
use crate::process::{memory, with_peak_memory};
use crate::report::{Goal, Results};
use anyhow::{Result, anyhow, bail};
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const SIZE: u64 = 4 << 30;
const LOG: f64 = 0.95 * (1u64 << 30) as f64; // a checkpoint starts at 1 GiB
const REPLAY: &str = "ready after kill -9";
const HUGE: u64 = 1 << 40;
const BOUND_MIB: u64 = 256;
/// MiB of the daemon's memory besides map nodes: buffers of requests in flight, the chunk table,
/// and the program.
const BESIDE_MIB: u64 = 192;
const MEMORY: &str = "1 TiB written at random places";

pub fn run_recovery(setup: &Setup, results: &mut Results) -> Result<()> {
    if setup.contenders(&["millpond"], results).is_empty() {
        return Ok(());
    }
    replay(setup, results)?;
    bounded_memory(setup, results)
}

fn replay(setup: &Setup, results: &mut Results) -> Result<()> {
    let size = setup.size_or(SIZE);
    let mut open = setup.open_millpond(size, 3 * size + (4 << 30), &[])?;
    let millpond = &mut open.millpond;
    for rep in 0..setup.reps {
        let wanted = LOG * setup.scale.min(1.0);
        let stop = AtomicBool::new(false);
        let endpoint = millpond.endpoint()?;
        let spec = LoadSpec { secs: 600.0, ramp: 0.0, seed: setup.seed_of(rep), ..LoadSpec::random(Mix::Write, 4096, 32) };
        let log = thread::scope(|scope| {
            let load = scope.spawn(|| run_until(&endpoint, &spec, &stop));
            let begin = Instant::now();
            let mut log = 0.0;
            let watched = loop {
                match millpond.counters() {
                    Ok(counters) => log = counters.log_bytes,
                    Err(error) => break Err(error),
                }
                if log >= wanted {
                    break Ok(());
                }
                if begin.elapsed() > Duration::from_secs(300) {
                    break Err(anyhow!("the log never reached {wanted} bytes; it is at {log}"));
                }
                thread::sleep(Duration::from_millis(2));
            };
            let killed = watched.and_then(|()| millpond.kill9());
            stop.store(true, Ordering::Relaxed);
            let _ = load.join(); // its connection broke, as it should
            killed.map(|()| log)
        })?;
        let begin = Instant::now();
        millpond.restart()?;
        let ready = begin.elapsed();
        results.say(&format!("repetition {} of {}: ready after {ready:?}", rep + 1, setup.reps));
        results.add(rep, "millpond", REPLAY, "ready_ms", ready.as_secs_f64() * 1e3);
        results.add(rep, "millpond", REPLAY, "log_mib", log / f64::from(1 << 20));
        let read = run(&millpond.endpoint()?, &LoadSpec { secs: 0.5, ..LoadSpec::random(Mix::Read, 4096, 32) })?;
        if read.errors > 0 {
            bail!("{} reads refused after recovery", read.errors);
        }
    }
    results.goal(REPLAY, "ready_ms", "millpond", Goal::AtMost(1000.0));
    Ok(())
}

fn bounded_memory(setup: &Setup, results: &mut Results) -> Result<()> {
    let writes = setup.scaled(1_000_000, 10_000);
    let pool = writes * 4096 * 3 + (8 << 30);
    let open = setup.open_millpond(64 << 20, pool, &[&format!("map_memory = \"{BOUND_MIB}M\"")])?;
    let volume = format!("{POOL}/huge");
    open.millpond.control()?.post("/v1/volumes", &json!({"name": volume, "size": HUGE}))?;
    let endpoint = open.millpond.export(&volume)?;
    let pid = open.millpond.pid()?;
    let before = memory(pid)?;
    let spec = LoadSpec { ops: writes, secs: 1800.0, ramp: 0.0, seed: setup.seed, ..LoadSpec::random(Mix::Write, 4096, 32) };
    let (result, peak) = with_peak_memory(pid, || run(&endpoint, &spec))?;
    let mib = f64::from(1 << 20);
    results.add(0, "millpond", MEMORY, "peak_rss_mib", peak as f64 / mib);
    results.add(0, "millpond", MEMORY, "rss_before_mib", before as f64 / mib);
    results.add(0, "millpond", MEMORY, "bound_mib", BOUND_MIB as f64);
    results.add(0, "millpond", MEMORY, "writes", result.total_ops as f64);
    results.add(0, "millpond", MEMORY, "iops", result.iops);
    results.add(0, "millpond", MEMORY, "refused", result.errors as f64);
    results.goal(MEMORY, "peak_rss_mib", "millpond", Goal::NeverAbove((BOUND_MIB + BESIDE_MIB) as f64));
    results.promise(MEMORY, "refused", "millpond", Goal::NeverAbove(0.0));
    results.note(&format!("map nodes are bound to {BOUND_MIB} MiB; {BESIDE_MIB} MiB are allowed for all else"));
    Ok(())
}
