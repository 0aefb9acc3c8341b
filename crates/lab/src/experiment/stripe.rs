//! `stripe`: four devices capped at 50 MB/s each, linear or striped with several stripe units:
//! sequential 512 KiB writes of 16 jobs. The peer is a model of LVM on simulated drives of the same
//! rate.

use super::Setup;
use crate::peer::{Contender, DISK, Drives, Millpond, POOL, Qsd, fio, make, millpond_binary};
use crate::process::{Workspace, find_tool, tail};
use crate::report::{Cell, Claim, Goal, Matrix, Results, median};
use anyhow::{Context, Result};
use serde_json::Value;
use std::time::Instant;

const DEVICES: usize = 4;
const CAP: f64 = 50.0; // MB/s, of 10^6 bytes
const SECONDS: f64 = 60.0;
const LEAST_SECONDS: f64 = 2.0;
const JOBS: u64 = 16;
/// A device counts as busy if it wrote more than this share of all written bytes.
const BUSY: f64 = 0.05;
/// Name of the peer: `qemu-storage-daemon` on devices combined as LVM combines them.
const MAPPED: &str = "lvm, modelled";
const LINEAR: &str = "linear";
const STRIPED: &str = "stripe, 64 KiB";
const LAYOUTS: [(&str, &[&str]); 6] = [
    (LINEAR, &["linear"]),
    (STRIPED, &["stripe", "-i", "4", "-I", "64k"]),
    ("stripe, 128 KiB", &["stripe", "-i", "4", "-I", "128k"]),
    ("stripe, 256 KiB", &["stripe", "-i", "4", "-I", "256k"]),
    ("stripe, 512 KiB", &["stripe", "-i", "4", "-I", "512k"]),
    ("stripe, 1 MiB", &["stripe", "-i", "4", "-I", "1m"]),
];

pub fn run_stripe(setup: &Setup, results: &mut Results) -> Result<()> {
    if find_tool("fio").is_none() {
        results.leave_out("fio is not installed");
        return Ok(());
    }
    let ours = !setup.contenders(&["millpond"], results).is_empty();
    let theirs = setup.peers.is_empty() || setup.peers.iter().any(|peer| peer == "qsd-raw");
    let theirs = theirs.then(|| make("qsd-raw").and_then(|_| Drives::check()));
    if let Some(Err(reason)) = &theirs {
        results.skip(MAPPED, &format!("{reason:#}"));
    }
    let secs = (SECONDS * setup.scale.min(1.0)).max(LEAST_SECONDS);
    for rep in 0..setup.long_reps {
        for turn in 0..LAYOUTS.len() {
            let Some((case, layout)) = LAYOUTS.get((turn + rep) % LAYOUTS.len()) else { continue };
            results.say(&format!("repetition {} of {}: {case}", rep + 1, setup.long_reps));
            if ours && let Some(refusal) = one(setup, results, rep, case, layout, secs).with_context(|| (*case).to_owned())? {
                results.leave_out(&refusal);
                return Ok(());
            }
            // only the two cases that the article measured
            if matches!(theirs, Some(Ok(()))) && [LINEAR, STRIPED].contains(case) {
                mapped(setup, results, rep, case, secs).with_context(|| format!("{case} of {MAPPED}"))?;
            }
        }
        for name in ["millpond", MAPPED] {
            let figure =
                |case: &str| results.samples.iter().find(|s| s.rep == rep && s.contender == name && s.case == case && s.metric == "mib_s");
            if let Some(times) = figure(STRIPED).zip(figure(LINEAR)).map(|(striped, linear)| striped.value / linear.value) {
                results.add(rep, name, STRIPED, "times_linear", times);
            }
        }
    }
    devices_table(results);
    results.goal(STRIPED, "times_linear", "millpond", Goal::AtLeast(3.95));
    let figure = |results: &Results, case: &str, name: &str| median(&results.values(case, "mib_s", name));
    let why = results.why(MAPPED, "simulated devices capped at the article's rate, in megabytes of 10^6 bytes; there of 2^20");
    for (says, case, published) in [("LVM linear, four disks of 50 MB/s", LINEAR, 50.0), ("LVM striped (-i 4 -I 64k)", STRIPED, 200.0)] {
        let (theirs, ours) = (figure(results, case, MAPPED), figure(results, case, "millpond"));
        results.claim(Claim::new("D-load", says, published, "MiB/s").modelled_by(MAPPED, theirs).ours(ours).because(&why));
    }
    Ok(())
}

