//! `scrub`: measures the speed of a scrub of a pool in memory, relative to the copy speed of one
//! processor: a scrub copies every byte once and computes its checksum. Also measures the
//! computation of parity.

use super::Setup;
use crate::load::{LoadSpec, run};
use crate::peer::{Contender, Millpond, POOL, millpond_binary};
use crate::process::{Workspace, cpu_time};
use crate::report::{Goal, Results};
use anyhow::{Context, Result, bail};
use rusty_erasure::Matrix;
use std::hint::black_box;
use std::thread::sleep;
use std::time::{Duration, Instant};

const SIZE: u64 = 4 << 30;
const LEAST_SIZE: u64 = 256 << 20;
const COPY: &str = "one processor copies memory";
const ENCODE: &str = "two parities of four, computed";
/// Stripes of six devices with two parities.
const DATA: usize = 4;
const PARITY: usize = 2;
const UNIT: usize = 64 << 10;
/// Size in bytes, larger than the share of the CPU cache of one processor.
const BUFFER: usize = 256 << 20;
const TIMED_SECONDS: f64 = 1.0;
/// A pool that reads and writes less than this in this time counts as idle: its claim is read and
/// written all the time.
const STILL: Duration = Duration::from_secs(1);
const STILL_BYTES: f64 = 262_144.0;
const LONGEST_SETTLING: Duration = Duration::from_secs(120);
const LAYOUTS: [(&str, &[&str]); 3] = [("linear", &["linear"]), ("mirror of two", &["mirror"]), ("parity2 of six", &["parity2"])];

pub fn run_scrub(setup: &Setup, results: &mut Results) -> Result<()> {
    if setup.contenders(&["millpond"], results).is_empty() {
        return Ok(());
    }
    for rep in 0..setup.long_reps {
        for (case, layout) in LAYOUTS {
            results.say(&format!("repetition {} of {}: {case}", rep + 1, setup.long_reps));
            one(setup, results, rep, case, layout).with_context(|| case.to_owned())?;
        }
        let (encode, copy) = (encode_rate()?, copy_rate()?);
        results.add(rep, "millpond", ENCODE, "gb_s", encode / 1e9);
        results.add(rep, "millpond", ENCODE, "of_copy", encode / copy);
    }
    for case in LAYOUTS.map(|(case, _)| case).into_iter().chain([ENCODE]) {
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
    // before anything is timed, the last writes are moved and map nodes are written; then the pool
    // is imported anew, so that nothing is left of the import that wrote the data
    settle(&millpond)?;
    millpond.cli(&["pool", "export", POOL])?;
    millpond.cli(&["pool", "import", POOL])?;
    settle(&millpond)?;
    let pid = millpond.pid()?;
    let (bytes, cpu, begin) = (bytes_of(&millpond, "read_bytes")?, cpu_time(pid)?, Instant::now());
    millpond.cli(&["pool", "scrub", POOL, "--wait"])?;
    let seconds = begin.elapsed().as_secs_f64();
    let (bytes, cpu) = (bytes_of(&millpond, "read_bytes")? - bytes, cpu_time(pid)?.saturating_sub(cpu).as_secs_f64());
    let copy = copy_rate()?;
    let per_processor = bytes / cpu.max(1e-3);
    results.add(rep, "millpond", case, "gb_s", bytes / 1e9 / seconds);
    results.add(rep, "millpond", case, "gb_per_processor_second", per_processor / 1e9);
    results.add(rep, "millpond", case, "of_copy", per_processor / copy);
    results.add(rep, "millpond", COPY, "gb_s", copy / 1e9);
    millpond.stop()
}

/// Waits until the pool is idle: with parity, the last writes are moved from the log class to their
/// final place.
fn settle(millpond: &Millpond) -> Result<()> {
    let begin = Instant::now();
    let moved = || Ok::<f64, anyhow::Error>(bytes_of(millpond, "read_bytes")? + bytes_of(millpond, "write_bytes")?);
    let mut before = moved()?;
    while begin.elapsed() < LONGEST_SETTLING {
        sleep(STILL);
        let now = moved()?;
        if now - before < STILL_BYTES {
            return Ok(());
        }
        before = now;
    }
    bail!("the pool does not come to rest in {LONGEST_SETTLING:?}")
}

/// Returns the bytes that all devices have read or written, by counter.
fn bytes_of(millpond: &Millpond, counter: &str) -> Result<f64> {
    let pool = millpond.control()?.get(&format!("/v1/pools/{POOL}"))?;
    let devices = pool.get("devices").and_then(serde_json::Value::as_array).context("the pool lists no devices")?;
    devices
        .iter()
        .map(|d| d.pointer(&format!("/io/{counter}")).and_then(serde_json::Value::as_f64))
        .sum::<Option<f64>>()
        .context("a device tells no bytes")
}

/// Returns the bytes that one thread copies between buffers, per second of CPU time.
fn copy_rate() -> Result<f64> {
    let (from, mut to) = (vec![1u8; BUFFER], vec![2u8; BUFFER]);
    rate(|| {
        black_box(&mut to).copy_from_slice(black_box(&from));
        Ok(())
    })
}

/// Returns the bytes of data for which one thread computes two parities, per second of CPU time:
/// stripe by stripe over six devices, with the engine's arithmetic.
fn encode_rate() -> Result<f64> {
    let coder = rusty_erasure::coder(Matrix::reed_solomon(DATA, PARITY).context("the matrix")?).context("the coder")?;
    let (from, mut parity) = (vec![1u8; BUFFER], vec![0u8; PARITY * UNIT]);
    rate(|| {
        for turn in black_box(&from).chunks_exact(DATA * UNIT) {
            let data: Vec<&[u8]> = turn.chunks_exact(UNIT).collect();
            let mut parity: Vec<&mut [u8]> = black_box(&mut parity).chunks_exact_mut(UNIT).collect();
            coder.encode(&data, &mut parity).context("parity")?;
        }
        Ok(())
    })
}

/// Returns bytes per second of CPU time of work that processes [`BUFFER`] bytes per call.
fn rate(mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let (begin, mut done, before) = (Instant::now(), 0.0, cpu_time(std::process::id())?);
    while begin.elapsed() < Duration::from_secs_f64(TIMED_SECONDS) {
        work()?;
        done += BUFFER as f64;
    }
    Ok(done / cpu_time(std::process::id())?.saturating_sub(before).as_secs_f64())
}
