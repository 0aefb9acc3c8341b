//! Decides whether a daemon imports a pool automatically at its start: pure functions of the labels
//! that its host remembers, the devices found, and the time waited.
//!
//! INV-MEMORY-1: an automatic import never shows an older state than one that was in service on
//! this host before. The remembered labels ([`LabelsInForce`]) list the devices that held all
//! acknowledged data. A device that was absent since then, or was given up, may have a label that
//! calls it whole; its label cannot know better. So when devices are missing, the newest label
//! found must be on a device that is remembered as current, and be no older than the remembered
//! generation; or it calls such a device present, and that device was found with a label that is no
//! older; or all devices in use are found, and it calls such a device, with a label that is no
//! older, a replacement. Where nothing is missing and another host had the pool last, every device
//! may have been replaced there, so the label may be on others. That exception ends for good once
//! devices were left behind here ([`LabelsInForce::left_behind`]): another host may have made a
//! whole pool of those, without the data written here since. It ends, too, once the pool was
//! imported by hand: this host does not know which devices the user left behind elsewhere. At the
//! user's request (`pool import --degraded`) any state is imported; the labels that come into
//! service then are remembered from there on. When the host dies before that, its daemon may
//! complete the import: claims and labels are on the devices, as on those of any import that was
//! interrupted.
//!
//! A host that takes a pool writes first claims on all devices, and then second claims, which
//! count. If it dies in between, it may find its own second claim on one half, and import that half
//! automatically. On the other half its first claim is the newest ([`Evidence::taker`]): no other
//! host imports that half automatically.
//!
//! Devices that were written to separately are never joined ([`Evidence::apart`]): the user decides
//! which of them are the pool.
//!
//! A device of the pool whose label is of another program ([`Evidence::foreign`]) may be the newest:
//! no import does without it.
//!
//! When devices are missing, the memory is made durable before the import writes labels, because
//! another start may find only those devices; and before the pool serves any client. It follows
//! each later change of the labels.

mod labelled;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::time::Duration;

use millpond_block::MemberId;
use millpond_format::{DeviceId, FormatError};

use crate::{LabelsInForce, NewestLabel, Planted};
pub use labelled::{Labelled, Looked};

/// State of a pool according to the labels that were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Generation of the newest label.
    pub generation: u64,
    /// Devices that have a label of this generation.
    pub newest_on: Vec<DeviceId>,
    /// Members and devices that have such a label, and are present according to it.
    pub current: Vec<(MemberId, DeviceId)>,
    /// Devices found that are present members according to the newest label, with the generation of
    /// their own label.
    pub held: Vec<(DeviceId, u64)>,
    /// Devices found that are taking the places of present members according to the newest label and
    /// to their own, with the generation of their own.
    pub taking: Vec<(DeviceId, u64)>,
    /// Devices that are present members according to the newest label, whatever label they have
    /// themselves.
    pub present: Vec<DeviceId>,
    /// Devices that are members according to the newest label, present or not, whatever label they
    /// have themselves.
    pub known: Vec<DeviceId>,
    /// All devices found.
    pub devices: Vec<DeviceId>,
    /// The labels contradict each other: the devices have no common history.
    pub apart: bool,
    /// A device of the pool was found whose label this program cannot read, and why.
    pub foreign: Option<FormatError>,
    /// Members that were not found, and were present when the newest label was written.
    pub missing: Vec<MemberId>,
    /// Members that were not found, and are down according to the newest label.
    pub down: Vec<MemberId>,
    /// Another host that had the pool last, if one did.
    pub other_host: Option<String>,
    /// Another host that began to take the pool after that. It died before it finished, or took the
    /// pool on devices that are missing.
    pub taker: Option<String>,
}

/// The decision about a remembered pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Import: all devices are found that were present when the newest label was written.
    Import,
    /// Import without these members, if the engine accepts that: the time to wait for them is over.
    ImportDegraded {
        /// Members that are missing.
        without: Vec<MemberId>,
    },
    /// Wait for missing members until so much time has passed since the first device was found.
    WaitUntil(Duration),
    /// Do not import the devices that were found; more devices may change that.
    Refuse(Refusal),
}

