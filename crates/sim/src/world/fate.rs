//! Device faults and changes in worlds whose devices fail: devices fail, are away, come back,
//! damage their content, are replaced and added.
//!
//! *Budget*: with `copies` copies, at most `copies - 1` members are bad at any moment: their device
//! fails, is away or was damaged, or the pool itself does not list them as present. A member listed
//! as present is trusted. Within the budget nothing may be lost and no request may fail.

mod damage;
mod devices;
mod open;

use std::collections::{BTreeMap, BTreeSet};

use millpond_block::MemberId;
use millpond_engine::{DeviceCommand, GroupSpec, Layout, MemberState, NewDevice, PoolState};

use super::World;
use super::spares::Spares;
use crate::config::Mirrored;
use crate::oracle::{Verdict, Violation};
use crate::rng::Rng;
use crate::system::System;

/// Maximum number of devices replaced in one world, and of groups added.
const MOST_CHANGES: (u32, u32) = (6, 2);
/// Maximum number of removals in one world.
const MOST_REMOVALS: u32 = 6;
/// Maximum number of trials in one world, besides the last.
const MOST_TRIALS: u32 = 4;

/// Seconds of simulated time within which all jobs must end.
pub(crate) const JOB_PATIENCE: u32 = 200;

/// A member, as listed by the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    member: MemberId,
    state: MemberState,
    /// Its device, as the machine's index.
    pub(super) device: Option<usize>,
    pub(super) replacement: Option<usize>,
    /// The device or its replacement is being resilvered and does not have everything yet.
    pub(super) filling: bool,
    /// Its class is special: map nodes and small writes.
    special: bool,
}

/// The state and faults of the member devices.
#[derive(Clone, Debug)]
pub(crate) struct DeviceFaults {
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
    homes: BTreeMap<MemberId, usize>,
    /// Some job is running.
    pub(crate) jobs: bool,
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

impl DeviceFaults {
    pub(super) fn new(mirrored: &Mirrored, mut rng: Rng) -> DeviceFaults {
        DeviceFaults {
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
    pub(super) fn fork(&self, label: u64) -> DeviceFaults {
        DeviceFaults { rng: Rng::new(label), ..self.clone() }
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
    /// Injects a device fault or changes the devices, sometimes.
    pub(super) fn inject(&mut self) -> Verdict {
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
                let replacements: Vec<usize> =
                    fate.known.iter().filter(may_fail).filter_map(|k| k.replacement).filter(|d| !machine.is_bad(*d)).collect();
                if !replacements.is_empty() {
                    let device = *fate.rng.pick(&replacements);
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

    /// Replaces a member by a new device.
    fn replace(&mut self) {
        let Some(fate) = &mut self.fate else { return };
        let known = *fate.rng.pick(&fate.known);
        if known.replacement.is_some() {
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
        self.command(DeviceCommand::Replace { member: known.member, device }, vec![], vec![]);
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
        let groups = vec![GroupSpec { class: self.config.local_class(), layout, devices: None }];
        self.command(DeviceCommand::AddDevices { groups, devices }, vec![], vec![]);
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
        let Some(DeviceFaults { removals: Some(rng), known, leaving, removed, copies, .. }) = &mut self.fate else { return };
        if known.is_empty() {
            return;
        }
        if !leaving.is_empty() && rng.percent(30) {
            self.command(DeviceCommand::StopRemoving, vec![], vec![]);
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
        self.command(DeviceCommand::Remove { member: picked.member, dry_run }, vec![], vec![]);
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
        let special: BTreeSet<usize> = fate.known.iter().filter(|k| k.special).flat_map(|k| [k.device, k.replacement]).flatten().collect();
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
}
