//! `pool iostat`: operations, bandwidth and latency of a pool, its classes and its devices.

use std::time::{Duration, Instant};

use clap::Args;
use millpond_device::quantile;
use serde::Serialize;

use crate::api::{Device, DeviceIo, Pool};
use crate::client::Client;
use crate::failure::{Failure, Outcome};
use crate::instant::now;
use crate::names::{self, Kind};
use crate::output::{Cell, Column, Format, Listing, Shown, print, write_out};

/// Show operations, bandwidth and latency
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond pool iostat tank             averages since import
  millpond pool iostat tank -v -l 1 5   five samples of one second, with classes, devices and latencies
  millpond pool iostat tank -o name,read_operations,cache_hits,cache_misses 1

Latencies are those of device operations. The first two are means of all that an operation took; queue is the part before it left for the
device, where 'pool device-limit' holds it; p50 and p99 are what the device took, which half and 99 in 100 of the operations stay below.")]
pub struct Iostat {
    /// Name of the pool
    name: String,
    /// Seconds between samples; without it, averages since import
    interval: Option<f64>,
    /// Number of samples; without it, until interrupted
    count: Option<u64>,
    /// Classes and devices as well
    #[arg(short = 'v', long)]
    verbose: bool,
    /// Latencies as well
    #[arg(short = 'l', long)]
    latency: bool,
    #[command(flatten)]
    how: Listing,
}

/// One line of a sample.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    name: String,
    /// `pool`, `class` or `device`.
    level: &'static str,
    allocated: u64,
    free: u64,
    read_operations: f64,
    write_operations: f64,
    read_bandwidth: f64,
    write_bandwidth: f64,
    read_latency_nanos: Option<f64>,
    write_latency_nanos: Option<f64>,
    queue_latency_nanos: Option<f64>,
    queue_p99_nanos: Option<f64>,
    read_p50_nanos: Option<f64>,
    read_p99_nanos: Option<f64>,
    write_p50_nanos: Option<f64>,
    write_p99_nanos: Option<f64>,
    in_flight: u64,
    /// Blocks that guests read from the pool's cache, and from elsewhere: in the line of the pool.
    cache_hits: Option<f64>,
    cache_misses: Option<f64>,
    interval_seconds: f64,
}

const ROW: &[Column<Row>] = &[
    Column { name: "name", cell: |r| Cell::Text(r.name.clone()), shown: Shown::Always },
    Column { name: "level", cell: |r| Cell::Text(r.level.to_owned()), shown: Shown::Json },
    Column { name: "allocated", cell: |r| Cell::Bytes(r.allocated), shown: Shown::Always },
    Column { name: "free", cell: |r| Cell::Bytes(r.free), shown: Shown::Always },
    Column { name: "read_operations", cell: |r| Cell::Per(r.read_operations), shown: Shown::Always },
    Column { name: "write_operations", cell: |r| Cell::Per(r.write_operations), shown: Shown::Always },
    Column { name: "read_bandwidth", cell: |r| Cell::Rate(r.read_bandwidth), shown: Shown::Always },
    Column { name: "write_bandwidth", cell: |r| Cell::Rate(r.write_bandwidth), shown: Shown::Always },
    Column { name: "read_latency_nanos", cell: |r| Cell::Nanos(r.read_latency_nanos), shown: Shown::Json },
    Column { name: "write_latency_nanos", cell: |r| Cell::Nanos(r.write_latency_nanos), shown: Shown::Json },
    Column { name: "queue_latency_nanos", cell: |r| Cell::Nanos(r.queue_latency_nanos), shown: Shown::Json },
    Column { name: "queue_p99_nanos", cell: |r| Cell::Nanos(r.queue_p99_nanos), shown: Shown::Json },
    Column { name: "read_p50_nanos", cell: |r| Cell::Nanos(r.read_p50_nanos), shown: Shown::Json },
    Column { name: "read_p99_nanos", cell: |r| Cell::Nanos(r.read_p99_nanos), shown: Shown::Json },
    Column { name: "write_p50_nanos", cell: |r| Cell::Nanos(r.write_p50_nanos), shown: Shown::Json },
    Column { name: "write_p99_nanos", cell: |r| Cell::Nanos(r.write_p99_nanos), shown: Shown::Json },
    Column { name: "in_flight", cell: |r| Cell::Count(r.in_flight), shown: Shown::Json },
    Column { name: "cache_hits", cell: |r| r.cache_hits.map_or(Cell::None, Cell::Per), shown: Shown::Json },
    Column { name: "cache_misses", cell: |r| r.cache_misses.map_or(Cell::None, Cell::Per), shown: Shown::Json },
    Column { name: "interval_seconds", cell: |r| Cell::Text(format!("{:.3}", r.interval_seconds)), shown: Shown::Json },
];

