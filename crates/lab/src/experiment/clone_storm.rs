//! `clone-storm`: makes many clones of one disk one after another and measures time and space of
//! each; then loads some of them at once.

use super::Setup;
use crate::load::{Latency, LoadSpec, Mix, run};
use crate::peer::{Contender, DISK, POOL, make};
use crate::process::{Workspace, find_tool, run_tool};
use crate::report::{Goal, Results, median};
use anyhow::{Context, Result, anyhow};
use serde_json::json;
use std::thread;
use std::time::Instant;

const CONTENDERS: [&str; 4] = ["millpond", "qemu-img-overlay", "xfs-reflink", "btrfs-reflink"];
const SIZE: u64 = 512 << 20;
const CLONES: u64 = 1000;
const LEAST: u64 = 20;
const CASE: &str = "one clone";
const LOADED: usize = 8;

pub fn run_clone_storm(setup: &Setup, results: &mut Results) -> Result<()> {
    let clones = setup.scaled(CLONES, LEAST);
    results.note(&format!(
        "{clones} clones; ours over the control socket, a peer's by a program that is started for each, which is how they are made (qemu-img, cp); where a \
         clone takes a peer up to a second, it makes {LEAST}"
    ));
    let able: Vec<&str> = CONTENDERS.into_iter().filter(|name| is_able(setup, results, name)).collect();
    for rep in 0..setup.reps {
        for turn in 0..able.len() {
            let Some(name) = able.get((turn + rep) % able.len()) else { continue };
            results.say(&format!("repetition {} of {}: {name}", rep + 1, setup.reps));
            match *name {
                "millpond" => ours(setup, results, rep, clones),
                "qemu-img-overlay" => overlays(setup, results, rep, clones),
                name => reflinks(setup, results, rep, name),
            }
            .with_context(|| (*name).to_owned())?;
        }
    }
    results.goal(CASE, "p99_us", "millpond", Goal::AtMost(10_000.0));
    Ok(())
}

fn is_able(setup: &Setup, results: &mut Results, name: &str) -> bool {
    if name != "qemu-img-overlay" {
        return !setup.contenders(&[name], results).is_empty();
    }
    let wanted = setup.peers.is_empty() || setup.peers.iter().any(|peer| peer == "qsd-chain");
    if wanted && find_tool("qemu-img").is_none() {
        results.skip(name, "qemu-img is not installed");
    }
    wanted && find_tool("qemu-img").is_some()
}

fn note(results: &mut Results, rep: usize, name: &str, took: &[f64]) {
    let latency = Latency::of_samples(took);
    results.add(rep, name, CASE, "p50_us", latency.p50_us);
    results.add(rep, name, CASE, "p99_us", latency.p99_us);
    results.add(rep, name, CASE, "longest_us", latency.max_us);
    let part = |from: usize| median(took.iter().skip(from).take(LEAST as usize / 2).copied().collect::<Vec<f64>>().as_slice());
    if let Some((first, last)) = part(0).zip(part(took.len().saturating_sub(LEAST as usize / 2))) {
        results.add(rep, name, CASE, "last_to_first", last / first);
    }
}

/// Returns the microseconds that a step takes.
fn timed(step: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begin = Instant::now();
    step().map(|()| begin.elapsed().as_secs_f64() * 1e6)
}

fn ours(setup: &Setup, results: &mut Results, rep: usize, clones: u64) -> Result<()> {
    let size = setup.size_or(SIZE);
    let open = setup.open_millpond(size, 4 * size + (1 << 30), &[])?;
    let millpond = &open.millpond;
    run(&millpond.endpoint()?, &LoadSpec::fill())?;
    let mut control = millpond.control()?;
    control.post("/v1/snapshots", &json!({"names": [format!("{DISK}@base")]}))?;
    let before = millpond.counters()?.allocated;
    let mut took = Vec::new();
    for n in 0..clones {
        let name = json!({"name": format!("{POOL}/clone{n}")});
        took.push(timed(|| control.post(&format!("/v1/snapshots/{DISK}/base/clone"), &name).map(|_| ()))?);
    }
    note(results, rep, "millpond", &took);
    let bytes = (millpond.counters()?.allocated - before).max(0.0) / clones as f64;
    results.add(rep, "millpond", "space", "bytes_per_clone", bytes);
    let spec = |seed: u64| LoadSpec { secs: setup.secs, seed, ..LoadSpec::random(Mix::Both(50), 4096, 8) };
    let alone = run(&millpond.endpoint()?, &spec(1))?;
    results.add(rep, "millpond", "4k half reads, q8, the original alone", "iops", alone.iops);
    let endpoints = (0..LOADED).map(|n| millpond.export(&format!("{POOL}/clone{n}"))).collect::<Result<Vec<_>>>()?;
    let loads: Vec<Result<crate::load::LoadResult>> = thread::scope(|scope| {
        let threads: Vec<_> =
            endpoints.iter().enumerate().map(|(n, endpoint)| scope.spawn(move || run(endpoint, &spec(n as u64)))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("a load panicked")))).collect()
    });
    let loads = loads.into_iter().collect::<Result<Vec<_>>>()?;
    let case = format!("4k half reads, q8, {LOADED} clones at once");
    results.add(rep, "millpond", &case, "iops", loads.iter().map(|load| load.iops).sum());
    Ok(())
}

fn overlays(setup: &Setup, results: &mut Results, rep: usize, clones: u64) -> Result<()> {
    let workspace = Workspace::new(&setup.dir, "overlays")?;
    let place = |name: &str| workspace.path().join(name).display().to_string();
    let options = ["create", "-q", "-f", "qcow2", "-o", "cluster_size=131072,extended_l2=on"];
    let (base, size) = (place("base.qcow2"), setup.size_or(SIZE).to_string());
    run_tool("qemu-img", &[&options[..], &[&base, &size]].concat())?;
    let mut took = Vec::new();
    for n in 0..clones {
        let overlay = place(&format!("clone{n}.qcow2"));
        took.push(timed(|| run_tool("qemu-img", &[&options[..], &["-b", &base, "-F", "qcow2", &overlay]].concat()).map(|_| ()))?);
    }
    note(results, rep, "qemu-img-overlay", &took);
    let file = std::fs::metadata(place("clone0.qcow2")).context("looking at a clone")?;
    results.add(rep, "qemu-img-overlay", "space", "bytes_per_clone", std::os::unix::fs::MetadataExt::blocks(&file) as f64 * 512.0);
    Ok(())
}

fn reflinks(setup: &Setup, results: &mut Results, rep: usize, name: &str) -> Result<()> {
    let workspace = Workspace::new(&setup.dir, name)?;
    let mut contender = make(name)?;
    contender.start(workspace.path(), setup.size_or(SIZE))?;
    run(&contender.endpoint()?, &LoadSpec::fill())?;
    run(&contender.endpoint()?, &LoadSpec::scramble(setup.seed_of(rep)))?;
    let took = (0..LEAST).map(|n| timed(|| contender.snapshot(&format!("clone{n}")))).collect::<Result<Vec<f64>>>()?;
    note(results, rep, name, &took);
    contender.stop()
}
