//! Records the activity of the machine and the server during a measurement: a line of CSV per
//! second.

use crate::peer::Control;
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

/// Names of the columns; the last ones are Millpond's, and empty for other servers.
const HEADER: &str = "seconds,cpu_percent,stolen_percent,load,memory_used_bytes,server_cpu_percent,server_memory_bytes,disk_reads_s,\
                      disk_writes_s,disk_read_bytes_s,disk_write_bytes_s,guest_reads_s,guest_writes_s,guest_write_bytes_s,cleaner_bytes_s,pool_allocated_bytes";
const SECTOR: f64 = 512.0; // unit of /proc/diskstats, whatever the device's sector size

/// Means over the time of a measurement.
#[derive(Clone, Copy, Debug, Default)]
pub struct Means {
    /// Use of all processors together; 100 = all busy.
    pub cpu_percent: f64,
    /// Load average of the last minute.
    pub load: f64,
    /// Bytes of memory in use on the machine.
    pub memory: f64,
    /// Writes per second of all disks.
    pub disk_writes: f64,
    /// Bytes per second written to all disks.
    pub disk_write_bytes: f64,
}

/// A thread that writes the lines until it is stopped.
pub struct Monitor {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Means>>>,
}

/// Counters at an instant.
#[derive(Default)]
struct Look {
    all: f64,
    busy: f64,
    stolen: f64,
    server: f64,
    disk: [f64; 4],
    guest: [f64; 4],
    allocated: Option<f64>,
}

impl Monitor {
    /// Starts to record. `server` is the process id of the server, `control` the control socket of
    /// Millpond.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn start(file: &Path, server: u32, control: Option<PathBuf>) -> Result<Monitor> {
        let mut out = BufWriter::new(File::create(file).with_context(|| format!("making {}", file.display()))?);
        writeln!(out, "{HEADER}")?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || watch(&mut out, server, control.as_deref(), &stopped));
        Ok(Monitor { stop, thread: Some(thread) })
    }

    /// Stops; returns the means over the whole time.
    ///
    /// # Errors
    /// The file could not be written.
    pub fn finish(mut self) -> Result<Means> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().context("it runs once")?.join().unwrap_or_else(|_| Err(anyhow!("the monitor panicked")))
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn watch(out: &mut impl Write, server: u32, control: Option<&Path>, stop: &AtomicBool) -> Result<Means> {
    let mut control = control.and_then(|socket| Control::connect(socket).ok());
    let begin = Instant::now();
    let (mut before, mut at) = (look(server, control.as_mut()), begin);
    let (mut sum, mut lines) = (Means::default(), 0.0);
    let mut last = false;
    while !last {
        let due = at + Duration::from_secs(1);
        while Instant::now() < due && !last {
            thread::sleep(Duration::from_millis(20));
            last = stop.load(Ordering::Relaxed);
        }
        let (now, moment) = (look(server, control.as_mut()), Instant::now());
        let secs = (moment - at).as_secs_f64().max(1e-3);
        let all = (now.all - before.all).max(1.0);
        let (cpu, stolen) = (100.0 * (now.busy - before.busy) / all, 100.0 * (now.stolen - before.stolen) / all);
        let rate = |now: f64, before: f64| (now - before) / secs;
        let disk: Vec<f64> = now.disk.iter().zip(before.disk).map(|(now, before)| rate(*now, before)).collect();
        let (load, used) = (load_average(), memory_used());
        let resident = memory(server).unwrap_or(0);
        write!(
            out,
            "{:.1},{cpu:.1},{stolen:.1},{load},{used},{:.1},{resident}",
            begin.elapsed().as_secs_f64(),
            100.0 * rate(now.server, before.server)
        )?;
        disk.iter().try_for_each(|figure| write!(out, ",{figure:.0}"))?;
        match now.allocated {
            Some(allocated) => {
                now.guest.iter().zip(before.guest).try_for_each(|(now, before)| write!(out, ",{:.0}", rate(*now, before)))?;
                writeln!(out, ",{allocated:.0}")?;
            }
            None => writeln!(out, ",,,,,")?,
        }
        let [_, writes, _, write_bytes] = disk.as_slice() else { anyhow::bail!("four figures of disks") };
        sum = Means {
            cpu_percent: sum.cpu_percent + cpu * secs,
            load: sum.load + load * secs,
            memory: sum.memory + used * secs,
            disk_writes: sum.disk_writes + writes * secs,
            disk_write_bytes: sum.disk_write_bytes + write_bytes * secs,
        };
        lines += secs;
        (before, at) = (now, moment);
    }
    out.flush()?;
    let mean = |sum: f64| sum / f64::max(lines, 1e-3);
    Ok(Means {
        cpu_percent: mean(sum.cpu_percent),
        load: mean(sum.load),
        memory: mean(sum.memory),
        disk_writes: mean(sum.disk_writes),
        disk_write_bytes: mean(sum.disk_write_bytes),
    })
}

fn look(server: u32, control: Option<&mut Control>) -> Look {
    let cpu = processors().unwrap_or_default();
    let pool = control.and_then(|control| control.get(&format!("/v1/pools/{}", crate::peer::POOL)).ok());
    let of = |pointer: &str| pool.as_ref().and_then(|pool| pool.pointer(pointer)).and_then(Value::as_f64);
    let guest = ["/io/guests/reads", "/io/guests/writes", "/io/guests/write_bytes", "/io/cleaner_bytes"];
    Look {
        all: cpu.all,
        busy: cpu.busy,
        stolen: cpu.stolen,
        server: cpu_time(server).unwrap_or_default().as_secs_f64(),
        disk: disks(),
        guest: guest.map(|pointer| of(pointer).unwrap_or(0.0)),
        allocated: of("/allocated"),
    }
}

/// Returns reads, writes, bytes read and bytes written of all disks. Partitions and devices on top
/// of other disks are left out, so that nothing is counted twice.
fn disks() -> [f64; 4] {
    let text = fs::read_to_string("/proc/diskstats").unwrap_or_default();
    let mut sums = [0.0; 4];
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some(name) = words.get(2) else { continue };
        let above = ["loop", "dm-", "md", "ram", "zram"].iter().any(|prefix| name.starts_with(prefix));
        if above || !Path::new("/sys/block").join(name).exists() {
            continue;
        }
        let figure = |index: usize| words.get(index).and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0);
        for (sum, value) in sums.iter_mut().zip([figure(3), figure(7), figure(5) * SECTOR, figure(9) * SECTOR]) {
            *sum += value;
        }
    }
    sums
}

fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

fn memory_used() -> f64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<f64>().ok()
    };
    1024.0 * (kib("MemTotal:").unwrap_or(0.0) - kib("MemAvailable:").unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Workspace;

    #[test]
    fn a_line_has_as_many_figures_as_the_head_has_names() {
        let dir = Workspace::new(&std::env::temp_dir(), "monitor").unwrap();
        let file = dir.path().join("monitor.csv");
        let means = Monitor::start(&file, std::process::id(), None).unwrap().finish().unwrap();
        assert!(means.memory > 0.0);
        let text = fs::read_to_string(file).unwrap();
        let columns: Vec<usize> = text.lines().map(|line| line.split(',').count()).collect();
        assert!(columns.len() >= 2 && columns.iter().all(|count| *count == columns[0]), "{text}");
    }
}
