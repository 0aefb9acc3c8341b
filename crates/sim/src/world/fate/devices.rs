//! Devices that fail, come and go, and what may be missing after it.

use millpond_block::{DeviceError, DeviceSlot};
use millpond_engine::{Class, Fault, JobKind, MemberState, Missing, NewDevice, OpenErrorKind, PoolState};
use millpond_format::{Label, SECTOR_BYTES, second_area};

use super::{DeviceFaults, Known, MOST_CHANGES};
use crate::System;
use crate::disk::SimDevice;
use crate::machine::FlakyDevice;
use crate::oracle::{Verdict, broken};
use crate::rng::Rng;
use crate::world::World;

impl<S: System> World<S> {
    /// Draws whether to run a trial, with this probability in percent.
    pub(crate) fn rng_of_trials(&mut self, percent: u64) -> bool {
        self.fate.as_mut().is_some_and(|fate| fate.rng.percent(percent))
    }

    /// From now on every operation on the device fails.
    pub(crate) fn fail(&mut self, device: Option<usize>) {
        let (Some(fate), Some(device)) = (&mut self.fate, device) else { return };
        let error = *fate.rng.pick(&[DeviceError::Gone, DeviceError::Failed(5)]);
        let ever = fate.rng.percent(25);
        if ever {
            fate.lost.insert(device);
        }
        self.machine.ever.insert(device);
        self.machine.broken.insert(device, error);
        self.stats.losses += 1;
        self.trace.note(format!("device {device} FAILS from now on ({error}){}", if ever { ", for ever" } else { "" }));
    }

    /// Returns whether operations are in flight on a device that the pool uses.
    pub(crate) fn uses_devices(&self) -> bool {
        let busy = self.machine.busy();
        let Some(fate) = &self.fate else { return !busy.is_empty() };
        let used = |k: &Known| matches!(k.state, MemberState::Present | MemberState::Filling);
        fate.known
            .iter()
            .any(|k| (used(k) && k.device.is_some_and(|d| busy.contains(&d))) || k.replacement.is_some_and(|d| busy.contains(&d)))
    }

    /// No device may be given up without a cause of its own.
    pub(crate) fn judge_losses(&mut self) -> Verdict {
        self.fate.as_mut().and_then(|fate| fate.unjust.take()).map_or(Ok(()), broken)
    }

    pub(crate) fn without_operations(fork: &World<S>) -> crate::world::Stats {
        crate::world::Stats { operations: 0, ..fork.stats }
    }

    /// Begins to damage one device, or damages it further. Begins only while all members are whole,
    /// because a resilver would spread the damage.
    pub(super) fn damage(&mut self, whole: &[Known], spare: usize) {
        let World { fate: Some(fate), machine, .. } = self else { return };
        let untouched = !fate.jobs && whole.len() == fate.known.len() && machine.bad().is_empty() && fate.away.is_empty();
        if fate.spoilt.is_none() && untouched && spare > 0 {
            let device = fate.rng.pick(whole).device;
            let chances = *fate.rng.pick(&[[0, 0, 0], [100, 0, 0], [0, 30, 0], [0, 0, 30], [30, 10, 10]]);
            fate.spoilt = device;
            // No more replacements: a resilver would spread the damage.
            fate.replaced = MOST_CHANGES.0;
            machine.sick = device.map(|device| FlakyDevice { device, chances, rng: Rng::new(fate.rng.next()) });
            self.stats.losses += 1;
            self.trace.note(format!("device {device:?} is sick from now on: {chances:?}"));
        }
        let World { fate: Some(fate), machine, .. } = self else { return };
        let Some(device) = fate.spoilt else { return };
        for _ in 0..fate.rng.between(1, 20) {
            if let Some(what) = machine.rot(device) {
                self.trace.note(format!("device {device} rots: {what}"));
            }
        }
    }

    pub(crate) fn new_device(&mut self, size: u64) -> NewDevice {
        let Some((mut geometry, profile)) = self.config.devices.first().copied() else { unreachable!("a pool has devices") };
        geometry.size = size;
        let noise = self.fate.as_mut().map_or(0, |fate| fate.rng.next());
        let slot = self.machine.add(SimDevice::new(geometry, profile, noise));
        NewDevice { slot, geometry }
    }

