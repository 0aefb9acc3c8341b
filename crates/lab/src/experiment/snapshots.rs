//! `snapshots`: measures IOPS by the number of snapshots, 0 to 10,000, on every target with
//! snapshots: reads of data older than all of them, and the first writes after the newest.

use super::Setup;
use super::aging::Writer;
use super::sample::measure_into;
use crate::load::{LoadSpec, Mix, run};
use crate::peer::{Contender, Control, DISK, Millpond};
use crate::report::{Claim, Curve, Goal, Results, median};
use anyhow::{Context, Result};
use serde_json::json;

const CONTENDERS: [&str; 7] = ["millpond", "millpond-tuned", "qsd-chain", "qsd-qcow2-128k", "xfs-reflink", "btrfs-reflink", "lvm-snapshot"];
const SIZE: u64 = 512 << 20;
const LEVELS: [u64; 8] = [0, 1, 2, 8, 32, 100, 1000, 10_000];
/// A snapshot of a peer takes up to a second at a hundred snapshots, and longer with each; at a
/// small scale fewer are taken.
const PEERS_MOST: u64 = 100;
const PEERS_LEAST: u64 = 32;
/// Least shares of the speed without snapshots, as in `flat` and `snap-under-load`.
const FLAT_READS: f64 = 0.97;
const FLAT_WRITES: f64 = 0.9;
const READS: &str = "4k randread q32";
const WRITES: &str = "first 4k writes";

/// A target, with a control connection if it can take snapshots without starting a program for
/// each.
struct Subject {
    name: String,
    contender: Box<dyn Contender>,
    control: Option<Control>,
    taken: u64,
    _workspace: Box<dyn std::any::Any>,
}

impl Subject {
    fn snapshot(&mut self) -> Result<()> {
        let name = format!("s{}", self.taken);
        self.taken += 1;
        match &mut self.control {
            Some(control) => control.post("/v1/snapshots", &json!({"names": [format!("{DISK}@{name}")]})).map(|_| ()),
            None => self.contender.snapshot(&name),
        }
    }
}

fn case(load: &str, level: u64) -> String {
    format!("{load}, {level} snapshots")
}

/// Returns the number of 4 KiB blocks rewritten between two snapshots, and of first writes that are
/// measured.
fn writes(setup: &Setup) -> (u64, u64) {
    (setup.scaled(16, 4), setup.scaled(16_384, 4096))
}

fn open(setup: &Setup, name: &str) -> Result<Subject> {
    let size = setup.size_or(SIZE);
    let (between, measured) = writes(setup);
    let most = LEVELS.last().copied().unwrap_or(0);
    let room = 3 * size + (most * between + LEVELS.len() as u64 * measured) * 4096 * 9 / 4 + (1 << 30);
    let (workspace, contender) = setup.open_with_pool(name, size, room)?.into_parts();
    let control = contender.control_socket().map(|socket| Control::connect(&socket)).transpose()?;
    Ok(Subject { name: name.to_owned(), contender, control, taken: 0, _workspace: Box::new(workspace) })
}

