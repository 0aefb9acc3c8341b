//! `pool iostat`: operations, bandwidth and latency of a pool, its classes and its devices.

use std::time::{Duration, Instant};

use clap::Args;
use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::instant::now;
use millpond_api::names::{self, Kind};
use millpond_api::{Device, DeviceClass, DeviceIo, Pool};
use millpond_device::quantile;
use serde::Serialize;

use crate::command::candidates;
use crate::output::{Cell, Column, Format, Listing, Shown, print, write_out};

/// Show operations, bandwidth and latency
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond pool iostat                  averages since import of all pools
  millpond pool iostat tank -v -l 1 5   five samples of one second, with classes, devices and latencies
  millpond pool iostat tank -o name,read_operations,cache_hits,cache_misses 1

Latencies are those of device operations. The first two are means of the whole time; queue is the time before an operation was sent to the
device, including the wait for a 'pool device-limit'; p50 and p99 are the 50th and 99th percentiles of the time in the device.")]
pub struct Iostat {
    /// Pool [default: all in service]; seconds between samples [default: averages since import]; number of samples [default: until
    /// interrupted]
    #[arg(value_name = "POOL INTERVAL COUNT", add = candidates::pools())]
    words: Vec<String>,
    /// Also show classes and devices
    #[arg(short = 'v', long)]
    verbose: bool,
    /// Also show latencies
    #[arg(short = 'l', long)]
    latency: bool,
    #[command(flatten)]
    how: Listing,
}

/// A row of a sample: a pool, class or device.
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
    /// Blocks per second that guests read from cache devices; only in the row of a pool with a
    /// cache. `cache_misses` counts blocks read from other devices.
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
    pub async fn run(mut self, client: &Client) -> Outcome {
        let IostatArguments { name, interval, count } = IostatArguments::read(client, &self.words).await?;
        let for_people = self.how.format == Format::Table && self.how.columns.is_empty() && !self.how.no_header;
        if self.latency && self.how.format == Format::Table && self.how.columns.is_empty() && !for_people {
            let shown = ROW.iter().filter(|column| column.shown != Shown::Json || column.name.ends_with("_nanos"));
            self.how.columns = shown.map(|column| column.name.to_owned()).collect();
        }
        let mut before = pools(client, name.as_deref()).await?;
        let Some(interval) = interval else {
            let since = |pool: &Pool| pool.imported.map_or(1.0, |since| now().duration_since(since).as_secs_f64());
            let rows: Vec<Row> = before.iter().flat_map(|pool| self.rows(None, pool, since(pool))).collect();
            return if for_people { write_out(&self.table(&rows, true)) } else { print(&rows, ROW, &self.how) };
        };
        if !(interval > 0.0 && interval <= MAX_INTERVAL) {
            return Err(Failure::usage(format!("{interval} is not an interval; give seconds, more than 0 and at most {MAX_INTERVAL}")));
        }
        let mut samples = Vec::new();
        let mut taken = Instant::now();
        for nth in 1.. {
            tokio::time::sleep(Duration::from_secs_f64(interval)).await;
            let after = pools(client, name.as_deref()).await?;
            let seconds = taken.elapsed().as_secs_f64();
            let same = |pool: &Pool| before.iter().find(|old| old.name == pool.name);
            let rows: Vec<Row> = after.iter().flat_map(|pool| self.rows(same(pool), pool, seconds)).collect();
            (taken, before) = (Instant::now(), after);
            match (self.how.format, count) {
                (Format::Table, _) if for_people => write_out(&self.table(&rows, nth == 1 || self.verbose))?,
                (Format::Table, _) => print(&rows, ROW, &self.how)?,
                (Format::Json, Some(_)) => samples.push(rows),
                // Without a count the samples have no end, so each is a JSON document on a line of
                // its own.
                (Format::Json, None) => write_out(&(encode(&rows, false)? + "\n"))?,
            }
            if count.is_some_and(|count| nth >= count) {
                break;
            }
            if self.how.format == Format::Table {
                self.how.no_header |= !self.verbose;
            }
        }
        if samples.is_empty() { Ok(()) } else { write_out(&(encode(&samples, true)? + "\n")) }
    }

    /// Formats rows like `zpool iostat`: groups of columns with short numbers.
    fn table(&self, rows: &[Row], with_head: bool) -> String {
        let groups = if self.latency { GROUPS } else { GROUPS.get(..PLAIN_GROUPS).unwrap_or_default() };
        let indented = |row: &Row| {
            let depth = match row.level {
                "pool" => 0,
                "class" => 2,
                _ => 4,
            };
            format!("{:depth$}{}", "", row.name)
        };
        let width = rows.iter().map(|row| indented(row).chars().count()).max().unwrap_or(0).max(4);
        let mut text = String::new();
        if with_head {
            let (mut above, mut below, mut line) = (" ".repeat(width), format!("{:width$}", "pool"), "-".repeat(width));
            for (group, cell, [(first, _), (second, _)]) in groups {
                above += &format!("  {group:^both$}", both = 2 * cell + 1);
                below += &format!("  {first:>cell$} {second:>cell$}");
                line += &format!("  {:->cell$} {:->cell$}", "", "");
            }
            text += &format!("{}\n{below}\n{line}\n", above.trim_end());
        }
        for row in rows {
            text += &format!("{:width$}", indented(row));
            for (_, cell, [(_, first), (_, second)]) in groups {
                text += &format!("  {:>cell$} {:>cell$}", self.short(&first(row)), self.short(&second(row)));
            }
            text.push('\n');
        }
        text
    }

    /// Formats a number in at most five characters; exact with -p.
    fn short(&self, cell: &Cell) -> String {
        match cell {
            exact if self.how.parsable => exact.show(true),
            Cell::Bytes(bytes) => short_size(*bytes as f64),
            Cell::Rate(rate) => short_size(*rate),
            Cell::Per(count) => short_number(*count, 1000.0, &["", "K", "M", "G"]),
            Cell::Nanos(Some(nanos)) => short_number(*nanos, 1000.0, &["ns", "us", "ms", "s"]),
            other => other.show(false),
        }
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
        if after.devices.iter().any(|device| device.class == DeviceClass::Cache) {
            let rate = |get: fn(&Pool) -> u64| {
                let old = before.map_or(0, get);
                Some(per_second(get(after).checked_sub(old).unwrap_or(get(after)), seconds))
            };
            first.cache_hits = rate(|pool| pool.io.cache_hits);
            first.cache_misses = rate(|pool| pool.io.cache_misses);
        }
        let mut rows = vec![first];
        if self.verbose {
            let mut classes: Vec<&DeviceClass> = Vec::new();
            for device in &after.devices {
                if !classes.contains(&&device.class) {
                    classes.push(&device.class);
                }
            }
            for class in classes {
                let members: Vec<(&Device, &DeviceIo)> =
                    after.devices.iter().zip(&changes).filter(|(device, _)| device.class == *class).collect();
                let sum = |get: fn(&Device) -> u64| members.iter().map(|(device, _)| get(device)).sum();
                let space = (sum(|device| device.allocated), sum(|device| device.free));
                let io = members.iter().fold(DeviceIo::default(), |sum, (_, change)| add(&sum, change));
                rows.push(row(class.as_str(), "class", space, &io, seconds));
                for (device, change) in members {
                    rows.push(row(&device.path, "device", (device.allocated, device.free), change, seconds));
                }
            }
        }
        rows
    }
}

