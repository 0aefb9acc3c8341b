//! The lab's program: an experiment with a peer, its report, wrong usage; and an experiment with jobs
//! of pools.

use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::peer::millpond_binary;
use millpond_lab::process::find_tool;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// Returns a command for the lab's program, which is built beside the daemon's.
///
/// # Errors
/// There is none.
pub fn program() -> Result<Command> {
    let own = std::env::current_exe().context("the path of this program")?;
    // this program is in the directory below
    let near = own.ancestors().skip(1).take(2).map(|dir| dir.join("millpond-lab")).find(|path| path.is_file());
    let path = near.or_else(|| find_tool("millpond-lab")).context("no millpond-lab; `cargo xtask e2e` builds it")?;
    Ok(Command::new(path))
}

fn lab(dir: &Path, words: &[&str]) -> Result<Output> {
    let mut command = program()?;
    command.env("MILLPOND_BIN", millpond_binary()?).current_dir(dir).args(words);
    command.output().context("starting the lab")
}

pub fn run(subject: &mut Subject) -> Result<()> {
    let dir = subject.file("lab");
    fs::create_dir_all(&dir)?;
    let words = ["run", "read-share", "--scale", "0.01", "--reps", "1", "--size", "16m", "--peers", "millpond,ceiling", "--media", "disk"];
    let place = dir.display().to_string();
    let ended = lab(&dir, &[&words[..], &["--disk-dir", &place, "--out", "out"]].concat())?;
    let (out, err) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    ensure!(ended.status.success(), "{out}\n{err}");
    ensure!(out.contains("ceiling") && out.contains("62371"), "the table has no peer or no article: {out}");

    let results: Value = serde_json::from_str(&fs::read_to_string(dir.join("out/results.json"))?)?;
    let samples = results.pointer("/experiments/0/samples").and_then(Value::as_array).context("no samples")?;
    let of = |contender: &str, metric: &str| {
        let wanted = |s: &&Value| s["contender"] == contender && s["metric"] == metric;
        samples.iter().filter(wanted).filter_map(|s| s["value"].as_f64()).collect::<Vec<f64>>()
    };
    for contender in ["millpond", "ceiling"] {
        let iops = of(contender, "iops");
        ensure!(iops.len() == 7 && iops.iter().sum::<f64>() > 0.0, "seven shares of reads of {contender}: {iops:?}");
    }
    let lines = fs::read_to_string(dir.join("out/results.csv"))?.lines().count();
    ensure!(lines == samples.len() + 1, "{lines} lines of CSV for {} samples", samples.len());

    fs::remove_file(dir.join("out/report.html"))?;
    ensure!(lab(&dir, &["report", "out"])?.status.success());
    let page = fs::read_to_string(dir.join("out/report.html"))?;
    ensure!(page.contains("<svg") && page.contains("read-share") && !page.contains("src="), "a page with charts that loads nothing");

    for (words, code) in [(&["run", "nope"][..], 2), (&["run", "all", "--peers", "nope"], 2), (&["report", "nowhere"], 1)] {
        let ended = lab(&dir, words)?;
        let line = String::from_utf8_lossy(&ended.stderr).into_owned();
        ensure!(ended.status.code() == Some(code) && line.lines().count() == 1 && line.starts_with("millpond-lab: "), "{words:?}: {line}");
    }
    Ok(())
}

/// Runs an experiment with background jobs at the smallest scale. It fails by itself when a
/// repetition takes longer than the limit that it states.
pub fn beside_jobs(subject: &mut Subject) -> Result<()> {
    let dir = subject.file("lab");
    fs::create_dir_all(&dir)?;
    let words = ["run", "beside-jobs", "--scale", "0.01", "--reps", "1", "--media", "disk"];
    let place = dir.display().to_string();
    let ended = lab(&dir, &[&words[..], &["--disk-dir", &place, "--out", "out"]].concat())?;
    let (out, err) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    ensure!(ended.status.success(), "{out}\n{err}");
    ensure!(err.contains("a repetition takes at most"), "the limit is not stated: {err}");

    let results: Value = serde_json::from_str(&fs::read_to_string(dir.join("out/results.json"))?)?;
    let samples = results.pointer("/experiments/0/samples").and_then(Value::as_array).context("no samples")?;
    for (metric, means) in [("p99_us", "guests are served beside the job"), ("job_mb_s", "the job goes on beside guests")] {
        let of_metric = samples.iter().filter(|sample| sample["metric"] == metric);
        let values: Vec<(&Value, f64)> = of_metric.filter_map(|sample| Some((&sample["case"], sample["value"].as_f64()?))).collect();
        ensure!(values.len() == 9 && values.iter().all(|(_, value)| *value > 0.0), "{means}: {values:?}");
    }
    Ok(())
}
