//! Worlds with daemons that restart and import their pool automatically with whatever devices have
//! appeared.

use millpond_engine::{Holder, Layout};

use super::{Config, KIB, Kind, LEAST_SEGMENTS, device, volumes};
use crate::rng::Rng;

/// Settings of such a world.
#[derive(Clone, Copy, Debug)]
pub struct Restarts {
    /// Number of hosts that see the devices.
    pub hosts: usize,
    /// Seconds that a daemon waits for missing devices.
    pub wait: u64,
    /// Number of times that the pool is brought into service.
    pub rounds: u64,
}

/// The holder that an import of a host claims the pool for.
pub fn holder(host: usize, session: u64) -> Holder {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&session.to_le_bytes());
    Holder { host: [host as u8; 16], name: format!("host{host}"), session: bytes }
}

impl Config {
    /// Turns this world into one of restarts, drawing only from `rng`. Each device of the mirror
    /// has all data, so any one that is current is enough.
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
