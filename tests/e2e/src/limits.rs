//! Caps of devices and limits of volumes, measured by a client.

use super::subject::Subject;
use super::vhost_user::export;
use anyhow::{Context, Result, ensure};
use millpond_lab::load::{Access, Endpoint, LoadSpec, Mix, run};
use millpond_lab::peer::{Contender, Millpond};
use millpond_lab::process::Workspace;
use std::path::Path;
use std::thread;

/// Cap of a device in bytes per second: low enough that the cap is the bottleneck, even on a busy
/// host.
const PER_DEVICE: u64 = 20 << 20;
/// Minimum speed of a stripe of four devices relative to one device.
const SCALING: f64 = 3.95;
/// Relative tolerance of a rate.
const TOLERANCE: f64 = 0.05;
/// Maximum number of measurements of a rate; a single one within the tolerance shows that the limit
/// works.
const TRIES: usize = 12;
/// Multiple of the limit that no measurement may exceed.
const TOO_MUCH: f64 = 1.3;

fn sequential(mix: Mix, secs: f64) -> LoadSpec {
    LoadSpec { mix, access: Access::Sequential, block: 256 << 10, depth: 32, secs, ramp: 0.5, ..LoadSpec::default() }
}

/// Runs two loads at once.
fn both(a: (&Endpoint, &LoadSpec), b: (&Endpoint, &LoadSpec)) -> Result<(f64, f64)> {
    let run = |(endpoint, spec): (&Endpoint, &LoadSpec)| {
        let result = run(endpoint, spec)?;
        ensure!(result.errors == 0, "{} errors, the first {}", result.errors, result.first_error);
        Ok(if spec.block >= 1 << 16 { result.mib_s } else { result.iops })
    };
    let (a, b) = thread::scope(|scope| {
        let other = scope.spawn(|| run(a));
        (other.join(), run(b))
    });
    Ok((a.map_err(|_| anyhow::anyhow!("a load panicked"))??, b?))
}

/// Measures until a rate is within the tolerance, at most [`TRIES`] times: other load of the host
/// makes a rate too low, or too high if the client was delayed at the start. A rate far above the
/// limit always fails.
fn near(what: &str, wanted: f64, mut measure: impl FnMut() -> Result<f64>) -> Result<()> {
    let mut measured = 0.0;
    for _ in 0..TRIES {
        measured = measure()?;
        println!("{what}: {measured:.1}, limit {wanted:.1}");
        ensure!(measured <= wanted * TOO_MUCH, "{what}: {measured:.1} is more than {wanted:.1}");
        if (measured / wanted - 1.0).abs() <= TOLERANCE {
            return Ok(());
        }
    }
    anyhow::bail!("{what}: {measured:.1} instead of {wanted:.1}")
}

/// Returns the first measurement at the first call, then measures again.
fn once(first: f64, mut again: impl FnMut() -> Result<f64>) -> impl FnMut() -> Result<f64> {
    let mut first = Some(first);
    move || first.take().map_or_else(&mut again, Ok)
}

/// Directory for devices that are no slower than their caps: in memory, if the host has a file
/// system there.
fn room(subject: &Subject) -> Result<Workspace> {
    let memory = Path::new("/dev/shm");
    Workspace::new(if memory.is_dir() { memory } else { subject.dir() }, "limits")
}

/// Four capped devices are four times as fast as one; the caps survive a restart.
pub fn devices(subject: &mut Subject) -> Result<()> {
    let dir = subject.file("server");
    let room = room(subject)?;
    let millpond = subject.millpond()?;
    millpond.start_empty(&dir)?;
    let cap = PER_DEVICE.to_string();
    let make = |millpond: &Millpond, pool: &str, count: usize| -> Result<()> {
        let paths: Vec<String> = (0..count).map(|n| room.path().join(format!("{pool}{n}")).display().to_string()).collect();
        let sized: Vec<String> = paths.iter().map(|path| format!("{path}:512M")).collect();
        let mut words = vec!["pool", "create", pool];
        if count > 1 {
            words.extend(["stripe", "-i", "4", "-I", "64k"]);
        }
        words.extend(sized.iter().map(String::as_str));
        millpond.cli(&words)?;
        for path in &paths {
            millpond.cli(&["pool", "device-limit", pool, path, "--bps", &cap])?;
        }
        millpond.cli(&["create", &format!("{pool}/disk"), "-L", "256M"]).map(drop)
    };
    make(millpond, "one", 1)?;
    make(millpond, "four", 4)?;
    millpond.stop()?;
    millpond.launch()?;
    let (one, four) = (millpond.export("one/disk")?, millpond.export("four/disk")?);
    for mix in [Mix::Write, Mix::Read] {
        let spec = sequential(mix, 2.0);
        // only written ranges are read
        let (small, large) = (LoadSpec { size: 16 << 20, ..spec.clone() }, LoadSpec { size: 64 << 20, ..spec });
        let (mut scaling, mut within) = (0.0, false);
        for _ in 0..TRIES {
            let (one, four) = both((&one, &small), (&four, &large))?;
            scaling = four / one;
            println!("{mix:?}: {one:.2} and {four:.2} MiB/s, {scaling:.3} times");
            let cap = PER_DEVICE as f64 / 1_048_576.0;
            ensure!(one <= cap * TOO_MUCH, "{one:.1} MiB/s are more than the cap");
            if scaling >= SCALING && one <= cap * (1.0 + TOLERANCE) {
                within = true;
                break;
            }
        }
        ensure!(within, "four devices give {scaling:.3} times what one gives");
    }
    let rows = millpond.json(&["pool", "iostat", "four", "-v", "-l"])?;
    let devices: Vec<_> = rows.as_array().into_iter().flatten().filter(|row| row["level"] == "device").collect();
    ensure!(devices.len() == 4 && devices.iter().all(|row| row["queue_p99_nanos"].as_f64() > Some(1e6)), "nothing waited: {rows}");
    millpond.stop()
}