/// Positional arguments: a pool, an interval in seconds and a count.
struct IostatArguments {
    name: Option<String>,
    interval: Option<f64>,
    count: Option<u64>,
}

impl IostatArguments {
    /// Parses the arguments. The first word is a pool if it is no number, or if a pool has this
    /// name.
    async fn read(client: &Client, words: &[String]) -> Outcome<IostatArguments> {
        let first = words.first().filter(|word| word.parse::<f64>().is_err());
        let named = match (first, words.first()) {
            (None, Some(number)) => client.get::<Vec<Pool>>("/v1/pools").await?.iter().any(|pool| pool.name == *number),
            (first, _) => first.is_some(),
        };
        let (name, numbers) = words.split_at(usize::from(named));
        let name = name.first().cloned();
        name.iter().try_for_each(|name| names::check(Kind::Pool, name))?;
        let wrong = |word: &String, what: &str| {
            Failure::usage(format!("'{}' is not {what}; see 'millpond pool iostat --help'", word.escape_debug()))
        };
        let interval = numbers.first().map(|word| word.parse().map_err(|_| wrong(word, "an interval in seconds"))).transpose()?;
        let count = numbers.get(1).map(|word| word.parse().map_err(|_| wrong(word, "a number of samples"))).transpose()?;
        numbers.get(2).map_or(Ok(()), |word| Err(wrong(word, "expected here")))?;
        Ok(IostatArguments { name, interval, count })
    }
}

/// Returns the named pool, or all pools in service.
async fn pools(client: &Client, name: Option<&str>) -> Outcome<Vec<Pool>> {
    match name {
        Some(name) => Ok(vec![client.get(&format!("/v1/pools/{name}")).await?]),
        None => {
            let mut all: Vec<Pool> = client.get("/v1/pools").await?;
            all.retain(|pool| pool.imported.is_some());
            Ok(all)
        }
    }
}

/// Number of groups at the start of `GROUPS` that are shown without latencies.
const PLAIN_GROUPS: usize = 3;

