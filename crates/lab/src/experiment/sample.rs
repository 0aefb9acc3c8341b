//! A measurement: a load, and its cost for the server.

use crate::load::{LoadResult, LoadSpec, run};
use crate::monitor::Summary;
use crate::peer::Contender;
use crate::process::cpu_time;
use crate::report::Results;
use anyhow::{Result, bail};

/// Runs a load on a target; returns the result, and the server's CPU time per request in
/// microseconds.
///
/// # Errors
/// The load failed, or the server refused requests, which makes figures incomparable.
pub fn measure(contender: &dyn Contender, spec: &LoadSpec) -> Result<(LoadResult, f64)> {
    let pid = contender.pid()?;
    let before = cpu_time(pid)?;
    let result = run(&contender.endpoint()?, spec)?;
    let used = cpu_time(pid)?.saturating_sub(before);
    if result.errors > 0 {
        bail!("{} refused {} requests, the first with NBD error {}", contender.name(), result.errors, result.first_error);
    }
    let per_request = used.as_secs_f64() * 1e6 / result.total_ops.max(1) as f64;
    Ok((result, per_request))
}

/// Runs [`measure`] and records the usual figures under `label`.
///
/// # Errors
/// Those of [`measure`].
pub fn measure_into(
    results: &mut Results,
    rep: usize,
    case: &str,
    label: &str,
    contender: &dyn Contender,
    spec: &LoadSpec,
) -> Result<LoadResult> {
    let (result, cpu) = measure(contender, spec)?;
    let latency = if result.read.count > 0 { result.read } else { result.write };
    results.add(rep, label, case, "iops", result.iops);
    results.add(rep, label, case, "p50_us", latency.p50_us);
    results.add(rep, label, case, "p99_us", latency.p99_us);
    results.add(rep, label, case, "server_cpu_us", cpu);
    results.add(rep, label, case, "client_cpu_us", result.client_cpu_us);
    Ok(result)
}

/// Records means and maxima of a monitored measurement.
pub fn note_machine(results: &mut Results, rep: usize, label: &str, case: &str, summary: &Summary) {
    const GB: f64 = 1e9;
    const MB: f64 = 1e6;
    for (column, metric, unit) in [
        ("cpu_percent", "cpu_percent", 1.0),
        ("load", "load", 1.0),
        ("memory_used_bytes", "memory_gb", GB),
        ("memory_percent", "memory_percent", 1.0),
        ("server_cpu_percent", "server_cpu_percent", 1.0),
        ("server_memory_bytes", "server_memory_gb", GB),
        ("disk_writes_s", "disk_writes_s", 1.0),
        ("disk_write_bytes_s", "disk_write_mb_s", MB),
        ("disk_await_ms", "disk_await_ms", 1.0),
        ("disk_request_bytes", "disk_request_kb", 1e3),
        ("disk_busy_percent", "disk_busy_percent", 1.0),
    ] {
        // a medium in memory has no disk
        if let Some(stat) = summary.of(column) {
            results.add(rep, label, case, metric, stat.mean / unit);
            results.add(rep, label, case, &format!("{metric}_max"), stat.max / unit);
        }
    }
}
