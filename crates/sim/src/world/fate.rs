//! Device faults and changes in worlds whose devices fail: devices fail, are away, come back,
//! damage their content, are replaced and added.
//!
//! *Budget*: with `copies` copies, at most `copies - 1` members are bad at any moment: their device
//! fails, is away or was damaged, or the pool itself does not list them as present. A member listed
//! as present is trusted. Within the budget nothing may be lost and no request may fail.

mod damage;

use std::collections::{BTreeMap, BTreeSet};

use millpond_block::DeviceError;
use millpond_engine::{
    Class, Command, Fault, GroupSpec, JobKind, Layout, MemberState, Missing, NewDevice, OpenErrorKind, PoolState, Unlabelled,
};

use super::World;
use super::spares::Spares;
use crate::config::Mirrored;
use crate::disk::SimDevice;
use crate::machine::Sick;
use crate::oracle::{Verdict, Violation, broken};
use crate::rng::Rng;
use crate::system::System;

/// Maximum number of devices replaced in one world, and of groups added.
const MOST_CHANGES: (u32, u32) = (6, 2);
/// Maximum number of removals in one world.
const MOST_REMOVALS: u32 = 6;
/// Maximum number of trials in one world, besides the last.
const MOST_TRIALS: u32 = 4;
/// Maximum number of devices that imports may refuse one after the other.
const MOST_REFUSALS: usize = 40;
/// Seconds of simulated time within which all jobs must end.
const JOB_PATIENCE: u32 = 200;

/// A member, as listed by the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    member: u16,
    state: MemberState,
    /// Its device, as the machine's index.
    pub(super) device: Option<usize>,
    pub(super) twin: Option<usize>,
    /// The device or its replacement is being resilvered and does not have everything yet.
    pub(super) filling: bool,
    /// Its class is special: map nodes and small writes.
    special: bool,
}

/// The state and faults of the member devices.
#[derive(Clone, Debug)]
pub(crate) struct Fate {
    rng: Rng,
    pub(super) chance: u64,
    copies: usize,
    damage: bool,
    /// All groups are mirrors, which a scrub repairs completely.
    mirrors: bool,
    /// A device was given up without a cause; the text of the finding.
    unjust: Option<String>,
    /// The members, as last listed.
    pub(super) known: Vec<Known>,
    /// The device last seen for each member.
    homes: BTreeMap<u16, usize>,
    /// Some job is running.
    jobs: bool,
    /// Devices that are not plugged in.
    away: BTreeSet<usize>,
    /// Devices that failed for good.
    lost: BTreeSet<usize>,
    /// Devices that were added, removed or replaced, and that an import may therefore refuse.
    doubtful: BTreeSet<usize>,
    /// Devices of added groups that may not belong to the pool yet.
    adding: BTreeSet<usize>,
    /// Devices that an import has refused.
    refused: BTreeSet<usize>,
    /// The device with damaged content.
    spoilt: Option<usize>,
    /// Devices that may have left the pool by a removal that was still running when last seen.
    leaving: BTreeSet<usize>,
    /// Separate RNG for removals, so that worlds without them replay unchanged.
    removals: Option<Rng>,
    /// Separate RNG for jobs.
    pub(super) work: Option<Rng>,
    /// Separate RNG for hangs and lack of space.
    pub(super) answers: Option<Rng>,
    /// The spares, in worlds with spares.
    pub(super) spares: Option<Spares>,
    removed: u32,
    replaced: u32,
    added: u32,
    trials: u32,
    /// An import may give up the special devices for good.
    rebuild: bool,
}

impl Fate {
    pub(super) fn new(mirrored: &Mirrored, mut rng: Rng) -> Fate {
        Fate {
            removals: mirrored.removals.then(|| rng.fork(1)),
            work: mirrored.jobs.then(|| rng.fork(2)),
            answers: mirrored.hangs.then(|| rng.fork(4)),
            spares: (mirrored.spares > 0).then(|| Spares::new(rng.fork(3))),
            rng,
            chance: mirrored.fate,
            copies: mirrored.copies,
            damage: mirrored.damage,
            mirrors: mirrored.groups.iter().all(|group| matches!(group.layout, Layout::Mirror { .. })),
            unjust: None,
            known: Vec::new(),
            homes: BTreeMap::new(),
            jobs: false,
            away: BTreeSet::new(),
            lost: BTreeSet::new(),
            doubtful: BTreeSet::new(),
            adding: BTreeSet::new(),
            refused: BTreeSet::new(),
            spoilt: None,
            leaving: BTreeSet::new(),
            removed: 0,
            replaced: 0,
            added: 0,
            trials: 0,
            rebuild: false,
        }
    }

