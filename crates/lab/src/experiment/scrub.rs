//! `scrub`: how fast a pool in memory is read and checked, beside what one processor can copy: a scrub copies every byte once and computes its checksum.

use super::Setup;
use crate::load::{LoadSpec, run};
use crate::peer::{Contender, Millpond, POOL, millpond_binary};
use crate::process::{Workspace, cpu_time};
use crate::report::{Goal, Results};
use anyhow::{Context, Result};
use std::hint::black_box;
use std::time::{Duration, Instant};

const SIZE: u64 = 4 << 30;
const LEAST_SIZE: u64 = 256 << 20;
const COPY: &str = "one processor copies memory";
/// Larger than any cache of a processor.
const BUFFER: usize = 256 << 20;
const COPY_SECONDS: f64 = 1.0;
const LAYOUTS: [(&str, &[&str]); 3] = [("linear", &["linear"]), ("mirror of two", &["mirror"]), ("parity2 of six", &["parity2"])];

/// See the module.
pub fn run_scrub(setup: &Setup, results: &mut Results) -> Result<()> {
    if setup.contenders(&["millpond"], results).is_empty() {
        return Ok(());
    }
    for rep in 0..setup.long_reps {
        for (case, layout) in LAYOUTS {
            results.say(&format!("repetition {} of {}: {case}", rep + 1, setup.long_reps));
            one(setup, results, rep, case, layout).with_context(|| case.to_owned())?;
        }
    }
    for (case, _) in LAYOUTS {
        results.goal(case, "of_copy", "millpond", Goal::AtLeast(0.5));
    }
    Ok(())
}

fn one(setup: &Setup, results: &mut Results, rep: usize, case: &str, layout: &[&str]) -> Result<()> {
    let size = setup.size_or(SIZE).max(setup.size.unwrap_or(LEAST_SIZE));
    let devices = match case {
        "linear" => 1,
        "mirror of two" => 2,
        _ => 6,
    };
    setup.need(size * 4)?;
    let workspace = Workspace::new(&setup.dir, "scrub")?;
    let mut millpond = Millpond::new(millpond_binary()?);
    let files = (0..devices).map(|n| format!("{}:{}", workspace.path().join(format!("disk{n}")).display(), 2 * size + (1 << 30)));
    let words: Vec<String> = layout.iter().map(|word| (*word).to_owned()).chain(files).collect();
    millpond.start_with(workspace.path(), &words, size)?;
    run(&millpond.endpoint()?, &LoadSpec::fill()).context("filling")?;
    // what was written last is moved, and nodes are written, before anything is timed
    millpond.cli(&["pool", "export", POOL])?;
    millpond.cli(&["pool", "import", POOL])?;
    let pid = millpond.pid()?;
    let (bytes, cpu, begin) = (read_bytes(&millpond)?, cpu_time(pid)?, Instant::now());
    millpond.cli(&["pool", "scrub", POOL, "--wait"])?;
    let seconds = begin.elapsed().as_secs_f64();
    let (bytes, cpu) = (read_bytes(&millpond)? - bytes, cpu_time(pid)?.saturating_sub(cpu).as_secs_f64());
    let copy = copy_rate()?;
    let per_processor = bytes / cpu.max(1e-3);
    results.add(rep, "millpond", case, "gb_s", bytes / 1e9 / seconds);
    results.add(rep, "millpond", case, "gb_per_processor_second", per_processor / 1e9);
    results.add(rep, "millpond", case, "of_copy", per_processor / copy);
    results.add(rep, "millpond", COPY, "gb_s", copy / 1e9);
    millpond.stop()
}

fn read_bytes(millpond: &Millpond) -> Result<f64> {
    let pool = millpond.control()?.get(&format!("/v1/pools/{POOL}"))?;
    let devices = pool.get("devices").and_then(serde_json::Value::as_array).context("the pool lists no devices")?;
    devices
        .iter()
        .map(|d| d.pointer("/io/read_bytes").and_then(serde_json::Value::as_f64))
        .sum::<Option<f64>>()
        .context("a device tells no bytes")
}

/// Bytes that one thread copies from one buffer to another in a second of a processor.
fn copy_rate() -> Result<f64> {
    let (from, mut to) = (vec![1u8; BUFFER], vec![2u8; BUFFER]);
    let (begin, mut copied, before) = (Instant::now(), 0.0, cpu_time(std::process::id())?);
    while begin.elapsed() < Duration::from_secs_f64(COPY_SECONDS) {
        black_box(&mut to).copy_from_slice(black_box(&from));
        copied += BUFFER as f64;
    }
    Ok(copied / cpu_time(std::process::id())?.saturating_sub(before).as_secs_f64())
}
