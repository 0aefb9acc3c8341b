//! Recovery from damage. After a refused import, or a pool that stopped by itself, older
//! checkpoints are tried, and reads of one that opens must return only data that was written there.
//! If only pages written after a checkpoint are damaged, an import must succeed, and nothing in that
//! checkpoint may be lost.

mod way_back;

use millpond_engine::{Aim, Command, PoolState};

use super::World;
use crate::oracle::{BLOCK, Verdict, broken};
use crate::system::{System, Target};

/// Bytes of a read.
const STEP: u64 = 32 * BLOCK;

impl<S: System> World<S> {
    /// Takes a checkpoint, lets guests continue, and damages pages written since. Nothing that was
    /// there before may be lost.
    pub(super) fn endangered(&mut self) -> Verdict {
        let eras = self.config.eras.clone();
        for era in &eras {
            self.guests(era.requests)?;
            self.recover(era.end)?;
        }
        self.settle_down()?;
        if !self.command_and_wait(Command::Checkpoint)? {
            return broken("a checkpoint fails");
        }
        self.settle_down()?;
        let unread = self.oracle.targets().into_iter().filter(|target| matches!(target, Target::Snapshot(_))).collect();
        self.read_back(unread)?;
        let now = self.trace.note("from here on what is written will be damaged");
        self.oracle.hold_floors(now);
        self.machine.mark();
        self.workload.without_commands();
        for _ in 0..self.rng.between(1, 3) {
            let requests = self.rng.between(5, 80);
            self.guests(requests)?;
            if self.rng.percent(60) {
                self.command_and_wait(Command::Checkpoint)?;
            }
        }
        self.stop(true, false, None);
        let count = *self.rng.pick(&[1, 1, 2, 10, usize::MAX]);
        let damaged = self.machine.rot_since_mark(count);
        self.trace.note(format!("{damaged} pages rot of those that were written since"));
        (self.damaged, self.oracle.errors_allowed) = (true, true);
        let mut refusals = Vec::new();
        for aim in [Aim::Newest, Aim::Rewind, Aim::Rebuild].into_iter().chain(self.older()) {
            self.machine.plug(true);
            self.import_for(aim)?;
            match self.state() {
                PoolState::Online => break,
                state => refusals.push(format!("{aim:?}: {state:?}")),
            }
            self.stop(false, false, None);
        }
        self.stats.refused_imports += u64::from(!refusals.is_empty());
        if self.state() != PoolState::Online {
            return broken(format!("no way back to a checkpoint that nothing was damaged of: {}", refusals.join("; ")));
        }
        self.stats.ways_back += u64::from(!refusals.is_empty());
        if let Some(system) = &self.system {
            let listing = super::listing(system);
            let now = self.trace.note("imported");
            self.oracle.reconcile(&listing, now)?;
        }
        let targets = self.oracle.targets();
        self.read_back(targets)?;
        self.comes_up_again()
    }
}
