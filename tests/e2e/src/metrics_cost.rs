//! Cost of scrapes for guests, measured on request.

use super::metrics::scrape;
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::load::{self, Client, Endpoint, LoadSpec, Mix, Op};
use millpond_lab::peer::{Contender, Millpond};
use millpond_lab::process::{Workspace, cpu_time};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const VOLUMES: usize = 500;
/// Snapshots of each volume: 10,000 in all.
const SNAPSHOTS: usize = 20;
/// Measurements with scrapes, and as many without.
const PAIRS: usize = 9;
/// Length of a measurement in seconds.
const SECS: f64 = 5.0;
/// Scrapes whose time is measured without a load.
const SCRAPES: u32 = 50;
const EVERY: Duration = Duration::from_secs(1);
/// Least requests per second with scrapes relative to those without.
const GOAL: f64 = 0.99;

/// Makes the volumes, snapshots and exports, and sends one request of each kind to each volume, so
/// that all histograms exist. Returns the first volume's export.
fn prepare(millpond: &mut Millpond, dir: &Path) -> Result<Endpoint> {
    let device = format!("{}:8G", dir.join("device").display());
    millpond.cli(&["pool", "create", "tank", &device])?;
    for volume in 0..VOLUMES {
        millpond.cli(&["create", &format!("tank/vm{volume}"), "-L", "64M"])?;
    }
    for snapshot in 0..SNAPSHOTS {
        let names: Vec<String> = (0..VOLUMES).map(|volume| format!("tank/vm{volume}@s{snapshot}")).collect();
        let words: Vec<&str> = std::iter::once("snapshot").chain(names.iter().map(String::as_str)).collect();
        millpond.cli(&words)?;
    }
    let mut first = None;
    for volume in 0..VOLUMES {
        let name = format!("tank/vm{volume}");
        let socket = dir.join(format!("{volume}.sock"));
        millpond.cli(&["export", "nbd", &name, "--unix", &socket.display().to_string()])?;
        let endpoint = Endpoint::unix(&socket, &name);
        let mut client = Client::connect(&endpoint, 1, 4096, false)?;
        for op in [Op::Write, Op::Read, Op::Flush] {
            client.call(op, 0, if op == Op::Flush { 0 } else { 4096 })?;
        }
        first.get_or_insert(endpoint);
    }
    first.context("no volume")
}

/// Measures requests per second, with or without scrapes.
fn measure(endpoint: &Endpoint, spec: &LoadSpec, scraped: Option<&Path>) -> Result<f64> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let scraper = scraped.map(|socket| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let begin = Instant::now();
                    scrape(socket, Some("application/openmetrics-text"))?;
                    thread::sleep(EVERY.saturating_sub(begin.elapsed()));
                }
                anyhow::Ok(())
            })
        });
        let result = load::run(endpoint, spec);
        over.store(true, Ordering::Relaxed);
        if let Some(scraper) = scraper {
            scraper.join().map_err(|_| anyhow::anyhow!("the scraper panicked"))??;
        }
        let result = result?;
        ensure!(result.errors == 0, "{} errors, the first {}", result.errors, result.first_error);
        Ok(result.iops)
    })
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}

/// One scrape a second costs guests less than 1 % of their requests, with 500 volumes and 10,000
/// snapshots. Needs a machine without other work.
pub fn run(subject: &mut Subject) -> Result<()> {
    let dir = subject.file("server");
    let memory = Path::new("/dev/shm");
    let room = Workspace::new(if memory.is_dir() { memory } else { subject.dir() }, "metrics-cost")?;
    let millpond = subject.millpond()?;
    millpond.start_empty(&dir)?;
    let endpoint = prepare(millpond, room.path())?;
    let socket = Millpond::control_socket(millpond);
    let (_, text) = scrape(&socket, Some("application/openmetrics-text"))?;
    let samples = text.lines().filter(|line| !line.starts_with('#')).count();
    println!("a scrape has {samples} samples in {} KiB", text.len() >> 10);
    let (begin, cpu) = (Instant::now(), cpu_time(millpond.pid()?)?);
    for _ in 0..SCRAPES {
        scrape(&socket, Some("application/openmetrics-text"))?;
    }
    let millis = |total: Duration| total.as_secs_f64() * 1e3 / f64::from(SCRAPES);
    let cpu = cpu_time(millpond.pid()?)?.saturating_sub(cpu);
    println!("a scrape takes {:.1} ms, and {:.1} ms of CPU of the daemon", millis(begin.elapsed()), millis(cpu));
    let mut worst: f64 = 1.0;
    for (name, mix) in [("reads", Mix::Read), ("writes", Mix::Write)] {
        let spec = LoadSpec { secs: SECS, ramp: 0.5, ..LoadSpec::random(mix, 4096, 32) };
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for pair in 0..PAIRS {
            // in turns, so that what changes slowly affects both
            for scraped in [pair % 2 == 0, pair % 2 == 1] {
                let figures = if scraped { &mut with } else { &mut without };
                figures.push(measure(&endpoint, &spec, scraped.then_some(socket.as_path()))?);
            }
        }
        let (with, without) = (median(with), median(without));
        println!("random {name} of 4 KiB, 32 in flight: {with:.0}/s with scrapes, {without:.0}/s without, {:.4}", with / without);
        worst = worst.min(with / without);
    }
    ensure!(worst >= GOAL, "scrapes cost {:.1} % of the requests", 100.0 * (1.0 - worst));
    millpond.stop()
}
