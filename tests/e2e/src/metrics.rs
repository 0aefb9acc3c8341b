//! Metrics of a daemon with pools, volumes, snapshots and exports, and the shipped alerts.

use super::PATIENCE;
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::load::{Client, Op};
use millpond_lab::peer::{Contender, Millpond};
use millpond_lab::process::{find_tool, run_tool, wait_until};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SIZE: u64 = 64 << 20;
const BLOCK: usize = 8192;
/// Series without values here: no pool fills, no job runs, and no condition lasts.
const WITHOUT_VALUES: [&str; 8] = [
    "millpond_condition_since_timestamp_seconds",
    "millpond_pool_full_in_seconds",
    "millpond_job_state",
    "millpond_job_remaining_bytes",
    "millpond_job_done_bytes",
    "millpond_job_bytes_per_second",
    "millpond_job_remaining_seconds",
    "millpond_job_errors",
];
/// Header `Accept` of Prometheus 2.
const PROMETHEUS: &str =
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

/// Returns the content type and the text of `GET /metrics`.
pub fn scrape(socket: &Path, accept: Option<&str>) -> Result<(String, String)> {
    let mut stream = UnixStream::connect(socket).context("connecting to the control socket")?;
    let accept = accept.map(|accept| format!("Accept: {accept}\r\n")).unwrap_or_default();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n{accept}Connection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer without a body")?;
    ensure!(head.starts_with("HTTP/1.1 200"), "{head}");
    let kind = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-type: ").map(str::to_owned));
    Ok((kind.context("an answer without a content type")?, body.to_owned()))
}

