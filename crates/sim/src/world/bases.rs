//! Worlds with bases: the feature is turned on, and bases and clones are made. A store that is away, of
//! bases or the bucket of the pool, delays the requests that need it, and nothing else.

use std::collections::BTreeSet;

use millpond_block::{ByteRange, Op};
use millpond_engine::{CatalogCommand, Command, DeviceCommand, PoolState, SnapshotId};

use super::base_store::BaseStore;
use super::object_store::ObjectStore;
use super::{BUSY_STEP, PATIENCE_TURNS, World};
use crate::System;
use crate::config::{Bases, base};
use crate::oracle::{BLOCK, Verdict, broken};
use crate::rng::Rng;
use crate::system::Target;
use crate::workload::Ask;

/// Attempts to turn the feature on; labels may be in the way.
const ATTEMPTS: u32 = 20;

impl<S: System> World<S> {
    /// Turns the feature on, and makes bases and clones of them.
    pub(super) fn create_bases(&mut self) -> Verdict {
        let Some(bases) = self.config.bases else { return Ok(()) };
        if self.config.features_on {
            self.oracle.allow_bases();
        }
        if bases.early {
            self.create_base(bases)?;
        }
        self.turn_features_on()?;
        self.oracle.allow_bases();
        for _ in 0..bases.count {
            self.create_base(bases)?;
        }
        let origins: Vec<SnapshotId> = self.oracle.snapshots().filter(|s| s.is_origin()).map(|s| s.id).collect();
        for snapshot in origins {
            for _ in 0..bases.clones {
                let name = self.workload.name("clone");
                self.command_and_wait(CatalogCommand::Clone { snapshot, name })?;
            }
        }
        Ok(())
    }

    /// Turns on the features that the engine of this world knows.
    pub(super) fn turn_features_on(&mut self) -> Verdict {
        for _ in 0..=ATTEMPTS {
            if self.command_and_wait(DeviceCommand::TurnFeaturesOn)? {
                return Ok(());
            }
            self.machine.pass(1_000_000);
            self.settle_down()?;
        }
        broken("the features cannot be turned on")
    }

    fn create_base(&mut self, bases: Bases) -> Verdict {
        let name = self.workload.name("base");
        let command = base(name, bases.blocks, &mut self.rng);
        self.command_and_wait(command).map(drop)
    }

    /// Sends the store away, sometimes, and requires everything to be answered that does not need
    /// it: other requests, checkpoints and snapshots. Then the store comes back, or its absence
    /// lasts until the crash.
    pub(super) fn live_without_store(&mut self) -> Verdict {
        let Some(rng) = self.rng_of_stores() else { return Ok(()) };
        if !rng.percent(40) || self.state() != PoolState::Online {
            return Ok(());
        }
        self.drain()?;
        let waiting = self.read_without_store();
        for target in self.writable_heads() {
            self.submit(Ask::new(target, Op::Flush, ByteRange { offset: 0, length: 0 }));
            // A block that a waiting request reads must not wait either.
            let size = self.oracle.geometry(target).map_or(BLOCK, |(size, _)| size);
            let range = ByteRange { offset: self.rng.below(size / BLOCK) * BLOCK, length: BLOCK };
            let op = *self.rng.pick(&[Op::Write, Op::Write, Op::Discard, Op::WriteZeroes { may_unmap: true }]);
            self.submit(Ask::new(target, op, range));
        }
        self.command(Command::Checkpoint, vec![], vec![]);
        if let Some(Target::Head(volume)) = self.writable_heads().first().copied() {
            let targets = vec![(volume, self.workload.name("snap"))];
            let command = CatalogCommand::Snapshot { targets, description: String::new(), expires: None, lock_millis: None };
            self.command(command, vec![volume], vec![]);
        }
        self.drain_all_but(&waiting)?;
        if self.rng.percent(60) {
            self.call_store_back()?;
        }
        Ok(())
    }

    /// Returns the randomness of the store, or of the first of two.
    fn rng_of_stores(&mut self) -> Option<&mut Rng> {
        let bucket = self.bucket.as_mut().map(|store| &mut store.rng);
        self.store.as_mut().map(|store| &mut store.rng).or(bucket)
    }

    /// Calls stores back that were sent away, and waits for all answers.
    pub(super) fn call_store_back(&mut self) -> Verdict {
        if !self.has_store() {
            return Ok(());
        }
        self.store.iter_mut().for_each(BaseStore::come_back);
        self.bucket.iter_mut().for_each(ObjectStore::come_back);
        self.drain()
    }

    /// Sends the store away and submits reads; returns their tags.
    pub(super) fn read_without_store(&mut self) -> BTreeSet<u64> {
        // A pool that has stopped closes no more.
        let online = self.state() == PoolState::Online;
        if !online || !self.has_store() {
            return BTreeSet::new();
        }
        self.store.iter_mut().for_each(BaseStore::leave);
        self.bucket.iter_mut().for_each(ObjectStore::leave);
        self.trace.note("the store goes away");
        let may_wait = |target: &Target| self.bucket.is_some() || self.oracle.base_of(*target).is_some();
        let targets: Vec<Target> = self.oracle.targets().into_iter().filter(may_wait).collect();
        let mut tags = BTreeSet::new();
        for _ in 0..self.rng.between(1, 24) {
            if targets.is_empty() {
                break;
            }
            let target = *self.rng.pick(&targets);
            let blocks = self.oracle.geometry(target).map_or(0, |(size, _)| size / BLOCK);
            let first = self.rng.below(blocks);
            let count = self.rng.between(1, 16).min(blocks - first);
            let range = ByteRange { offset: first * BLOCK, length: count * BLOCK };
            tags.insert(self.submit(Ask::new(target, Op::Read, range)));
        }
        tags
    }

    /// Returns the heads that guests may write to.
    fn writable_heads(&self) -> Vec<Target> {
        self.oracle.volumes().filter(|volume| !volume.read_only && !volume.is_base()).map(|volume| Target::Head(volume.id)).collect()
    }

    /// Runs until every command and every request is answered, except for these requests.
    fn drain_all_but(&mut self, waiting: &BTreeSet<u64>) -> Verdict {
        for turns in 0..PATIENCE_TURNS {
            let left = waiting.iter().filter(|tag| self.oracle.has_flight(**tag)).count();
            if self.oracle.flights() == left && self.running.is_empty() && self.waiting.is_empty() {
                return Ok(());
            }
            self.start_waiting();
            let again = self.turn()?;
            if !self.finish_one()? && self.machine.idle() {
                self.machine.pass(if again && turns < 1000 { BUSY_STEP } else { self.idle_step() });
            }
        }
        broken(format!(
            "{} requests, {} of which may need it, and {} commands wait for a store that is away",
            self.oracle.flights(),
            waiting.len(),
            self.running.len()
        ))
    }
}
