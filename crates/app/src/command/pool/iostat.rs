//! `pool iostat`: operations, bandwidth and latency of a pool, its class and its devices.

use std::time::{Duration, Instant};

use clap::Args;
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
  millpond pool iostat tank -v -l 1 5   five samples of one second, with devices and latencies")]
pub struct Iostat {
    /// Name of the pool
    name: String,
    /// Seconds between samples; without it, averages since import
    interval: Option<f64>,
    /// Number of samples; without it, until interrupted
    count: Option<u64>,
    /// Class and devices as well
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
    Column { name: "interval_seconds", cell: |r| Cell::Text(format!("{:.3}", r.interval_seconds)), shown: Shown::Json },
];

/// Longest interval in seconds: a week.
const MAX_INTERVAL: f64 = 604_800.0;

impl Iostat {
    /// Runs it.
    pub async fn run(mut self, client: &Client) -> Outcome {
        names::check(Kind::Pool, &self.name)?;
        if self.latency && self.how.format == Format::Table && self.how.columns.is_empty() {
            let shown = ROW.iter().filter(|column| column.shown != Shown::Json || column.name.contains("latency"));
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
        let mut rows = vec![row(&after.name, "pool", (after.allocated, after.free), &total, seconds)];
        if self.verbose {
            let sum = |get: fn(&Device) -> u64| after.devices.iter().map(get).sum();
            let space = (sum(|device| device.allocated), sum(|device| device.free));
            rows.push(row("data", "class", space, &total, seconds));
            for (device, change) in after.devices.iter().zip(&changes) {
                rows.push(row(&device.path, "device", (device.allocated, device.free), change, seconds));
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
    let less = |old: u64, new: u64| new.checked_sub(old).unwrap_or(new);
    DeviceIo {
        reads: less(old.reads, new.reads),
        read_bytes: less(old.read_bytes, new.read_bytes),
        read_nanos: less(old.read_nanos, new.read_nanos),
        writes: less(old.writes, new.writes),
        write_bytes: less(old.write_bytes, new.write_bytes),
        write_nanos: less(old.write_nanos, new.write_nanos),
        flushes: less(old.flushes, new.flushes),
        in_flight: new.in_flight,
    }
}

fn add(a: &DeviceIo, b: &DeviceIo) -> DeviceIo {
    DeviceIo {
        reads: a.reads + b.reads,
        read_bytes: a.read_bytes + b.read_bytes,
        read_nanos: a.read_nanos + b.read_nanos,
        writes: a.writes + b.writes,
        write_bytes: a.write_bytes + b.write_bytes,
        write_nanos: a.write_nanos + b.write_nanos,
        flushes: a.flushes + b.flushes,
        in_flight: a.in_flight + b.in_flight,
    }
}

fn row(name: &str, level: &'static str, (allocated, free): (u64, u64), io: &DeviceIo, seconds: f64) -> Row {
    let per_second = |n: u64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
    let mean = |nanos: u64, n: u64| (n > 0).then(|| nanos as f64 / n as f64);
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
        assert_eq!(row.write_latency_nanos, None);
    }

    #[test]
    fn counters_of_a_new_import_count_from_zero() {
        assert_eq!(difference(&io(10, 10, 10), &io(3, 4, 5)), io(3, 4, 5));
    }
}