/// Limits of volumes are effective, can be changed under load, survive a restart, and do not affect
/// other volumes.
pub fn volumes(subject: &mut Subject) -> Result<()> {
    let dir = subject.file("server");
    let room = room(subject)?;
    let millpond = subject.millpond()?;
    millpond.start_empty(&dir)?;
    let device = room.path().join("device0").display().to_string();
    millpond.cli(&["pool", "create", "tank", &format!("{device}:1G")])?;
    millpond.cli(&["create", "tank/a", "-L", "128M", "-o", "iops=1000"])?;
    millpond.cli(&["create", "tank/b", "-L", "128M", "-o", "bps=20M"])?;
    let (a, b) = (millpond.export("tank/a")?, millpond.export("tank/b")?);
    let small = LoadSpec { secs: 1.2, ramp: 0.3, ..LoadSpec::random(Mix::Both(50), 4096, 32) };
    let large = LoadSpec { secs: 1.2, ramp: 0.3, ..LoadSpec::random(Mix::Both(50), 65536, 32) };
    // two volumes at the same time
    let (iops, mib) = both((&a, &small), (&b, &large))?;
    near("requests per second, mixed, beside another", 1000.0, once(iops, || Ok(run(&a, &small)?.iops)))?;
    near("MiB per second, mixed, beside another", 20.0, once(mib, || Ok(run(&b, &large)?.mib_s)))?;

    // changed online, for each direction
    millpond.cli(&["set", "iops=none", "iops_wr=500", "tank/a"])?;
    millpond.cli(&["set", "bps=none", "bps_rd=10M", "tank/b"])?;
    near("writes per second", 500.0, || Ok(run(&a, &LoadSpec { mix: Mix::Write, ..small.clone() })?.iops))?;
    near("MiB read per second", 10.0, || Ok(run(&b, &LoadSpec { mix: Mix::Read, ..large.clone() })?.mib_s))?;
    let free = run(&a, &LoadSpec { mix: Mix::Read, secs: 0.5, ..small.clone() })?.iops;
    ensure!(free > 1000.0, "reads are limited by a limit of writes: {free:.0}");

    // the same limit through another front end
    let guest = Endpoint::vhost_user(&export(millpond, &dir, "tank/a")?, false);
    near("writes per second over vhost-user", 500.0, || Ok(run(&guest, &LoadSpec { mix: Mix::Write, ..small.clone() })?.iops))?;

    // changed under load, with two jobs that share the limit, after a restart
    millpond.cli(&["set", "iops_wr=none", "iops=2000", "tank/a"])?;
    millpond.stop()?;
    millpond.launch()?;
    let changing = LoadSpec { jobs: 2, secs: 6.0, ramp: 0.0, series_ms: 500, ..small };
    let series = thread::scope(|scope| {
        let load = scope.spawn(|| run(&a, &changing));
        thread::sleep(std::time::Duration::from_millis(1250));
        millpond.cli(&["set", "iops=500", "tank/a"])?;
        load.join().map_err(|_| anyhow::anyhow!("a load panicked"))?
    })?;
    let points: Vec<u64> = series.series.iter().map(|point| point.ops).collect();
    println!("requests in each half second, 2000 and later 500 a second: {points:?}");
    // the threshold is half-way between the limits, because the time of the change depends on the
    // machine
    let (early, late) = (points.get(..3), points.get(8..11));
    let (early, late) = early.zip(late).with_context(|| format!("too short: {points:?}"))?;
    ensure!(early.iter().any(|ops| *ops > 600) && late.iter().all(|ops| *ops < 600), "not 1000 and then 250: {points:?}");
    ensure!(late.iter().any(|ops| (225..=275).contains(ops)), "never 250: {points:?}");
    ensure!(points.iter().all(|ops| *ops < 2000), "much more than 1000: {points:?}");

    // a shutdown does not wait for throttled requests, of which there is a minute's worth
    millpond.cli(&["set", "iops=1", "tank/a"])?;
    let held = thread::spawn(move || run(&a, &LoadSpec { secs: 30.0, ..LoadSpec::random(Mix::Write, 4096, 64) }));
    thread::sleep(std::time::Duration::from_millis(500));
    let begin = std::time::Instant::now();
    millpond.stop()?;
    ensure!(begin.elapsed().as_secs() < 45, "the daemon took {:?} to stop", begin.elapsed());
    // the connection broke, as expected
    let _ = held.join();
    Ok(())
}