    /// The same state with another future.
    pub(super) fn fork(&self, label: u64) -> Fate {
        Fate { rng: Rng::new(label), ..self.clone() }
    }

    /// Returns whether there is damage that a scrub can repair completely. Parity is compared only
    /// where all of its data is present.
    fn is_mendable(&self) -> bool {
        let all = self.known.iter().all(|k| k.state == MemberState::Present && k.device.is_some_and(|d| !self.away.contains(&d)));
        self.has_damage() && (self.mirrors || all)
    }

    /// Records that an import may refuse a device, because it is being removed or added.
    pub(super) fn doubt(&mut self, device: usize) {
        self.doubtful.insert(device);
    }

    /// Returns whether a device was damaged.
    pub(super) fn has_damage(&self) -> bool {
        self.spoilt.is_some()
    }

    /// Returns the members that are whole and plugged in, and how many of them the pool can lose.
    pub(super) fn spare(&self, failing: impl Fn(usize) -> bool) -> (Vec<Known>, usize) {
        let good = |k: &&Known| {
            k.state == MemberState::Present
                && k.device.is_some_and(|d| !failing(d) && !self.away.contains(&d) && !self.refused.contains(&d) && self.spoilt != Some(d))
        };
        let whole: Vec<Known> = self.known.iter().filter(good).copied().collect();
        let spoiled = self.known.len() - whole.len();
        (whole, (self.copies - 1).saturating_sub(spoiled))
    }
}