/// Returns the bytes of a job's range: all ranges together are twice the bytes that all devices can
/// write in the time.
fn part(secs: f64) -> u64 {
    (((secs * CAP * 1e6 * DEVICES as f64) as u64 * 2).max(512 << 20) / JOBS) >> 20 << 20
}

fn options(secs: f64) -> [String; 8] {
    let size = part(secs);
    [
        "--rw=write".to_owned(),
        "--bs=512k".to_owned(),
        "--iodepth=1".to_owned(),
        format!("--numjobs={JOBS}"),
        format!("--size={size}"),
        format!("--offset_increment={size}"),
        format!("--runtime={}ms", (secs * 1e3) as u64),
        "--time_based".to_owned(),
    ]
}

fn mapped(setup: &Setup, results: &mut Results, rep: usize, case: &str, secs: f64) -> Result<()> {
    let workspace = Workspace::new(&setup.dir, "stripe")?;
    let layout = if case == LINEAR { "linear" } else { "stripe:64k" };
    let (size, cap) = (part(secs) * JOBS, (CAP * 1e6) as u64);
    let drives = Drives::start(workspace.path(), &[format!("{DEVICES}*cap:{cap}/{layout}={}", size * DEVICES as u64)])?;
    let mut server = Qsd::on("qsd-raw", &drives.files().pop().context("no drive")?);
    server.start(workspace.path(), size)?;
    let figures = fio(results, &format!("{rep}-{case}-mapped"), &server.endpoint()?, true, &options(secs))?;
    results.add(rep, MAPPED, case, "mib_s", figures.bytes_s / f64::from(1 << 20));
    results.add(rep, MAPPED, case, "iops", figures.iops);
    results.add(rep, MAPPED, case, "p50_us", figures.p50_us);
    results.add(rep, MAPPED, case, "p99_us", figures.p99_us);
    server.stop()
}

/// Measures one layout. Returns the daemon's message if it refused to cap a device.
fn one(setup: &Setup, results: &mut Results, rep: usize, case: &str, layout: &[&str], secs: f64) -> Result<Option<String>> {
    let workspace = Workspace::new(&setup.dir, "stripe")?;
    let mut millpond = Millpond::new(millpond_binary()?);
    millpond.start_empty(workspace.path())?;
    let size = part(secs);
    let devices: Vec<String> = (0..DEVICES).map(|n| workspace.path().join(format!("disk{n}")).display().to_string()).collect();
    // large enough that a linear pool writes only to its first device during this time
    let made: Vec<String> = devices.iter().map(|path| format!("{path}:{}", 2 * size * JOBS)).collect();
    let mut words = vec!["pool", "create", POOL];
    words.extend_from_slice(layout);
    words.extend(made.iter().map(String::as_str));
    millpond.cli(&words)?;
    for device in &devices {
        if let Err(error) = millpond.cli(&["pool", "device-limit", POOL, device, "--bps", &format!("{}", (CAP * 1e6) as u64)]) {
            let text = format!("{error:#}");
            return Ok(Some(tail(text.split_once("millpond: ").map_or(&text, |(_, line)| line), 300).to_owned()));
        }
    }
    millpond.cli(&["create", DISK, "-L", &(size * JOBS).to_string()])?;
    let endpoint = millpond.export(DISK)?;
    let before = traffic(&millpond)?;
    let begin = Instant::now();
    let figures = fio(results, &format!("{rep}-{case}"), &endpoint, true, &options(secs))?;
    let took = begin.elapsed().as_secs_f64();
    let devices: Vec<Written> = traffic(&millpond)?.iter().zip(&before).map(|(now, before)| now.since(before)).collect();
    let all = devices.iter().map(|device| device.bytes).sum::<f64>().max(1.0);
    for (number, device) in devices.iter().enumerate() {
        device.note(results, rep, &format!("{case}, device {number}"), took);
    }
    results.add(rep, "millpond", case, "mib_s", figures.bytes_s / f64::from(1 << 20));
    results.add(rep, "millpond", case, "iops", figures.iops);
    results.add(rep, "millpond", case, "busy_devices", devices.iter().filter(|device| device.bytes / all > BUSY).count() as f64);
    results.add(rep, "millpond", case, "p50_us", figures.p50_us);
    results.add(rep, "millpond", case, "p99_us", figures.p99_us);
    millpond.stop()?;
    Ok(None)
}

