//! Whether a daemon imports a pool by itself at its start: pure functions of what its host remembers, what was found, and the time waited.
//!
//! INV-MEMORY-1: an automatic import never shows an older state than one that was in service on this host before. What is remembered says
//! which devices held everything that was acknowledged ([`LabelsInForce`]). A device that was absent since then, or was given up, may say of itself that
//! it is whole; its label cannot know better. So when devices are missing, the newest label found must be on a device that is remembered as
//! current, and be no older than what is remembered; or it calls such a device present, which was found with a label that is no older.
//! Where nothing is missing and another host had the pool last, it may be on others: every device may
//! have been replaced there. That rule is off for good once devices were left behind here ([`LabelsInForce::left_behind`]): another host
//! may have made a
//! whole pool of those, without what was written here since. By the user's word (`pool import --degraded`) anything goes; what comes into
//! service then is
//! what is remembered from there on.
//!
//! A host that takes a pool writes first claims on all devices, and then second ones, which count. When it dies in between, it may find
//! its own second claim on one half, and import that half by itself. On the other half its first claim is the newest
//! ([`Evidence::taker`]): no other host imports that half by itself.
//!
//! Devices that were written to apart from each other are never joined ([`Evidence::apart`]): the user says which of them are the pool.
//!
//! The memory is durable before an import with devices missing writes labels, for another start may find those devices alone, before it serves
//! anybody, and follows each later change of the labels.

mod labelled;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::time::Duration;

use millpond_format::DeviceId;

use crate::{LabelsInForce, NewestLabel, Planted};
pub use labelled::{Labelled, Looked};

/// The state of a pool according to the labels that were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Generation of the newest label.
    pub generation: u64,
    /// Devices that have a label of this generation.
    pub newest_on: Vec<DeviceId>,
    /// Members and devices that have one, and that it calls present.
    pub current: Vec<(u16, DeviceId)>,
    /// Devices found that the newest label calls present members, and the generation of their own.
    pub held: Vec<(DeviceId, u64)>,
    /// Devices that the newest label calls present members, whatever label they have themselves.
    pub present: Vec<DeviceId>,
    /// Devices that the newest label knows as members, present or not, whatever label they have themselves.
    pub known: Vec<DeviceId>,
    /// All devices found.
    pub devices: Vec<DeviceId>,
    /// Labels contradict each other: the devices have no common history.
    pub apart: bool,
    /// Members that were not found, and were there when the newest label was written.
    pub missing: Vec<u16>,
    /// Members that were not found, and that the newest label does without.
    pub down: Vec<u16>,
    /// Another host that had the pool last.
    pub other_host: Option<String>,
    /// Another host that began to take it after that. It died on the way, or took it on devices that are missing.
    pub taker: Option<String>,
}

/// The decision about a remembered pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Import it: nothing is missing that was there when the newest label was written.
    Import,
    /// Import it without these members, which is for the engine to judge: the time to wait for them is over.
    ImportDegraded {
        /// Members that are missing.
        without: Vec<u16>,
    },
    /// Wait for missing members until so much time has passed since its first device was found.
    WaitUntil(Duration),
    /// Do not import what was found; more devices may change that.
    Refuse(Refusal),
}

/// Why a pool is not imported with the devices that were found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No device of it was found.
    NothingFound,
    /// All labels found are older than what was in force here.
    Older {
        /// Generation found.
        found: u64,
        /// Generation remembered.
        remembered: u64,
        /// Members that were current and were not found.
        wanted: Vec<u16>,
    },
    /// The newest label found is on a device that this host did without, or does not know.
    NotCurrent {
        /// Generation remembered.
        remembered: u64,
        /// Members that were current and were not found.
        wanted: Vec<u16>,
    },
    /// Labels contradict each other: the devices were written to apart, or a power cut left different labels of one generation.
    Apart,
    /// Another host had the pool last, or began to take it, and may have done without what was found.
    OtherHost {
        /// That host.
        name: String,
        /// Members that are missing.
        missing: Vec<u16>,
    },
}

/// The rules that a daemon follows.
#[derive(Clone, Copy, Debug, Default)]
pub struct ImportRules {
    /// For how long missing devices are waited for.
    pub wait: Duration,
    /// A rule that is broken on purpose, as in [`Tuning`](crate::Tuning).
    pub planted: Option<Planted>,
}

impl ImportRules {
    /// Is a remembered pool imported? `waited`: since the first of its devices was found.
    pub fn decide(&self, remembered: Option<&LabelsInForce>, found: Option<&Evidence>, waited: Duration) -> Decision {
        let Some(found) = found else { return Decision::Refuse(Refusal::NothingFound) };
        if let Err(refusal) = self.check(remembered, found) {
            return Decision::Refuse(refusal);
        }
        let waits = waited < self.wait && !self.breaks(Planted::WaitForNobody);
        match (found.other_host.as_ref().or(found.taker.as_ref()), found.missing.is_empty()) {
            (_, true) => Decision::Import,
            (Some(name), false) => Decision::Refuse(Refusal::OtherHost { name: name.clone(), missing: found.missing.clone() }),
            (None, false) if waits => Decision::WaitUntil(self.wait),
            (None, false) => Decision::ImportDegraded { without: found.missing.clone() },
        }
    }

    /// Does a device that did not answer an import count as missing? Before, the import is tried again with it.
    pub fn leaves_out(&self, waited: Duration) -> bool {
        waited >= self.wait
    }

