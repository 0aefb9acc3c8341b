//! `aged-reads`: large reads of a volume whose blocks were all overwritten at random, without snapshots
//! and with 100 that share nearly all of its blocks, relative to a raw image.

use super::aging::Aging;
use super::sample::measure_into;
use super::{Media, Setup};
use crate::load::{LoadSpec, Mix, run};
use crate::report::{Goal, Results};
use anyhow::Result;

const SIZE: u64 = 1 << 30;
const SNAPSHOTS: u64 = 100;
/// Blocks that are overwritten between two snapshots.
const BETWEEN: u64 = 256;
/// Seconds of reads after which a pool has gathered what it will gather.
const READ_SECS: f64 = 60.0;
/// A raw image with direct I/O and io_uring.
const RAW: &str = "qsd-raw";

fn cases() -> [(&'static str, LoadSpec); 2] {
    [("64k randread q8", LoadSpec::random(Mix::Read, 64 << 10, 8)), ("1m randread q4", LoadSpec::random(Mix::Read, 1 << 20, 4))]
}

pub fn run_aged_reads(setup: &Setup, results: &mut Results) -> Result<()> {
    let names = setup.contenders(&["millpond", RAW], results);
    let size = setup.size_or(SIZE);
    let turns: Vec<(&str, u64)> =
        names.iter().flat_map(|name| if name == RAW { vec![(RAW, 0)] } else { vec![("millpond", 0), ("millpond", SNAPSHOTS)] }).collect();
    for rep in 0..setup.reps {
        for turn in 0..turns.len() {
            let Some((name, snapshots)) = turns.get((turn + rep) % turns.len()).copied() else { continue };
            let label = label(name, snapshots);
            results.say(&format!("repetition {} of {}: {label}", rep + 1, setup.reps));
            let mut open = setup.open(name, size)?;
            run(&open.contender.endpoint()?, &LoadSpec::fill())?;
            measure_all(setup, results, rep, "in order", &label, open.contender.as_ref())?;
            let aging = Aging { rounds: SNAPSHOTS, blocks: BETWEEN, snapshots, seed: setup.seed_of(rep) };
            aging.apply(open.contender.as_mut(), |contender, n| contender.snapshot(&format!("s{n}")))?;
            measure_all(setup, results, rep, "overwritten", &label, open.contender.as_ref())?;
            let secs = (READ_SECS * setup.scale).max(1.0);
            let reads = LoadSpec { secs, ramp: 0.0, seed: setup.seed_of(rep), ..LoadSpec::random(Mix::Read, 64 << 10, 8) };
            run(&open.contender.endpoint()?, &reads)?;
            measure_all(setup, results, rep, "after reads", &label, open.contender.as_ref())?;
        }
    }
    if setup.media != Media::Disk {
        return Ok(());
    }
    for (case, _) in cases() {
        for snapshots in [0, SNAPSHOTS] {
            let label = label("millpond", snapshots);
            results.goal(&format!("{case}, overwritten"), "iops", &label, Goal::times_of(RAW, 0.7));
            results.goal(&format!("{case}, after reads"), "iops", &label, Goal::times_of(RAW, 0.9));
        }
    }
    Ok(())
}

fn label(name: &str, snapshots: u64) -> String {
    if snapshots == 0 { name.to_owned() } else { format!("{name}, {snapshots} snapshots") }
}

fn measure_all(
    setup: &Setup,
    results: &mut Results,
    rep: usize,
    state: &str,
    label: &str,
    contender: &dyn crate::peer::Contender,
) -> Result<()> {
    for (case, spec) in cases() {
        let spec = LoadSpec { secs: setup.secs, seed: setup.seed_of(rep), ..spec };
        measure_into(results, rep, &format!("{case}, {state}"), label, contender, &spec)?;
    }
    Ok(())
}