impl<S: System> World<S> {
    /// Learns the members from the pool's listing.
    pub(super) fn observe(&mut self) {
        let (Some(fate), Some(pool)) = (&mut self.fate, self.system.as_ref().and_then(S::pool)) else { return };
        if pool.state == PoolState::Opening {
            return;
        }
        let machine = &self.machine;
        let known = |d: &millpond_engine::DeviceInfo| Known {
            member: d.member,
            state: d.state,
            device: d.slot.and_then(|slot| machine.at(slot)),
            twin: d.successor.and_then(|slot| machine.at(slot)),
            filling: pool.jobs.iter().any(|job| job.member == Some(d.member) && job.done < job.total),
            special: d.class == Class::Special,
        };
        let needed = pool.devices.iter().filter(|device| !device.class.is_aside());
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
        let used = |d: &usize| fate.known.iter().any(|k| k.device == Some(*d) || k.twin == Some(*d));
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

    /// Injects a device fault or changes the devices, sometimes.
    pub(super) fn befall(&mut self) -> Verdict {
        self.take_out();
        self.work();
        self.befall_spares();
        self.befall_answers();
        let Some(fate) = &mut self.fate else { return Ok(()) };
        let chance = fate.chance;
        if fate.rng.below(1000) >= chance || self.state() != PoolState::Online {
            return Ok(());
        }
        self.observe();
        self.judge_losses()?;
        let World { fate: Some(fate), machine, .. } = self else { return Ok(()) };
        let (whole, spare) = fate.spare(|d| machine.is_bad(d));
        let spoilt = fate.spoilt.is_some();
        match fate.rng.weighted(&[30, 15, 30, 8, 12, 10]) {
            0 if spare > 0 && !spoilt => {
                let device = fate.rng.pick(&whole).device;
                self.fail(device);
            }
            1 => {
                // A replacement that has everything may be the member before the pool lists it.
                let may_fail = |k: &&Known| k.filling || (spare > 0 && !spoilt);
                let twins: Vec<usize> = fate.known.iter().filter(may_fail).filter_map(|k| k.twin).filter(|d| !machine.is_bad(*d)).collect();
                if !twins.is_empty() {
                    let device = *fate.rng.pick(&twins);
                    self.fail(Some(device));
                }
            }
            2 if !spoilt && fate.replaced < MOST_CHANGES.0 && !fate.known.is_empty() => self.replace(),
            3 if fate.added < MOST_CHANGES.1 => self.add(),
            4 if fate.damage => self.damage(&whole, spare),
            5 if fate.trials < MOST_TRIALS => return self.trial(),
            _ => {}
        }
        Ok(())
    }

    /// From now on every operation on the device fails.
    pub(super) fn fail(&mut self, device: Option<usize>) {
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

    /// Replaces a member by a new device.
    fn replace(&mut self) {
        let Some(fate) = &mut self.fate else { return };
        let known = *fate.rng.pick(&fate.known);
        if known.twin.is_some() {
            return;
        }
        fate.replaced += 1;
        // The size of an absent device is unknown: the largest size is enough for any.
        let like = known.device.and_then(|d| self.machine.geometry(d)).map_or(0, |g| g.size);
        let least = if like > 0 { like } else { self.config.devices.iter().map(|(g, _)| g.size).max().unwrap_or(0) };
        let more = *fate.rng.pick(&[0, 0, 1 << 20]);
        let device = self.new_device(least + more);
        let slot = device.slot;
        if let Some(fate) = &mut self.fate {
            let old = fate.homes.get(&known.member).copied();
            fate.doubtful.extend(old.into_iter().chain(self.machine.at(slot)));
            // A spare may be the member by the time that the command runs.
            let spares: Vec<usize> = fate.spares.iter().flat_map(|spares| spares.devices()).copied().collect();
            fate.doubtful.extend(spares);
        }
        self.stats.changes += 1;
        self.command(Command::Replace { member: known.member, device }, vec![], vec![]);
    }

    /// Adds a group.
    fn add(&mut self) {
        let Some(fate) = &mut self.fate else { return };
        fate.added += 1;
        let copies = fate.copies;
        let layout = if copies > 1 { Layout::Mirror { copies: copies as u16 } } else { Layout::Linear };
        let size = (1 << 20) * 2 + self.config.extent * fate.rng.between(8, 40);
        let devices: Vec<NewDevice> = (0..copies).map(|_| self.new_device(size.next_multiple_of(1 << 20))).collect();
        let new: Vec<usize> = devices.iter().filter_map(|d| self.machine.at(d.slot)).collect();
        if let Some(fate) = &mut self.fate {
            fate.doubtful.extend(&new);
            fate.adding.extend(new);
        }
        self.stats.changes += 1;
        let groups = vec![GroupSpec { class: Class::Data, layout, devices: None }];
        self.command(Command::AddDevices { groups, devices }, vec![], vec![]);
    }

    /// Removes a member, or stops a removal.
    fn take_out(&mut self) {
        let Some(fate) = &mut self.fate else { return };
        let chance = fate.chance;
        let due = fate.removals.as_mut().is_some_and(|rng| rng.below(1000) < chance) && fate.removed < MOST_REMOVALS;
        if !due || self.state() != PoolState::Online {
            return;
        }
        self.observe();
        let Some(Fate { removals: Some(rng), known, leaving, removed, copies, .. }) = &mut self.fate else { return };
        if known.is_empty() {
            return;
        }
        if !leaving.is_empty() && rng.percent(30) {
            self.command(Command::StopRemoving, vec![], vec![]);
            return;
        }
        let picked = *rng.pick(known);
        let dry_run = rng.percent(10);
        *removed += u32::from(!dry_run);
        if !dry_run {
            // Removing one side of a mirror may remove others with it.
            let devices = known.iter().filter(|k| *copies > 1 || k.member == picked.member).filter_map(|k| k.device);
            leaving.extend(devices);
            self.stats.changes += 1;
        }
        self.command(Command::Remove { member: picked.member, dry_run }, vec![], vec![]);
    }

    pub(super) fn new_device(&mut self, size: u64) -> NewDevice {
        let Some((mut geometry, profile)) = self.config.devices.first().copied() else { unreachable!("a pool has devices") };
        geometry.size = size;
        let noise = self.fate.as_mut().map_or(0, |fate| fate.rng.next());
        let slot = self.machine.add(SimDevice::new(geometry, profile, noise));
        NewDevice { slot, geometry }
    }

    /// Begins to damage one device, or damages it further. Begins only while all members are whole,
    /// because a resilver would spread the damage.
    fn damage(&mut self, whole: &[Known], spare: usize) {
        let World { fate: Some(fate), machine, .. } = self else { return };
        let untouched = !fate.jobs && whole.len() == fate.known.len() && machine.bad().is_empty() && fate.away.is_empty();
        if fate.spoilt.is_none() && untouched && spare > 0 {
            let device = fate.rng.pick(whole).device;
            let chances = *fate.rng.pick(&[[0, 0, 0], [100, 0, 0], [0, 30, 0], [0, 0, 30], [30, 10, 10]]);
            fate.spoilt = device;
            // No more replacements: a resilver would spread the damage.
            fate.replaced = MOST_CHANGES.0;
            machine.sick = device.map(|device| Sick { device, chances, rng: Rng::new(fate.rng.next()) });
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

    /// Between two eras, some devices come back and others go away.
    pub(super) fn come_and_go(&mut self) {
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

    /// No device may be given up without a cause of its own.
    pub(super) fn judge_losses(&mut self) -> Verdict {
        self.fate.as_mut().and_then(|fate| fate.unjust.take()).map_or(Ok(()), broken)
    }

    /// Returns whether operations are in flight on a device that the pool uses.
    pub(super) fn uses_devices(&self) -> bool {
        let busy = self.machine.busy();
        let Some(fate) = &self.fate else { return !busy.is_empty() };
        let used = |k: &Known| matches!(k.state, MemberState::Present | MemberState::Filling);
        fate.known.iter().any(|k| (used(k) && k.device.is_some_and(|d| busy.contains(&d))) || k.twin.is_some_and(|d| busy.contains(&d)))
    }

    /// Plugs in the present devices; returns their geometries.
    pub(super) fn devices_there(&mut self) -> Vec<millpond_block::DeviceGeometry> {
        let cached: Vec<usize> = (0..self.machine.count()).filter(|d| self.cache_is_away(*d)).collect();
        let World { fate: Some(fate), machine, .. } = self else { return self.plug_with_caches() };
        let out = |d: &usize| fate.away.contains(d) || fate.refused.contains(d) || machine.broken.contains_key(d);
        let mut there: Vec<usize> = (0..machine.count()).filter(|d| !out(d) && !cached.contains(d)).collect();
        fate.rng.shuffle(&mut there);
        self.trace.note(format!("plugged in: {there:?}"));
        machine.plug_these(there)
    }

    /// Imports. Leaves out devices that the import asks to leave out, where that may be right.
    pub(super) fn open_what_is_there(&mut self) -> Verdict {
        for _ in 0..MOST_REFUSALS {
            self.import(u64::MAX)?;
            let PoolState::Faulted(reason) = self.state() else { break };
            let reason = reason.clone();
            let kind = if let Fault::Open(error) = &reason { Some(&error.kind) } else { None };
            if let Some(OpenErrorKind::OutOfOrder(step)) = kind {
                return broken(format!("a step of the import ran too early: {step}"));
            }
            let again = match kind {
                Some(OpenErrorKind::NoLabel { device, why: Unlabelled::NotAPool(_) }) => self.leaves_rotten_out(*device),
                Some(OpenErrorKind::NoLabel { device, why: Unlabelled::Unreadable(_) }) => self.fails_to_read(*device),
                _ => false,
            };
            if again {
                self.trace.note(format!("the import is tried again: {reason}"));
                self.stop(false, false, None);
                continue;
            }
            let device = kind.and_then(OpenErrorKind::device_to_leave_out).and_then(|slot| self.machine.at(slot));
            let plugged = self.machine.plugged().to_vec();
            let apart =
                matches!(kind, Some(OpenErrorKind::WrittenApart { .. })) && device.is_some_and(|device| self.is_apart(device, &plugged));
            let Some(fate) = &mut self.fate else { break };
            let may_go = |d: &usize| apart || fate.doubtful.contains(d) || fate.leaving.contains(d);
            let Some(device) = device.filter(may_go) else {
                // Devices of a group being added: either all have labels that the others follow, or
                // the group is left out.
                if fate.adding.is_empty() {
                    break;
                }
                let adding = std::mem::take(&mut fate.adding);
                self.trace.note(format!("devices {adding:?} are left out: {reason}"));
                fate.refused.extend(adding);
                self.stop(false, false, None);
                continue;
            };
            let side = fate.side_to_leave_out(device, &plugged, kind);
            self.trace.note(format!("devices {side:?} are left out: {reason}"));
            fate.refused.extend(side);
            self.stop(false, false, None);
        }
        self.observe();
        Ok(())
    }

    /// Draws whether to run a trial, with this probability in percent.
    pub(super) fn rng_of_trials(&mut self, percent: u64) -> bool {
        self.fate.as_mut().is_some_and(|fate| fate.rng.percent(percent))
    }

    /// In a fork of the world, takes away as many devices as the pool can lose. Everything must
    /// still be readable.
    pub(super) fn trial(&mut self) -> Verdict {
        self.observe();
        if self.state() != PoolState::Online {
            return Ok(());
        }
        // Labels being written may already name a device whose place was taken, and not the device
        // that the pool lists.
        if self.system.as_ref().and_then(S::labels_in_force).is_none() {
            return Ok(());
        }
        let World { fate: Some(fate), machine, .. } = self else { return Ok(()) };
        let (mut whole, spare) = fate.spare(|d| machine.is_bad(d));
        if spare == 0 {
            return Ok(());
        }
        fate.trials += 1;
        fate.rng.shuffle(&mut whole);
        let mut taken: BTreeSet<usize> = whole.iter().take(spare).filter_map(|k| k.device).collect();
        taken.extend(machine.bad());
        let (label, power) = (fate.rng.next(), fate.rng.percent(50));
        self.trace.note(format!("before a trial: {:?}", fate.known));
        let mut fork = self.fork(label & 0xff);
        fork.trace.print = self.trace.print;
        let verdict = fork.do_without(taken, power);
        self.stats.trials += 1;
        self.stats.add(&Self::without_operations(&fork));
        verdict.map_err(|Violation(what)| {
            let note = format!("{what} (in a trial without copies)");
            std::mem::swap(&mut self.trace, &mut fork.trace);
            Violation(note)
        })
    }

    pub(super) fn without_operations(fork: &World<S>) -> super::Stats {
        super::Stats { operations: 0, ..fork.stats }
    }

    fn do_without(&mut self, taken: BTreeSet<usize>, power: bool) -> Verdict {
        self.trace.note(format!("trial without devices {taken:?}"));
        self.stop(power, false, None);
        if let Some(fate) = &mut self.fate {
            fate.away.extend(taken);
            fate.chance = 0;
        }
        self.machine.broken.clear();
        self.machine.settle();
        self.do_without_cache();
        self.import_and_verify()?;
        let targets = self.oracle.targets();
        self.read_back(targets)?;
        self.finish_jobs()?;
        self.audit()
    }

    /// In a fork of the world, takes all special devices away for good. A rebuild must recover
    /// everything, because map data has a copy on normal devices. Only while those are all whole,
    /// because the copy is on one of them.
    pub(super) fn lose_special(&mut self) -> Verdict {
        self.observe();
        let World { fate: Some(fate), machine, .. } = self else { return Ok(()) };
        let (whole, _) = fate.spare(|d| machine.is_bad(d));
        let missing = fate.known.iter().any(|k| !k.special && whole.iter().all(|w| w.member != k.member));
        let special: BTreeSet<usize> = fate.known.iter().filter(|k| k.special).flat_map(|k| [k.device, k.twin]).flatten().collect();
        if special.is_empty() || missing || self.state() != PoolState::Online {
            return Ok(());
        }
        let World { fate: Some(fate), machine, .. } = self else { return Ok(()) };
        let taken: BTreeSet<usize> = special.into_iter().chain(machine.bad()).collect();
        let (label, power) = (fate.rng.next(), fate.rng.percent(70));
        let mut fork = self.fork(label & 0xff);
        fork.trace.print = self.trace.print;
        fork.fate.iter_mut().for_each(|fate| fate.rebuild = true);
        let verdict = fork.do_without(taken, power).and_then(|()| fork.without_the_word());
        self.stats.trials += 1;
        self.stats.add(&Self::without_operations(&fork));
        verdict.map_err(|Violation(what)| {
            std::mem::swap(&mut self.trace, &mut fork.trace);
            Violation(format!("{what} (in a rebuild without special devices)"))
        })
    }

    /// A rebuilt pool is like any other: the next import needs no option.
    fn without_the_word(&mut self) -> Verdict {
        if let Some(fate) = &mut self.fate {
            fate.rebuild = false;
        }
        self.stop(true, false, None);
        self.import_and_verify()?;
        self.audit()
    }

    /// Returns whether the pool refused to open for lack of special devices, and they may be given
    /// up.
    pub(super) fn gives_up_special(&self) -> bool {
        let lacks_special = |kind: &OpenErrorKind| matches!(kind, OpenErrorKind::MemberMissing { need: Missing::Special, .. });
        let refused = matches!(self.state(), PoolState::Faulted(Fault::Open(error)) if lacks_special(&error.kind));
        refused && self.fate.as_ref().is_some_and(|fate| fate.rebuild)
    }

    /// Waits until all jobs have ended.
    pub(super) fn finish_jobs(&mut self) -> Verdict {
        self.hurry_jobs()?;
        for waited in 0..JOB_PATIENCE {
            self.settle_down()?;
            self.observe();
            if self.fate.as_ref().is_none_or(|fate| !fate.jobs) {
                return Ok(());
            }
            // A wipe waits for absent devices and for free space, as long as it takes.
            let jobs = self.system.as_ref().and_then(S::pool).map(|pool| pool.jobs).unwrap_or_default();
            if waited >= JOB_PATIENCE / 2 && jobs.iter().all(|job| job.kind == JobKind::Wipe) {
                self.command_and_wait(Command::StopWipe)?;
            }
            self.machine.pass(1_000_000);
        }
        let jobs = self.system.as_ref().and_then(S::pool).map(|pool| pool.jobs);
        broken(format!("jobs do not come to an end: {jobs:?}"))
    }
}
