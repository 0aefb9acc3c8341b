//! `fs-create` and `fs-update`: creates files of 100 KB on a file system on the disk, then rewrites
//! them in place with none, one and two snapshots.

use super::Setup;
use super::sample::note_machine;
use crate::guest::{Guest, Mapper};
use crate::load::{Content, FILES_PER_DIRECTORY, FileSet, Round};
use crate::monitor::Monitor;
use crate::peer::{Contender, Millpond, make};
use crate::process::{Workspace, tail};
use crate::report::{Claim, Goal, Results, median};
use anyhow::{Context, Result};
use std::time::Instant;

const CONTENDERS: [&str; 7] = ["millpond", "millpond-tuned", "qsd-raw", "qsd-qcow2-128k", "qsd-chain", "xfs-reflink", "btrfs-reflink"];
/// Targets at a small scale: booting guests takes long, especially emulated ones.
const FEW: [&str; 3] = ["millpond", "qsd-raw", "qsd-chain"];
const LVM: &str = "lvm-in-guest";
const FILES: u64 = 104_857;
/// Least share of the speed without snapshots.
const FLAT: f64 = 0.95;
const CREATE: &str = "create, 0x00";
const INCOMPRESSIBLE: &str = "create, random bytes";

fn update(snapshots: usize) -> String {
    format!("rewrite, {snapshots} snapshot{}", if snapshots == 1 { "" } else { "s" })
}

fn count(setup: &Setup) -> u64 {
    setup.scaled(FILES, 3 * FILES_PER_DIRECTORY)
}

/// A target, and the guest that uses its disk.
struct Subject {
    // fields are dropped in this order: the guest has the disk open
    guest: Guest,
    contender: Box<dyn Contender>,
    mapper: Mapper,
    workspace: Workspace,
}

impl Subject {
    fn snapshot(&mut self, number: usize) -> Result<()> {
        match self.mapper {
            Mapper::None => self.contender.snapshot(&format!("round{number}")),
            Mapper::Snapshots => self.guest.take(number),
        }
    }
}

/// Returns the server of a target, and the mapper in the guest.
fn made_of(name: &str) -> (&str, Mapper) {
    if name == LVM { ("qsd-raw", Mapper::Snapshots) } else { (name, Mapper::None) }
}

fn open(setup: &Setup, name: &str) -> Result<Subject> {
    let files = FileSet::bytes(count(setup));
    let (server, mapper) = made_of(name);
    let filesystem = setup.size.unwrap_or((files * 5 / 4 + (128 << 20)) >> 20 << 20);
    // the origin, and a store for each of two snapshots
    let size = if mapper == Mapper::Snapshots { 3 * filesystem } else { filesystem };
    let pool = size + 5 * files + (1 << 30);
    setup.need(if Millpond::is_named(name) { pool } else { size + 4 * files })?;
    let (workspace, contender) = setup.open_with_pool(server, size, pool)?.into_parts();
    let guest = Guest::boot(workspace.path(), &contender.endpoint()?, filesystem, mapper)?;
    Ok(Subject { guest, contender, mapper, workspace })
}

fn note(results: &mut Results, rep: usize, name: &str, case: &str, round: &Round) {
    results.add(rep, name, case, "files_s", round.files_s);
    results.add(rep, name, case, "seconds", round.secs);
    results.add(rep, name, case, "mean_us", round.latency.mean_us);
    results.add(rep, name, case, "p50_us", round.latency.p50_us);
    results.add(rep, name, case, "p99_us", round.latency.p99_us);
}

/// Writes all files with the monitor running, then verifies every file.
fn watched(results: &mut Results, rep: usize, name: &str, case: &str, subject: &mut Subject, content: Content, files: u64) -> Result<()> {
    let csv = results.raw_file(&format!("{name}-{rep}-{case}.csv"))?;
    let monitor = Monitor::start(&csv, subject.contender.pid()?, subject.contender.control_socket(), subject.workspace.path())?;
    let round = subject.guest.write(files, content);
    let record = monitor.finish()?;
    note(results, rep, name, case, &round.with_context(|| case.to_owned())?);
    note_machine(results, rep, name, case, &record.summary);
    subject.guest.verify(files, content).context("reading the files back")
}

