//! Support for power-cut sweeps: single steps and forks of a world.

use std::collections::BTreeSet;

use millpond_engine::Command;
use millpond_format::RING_SLOTS;

use super::World;
use crate::disk::{Survival, WriteNo};
use crate::oracle::{Verdict, Violation};
use crate::rng::Rng;
use crate::system::System;

impl<S: System> World<S> {
    /// Creates the pool and its first volumes.
    pub(crate) fn begin(&mut self) -> Verdict {
        self.trace.note(format!("{:?}", self.config));
        if self.config.second_hand {
            self.former_pool()?;
        }
        self.create()
    }

    /// Returns the number of requests of the first era.
    pub(crate) fn requests(&self) -> u64 {
        self.config.eras.first().map_or(0, |era| era.requests)
    }

    /// Returns whether the sweep goes around the rings of roots.
    pub(crate) fn laps(&self) -> bool {
        self.config.laps
    }

    /// Writes roots until the next one is at, or a few slots before, the slot of the root found at
    /// the import; starts that one.
    pub(crate) fn lap(&mut self) -> Verdict {
        let roots = RING_SLOTS - 1 - self.rng.weighted(&[6, 1, 1]) as u64;
        while self.system.as_ref().is_some_and(|system| system.metrics().checkpoints < roots) {
            self.command_and_wait(Command::Checkpoint)?;
        }
        self.command(Command::Checkpoint, vec![], vec![]);
        Ok(())
    }

    /// Runs until a device operation has ended; returns false if none is in flight.
    pub(crate) fn busy_devices(&mut self) -> Result<bool, Violation> {
        self.turn()?;
        self.finish_one()
    }

    /// Returns the number of completed device operations and answers of the bucket.
    pub(crate) fn completed(&self) -> u64 {
        self.machine.completed + self.bucket.as_ref().map_or(0, |store| store.answered)
    }

    /// Returns whether the pool has a bucket, and fewer objects than this were created in it.
    pub(crate) fn lacks_objects(&self, objects: u64) -> bool {
        self.bucket.as_ref().is_some_and(|store| store.created < objects)
    }

    /// Returns the writes that a power cut may lose now.
    pub(crate) fn unflushed(&self) -> BTreeSet<WriteNo> {
        self.machine.unflushed()
    }

    /// Returns the world's own RNG.
    pub(crate) fn chance(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// Ends the trace that was swept: all requests are answered, and everything is read.
    pub(crate) fn end(&mut self) -> Verdict {
        self.settle_down()?;
        let targets = self.oracle.targets();
        self.read_back(targets)?;
        self.audit()?;
        self.stats.operations += self.machine.completed;
        Ok(())
    }

    /// Cuts the power, recovers, and judges everything.
    pub(crate) fn cut_and_verify(&mut self, survival: &Survival) -> Verdict {
        self.trace.note(format!("POWER CUT, leaves {survival:?}"));
        self.machine.power_cut(survival);
        let now = self.trace.note("crashed");
        self.stats.cuts += 1;
        self.oracle.crash(true, now);
        self.import_and_verify()?;
        let targets = self.oracle.targets();
        self.read_back(targets)?;
        if self.rng_of_trials(25) {
            self.trial()?;
        }
        if self.rng.percent(20) {
            self.guests(10)?;
        }
        self.settle_down()?;
        self.audit()
    }
}
