//! Devices that hang for a while, answer late, or lack space for a while, in some worlds whose
//! devices fail.
//!
//! *Budget*: from its fault until some time after the end of the fault, a device counts as failed.
//! The pool may give it up at any moment of that time, but need not.

use super::World;
use crate::rng::Rng;
use crate::system::System;
use millpond_block::DeviceError;
use millpond_engine::PoolState;

impl<S: System> World<S> {
    /// Lets a device hang or run out of space, sometimes.
    pub(super) fn befall_answers(&mut self) {
        let Some(fate) = &mut self.fate else { return };
        let chance = fate.chance;
        let due = fate.answers.as_mut().is_some_and(|rng| rng.below(1000) < chance);
        if !due || self.state() != PoolState::Online {
            return;
        }
        self.observe();
        let silence = self.config.tuning.silence_millis * 1000;
        let World { fate: Some(fate), machine, trace, stats, .. } = self else { return };
        let (whole, spare) = fate.spare(|device| machine.is_bad(device));
        let replacements: Vec<usize> =
            fate.known.iter().filter(|k| k.filling).filter_map(|k| k.replacement).filter(|d| !machine.is_bad(*d)).collect();
        let spoilt = fate.has_damage();
        let Some(rng) = &mut fate.answers else { return };
        let time = |rng: &mut Rng| match rng.below(4) {
            0 => rng.below(silence),
            1 => silence * rng.between(2, 20),
            2 => silence * 1000,
            _ => rng.below(2 * silence),
        };
        match rng.weighted(&[40, 10, 20, 30]) {
            kind @ (0 | 2) if spare > 0 && !spoilt => {
                let Some(device) = rng.pick(&whole).device else { return };
                let time = time(rng);
                let late = *rng.pick(&[None, None, Some(DeviceError::Gone), Some(DeviceError::Failed(5))]);
                if kind == 0 {
                    machine.hang(device, time, late);
                    trace.note(format!("device {device} HANGS for {time} us, and ends what it has then with {late:?}"));
                } else {
                    machine.fill_up(device, time);
                    trace.note(format!("device {device} is FULL for {time} us"));
                }
                stats.losses += 1;
            }
            1 if !replacements.is_empty() => {
                let (device, time) = (*rng.pick(&replacements), time(rng));
                machine.hang(device, time, None);
                trace.note(format!("device {device} HANGS for {time} us while it is filled"));
            }
            3 => machine.relieve(),
            _ => {}
        }
    }
}