/// Longest interval in seconds: a week.
const MAX_INTERVAL: f64 = 604_800.0;

impl Iostat {
    /// Runs it.
    pub async fn run(mut self, client: &Client) -> Outcome {
        names::check(Kind::Pool, &self.name)?;
        if self.latency && self.how.format == Format::Table && self.how.columns.is_empty() {
            let shown = ROW.iter().filter(|column| column.shown != Shown::Json || column.name.ends_with("_nanos"));
            self.how.columns = shown.map(|column| column.name.to_owned()).collect();
        }
        let path = format!("/v1/pools/{}", self.name);
        let mut before: Pool = client.get(&path).await?;
        let Some(interval) = self.interval else {
            let seconds = before.imported.map_or(1.0, |since| now().duration_since(since).as_secs_f64());
            return print(&self.rows(None, &before, seconds), ROW, &self.how);
        };
        if !(interval > 0.0 && interval <= MAX_INTERVAL) {
            return Err(Failure::usage(format!("{interval} is not an interval; give seconds, more than 0 and at most {MAX_INTERVAL}")));
        }
        let mut samples = Vec::new();
        let mut taken = Instant::now();
        for nth in 1.. {
            tokio::time::sleep(Duration::from_secs_f64(interval)).await;
            let after: Pool = client.get(&path).await?;
            let rows = self.rows(Some(&before), &after, taken.elapsed().as_secs_f64());
            (taken, before) = (Instant::now(), after);
            match (self.how.format, self.count) {
                (Format::Table, _) => print(&rows, ROW, &self.how)?,
                (Format::Json, Some(_)) => samples.push(rows),
                // Without an end there is no whole document: one to a line.
                (Format::Json, None) => write_out(&(encode(&rows, false)? + "\n"))?,
            }
            if self.count.is_some_and(|count| nth >= count) {
                break;
            }
            if self.how.format == Format::Table {
                self.how.no_header |= !self.verbose;
            }
        }
        if samples.is_empty() { Ok(()) } else { write_out(&(encode(&samples, true)? + "\n")) }
    }

    fn rows(&self, before: Option<&Pool>, after: &Pool, seconds: f64) -> Vec<Row> {
        let zero = DeviceIo::default();
        let change = |device: &Device| {
            let old = before.and_then(|pool| pool.devices.iter().find(|old| old.path == device.path));
            difference(old.map_or(&zero, |old| &old.io), &device.io)
        };
        let changes: Vec<DeviceIo> = after.devices.iter().map(change).collect();
        let total = changes.iter().fold(DeviceIo::default(), |sum, change| add(&sum, change));
        let mut first = row(&after.name, "pool", (after.allocated, after.free), &total, seconds);
        if after.devices.iter().any(|device| device.class == "cache") {
            let rate = |get: fn(&Pool) -> u64| {
                let old = before.map_or(0, get);
                Some(per_second(get(after).checked_sub(old).unwrap_or(get(after)), seconds))
            };
            first.cache_hits = rate(|pool| pool.io.cache_hits);
            first.cache_misses = rate(|pool| pool.io.cache_misses);
        }
        let mut rows = vec![first];
        if self.verbose {
            let mut classes: Vec<&str> = Vec::new();
            for device in &after.devices {
                if !classes.contains(&device.class.as_str()) {
                    classes.push(&device.class);
                }
            }
            for class in classes {
                let members: Vec<(&Device, &DeviceIo)> =
                    after.devices.iter().zip(&changes).filter(|(device, _)| device.class == class).collect();
                let sum = |get: fn(&Device) -> u64| members.iter().map(|(device, _)| get(device)).sum();
                let space = (sum(|device| device.allocated), sum(|device| device.free));
                let io = members.iter().fold(DeviceIo::default(), |sum, (_, change)| add(&sum, change));
                rows.push(row(class, "class", space, &io, seconds));
                for (device, change) in members {
                    rows.push(row(&device.path, "device", (device.allocated, device.free), change, seconds));
                }
            }
        }
        rows
    }
}

fn encode<T: Serialize>(what: &T, pretty: bool) -> Outcome<String> {
    let text = if pretty { serde_json::to_string_pretty(what) } else { serde_json::to_string(what) };
    text.map_err(|e| Failure::failed(format!("cannot encode the answer: {e}")))
}

