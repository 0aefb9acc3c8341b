//! Two hosts that share a disk. A host keeps its pool while it lives, and the pool of a dead host
//! can be taken over; a host that was only delayed notices that it has lost the pool, and stops
//! writing. No acknowledged data is lost.

use super::PATIENCE;
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::load::{Client, Endpoint, Ledger, Op, Verdict, Written, audit, write_blocks};
use millpond_lab::peer::{Contender, Millpond, millpond_binary};
use millpond_lab::process::{Daemon, find_tool, run_tool, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const DEVICE: u64 = 256 << 20;
const BLOCK: usize = 4096;
/// The first host writes the first half of the volume, the second host a part of the second half.
const BLOCKS: usize = 16 << 10;
const HALF: usize = BLOCKS / 2;
const SECOND: Range<usize> = HALF..HALF + 1024;
/// Limit of writes per second, so that the first host is still writing when it is killed or
/// stopped.
const RATE: &str = "iops=2000";
/// A pool is not taken from a host whose claim was renewed more recently than this.
const LEASE: Duration = Duration::from_secs(9);
/// Longer than the interval in which a host checks its claim.
const LOOKS: Duration = Duration::from_secs(3);

/// A disk that each host sees as a file of its own, as with network storage: locks of one host are
/// invisible to the other.
struct SharedDisk {
    dir: PathBuf,
    _server: Daemon,
    views: Vec<Daemon>,
}

impl SharedDisk {
    fn start(dir: &Path, hosts: usize) -> Result<SharedDisk> {
        fs::create_dir_all(dir)?;
        let (socket, log) = (dir.join("disk.sock"), dir.join("disk.log"));
        File::create(dir.join("medium")).and_then(|file| file.set_len(DEVICE)).context("making the medium")?;
        let mut command = Command::new(find_tool("nbdkit").context("nbdkit is not installed")?);
        command.args(["--foreground", "--unix"]).arg(&socket).arg("file").arg(dir.join("medium"));
        let mut server = Daemon::spawn(&mut command, &log)?;
        server.wait_ready(PATIENCE, || UnixStream::connect(&socket).is_ok())?;
        let mut disk = SharedDisk { dir: dir.to_owned(), _server: server, views: Vec::new() };
        for host in 0..hosts {
            let path = disk.seen_by(host);
            fs::create_dir_all(path.parent().context("a disk without a directory")?)?;
            File::create(&path)?;
            let mut command = Command::new(find_tool("nbdfuse").context("nbdfuse is not installed")?);
            disk.views.push(Daemon::spawn(command.arg(&path).arg("--unix").arg(&socket), &log)?);
            wait_until("the disk is seen", PATIENCE, || fs::metadata(&path).is_ok_and(|found| found.len() == DEVICE))?;
        }
        Ok(disk)
    }

    fn seen_by(&self, host: usize) -> PathBuf {
        self.dir.join(format!("host{host}")).join("disk")
    }

    /// Hash of the disk's content.
    fn digest(&self) -> Result<u64> {
        let mut file = File::open(self.dir.join("medium"))?;
        let (mut hasher, mut piece) = (DefaultHasher::new(), vec![0; 1 << 20]);
        for _ in 0..DEVICE >> 20 {
            file.read_exact(&mut piece)?;
            hasher.write(&piece);
        }
        Ok(hasher.finish())
    }
}

impl Drop for SharedDisk {
    fn drop(&mut self) {
        for host in 0..self.views.len() {
            let _ = run_tool("umount", &["-l".as_ref(), self.seen_by(host).as_os_str()]);
        }
    }
}

/// Two hosts, of which the first has the pool in service.
struct Hosts {
    disk: SharedDisk,
    one: Millpond,
    two: Millpond,
    begun: Endpoint,
}

impl Hosts {
    fn start(dir: &Path) -> Result<Hosts> {
        let disk = SharedDisk::start(&dir.join("shared"), 2)?;
        let host = |name: &str| -> Result<Millpond> {
            let mut millpond = Millpond::new(millpond_binary()?).without_read_cache().with_setting(&format!("host_id = \"{name}\""));
            millpond.start_empty(&dir.join(name))?;
            Ok(millpond)
        };
        let (one, two) = (host("one")?, host("two")?);
        one.cli(&["pool", "create", "tank", &disk.seen_by(0).display().to_string()])?;
        one.cli(&["create", "tank/disk", "-L", &(BLOCKS * BLOCK).to_string()])?;
        one.cli(&["set", RATE, "tank/disk"])?;
        let begun = one.export("tank/disk")?;
        Ok(Hosts { disk, one, two, begun })
    }

    /// Prepares the import by the second host, with more arguments.
    fn import(&self, words: &[&str]) -> Command {
        let search = self.disk.seen_by(1).with_file_name("");
        self.two.command(&[&["pool", "import", "tank", "-d", &search.display().to_string()], words].concat())
    }

    /// Checks that the import is refused in one line.
    fn is_refused(&self, why: &str) -> Result<()> {
        let output = self.import(&[]).output().context("starting millpond")?;
        let said = String::from_utf8_lossy(&output.stderr);
        let one_line = said.trim_end().lines().count() == 1 && said.starts_with("millpond: ");
        ensure!(output.status.code() == Some(1) && one_line && said.contains(why) && said.contains("--force"), "{output:?}");
        Ok(())
    }

    /// Takes the pool over with the second host; this must wait until the first host's lease has
    /// ended.
    fn is_taken(&self) -> Result<Endpoint> {
        let begin = Instant::now();
        let output = self.import(&["--force"]).output().context("starting millpond")?;
        ensure!(output.status.success(), "{output:?}");
        ensure!(begin.elapsed() >= LEASE, "taken after {:?}", begin.elapsed());
        self.two.cli(&["set", "iops=none", "tank/disk"])?;
        self.two.export("tank/disk")
    }
}

/// Writes through one host until its end; returns the ledger and how the load ended.
fn written(endpoint: &Endpoint, run: u64, blocks: Range<usize>, progress: &AtomicU64) -> (Ledger, Result<Written>) {
    let mut ledger = Ledger::new(run, BLOCKS, BLOCK);
    let outcome = write_blocks(endpoint, &mut ledger, blocks, 16, &AtomicBool::new(false), progress);
    (ledger, outcome)
}

/// Checks that all data acknowledged by either host is there.
fn all_is_there(endpoint: &Endpoint, first: &Ledger, second: &Ledger) -> Result<()> {
    let judge = |block: usize, data: &[u8]| -> Verdict { if block < HALF { first.judge(block, data) } else { second.judge(block, data) } };
    let (_, found) = audit(endpoint, first, judge)?;
    ensure!(found.lost == 0 && found.wrong == 0, "{found:?}");
    Ok(())
}

/// Kills the first host while it writes; returns its ledger.
fn killed(hosts: &mut Hosts) -> Result<Ledger> {
    let (progress, begun) = (AtomicU64::new(0), hosts.begun.clone());
    thread::scope(|scope| {
        let writer = scope.spawn(|| written(&begun, 1, 0..HALF, &progress));
        wait_until("the first host writes", PATIENCE, || progress.load(Ordering::Relaxed) > 500 || writer.is_finished())?;
        hosts.one.kill9()?;
        let (ledger, outcome) = writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))?;
        ensure!(outcome?.broken.is_some(), "the writing was over before the host died");
        Ok(ledger)
    })
}

