//! Cuts the power at every event of a short trace, in many ways each time, and again during some of
//! the recoveries.
//!
//! Nothing is run twice: devices and oracle are forked at the event; the fork is cut, imported and
//! checked, and the trace continues.

use std::collections::BTreeSet;

use crate::bytes::Files;
use crate::config::{Config, CrashInterval, Options};
use crate::disk::{Survival, WriteNo};
use crate::oracle::{Verdict, Violation};
use crate::rng::{Rng, mix};
use crate::system::System;
use crate::world::World;

/// Up to this many unflushed writes, all subsets are tried.
const EXHAUSTIVE: usize = 3;
/// Up to this many unflushed writes, each is left out and kept alone.
const ONE_BY_ONE: usize = 5;

/// Turns after the last request, and steps before that at most.
const REST: u32 = 40;
const MOST_STEPS: u32 = 80;
/// Objects that are created in the bucket of a pool until then.
const UPLOADS: u64 = 2;
/// Number of passes around the ring of roots.
const LAPS: u64 = 3;
/// Maximum events of a checkpoint at which the power is cut.
const ROOT_EVENTS: usize = 24;

/// Makes the world of a short trace, with guests and operators but no faults.
pub fn world<S: System>(seed: u64, options: &Options) -> World<S> {
    let mut rng = Rng::new(mix(seed) ^ 0x0C07);
    let options = Options { faultless: true, trace: options.trace, ..options.clone() };
    let mut config = Config::new(&mut rng, &options);
    config.eras = vec![CrashInterval { requests: rng.between(10, 50), end: crate::config::End::Power }];
    config.depth = config.depth.min(4);
    config.second_hand &= rng.percent(20);
    for volume in &mut config.volumes {
        volume.size = volume.size.min(512 << 10);
    }
    config.mix.commands = config.mix.commands.max(60);
    if config.transform(seed, &options) {
        for volume in &mut config.volumes {
            volume.size = volume.size.min(512 << 10);
        }
    }
    if let Some(bases) = &mut config.bases {
        (bases.count, bases.clones, bases.blocks) = (1, 1, bases.blocks.min(64));
    }
    config.upload_at_once();
    let world = World::with_config(config, rng, &options).with_shard(seed, &options);
    if options.bytes { world.with_files(Files::new(seed)) } else { world }
}

/// Runs a short trace and cuts the power at every completed device operation and answer of the bucket.
///
/// # Errors
/// The first broken promise.
pub fn sweep<S: System>(world: &mut World<S>) -> Verdict {
    world.begin()?;
    if world.laps() {
        return laps(world);
    }
    let (mut left, mut seen) = (world.requests(), world.completed());
    while left > 0 {
        left = left.saturating_sub(world.step()?);
        if world.completed() != seen {
            seen = world.completed();
            cut_here(world)?;
        }
    }
    // Also cut until enough objects are in the bucket, and while the engine comes to rest, after the
    // last request.
    let (mut rest, mut steps) = (REST, 0);
    while rest > 0 {
        steps += 1;
        let wants = world.lacks_objects(UPLOADS) && steps < MOST_STEPS;
        rest -= u32::from(!wants);
        if wants {
            world.step()?;
        }
        world.turn()?;
        if world.finish_one()? {
            cut_here(world)?;
        }
    }
    world.end()
}

/// Cuts at every event of writing a root into a slot whose last root survived a crash one pass
/// around the ring ago; then crashes there for good, and repeats.
fn laps<S: System>(world: &mut World<S>) -> Verdict {
    for _ in 0..LAPS {
        world.lap()?;
        let mut left = 1 + world.chance().index(ROOT_EVENTS);
        while left > 0 && world.busy_devices()? {
            left -= 1;
            cut_here(world)?;
        }
        world.stop(true, false, None);
        world.import_and_verify()?;
    }
    world.end()
}

fn cut_here<S: System>(world: &mut World<S>) -> Verdict {
    let unflushed: Vec<WriteNo> = world.unflushed().into_iter().collect();
    for (index, survival) in survivals(&unflushed, world.chance()).into_iter().enumerate() {
        let mut fork = world.fork(index as u64);
        let verdict = fork.cut_and_verify(&survival);
        world.stats.add(&fork.stats);
        if let Err(Violation(what)) = verdict {
            world.trace = fork.trace;
            return Err(Violation(format!("{what} (after a power cut that left {survival:?})")));
        }
    }
    Ok(())
}

/// Returns what may survive: nothing, all, prefixes, all but one, only one, random subsets.
fn survivals(unflushed: &[WriteNo], rng: &mut Rng) -> Vec<Survival> {
    let set = |keep: BTreeSet<WriteNo>, torn| Survival::Set { keep, torn };
    let all: BTreeSet<WriteNo> = unflushed.iter().copied().collect();
    let mut survivals = vec![Survival::Nothing];
    if unflushed.is_empty() {
        return survivals;
    }
    if unflushed.len() <= EXHAUSTIVE {
        for subset in 1..1u32 << unflushed.len() {
            let keep: BTreeSet<WriteNo> = unflushed.iter().enumerate().filter(|(i, _)| subset >> i & 1 == 1).map(|(_, w)| *w).collect();
            survivals.push(set(keep, None));
        }
    } else {
        let mut singles = unflushed.to_vec();
        rng.shuffle(&mut singles);
        singles.truncate(if unflushed.len() <= ONE_BY_ONE { ONE_BY_ONE } else { 1 });
        for one in singles {
            survivals.push(set(BTreeSet::from([one]), None));
            survivals.push(set(all.iter().copied().filter(|w| *w != one).collect(), None));
        }
        survivals.push(set(unflushed.iter().copied().filter(|_| rng.percent(50)).collect(), None));
        survivals.push(Survival::Completed);
    }
    // A prefix, with its last write torn.
    let prefix: BTreeSet<WriteNo> = unflushed.iter().copied().take(1 + rng.index(unflushed.len())).collect();
    let torn = prefix.last().copied();
    survivals.push(set(prefix, torn));
    survivals.push(Survival::Each(rng.between(0, 100)));
    survivals
}
