//! Records the activity of the machine and of a server: a line of CSV per second, and means and
//! maxima at the end.

mod disks;
mod second;

pub use disks::{Disks, Traffic};
pub use second::{COLUMNS, Column, DiskRates, PoolRates, Second, Stat, Summary};

use crate::peer::{Control, POOL};
use crate::process::{cpu_time, memory};
use crate::scene::processors;
use anyhow::{Context, Result, anyhow};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Sources of the figures.
#[derive(Clone, Debug)]
pub struct Watched {
    /// Process id of the server.
    pub server: Option<u32>,
    /// Control socket of Millpond, and the name of the pool.
    pub pool: Option<(PathBuf, String)>,
    /// Disks.
    pub disks: Disks,
}

/// A recorded measurement.
#[derive(Debug, Default)]
pub struct Record {
    /// All seconds.
    pub seconds: Vec<Second>,
    /// Means and maxima.
    pub summary: Summary,
}

/// A thread that writes the lines until it is stopped.
pub struct Monitor {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Record>>>,
}

impl Monitor {
    /// Starts to record what a server does with the disk of `dir`. `control` is the control socket
    /// of Millpond.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn start(file: &Path, server: u32, control: Option<PathBuf>, dir: &Path) -> Result<Monitor> {
        let mut out = BufWriter::new(File::create(file).with_context(|| format!("making {}", file.display()))?);
        let pool = control.map(|socket| (socket, POOL.to_owned()));
        let watched = Watched { server: Some(server), pool, disks: Disks::Below(dir.to_owned()) };
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut seconds = Vec::new();
            let summary = record(&mut out, &watched, &stopped, |second| seconds.push(*second))?;
            Ok(Record { seconds, summary })
        });
        Ok(Monitor { stop, thread: Some(thread) })
    }

    /// Stops; returns the record of the whole time.
    ///
    /// # Errors
    /// The file could not be written.
    pub fn finish(mut self) -> Result<Record> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().context("it runs once")?.join().unwrap_or_else(|_| Err(anyhow!("the monitor panicked")))
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Counters at an instant.
#[derive(Default)]
struct Look {
    all: f64,
    busy: f64,
    stolen: f64,
    server: Option<f64>,
    disk: Option<Traffic>,
    pool: Option<[f64; 5]>,
}

/// Writes a header and a line per second until `stop` is set; calls `each` for every second.
///
/// # Errors
/// The lines cannot be written.
pub fn record(out: &mut impl Write, watched: &Watched, stop: &AtomicBool, mut each: impl FnMut(&Second)) -> Result<Summary> {
    let mut control = watched.pool.as_ref().and_then(|(socket, _)| Control::connect(socket).ok());
    let begin = Instant::now();
    let (mut before, mut at) = (look(watched, control.as_mut()), begin);
    let mut summary = Summary::default();
    let mut last = false;
    writeln!(out, "{}", second::header())?;
    while !last {
        let due = at + Duration::from_secs(1);
        while Instant::now() < due && !last {
            thread::sleep(Duration::from_millis(20));
            last = stop.load(Ordering::Relaxed);
        }
        let (now, moment) = (look(watched, control.as_mut()), Instant::now());
        let length = (moment - at).as_secs_f64().max(1e-3);
        let second = Second { at: begin.elapsed().as_secs_f64(), length, ..between(watched, &before, &now, length) };
        writeln!(out, "{}", second.line())?;
        out.flush()?;
        summary.add(&second);
        each(&second);
        (before, at) = (now, moment);
    }
    Ok(summary)
}

/// Computes the figures of the time between two looks.
fn between(watched: &Watched, before: &Look, now: &Look, length: f64) -> Second {
    let all = (now.all - before.all).max(1.0);
    let rate = |now: f64, before: f64| (now - before) / length;
    let server = now.server.zip(before.server).map(|(now, before)| 100.0 * rate(now, before));
    let resident = watched.server.and_then(|pid| memory(pid).ok()).unwrap_or(0) as f64;
    let disk = now.disk.zip(before.disk).map(|(now, before)| {
        let requests = now.reads - before.reads + now.writes - before.writes;
        DiskRates {
            reads: rate(now.reads, before.reads),
            writes: rate(now.writes, before.writes),
            read_bytes: rate(now.read_bytes, before.read_bytes),
            write_bytes: rate(now.write_bytes, before.write_bytes),
            await_millis: (requests > 0.0).then(|| (now.wait_millis - before.wait_millis) / requests),
            busy: (rate(now.busy_millis, before.busy_millis) / 10.0).min(100.0),
        }
    });
    let pool = now.pool.zip(before.pool).map(|(now, before)| PoolRates {
        reads: rate(now[0], before[0]),
        writes: rate(now[1], before[1]),
        write_bytes: rate(now[2], before[2]),
        cleaner_bytes: rate(now[3], before[3]),
        allocated: now[4],
    });
    Second {
        cpu: 100.0 * (now.busy - before.busy) / all,
        stolen: 100.0 * (now.stolen - before.stolen) / all,
        load: load_average(),
        memory: memory_used(),
        server: server.map(|cpu| (cpu, resident)),
        disk,
        pool,
        ..Second::default()
    }
}

fn look(watched: &Watched, control: Option<&mut Control>) -> Look {
    const COUNTERS: [&str; 5] = ["/io/guests/reads", "/io/guests/writes", "/io/guests/write_bytes", "/io/cleaner_bytes", "/allocated"];
    let cpu = processors().unwrap_or_default();
    let name = watched.pool.as_ref().map_or(POOL, |(_, name)| name.as_str());
    let pool = control.and_then(|control| control.get(&format!("/v1/pools/{name}")).ok());
    let of = |pool: &Value, pointer: &str| pool.pointer(pointer).and_then(Value::as_f64).unwrap_or(0.0);
    Look {
        all: cpu.all,
        busy: cpu.busy,
        stolen: cpu.stolen,
        server: watched.server.and_then(|pid| cpu_time(pid).ok()).map(|time| time.as_secs_f64()),
        disk: watched.disks.read(),
        pool: pool.map(|pool| COUNTERS.map(|pointer| of(&pool, pointer))),
    }
}

fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

/// Returns the bytes of memory in use, and of all memory.
fn memory_used() -> (f64, f64) {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        1024.0 * kib.unwrap_or(0.0)
    };
    let all = bytes("MemTotal:");
    (all - bytes("MemAvailable:"), all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Workspace;

    #[test]
    fn a_line_has_as_many_figures_as_the_head_has_names() {
        let dir = Workspace::new(&std::env::temp_dir(), "monitor").unwrap();
        let file = dir.path().join("monitor.csv");
        let record = Monitor::start(&file, std::process::id(), None, dir.path()).unwrap().finish().unwrap();
        assert!(record.summary.of("memory_used_bytes").is_some_and(|memory| memory.mean > 0.0));
        assert_eq!((record.seconds.len(), record.summary.of("guest_reads_s")), (1, None));
        let text = fs::read_to_string(file).unwrap();
        let columns: Vec<usize> = text.lines().map(|line| line.split(',').count()).collect();
        assert!(columns.len() >= 2 && columns.iter().all(|count| *count == COLUMNS.len()), "{text}");
    }
}