/// A dead host looks like a silent one, so its pool is refused to others. The host itself
/// gets the pool back.
fn is_silent(dir: &Path) -> Result<()> {
    let mut hosts = Hosts::start(dir)?;
    let first = killed(&mut hosts)?;
    let begin = Instant::now();
    hosts.is_refused("has not closed it")?;
    ensure!(begin.elapsed() >= LEASE, "refused after {:?}", begin.elapsed());
    hosts.one.launch()?;
    all_is_there(&hosts.begun, &first, &Ledger::new(2, BLOCKS, BLOCK))
}

/// The pool of a dead host is taken over. When the host comes back, it is refused.
fn is_dead(dir: &Path) -> Result<()> {
    let mut hosts = Hosts::start(dir)?;
    let first = killed(&mut hosts)?;
    let endpoint = hosts.is_taken()?;
    let (second, outcome) = written(&endpoint, 2, SECOND, &AtomicU64::new(0));
    ensure!(outcome?.broken.is_none());
    hosts.one.launch()?;
    let listed = hosts.one.json(&["pool", "status", "tank"])?;
    let reason = listed[0]["reason"].as_str().unwrap_or_default();
    ensure!(listed[0]["health"] == "unavailable" && reason.contains("in use on host"), "{listed}");
    all_is_there(&endpoint, &first, &second)
}

