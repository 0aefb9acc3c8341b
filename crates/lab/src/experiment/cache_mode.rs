//! `cachemode`: measures the five cache modes by ioping with direct I/O on the disk as a file:
//! single requests of four sizes, and sequential 4 MiB.

use super::Setup;
use crate::load::{Access, Endpoint, LoadSpec, Mix, run};
use crate::peer::{CacheMode, Contender, DISK, Drives, ImageFormat, Millpond, Qsd, millpond_binary};
use crate::process::{Workspace, find_tool, run_tool};
use crate::report::{Claim, Results, median};
use anyhow::{Context, Result};
use serde_json::Value;
use std::ops::RangeInclusive;
use std::path::Path;

const SIZE: u64 = 512 << 20;
const SIZES: [&str; 4] = ["512", "4k", "64k", "1024k"];
/// Simulated drive below the disks.
const DRIVE: &str = "sata-ssd";
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
    let medium = match Drives::check() {
        Ok(()) => format!("a simulated {DRIVE}, whose flush takes time"),
        Err(reason) => format!("files, whose flush may cost nothing: drives cannot be simulated: {reason:#}"),
    };
    results.note(&format!(
        "disks are on {medium}; FUSE: ioping -D -i 0 -c {REQUESTS} with the first request warming up; NBD and vhost-user (a front end without a guest): as \
         many requests by the lab, one at a time; {times} times a repetition; figures are of the requests themselves, not of the programs around them"
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

/// Starts a server in a cache mode, on a simulated drive if there can be one. The server must be
/// dropped first, then the drive, then the directory: the opposite order of the result.
fn open(setup: &Setup, name: &str, mode: CacheMode) -> Result<(Workspace, Option<Drives>, Box<dyn Contender>)> {
    let size = setup.size_or(SIZE);
    let workspace = Workspace::new(&setup.dir, name)?;
    let bytes = if name == "millpond" { 4 * size + (256 << 20) } else { size };
    let drives = Drives::check().ok().map(|()| Drives::start(workspace.path(), &[format!("{DRIVE}={bytes}")])).transpose()?;
    let drive = drives.as_ref().and_then(|drives| drives.files().pop());
    let contender: Box<dyn Contender> = if name == "millpond" {
        let mut millpond = Millpond::new(millpond_binary()?);
        match drive {
            Some(drive) => millpond.start_with(workspace.path(), &[drive.display().to_string()], size)?,
            None => millpond.start(workspace.path(), size)?,
        }
        millpond.cli(&["set", &format!("cache={}", mode.name()), DISK])?;
        Box::new(millpond)
    } else {
        let server = drive.map_or_else(|| Qsd::new("qsd-raw", ImageFormat::Raw), |drive| Qsd::on("qsd-raw", &drive));
        let mut server = server.with_cache(mode);
        server.start(workspace.path(), size)?;
        Box::new(server)
    };
    Ok((workspace, drives, contender))
}

fn one(setup: &Setup, results: &mut Results, rep: usize, name: &str, mode: CacheMode, times: u64) -> Result<()> {
    let size = setup.size_or(SIZE);
    let (_workspace, _drives, mut contender) = open(setup, name, mode)?;
    let endpoint = contender.endpoint()?;
    run(&endpoint, &LoadSpec::fill()).context("filling")?;
    let seed = setup.seed_of(rep);
    requests(results, rep, (name, mode), (Protocol::Nbd, &endpoint), (times, seed))?;
    let endpoint = contender.vhost_user()?;
    requests(results, rep, (name, mode), (Protocol::VhostUser, &endpoint), (times, seed))?;
    let file = contender.file()?;
    for (side, words) in [("read", &[][..]), ("write", &["-W", "-W", "-W"])] {
        for block in SIZES {
            let case = case(Protocol::Fuse, &format!("{block} {side}"));
            ioping(results, rep, (name, mode), &case, times, &[words, &["-s", block, "-S", &size.to_string()]].concat(), &file)?;
        }
        let case = case(Protocol::Fuse, &format!("linear 4m {side}"));
        ioping(results, rep, (name, mode), &case, times, &[words, &["-L", "-s", "4m", "-S", &size.to_string()]].concat(), &file)?;
    }
    contender.stop()
}

/// Way to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Fuse,
    Nbd,
    VhostUser,
}

impl Protocol {
    const ALL: [Protocol; 3] = [Protocol::Fuse, Protocol::Nbd, Protocol::VhostUser];

    fn name(self) -> &'static str {
        match self {
            Protocol::Fuse => "FUSE",
            Protocol::Nbd => "NBD",
            Protocol::VhostUser => "vhost-user",
        }
    }

    /// Name and bytes of a sequential request; the lab's vhost-user front end has none of 4 MiB.
    fn linear(self) -> (&'static str, usize) {
        if self == Protocol::VhostUser { ("linear 2m", 2 << 20) } else { ("linear 4m", 4 << 20) }
    }
}

