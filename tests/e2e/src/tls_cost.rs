//! Encryption by helpers, compared with encryption by the pool's thread; measured on request.

use super::subject::Subject;
use super::tls::{Bench, authority, uri};
use anyhow::{Context, Result, ensure};
use millpond_lab::load::{self, Access, Endpoint, LoadSpec, Mix};
use millpond_lab::peer::{Contender, Millpond, millpond_binary};
use millpond_lab::process::{Workspace, cpu_time, run_tool};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

const SINK: &str = include_str!("tls_sink.py");
const SIZE: u64 = 512 << 20;
/// Measurements of each case and server.
const REPETITIONS: usize = 7;
/// Length of a measurement in seconds.
const SECS: f64 = 2.0;
const GIB: f64 = (1u64 << 30) as f64;
/// Least bytes per second with a helper, relative to none, for a client that does not decrypt. It has a
/// processor of its own only on a machine with [`ENOUGH`].
const GOAL: f64 = 1.6;
const ENOUGH: usize = 4;
/// Most processor time of the pool's thread for each byte, relative to that without a helper.
const GOAL_POOL: f64 = 0.75;
/// Least requests per second of one client with one request in flight, with a helper relative to none.
const GOAL_ALONE: f64 = 0.97;
/// Bytes of a volume that is read in small requests.
const SMALL: u64 = 64 << 20;

/// A client with one request in flight.
struct Alone {
    name: &'static str,
    bytes: u64,
    /// It reads the small volume.
    is_small: bool,
}

const ALONE: [Alone; 3] = [
    Alone { name: "TLS 4k alone, /s", bytes: 4096, is_small: true },
    Alone { name: "TLS 64k alone, /s", bytes: 64 << 10, is_small: false },
    Alone { name: "TLS 1m alone, /s", bytes: 1 << 20, is_small: false },
];

/// A daemon, and the addresses of its volume.
struct Server {
    millpond: Millpond,
    plain: Endpoint,
    /// Ports with TLS of the volume, and of the small one.
    port: u16,
    small: u16,
}

/// Figures by name.
type Figures = BTreeMap<&'static str, Vec<f64>>;

impl Server {
    fn start(dir: &Path, helpers: usize, pki: &str) -> Result<Server> {
        fs::create_dir_all(dir)?;
        let setting = format!("helper_threads = {helpers}");
        let mut millpond = Millpond::new(millpond_binary()?).tuned().with_setting(&setting);
        millpond.start(dir, SIZE)?;
        let plain = millpond.endpoint()?;
        let fill = LoadSpec { mix: Mix::Write, access: Access::Sequential, block: 1 << 20, depth: 4, once: true, ..LoadSpec::default() };
        load::run(&plain, &fill)?;
        millpond.cli(&["create", "lab/small", "-L", &SMALL.to_string()])?;
        let port_of = |volume| {
            millpond.cli(&["export", "nbd", volume, "--force", "--tcp", "127.0.0.1:0", "--tls", "require", "--tls-dir", pki])?;
            let (_, address) = uri(&millpond, "nbds://127.0.0.1:")?;
            address.rsplit(':').next().and_then(|port| port.parse().ok()).context("no port")
        };
        let (port, small) = (port_of("lab/disk")?, port_of("lab/small")?);
        Ok(Server { millpond, plain, port, small })
    }

    /// Processor time of the thread that has the pool.
    fn pool_time(&self) -> Result<Duration> {
        let tasks = format!("/proc/{}/task", self.millpond.pid()?);
        for task in fs::read_dir(tasks)? {
            let task = task?;
            if fs::read_to_string(task.path().join("comm"))?.trim() == "shard" {
                let id = task.file_name().to_string_lossy().parse()?;
                return cpu_time(id);
            }
        }
        anyhow::bail!("no thread of a pool")
    }

    /// Runs a client that does not decrypt; returns its bytes per second.
    fn sink(&self, bench: &Bench, connections: usize, secs: f64) -> Result<f64> {
        let (program, ca) = (bench.path("sink.py"), bench.path("pki/ca-cert.pem"));
        fs::write(&program, SINK)?;
        let (port, connections, secs) = (self.port.to_string(), connections.to_string(), secs.to_string());
        let said = run_tool("python3", &[&program, &port, &ca, "lab/disk", "262144", "4", &connections, &secs])?;
        said.split_whitespace().next().and_then(|rate| rate.parse().ok()).context("no rate")
    }

