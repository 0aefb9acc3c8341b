//! End-to-end tests: real clients (QEMU's tools, libnbd's, fio, a guest) and a running daemon.
//!
//! `cargo xtask e2e [--subject NAME] [--list] [--no-skip] [FILTER…]` builds the programs and runs
//! them. The subject is `millpond` or another target of the lab: running the tests with other
//! servers shows that the tests themselves are sound. A test whose programs are missing is skipped
//! with a visible line.
//!
//! The lab has the kit: processes, guests, loads, and the servers under test.
#![forbid(unsafe_code)]

mod activation;
mod advise;
mod backup;
mod book;
mod browser;
mod bucket;
mod bucket_proxy;
mod cache;
mod cases;
mod claims;
mod cold_boot;
mod console;
mod debian;
mod devices;
mod disk_images;
mod drives;
mod fio;
mod full;
mod fuse;
mod fuse_hostile;
mod fuse_loop;
mod fuse_owner;
mod guest;
mod guest_disk;
mod guest_freeze;
mod health;
mod hostile;
mod hostile_requests;
mod images;
mod jobs;
mod lab;
mod libnbd;
mod libvirt;
mod libvirtd;
mod limits;
mod lost_special;
mod metrics;
mod metrics_cost;
mod model;
mod modes;
mod packages;
mod parity;
mod policies;
mod proxmox;
mod publish;
mod read_cache;
mod replication;
mod replication_ssh;
mod restart;
mod sectors;
mod send_receive;
mod spares;
mod status;
mod subject;
mod suites;
mod tls;
mod tls_cost;
mod tls_renewal;
mod trouble;
mod upgrade;
mod vhost_hostile;
mod vhost_migrate;
mod vhost_recover;
mod vhost_user;
mod walk;

use anyhow::Context;
use cases::{Asks, Case};
use millpond_lab::process::{Workspace, find_tool, wait_until};
use rustix::process::{Pid, Signal, kill_process_group};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use subject::{Subject, has_snapshots};

/// Time limit of a test. It is only a safety net: waits for states and guests have their own
/// limits.
const LIMIT: Duration = Duration::from_secs(3600);
/// Maximum wait of a test for an expected state.
const PATIENCE: Duration = Duration::from_secs(600);

struct Options {
    subject: String,
    filters: Vec<String>,
    list: bool,
    no_skip: bool,
    /// Run this test in this directory. The program calls itself with this option, so that a test
    /// that hangs can be killed as a whole.
    one: Option<(String, PathBuf)>,
}

fn options() -> Options {
    let mut options = Options { subject: "millpond".into(), filters: Vec::new(), list: false, no_skip: false, one: None };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--subject" => options.subject = args.next().unwrap_or_default(),
            "--list" => options.list = true,
            "--no-skip" => options.no_skip = true,
            "--one" => options.one = args.next().zip(args.next().map(PathBuf::from)),
            _ => options.filters.push(arg),
        }
    }
    options
}

fn main() -> ExitCode {
    let options = options();
    if let Some((name, dir)) = &options.one {
        return one(name, &options.subject, dir);
    }
    let is_chosen = |c: &&Case| options.filters.is_empty() || options.filters.iter().any(|f| c.name.contains(f.as_str()));
    let chosen: Vec<&Case> = cases::all().filter(is_chosen).collect();
    if options.list {
        chosen.iter().for_each(|c| println!("{:24} {}", c.name, c.about));
        return ExitCode::SUCCESS;
    }
    let (mut failed, mut skipped) = (Vec::new(), 0);
    for case in &chosen {
        if let Some(reason) = missing(case, &options.subject) {
            println!("SKIPPED {}: {reason}", case.name);
            skipped += 1;
            continue;
        }
        let begin = Instant::now();
        let outcome = apart(case.name, &options.subject);
        let took = begin.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => println!("ok      {} ({took:.1} s)", case.name),
            Err(error) => {
                println!("FAILED  {} ({took:.1} s): {error:#}", case.name);
                failed.push(format!("FAILED  {} ({took:.1} s): {error:#}", case.name));
            }
        }
    }
    // again at the end, because the output of later tests may be long
    failed.iter().for_each(|failure| println!("{failure}"));
    let passed = chosen.len() - failed.len() - skipped;
    println!("{}: {passed} passed, {} failed, {skipped} skipped", options.subject, failed.len());
    if failed.is_empty() && (skipped == 0 || !options.no_skip) && !chosen.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a test in its own process group, so that its servers and guests end with it.