fn case(protocol: Protocol, load: &str) -> String {
    format!("{}, {load}", protocol.name())
}

/// Sends the requests of ioping by the lab's own client, one at a time.
fn requests(
    results: &mut Results,
    rep: usize,
    (name, mode): (&str, CacheMode),
    (protocol, endpoint): (Protocol, &Endpoint),
    (times, seed): (u64, u64),
) -> Result<()> {
    let sizes = SIZES.into_iter().zip([512, 4 << 10, 64 << 10, 1 << 20]);
    let loads = sizes.map(|(words, bytes)| (words.to_owned(), bytes, Access::Uniform));
    let (linear, bytes) = protocol.linear();
    let loads: Vec<_> = loads.chain([(linear.to_owned(), bytes, Access::Sequential)]).collect();
    for (side, mix) in [("read", Mix::Read), ("write", Mix::Write)] {
        for (words, block, access) in &loads {
            let (ops, access) = (u64::from(REQUESTS) * times, *access);
            let spec = LoadSpec { ops, access, secs: 600.0, ramp: 0.0, seed, ..LoadSpec::random(mix, *block, 1) };
            let load = run(endpoint, &spec).with_context(|| format!("{} {words} {side}", protocol.name()))?;
            anyhow::ensure!(load.errors == 0, "{} requests were refused", load.errors);
            let latency = if mix == Mix::Read { load.read } else { load.write };
            let (label, case) = (label(name, mode), case(protocol, &format!("{words} {side}")));
            results.add(rep, &label, &case, "iops", 1e6 / latency.mean_us.max(1e-3));
            results.add(rep, &label, &case, "p50_us", latency.p50_us);
            results.add(rep, &label, &case, "p99_us", latency.p99_us);
        }
    }
    Ok(())
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

/// Compares every statement of the article, over each protocol.
fn claims(results: &mut Results) {
    use CacheMode::{Directsync, None, Unsafe, Writeback, Writethrough};
    const PEER: &str = "qsd-raw";
    for protocol in Protocol::ALL {
        let why = results
            .why(PEER, &format!("QEMU in a guest on a controller with a battery there, {} on a simulated SSD here", protocol.name()));
        let mut compare = |says: &str, figure: f64, range: RangeInclusive<f64>, of: &dyn Fn(&Results, &str) -> Option<f64>| {
            let (theirs, ours) = (of(results, PEER), of(results, "millpond"));
            let claim = Claim::new("E-load", &case(protocol, says), figure, "x").by_range(PEER, theirs, range).ours(ours);
            results.claim(claim.because(&why));
        };
        let ratio = |load: &str, one: CacheMode, other: CacheMode| {
            let case = case(protocol, load);
            move |results: &Results, name: &str| median(&results.ratios(&case, "iops", &label(name, one), &label(name, other)))
        };
        compare("4k writes, unsafe to writeback (more than)", 1.25, 1.25..=f64::INFINITY, &ratio("4k write", Unsafe, Writeback));
        for (fast, slow) in [(Unsafe, None), (Unsafe, Directsync), (Writethrough, None), (Writethrough, Directsync)] {
            let load = format!("{} read", protocol.linear().0);
            let says = format!("{load}s, {} to {} (up to)", fast.name(), slow.name());
            compare(&says, 5.0, 2.5..=7.5, &ratio(&load, fast, slow));
        }
        let linear = format!("{} write", protocol.linear().0);
        for load in ["512 read", "4k read", "64k read", "1024k read", "512 write", "64k write", "1024k write", &linear] {
            let case = case(protocol, load);
            let spread = |results: &Results, name: &str| {
                let of = |mode: CacheMode| median(&results.values(&case, "iops", &label(name, mode)));
                let figures: Vec<f64> = CacheMode::ALL.into_iter().filter_map(of).collect();
                Some(figures.iter().copied().reduce(f64::max)? / figures.iter().copied().reduce(f64::min)?)
            };
            compare(&format!("{load}s, fastest mode to slowest (10-15 % mostly)"), 1.15, 1.0..=1.15, &spread);
        }
    }
}