/// Counters that went back belong to a new import: they count from zero.
fn difference(old: &DeviceIo, new: &DeviceIo) -> DeviceIo {
    each(new, old, |new, old| new.checked_sub(old).unwrap_or(new))
}

fn add(a: &DeviceIo, b: &DeviceIo) -> DeviceIo {
    DeviceIo { in_flight: a.in_flight + b.in_flight, ..each(a, b, |a, b| a + b) }
}

/// Combines counters one by one; what is under way is no counter.
fn each(a: &DeviceIo, b: &DeviceIo, with: fn(u64, u64) -> u64) -> DeviceIo {
    let lists = |a: &[u64], b: &[u64]| {
        let at = |list: &[u64], n: usize| list.get(n).copied().unwrap_or(0);
        (0..a.len().max(b.len())).map(|n| with(at(a, n), at(b, n))).collect()
    };
    DeviceIo {
        reads: with(a.reads, b.reads),
        read_bytes: with(a.read_bytes, b.read_bytes),
        read_nanos: with(a.read_nanos, b.read_nanos),
        read_queue_nanos: with(a.read_queue_nanos, b.read_queue_nanos),
        writes: with(a.writes, b.writes),
        write_bytes: with(a.write_bytes, b.write_bytes),
        write_nanos: with(a.write_nanos, b.write_nanos),
        write_queue_nanos: with(a.write_queue_nanos, b.write_queue_nanos),
        flushes: with(a.flushes, b.flushes),
        in_flight: a.in_flight,
        read_times: lists(&a.read_times, &b.read_times),
        write_times: lists(&a.write_times, &b.write_times),
        queue_times: lists(&a.queue_times, &b.queue_times),
    }
}

fn per_second(n: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { n as f64 / seconds } else { 0.0 }
}

fn row(name: &str, level: &'static str, (allocated, free): (u64, u64), io: &DeviceIo, seconds: f64) -> Row {
    let per_second = |n: u64| per_second(n, seconds);
    let mean = |nanos: u64, n: u64| (n > 0).then(|| nanos as f64 / n as f64);
    let held = io.read_queue_nanos + io.write_queue_nanos;
    let queue = mean(held, io.reads + io.writes);
    Row {
        name: name.to_owned(),
        level,
        allocated,
        free,
        read_operations: per_second(io.reads),
        write_operations: per_second(io.writes),
        read_bandwidth: per_second(io.read_bytes),
        write_bandwidth: per_second(io.write_bytes),
        read_latency_nanos: mean(io.read_nanos, io.reads),
        write_latency_nanos: mean(io.write_nanos, io.writes),
        queue_latency_nanos: queue,
        queue_p99_nanos: if held == 0 { queue.map(|_| 0.0) } else { quantile(&io.queue_times, 0.99) },
        read_p50_nanos: quantile(&io.read_times, 0.5),
        read_p99_nanos: quantile(&io.read_times, 0.99),
        write_p50_nanos: quantile(&io.write_times, 0.5),
        write_p99_nanos: quantile(&io.write_times, 0.99),
        in_flight: io.in_flight,
        cache_hits: None,
        cache_misses: None,
        interval_seconds: seconds,
    }
}

#[cfg(test)]
mod tests {
    //! Rates.
    use super::*;

    fn io(reads: u64, read_bytes: u64, read_nanos: u64) -> DeviceIo {
        DeviceIo { reads, read_bytes, read_nanos, ..DeviceIo::default() }
    }

    #[test]
    fn rates_are_differences_over_time() {
        let change = difference(&io(10, 1000, 50), &io(30, 5000, 90));
        let row = row("d", "device", (1, 2), &change, 2.0);
        assert_eq!((row.read_operations, row.read_bandwidth, row.read_latency_nanos), (10.0, 2000.0, Some(2.0)));
        assert_eq!((row.write_latency_nanos, row.read_p50_nanos), (None, None));
    }

    #[test]
    fn quantiles_are_those_of_the_interval() {
        let mut before = io(100, 0, 0);
        before.read_times = vec![100];
        let mut after = io(110, 0, 0);
        after.read_times = vec![100, 0, 0, 10];
        let row = row("d", "device", (1, 2), &difference(&before, &after), 1.0);
        assert_eq!((row.read_p50_nanos, row.read_p99_nanos), (Some(3500.0), Some(3990.0)));
    }

    #[test]
    fn counters_of_a_new_import_count_from_zero() {
        assert_eq!(difference(&io(10, 10, 10), &io(3, 4, 5)), io(3, 4, 5));
    }
}
