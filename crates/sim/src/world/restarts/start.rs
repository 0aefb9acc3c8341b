//! A start of a daemon: how it takes the pool into service, by the rules of
//! [`millpond_engine::ImportRules`] alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use millpond_block::{DeviceError, MemberId};
use millpond_engine::{
    Decision, DeviceId, DeviceInfo, Evidence, Labelled, LabelsInForce, MemberState, NewestLabel, PoolState, Refusal, Tuning,
};
use millpond_format::{Member, Shape};

use super::daemon::Daemon;
use super::{Begun, Site};
use crate::System;
use crate::config::holder;
use crate::oracle::{Verdict, Violation, broken};
use crate::world::World;
/// How often devices are looked for, in microseconds.
const LOOK: u64 = 2_000_000;
/// A pool that the engine refused is tried again after so long, then after twice as long, in milliseconds.
const FIRST_PAUSE: u64 = 5_000;
/// How long a daemon is watched beyond the time that it waits for devices, in milliseconds.
const WATCHED: u64 = 70_000;
/// Device operations after which an import is cut short.
const SHORT: u64 = 80;
/// A start of a daemon.
pub(super) struct Start {
    host: usize,
    /// When each device is there, in milliseconds.
    pub(super) arrivals: Vec<(usize, u64)>,
    /// All devices of the pool are there.
    pub(super) all: bool,
    /// Nothing more befalls it.
    pub(super) calm: bool,
    /// The pool is in service on another host.
    pub(super) beside: bool,
    /// A device that answers the look at its label, and no import.
    hung: Option<usize>,
    /// Something else befell a device at an import.
    befallen: bool,
}

/// How an import is begun.
struct How {
    degraded: bool,
    newest: Option<NewestLabel>,
    force: bool,
    by_hand: bool,
}

impl Site {
    /// Returns true if an attempt is cut short here.
    fn cuts(&mut self, calm: bool) -> bool {
        !calm && self.rng.percent(5)
    }
}

/// Trouble of a device during an import, for a number of microseconds.
#[derive(Clone, Copy, Debug)]
enum Blow {
    /// It answers nothing; what it has then ends like this.
    Hang(usize, u64, Option<DeviceError>),
    /// It has no room for what was never written.
    Full(usize, u64),
}

/// The result of an attempt.
enum Tried {
    InService,
    /// These devices did not answer.
    Refused(BTreeSet<usize>),
    Died,
}

impl Start {
    pub(super) fn new(host: usize, arrivals: Vec<(usize, u64)>) -> Start {
        Start { host, arrivals, all: false, calm: false, beside: false, hung: None, befallen: false }
    }

    fn there(&self, now: u64) -> Vec<usize> {
        self.arrivals.iter().filter(|(_, at)| *at <= now).map(|(device, _)| *device).collect()
    }
}