    /// Measures a client that does not decrypt.
    fn measure_sink(&self, bench: &Bench, connections: usize, names: [&'static str; 3], figures: &mut Figures) -> Result<()> {
        let (pool, all) = (self.pool_time()?, cpu_time(self.millpond.pid()?)?);
        let rate = self.sink(bench, connections, SECS)?;
        let (pool, all) = (self.pool_time()?.saturating_sub(pool), cpu_time(self.millpond.pid()?)?.saturating_sub(all));
        // the client reads for 0.3 s before it measures
        let gib = rate * (SECS + 0.3) / GIB;
        let values = [rate / GIB, pool.as_secs_f64() / gib, all.as_secs_f64() / gib];
        names.into_iter().zip(values).for_each(|(name, value)| figures.entry(name).or_default().push(value));
        Ok(())
    }

    /// Measures a client that decrypts, over four connections.
    fn measure_copy(&self, pki: &str, figures: &mut Figures) -> Result<()> {
        let uri = format!("nbds://localhost:{}/?tls-certificates={pki}", self.port);
        let begin = Instant::now();
        run_tool("nbdcopy", &["--connections=4", &uri, "null:"])?;
        figures.entry("nbdcopy, GiB/s").or_default().push(SIZE as f64 / GIB / begin.elapsed().as_secs_f64());
        Ok(())
    }

    /// Measures a client without TLS, alone or beside four connections with TLS.
    fn measure_plain(&self, bench: &Bench, beside: bool, names: [&'static str; 2], figures: &mut Figures) -> Result<()> {
        let result = thread::scope(|scope| {
            let sink = beside.then(|| scope.spawn(|| self.sink(bench, 4, SECS + 1.0)));
            if beside {
                // until it has connected and reads
                thread::sleep(Duration::from_millis(700));
            }
            let result = load::run(&self.plain, &LoadSpec { secs: SECS, ramp: 0.2, ..LoadSpec::random(Mix::Read, 4096, 1) });
            if let Some(sink) = sink {
                sink.join().map_err(|_| anyhow::anyhow!("the client with TLS panicked"))??;
            }
            result
        })?;
        ensure!(result.errors == 0, "{} errors, the first {}", result.errors, result.first_error);
        let values = [result.iops, result.read.p99_us];
        names.into_iter().zip(values).for_each(|(name, value)| figures.entry(name).or_default().push(value));
        Ok(())
    }

    /// Measures libnbd's client with TLS and one request in flight.
    fn measure_alone(&self, pki: &str, case: &Alone, figures: &mut Figures) -> Result<()> {
        let uri = format!("nbds://localhost:{}/?tls-certificates={pki}", if case.is_small { self.small } else { self.port });
        let length = format!("--request-size={}", case.bytes);
        let begin = Instant::now();
        run_tool("nbdcopy", &["--no-extents", "--connections=1", "--requests=1", &length, &uri, "null:"])?;
        let count = if case.is_small { SMALL } else { SIZE } as f64 / case.bytes as f64;
        figures.entry(case.name).or_default().push(count / begin.elapsed().as_secs_f64());
        Ok(())
    }

    fn measure(&self, bench: &Bench, pki: &str, figures: &mut Figures) -> Result<()> {
        let four = ["4 connections, GiB/s", "4 connections, pool's s/GiB", "4 connections, all s/GiB"];
        let one = ["1 connection, GiB/s", "1 connection, pool's s/GiB", "1 connection, all s/GiB"];
        self.measure_sink(bench, 4, four, figures)?;
        self.measure_sink(bench, 1, one, figures)?;
        self.measure_copy(pki, figures)?;
        self.measure_plain(bench, false, ["plain 4k alone, /s", "plain 4k alone, p99 us"], figures)?;
        self.measure_plain(bench, true, ["plain 4k beside 4, /s", "plain 4k beside 4, p99 us"], figures)?;
        ALONE.iter().try_for_each(|case| self.measure_alone(pki, case, figures))
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}

/// Replies of 256 KiB to clients with TLS, with one helper and without, in turns. Needs a machine of
/// at least two processors without other work.
pub fn run(subject: &mut Subject) -> Result<()> {
    let bench = Bench::new(subject)?;
    let pki = authority(&bench, "pki")?;
    let memory = Path::new("/dev/shm");
    let room = Workspace::new(if memory.is_dir() { memory } else { subject.dir() }, "tls-cost")?;
    let mut servers = [Server::start(&room.path().join("none"), 0, &pki)?, Server::start(&room.path().join("one"), 1, &pki)?];
    let mut figures = [Figures::new(), Figures::new()];
    for nth in 0..REPETITIONS {
        for at in [nth % 2, (nth + 1) % 2] {
            servers[at].measure(&bench, &pki, &mut figures[at])?;
        }
    }
    let [none, one] = figures.map(|all| all.into_iter().map(|(name, values)| (name, median(values))).collect::<BTreeMap<_, _>>());
    let mut ratios = BTreeMap::new();
    println!("{:30} {:>12} {:>12} {:>7}", "", "no helper", "one helper", "ratio");
    for (name, (without, with)) in none.iter().map(|(name, without)| (*name, (*without, one.get(name).copied().unwrap_or(0.0)))) {
        println!("{name:30} {without:12.3} {with:12.3} {:7.3}", with / without);
        ratios.insert(name, with / without);
    }
    for server in &mut servers {
        server.millpond.stop()?;
    }
    let processors = thread::available_parallelism()?.get();
    if processors >= ENOUGH {
        ensure!(ratios["4 connections, GiB/s"] >= GOAL, "less than {GOAL} times the bytes with a helper");
    } else {
        println!("{processors} processors: server and client share them, so the rate has no goal");
    }
    ensure!(ratios["4 connections, pool's s/GiB"] <= GOAL_POOL, "more than {GOAL_POOL} of the time of the pool's thread with a helper");
    for (name, ratio) in ratios.iter().filter(|(name, _)| name.contains("alone") && name.ends_with("/s")) {
        ensure!(*ratio >= GOAL_ALONE, "{name}: {ratio:.3} with a helper");
    }
    Ok(())
}
