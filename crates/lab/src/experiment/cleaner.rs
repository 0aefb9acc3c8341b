//! `cleaner`: measures the write amplification of random 4 KiB overwrites while four fifths of the
//! pool are live.

use super::Setup;
use crate::load::{Access, LoadSpec, Mix, run};
use crate::peer::POOL;
use crate::report::{Goal, Results};
use anyhow::{Context, Result};
use serde_json::json;

const POOL_BYTES: u64 = 2 << 30;
const FULL: f64 = 0.8;

pub fn run_cleaner(setup: &Setup, results: &mut Results) -> Result<()> {
    if setup.contenders(&["millpond"], results).is_empty() {
        return Ok(());
    }
    let shapes =
        [("uniform", Access::Uniform, 2.8), ("80/20", Access::HotSet { part: 0.2, share: 0.8 }, 2.4), ("zipf", Access::Zipf(1.0), 2.0)];
    for rep in 0..setup.reps {
        for (case, access, _) in shapes {
            results.say(&format!("repetition {} of {}: {case}", rep + 1, setup.reps));
            one(setup, rep, case, access, results).with_context(|| case.to_owned())?;
        }
    }
    for (case, _, limit) in shapes {
        // a fifth of the pool is free, so no write may be refused
        results.promise(case, "refused", "millpond", Goal::NeverAbove(0.0));
        // an amplification of 1 shows only that nothing was cleaned
        let cleaned = results.values(case, "segments_cleaned", "millpond").iter().all(|segments| *segments > 0.0);
        results.goal_where(cleaned && results.scale >= 1.0, case, "write_amplification", "millpond", Goal::AtMost(limit));
        results.goal(case, "segments_cleaned", "millpond", Goal::NeverBelow(1.0));
    }
    Ok(())
}

fn one(setup: &Setup, rep: usize, case: &str, access: Access, results: &mut Results) -> Result<()> {
    let pool_bytes = setup.fixed_size_or(POOL_BYTES);
    let open = setup.open_millpond(4 << 20, pool_bytes, &[])?;
    let millpond = &open.millpond;
    let usable = millpond.counters()?.size;
    let size = ((usable * FULL) as u64) >> 20 << 20;
    let volume = format!("{POOL}/full");
    millpond.control()?.post("/v1/volumes", &json!({"name": volume, "size": size}))?;
    let endpoint = millpond.export(&volume)?;
    run(&endpoint, &LoadSpec::fill())?;
    let writes = |times: f64| ((size as f64 * times * setup.scale) as u64 / 4096).max(1000);
    let spec = |times: f64, seed: u64| LoadSpec {
        access,
        ops: writes(times),
        secs: 3600.0,
        ramp: 0.0,
        seed,
        ..LoadSpec::random(Mix::Write, 4096, 32)
    };
    let warm = run(&endpoint, &spec(3.0, setup.seed_of(rep)))?; // until the pool looks as it always will
    let before = millpond.counters()?;
    let result = run(&endpoint, &spec(2.0, setup.seed_of(rep) + 1))?;
    let after = millpond.counters()?;
    let guest = after.guest_write_bytes - before.guest_write_bytes;
    let moved = after.cleaner_bytes - before.cleaner_bytes;
    let user = after.user_bytes - before.user_bytes;
    results.add(rep, "millpond", case, "write_amplification", (user + moved) / user);
    results.add(rep, "millpond", case, "with_metadata", (after.device_write_bytes - before.device_write_bytes) / guest);
    results.add(rep, "millpond", case, "segments_cleaned", after.segments_cleaned - before.segments_cleaned);
    results.add(rep, "millpond", case, "iops", result.iops);
    results.add(rep, "millpond", case, "p99_us", result.write.p99_us);
    results.add(rep, "millpond", case, "refused", (warm.errors + result.errors) as f64);
    results.add(rep, "millpond", case, "live_part", after.allocated / after.size);
    Ok(())
}
