//! Faults of cache devices: any fault, at any time, on any of them. Guests must not notice.

use std::collections::{BTreeMap, BTreeSet};

use millpond_block::{DeviceError, DeviceGeometry, MemberId};
use millpond_engine::{Class, DeviceCommand, GroupSpec, Layout, NewDevice, PoolState};

use super::World;
use crate::config::Cached;
use crate::disk::SimDevice;
use crate::machine::{FaultyDevice, FlakyDevice};
use crate::rng::Rng;
use crate::system::System;

/// Maximum cache devices added and replaced in one world.
const MOST_NEW: usize = 6;

/// The state and faults of the cache devices.
#[derive(Clone, Debug)]
pub(crate) struct Caches {
    rng: Rng,
    chance: u64,
    /// Member number of each cache device, as last listed by the pool.
    members: BTreeMap<usize, MemberId>,
    /// All devices that ever belonged to the cache.
    ever: BTreeSet<usize>,
    /// Devices of unanswered commands, which may or may not have a label.
    unsure: BTreeSet<usize>,
    /// Devices whose removal was requested, which the pool may or may not know.
    leaving: BTreeSet<usize>,
    away: BTreeSet<usize>,
    new: usize,
}

impl Caches {
    /// The last devices of the machine are the cache.
    pub(super) fn new(cached: Cached, devices: usize, rng: Rng) -> Caches {
        let ever = (devices - cached.devices..devices).collect();
        Caches {
            rng,
            chance: cached.fate,
            members: BTreeMap::new(),
            ever,
            unsure: BTreeSet::new(),
            leaving: BTreeSet::new(),
            away: BTreeSet::new(),
            new: 0,
        }
    }

    /// The same state with another future.
    pub(super) fn fork(&self, label: u64) -> Caches {
        Caches { rng: Rng::new(label ^ 0xcac4e), ..self.clone() }
    }

    /// Stops all faults.
    pub(super) fn rest(&mut self) {
        self.chance = 0;
    }
}

impl<S: System> World<S> {
    /// Learns the cache devices from the pool's listing.
    pub(super) fn observe_caches(&mut self) {
        let (Some(caches), Some(pool)) = (&mut self.caches, self.system.as_ref().and_then(S::pool)) else { return };
        if pool.state == PoolState::Opening {
            return;
        }
        let of_cache = pool.devices.iter().filter(|device| device.class == Class::Cache);
        let known = of_cache.filter_map(|device| Some((self.machine.at(device.slot?)?, device.member)));
        let before = std::mem::replace(&mut caches.members, known.collect());
        let mut left = Vec::new();
        for device in before.into_keys().filter(|device| !caches.members.contains_key(device)) {
            // Removed or replaced devices. A device being removed is listed until the labels say
            // otherwise.
            if !pool.devices.iter().any(|d| d.slot.and_then(|slot| self.machine.at(slot)) == Some(device)) {
                caches.away.insert(device);
                caches.unsure.insert(device);
                left.push(device);
            }
        }
        if self.running.is_empty() && self.waiting.is_empty() {
            let Caches { unsure, members, .. } = caches;
            unsure.retain(|device| !members.contains_key(device));
        }
        left.into_iter().for_each(|device| self.let_device_go(device));
    }

