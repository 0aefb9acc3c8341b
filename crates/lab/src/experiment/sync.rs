//! `sync`: 4 KiB writes, each followed by its own flush, 16 in flight, like those of a database or
//! a guest's journal.

use super::sample::measure_into;
use super::{Media, Setup};
use crate::load::{self, Durability, LoadSpec, Mix};
use crate::report::{Goal, Results};
use anyhow::{Context, Result};

const CONTENDERS: &[&str] = &["millpond", "millpond-tuned", "qsd-raw", "qsd-raw-native", "qsd-qcow2", "qsd-qcow2-128k", "nbdkit-file"];
const SIZE: u64 = 512 << 20;
const FLUSH: &str = "4k write + flush x16";
const FUA: &str = "4k FUA write x16";

pub fn run(setup: &Setup, results: &mut Results) -> Result<()> {
    let names = setup.contenders(CONTENDERS, results);
    for rep in 0..setup.reps {
        for turn in 0..names.len() {
            let Some(name) = names.get((turn + rep) % names.len()) else { continue };
            results.say(&format!("repetition {} of {}: {name}", rep + 1, setup.reps));
            let open = setup.open(name, setup.size_or(SIZE))?;
            load::precondition(&open.contender.endpoint()?).with_context(|| format!("filling {name}"))?;
            for (case, durability) in [(FLUSH, Durability::Flush), (FUA, Durability::Fua)] {
                let spec = LoadSpec { durability, secs: setup.secs, seed: setup.seed_of(rep), ..LoadSpec::random(Mix::Write, 4096, 16) };
                measure_into(results, rep, case, name, open.contender.as_ref(), &spec)?;
            }
        }
    }
    let times = if setup.media == Media::Shm { 3.0 } else { 1.5 };
    for peer in ["qsd-raw", "qsd-raw-native"] {
        results.goal(FLUSH, "iops", "millpond", Goal::times_of(peer, times));
    }
    Ok(())
}
