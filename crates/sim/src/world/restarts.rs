//! Daemons that restart and import their pool automatically: devices appear late, stay away or come
//! back stale, the memory of a host may not get written, and everything is interrupted at any
//! point.
//!
//! Each device of the mirror has all data, so one *current* device is enough: one that the pool
//! listed as present when it was last in service. INV-MEMORY-1 is checked in two ways: an automatic
//! import must take a current device as whole, and then everything acknowledged is read. It may do
//! without a current device in one case only: the devices that its host remembers were given up in
//! service, and the host died before it recorded that (`docs/devices.md`). An import that the user
//! requested may do so as well; from then on the state that it found counts.

mod daemon;
mod start;

use std::collections::BTreeSet;
use std::time::Duration;

use millpond_block::{DeviceError, DeviceSlot};
use millpond_engine::{Command, DeviceCommand, DeviceId, ImportRules, LabelsInForce, MemberState, NewDevice, PoolState};

use super::World;
use crate::config::Restarts;
use crate::disk::SimDevice;
use crate::oracle::{Verdict, broken};
use crate::rng::Rng;
use crate::system::System;
use daemon::Daemon;
use start::Start;

/// Maximum guest requests per time in service.
const REQUESTS: u64 = 250;
/// Device faults and replacements, per mille of steps.
const MISHAPS: u64 = 12;
/// Maximum number of devices replaced in one world.
const MOST_REPLACED: u32 = 3;
/// Milliseconds after which labels in force must be recorded: normally, and after a time in which
/// that was impossible.
const NOTED: u64 = 300;
const NOTED_LATE: u64 = 3_000;
/// Starts of daemons that may fail before all devices are present.
const MOST_STARTS: u32 = 4;

/// The hosts, and the true condition of the devices.
struct Site {
    rng: Rng,
    rules: ImportRules,
    daemons: Vec<Daemon>,
    /// The host that has the pool in service, or had it last.
    here: usize,
    /// That host has not closed the pool.
    held: bool,
    /// Hosts that may have claimed the pool in interrupted imports since.
    claimed: BTreeSet<usize>,
    /// Devices that hold everything that was acknowledged.
    current: BTreeSet<usize>,
    /// Devices that an import has made complete since: it put everything on them, and its host died
    /// before it served the pool.
    completed: BTreeSet<usize>,
    /// Devices left behind when the pool went on without their data.
    strangers: BTreeSet<usize>,
    /// An import requested by the user was interrupted: devices that are not current may have
    /// labels that say they are.
    split: bool,
    /// The import that the user requested and that was interrupted last.
    begun: Option<Begun>,
    /// The host on which the user wants the pool and did not get it yet; it may have taken the pool
    /// from the former host.
    wanted: Option<usize>,
    /// The labels in force, and the time since when, in milliseconds.
    labels: Option<(LabelsInForce, u64)>,
    replaced: u32,
}

/// An import that the user requested, and whose host died before it served the pool.
struct Begun {
    host: usize,
    /// Devices that it found complete.
    complete: BTreeSet<DeviceId>,
    /// Generation of the newest label that it found.
    generation: u64,
}

impl<S: System> World<S> {
    pub(super) fn restarts(&mut self, plan: Restarts) -> Verdict {
        let rules = ImportRules { wait: Duration::from_secs(plan.wait), planted: self.config.tuning.planted };
        let mut site = Site {
            rng: self.rng.fork(5),
            rules,
            daemons: vec![Daemon::default(); plan.hosts],
            here: 0,
            held: true,
            claimed: BTreeSet::new(),
            current: (0..self.machine.count()).collect(),
            completed: BTreeSet::new(),
            strangers: BTreeSet::new(),
            split: false,
            begun: None,
            wanted: None,
            labels: None,
            replaced: 0,
        };
        let labels = self.settled_labels()?;
        site.daemons[0].remember(labels);
        for _ in 0..plan.rounds {
            self.serve(&mut site)?;
            self.intrude(&mut site)?;
            self.end_service(&mut site)?;
            self.start_again(&mut site)?;
        }
        self.settle_down()?;
        self.audit()?;
        self.collect();
        Ok(())
    }

    /// Runs guests while devices fail and are replaced and the daemon records which are current.
    fn serve(&mut self, site: &mut Site) -> Verdict {
        let now = self.machine.now().0;
        if site.rng.percent(25) {
            let full = now + site.rng.between(1_000, 60_000);
            site.daemons[site.here].full_until = full;
        }
        let mut left = site.rng.between(5, REQUESTS);
        let mut steps = 0;
        while left > 0 {
            left = left.saturating_sub(self.step()?);
            self.mishap(site);
            self.keep_labels(site);
            steps += 1;
            if steps % super::IDLE_STEPS == 0 {
                self.drain()?;
            }
        }
        Ok(())
    }

