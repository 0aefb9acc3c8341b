//! `monitor`: records processors, memory, disks and Millpond's counters as a line of CSV per
//! second, while a load runs with none, one and two snapshots.

use super::Setup;
use super::sample::note_machine;
use crate::load::{LoadSpec, Mix, run};
use crate::monitor::{COLUMNS, Monitor};
use crate::report::{Claim, Goal, Mark, Results, Series, median};
use anyhow::{Context, Result, ensure};

const CONTENDERS: [&str; 5] = ["millpond", "millpond-tuned", "qsd-raw", "qsd-chain", "qsd-qcow2-128k"];
const SIZE: u64 = 512 << 20;
const SECONDS: f64 = 60.0;
const LEAST_SECONDS: f64 = 3.0;
/// Least IOPS and most use of the processors with snapshots, relative to none.
const FLAT: f64 = 0.95;
const CPU: f64 = 1.1;

fn case(snapshots: u32) -> String {
    format!("8k half reads 2x16, {snapshots} snapshots")
}

pub fn run_monitor(setup: &Setup, results: &mut Results) -> Result<()> {
    let names = setup.contenders(&CONTENDERS, results);
    let secs = (SECONDS * setup.scale.min(1.0)).max(LEAST_SECONDS);
    for rep in 0..setup.long_reps {
        for turn in 0..names.len() {
            let Some(name) = names.get((turn + rep) % names.len()) else { continue };
            results.say(&format!("repetition {} of {}: {name}", rep + 1, setup.long_reps));
            one(setup, results, rep, name, secs).with_context(|| name.clone())?;
        }
    }
    results.note("each curve is one run with no, one and two snapshots after another; disks are those below the pools and images");
    for snapshots in 1..=2 {
        for name in CONTENDERS {
            results.relate(name, "iops", (&case(snapshots), &case(0)), "iops_to_none");
            results.relate(name, "cpu_percent", (&case(snapshots), &case(0)), "cpu_to_none");
        }
        results.goal(&case(snapshots), "iops_to_none", "millpond", Goal::AtLeast(FLAT));
        // in the article, the processors were twice as busy with snapshots
        results.goal(&case(snapshots), "cpu_to_none", "millpond", Goal::AtMost(CPU));
    }
    let figure = |results: &Results, snapshots, contender: &str| median(&results.values(&case(snapshots), "cpu_percent", contender));
    for (snapshots, published) in [(0, 2.56), (1, 5.15), (2, 5.19)] {
        let (theirs, ours) = (figure(results, snapshots, "qsd-chain"), figure(results, snapshots, "millpond"));
        let why = "there a load of files on a larger machine; here a load without a pause, and the load generator is counted";
        let says = format!("processors busy with {snapshots} snapshots");
        results.claim(Claim::new("A-resources", &says, published, "%").beside("qsd-chain", theirs).ours(ours).because(why));
    }
    Ok(())
}

/// Charts: title, column of the monitor, and divisor of its unit.
const CHARTS: [(&str, &str, f64); 7] = [
    ("processors busy, %", "cpu_percent", 1.0),
    ("server: processor time, % of one", "server_cpu_percent", 1.0),
    ("load average", "load", 1.0),
    ("memory in use, GB", "memory_used_bytes", 1e9),
    ("disk: writes per second", "disk_writes_s", 1.0),
    ("disk: MB written per second", "disk_write_bytes_s", 1e6),
    ("disk: time with requests in flight, %", "disk_busy_percent", 1.0),
];

/// Runs the load on a target with no, one and two snapshots, and keeps the curves.
fn one(setup: &Setup, results: &mut Results, rep: usize, name: &str, secs: f64) -> Result<()> {
    let mut open = setup.open(name, setup.size_or(SIZE))?;
    let endpoint = open.contender.endpoint()?;
    run(&endpoint, &LoadSpec::fill()).context("filling")?;
    let (mut seconds, mut marks) = (Vec::new(), Vec::new());
    for snapshots in 0..=2 {
        if snapshots > 0 {
            if name.starts_with("qsd-raw") {
                break; // a raw file has no snapshots
            }
            open.contender.snapshot(&format!("s{snapshots}"))?;
        }
        let csv = results.raw_file(&format!("{name}-{rep}-{snapshots}-snapshots.csv"))?;
        let monitor = Monitor::start(&csv, open.contender.pid()?, open.contender.control_socket(), &setup.dir)?;
        let spec = LoadSpec { jobs: 2, secs, seed: setup.seed_of(rep), ..LoadSpec::random(Mix::Both(50), 8192, 16) };
        let load = run(&endpoint, &spec)?;
        let record = monitor.finish()?;
        ensure!(load.errors == 0, "{} requests were refused", load.errors);
        results.add(rep, name, &case(snapshots), "iops", load.iops);
        note_machine(results, rep, name, &case(snapshots), &record.summary);
        marks.push(Mark { at: seconds.len() as f64, text: format!("{snapshots} snapshots") });
        seconds.extend(record.seconds);
    }
    for (chart, column, unit) in CHARTS {
        let Some(column) = COLUMNS.iter().find(|known| known.name == column) else { continue };
        let values: Vec<f64> = seconds.iter().filter_map(|second| Some((column.of)(second)? / unit)).collect();
        if values.len() == seconds.len() {
            let (chart, contender, marks) = (chart.to_owned(), name.to_owned(), marks.clone());
            results.series.push(Series { chart, contender, rep, interval: 1.0, values, marks });
        }
    }
    Ok(())
}
