//! `delete`: measures how fast the destruction of 10,000 snapshots returns, and how much a guest
//! slows down while the space is reclaimed.

use super::Setup;
use super::aging::Aging;
use crate::load::{LoadSpec, Mix, run, run_until};
use crate::peer::{Contender, DISK};
use crate::report::{Goal, Results};
use anyhow::{Result, anyhow, bail};
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const SIZE: u64 = 256 << 20;
const CASE: &str = "destroy all snapshots";
const PATIENCE: Duration = Duration::from_secs(300);
/// Blocks of 4 KiB that are overwritten between two snapshots.
const BETWEEN: u64 = 64;

pub fn run_delete(setup: &Setup, results: &mut Results) -> Result<()> {
    if setup.contenders(&["millpond"], results).is_empty() {
        return Ok(());
    }
    let snapshots = setup.scaled(10_000, 100);
    let freed = (snapshots * BETWEEN * 4096) as f64 / f64::from(1 << 20);
    for rep in 0..setup.reps {
        results.say(&format!("repetition {} of {}: taking {snapshots} snapshots", rep + 1, setup.reps));
        let size = setup.size_or(SIZE);
        let mut open = setup.open_millpond(size, 3 * size + snapshots * (BETWEEN * 4096) * 3 / 2 + (4 << 30), &[])?;
        let mut control = open.millpond.control()?;
        let aging = Aging { rounds: snapshots, blocks: BETWEEN, snapshots, seed: setup.seed_of(rep) };
        aging.apply(&mut open.millpond, |_, n| control.post("/v1/snapshots", &json!({"names": [format!("{DISK}@s{n}")]})).map(|_| ()))?;
        let endpoint = open.millpond.endpoint()?;
        let spec = LoadSpec { secs: setup.secs.max(3.0), seed: setup.seed_of(rep), ..LoadSpec::random(Mix::Both(50), 4096, 8) };
        let idle = run(&endpoint, &spec)?;
        let before = open.millpond.counters()?;
        let stop = AtomicBool::new(false);
        let endless = LoadSpec { secs: PATIENCE.as_secs_f64() * 2.0, ..spec.clone() };
        let (returned, reclaimed, busy) = thread::scope(|scope| {
            let load = scope.spawn(|| run_until(&endpoint, &endless, &stop));
            let mut work = || -> Result<(Duration, Duration)> {
                // so that the ramp is over and only the time of the deletion is measured
                thread::sleep(Duration::from_secs_f64(spec.ramp));
                let begin = Instant::now();
                control.post("/v1/destroy", &json!({"name": format!("{DISK}@%")}))?;
                let returned = begin.elapsed();
                while open.millpond.counters()?.reclaim_backlog > 0.0 {
                    if begin.elapsed() > PATIENCE {
                        bail!("the space is not back within {PATIENCE:?}");
                    }
                    thread::sleep(Duration::from_millis(250)); // asking takes processor time from the guest
                }
                Ok((returned, begin.elapsed()))
            };
            let times = work();
            stop.store(true, Ordering::Relaxed);
            let busy = load.join().unwrap_or_else(|_| Err(anyhow!("the load panicked")))?;
            let (returned, reclaimed) = times?;
            Ok::<_, anyhow::Error>((returned, reclaimed, busy))
        })?;
        let after = open.millpond.counters()?;
        let freed = before.allocated - after.allocated;
        let (longest, long) = after.turns_since(&before);
        let p99 = |r: &crate::load::LoadResult| r.read.p99_us.max(r.write.p99_us);
        results.add(rep, "millpond", CASE, "return_ms", returned.as_secs_f64() * 1e3);
        results.add(rep, "millpond", CASE, "reclaim_ms", reclaimed.as_secs_f64() * 1e3);
        results.add(rep, "millpond", CASE, "freed_mib", freed / f64::from(1 << 20));
        results.add(rep, "millpond", CASE, "longest_turn_us", longest);
        results.add(rep, "millpond", CASE, "turns_of_1_ms", long);
        results.add(rep, "millpond", CASE, "p99_idle_us", p99(&idle));
        results.add(rep, "millpond", CASE, "p99_during_us", p99(&busy));
        results.add(rep, "millpond", CASE, "p99_during_to_idle", p99(&busy) / p99(&idle));
        results.add(rep, "millpond", CASE, "iops_during_to_idle", busy.iops / idle.iops);
    }
    results.goal(CASE, "return_ms", "millpond", Goal::AtMost(1000.0));
    results.goal(CASE, "p99_during_to_idle", "millpond", Goal::AtMost(1.5));
    // the versions of the blocks that were overwritten between snapshots, except for those overwritten twice in a round
    results.promise(CASE, "freed_mib", "millpond", Goal::NeverBelow(freed * 0.9));
    Ok(())
}