    /// Fails or replaces a device, sometimes. At least one current device remains.
    fn mishap(&mut self, site: &mut Site) {
        if site.rng.below(1000) >= MISHAPS {
            return;
        }
        let Some(pool) = self.system.as_ref().and_then(S::pool) else { return };
        let sound = |slot: DeviceSlot| self.machine.at(slot).filter(|device| !self.machine.broken.contains_key(device));
        let of = |state: MemberState| pool.devices.iter().filter(move |d| d.state == state).filter_map(|d| sound(d.slot?));
        // one that failed while another takes its place may be listed as present, and is not
        let present = self.present();
        let current: Vec<usize> = of(MemberState::Present).filter(|device| present.contains(device)).collect();
        let filling: Vec<usize> = of(MemberState::Filling).collect();
        match site.rng.weighted(&[50, 15, 20]) {
            0 if current.len() > 1 => self.break_device(site, &current),
            1 if !filling.is_empty() => self.break_device(site, &filling),
            2 if site.replaced < MOST_REPLACED && !pool.devices.is_empty() => {
                site.replaced += 1;
                let member = site.rng.pick(&pool.devices).member;
                let Some((geometry, profile)) = self.config.devices.first().copied() else { return };
                let slot = self.machine.add(SimDevice::new(geometry, profile, site.rng.next()));
                self.stats.changes += 1;
                self.command(DeviceCommand::Replace { member, device: NewDevice { slot, geometry } }, vec![], vec![]);
            }
            _ => {}
        }
    }

    fn break_device(&mut self, site: &mut Site, devices: &[usize]) {
        let (device, error) = (*site.rng.pick(devices), *site.rng.pick(&[DeviceError::Gone, DeviceError::Failed(5)]));
        self.machine.broken.insert(device, error);
        self.stats.losses += 1;
        self.trace.note(format!("device {device} FAILS from now on ({error})"));
    }

    /// Lets the memory of the host follow the labels, some milliseconds later, when it can be
    /// written.
    fn keep_labels(&mut self, site: &mut Site) {
        let now = self.machine.now().0;
        let Some(labels) = self.system.as_ref().and_then(S::labels_in_force) else { return };
        if site.labels.as_ref().is_none_or(|(known, _)| *known != labels) {
            site.labels = Some((labels.clone(), now));
        }
        let daemon = &mut site.daemons[site.here];
        if daemon.note(&site.rules, labels, now + site.rng.below(20)) {
            self.trace.note(format!("host {} notes {:?}", site.here, daemon.noted));
        }
        if daemon.save_due(now) {
            self.trace.note(format!("host {} remembers it: {}", site.here, daemon.memory == daemon.noted));
        }
    }

    /// Ends the time in service: the daemon dies, the power fails, or the pool is closed.
    fn end_service(&mut self, site: &mut Site) -> Verdict {
        if !site.rng.percent(25) {
            return self.die_in_service(site);
        }
        self.drain()?;
        if !self.command_and_wait(Command::Close)? {
            return broken("a pool that is in service cannot be closed");
        }
        site.current = self.full();
        site.completed.clear();
        let now = self.machine.now().0;
        if let Some(labels) = self.system.as_ref().and_then(S::labels_in_force) {
            site.daemons[site.here].note(&site.rules, labels, now);
        }
        site.daemons[site.here].save_due(now);
        self.note_gap(site)?;
        self.collect();
        self.end_bucket();
        self.system = None;
        self.machine.kill();
        self.stats.closes += 1;
        site.held = false;
        self.trace.note("closed");
        if site.rng.percent(30) {
            self.trace.note("POWER CUT after the close");
            self.machine.random_power_cut();
        }
        Ok(())
    }

    fn die_in_service(&mut self, site: &mut Site) -> Verdict {
        site.current = self.full();
        site.completed.clear();
        let now = self.machine.now().0;
        // Just before or just after the memory is written.
        let early = site.rng.percent(50);
        let daemon = &mut site.daemons[site.here];
        if early {
            daemon.hurry(now);
            daemon.save_due(now);
        }
        self.note_gap(site)?;
        let power = site.rng.percent(50);
        self.stop(power, false, None);
        Ok(())
    }

    /// Finds the devices that the host still trusts although they were given up in service. This
    /// known gap ends once the memory could be written.
    fn note_gap(&mut self, site: &mut Site) -> Verdict {
        let full = site.daemons[site.here].full_until;
        if let Some((labels, since)) = site.labels.take()
            && site.daemons[site.here].memory.as_ref().is_none_or(|memory| memory.generation < labels.generation)
            && self.machine.now().0 > if full > since { full + NOTED_LATE } else { since + NOTED }
        {
            return broken(format!("host {} remembers {:?} and not {labels:?}", site.here, site.daemons[site.here].memory));
        }
        let current: BTreeSet<DeviceId> = site.current.iter().filter_map(|device| self.id_of(*device)).collect();
        let daemon = &mut site.daemons[site.here];
        let trusted = daemon.memory.iter().flat_map(|memory| &memory.current).map(|(_, device)| *device);
        daemon.gap = trusted.filter(|device| !current.contains(device)).collect();
        self.trace.note(format!("current: {:?}; remembered {:?}, wrongly {:?}", site.current, daemon.memory, daemon.gap));
        Ok(())
    }

