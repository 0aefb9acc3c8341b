//! `fill`: measures random overwrites at several fill levels of a pool, and checks which operations
//! work at 100 %.

use super::Setup;
use super::looked_at::LookedAt;
use super::sample::measure_into;
use crate::load::{Access, LoadSpec, Mix, run};
use crate::peer::{Contender, POOL};
use crate::report::{Curve, Goal, Results};
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::time::Instant;

const POOL_BYTES: u64 = 2 << 30;
const LEAST_BYTES: u64 = 1 << 30;
const LEVELS: [u64; 6] = [25, 50, 70, 80, 90, 95];
const WRITES: u64 = 200_000;
const LEAST_WRITES: u64 = 8192;
const NO_SPACE: u32 = 28; // NBD's ENOSPC
const FULL: &str = "100 % full";

fn case(level: u64) -> String {
    format!("4k randwrite q32, {level} % full")
}

pub fn run_fill(setup: &Setup, results: &mut Results) -> Result<()> {
    if setup.contenders(&["millpond"], results).is_empty() {
        return Ok(());
    }
    results.note(
        "an image in a filesystem has no such levels: its space is taken once; a pool of logs has to clean, the more the fuller it is",
    );
    for rep in 0..setup.reps {
        one(setup, results, rep)?;
    }
    let places = LEVELS.iter().map(|level| (*level as f64, case(*level))).collect();
    results.curves.push(Curve { title: "Overwrites".to_owned(), axis: "percent full".to_owned(), metric: "iops".to_owned(), places });
    results.promise(FULL, "refused_for_another_reason", "millpond", Goal::NeverAbove(0.0));
    results.promise(FULL, "refused_reads", "millpond", Goal::NeverAbove(0.0));
    results.promise("after half is discarded", "refused_writes", "millpond", Goal::NeverAbove(0.0));
    Ok(())
}

fn one(setup: &Setup, results: &mut Results, rep: usize) -> Result<()> {
    let pool = setup.size.unwrap_or(((POOL_BYTES as f64 * setup.scale.min(1.0)) as u64).max(LEAST_BYTES));
    let open = setup.open_millpond(4 << 20, pool, &[])?;
    let millpond = &open.millpond;
    let usable = millpond.counters()?.size as u64;
    let volume = format!("{POOL}/full");
    millpond.control()?.post("/v1/volumes", &json!({"name": volume, "size": (usable * 3 / 2) >> 20 << 20}))?;
    let endpoint = millpond.export(&volume)?;
    let subject = LookedAt::new(endpoint.clone(), millpond.pid()?);
    let ops = setup.scaled(WRITES, LEAST_WRITES);
    let mut written = 0;
    for level in LEVELS {
        results.say(&format!("repetition {} of {}: {level} %", rep + 1, setup.reps));
        let end = (usable * level / 100) >> 20 << 20;
        run(&endpoint, &LoadSpec { offset: written, size: end - written, ..LoadSpec::fill() })
            .with_context(|| format!("filling to {level} %"))?;
        written = end;
        let spec = LoadSpec {
            size: end,
            ops,
            secs: 3600.0,
            ramp: 0.0,
            seed: setup.seed_of(rep) + level,
            ..LoadSpec::random(Mix::Write, 4096, 32)
        };
        measure_into(results, rep, &case(level), "millpond", &subject, &spec)?;
    }
    results.say(&format!("repetition {} of {}: to the end", rep + 1, setup.reps));
    let rest = run(&endpoint, &LoadSpec { offset: written, ..LoadSpec::fill() }).context("filling to the end")?;
    ensure!(rest.errors > 0, "a volume larger than the pool was written and the pool never said that it is full");
    results.add(rep, "millpond", FULL, "refused_for_another_reason", if rest.first_error == NO_SPACE { 0.0 } else { 1.0 });
    let reads =
        run(&endpoint, &LoadSpec { size: written, secs: setup.secs, seed: setup.seed_of(rep), ..LoadSpec::random(Mix::Read, 4096, 32) })?;
    results.add(rep, "millpond", FULL, "read_iops", reads.iops);
    results.add(rep, "millpond", FULL, "refused_reads", reads.errors as f64);
    let begin = Instant::now();
    let half = LoadSpec {
        mix: Mix::Trim,
        access: Access::Sequential,
        block: 1 << 20,
        size: (written / 2) >> 20 << 20,
        once: true,
        ramp: 0.0,
        ..LoadSpec::default()
    };
    let trimmed = run(&endpoint, &half).context("discarding half")?;
    ensure!(trimmed.errors == 0, "a full pool refused {} discards", trimmed.errors);
    results.add(rep, "millpond", "after half is discarded", "discard_ms", begin.elapsed().as_secs_f64() * 1e3);
    let again = run(&endpoint, &LoadSpec { size: half.size, ops: 2048, secs: 60.0, ramp: 0.0, ..LoadSpec::random(Mix::Write, 4096, 32) })?;
    results.add(rep, "millpond", "after half is discarded", "write_iops", again.iops);
    results.add(rep, "millpond", "after half is discarded", "refused_writes", again.errors as f64);
    Ok(())
}