pub fn run_snapshots(setup: &Setup, results: &mut Results) -> Result<()> {
    let mut names = setup.contenders(&CONTENDERS, results);
    let peers_most = if setup.scale < 0.1 { PEERS_LEAST } else { PEERS_MOST };
    results.note(&format!(
        "{} blocks of 4 KiB are rewritten at random between two snapshots; peers stop at {peers_most} snapshots: at 100, one takes them up to a second",
        writes(setup).0
    ));
    for rep in 0..setup.reps {
        let turn = rep % names.len().max(1);
        names.rotate_left(turn.min(1)); // rotate the order, so that no target is always first
        results.say(&format!("repetition {} of {}: filling", rep + 1, setup.reps));
        let mut subjects = names.iter().map(|name| open(setup, name)).collect::<Result<Vec<Subject>>>()?;
        for subject in &subjects {
            run(&subject.contender.endpoint()?, &LoadSpec::fill()).with_context(|| format!("filling {}", subject.name))?;
            run(&subject.contender.endpoint()?, &LoadSpec::scramble(setup.seed_of(rep)))?;
        }
        for level in LEVELS {
            results.say(&format!("repetition {} of {}: {level} snapshots", rep + 1, setup.reps));
            for subject in subjects.iter_mut().filter(|s| Millpond::is_named(&s.name) || level <= peers_most) {
                at_level(setup, results, rep, level, subject).with_context(|| format!("{} with {level} snapshots", subject.name))?;
            }
        }
    }
    for (title, load) in [("Reads under snapshots", READS), ("First writes after a snapshot", WRITES)] {
        let places = LEVELS.iter().map(|level| (*level as f64, case(load, *level))).collect();
        results.curves.push(Curve { title: title.to_owned(), axis: "snapshots".to_owned(), metric: "iops".to_owned(), places });
    }
    goals(results);
    claims(results);
    Ok(())
}

/// Records the speed with each number of snapshots relative to the speed with none, and judges that
/// of Millpond.
fn goals(results: &mut Results) {
    for (load, least) in [(READS, FLAT_READS), (WRITES, FLAT_WRITES)] {
        for level in LEVELS.into_iter().filter(|level| *level > 0) {
            for name in CONTENDERS {
                results.relate(name, "iops", (&case(load, level), &case(load, 0)), "iops_to_none");
            }
            results.goal(&case(load, level), "iops_to_none", "millpond", Goal::AtLeast(least));
        }
    }
}

fn at_level(setup: &Setup, results: &mut Results, rep: usize, level: u64, subject: &mut Subject) -> Result<()> {
    let (between, measured) = writes(setup);
    let mut writer = Writer::new(&subject.contender.endpoint()?, setup.seed_of(rep) + level)?;
    while subject.taken < level {
        writer.write(between)?;
        subject.snapshot()?;
    }
    drop(writer);
    // the first writes after the newest snapshot; reads before them would not change their result
    let spec =
        LoadSpec { ops: measured, secs: 600.0, ramp: 0.0, seed: setup.seed_of(rep) + level, ..LoadSpec::random(Mix::Write, 4096, 32) };
    measure_into(results, rep, &case(WRITES, level), &subject.name, subject.contender.as_ref(), &spec)?;
    let spec = LoadSpec { secs: setup.secs, ramp: 0.1, seed: setup.seed_of(rep), ..LoadSpec::random(Mix::Read, 4096, 32) };
    measure_into(results, rep, &case(READS, level), &subject.name, subject.contender.as_ref(), &spec)?;
    Ok(())
}

/// Returns the ratio of the speed with `level` snapshots to that without.
fn left(results: &Results, load: &str, contender: &str, level: u64) -> Option<f64> {
    median(&results.values(&case(load, level), "iops_to_none", contender))
}

fn claims(results: &mut Results) {
    for (level, published) in [(1, 1.0 / 29.5), (2, 1.0 / 46.4)] {
        let says = format!("LVM: writes with {level} snapshot{} to writes with none", if level == 1 { "" } else { "s" });
        let ours = left(results, WRITES, "millpond", level);
        let reason = results.why("lvm-snapshot", "fs-update measures it");
        results.claim(Claim::new("A-lvm", &says, published, "").ours(ours).because(&reason));
    }
    for (level, published) in [(1, 11_928.8 / 11_288.2), (2, 10_928.6 / 11_288.2)] {
        let says = format!("qcow2 chain: writes with {level} snapshot{} to writes with none", if level == 1 { "" } else { "s" });
        let (theirs, ours) = (left(results, WRITES, "qsd-chain", level), left(results, WRITES, "millpond", level));
        let why = "the article wrote files of 100 KB through a guest, this is 4 KiB at random";
        results.claim(Claim::new("A-chain", &says, published, "").by("qsd-chain", theirs, 1.25).ours(ours).because(why));
    }
}