impl<S: System> World<S> {
    /// A daemon starts, and takes the pool into service when it may; watched until then, until it dies, or until it has waited for long.
    pub(super) fn bring_up(&mut self, site: &mut Site, mut start: Start) -> Verdict {
        let host = start.host;
        if !start.calm && !start.all && !start.arrivals.is_empty() && site.rng.percent(15) {
            start.hung = Some(site.rng.pick(&start.arrivals).0);
            self.trace.note(format!("device {:?} answers no import", start.hung));
        }
        let mut silent = BTreeSet::new();
        let begun = self.machine.now().0;
        let end = begun + site.rules.wait.as_millis() as u64 + WATCHED;
        let mut seen = None;
        let mut refused: BTreeMap<(Vec<usize>, u64), (u64, u64)> = BTreeMap::new();
        while self.machine.now().0 < end {
            if !start.calm && site.rng.percent(3) {
                return self.die(site, &start);
            }
            let now = self.machine.now().0;
            let there = start.there(now);
            let waited = Duration::from_millis(seen.map_or(0, |seen| now - seen));
            let paused = |found: &Labelled<usize>| refused.get(&(found.devices(), found.generation)).is_some_and(|(until, _)| *until > now);
            let mut found = self.found_on(&there, &BTreeSet::new());
            if !silent.is_empty() && site.rules.leaves_out(waited) {
                let memory = site.daemons[host].memory.as_ref();
                let may = |found: &Labelled<usize>| {
                    let decision = site.rules.decide(memory, Some(&found.evidence(Some([host as u8; 16]))), waited);
                    matches!(decision, Decision::Import | Decision::ImportDegraded { .. })
                };
                found = self.found_on(&there, &silent).filter(|found| may(found) && !paused(found)).or(found);
            }
            let by_hand = found
                .as_ref()
                .filter(|_| site.wanted.is_some_and(|wanted| start.all && wanted == host) || (!start.all && site.rng.percent(4)));
            if let Some(found) = by_hand {
                match self.import_by_hand(site, &mut start, found)? {
                    Tried::InService => return Ok(()),
                    Tried::Died => return self.die(site, &start),
                    Tried::Refused(_) => {}
                }
            } else if let (Some(found), true) = (found, site.daemons[host].memory.is_some()) {
                let now = self.machine.now().0;
                let waited = now - *seen.get_or_insert(now);
                let sight = (found.devices(), found.generation);
                if !paused(&found) {
                    match self.import_by_itself(site, &mut start, &found, waited)? {
                        Some(Tried::InService) => return Ok(()),
                        Some(Tried::Died) => return self.die(site, &start),
                        Some(Tried::Refused(unanswered)) => {
                            silent.retain(|device| !sight.0.contains(device));
                            silent.extend(unanswered);
                            let pause = refused.get(&sight).map_or(FIRST_PAUSE, |(_, pause)| pause * 2);
                            refused.insert(sight, (self.machine.now().0 + pause, pause));
                        }
                        None => {}
                    }
                }
            }
            self.machine.pass(LOOK);
        }
        self.judge_waiting(site, &start)
    }

    /// The pool on some devices, but for those that are left out.
    pub(super) fn found_on(&self, there: &[usize], left_out: &BTreeSet<usize>) -> Option<Labelled<usize>> {
        let looked = there.iter().filter(|device| !left_out.contains(device)).filter_map(|device| self.look_at(*device));
        Labelled::group(looked.collect()).pop()
    }

    /// Tries an automatic import; `None` if the rules decide against it.
    fn import_by_itself(
        &mut self,
        site: &mut Site,
        start: &mut Start,
        found: &Labelled<usize>,
        waited: u64,
    ) -> Result<Option<Tried>, Violation> {
        let daemon = &mut site.daemons[start.host];
        let evidence = found.evidence(Some([start.host as u8; 16]));
        let waited = Duration::from_millis(waited);
        let decision = site.rules.decide(daemon.memory.as_ref(), Some(&evidence), waited);
        let degraded = match decision {
            Decision::Import => false,
            Decision::ImportDegraded { .. } if waited < site.rules.wait => {
                return broken(format!("missing devices are waited for {waited:?} and no longer"));
            }
            Decision::ImportDegraded { .. } => true,
            Decision::WaitUntil(_) | Decision::Refuse(_) => return Ok(None),
        };
        self.trace.note(format!("host {}: {decision:?} of {:?} by {:?}", start.host, found.devices(), daemon.memory));
        if let Some(labels) = site.rules.distrust(daemon.memory.as_ref(), &evidence) {
            if !daemon.save(labels, self.machine.now().0) {
                self.trace.note("it cannot be remembered: not imported");
                return Ok(None);
            }
            daemon.distrusts = true;
        }
        if !start.calm && site.rng.percent(3) {
            return Ok(Some(Tried::Died));
        }
        let newest = Some(evidence.expected(daemon.memory.as_ref()));
        self.attempt(site, start, found, How { degraded, newest, force: false, by_hand: false }).map(Some)
    }

    /// One by the user's word, with whatever is there; by force from a host that is not there any more.
    fn import_by_hand(&mut self, site: &mut Site, start: &mut Start, found: &Labelled<usize>) -> Result<Tried, Violation> {
        // nobody takes what was left behind while the rest is in service
        let degraded = !start.beside && (start.all || site.rng.percent(70));
        let evidence = found.evidence(Some([start.host as u8; 16]));
        let memory = site.daemons[start.host].memory.as_ref();
        if site.rules.check(memory, &evidence) == Err(Refusal::Apart) {
            return Ok(Tried::Refused(BTreeSet::new()));
        }
        if !degraded && (!found.missing.is_empty() || !evidence.is_whole() && site.rules.check(memory, &evidence).is_err()) {
            return Ok(Tried::Refused(BTreeSet::new()));
        }
        self.trace.note(format!("host {}: by hand, degraded {degraded}, of {:?}", start.host, found.devices()));
        if !start.beside {
            (site.wanted, site.held) = (Some(start.host), false);
        }
        self.attempt(site, start, found, How { degraded, newest: Some(evidence.expected(None)), force: !start.beside, by_hand: true })
    }

