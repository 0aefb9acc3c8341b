//! Devices that do not answer: reads go to other copies, and a device that the pool can do without
//! is given up.

use super::state::Pool;
use crate::io::Replica;
use crate::{DeviceTrouble, Fault, Planted, PoolState};

impl Pool {
    /// Checks whether devices answer. A silent device that is given up counts as failed: the labels
    /// record that before anything relies on it (INV-LABEL-1). A pool that is being opened
    /// continues without devices only where it may be imported without them.
    pub(crate) fn watch_devices(&mut self) {
        let least = self.store.tuning.silence_millis;
        self.store.io.at(self.store.now, least);
        if self.store.io.find_silent(self.store.tuning.reread_millis) {
            self.store.io.read_elsewhere(&self.store.core.space.rows, &mut self.store.bufs);
        }
        let (closing, opening) = (self.keeper.is_giving_back(), self.store.state == PoolState::Opening);
        if opening {
            self.store.io.give_up_incomplete(least);
        }
        let may = !opening || self.store.tuning.degraded || self.store.tuning.plants(Planted::LeaveOutUnasked);
        let alive = matches!(self.store.state, PoolState::Online | PoolState::Closing | PoolState::Opening);
        self.store.io.give_up_silent(least, alive && may && !self.store.tuning.read_only && !closing, closing);
        while let Some(failing) = self.store.io.pop_failing() {
            if opening && failing.why == DeviceTrouble::Silent && failing.replica == Replica::Current {
                self.unanswered.extend(self.store.io.slot_of(failing.member));
            }
            self.device_failed(failing);
        }
        if opening {
            let silent = self.store.io.unanswered(least);
            if !silent.is_empty() {
                self.unanswered.extend(&silent);
                self.fault(Fault::NoAnswer { devices: silent });
            }
        }
    }
}