    /// Starts the other host while the pool is in service on this one.
    fn intrude(&mut self, site: &mut Site) -> Verdict {
        let other = 1 - site.here.min(1);
        if other >= site.daemons.len() || !site.rng.percent(30) {
            return Ok(());
        }
        self.settle_down()?;
        self.keep_labels(site);
        let plugged = self.machine.plugged().to_vec();
        let (here, bucket, progress) = (self.system.take(), self.bucket.clone(), self.progress.clone());
        self.trace.note(format!("host {other} starts beside host {}", site.here));
        let mut start = Start::new(other, self.arrivals(site, false, false));
        start.beside = true;
        self.bring_up(site, start)?;
        self.trace.note(format!("host {} goes on", site.here));
        (self.system, self.bucket, self.progress) = (here, bucket, progress);
        self.machine.plug_these(plugged);
        self.keep_labels(site);
        Ok(())
    }

    /// Draws the time at which each device appears, in milliseconds. `all`: all devices of the
    /// pool, at once. `strangers`: also devices left behind, sometimes these alone.
    fn arrivals(&mut self, site: &mut Site, all: bool, strangers: bool) -> Vec<(usize, u64)> {
        let wait = site.rules.wait.as_millis() as u64;
        let now = self.machine.now().0;
        let strangers = strangers && !all && site.rng.percent(40);
        let alone = strangers && !site.strangers.is_empty() && site.rng.percent(30);
        let mut arrivals = Vec::new();
        for device in 0..self.machine.count() {
            if alone && !site.strangers.contains(&device) {
                continue;
            }
            if site.strangers.contains(&device) && !strangers {
                continue;
            }
            if self.system.is_none() && self.machine.broken.contains_key(&device) && (all || site.rng.percent(50)) {
                self.machine.broken.remove(&device);
            }
            if self.machine.broken.contains_key(&device) {
                continue;
            }
            let after = match site.rng.weighted(&[50, 12, 13, 25]) {
                _ if all => 0,
                0 => 0,
                1 => site.rng.below(wait),
                2 => wait + site.rng.below(20_000),
                _ => continue,
            };
            arrivals.push((device, now + after));
        }
        arrivals
    }

    /// Returns the devices that the user keeps after a refusal because two sides were written
    /// separately: one side with a device that its label lists as present.
    fn one_side(&self, devices: BTreeSet<usize>) -> BTreeSet<usize> {
        let found = |devices: &[usize]| self.found_on(devices, &BTreeSet::new());
        let sides = found(&devices.iter().copied().collect::<Vec<_>>()).map(|found| found.sides).unwrap_or_default();
        let side = sides.into_iter().find(|side| found(side).is_some_and(|found| !found.current.is_empty()));
        side.map_or(devices, |side| side.into_iter().collect())
    }

    /// Starts daemons until the pool is in service. After several failed starts, all devices are
    /// present.
    fn start_again(&mut self, site: &mut Site) -> Verdict {
        for starts in 0.. {
            let all = starts >= MOST_STARTS || site.rng.percent(20);
            if starts == 2 * MOST_STARTS {
                // The user leaves out devices that were not in service, and imports the rest.
                let memory = site.daemons[site.here].memory.as_ref();
                let trusts = |device: &usize| self.id_of(*device).is_some_and(|id| memory.is_some_and(|memory| memory.trusts(id)));
                let trusted: BTreeSet<usize> = site.current.iter().copied().filter(trusts).collect();
                let kept = self.one_side(if trusted.is_empty() { site.current.clone() } else { trusted });
                site.strangers = (0..self.machine.count()).filter(|device| !kept.contains(device)).collect();
                (site.split, site.wanted) = (false, Some(site.here));
            } else if starts > 3 * MOST_STARTS {
                return broken(format!("the pool does not come into service in {starts} starts"));
            }
            let others = site.daemons.len() > 1 && !all && site.rng.percent(40);
            let host = site.wanted.filter(|_| all).unwrap_or(if others { 1 - site.here } else { site.here });
            let mut start = Start::new(host, self.arrivals(site, all, true));
            (start.all, start.calm) = (all, starts > 2 * MOST_STARTS);
            self.trace.note(format!("host {host} starts; devices: {:?}; remembered: {:?}", start.arrivals, site.daemons[host].memory));
            if all {
                site.daemons[host].full_until = 0;
            }
            self.bring_up(site, start)?;
            if self.state() == PoolState::Online {
                return Ok(());
            }
            if site.rng.percent(20) {
                self.stop(true, false, None);
            }
        }
        Ok(())
    }
}