/// Returns the value of each sample, by its name with labels.
fn values(text: &str) -> BTreeMap<&str, f64> {
    let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
    samples.filter_map(|(name, value)| Some((name, value.parse().ok()?))).collect()
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the names of series in `docs/metrics.md`.
fn documented() -> Result<BTreeSet<String>> {
    let page = std::fs::read_to_string(repository().join("docs/metrics.md"))?;
    let names = page.lines().filter_map(|line| line.strip_prefix("| `millpond_")?.split('`').next());
    Ok(names.map(|name| format!("millpond_{name}")).collect())
}

/// Makes a second pool with a volume that has limits, snapshots and exports over all protocols.
fn prepare(millpond: &Millpond, dir: &Path) -> Result<()> {
    let device = |name: &str| format!("{}:512M", dir.join(name).display());
    millpond.cli(&["pool", "create", "safe", "mirror", &device("a"), &device("b")])?;
    millpond.cli(&["create", "safe/vm1", "-L", "32M", "-o", "iops=5000"])?;
    millpond.cli(&["snapshot", "safe/vm1@monday", "safe/vm1@tuesday"])?;
    millpond.cli(&["policy", "create", "yearly", "--keep", "1y:3y"])?;
    millpond.cli(&["policy", "attach", "yearly", "safe/vm1"])?;
    millpond.cli(&["pool", "create", "copy", &device("c")])?;
    millpond.cli(&["create", "safe/vm2", "-L", "8M"])?;
    millpond.cli(&["policy", "create", "sent", "--keep", "1y:3y", "--send", "copy"])?;
    millpond.cli(&["policy", "attach", "sent", "safe/vm2"])?;
    millpond.cli(&["policy", "run", "sent"])?;
    // the first look, when there is no snapshot yet, ends without one
    wait_until("a policy has sent a snapshot", PATIENCE, || {
        millpond.json(&["policy", "show", "sent"]).is_ok_and(|shown| shown["volumes"][0]["send"]["newest"].is_string())
    })?;
    millpond.cli(&["export", "vhost-user", "safe/vm1", "--unix", &dir.join("vhost.sock").display().to_string()])?;
    millpond.cli(&["export", "nbd", "safe/vm1@monday", "--unix", &dir.join("monday.sock").display().to_string()])?;
    millpond.cli(&["pool", "scrub", "safe", "--wait"]).map(drop)
}

/// Lints metrics in the text format.
fn lint(text: &str) -> Result<()> {
    if find_tool("promtool").is_none() {
        println!("SKIPPED promtool check metrics: promtool is not installed");
        return Ok(());
    }
    let mut command = Command::new("promtool");
    let mut child = command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().context("its input")?.write_all(text.as_bytes())?;
    let ended = child.wait_with_output()?;
    let said = [ended.stdout, ended.stderr].concat();
    ensure!(ended.status.success() && said.is_empty(), "promtool check metrics: {}", String::from_utf8_lossy(&said));
    Ok(())
}

/// Both formats have every documented series and no other; counters agree with the requests of a
/// client, outlive it, and never fall; `promtool` finds nothing.
pub fn exposition(subject: &mut Subject) -> Result<()> {
    let endpoint = subject.start(SIZE)?;
    let dir = subject.dir().to_owned();
    let millpond = subject.millpond()?;
    prepare(millpond, &dir)?;
    let socket = Millpond::control_socket(millpond);
    let mut client = Client::connect(&endpoint, 1, BLOCK, false)?;
    for step in 0..10 {
        client.call(Op::Write, step * BLOCK as u64, BLOCK)?;
        client.call(Op::Read, step * BLOCK as u64, BLOCK)?;
    }
    client.call(Op::Flush, 0, 0)?;
    let (kind, first) = scrape(&socket, None)?;
    ensure!(kind == "text/plain; version=0.0.4; charset=utf-8", "{kind}");
    lint(&first)?;
    drop(client);
    let (kind, open) = scrape(&socket, Some(PROMETHEUS))?;
    ensure!(kind == "application/openmetrics-text; version=1.0.0; charset=utf-8", "{kind}");
    ensure!(open.ends_with("\n# EOF\n") && open.contains("\n# UNIT millpond_pool_size_bytes bytes\n"), "no OpenMetrics: {open}");

    let documented = documented()?;
    let declared: BTreeSet<String> =
        first.lines().filter_map(|line| Some(line.strip_prefix("# TYPE ")?.split(' ').next()?.to_owned())).collect();
    ensure!(documented == declared, "docs/metrics.md differs in {:?}", documented.symmetric_difference(&declared));
    let known = values(&first);
    for name in documented.iter().filter(|name| !WITHOUT_VALUES.contains(&name.as_str())) {
        let belongs =
            |sample: &&str| sample.strip_prefix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(['{', '_']));
        ensure!(known.keys().any(belongs), "{name} has no value");
    }
    let expect = |known: &BTreeMap<&str, f64>, sample: &str, value: f64| {
        let found = known.get(sample).copied();
        ensure!(found == Some(value), "{sample} is {found:?} instead of {value}");
        Ok(())
    };
    for of in ["millpond_pool_requests_total{pool=\"lab\",", "millpond_volume_requests_total{pool=\"lab\",volume=\"disk\","] {
        for (operation, count) in [("read", 10.0), ("write", 10.0), ("flush", 1.0)] {
            expect(&known, &format!("{of}operation=\"{operation}\"}}"), count)?;
        }
    }
    let disk = "pool=\"lab\",volume=\"disk\",operation=\"write\"";
    expect(&known, &format!("millpond_volume_request_bytes_total{{{disk}}}"), 10.0 * BLOCK as f64)?;
    expect(&known, &format!("millpond_volume_request_duration_seconds_count{{{disk}}}"), 10.0)?;
    expect(&known, &format!("millpond_volume_request_duration_seconds_bucket{{{disk},le=\"+Inf\"}}"), 10.0)?;
    expect(&known, "millpond_volume_snapshots{pool=\"safe\",volume=\"vm1\"}", 2.0)?;
    expect(&known, "millpond_pool_state{pool=\"safe\",state=\"online\"}", 1.0)?;
    expect(&known, "millpond_pool_clients{pool=\"lab\"}", 1.0)?;

    // the client is gone and its export ends: counts of volume and pool stay
    millpond.cli(&["unexport", "lab/disk"])?;
    let (_, last) = scrape(&socket, None)?;
    let later = values(&last);
    for (sample, value) in known.iter().filter(|(sample, _)| sample.contains("_total{") && !sample.starts_with("millpond_export_")) {
        let now = later.get(sample).with_context(|| format!("{sample} is missing"))?;
        ensure!(now >= value, "{sample} fell from {value} to {now}");
    }
    expect(&later, &format!("millpond_volume_request_duration_seconds_count{{{disk}}}"), 10.0)?;
    millpond.cli(&["pool", "export", "safe", "--force"])?;
    let (_, last) = scrape(&socket, None)?;
    ensure!(!last.contains("millpond_pool_state{pool=\"safe\""), "a pool that was exported has metrics");
    ensure!(last.contains("pool=\"safe\",name=\"safe/vm1\",state=\"unavailable\"} 1\n"), "an export of a pool that was exported: {last}");
    millpond.stop()
}

/// The shipped alerts are valid, and act as their tests say.
pub fn alerts(_: &mut Subject) -> Result<()> {
    let file = |name: &str| repository().join("integrations/prometheus").join(name).display().to_string();
    run_tool("promtool", &["check", "rules", &file("millpond.rules.yml")])?;
    run_tool("promtool", &["test", "rules", &file("millpond.rules.test.yml")]).map(drop)
}