    /// Injects a fault into a cache device, or changes the cache, sometimes.
    pub(super) fn befall_cache(&mut self) {
        let Some(caches) = &mut self.caches else { return };
        if caches.rng.below(1000) >= caches.chance || self.state() != PoolState::Online {
            return;
        }
        self.observe_caches();
        let World { caches: Some(caches), machine, trace, .. } = self else { return };
        let devices: Vec<usize> = caches.members.keys().copied().collect();
        let rng = &mut caches.rng;
        let choice = rng.weighted(&[20, 20, 30, 15, 10, 10, 10]);
        if devices.is_empty() && choice != 6 {
            return;
        }
        let device = devices.get(rng.index(devices.len())).copied().unwrap_or(0);
        match choice {
            0 => {
                let error = *rng.pick(&[DeviceError::Gone, DeviceError::Failed(5), DeviceError::Full]);
                machine.faulty.insert(device, FaultyDevice::Fails(error));
                self.stats.losses += 1;
                trace.note(format!("device {device} of the cache FAILS from now on ({error})"));
            }
            1 => {
                let chances = *rng.pick(&[[300, 0, 0], [0, 200, 0], [0, 0, 200], [50, 50, 50]]);
                machine.faulty.insert(device, FaultyDevice::FlakyDevice(FlakyDevice { device, chances, rng: Rng::new(rng.next()) }));
                trace.note(format!("device {device} of the cache is sick from now on: {chances:?}"));
            }
            2 => {
                for _ in 0..rng.between(1, 60) {
                    if let Some(what) = machine.rot(device) {
                        trace.note(format!("device {device} of the cache rots: {what}"));
                    }
                }
            }
            3 => {
                machine.faulty.remove(&device);
                trace.note(format!("device {device} of the cache is well"));
            }
            4 => {
                let member = caches.members.get(&device).copied().unwrap_or(MemberId(0));
                if caches.new < MOST_NEW {
                    caches.leaving.insert(device);
                    let device = self.new_cache();
                    self.stats.changes += 1;
                    self.command(DeviceCommand::Replace { member, device }, vec![], vec![]);
                }
            }
            5 => {
                let member = caches.members.get(&device).copied().unwrap_or(MemberId(0));
                caches.leaving.insert(device);
                self.stats.changes += 1;
                self.command(DeviceCommand::Remove { member, dry_run: false }, vec![], vec![]);
            }
            _ if caches.new < MOST_NEW => {
                let devices = vec![self.new_cache()];
                let groups = vec![GroupSpec { class: Class::Cache, layout: Layout::Linear, devices: None }];
                self.stats.changes += 1;
                self.command(DeviceCommand::AddDevices { groups, devices }, vec![], vec![]);
            }
            _ => {}
        }
    }

    fn new_cache(&mut self) -> NewDevice {
        let Some((mut geometry, profile)) = self.config.devices.last().copied() else { unreachable!("a pool has devices") };
        let mut noise = 0;
        if let Some(caches) = &mut self.caches {
            geometry.size = (self.config.extent * caches.rng.between(1, 20)).next_multiple_of(1 << 20) + (2 << 20);
            noise = caches.rng.next();
            caches.new += 1;
        }
        let slot = self.machine.add(SimDevice::new(geometry, profile, noise));
        let device = self.machine.at(slot);
        if let Some(caches) = &mut self.caches {
            caches.ever.extend(device);
            caches.unsure.extend(device);
        }
        NewDevice { slot, geometry }
    }

    /// Between two eras, some cache devices come back and others go away.
    pub(super) fn caches_come_and_go(&mut self) {
        let World { caches: Some(caches), machine, trace, .. } = self else { return };
        for device in caches.ever.clone() {
            if caches.unsure.contains(&device) || caches.leaving.contains(&device) {
                caches.away.insert(device);
            } else if caches.chance > 0 && caches.rng.percent(20) {
                if !caches.away.remove(&device) {
                    caches.away.insert(device);
                }
                trace.note(format!("device {device} of the cache is away: {}", caches.away.contains(&device)));
            }
            if caches.rng.percent(50) {
                machine.faulty.remove(&device);
            }
        }
    }

    /// Plugs in the present devices of pool and cache, in any order.
    pub(super) fn plug_with_caches(&mut self) -> Vec<DeviceGeometry> {
        let World { caches: Some(caches), machine, .. } = self else { return self.machine.plug(false) };
        let mut there: Vec<usize> = (0..machine.count()).filter(|device| !caches.away.contains(device)).collect();
        caches.rng.shuffle(&mut there);
        machine.plug_these(there)
    }

    /// Takes a device away if it is a cache device; returns whether it did.
    pub(super) fn take_cache_away(&mut self, device: usize) -> bool {
        self.caches.as_mut().is_some_and(|caches| caches.ever.contains(&device) && caches.away.insert(device))
    }

    /// Returns whether a device is a cache device that is not plugged in.
    pub(super) fn cache_is_away(&self, device: usize) -> bool {
        self.caches.as_ref().is_some_and(|caches| caches.away.contains(&device))
    }

    /// Takes away the whole cache, or the devices whose membership is uncertain.
    pub(super) fn do_without_cache(&mut self) {
        let Some(Caches { rng, ever, unsure, leaving, away, .. }) = &mut self.caches else { return };
        if rng.percent(50) {
            away.extend(ever.iter());
        } else {
            away.extend(unsure.union(leaving));
        }
    }
}
