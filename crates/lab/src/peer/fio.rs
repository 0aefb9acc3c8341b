//! Runs fio on an export over NBD or on a file; keeps its output and extracts the figures.

use crate::load::Endpoint;
use crate::process::run_tool;
use crate::report::Results;
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::Path;

/// Figures of fio.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fio {
    /// Requests per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_s: f64,
    /// Mean latency of a request in microseconds, from submission to completion.
    pub mean_us: f64,
    /// Median, in microseconds.
    pub p50_us: f64,
    /// 99th percentile, in microseconds.
    pub p99_us: f64,
}

/// Runs fio with its `nbd` engine and these options, with only writes or only reads counted; keeps
/// its JSON under `name`.
///
/// # Errors
/// fio is not installed, has no such engine, or requests failed.
pub fn fio(results: &mut Results, name: &str, endpoint: &Endpoint, write: bool, options: &[String]) -> Result<Fio> {
    run(results, name, &["--ioengine=nbd".to_owned(), format!("--uri={}", endpoint.uri())], write, options)
}

/// Runs fio on a file or device with direct I/O.
///
/// # Errors
/// Those of [`fio`].
pub fn fio_file(results: &mut Results, name: &str, file: &Path, write: bool, options: &[String]) -> Result<Fio> {
    let place = ["--ioengine=libaio", "--direct=1", "--allow_file_create=0"].map(str::to_owned);
    run(results, name, &[&place[..], &[format!("--filename={}", file.display())]].concat(), write, options)
}

fn run(results: &mut Results, name: &str, place: &[String], write: bool, options: &[String]) -> Result<Fio> {
    let mut args: Vec<String> = ["--name=lab", "--output-format=json", "--thread", "--group_reporting"].map(str::to_owned).into();
    args.extend_from_slice(place);
    args.extend_from_slice(options);
    let text = run_tool("fio", &args)?;
    results.keep(&format!("{name}.json"), &text)?;
    let start = text.find('{').context("fio printed no JSON")?; // warnings come first
    let report: Value = serde_json::from_str(&text[start..]).context("fio printed no JSON")?;
    let job = report.pointer("/jobs/0").context("fio reports no job")?;
    anyhow::ensure!(job.pointer("/error").and_then(Value::as_i64) == Some(0), "fio's requests failed; see its output");
    let side = if write { "write" } else { "read" };
    let figure = |key: &str| job.pointer(&format!("/{side}/{key}")).and_then(Value::as_f64).with_context(|| format!("fio says no {key}"));
    Ok(Fio {
        iops: figure("iops")?,
        bytes_s: figure("bw_bytes")?,
        mean_us: figure("lat_ns/mean")? / 1e3,
        p50_us: figure("clat_ns/percentile/50.000000")? / 1e3,
        p99_us: figure("clat_ns/percentile/99.000000")? / 1e3,
    })
}