/// Writes of a device.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    writes: f64,
    bytes: f64,
    /// Sum of latencies in nanoseconds, and the part of it before the writes were sent to the device.
    nanos: f64,
    queue_nanos: f64,
}

impl Written {
    fn since(&self, before: &Written) -> Written {
        Written {
            writes: self.writes - before.writes,
            bytes: self.bytes - before.bytes,
            nanos: self.nanos - before.nanos,
            queue_nanos: self.queue_nanos - before.queue_nanos,
        }
    }

    /// Records the columns of `iostat -x` over `took` seconds. A device that is capped is busy by
    /// the share of the cap that it wrote.
    fn note(&self, results: &mut Results, rep: usize, case: &str, took: f64) {
        let writes = self.writes.max(1.0);
        for (metric, value) in [
            ("w_s", self.writes / took),
            ("w_mb_s", self.bytes / 1e6 / took),
            ("w_await_ms", self.nanos / 1e6 / writes),
            ("wareq_sz_kb", self.bytes / 1e3 / writes),
            ("aqu_sz", self.nanos / 1e9 / took),
            ("queued_ms", self.queue_nanos / 1e6 / writes),
            ("util_percent", (100.0 * self.bytes / (CAP * 1e6) / took).min(100.0)),
        ] {
            results.add(rep, "millpond", case, metric, value);
        }
    }
}

/// Shows the devices in the form of `iostat -x`.
fn devices_table(results: &mut Results) {
    let columns = ["w_s", "w_mb_s", "w_await_ms", "wareq_sz_kb", "aqu_sz", "util_percent"];
    let head = ["layout, device", "w/s", "MB/s", "w_await, ms", "wareq-sz, kB", "aqu-sz", "%util"].map(str::to_owned).into();
    let mut rows = Vec::new();
    for case in LAYOUTS.iter().flat_map(|(layout, _)| (0..DEVICES).map(move |number| format!("{layout}, device {number}"))) {
        let figures = columns.map(|metric| median(&results.values(&case, metric, "millpond")));
        if figures.iter().all(Option::is_some) {
            let cells = figures.into_iter().flatten().map(|value| Cell::plain(&format!("{value:.1}")));
            rows.push(std::iter::once(Cell::plain(&case)).chain(cells).collect());
        }
    }
    results.matrices.push(Matrix { title: "Devices, as iostat -x shows them".to_owned(), head, rows });
}

/// Returns the writes of each device since import.
fn traffic(millpond: &Millpond) -> Result<Vec<Written>> {
    let pool = millpond.control()?.get(&format!("/v1/pools/{POOL}"))?;
    let devices = pool.get("devices").and_then(Value::as_array).context("the pool lists no devices")?;
    let of = |device: &Value, counter: &str| {
        let value = device.pointer(&format!("/io/{counter}")).and_then(Value::as_f64);
        value.with_context(|| format!("a device has no counter {counter}"))
    };
    let written = |device: &Value| {
        Ok(Written {
            writes: of(device, "writes")?,
            bytes: of(device, "write_bytes")?,
            nanos: of(device, "write_nanos")?,
            queue_nanos: of(device, "write_queue_nanos")?,
        })
    };
    devices.iter().map(written).collect()
}
