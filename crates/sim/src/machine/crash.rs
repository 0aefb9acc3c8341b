//! Crashes: the daemon dies, or the power fails, and devices keep a part of the unflushed writes.

use std::collections::BTreeSet;

use super::Machine;
use crate::disk::{SimDevice, Survival, WriteNo};
use crate::rng::Rng;

impl Machine {
    /// The daemon dies.
    pub fn kill(&mut self) {
        self.pending.clear();
        for device in &mut self.devices {
            device.kill(&mut self.rng);
        }
    }

    /// The power fails, with the same survival rule for all devices.
    pub fn power_cut(&mut self, survival: &Survival) {
        self.pending.clear();
        for device in &mut self.devices {
            device.power_cut(survival, &mut self.rng);
        }
    }

    /// The power fails, with random survivors on each device.
    pub fn random_power_cut(&mut self) {
        self.pending.clear();
        let common = random_survival(&self.unflushed(), &mut self.rng);
        let alike = self.rng.percent(50);
        for device in &mut self.devices {
            let own = if alike { common.clone() } else { random_survival(&device.unflushed(), &mut self.rng) };
            device.power_cut(&own, &mut self.rng);
        }
    }

    /// The daemon dies, and one device loses its cache.
    pub fn reset_device(&mut self, device: usize) {
        self.pending.clear();
        for (i, disk) in self.devices.iter_mut().enumerate() {
            if i == device {
                disk.power_cut(&Survival::Each(50), &mut self.rng);
            } else {
                disk.kill(&mut self.rng);
            }
        }
    }

    /// Returns the writes that a power cut may lose, on all devices.
    pub fn unflushed(&self) -> BTreeSet<WriteNo> {
        self.devices.iter().flat_map(SimDevice::unflushed).collect()
    }
}

fn random_survival(unflushed: &BTreeSet<WriteNo>, rng: &mut Rng) -> Survival {
    let writes: Vec<WriteNo> = unflushed.iter().copied().collect();
    match rng.below(8) {
        0 => Survival::Nothing,
        1 => Survival::Completed,
        2 => Survival::Each(rng.between(0, 100)),
        3 | 4 => {
            let keep: BTreeSet<WriteNo> = writes.iter().copied().take(rng.index(writes.len() + 1)).collect();
            let torn = keep.last().copied();
            Survival::Set { keep, torn }
        }
        5 => {
            let out = writes.get(rng.index(writes.len())).copied();
            Survival::Set { keep: writes.iter().copied().filter(|w| Some(*w) != out).collect(), torn: None }
        }
        6 => Survival::Set { keep: writes.get(rng.index(writes.len())).copied().into_iter().collect(), torn: None },
        _ => {
            let keep: BTreeSet<WriteNo> = writes.iter().copied().filter(|_| rng.percent(50)).collect();
            let torn = keep.first().copied();
            Survival::Set { keep, torn }
        }
    }
}