    fn attempt(&mut self, site: &mut Site, start: &mut Start, found: &Labelled<usize>, how: How) -> Result<Tried, Violation> {
        let (host, calm) = (start.host, start.calm);
        let held = site.held && (host != site.here || start.beside);
        let apart = self.labels_contradict(&found.devices().into_iter().collect());
        let evidence = found.evidence(None);
        if let Some(ended) = self.open_found(site, start, found, &how, &evidence)? {
            return Ok(ended);
        }
        let left_out = self.left_out();
        self.machine.relieve();
        let ids: Vec<DeviceId> = left_out.iter().filter_map(|device| self.id_of(*device)).collect();
        if !how.degraded && evidence.current.iter().any(|(_, device)| ids.contains(device)) {
            return broken(format!("devices are left out that do not answer, of {evidence:?}, although nobody allowed it: {left_out:?}"));
        }
        if apart && left_out.is_empty() {
            return broken(format!("labels of {:?} contradict each other, and they are one pool", found.devices()));
        }
        // what this host gave up without remembering it is not what the other one has
        if held && !how.force && !site.daemons[host].is_wrong_about(&evidence) {
            return broken(format!("host {host} has the pool, which host {} has not closed", site.here));
        }
        let labels = self.settled_labels()?;
        if site.cuts(calm) {
            return Ok(Tried::Died);
        }
        let older = self.is_older(site, found, &evidence, how.by_hand);
        if older && !how.by_hand {
            self.judge_older(site, host, &evidence)?;
        }
        // remembered, and only then served
        let first = site.rules.must_be_remembered(&evidence, how.by_hand, !left_out.is_empty());
        if !site.daemons[host].remember_import(labels, how.by_hand, first, self.machine.now().0) {
            self.trace.note("it cannot be remembered: not served");
            self.stop(false, false, None);
            return Ok(Tried::Refused(BTreeSet::new()));
        }
        // one that is missing is an older state from here on
        let absent = |(member, device): &&(MemberId, DeviceId)| evidence.missing.contains(member) && !evidence.devices.contains(device);
        let daemon = &site.daemons[host];
        if let Some(trusted) = daemon.memory.iter().flat_map(|memory| &memory.current).find(absent) {
            return broken(format!("host {host} serves without {trusted:?}, and remembers that it holds everything: {:?}", daemon.memory));
        }
        // an older state that is remembered counts from now on
        if !older && site.cuts(calm) {
            return Ok(Tried::Died);
        }
        self.take_over(site, host, &evidence, &how, older)?;
        Ok(Tried::InService)
    }

    /// Starts an import, and waits until the pool is open. Returns the end of the attempt if the
    /// engine refuses it, or the host dies.
    fn open_found(
        &mut self,
        site: &mut Site,
        start: &mut Start,
        found: &Labelled<usize>,
        how: &How,
        evidence: &Evidence,
    ) -> Result<Option<Tried>, Violation> {
        let (host, calm) = (start.host, start.calm);
        let geometries = self.machine.plug_these(found.devices());
        let blow = self.befalls_import(site, start, evidence);
        let hangs = matches!(blow, Some((_, Blow::Hang(..))));
        // beside a host that has the pool nothing is taken, cut short or not
        if how.by_hand && !start.beside && (!evidence.is_whole() || how.degraded && hangs) {
            // before: labels may say so even when this host dies at once
            self.forget_elsewhere(site, host);
        }
        let tuning = Tuning {
            degraded: how.degraded,
            newest_label: how.newest.clone(),
            force: how.force,
            holder: Some(holder(host, site.rng.next())),
            ..self.config.tuning.clone()
        };
        self.system = Some(S::import(geometries, tuning, self.machine.now()));
        let operations = if site.cuts(calm) { site.rng.below(SHORT) } else { u64::MAX };
        if let Some((after, blow)) = blow {
            self.wait_open(after.min(operations))?;
            self.strike(blow);
        }
        self.wait_open(operations)?;
        if let PoolState::Faulted(why) = self.state() {
            self.trace.note(format!("refused: {why}"));
            let silent = self.left_out();
            self.stop(false, false, None);
            self.stats.refused_starts += 1;
            return Ok(Some(Tried::Refused(silent)));
        }
        // from here on labels may say that it is the pool, and claims that this host has it
        site.split |= how.by_hand;
        site.claimed.extend((!start.beside).then_some(host));
        if how.by_hand && !start.beside {
            let complete = evidence.held.iter().map(|(device, _)| *device).collect();
            site.begun = Some(Begun { host, complete, generation: evidence.generation });
        }
        if !start.beside && self.state() == PoolState::Online && !self.is_older(site, found, evidence, how.by_hand) {
            site.completed.extend(self.present());
        }
        let died = self.state() != PoolState::Online || site.cuts(calm);
        Ok(died.then_some(Tried::Died))
    }