/// The first host is stopped while it writes, and continues after another host had the pool: it
/// reports that it lost the pool, and writes nothing.
fn is_held_up(dir: &Path) -> Result<()> {
    let hosts = Hosts::start(dir)?;
    hosts.is_refused("in use on host")?;
    // a job that is still running then
    hosts.one.cli(&["pool", "set", "job_rate=64K", "tank"])?;
    let signal = |signal: Signal| -> Result<()> {
        let pid = i32::try_from(hosts.one.pid()?).ok().and_then(Pid::from_raw).context("an impossible process id")?;
        kill_process(pid, signal).context("signalling the first host")
    };
    let progress = AtomicU64::new(0);
    let (first, second, endpoint) = thread::scope(|scope| -> Result<_> {
        let writer = scope.spawn(|| written(&hosts.begun, 1, 0..HALF, &progress));
        wait_until("the first host writes", PATIENCE, || progress.load(Ordering::Relaxed) > 500 || writer.is_finished())?;
        hosts.one.cli(&["pool", "scrub", "tank"])?;
        signal(Signal::STOP)?;
        let taken = hosts.is_taken().and_then(|endpoint| {
            let (second, outcome) = written(&endpoint, 2, SECOND, &AtomicU64::new(0));
            ensure!(outcome?.broken.is_none());
            // exported, so that another host could have the pool: the disk must not change from now
            // on
            hosts.two.cli(&["pool", "export", "tank"])?;
            Ok((second, endpoint, hosts.disk.digest()?))
        });
        // whatever the outcome: a stopped host cannot be terminated
        signal(Signal::CONT)?;
        let (second, endpoint, digest) = taken?;
        let (first, outcome) = writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))?;
        ensure!(outcome.is_err() || outcome.is_ok_and(|written| written.broken.is_some()), "a host without a pool acknowledges");
        thread::sleep(LOOKS);
        ensure!(hosts.disk.digest()? == digest, "a host that has lost the pool wrote to it");
        Ok((first, second, endpoint))
    })?;
    let status = hosts.one.cli(&["pool", "status", "tank"])?;
    ensure!(status.contains("faulted") && status.contains("took the pool over"), "{status}");
    let waiting = hosts.one.command(&["pool", "scrub", "tank", "--wait"]).output()?;
    let waited = hosts.one.command(&["pool", "jobs", "--wait", "scrub:tank"]).output()?;
    let said = String::from_utf8_lossy(&waited.stderr);
    ensure!(waited.status.code() == Some(1) && said.contains("is stopped") && !waiting.status.success(), "{waited:?} {waiting:?}");
    let refused = Client::connect(&hosts.begun, 1, BLOCK, false).and_then(|mut client| client.call(Op::Read, 0, BLOCK));
    ensure!(refused.is_err(), "a host without a pool answers");
    let output = hosts.import(&[]).output()?;
    ensure!(output.status.success(), "it was closed: {output:?}");
    all_is_there(&endpoint, &first, &second)
}

/// Runs the three tests in parallel, because they mostly wait.
pub fn run(subject: &mut Subject) -> Result<()> {
    let [silent, dead, stopped] = ["silent", "dead", "stopped"].map(|name| subject.file(name));
    thread::scope(|scope| {
        let silent = scope.spawn(|| is_silent(&silent).context("a host that is silent"));
        let dead = scope.spawn(|| is_dead(&dead).context("a host that is dead"));
        let outcome = is_held_up(&stopped).context("a host that is held up");
        let others = [silent, dead].map(|other| other.join().map_err(|_| anyhow::anyhow!("a thread panicked")));
        others.into_iter().try_for_each(|other| other?).and(outcome)
    })
}
