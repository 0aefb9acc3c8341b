//! Worlds of their own for daemons that start again and import their pool by themselves, whatever devices have come by then.

use millpond_engine::{Holder, Layout};

use super::{Config, KIB, Kind, LEAST_SEGMENTS, device, volumes};
use crate::rng::Rng;

/// What makes a world one of these.
#[derive(Clone, Copy, Debug)]
pub struct Restarts {
    /// Hosts that see the devices.
    pub hosts: usize,
    /// Seconds that a daemon waits for missing devices.
    pub wait: u64,
    /// Times that the pool comes into service.
    pub rounds: u64,
}

/// A host, as its imports claim the pool.
pub fn holder(host: usize, session: u64) -> Holder {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&session.to_le_bytes());
    Holder { host: [host as u8; 16], name: format!("host{host}"), session: bytes }
}

impl Config {
    /// Turns a world into one of restarts; all chance is from `rng`. Each device of the mirror has everything, so any that is current is enough.
    pub(super) fn restart(&mut self, rng: &mut Rng) {
        (self.fault, self.second_hand, self.tight, self.mirrored, self.cached) = (None, false, false, None, None);
        let copies = if rng.percent(70) { 2 } else { 3 };
        self.layout = Layout::Mirror { copies };
        self.extent = (64 * KIB) << rng.below(2);
        self.usable = (LEAST_SEGMENTS + rng.below(20)) * self.extent;
        self.devices = (0..copies).map(|_| device(self.usable, rng)).collect();
        self.volumes = volumes(self.usable * rng.between(5, 20) / 100, false, rng);
        self.volumes.truncate(2);
        self.mix.commands = 0;
        self.tuning.holder = Some(holder(0, 0));
        (self.tuning.silence_millis, self.tuning.reread_millis) = (400, 50);
        let hosts = if rng.percent(60) { 1 } else { 2 };
        self.kind = Kind::Restarts(Restarts { hosts, wait: *rng.pick(&[4, 10, 30]), rounds: rng.between(3, 10) });
    }
}