fn apart(name: &str, subject: &str) -> anyhow::Result<()> {
    let workspace = Workspace::new(&std::env::temp_dir(), name)?;
    let mut command = Command::new(std::env::current_exe()?);
    let mut child = command.args(["--subject", subject, "--one", name]).arg(workspace.path()).process_group(0).spawn()?;
    let ended = wait_until(name, LIMIT, || !matches!(child.try_wait(), Ok(None)));
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(group) = group {
        // kills processes that the test left behind, or the whole test
        let _ = kill_process_group(group, Signal::KILL);
    }
    let status = child.wait()?;
    ended?;
    if !status.success() {
        let reason = std::fs::read_to_string(reason_in(workspace.path()));
        anyhow::bail!("{}", reason.unwrap_or_else(|_| format!("the test ended with {status}")));
    }
    Ok(())
}

/// The file in which a test that failed leaves the reason.
fn reason_in(dir: &Path) -> PathBuf {
    dir.join("failure.txt")
}

fn one(name: &str, subject: &str, dir: &Path) -> ExitCode {
    let attempt = || {
        let case = cases::all().find(|c| c.name == name).context("no such test")?;
        let mut subject = Subject::new(subject, dir)?;
        (case.run)(&mut subject).map_err(|error| anyhow::anyhow!("{error:#}\n--- last lines of the server\n{}", subject.last_words()))
    };
    match attempt() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if let Err(error) = std::fs::write(reason_in(dir), format!("{error:#}")) {
                println!("{name}: the reason is not written down: {error}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Whether this process has CAP_SYS_ADMIN, which root in a container often lacks.
fn may_mount() -> bool {
    const SYS_ADMIN: u64 = 1 << 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).is_some_and(|bits| bits & SYS_ADMIN != 0)
}

fn lacks(need: &str) -> Option<String> {
    match need {
        "volatile disk" => millpond_lab::peer::VolatileDisk::possible().err().map(|reason| format!("{reason:#}")),
        "root" => (!may_mount()).then(|| "it needs root, and leave to mount".to_owned()),
        "fuse" if !Path::new("/dev/fuse").exists() => Some("there is no /dev/fuse".to_owned()),
        "fuse" if !may_mount() && find_tool("fusermount3").is_none() => {
            Some("neither root may mount here nor is fusermount3 installed".to_owned())
        }
        "fuse" => None,
        user if user.starts_with("user ") => {
            let known = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
            let name = user.trim_start_matches("user ");
            (!known.lines().any(|line| line.split(':').next() == Some(name))).then(|| format!("there is no {user}"))
        }
        // The first version with extended headers.
        "libnbd 1.18" => match libnbd::version() {
            Some(version) if version >= (1, 18) => None,
            Some((major, minor)) => Some(format!("libnbd {major}.{minor} is older than 1.18")),
            None => Some("libnbd is not installed".to_owned()),
        },
        variable if variable.starts_with('$') => {
            let name = variable.trim_start_matches('$');
            std::env::var_os(name).is_none().then(|| format!("{name} is not set"))
        }
        path if path.starts_with('/') => (!Path::new(path).exists()).then(|| format!("there is no {path}")),
        tool => find_tool(tool).is_none().then(|| format!("{tool} is not installed")),
    }
}

fn missing(case: &Case, subject: &str) -> Option<String> {
    let able = match case.asks {
        Asks::Nothing => true,
        Asks::Snapshots => has_snapshots(subject),
        Asks::Everything => subject == "millpond",
    };
    if !able {
        return Some(format!("{subject} is not asked for this"));
    }
    if let Err(reason) = millpond_lab::peer::make(subject) {
        return Some(format!("{reason:#}"));
    }
    if let Some(reason) = case.needs.iter().find_map(|need| lacks(need)) {
        return Some(reason);
    }
    if case.guest { millpond_lab::guest::Kernel::find().err().map(|reason| format!("{reason:#}")) } else { None }
}