    /// Returns whether the pool that was just imported has an older state than the one that was in
    /// service last: no device that it uses as complete has everything. A device has everything if
    /// it was current then, or if an import since used it as complete together with such a device:
    /// before the root of an import is written, all its complete devices have all of the log
    /// (INV-LEVEL-1). Nothing was acknowledged since.
    fn is_older(&self, site: &Site, found: &Labelled<usize>, evidence: &Evidence, by_hand: bool) -> bool {
        let everything = |device: &usize| site.current.contains(device) || site.completed.contains(device);
        // one that holds everything and was given up during an import by itself made others whole
        // before: all of it is read. One that is still taking a place may be among those that
        // count, and makes none whole: the labels found do not call it present
        let held = |device: &usize| self.id_of(*device).is_some_and(|id| evidence.held.iter().any(|(known, _)| *known == id));
        let had = !by_hand && found.devices().iter().any(|device| everything(device) && held(device));
        !had && !self.present().iter().any(everything)
    }

    /// Devices that the pool in service uses.
    fn in_use(&self) -> BTreeSet<usize> {
        let pool = self.system.as_ref().and_then(S::pool);
        let usable = |d: &&DeviceInfo| matches!(d.state, MemberState::Present | MemberState::Filling);
        let devices = pool.iter().flat_map(|pool| &pool.devices);
        let members = devices.clone().filter(usable).filter_map(|d| d.slot);
        members.chain(devices.filter_map(|d| d.replacement)).filter_map(|slot| self.machine.at(slot)).collect()
    }

    /// Makes the other hosts forget the pool: the user has to do so if they may find devices that this import left out.
    fn forget_elsewhere(&self, site: &mut Site, host: usize) {
        let others = site.daemons.iter_mut().enumerate().filter(|(other, _)| *other != host);
        others.for_each(|(_, daemon)| *daemon = Daemon::default());
    }

    /// Devices that the import does without, or was refused for, because they did not answer.
    fn left_out(&self) -> BTreeSet<usize> {
        let slots = self.system.as_ref().map_or(&[][..], S::unanswered);
        slots.iter().filter_map(|slot| self.machine.at(*slot)).collect()
    }

    /// A device does not answer an import, for a while or for good, or has no room for what it writes, from some operation on. What it has then ends
    /// with an error at most where another device has everything.
    fn befalls_import(&mut self, site: &mut Site, start: &mut Start, evidence: &Evidence) -> Option<(u64, Blow)> {
        let plugged = self.machine.plugged().to_vec();
        let silence = self.config.tuning.silence_millis * 1000;
        let hung = start.hung.filter(|device| plugged.contains(device));
        if hung.is_none() && (start.calm || start.befallen || plugged.is_empty() || !site.rng.percent(25)) {
            return None;
        }
        let after = if site.rng.percent(30) { 0 } else { site.rng.below(60) };
        if let Some(device) = hung {
            return Some((after, Blow::Hang(device, silence * 1000, None)));
        }
        start.befallen = true;
        let device = *site.rng.pick(&plugged);
        let time = match site.rng.below(3) {
            0 => site.rng.below(silence),
            1 => silence * site.rng.between(2, 20),
            _ => silence * 1000,
        };
        if site.rng.percent(30) {
            return Some((after, Blow::Full(device, time)));
        }
        let late = site.rng.percent(50) && evidence.current.len() > 1;
        let late = late.then(|| *site.rng.pick(&[DeviceError::Gone, DeviceError::Failed(5)]));
        Some((after, Blow::Hang(device, time, late)))
    }