    /// Is what was found one state of the pool, and at least as new as what is remembered (INV-MEMORY-1)?
    ///
    /// # Errors
    /// Why it may be older, or is none.
    pub fn check(&self, remembered: Option<&LabelsInForce>, found: &Evidence) -> Result<(), Refusal> {
        if found.apart && !self.breaks(Planted::JoinApart) {
            return Err(Refusal::Apart);
        }
        let Some(remembered) = remembered else { return Ok(()) };
        let absent = remembered.current.iter().filter(|(_, device)| !found.devices.contains(device));
        let wanted: Vec<u16> = absent.map(|(member, _)| *member).collect();
        if found.generation < remembered.generation {
            return Err(Refusal::Older { found: found.generation, remembered: remembered.generation, wanted });
        }
        // a crash while labels are written may leave the newest on a device alone that is being filled: a trusted device that it calls
        // present, and that is there with the label before, is up to date. Had it been given up since, a newer label would say so, on the
        // one that is being filled too; or a device that holds everything, and that the newest label calls present, would be missing
        let held = |(device, generation): &(DeviceId, u64)| remembered.trusts(*device) && *generation >= remembered.generation;
        let current = found.held.iter().any(held) || self.breaks(Planted::TrustAnyDevice);
        // a crash while labels are written leaves the newest on a device that is being added, which knows all others, and calls one of them
        // present at
        // least: another may have failed meanwhile. A label that names another device in the place of one that is remembered has a history
        // of its own. The one that it calls present is there: a device that takes the place of another is none of the members that
        // make the pool whole, and where it alone is remembered the other one was given up
        let known = |among: &[DeviceId]| remembered.current.iter().filter(|(_, device)| among.contains(device)).count();
        let present: Vec<DeviceId> = found.present.iter().copied().filter(|device| found.devices.contains(device)).collect();
        let whole = found.is_whole() && known(&found.known) == remembered.current.len() && known(&present) > 0;
        // every device may have been replaced elsewhere; here nobody did it. What was left behind here may be whole elsewhere, too
        let left_behind = remembered.left_behind && !self.breaks(Planted::ForgetLeftBehind);
        let elsewhere = found.is_whole() && found.other_host.is_some() && !left_behind;
        if elsewhere || whole || current { Ok(()) } else { Err(Refusal::NotCurrent { remembered: remembered.generation, wanted }) }
    }

    /// What has to be remembered, durably, before an import of what was found begins, for it writes labels that say so: devices that were current and
    /// are not among the newest found are trusted no more, and others when every device was replaced elsewhere; where the newest label is
    /// on a device
    /// that is being added, those that it calls present are. `None`: nothing.
    pub fn distrust(&self, remembered: Option<&LabelsInForce>, found: &Evidence) -> Option<LabelsInForce> {
        let remembered = remembered.filter(|_| !self.breaks(Planted::ServeUnremembered))?;
        let known: Vec<_> = found.current.iter().filter(|(_, device)| remembered.trusts(*device)).copied().collect();
        let present = |(_, device): &&(u16, DeviceId)| found.present.contains(device);
        let current = match &found.other_host {
            _ if !known.is_empty() => known,
            Some(_) => found.current.clone(),
            None => remembered.current.iter().filter(present).copied().collect(),
        };
        let left_behind = remembered.left_behind || !found.is_whole();
        // a label that a killed daemon wrote may not be durable: after a power cut the one before it counts
        let generation = remembered.generation;
        (!current.is_empty() && current != remembered.current).then_some(LabelsInForce { generation, current, left_behind })
    }

    /// Must the labels of what was imported be remembered before it serves anybody? `left_out`: a device that was found was left out, as it
    /// did not
    /// answer.
    pub fn must_be_remembered(&self, found: &Evidence, by_hand: bool, left_out: bool) -> bool {
        let incomplete = !found.missing.is_empty() || by_hand && (left_out || !found.is_whole());
        incomplete && !self.breaks(Planted::ServeUnremembered)
    }

    /// Are labels in force others than those that are remembered?
    pub fn is_news(&self, remembered: Option<&LabelsInForce>, labels: &LabelsInForce) -> bool {
        remembered != Some(&labels.clone().after(remembered)) && !self.breaks(Planted::ForgetNewLabels)
    }

    fn breaks(&self, rule: Planted) -> bool {
        cfg!(feature = "planted") && self.planted == Some(rule)
    }
}

impl LabelsInForce {
    /// The same, remembered after others: that devices were left behind is never forgotten, for nobody knows when they are seen again.
    #[must_use]
    pub fn after(self, remembered: Option<&LabelsInForce>) -> LabelsInForce {
        LabelsInForce { left_behind: self.left_behind || remembered.is_some_and(|before| before.left_behind), ..self }
    }

    /// Did a device hold everything that was acknowledged?
    pub fn trusts(&self, device: DeviceId) -> bool {
        self.current.iter().any(|(_, known)| *known == device)
    }
}

impl Evidence {
    /// Is every device there that the newest label knows?
    pub fn is_whole(&self) -> bool {
        self.missing.is_empty() && self.down.is_empty()
    }

    /// What the labels have to be when an import that was decided upon reads them: of what was found, or newer.
    pub fn expected(&self, remembered: Option<&LabelsInForce>) -> NewestLabel {
        let current = |device: &DeviceId| remembered.is_some_and(|known| known.trusts(*device));
        let trusted: Vec<DeviceId> = self.current.iter().map(|(_, device)| *device).filter(current).collect();
        // none is known when every device was replaced elsewhere, and all of them are there
        NewestLabel { generation: self.generation, devices: if trusted.is_empty() { self.newest_on.clone() } else { trusted } }
    }
}
