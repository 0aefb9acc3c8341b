//! Recovery from damage. After a refused import, or a pool that stopped by itself, older
//! checkpoints are tried, and reads of one that opens must return only data that was written there.
//! If only pages written after a checkpoint are damaged, an import must succeed, and nothing in that
//! checkpoint may be lost.

use millpond_block::{ByteRange, Op};
use millpond_engine::{Aim, Command, PoolState, Tuning};

use super::World;
use crate::oracle::{BLOCK, Verdict, broken};
use crate::system::{System, Target};
use crate::workload::Ask;

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

    /// Returns the older checkpoints that a user may select, newest first.
    fn older(&mut self) -> Vec<Aim> {
        let devices = self.machine.plug(false);
        let machine = &self.machine;
        S::restore_points(devices, &mut |slot, offset, out| machine.peek(slot, offset, out)).into_iter().map(Aim::To).collect()
    }

    fn import_for(&mut self, aim: Aim) -> Verdict {
        let devices = self.devices_there();
        let tuning = Tuning { aim, force: true, ..self.tuning() };
        self.trace.note(format!("import, {aim:?}"));
        self.system = Some(S::import(devices, tuning, self.machine.now()));
        self.wait_open(u64::MAX)
    }

    /// Tries older states after an import was refused for `reason`, after one fault that damaged
    /// data.
    pub(super) fn find_a_way_back(&mut self, reason: &str) -> Verdict {
        if !S::REWINDS || self.config.mirrored.is_some() {
            return Ok(());
        }
        self.stats.refused_imports += 1;
        let mut refusals = vec![reason.to_owned()];
        for aim in [Aim::Rewind, Aim::Rebuild].into_iter().chain(self.older()) {
            self.stop(false, false, None);
            self.import_for(aim)?;
            match self.state() {
                PoolState::Online => return self.is_what_was_written(),
                state => refusals.push(format!("{aim:?}: {state:?}")),
            }
        }
        // The damage may have hit the only copy of a page that all checkpoints share.
        self.trace.note(format!("no way back: {}", refusals.join("; ")));
        self.stats.lost_pools += 1;
        Ok(())
    }

    /// Reads everything: each read must give an error or data that was once written there. Then the
    /// pool must come up again.
    fn is_what_was_written(&mut self) -> Verdict {
        self.stats.ways_back += 1;
        self.oracle.rewound = true;
        let volumes = self.system.as_ref().map(S::volumes).unwrap_or_default().into_iter().map(|v| (Target::Head(v.id), v.size));
        let snapshots = self.system.as_ref().map(S::snapshots).unwrap_or_default().into_iter().map(|s| (Target::Snapshot(s.id), s.size));
        let there: Vec<(Target, u64)> = volumes.chain(snapshots).collect();
        for (target, size) in there {
            let Some((known, _)) = self.oracle.geometry(target) else { continue };
            let size = size.min(known);
            let mut offset = 0;
            while offset < size {
                let length = STEP.min(size - offset);
                self.submit(Ask::new(target, Op::Read, ByteRange { offset, length }));
                offset += length;
                if self.oracle.flights() >= 8 {
                    self.drain()?;
                }
            }
        }
        self.drain()?;
        self.comes_up_again()
    }

    /// A pool that went back to an older state is like any other.
    fn comes_up_again(&mut self) -> Verdict {
        self.drain()?;
        self.collect();
        self.stop(true, false, None);
        self.machine.plug(true);
        self.import(u64::MAX)?;
        match self.state() {
            PoolState::Online => Ok(()),
            state => broken(format!("a pool that went back is {state:?} at the next import")),
        }
    }
}