/// Reason why a pool is not imported with the devices that were found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No device of the pool was found.
    NothingFound,
    /// All labels found are older than the labels that were in force here.
    Older {
        /// Generation found.
        found: u64,
        /// Generation remembered.
        remembered: u64,
        /// Members that were current and were not found.
        wanted: Vec<MemberId>,
    },
    /// The newest label found is on a device that this host did without, or does not know.
    NotCurrent {
        /// Generation remembered.
        remembered: u64,
        /// Members that were current and were not found.
        wanted: Vec<MemberId>,
    },
    /// The labels contradict each other: the devices were written to separately, or a power cut
    /// left different labels of one generation.
    Apart,
    /// A device of the pool has a label of another program, which may be newer than all others.
    OtherProgram(FormatError),
    /// Another host had the pool last, or began to take it, and may have done without the devices
    /// that were found.
    OtherHost {
        /// Name of that host.
        name: String,
        /// Members that are missing.
        missing: Vec<MemberId>,
    },
}

/// Rules for automatic imports.
#[derive(Clone, Copy, Debug, Default)]
pub struct ImportRules {
    /// Time to wait for missing devices.
    pub wait: Duration,
    /// A planted bug, as in [`Tuning`](crate::Tuning).
    pub planted: Option<Planted>,
}

impl ImportRules {
    /// Decides whether a remembered pool is imported. `waited`: time since its first device was
    /// found.
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

    /// Returns whether a device that did not answer an import counts as missing. Before that, the
    /// import is retried with it.
    pub fn leaves_out(&self, waited: Duration) -> bool {
        waited >= self.wait
    }

    /// Checks that the devices found have one state of the pool, at least as new as the remembered
    /// one (INV-MEMORY-1).
    ///
    /// # Errors
    /// The reason why the state may be older, is not one state, or is not known.
    pub fn check(&self, remembered: Option<&LabelsInForce>, found: &Evidence) -> Result<(), Refusal> {
        if let Some(why) = found.foreign {
            return Err(Refusal::OtherProgram(why));
        }
        if found.apart && !self.breaks(Planted::JoinApart) {
            return Err(Refusal::Apart);
        }
        let Some(remembered) = remembered else { return Ok(()) };
        let absent = remembered.current.iter().filter(|(_, device)| !found.devices.contains(device));
        let wanted: Vec<MemberId> = absent.map(|(member, _)| *member).collect();
        if found.generation < remembered.generation {
            return Err(Refusal::Older { found: found.generation, remembered: remembered.generation, wanted });
        }
        // a crash while labels are written may leave the newest one only on a device that is being
        // filled. A trusted device that it calls present, and that was found with the label before,
        // is up to date: had that device been given up since, a newer label would record it, also
        // on the device that is being filled; or a device that holds all data, and is present
        // according to the newest label, would be missing
        let held = |(device, generation): &(DeviceId, u64)| remembered.trusts(*device) && *generation >= remembered.generation;
        let current = found.held.iter().any(held) || self.breaks(Planted::TrustAnyDevice);
        // a host that dies before the import may have trusted a replacement alone, by a label that
        // gave it its place, and a power cut may lose that label. It is lost when every device that
        // the newest label uses was found. No label in force had the replacement in its place: it
        // would be on the replacement, whose own label still calls it one. So the device that it
        // was to replace holds all acknowledged data that survives a power cut
        let undone = found.missing.is_empty() && found.taking.iter().any(held);
        // a crash while labels are written may leave the newest one on a device that is being
        // added. That label knows all other devices, and calls at least one of them present;
        // another may have failed meanwhile. A label that names another device in the place of a
        // remembered one has a separate history. The device that it calls present must have been
        // found: a replacement is not one of the members that make the pool whole, and if only the
        // replacement is remembered, the other device was given up
        let known = |among: &[DeviceId]| remembered.current.iter().filter(|(_, device)| among.contains(device)).count();
        let present: Vec<DeviceId> = found.present.iter().copied().filter(|device| found.devices.contains(device)).collect();
        let whole = found.is_whole() && known(&found.known) == remembered.current.len() && known(&present) > 0;
        // every device may have been replaced on another host; here none was. Devices left behind
        // here may be whole elsewhere, too
        let left_behind = remembered.left_behind && !self.breaks(Planted::ForgetLeftBehind);
        let elsewhere = found.is_whole() && found.other_host.is_some() && !left_behind;
        if elsewhere || whole || current || undone {
            Ok(())
        } else {
            Err(Refusal::NotCurrent { remembered: remembered.generation, wanted })
        }
    }

