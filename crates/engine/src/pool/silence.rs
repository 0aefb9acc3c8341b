//! Devices that do not answer: reads go elsewhere, and who can be spared is given up.

use super::state::Pool;
use crate::PoolState;

impl Pool {
    /// Looks whether devices answer. What is given up is as if it had failed: the labels say so before anything relies on it (INV-LABEL-1).
    pub(crate) fn watch_devices(&mut self) {
        self.io.at(self.now, self.tuning.silence_millis);
        if self.io.find_silent(self.tuning.reread_millis) {
            self.io.read_elsewhere(&self.core.space.rows, &mut self.bufs);
        }
        let closing = self.keeper.is_giving_back();
        let spares = !self.tuning.read_only && !closing && matches!(self.state, PoolState::Online | PoolState::Closing);
        self.io.give_up_silent(self.tuning.silence_millis, spares, closing);
        while let Some(failing) = self.io.pop_failing() {
            self.device_failed(failing);
        }
    }
}
