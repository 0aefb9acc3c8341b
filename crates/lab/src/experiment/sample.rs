//! One measurement: a load, and what it cost the server.

use crate::load::{LoadResult, LoadSpec, run};
use crate::peer::Contender;
use crate::process::cpu_time;
use crate::report::Results;
use anyhow::{Result, bail};

/// Runs a load on a contender; returns it with the server's CPU microseconds per request.
///
/// # Errors
/// The load failed, or the server refused requests: such a figure would compare nothing.
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

/// As [`measure`], and notes the usual figures under `label`.
///
/// # Errors
/// As [`measure`].
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
