//! `snapshot-timeline`: one load over time, with a point per second: without snapshots, while ten
//! are taken one by one, while they are held, and after all are deleted at once.

use super::Setup;
use crate::load::{LoadResult, LoadSpec, Mix, run, run_until};
use crate::report::{Cell, Claim, Goal, Mark, Matrix, Results, Timeline, median};
use anyhow::{Context, Result, anyhow};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const CONTENDERS: [&str; 6] = ["millpond", "millpond-tuned", "qsd-chain", "qsd-qcow2-128k", "xfs-reflink", "btrfs-reflink"];
const SIZE: u64 = 2 << 30;
const SNAPSHOTS: u32 = 10;
/// Connections, requests in flight on each, and all of them.
const JOBS: usize = 2;
const DEPTH: usize = 16;
const IN_FLIGHT: f64 = (JOBS * DEPTH) as f64;
/// Least share of the IOPS alone that a phase may have in the mean, and its worst second of the
/// median second alone, to count as flat.
const FLAT: f64 = 0.95;
const FLAT_SECOND: f64 = 0.85;
/// Phases: seconds at scale 1, and the minimum.
const PHASES: [(&str, f64, f64); 4] = [
    ("load alone", 600.0, 4.0),
    ("taking 10 snapshots", 120.0, 2.0),
    ("holding them", 600.0, 4.0),
    ("after the deletion of all", 600.0, 4.0),
];

/// Events and latencies recorded while the load runs.
#[derive(Default)]
struct Log {
    marks: Vec<Mark>,
    /// End of the last phase, in seconds since the start of the first.
    end: f64,
    create_ms: Vec<f64>,
    delete_ms: f64,
}

pub fn run_timeline(setup: &Setup, results: &mut Results) -> Result<()> {
    let names = setup.contenders(&CONTENDERS, results);
    results.note(
        "the article loads two disks with 16 threads each and quiesces the guest for each snapshot; here it is one disk, two connections with 16 \
         requests each, and no guest",
    );
    for rep in 0..setup.long_reps {
        for turn in 0..names.len() {
            let Some(name) = names.get((turn + rep) % names.len()) else { continue };
            results.say(&format!("repetition {} of {}: {name}", rep + 1, setup.long_reps));
            one(setup, results, rep, name).with_context(|| name.clone())?;
        }
    }
    phase_table(results, &names);
    goals(results);
    claims(results);
    Ok(())
}

fn lengths(setup: &Setup) -> [f64; 4] {
    PHASES.map(|(_, usual, least)| (usual * setup.scale).max(least))
}

fn one(setup: &Setup, results: &mut Results, rep: usize, name: &str) -> Result<()> {
    let size = setup.size_or(SIZE);
    // writes of this kind fill gigabytes in a minute; the cleaner keeps up with data that no
    // snapshot holds
    let (_workspace, mut contender) = setup.open_with_pool(name, size, 14 * size + (1 << 30))?.into_parts();
    let endpoint = contender.endpoint()?;
    run(&endpoint, &LoadSpec::fill()).context("filling")?;
    let spec =
        LoadSpec { secs: 86_400.0, jobs: JOBS, series_ms: 1000, seed: setup.seed_of(rep), ..LoadSpec::random(Mix::Both(50), 8192, DEPTH) };
    let stop = AtomicBool::new(false);
    let (load, log) = thread::scope(|scope| {
        let load = scope.spawn(|| run_until(&endpoint, &spec, &stop));
        thread::sleep(Duration::from_secs_f64(spec.ramp));
        let log = phases(setup, contender.as_mut());
        stop.store(true, Ordering::Relaxed);
        let load = load.join().unwrap_or_else(|_| Err(anyhow!("the load panicked")))?;
        Ok::<_, anyhow::Error>((load, log?))
    })?;
    anyhow::ensure!(load.errors == 0, "{} requests were refused", load.errors);
    note(results, rep, name, &load, &log);
    results.timelines.push(Timeline::of(name, rep, 1.0, &load, log.marks));
    Ok(())
}

/// Runs the phases beside the load.
fn phases(setup: &Setup, contender: &mut dyn crate::peer::Contender) -> Result<Log> {
    let begin = Instant::now();
    let mut log = Log::default();
    for ((text, ..), length) in PHASES.into_iter().zip(lengths(setup)) {
        log.marks.push(Mark { at: begin.elapsed().as_secs_f64(), text: text.to_owned() });
        let phase = Instant::now();
        if text.starts_with("taking") {
            for n in 0..SNAPSHOTS {
                let before = Instant::now();
                log.marks.push(Mark { at: begin.elapsed().as_secs_f64(), text: String::new() });
                contender.snapshot(&format!("t{n}"))?;
                log.create_ms.push(before.elapsed().as_secs_f64() * 1e3);
                let next = Duration::from_secs_f64(length * f64::from(n + 1) / f64::from(SNAPSHOTS));
                thread::sleep(next.saturating_sub(phase.elapsed()));
            }
        } else if text.starts_with("after") {
            contender.delete_snapshots()?;
            log.delete_ms = phase.elapsed().as_secs_f64() * 1e3;
        }
        thread::sleep(Duration::from_secs_f64(length).saturating_sub(phase.elapsed()));
    }
    log.end = begin.elapsed().as_secs_f64();
    Ok(log)
}

