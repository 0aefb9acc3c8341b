//! Worlds with parity.

use millpond_engine::{Class, GroupSpec, Layout};

use super::{Config, KIB, LEAST_SEGMENTS, Mirrored, device};
use crate::rng::Rng;

/// Minimum segments of the log that comes with parity.
const LOG_SEGMENTS: u64 = 48;
/// Share of each device that is log, as 1/N.
const LOG_SHARE: u64 = 16;

impl Config {
    /// Turns this world into one with parity, drawing only from `rng`. The pool is so small that
    /// most data moves to stripes with parity.
    pub fn code(&mut self, rng: &mut Rng, removals: bool) {
        self.fault = None;
        // A former pool would have changed its devices.
        self.second_hand = false;
        self.extent = 64 * KIB;
        let parity = rng.between(1, 2);
        let count = rng.between(parity + 2, parity + 4);
        let log = (LOG_SEGMENTS * (parity + 1)).div_ceil(count);
        // The data of a removed device must fit on the others. With long devices, the log must do
        // without one, too.
        let (log, fair) = match (removals, count % 2) {
            (true, 0) => (2 * log, 2 * log * LOG_SHARE),
            (true, _) => (3 * log, 6 * log + LEAST_SEGMENTS),
            (false, _) => (log, 2 * log + LEAST_SEGMENTS),
        };
        let fair = fair + rng.below(60);
        let extents: Vec<u64> = (0..count).map(|_| fair + rng.below(20) * rng.below(2)).collect();
        self.devices = extents.iter().map(|own| device(own * self.extent, rng)).collect();
        let unit = (4 * KIB as u32) << rng.below(3);
        let layout = Layout::Parity { width: 16, parity: parity as u8, unit };
        self.usable = (fair - log) * (count - parity) * self.extent;
        self.tuning.log_percent = *rng.pick(&[0, 5, 20, 50]);
        let (fate, damage) = (*rng.pick(&[3, 10, 30]), rng.percent(25) && !self.tight);
        let mut groups = vec![GroupSpec { devices: Some(count as usize), ..GroupSpec::data(layout) }];
        self.rescale(rng);
        if rng.percent(40) {
            // Map nodes get special devices; chance decides which devices those are.
            let layout = Layout::Mirror { copies: parity as u16 + 1 };
            self.devices.extend((0..=parity).map(|_| device(fair * self.extent, rng)));
            groups.push(GroupSpec { class: Class::Special, layout, devices: Some(parity as usize + 1) });
        }
        // Unused draw: later draws depend on it.
        let _ = rng.percent(50);
        self.mirrored =
            Some(Mirrored { groups, copies: parity as usize + 1, fate, removals, jobs: false, spares: 0, hangs: false, damage });
    }
}
