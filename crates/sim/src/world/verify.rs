//! Imports whose result is compared with what was acknowledged.

use millpond_engine::PoolState;

use super::{World, listing};
use crate::System;
use crate::config::End;
use crate::fault::Armed;
use crate::oracle::{Verdict, broken};

/// Times that heads are read after a power cut until all chunks of their bases must be good.
const READS: u32 = 4;

impl<S: System> World<S> {
    /// Imports with interruptions, compares the catalog and reads back.
    pub(crate) fn import_and_verify(&mut self) -> Verdict {
        if self.fate.is_none() && self.config.needed() > 1 && self.rng.percent(5) {
            self.import_without_one()?;
        }
        while self.rng.percent(20) {
            let operations = self.rng.below(60);
            self.stats.interrupted += 1;
            self.note_interrupted();
            self.import(operations)?;
            let power = self.rng.percent(50);
            self.stop(power, false, None);
        }
        self.import_elsewhere()?;
        if self.fate.is_some() {
            self.open_what_is_there()?;
        } else {
            self.machine.plug(true);
            self.import(u64::MAX)?;
        }
        match self.state() {
            PoolState::Online => self.note_held(),
            PoolState::Faulted(reason) if self.damaged => {
                self.trace.note(format!("import refused, rightly: {reason}"));
                self.stats.detected += 1;
                self.over = true;
                return self.find_a_way_back(&reason.to_string());
            }
            state => return broken(format!("the import ends {state:?}")),
        }
        if let Some(system) = &self.system {
            let listing = listing(system);
            let now = self.trace.note("imported");
            self.oracle.reconcile(&listing, now)?;
            self.oracle.reconcile_keys(&system.keys())?;
        }
        let unsettled = self.oracle.unsettled();
        if !unsettled.is_empty() {
            self.read_back(unsettled)?;
            self.read_the_rest()?;
            if self.damaged {
                return Ok(()); // what could not be read stays unknown
            }
            let now = self.trace.note("settled");
            for (sum, count) in self.stats.modes.iter_mut().zip(self.oracle.losses(now)) {
                sum.add(&count);
            }
            self.oracle.settle(now)?;
            self.verify(30)
        } else {
            self.verify(60)
        }
    }

    /// Handles a pool that stopped when it met damage: the next import succeeds, or older states
    /// are tried.
    pub(super) fn after_a_stop(&mut self, end: End) -> Verdict {
        self.over = true;
        if self.config.append_only || self.fate.is_some() {
            return Ok(());
        }
        (self.damaged, self.oracle.errors_allowed, self.oracle.rewound) = (true, true, true);
        self.machine.armed = Armed::default();
        self.stop(end == End::Power, false, None);
        self.machine.plug(true);
        self.import(u64::MAX)?;
        match self.state() {
            PoolState::Faulted(reason) => self.find_a_way_back(&reason.to_string()),
            _ => Ok(()),
        }
    }

    /// Reads everything back with this probability in percent, else a part.
    fn verify(&mut self, percent: u64) -> Verdict {
        let mut targets = self.oracle.targets();
        if !self.rng.percent(percent) {
            self.rng.shuffle(&mut targets);
            targets.truncate(self.rng.index(4));
        }
        self.read_back(targets)
    }

    /// Reads heads again whose reads after a power cut failed, with good chunks in the end.
    pub(super) fn read_the_rest(&mut self) -> Verdict {
        if !self.has_store() {
            return Ok(());
        }
        for time in 1..=READS {
            let unread = self.oracle.unread();
            if unread.is_empty() {
                break;
            }
            self.heal_store(time == READS);
            self.read_back(unread)?;
        }
        self.heal_store(false);
        Ok(())
    }
}