fn note(results: &mut Results, rep: usize, name: &str, load: &LoadResult, log: &Log) {
    let phases: Vec<&Mark> = log.marks.iter().filter(|mark| !mark.text.is_empty()).collect();
    let ends = phases.iter().skip(1).map(|mark| mark.at).chain([log.end]);
    let mut usual = None;
    for (mark, end) in phases.iter().zip(ends) {
        // only seconds that lie completely in the phase
        let (first, last) = (mark.at.ceil() as usize, (end.floor() as usize).min(load.series.len()));
        let points = load.series.get(first..last).unwrap_or_default();
        let each: Vec<f64> = points.iter().map(|p| p.ops as f64).collect();
        let Some(worst) = each.iter().copied().reduce(f64::min) else { continue };
        let ops: f64 = each.iter().sum();
        let mean = ops / each.len() as f64;
        let usual = *usual.get_or_insert((mean, median(&each).unwrap_or(mean)));
        results.add(rep, name, &mark.text, "iops", mean);
        results.add(rep, name, &mark.text, "mean_us", points.iter().map(|p| p.sum_us).sum::<f64>() / ops.max(1.0));
        results.add(rep, name, &mark.text, "littles_law_us", IN_FLIGHT / mean * 1e6);
        results.add(rep, name, &mark.text, "iops_to_alone", mean / usual.0);
        results.add(rep, name, &mark.text, "worst_second_to_alone", worst / usual.1);
        results.add(rep, name, &mark.text, "worst_second_iops", worst);
        results.add(rep, name, &mark.text, "longest_us", points.iter().map(|p| p.max_us).fold(0.0, f64::max));
    }
    results.add(rep, name, "one snapshot", "create_ms", median(&log.create_ms).unwrap_or_default());
    results.add(rep, name, "one snapshot", "slowest_ms", log.create_ms.iter().copied().fold(0.0, f64::max));
    results.add(rep, name, "deletion of all", "delete_ms", log.delete_ms);
}

/// Lists the phases of all targets. By Little's law, the requests in flight divided by their rate are
/// the mean latency: a difference would be an error of the measurement.
fn phase_table(results: &mut Results, names: &[String]) {
    let head = ["server, phase", "IOPS", "worst second", "mean latency, us", "32 / IOPS, us", "longest, us"].map(str::to_owned).into();
    let mut rows = Vec::new();
    for name in names {
        for (phase, ..) in PHASES {
            let figure = |metric: &str| {
                let value = median(&results.values(phase, metric, name));
                Cell::plain(&value.map_or(String::new(), |value| format!("{value:.0}")))
            };
            let figures = ["iops", "worst_second_iops", "mean_us", "littles_law_us", "longest_us"].map(figure);
            rows.push(std::iter::once(Cell::plain(&format!("{name}, {phase}"))).chain(figures).collect());
        }
    }
    results.matrices.push(Matrix { title: "Phases".to_owned(), head, rows });
}

/// Judges flatness: the mean second and the worst second of each phase with snapshots, and after
/// them, relative to the load alone.
fn goals(results: &mut Results) {
    for (phase, ..) in PHASES.into_iter().skip(1) {
        results.goal(phase, "iops_to_alone", "millpond", Goal::AtLeast(FLAT));
        results.goal(phase, "worst_second_to_alone", "millpond", Goal::AtLeast(FLAT_SECOND));
    }
}

fn claims(results: &mut Results) {
    for phase in ["taking 10 snapshots", "holding them", "after the deletion of all"] {
        let says = format!("native snapshots (flat): IOPS to IOPS before, {phase}");
        let ours = median(&results.values(phase, "iops_to_alone", "millpond"));
        let why = "the article's product cannot run here; ours is beside it";
        results.claim(Claim::new("B-timeline", &says, 1.0, "").ours(ours).because(why));
    }
    let seconds = |metric: &str, case: &str| median(&results.values(case, metric, "millpond")).map(|ms| ms / 1e3);
    let (create, delete) = (seconds("create_ms", "one snapshot"), seconds("delete_ms", "deletion of all"));
    let why = "the article's product cannot run here, and its snapshots quiesce a guest";
    results.claim(Claim::new("B-timeline", "native snapshots: one snapshot takes (4-5)", 4.5, "s").ours(create).because(why));
    results.claim(Claim::new("B-timeline", "native snapshots: deletion of ten takes", 3.0, "s").ours(delete).because(why));
}