    fn strike(&mut self, blow: Blow) {
        if self.state() != PoolState::Opening {
            return;
        }
        self.trace.note(format!("{blow:?}"));
        match blow {
            Blow::Hang(device, time, late) => self.machine.hang(device, time, late),
            Blow::Full(device, time) => self.machine.fill_up(device, time),
        }
    }

    /// Judges an import of devices none of which were in service last: it is right only if the host
    /// could not know that, or if the user asked for it.
    fn judge_older(&mut self, site: &Site, host: usize, evidence: &Evidence) -> Verdict {
        // the user took this state on this host, which died before the pool was in service. Its
        // labels are on these devices, and its daemon completes the user's import. It may do so
        // only with all devices that the user's import found complete
        let found = |device: &DeviceId| evidence.held.iter().any(|(held, _)| held == device);
        let same = |begun: &Begun| !begun.complete.is_empty() && begun.complete.iter().all(found);
        let labelled = |begun: &&Begun| begun.host == host && evidence.generation > begun.generation;
        if site.begun.as_ref().filter(labelled).is_some_and(same) {
            self.stats.completed_imports += 1;
            self.trace.note("an older state: the user's import of it was interrupted on this host");
            return Ok(());
        }
        if site.daemons[host].is_wrong_about(evidence) {
            self.stats.gaps += 1;
            self.trace.note("an older state: that these devices were given up was not remembered");
            return Ok(());
        }
        broken(format!(
            "host {host} imports an older state by itself, of {evidence:?}, remembering {:?}; current were {:?}",
            site.daemons[host].memory, site.current
        ))
    }

    /// The pool is in service: everything that must be there is there.
    fn take_over(&mut self, site: &mut Site, host: usize, evidence: &Evidence, how: &How, older: bool) -> Verdict {
        self.stats.starts += u64::from(!how.by_hand);
        self.stats.degraded += u64::from(how.degraded && !how.by_hand);
        let plugged = self.in_use();
        site.strangers.retain(|device| !plugged.contains(device));
        if older || site.split {
            site.strangers.extend((0..self.machine.count()).filter(|device| !plugged.contains(device)));
        }
        if older || how.by_hand && !(evidence.is_whole() && self.left_out().is_empty()) {
            self.forget_elsewhere(site, host);
        }
        (site.here, site.held, site.split, site.wanted, site.begun) = (host, true, false, None, None);
        site.claimed.clear();
        site.completed.clear();
        self.trace.note(format!("in service on host {host}; older: {older}"));
        if older {
            self.stats.forks += 1;
            self.oracle.adopt(self.trace.now());
        }
        self.found_again()?;
        let targets = self.oracle.targets();
        self.read_back(targets)?;
        site.current = self.full();
        Ok(())
    }

    /// The daemon dies, or the power fails, before the pool is in service.
    fn die(&mut self, site: &mut Site, start: &Start) -> Verdict {
        let power = !start.beside && site.rng.percent(50);
        self.stop(power, false, None);
        Ok(())
    }

    /// Are there different labels of one generation? The power failed while labels were written,
    /// and the pool went on without the devices that had the new ones: the user leaves those out.
    /// Either these are the newest labels, or the pool has changed its labels since. Then a device
    /// has a label that calls it present and gives up another one, of a generation in which the
    /// pool was without this device already.
    fn labels_contradict(&self, there: &BTreeSet<usize>) -> bool {
        let labels: Vec<_> = there.iter().filter_map(|device| self.look_at(*device)).map(|looked| looked.label).collect();
        let Some(newest) = labels.iter().map(|label| &label.shape).max_by_key(|shape| shape.generation) else { return false };
        labels.iter().any(|label| {
            let (shape, place) = (&label.shape, label.member_in(newest));
            let own = |shape: &Shape| shape.member(place).filter(|member| member.device == label.device).copied();
            let without = own(newest).filter(|member| member.state == MemberState::Down).map(|member| member.down_since);
            let torn = without.is_some_and(|without| {
                let gives_up = |member: &Member| member.state == MemberState::Down && member.down_since >= without;
                own(shape).is_some_and(|member| member.state == MemberState::Present) && shape.members.iter().any(gives_up)
            });
            torn || shape.generation == newest.generation && shape != newest
        })
    }