    /// Learns the members from the pool's listing.
    pub(crate) fn observe(&mut self) {
        let (Some(fate), Some(pool)) = (&mut self.fate, self.system.as_ref().and_then(S::pool)) else { return };
        if pool.state == PoolState::Opening {
            return;
        }
        let machine = &self.machine;
        let known = |d: &millpond_engine::DeviceInfo| Known {
            member: d.member,
            state: d.state,
            device: d.slot.and_then(|slot| machine.at(slot)),
            replacement: d.replacement.and_then(|slot| machine.at(slot)),
            filling: pool.jobs.iter().any(|job| job.member == Some(d.member) && job.done < job.total),
            special: d.class == Class::Special,
        };
        let needed = pool.devices.iter().filter(|device| !device.class.is_auxiliary());
        let before = std::mem::replace(&mut fate.known, needed.map(known).collect());
        if let Some(spares) = &mut fate.spares {
            let were = spares.observe(&pool, machine);
            self.stats.spares += fate.known.iter().filter(|k| k.device.is_some_and(|device| were.contains(&device))).count() as u64;
            // A device whose place was taken does not belong to the pool any more.
            let moved = fate.known.iter().filter_map(|k| Some((fate.homes.get(&k.member)?, k.device?)));
            fate.doubtful.extend(moved.filter(|(home, now)| *home != now).map(|(home, _)| *home));
        }
        self.machine.ever.extend(fate.away.iter().chain(&fate.spoilt).chain(self.machine.broken.keys()));
        let blameless = |k: &&Known| k.state == MemberState::Down && k.device.is_some_and(|device| !self.machine.ever.contains(&device));
        if let Some(known) = fate.known.iter().find(blameless) {
            fate.unjust = Some(format!("a device is given up that nothing befell: {known:?}"));
        }
        fate.homes.extend(fate.known.iter().filter_map(|k| Some((k.member, k.device?))));
        fate.jobs = !pool.jobs.is_empty();
        if self.running.is_empty() {
            fate.adding.clear();
            if !pool.jobs.iter().any(|job| job.kind == JobKind::Remove) {
                fate.leaving.clear();
            }
        }
        // A removed device is not needed any more, whatever happens.
        let left: Vec<usize> = before
            .iter()
            .filter(|k| fate.known.iter().all(|now| now.member != k.member))
            .filter_map(|k| fate.homes.remove(&k.member))
            .collect();
        let used = |d: &usize| fate.known.iter().any(|k| k.device == Some(*d) || k.replacement == Some(*d));
        let left: Vec<usize> = left.into_iter().filter(|d| !used(d)).collect();
        for device in left.iter().copied() {
            fate.doubtful.insert(device);
            self.trace.note(format!("device {device} has left the pool"));
            if fate.removals.as_mut().is_some_and(|rng| rng.percent(70)) {
                fate.away.insert(device);
                fate.lost.insert(device);
            }
        }
        left.into_iter().for_each(|device| self.let_device_go(device));
    }

    /// Between two eras, some devices come back and others go away.
    pub(crate) fn come_and_go(&mut self) {
        let World { fate: Some(fate), machine, .. } = self else { return };
        let failing: Vec<usize> = machine.broken.keys().copied().collect();
        for device in failing {
            if fate.lost.contains(&device) || fate.rng.percent(30) {
                fate.away.insert(device);
            }
        }
        machine.broken.retain(|device, _| fate.lost.contains(device));
        let back: Vec<usize> = fate.away.iter().copied().filter(|d| !fate.lost.contains(d)).collect();
        for device in back {
            if fate.rng.percent(60) {
                fate.away.remove(&device);
                self.trace.note(format!("device {device} is there again"));
            }
        }
        let (whole, spare) = fate.spare(|_| false);
        if spare > 0 && fate.spoilt.is_none() && fate.rng.percent(25) {
            let Some(device) = fate.rng.pick(&whole).device else { return };
            fate.away.insert(device);
            self.stats.losses += 1;
            self.trace.note(format!("device {device} is away"));
        }
    }

    /// Returns whether the pool refused to open for lack of special devices, and they may be given
    /// up.
    pub(crate) fn gives_up_special(&self) -> bool {
        let lacks_special = |kind: &OpenErrorKind| matches!(kind, OpenErrorKind::MemberMissing { need: Missing::Special, .. });
        let refused = matches!(self.state(), PoolState::Faulted(Fault::Open(error)) if lacks_special(&error.kind));
        refused && self.fate.as_ref().is_some_and(|fate| fate.rebuild)
    }

