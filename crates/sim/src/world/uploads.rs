//! Ends of an engine at a certain point of an upload, and objects that are lost for good.

use millpond_engine::{BucketObject, PoolState};

use super::World;
use crate::System;
use crate::config::End;
use crate::oracle::{Verdict, Violation, broken};

/// Steps on the way to a crash within which an upload should be as far as it shall be.
const APPROACH: u32 = 400;

impl<S: System> World<S> {
    /// Runs guests until an upload is as far as it shall be when the era ends: its create is out, or
    /// was just answered, or its chunks were just placed, or that was some time ago. Returns whether the era
    /// ends now.
    pub(super) fn approach(&mut self, end: End) -> Result<bool, Violation> {
        let Some(store) = self.bucket.as_mut().filter(|_| end != End::Close) else { return Ok(false) };
        if !store.rng.percent(75) || self.state() != PoolState::Online {
            return Ok(false);
        }
        let Some(store) = &mut self.bucket else { return Ok(false) };
        store.hurry_term();
        let (aim, asked, created, placed) = (store.rng.below(4), store.asked, store.created, self.stats.placed);
        for _ in 0..APPROACH {
            if self.oracle.flights() < self.config.depth {
                self.ask();
            }
            self.turn()?;
            if aim == 2 && self.stats.placed > placed {
                break;
            }
            let ended = self.finish_one()?;
            let Some(store) = &self.bucket else { break };
            if (aim == 0 && store.asked > asked) || (aim == 1 && store.created > created) {
                break;
            }
            let waits = !ended && (self.machine.idle() || store.creates());
            self.machine.pass(if waits { self.idle_step() } else { super::BUSY_STEP });
        }
        Ok(true)
    }

    /// In a fork of the world, loses objects for good. What they had fails to be read, and nothing
    /// else; the pool is imported as ever.
    pub(super) fn lose_objects(&mut self) -> Verdict {
        let loses = self.config.capacity.is_some_and(|capacity| capacity.loses) && !self.damaged && self.fate.is_none();
        let World { bucket: Some(store), system: Some(system), .. } = self else { return Ok(()) };
        let table = system.bucket_objects();
        if !loses || table.is_empty() {
            return Ok(());
        }
        let (label, of_table, power) = (store.rng.next(), store.rng.percent(75), store.rng.percent(50));
        let mut fork = self.fork(label & 0xff);
        fork.trace.print = self.trace.print;
        let verdict = fork.live_with_lost_objects(&table, of_table, power);
        self.stats.add(&Self::without_operations(&fork));
        verdict.map_err(|Violation(what)| {
            std::mem::swap(&mut self.trace, &mut fork.trace);
            Violation(format!("{what} (after objects were lost)"))
        })
    }

    fn live_with_lost_objects(&mut self, table: &[BucketObject], of_table: bool, power: bool) -> Verdict {
        let lost = self.bucket.as_mut().map_or(0, |store| store.lose(table, of_table));
        self.trace.note(format!("{lost} objects are lost, of the pool: {of_table}"));
        self.stop(power, false, None);
        self.damaged = of_table;
        self.oracle.errors_allowed = of_table;
        self.heal_store(true);
        self.import_and_verify()?;
        if self.over {
            return broken("the pool is not imported");
        }
        let failed = self.stats.failed;
        let targets = self.oracle.targets();
        self.read_back(targets)?;
        self.stats.lost_objects += lost as u64;
        self.stats.unreadable += self.stats.failed - failed;
        Ok(())
    }
}