    /// The daemon has waited for long: rightly so only when something that counts is not there.
    fn judge_waiting(&mut self, site: &Site, start: &Start) -> Verdict {
        let there: BTreeSet<usize> = start.there(self.machine.now().0).into_iter().collect();
        // where the newest label calls none present that is trusted, it is for the user to take: one took the last place that was trusted, and
        // the host died before it was remembered; or it died between memory and labels, and then again with other devices missing
        let (memory, distrusts) = (site.daemons[start.host].memory.as_ref(), site.daemons[start.host].distrusts);
        // one that answers no import is done without
        let hung: BTreeSet<usize> = start.hung.into_iter().collect();
        let found = self.found_on(&start.there(self.machine.now().0), &hung);
        let current: BTreeSet<usize> = site.current.difference(&hung).copied().collect();
        // so it is where the only one that is trusted is a replacement, and a device is missing.
        // The host trusts it alone since it saw a label that gave it its place, and died before the
        // import. A power cut may have lost that label; or the missing device still has it
        let counts = |id: &DeviceId| {
            let found = found.as_ref();
            let among = |devices: &[(DeviceId, u64)]| devices.iter().any(|(device, _)| device == id);
            let whole = |found: &Labelled<usize>| among(&found.held) || found.missing.is_empty() && among(&found.taking);
            found.is_some_and(|found| if distrusts { whole(found) } else { found.present.contains(id) })
        };
        let ids = current.iter().filter_map(|device| self.id_of(*device)).filter(counts);
        let trusted = ids.into_iter().any(|id| memory.is_some_and(|memory| memory.trusts(id)));
        let enough = trusted && current.is_subset(&there) && site.strangers.is_disjoint(&there);
        if enough
            && !self.labels_contradict(&there)
            && start.host == site.here
            && !start.beside
            && !site.split
            && site.wanted.is_none()
            && site.claimed.iter().all(|claimed| *claimed == start.host)
            && self.machine.now().0 >= site.daemons[start.host].full_until + WATCHED
        {
            return broken(format!(
                "host {} does not import the pool although all devices that count are there: {there:?}, remembering {:?}",
                start.host, site.daemons[start.host].memory
            ));
        }
        Ok(())
    }

    /// Returns the device id in a device's label.
    pub(super) fn id_of(&self, device: usize) -> Option<DeviceId> {
        self.look_at(device).map(|looked| looked.label.device)
    }

    /// Returns the devices with all data, as listed by the pool. A failed device that is being
    /// replaced is listed until the labels say otherwise.
    pub(super) fn present(&self) -> BTreeSet<usize> {
        let pool = self.system.as_ref().and_then(S::pool);
        let present = |d: &millpond_engine::DeviceInfo| d.state == MemberState::Present && d.trouble.is_none() && !d.class.is_auxiliary();
        pool.iter().flat_map(|pool| &pool.devices).filter(|d| present(d)).filter_map(|d| self.machine.at(d.slot?)).collect()
    }

    /// Runs until the labels are on all devices; returns them.
    pub(super) fn settled_labels(&mut self) -> Result<LabelsInForce, crate::oracle::Violation> {
        for _ in 0..crate::world::SETTLING {
            if let Some(labels) = self.system.as_ref().and_then(S::labels_in_force) {
                return Ok(labels);
            }
            let again = self.turn()?;
            if !self.finish_one()? {
                self.machine.pass(if again { crate::world::BUSY_STEP } else { crate::world::IDLE_STEP });
            }
        }
        broken("labels are not written")
    }

    /// Returns the same and the replacements of those devices: once a replacement has all data,
    /// labels may say so.
    pub(super) fn full(&self) -> BTreeSet<usize> {
        let pool = self.system.as_ref().and_then(S::pool);
        let present = |d: &&millpond_engine::DeviceInfo| d.state == MemberState::Present;
        let replacements = pool.iter().flat_map(|pool| &pool.devices).filter(present).filter_map(|d| self.machine.at(d.replacement?));
        self.present().into_iter().chain(replacements).collect()
    }
}