/// A column of a group: its heading and its cell.
type Short = (&'static str, fn(&Row) -> Cell);

/// Columns of the table, in pairs: heading of the pair, width of a number, and both columns.
const GROUPS: &[(&str, usize, [Short; 2])] = &[
    ("capacity", 5, [("alloc", |r| Cell::Bytes(r.allocated)), ("free", |r| Cell::Bytes(r.free))]),
    ("operations", 5, [("read", |r| Cell::Per(r.read_operations)), ("write", |r| Cell::Per(r.write_operations))]),
    ("bandwidth", 5, [("read", |r| Cell::Rate(r.read_bandwidth)), ("write", |r| Cell::Rate(r.write_bandwidth))]),
    ("mean latency", 6, [("read", |r| Cell::Nanos(r.read_latency_nanos)), ("write", |r| Cell::Nanos(r.write_latency_nanos))]),
    ("queue", 6, [("mean", |r| Cell::Nanos(r.queue_latency_nanos)), ("p99", |r| Cell::Nanos(r.queue_p99_nanos))]),
    ("device read", 6, [("p50", |r| Cell::Nanos(r.read_p50_nanos)), ("p99", |r| Cell::Nanos(r.read_p99_nanos))]),
    ("device write", 6, [("p50", |r| Cell::Nanos(r.write_p50_nanos)), ("p99", |r| Cell::Nanos(r.write_p99_nanos))]),
];

/// Formats a size with three digits.
fn short_size(bytes: f64) -> String {
    short_number(bytes, 1024.0, &["", "K", "M", "G", "T", "P", "E"])
}

/// Formats a number with three digits, in the smallest unit that leaves at most three before the
/// point.
fn short_number(number: f64, step: f64, units: &[&str]) -> String {
    let (mut left, mut unit) = (number, 0);
    while left >= 999.5 && unit + 1 < units.len() {
        left /= step;
        unit += 1;
    }
    let unit = units.get(unit).copied().unwrap_or_default();
    match left {
        _ if left == 0.0 => "0".to_owned(),
        _ if left < 9.995 && left.fract() != 0.0 => format!("{left:.2}{unit}"),
        _ if left < 99.95 && left.fract() != 0.0 => format!("{left:.1}{unit}"),
        _ => format!("{left:.0}{unit}"),
    }
}

fn encode<T: Serialize>(what: &T, pretty: bool) -> Outcome<String> {
    let text = if pretty { serde_json::to_string_pretty(what) } else { serde_json::to_string(what) };
    text.map_err(|e| Failure::failed(format!("cannot encode the answer: {e}")))
}

/// Subtracts counters. A counter that decreased was reset by a new import and counts from zero.
fn difference(old: &DeviceIo, new: &DeviceIo) -> DeviceIo {
    each(new, old, |new, old| new.checked_sub(old).unwrap_or(new))
}

fn add(a: &DeviceIo, b: &DeviceIo) -> DeviceIo {
    DeviceIo { in_flight: a.in_flight + b.in_flight, ..each(a, b, |a, b| a + b) }
}

/// Combines counters one by one. `in_flight` is no counter and is taken from `a`.
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
        flush_nanos: with(a.flush_nanos, b.flush_nanos),
        discards: with(a.discards, b.discards),
        busy_nanos: with(a.busy_nanos, b.busy_nanos),
        failed: with(a.failed, b.failed),
        mismatched: with(a.mismatched, b.mismatched),
        in_flight: a.in_flight,
        read_times: lists(&a.read_times, &b.read_times),
        write_times: lists(&a.write_times, &b.write_times),
        flush_times: lists(&a.flush_times, &b.flush_times),
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
    //! Computation of rates.
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
    fn numbers_have_three_digits_and_lines_fit_a_terminal() {
        let sizes =
            [(0.0, "0"), (512.0, "512"), (1536.0, "1.50K"), (1023.0 * 1024.0, "1.00M"), (271.33 * 1048576.0, "271M"), (2e12, "1.82T")];
        sizes.iter().for_each(|(bytes, text)| assert_eq!(short_size(*bytes), *text));
        let nanos = |n: f64| short_number(n, 1000.0, &["ns", "us", "ms", "s"]);
        assert_eq!([nanos(16_325_100.0), nanos(500.0), nanos(3.2e9)], ["16.3ms", "500ns", "3.20s"]);
        let words = ["iostat", "-v", "-l", "tank"];
        #[derive(clap::Parser)]
        struct Words {
            #[command(flatten)]
            iostat: Iostat,
        }
        let iostat = <Words as clap::Parser>::parse_from(words).iostat;
        let io = DeviceIo {
            reads: 123_456,
            read_bytes: 1 << 42,
            read_nanos: 1 << 50,
            writes: 7,
            write_times: vec![0; 90],
            ..DeviceIo::default()
        };
        let rows = [row("tank", "pool", (1 << 40, 3 << 40), &io, 3.7), row("/dev/nvme0n1", "device", (1, 2), &io, 3.7)];
        let text = iostat.table(&rows, true);
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
        assert!(text.contains("capacity") && text.lines().nth(4).is_some_and(|line| line.starts_with("    /dev/nvme0n1 ")), "{text}");
        assert_eq!(text.lines().count(), 5);
    }

    #[test]
    fn counters_of_a_new_import_count_from_zero() {
        assert_eq!(difference(&io(10, 10, 10), &io(3, 4, 5)), io(3, 4, 5));
    }
}
