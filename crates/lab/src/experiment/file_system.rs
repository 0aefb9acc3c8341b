//! `fs-create` and `fs-update`: creates files of 100 KB on a file system on the disk, then rewrites
//! them in place; each with none, one and two snapshots.

mod claims;
mod subject;

use super::Setup;
use super::sample::note_machine;
use crate::guest::{Guest, Mapper};
use crate::load::{Content, FILES_PER_DIRECTORY, Round};
use crate::monitor::Monitor;
use crate::peer::{Drives, Millpond, make};
use crate::process::tail;
use crate::report::{Goal, Results};
use anyhow::{Context, Result};
use std::time::Instant;
use subject::{LVM, LVM_HDD, OURS_HDD, Subject};

const CONTENDERS: [&str; 7] = ["millpond", "millpond-tuned", "qsd-raw", "qsd-qcow2-128k", "qsd-chain", "xfs-reflink", "btrfs-reflink"];
/// Targets at a small scale: booting guests takes long, especially emulated ones.
const FEW: [&str; 3] = ["millpond", "qsd-raw", "qsd-chain"];
const FILES: u64 = 104_857;
/// Least share of the speed without snapshots.
const FLAT: f64 = 0.95;
const INCOMPRESSIBLE: &str = "create, random bytes";

fn create(snapshots: usize) -> String {
    format!("create, {snapshots} snapshot{}", if snapshots == 1 { "" } else { "s" })
}

fn update(snapshots: usize) -> String {
    format!("rewrite, {snapshots} snapshot{}", if snapshots == 1 { "" } else { "s" })
}

fn count(setup: &Setup) -> u64 {
    setup.scaled(FILES, 3 * FILES_PER_DIRECTORY)
}

fn note(results: &mut Results, rep: usize, name: &str, case: &str, round: &Round) {
    results.add(rep, name, case, "files_s", round.files_s);
    results.add(rep, name, case, "seconds", round.secs);
    results.add(rep, name, case, "mean_us", round.latency.mean_us);
    results.add(rep, name, case, "p50_us", round.latency.p50_us);
    results.add(rep, name, case, "p99_us", round.latency.p99_us);
    if let Some(disk) = round.disk {
        results.add(rep, name, case, "guest_await_ms", disk.await_ms);
        results.add(rep, name, case, "guest_writes_s", disk.writes_s);
        results.add(rep, name, case, "guest_write_mb_s", disk.write_bytes_s / 1e6);
    }
}

/// Writes all files with the monitor running, then verifies every file.
fn watched(
    results: &mut Results,
    rep: usize,
    (name, case): (&str, &str),
    subject: &mut Subject,
    content: Content,
    files: u64,
) -> Result<()> {
    let csv = results.raw_file(&format!("{name}-{rep}-{case}.csv"))?;
    let monitor = Monitor::start(&csv, subject.contender.pid()?, subject.contender.control_socket(), subject.workspace.path())?;
    let round = subject.guest.write(files, content);
    let record = monitor.finish()?;
    note(results, rep, name, case, &round.with_context(|| case.to_owned())?);
    note_machine(results, rep, name, case, &record.summary);
    subject.guest.verify(files, content).context("reading the files back")
}

/// Adds the contenders on a simulated hard disk, on which copies cost seeks.
fn add_hard_disks(setup: &Setup, results: &mut Results, names: &mut Vec<String>) {
    for (name, other) in [(OURS_HDD, "millpond"), (LVM_HDD, LVM)] {
        if !names.iter().any(|known| known == other) {
            continue;
        }
        match Drives::check().and_then(|()| Subject::check_hard_disk(setup, name, count(setup))) {
            Ok(()) => names.push(name.to_owned()),
            Err(reason) => results.skip(name, &format!("{reason:#}")),
        }
    }
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
    add_hard_disks(setup, results, &mut names);
    results.note(&format!(
        "{} files of 102,400 bytes, {FILES_PER_DIRECTORY} to a directory, on ext4 in a guest with two processors and 1 GiB, its disk over NBD; a \
         round ends when the filesystem has written all of it, from a cold cache, and all files are read back after it; {LVM} is the device \
         mapper's snapshots in the guest, in pieces of 4 KiB as lvcreate makes them, on the disk of qsd-raw; a hard disk is simulated",
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

/// Creates the files of A-load with no, one and two snapshots: zeroes, and random bytes without a
/// snapshot. The files of the round before are removed, so that the blocks of the snapshots are
/// overwritten.
///
/// # Errors
/// A target does not start or a file cannot be written.
pub fn run_create(setup: &Setup, results: &mut Results) -> Result<()> {
    each(setup, results, |setup, results, rep, name| {
        let files = count(setup);
        let mut subject = Subject::open(setup, name, count(setup))?;
        for snapshots in 0..=2 {
            if snapshots > 0 {
                if name == "qsd-raw" {
                    break; // `qsd-raw` has no snapshots
                }
                take(results, rep, name, &mut subject, snapshots)?;
                subject.guest.clear()?;
            }
            watched(results, rep, (name, &create(snapshots)), &mut subject, Content::Byte(0), files)?;
        }
        subject.off()?;
        let mut subject = Subject::open(setup, name, count(setup))?;
        watched(results, rep, (name, INCOMPRESSIBLE), &mut subject, Content::Random(setup.seed_of(rep)), files)?;
        subject.off()
    })?;
    compare(results, create);
    Ok(())
}

/// Takes a snapshot and records the time.
fn take(results: &mut Results, rep: usize, name: &str, subject: &mut Subject, number: usize) -> Result<()> {
    let begin = Instant::now();
    subject.snapshot(number)?;
    results.add(rep, name, &format!("snapshot {number}"), "create_ms", begin.elapsed().as_secs_f64() * 1e3);
    Ok(())
}

/// Runs the three rounds of rewrites of A-load.
///
/// # Errors
/// Those of [`run_create`].
pub fn run_update(setup: &Setup, results: &mut Results) -> Result<()> {
    each(setup, results, |setup, results, rep, name| {
        let mut subject = Subject::open(setup, name, count(setup))?;
        let files = count(setup);
        subject.guest.write(files, Content::Byte(0)).context("creating the files")?;
        for (snapshots, byte) in [0xff, 0x55, 0xaa].into_iter().enumerate() {
            if snapshots > 0 {
                if name == "qsd-raw" {
                    break; // `qsd-raw` has no snapshots
                }
                take(results, rep, name, &mut subject, snapshots)?;
            }
            watched(results, rep, (name, &update(snapshots)), &mut subject, Content::Byte(byte), files)?;
        }
        subject.off()
    })?;
    compare(results, update);
    Ok(())
}

/// Relates the rounds with snapshots to that without, judges Millpond's, and compares with the
/// article.
fn compare(results: &mut Results, case: fn(usize) -> String) {
    for snapshots in 1..=2 {
        for name in CONTENDERS.into_iter().chain([LVM, LVM_HDD, OURS_HDD]) {
            for metric in claims::METRICS {
                results.relate(name, metric, (&case(snapshots), &case(0)), &claims::share(metric));
            }
        }
        for name in ["millpond", OURS_HDD] {
            if name == "millpond" || !results.values(&case(0), "files_s", name).is_empty() {
                results.goal(&case(snapshots), &claims::share("files_s"), name, Goal::AtLeast(FLAT));
            }
        }
    }
    claims::claims(results, case);
}
