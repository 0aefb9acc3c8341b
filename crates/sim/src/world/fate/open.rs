//! Opening a pool with the devices that are there.

use millpond_engine::{Fault, MemberState, OpenErrorKind, PoolState, Unlabelled};

use super::DeviceFaults;
use crate::System;
use crate::oracle::{Verdict, broken};
use crate::world::World;

/// Maximum number of devices that imports may refuse one after the other.
const MOST_REFUSALS: usize = 40;

impl<S: System> World<S> {
    /// Imports. Leaves out devices that the import asks to leave out, where that may be right.
    pub(crate) fn open_what_is_there(&mut self) -> Verdict {
        for _ in 0..MOST_REFUSALS {
            self.import(u64::MAX)?;
            let PoolState::Faulted(reason) = self.state() else { break };
            let reason = reason.clone();
            let kind = if let Fault::Open(error) = &reason { Some(&error.kind) } else { None };
            if let Some(OpenErrorKind::OutOfOrder(step)) = kind {
                return broken(format!("a step of the import ran too early: {step}"));
            }
            let again = match kind {
                Some(OpenErrorKind::NoLabel { device, why: Unlabelled::NotAPool(_) }) => self.leaves_rotten_out(*device),
                Some(OpenErrorKind::NoLabel { device, why: Unlabelled::Unreadable(_) }) => self.fails_to_read(*device),
                _ => false,
            };
            if again {
                self.trace.note(format!("the import is tried again: {reason}"));
                self.stop(false, false, None);
                continue;
            }
            let device = kind.and_then(OpenErrorKind::device_to_leave_out).and_then(|slot| self.machine.at(slot));
            let plugged = self.machine.plugged().to_vec();
            let apart =
                matches!(kind, Some(OpenErrorKind::WrittenApart { .. })) && device.is_some_and(|device| self.is_apart(device, &plugged));
            let Some(fate) = &mut self.fate else { break };
            let may_go = |d: &usize| apart || fate.doubtful.contains(d) || fate.leaving.contains(d);
            let Some(device) = device.filter(may_go) else {
                // Devices of a group being added: either all have labels that the others follow, or
                // the group is left out.
                if fate.adding.is_empty() {
                    break;
                }
                let adding = std::mem::take(&mut fate.adding);
                self.trace.note(format!("devices {adding:?} are left out: {reason}"));
                fate.refused.extend(adding);
                self.stop(false, false, None);
                continue;
            };
            let side = fate.side_to_leave_out(device, &plugged, kind);
            self.trace.note(format!("devices {side:?} are left out: {reason}"));
            fate.refused.extend(side);
            self.stop(false, false, None);
        }
        self.observe();
        Ok(())
    }
}

impl DeviceFaults {
    /// Returns the devices that the user leaves out of an import that refused `device`. Where its
    /// label contradicts the others and the device held everything when the pool was last in
    /// service, these are the others: the user keeps the side that was in service last.
    fn side_to_leave_out(&self, device: usize, plugged: &[usize], reason: Option<&OpenErrorKind>) -> Vec<usize> {
        let is_current = |d: usize| self.known.iter().any(|k| k.device == Some(d) && k.state == MemberState::Present && !k.filling);
        let others: Vec<usize> = plugged.iter().copied().filter(|other| !is_current(*other)).collect();
        let contradicts = matches!(reason, Some(OpenErrorKind::Contradicts { .. }));
        if contradicts && is_current(device) && !others.is_empty() { others } else { vec![device] }
    }
}
