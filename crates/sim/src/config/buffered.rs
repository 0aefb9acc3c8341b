//! Worlds with devices behind the kernel's page cache.

use super::{Config, CrashInterval, End};
use crate::fault::{Fault, FaultKind};
use crate::rng::Rng;

impl Config {
    /// Turns this world into one of them, drawing only from `rng`: a flush fails, the daemon dies,
    /// the next one continues, and then the power fails.
    pub(super) fn buffer(&mut self, rng: &mut Rng) {
        (self.second_hand, self.mirrored, self.cached, self.buffered) = (false, None, None, true);
        let requests = self.eras.first().map_or(100, |era| era.requests);
        self.eras.truncate(3);
        self.eras.insert(0, CrashInterval { requests, end: End::Kill });
        self.eras.insert(1, CrashInterval { requests: rng.between(1, 60), end: End::Power });
        self.mix.requests[4] = self.mix.requests[4].max(10);
        let (device, after) = (rng.index(self.devices.len()), rng.below(12));
        self.fault = Some(Fault { kind: FaultKind::FlushDrop, device, era: 0, after, times: 1 });
    }
}
