//! The end of an era: crash or shutdown, import (sometimes interrupted), and reading everything
//! back.

use millpond_engine::{Command, PoolState};

use super::World;
use crate::config::End;
use crate::fault::{Armed, FaultKind};
use crate::oracle::Verdict;
use crate::system::System;

impl<S: System> World<S> {
    /// Ends the era, imports the pool and reads back what must be there.
    pub(super) fn recover(&mut self, end: End) -> Verdict {
        let closed = end == End::Close && self.close()?;
        self.observe();
        self.judge_losses()?;
        let struck = self.machine.armed.kind();
        self.stats.faults += u64::from(struck.is_some());
        let loses_cache = matches!(struck, Some(FaultKind::FlushDrop | FaultKind::Gone));
        let gone = self.machine.armed.fault().filter(|_| struck == Some(FaultKind::Gone)).map(|f| f.device);
        self.note_end(closed, struck.is_none());
        if !closed {
            self.end_uploads();
            if end != End::Power && struck.is_none() {
                self.keep_ghost();
            }
            self.stop(end == End::Power, loses_cache, gone);
        }
        // A persistent error also hits the first import, which may be refused for it.
        let lingering = struck.is_some() && !loses_cache && self.rng.percent(40);
        if lingering {
            self.note_interrupted();
            self.import(u64::MAX)?;
            self.collect();
            self.stop(false, false, None);
        }
        self.machine.armed = Armed::default();
        self.oracle.errors_allowed = self.damaged;
        self.come_and_go();
        self.caches_come_and_go();
        self.import_and_verify()?;
        if self.rng_of_trials(40) {
            self.trial()?;
        }
        self.lose_special()
    }

    /// Ends an era with damage: a checkpoint covers everything that can be judged, then everything
    /// is read, with errors allowed.
    pub(super) fn damaged_end(&mut self, end: End) -> Verdict {
        self.stats.faults += 1;
        self.oracle.errors_allowed |= self.machine.armed.kind().is_some();
        self.call_store_back()?;
        self.settle_down()?;
        let covered = self.state() == PoolState::Online && self.command_and_wait(Command::Checkpoint)?;
        if !covered {
            self.trace.note("the pool noticed the damage and stopped");
            self.stats.detected += 1;
            return self.after_a_stop(end);
        }
        self.settle_down()?;
        let device = self.machine.armed.fault().map_or(0, |f| f.device);
        if self.machine.armed.fault().is_some_and(|f| f.kind == FaultKind::Rot)
            && let Some(what) = self.machine.rot(device)
        {
            self.trace.note(format!("device {device} rots: {what}"));
        }
        self.damaged = true;
        self.oracle.errors_allowed = true;
        self.machine.armed = Armed::default();
        if self.rng.percent(70) {
            self.stop(end == End::Power, false, None);
            self.import_and_verify()?;
        }
        if !self.over {
            let targets = self.oracle.targets();
            self.read_back(targets)?;
        }
        self.collect();
        self.over = true;
        Ok(())
    }
}
