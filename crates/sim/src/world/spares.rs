//! Spares, in worlds whose devices fail: they fail, are added and removed like other devices, and
//! must replace every lost device that they can.

use std::collections::BTreeSet;

use millpond_engine::{Class, DeviceCommand, DeviceInfo, GroupSpec, Layout, MemberState, PoolInfo, PoolState};

use super::World;
use crate::machine::Machine;
use crate::oracle::{Verdict, broken};
use crate::rng::Rng;
use crate::system::System;

/// Maximum number of spares added in one world.
const MOST_NEW: u32 = 3;
/// Seconds of simulated time within which a spare must replace a lost device: longer than an import
/// waits for a missing device.
const PATIENCE: u32 = 200;

/// The spares of a world.
#[derive(Clone, Debug)]
pub(super) struct Spares {
    rng: Rng,
    added: u32,
    /// The spare devices, as last listed by the pool.
    devices: BTreeSet<usize>,
}

impl Spares {
    pub(super) fn new(rng: Rng) -> Spares {
        Spares { rng, added: 0, devices: BTreeSet::new() }
    }

    /// Learns the spares from the pool's listing; returns the former ones.
    pub(super) fn observe(&mut self, pool: &PoolInfo, machine: &Machine) -> BTreeSet<usize> {
        let spares = pool.devices.iter().filter(|device| device.class == Class::Spare);
        let devices = spares.filter_map(|device| machine.at(device.slot?)).collect();
        std::mem::replace(&mut self.devices, devices)
    }

    /// Returns the devices that may replace a lost one at any time.
    pub(super) fn devices(&self) -> &BTreeSet<usize> {
        &self.devices
    }
}

/// Returns a member that is down although a spare is large enough to replace it.
fn wanting(pool: &PoolInfo) -> Option<&DeviceInfo> {
    let spares = || pool.devices.iter().filter(|device| device.class == Class::Spare && device.state == MemberState::Present);
    let down = |device: &&DeviceInfo| !device.class.is_auxiliary() && device.state == MemberState::Down && device.replacement.is_none();
    pool.devices.iter().filter(down).find(|device| spares().any(|spare| spare.size >= device.size))
}

impl<S: System> World<S> {
    /// Injects a fault into a spare, or removes or adds one, sometimes.
    pub(super) fn befall_spares(&mut self) {
        let Some(fate) = &mut self.fate else { return };
        let chance = fate.chance;
        let due = fate.spares.as_mut().is_some_and(|spares| spares.rng.below(1000) < chance);
        if !due || self.state() != PoolState::Online {
            return;
        }
        self.observe();
        let Some(spares) = self.fate.as_mut().and_then(|fate| fate.spares.as_mut()) else { return };
        let devices: Vec<usize> = spares.devices.iter().copied().collect();
        let choice = spares.rng.weighted(&[30, 20, 50]);
        let picked = devices.get(spares.rng.index(devices.len().max(1))).copied();
        match (choice, picked) {
            (0, Some(device)) => self.fail(Some(device)),
            (1, Some(device)) => {
                let pool = self.system.as_ref().and_then(S::pool);
                let known =
                    pool.and_then(|p| p.devices.into_iter().find(|d| d.slot.and_then(|slot| self.machine.at(slot)) == Some(device)));
                self.fate.iter_mut().for_each(|fate| fate.doubt(device));
                if let Some(known) = known {
                    self.stats.changes += 1;
                    self.command(DeviceCommand::Remove { member: known.member, dry_run: false }, vec![], vec![]);
                }
            }
            (2, _) if spares.added < MOST_NEW => {
                spares.added += 1;
                let largest = self.config.devices.iter().map(|(geometry, _)| geometry.size).max().unwrap_or(0);
                let device = self.new_device(largest);
                let at = self.machine.at(device.slot);
                self.fate.iter_mut().for_each(|fate| at.into_iter().for_each(|device| fate.doubt(device)));
                self.stats.changes += 1;
                let groups = vec![GroupSpec { class: Class::Spare, layout: Layout::Linear, devices: None }];
                self.command(DeviceCommand::AddDevices { groups, devices: vec![device] }, vec![], vec![]);
            }
            _ => {}
        }
    }

    /// Waits until spares have replaced all lost devices that they can.
    pub(super) fn wait_for_spares(&mut self) -> Verdict {
        for _ in 0..PATIENCE {
            let pool = self.system.as_ref().and_then(S::pool);
            if pool.as_ref().is_none_or(|pool| pool.state != PoolState::Online || wanting(pool).is_none()) {
                return Ok(());
            }
            self.machine.pass(1_000_000);
            self.finish_jobs()?;
        }
        let devices = self.system.as_ref().and_then(S::pool).map(|pool| pool.devices);
        broken(format!("no spare takes the place of a device that is lost: {devices:?}"))
    }
}
