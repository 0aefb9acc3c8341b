//! A measurement: a load, and its cost for the server.

use crate::load::{LoadResult, LoadSpec, run};
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
