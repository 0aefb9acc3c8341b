//! Devices that do not answer an import, or have no room for its writes.
//!
//! Whether the pool may be imported without such devices is the caller's decision
//! (`Tuning::degraded`). A device that does not answer is treated as missing: if degraded imports
//! are allowed the import continues without it where the others have all data; otherwise it is
//! refused, and the device named. A device that is not whole is left out in any case: it is filled
//! again when it is back. A full device is given up under the same conditions as in a pool in
//! service.

use millpond_block::DeviceSlot;

use super::{Import, Stage};
use crate::pool::{FULL_PATIENCE_MILLIS, FULL_RETRY_MILLIS};
use crate::{DeviceTrouble, OpenErrorKind, OpenWrite, Planted, Time, Unlabelled};

impl Import {
    /// Checks whether devices answer.
    pub(super) fn watch_devices(&mut self, now: Time) {
        let least = self.tuning.silence_millis;
        self.io.at(now, least);
        let labels = matches!(self.stage, Stage::Labels);
        if self.io.find_silent(self.tuning.reread_millis)
            && let Some(layout) = self.core.as_ref().map(|core| &core.space.layout).or(self.layout.as_ref())
        {
            self.io.read_elsewhere(layout, &mut self.bufs);
        }
        let may = self.may_leave_out();
        if !labels {
            self.io.give_up_incomplete(least);
            self.io.give_up_silent(least, may, false);
            self.lose_failing();
        }
        let silent = self.io.unanswered(least);
        if silent.is_empty() {
            return;
        }
        self.silent.extend(&silent);
        if labels && may {
            for slot in silent {
                let at = slot.index();
                self.labels.get_mut(at).into_iter().for_each(|label| *label = None);
                // a label of another program that was read is a reason to refuse the pool
                let place = self.unlabelled.get_mut(at).filter(|why| !matches!(why, Unlabelled::OtherProgram(_)));
                place.into_iter().for_each(|place| *place = Unlabelled::Silent);
                self.io.abandon(slot);
            }
            return;
        }
        self.fail(OpenErrorKind::NoAnswer { devices: silent });
    }

    /// Returns whether the import may continue without devices that others can stand in for.
    pub(super) fn may_leave_out(&self) -> bool {
        self.tuning.degraded || (cfg!(feature = "planted") && self.tuning.planted == Some(Planted::LeaveOutUnasked))
    }

    /// Removes devices that were given up from the shape.
    pub(super) fn lose_failing(&mut self) {
        while let Some(failing) = self.io.pop_failing() {
            let Some(config) = &mut self.config else { continue };
            config.shape.lose(failing.member);
            self.relabel = true;
            self.losses += 1;
            if failing.why == DeviceTrouble::Silent {
                self.silent.extend(self.slots.get(failing.member.index()).copied().flatten());
            }
        }
    }

    /// Retries writes that found their device full, for a limited time.
    pub(super) fn step_full(&mut self, now: Time) {
        if !self.io.is_stalled() || self.failed.is_some() {
            return;
        }
        self.io.give_up_full(FULL_PATIENCE_MILLIS);
        self.lose_failing();
        let full = self.io.full_for(FULL_PATIENCE_MILLIS);
        if !full.is_empty() {
            let write = match self.stage {
                Stage::Claim(_) => OpenWrite::Claim,
                Stage::Level => OpenWrite::Log,
                _ => OpenWrite::Root,
            };
            return self.fail(OpenErrorKind::NoRoom { write, devices: full });
        }
        if now.0 >= self.retried.0 + FULL_RETRY_MILLIS {
            self.retried = now;
            self.io.retry_stalled();
        }
    }

    /// Returns the slots of devices that did not answer.
    pub(crate) fn unanswered(&self) -> &[DeviceSlot] {
        &self.silent
    }
}