    /// Returns the labels to remember, durably, before an import of the devices found begins,
    /// because the import writes labels. Devices that were current and are not among the newest
    /// found are no longer trusted. If every device was replaced on another host, the devices found
    /// are trusted; if the newest label is on a device that is being added, the devices that it
    /// calls present are. `None`: nothing to change.
    pub fn distrust(&self, remembered: Option<&LabelsInForce>, found: &Evidence) -> Option<LabelsInForce> {
        let remembered = remembered.filter(|_| !self.breaks(Planted::ServeUnremembered))?;
        let known: Vec<_> = found.current.iter().filter(|(_, device)| remembered.trusts(*device)).copied().collect();
        let present = |(_, device): &&(MemberId, DeviceId)| found.present.contains(device);
        let current = match &found.other_host {
            _ if !known.is_empty() => known,
            Some(_) => found.current.clone(),
            None => remembered.current.iter().filter(present).copied().collect(),
        };
        let left_behind = remembered.left_behind || !found.is_whole();
        // a label that a killed daemon wrote may not be durable: after a power cut the one before
        // it counts
        let generation = remembered.generation;
        (!current.is_empty() && current != remembered.current).then_some(LabelsInForce { generation, current, left_behind })
    }

    /// Returns whether the labels of an imported pool must be remembered before it serves any
    /// client. `left_out`: a device that was found was left out because it did not answer.
    pub fn must_be_remembered(&self, found: &Evidence, by_hand: bool, left_out: bool) -> bool {
        let incomplete = !found.missing.is_empty() || by_hand && (left_out || !found.is_whole());
        incomplete && !self.breaks(Planted::ServeUnremembered)
    }

    /// Returns whether labels in force differ from the remembered ones.
    pub fn is_news(&self, remembered: Option<&LabelsInForce>, labels: &LabelsInForce) -> bool {
        remembered != Some(&labels.clone().after(remembered)) && !self.breaks(Planted::ForgetNewLabels)
    }

    fn breaks(&self, rule: Planted) -> bool {
        cfg!(feature = "planted") && self.planted == Some(rule)
    }
}

impl LabelsInForce {
    /// Returns these labels as they are remembered after earlier ones: `left_behind` is never
    /// reset, because devices left behind may be found again at any time.
    #[must_use]
    pub fn after(self, remembered: Option<&LabelsInForce>) -> LabelsInForce {
        LabelsInForce { left_behind: self.left_behind || remembered.is_some_and(|before| before.left_behind), ..self }
    }

    /// Returns the same labels of a pool that was imported by hand: another host may have made a
    /// whole pool of devices that were left behind elsewhere, of which this host knows nothing.
    #[must_use]
    pub fn by_hand(self) -> LabelsInForce {
        LabelsInForce { left_behind: true, ..self }
    }

    /// Returns whether a device held all acknowledged data.
    pub fn trusts(&self, device: DeviceId) -> bool {
        self.current.iter().any(|(_, known)| *known == device)
    }
}

impl Evidence {
    /// Returns whether every device was found that the newest label lists.
    pub fn is_whole(&self) -> bool {
        self.missing.is_empty() && self.down.is_empty()
    }

    /// Returns the labels that an import must find once it was decided upon: those found, or newer
    /// ones.
    pub fn expected(&self, remembered: Option<&LabelsInForce>) -> NewestLabel {
        let current = |device: &DeviceId| remembered.is_some_and(|known| known.trusts(*device));
        let trusted: Vec<DeviceId> = self.current.iter().map(|(_, device)| *device).filter(current).collect();
        // none is trusted if every device was replaced on another host and all of them are found,
        // or if the label that gave a trusted replacement its place is lost
        NewestLabel { generation: self.generation, devices: if trusted.is_empty() { self.newest_on.clone() } else { trusted } }
    }
}
