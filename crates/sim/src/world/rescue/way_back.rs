//! A way back after damage, by going back or rebuilding.

use millpond_block::{ByteRange, Op};
use millpond_engine::{Aim, PoolState, Tuning};

use super::STEP;
use crate::oracle::{Verdict, broken};
use crate::workload::Ask;
use crate::world::World;
use crate::{System, Target};

impl<S: System> World<S> {
    /// Tries older states after an import was refused for `reason`, after one fault that damaged
    /// data.
    pub(crate) fn find_a_way_back(&mut self, reason: &str) -> Verdict {
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

    pub(super) fn import_for(&mut self, aim: Aim) -> Verdict {
        let devices = self.devices_there();
        let tuning = Tuning { aim, force: true, ..self.tuning() };
        self.trace.note(format!("import, {aim:?}"));
        self.system = Some(S::import(devices, tuning, self.machine.now()));
        self.wait_open(u64::MAX)
    }

    /// A pool that went back to an older state is like any other.
    pub(super) fn comes_up_again(&mut self) -> Verdict {
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

    /// Returns the older checkpoints that a user may select, newest first.
    pub(super) fn older(&mut self) -> Vec<Aim> {
        let devices = self.machine.plug(false);
        let machine = &self.machine;
        S::restore_points(devices, &mut |slot, offset, out| machine.peek(slot, offset, out)).into_iter().map(Aim::To).collect()
    }
}