fn each(setup: &Setup, results: &mut Results, step: fn(&Setup, &mut Results, usize, &str) -> Result<()>) -> Result<()> {
    if let Err(reason) = Guest::check(Mapper::None) {
        results.leave_out(&format!("no guest can be booted: {reason:#}"));
        return Ok(());
    }
    let look = setup.scale < 0.1;
    let mut names = setup.contenders(if look && setup.peers.is_empty() { &FEW } else { &CONTENDERS }, results);
    if setup.peers.is_empty() || setup.peers.iter().any(|peer| peer == "qsd-raw") {
        match make("qsd-raw").and_then(|_| Guest::check(Mapper::Snapshots)) {
            Ok(()) => names.push(LVM.to_owned()),
            Err(reason) => results.skip(LVM, &format!("{reason:#}")),
        }
    }
    results.note(&format!(
        "{} files of 102,400 bytes, {FILES_PER_DIRECTORY} to a directory, on ext4 in a guest with two processors and 1 GiB, its disk over NBD; a \
         round ends when the filesystem has written all of it, from a cold cache, and all files are read back after it; {LVM} is the device \
         mapper's snapshots in the guest, in pieces of 4 KiB as lvcreate makes them, on the disk of qsd-raw",
        count(setup)
    ));
    let reps = setup.long_reps;
    for rep in 0..reps {
        for turn in 0..names.len() {
            let Some(name) = names.get((turn + rep) % names.len()) else { continue };
            if results.skipped.iter().any(|(skipped, _)| skipped == name) {
                continue;
            }
            results.say(&format!("repetition {} of {reps}: {name}", rep + 1));
            let outcome = step(setup, results, rep, name);
            match outcome {
                // a peer that fails is reported and left out; a failure of Millpond fails the
                // experiment
                Err(error) if !Millpond::is_named(name) => {
                    results.samples.retain(|s| s.contender != *name);
                    results.skip(name, &format!("a guest could not write its files: {}", tail(&format!("{error:#}"), 400)));
                }
                outcome => outcome.with_context(|| name.clone())?,
            }
        }
    }
    if Guest::are_emulated() {
        results.disturbed.push("the guests were emulated, for KVM does not work here: their processor is the bottleneck".to_owned());
    }
    Ok(())
}

/// Runs the first round of A-load: creates files.
///
/// # Errors
/// A target does not start or a file cannot be written.
pub fn run_create(setup: &Setup, results: &mut Results) -> Result<()> {
    each(setup, results, |setup, results, rep, name| {
        for (case, content) in [(CREATE, Content::Byte(0)), (INCOMPRESSIBLE, Content::Random(setup.seed_of(rep)))] {
            let mut subject = open(setup, name)?;
            watched(results, rep, name, case, &mut subject, content, count(setup))?;
            subject.guest.off()?;
        }
        Ok(())
    })
}

/// Runs the three rounds of rewrites of A-load.
///
/// # Errors
/// Those of [`run_create`].
pub fn run_update(setup: &Setup, results: &mut Results) -> Result<()> {
    each(setup, results, |setup, results, rep, name| {
        let mut subject = open(setup, name)?;
        let files = count(setup);
        subject.guest.write(files, Content::Byte(0)).context("creating the files")?;
        for (snapshots, byte) in [0xff, 0x55, 0xaa].into_iter().enumerate() {
            if snapshots > 0 {
                if name == "qsd-raw" {
                    break; // `qsd-raw` has no snapshots
                }
                let begin = Instant::now();
                subject.snapshot(snapshots)?;
                results.add(rep, name, &format!("snapshot {snapshots}"), "create_ms", begin.elapsed().as_secs_f64() * 1e3);
            }
            watched(results, rep, name, &update(snapshots), &mut subject, Content::Byte(byte), files)?;
        }
        subject.guest.off()?;
        Ok(())
    })?;
    for snapshots in 1..=2 {
        for name in CONTENDERS.into_iter().chain([LVM]) {
            results.relate(name, "files_s", (&update(snapshots), &update(0)), "files_to_none");
        }
        results.goal(&update(snapshots), "files_to_none", "millpond", Goal::AtLeast(FLAT));
    }
    claims(results);
    Ok(())
}

