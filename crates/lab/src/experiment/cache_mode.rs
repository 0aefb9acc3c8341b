//! `cachemode`: measures the five cache modes by ioping with direct I/O on the disk as a file:
//! single requests of four sizes, and sequential 4 MiB.

use super::Setup;
use crate::load::{LoadSpec, run};
use crate::peer::{CacheMode, Contender, DISK, ImageFormat, Qsd};
use crate::process::{Workspace, find_tool, run_tool};
use crate::report::{Claim, Results, median};
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::Path;

const SIZE: u64 = 512 << 20;
const SIZES: [&str; 4] = ["512", "4k", "64k", "1024k"];
const REQUESTS: u32 = 10;
/// Measurements per repetition, as in the article.
const TIMES: u64 = 10;
const CONTENDERS: [&str; 2] = ["millpond", "qsd-raw"];

pub fn run_cache_mode(setup: &Setup, results: &mut Results) -> Result<()> {
    if find_tool("ioping").is_none() {
        results.leave_out("ioping is not installed");
        return Ok(());
    }
    if !Path::new("/dev/fuse").exists() {
        results.leave_out("there is no /dev/fuse");
        return Ok(());
    }
    let names = setup.contenders(&CONTENDERS, results);
    let times = setup.scaled(TIMES, 1);
    results.note(&format!(
        "ioping -D -i 0 -c {REQUESTS} with the first request warming up, {times} times a repetition; figures are of the requests themselves, not of the \
         programs around them. In memory a flush costs nothing: --media disk shows what a mode costs on a device with a volatile cache"
    ));
    for rep in 0..setup.reps {
        for turn in 0..CacheMode::ALL.len() {
            let Some(mode) = CacheMode::ALL.get((turn + rep) % CacheMode::ALL.len()) else { continue };
            for name in &names {
                results.say(&format!("repetition {} of {}: {name}, {}", rep + 1, setup.reps, mode.name()));
                one(setup, results, rep, name, *mode, times).with_context(|| format!("{name}, {}", mode.name()))?;
            }
        }
    }
    claims(results);
    Ok(())
}

fn one(setup: &Setup, results: &mut Results, rep: usize, name: &str, mode: CacheMode, times: u64) -> Result<()> {
    let size = setup.size_or(SIZE);
    let (_workspace, mut contender): (Workspace, Box<dyn Contender>) = if name == "millpond" {
        let (workspace, millpond) = setup.open_millpond(size, 4 * size + (256 << 20), &[])?.into_parts();
        millpond.cli(&["set", &format!("cache={}", mode.name()), DISK])?;
        (workspace, Box::new(millpond))
    } else {
        let workspace = Workspace::new(&setup.dir, name)?;
        let mut server = Qsd::new("qsd-raw", ImageFormat::Raw).with_cache(mode);
        server.start(workspace.path(), size)?;
        (workspace, Box::new(server))
    };
    run(&contender.endpoint()?, &LoadSpec::fill()).context("filling")?;
    let file = contender.file()?;
    for (side, words) in [("read", &[][..]), ("write", &["-W", "-W", "-W"])] {
        for block in SIZES {
            let case = format!("{block} {side}");
            ioping(results, rep, (name, mode), &case, times, &[words, &["-s", block, "-S", &size.to_string()]].concat(), &file)?;
        }
        let case = format!("linear 4m {side}");
        ioping(results, rep, (name, mode), &case, times, &[words, &["-L", "-s", "4m", "-S", &size.to_string()]].concat(), &file)?;
    }
    contender.stop()
}

fn label(name: &str, mode: CacheMode) -> String {
    format!("{name}, {}", mode.name())
}

fn ioping(results: &mut Results, rep: usize, whose: (&str, CacheMode), case: &str, times: u64, words: &[&str], file: &Path) -> Result<()> {
    let label = label(whose.0, whose.1);
    let mut latencies = Vec::new();
    for time in 0..times {
        let seed = time.to_string();
        let file = file.display().to_string();
        let count = (REQUESTS + 1).to_string(); // the first does not count
        let text = run_tool("ioping", &[&["-J", "-D", "-i", "0", "-c", &count, "-e", &seed], words, &[file.as_str()]].concat())?;
        results.keep(&format!("{label}-{rep}-{case}-{time}.json"), &text)?;
        let report: Value = serde_json::from_str(&text).context("ioping printed no JSON")?;
        let requests = report.as_array().into_iter().flatten().filter_map(|entry| entry.get("io"));
        let counted = requests.filter(|io| io.get("ignored").and_then(Value::as_bool) == Some(false));
        latencies.extend(counted.filter_map(|io| Some(io.get("time")?.as_f64()? / 1e3)));
    }
    let all = crate::load::Latency::of_samples(&latencies);
    anyhow::ensure!(all.count > 0, "ioping reports no request");
    results.add(rep, &label, case, "iops", 1e6 / all.mean_us.max(1e-3));
    results.add(rep, &label, case, "p50_us", all.p50_us);
    results.add(rep, &label, case, "p99_us", all.p99_us);
    Ok(())
}

fn claims(results: &mut Results) {
    let ratio = |results: &Results, contender: &str, case: &str, one: CacheMode, other: CacheMode| {
        median(&results.ratios(case, "iops", &label(contender, one), &label(contender, other)))
    };
    let why = "QEMU in a guest on a controller with a battery there, FUSE exports here";
    for (says, figure, case, one, other) in [
        ("4k writes, unsafe to writeback (more than)", 1.25, "4k write", CacheMode::Unsafe, CacheMode::Writeback),
        ("linear 4 MiB reads, writethrough to none (up to)", 5.0, "linear 4m read", CacheMode::Writethrough, CacheMode::None),
        ("linear 4 MiB reads, unsafe to directsync (up to)", 5.0, "linear 4m read", CacheMode::Unsafe, CacheMode::Directsync),
        ("4k reads, writeback to none (within 10-15 %)", 1.0, "4k read", CacheMode::Writeback, CacheMode::None),
    ] {
        let (theirs, ours) = (ratio(results, "qsd-raw", case, one, other), ratio(results, "millpond", case, one, other));
        results.claim(Claim::new("E-load", says, figure, "x").by("qsd-raw", theirs, 1.25).ours(ours).because(why));
    }
}