    /// Plugs in the present devices; returns their geometries.
    pub(crate) fn devices_there(&mut self) -> Vec<millpond_block::DeviceGeometry> {
        let cached: Vec<usize> = (0..self.machine.count()).filter(|d| self.cache_is_away(*d)).collect();
        let World { fate: Some(fate), machine, .. } = self else { return self.plug_with_caches() };
        let out = |d: &usize| fate.away.contains(d) || fate.refused.contains(d) || machine.broken.contains_key(d);
        let mut there: Vec<usize> = (0..machine.count()).filter(|d| !out(d) && !cached.contains(d)).collect();
        fate.rng.shuffle(&mut there);
        self.trace.note(format!("plugged in: {there:?}"));
        machine.plug_these(there)
    }

    /// Returns whether an import may refuse a device as written to apart from the others: the pool
    /// went on without it, and its label says that a member was given up which the others never
    /// gave up. A crash while such labels are written can leave them on one device, and the next
    /// import can be without that device.
    pub(super) fn is_apart(&self, device: usize, plugged: &[usize]) -> bool {
        let Some(fate) = &self.fate else { return false };
        let down = |k: &Known| k.state == MemberState::Down && fate.homes.get(&k.member) == Some(&device);
        let label = |device: usize| self.look_at(device).map(|looked| looked.label);
        let others = plugged.iter().filter(|other| **other != device).filter_map(|other| label(*other));
        let newest = others.filter(|label| !label.shape.is_cache(label.member)).max_by_key(|label| label.shape.generation);
        let (Some(own), Some(newest)) = (label(device), newest) else { return false };
        let mut both = own.shape.members.iter().zip(&newest.shape.members);
        fate.known.iter().any(down) && both.any(|(then, now)| then.state == MemberState::Down && then.down_since > now.down_since)
    }

    /// Returns whether a device fails reads now and then, so that both of its labels may have been
    /// unreadable at once.
    pub(super) fn fails_to_read(&self, slot: DeviceSlot) -> bool {
        let (device, sick) = (self.machine.at(slot), self.machine.sick.as_ref());
        sick.is_some_and(|sick| Some(sick.device) == device && sick.chances[0] > 0)
    }

    /// Handles an import that asks to leave out a device without a readable label. If both labels
    /// have rotted, and the device is a cache device or the damaged device, takes it away. If a
    /// label of the damaged device is sound, the import is repeated. Returns false if the import
    /// was wrong.
    pub(super) fn leaves_rotten_out(&mut self, slot: DeviceSlot) -> bool {
        let Some(device) = self.machine.at(slot) else { return false };
        let size = self.machine.geometry(device).map_or(0, |geometry| geometry.size);
        let sound = |offset: u64| {
            let mut sector = [0; SECTOR_BYTES];
            self.machine.peek(slot, offset, &mut sector);
            Label::decode_knowing(&sector, self.config.tuning.features).is_ok()
        };
        if sound(0) || sound(second_area(size)) {
            // The damaged device fails reads now and then.
            return self.fate.as_ref().is_some_and(|fate| fate.spoilt == Some(device));
        }
        let spoilt = self.fate.as_mut().is_some_and(|fate| fate.spoilt == Some(device) && fate.away.insert(device));
        let taken = spoilt || self.take_cache_away(device);
        if taken {
            self.trace.note(format!("device {device} is left out: its labels have rotted"));
        }
        taken
    }
}

impl DeviceFaults {
    /// Records that an import may refuse a device, because it is being removed or added.
    pub(crate) fn doubt(&mut self, device: usize) {
        self.doubtful.insert(device);
    }

    /// Returns whether a device was damaged.
    pub(crate) fn has_damage(&self) -> bool {
        self.spoilt.is_some()
    }

    /// Returns whether there is damage that a scrub can repair completely. Parity is compared only
    /// where all of its data is present.
    pub(super) fn is_mendable(&self) -> bool {
        let all = self.known.iter().all(|k| k.state == MemberState::Present && k.device.is_some_and(|d| !self.away.contains(&d)));
        self.has_damage() && (self.mirrors || all)
    }
}