fn claims(results: &mut Results) {
    let part = |results: &Results, contender: &str, snapshots: usize| {
        let with = results.values(&update(snapshots), "files_s", contender);
        let without = results.values(&update(0), "files_s", contender);
        median(&with.iter().zip(&without).map(|(with, without)| without / with).collect::<Vec<f64>>())
    };
    for (snapshots, lvm, chain) in [(1, 29.5, 0.95), (2, 46.4, 1.03)] {
        let (ours, theirs) = (part(results, "millpond", snapshots), part(results, LVM, snapshots));
        let says = format!("LVM: times slower, {snapshots} snapshot(s)");
        let why = results.why(LVM, "there, on disks that seek; a copy costs less where nothing moves");
        results.claim(Claim::new("A-lvm", &says, lvm, "x").by(LVM, theirs, 2.0).ours(ours).because(&why));
        let says = format!("qcow2 chain: times slower, {snapshots} snapshot(s)");
        let theirs = part(results, "qsd-chain", snapshots);
        let why = results.why("qsd-chain", "another machine and medium, and rounds of minutes there");
        results.claim(Claim::new("A-chain", &says, chain, "x").by("qsd-chain", theirs, 1.25).ours(ours).because(&why));
    }
    let figure = |results: &Results, case: &str, metric: &str, contender: &str| median(&results.values(case, metric, contender));
    for (snapshots, lvm, chain) in [(0, 9236.5, 11_288.2), (1, 313.5, 11_928.8), (2, 199.2, 10_928.6)] {
        let case = update(snapshots);
        let (theirs, ours) = (figure(results, &case, "files_s", "qsd-chain"), figure(results, &case, "files_s", "millpond"));
        let lvm_here = figure(results, &case, "files_s", LVM);
        let why = results.why(LVM, "another machine and medium");
        results.claim(Claim::new("A-lvm", &case, lvm, "files/s").beside(LVM, lvm_here).ours(ours).because(&why));
        let why = results.why("qsd-chain", "another machine and medium");
        results.claim(Claim::new("A-chain", &case, chain, "files/s").beside("qsd-chain", theirs).ours(ours).because(&why));
    }
    let create = |contender: &str| figure(results, "snapshot 1", "create_ms", contender).map(|ms| ms / 1e3);
    let (theirs, ours) = (create("qsd-chain"), create("millpond"));
    let why = results.why("qsd-chain", "there, a tool stops and resumes a guest around it, on a disk of 100 GB");
    results.claim(Claim::new("A-chain", "a snapshot is created in", 2.864, "s").beside("qsd-chain", theirs).ours(ours).because(&why));
    for (snapshots, cpu, memory) in [(0, 2.56, 1.11), (1, 5.15, 1.30), (2, 5.19, 1.40)] {
        let case = update(snapshots);
        let (theirs, ours) = (figure(results, &case, "cpu_percent", "qsd-chain"), figure(results, &case, "cpu_percent", "millpond"));
        let why = results.why("qsd-chain", "another machine with more processors, all of this one's work is counted");
        results.claim(
            Claim::new("A-resources", &format!("{case}: processors"), cpu, "%").beside("qsd-chain", theirs).ours(ours).because(&why),
        );
        let (theirs, ours) = (figure(results, &case, "memory_gb", "qsd-chain"), figure(results, &case, "memory_gb", "millpond"));
        results.claim(
            Claim::new("A-resources", &format!("{case}: memory"), memory, "GB").beside("qsd-chain", theirs).ours(ours).because(&why),
        );
    }
}
