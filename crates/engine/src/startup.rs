//! Whether a daemon imports a pool by itself at its start: pure functions of what its host remembers, what was found, and the time waited.
//!
//! INV-MEMORY-1: an automatic import never shows an older state than one that was in service on this host before. What is remembered says
//! which devices held everything that was acknowledged ([`LabelsInForce`]). A device that was absent since then, or was given up, may say of itself that
//! it is whole; its label cannot know better. So when devices are missing, the newest label found must be on a device that is remembered as
//! current, and be no older than what is remembered. By the user's word (`pool import --degraded`) anything goes; what comes into service then is
//! what is remembered from there on.
//!
//! The memory is durable before an import with devices missing serves anybody, and follows each later change of the labels.

mod labelled;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::time::Duration;

use millpond_format::DeviceId;

use crate::{LabelsInForce, NewestLabel};
pub use labelled::{Labelled, Looked};

/// What the labels found say of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Generation of the newest label.
    pub generation: u64,
    /// Devices that have a label of this generation.
    pub newest_on: Vec<DeviceId>,
    /// All devices found.
    pub devices: Vec<DeviceId>,
    /// Members that were not found, and were there when the newest label was written.
    pub missing: Vec<u16>,
    /// Members that were not found, and that the newest label does without.
    pub down: Vec<u16>,
    /// Another host that had the pool last.
    pub other_host: Option<String>,
}

/// What to do about a remembered pool.
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
    /// Another host had the pool last, and may have done without what was found.
    OtherHost {
        /// That host.
        name: String,
        /// Members that are missing.
        missing: Vec<u16>,
    },
}

impl Decision {
    /// Decides. `waited`: since the first device was found; `limit`: for how long missing devices are waited for.
    pub fn on(remembered: Option<&LabelsInForce>, found: Option<&Evidence>, waited: Duration, limit: Duration) -> Decision {
        let Some(found) = found else { return Decision::Refuse(Refusal::NothingFound) };
        if let Err(refusal) = found.check(remembered) {
            return Decision::Refuse(refusal);
        }
        match (&found.other_host, found.missing.is_empty()) {
            (_, true) => Decision::Import,
            (Some(name), false) => Decision::Refuse(Refusal::OtherHost { name: name.clone(), missing: found.missing.clone() }),
            (None, false) if waited < limit => Decision::WaitUntil(limit),
            (None, false) => Decision::ImportDegraded { without: found.missing.clone() },
        }
    }
}

impl LabelsInForce {
    /// Did a device hold everything that was acknowledged?
    pub fn trusts(&self, device: DeviceId) -> bool {
        self.current.iter().any(|(_, known)| *known == device)
    }
}

impl Evidence {
    /// Is it at least as new as what is remembered (INV-MEMORY-1)?
    ///
    /// # Errors
    /// Why it may be older.
    pub fn check(&self, remembered: Option<&LabelsInForce>) -> Result<(), Refusal> {
        let Some(remembered) = remembered else { return Ok(()) };
        let absent = remembered.current.iter().filter(|(_, device)| !self.devices.contains(device));
        let wanted: Vec<u16> = absent.map(|(member, _)| *member).collect();
        if self.generation < remembered.generation {
            return Err(Refusal::Older { found: self.generation, remembered: remembered.generation, wanted });
        }
        let whole = self.missing.is_empty() && self.down.is_empty();
        let current = self.newest_on.iter().any(|device| remembered.trusts(*device));
        if whole || current { Ok(()) } else { Err(Refusal::NotCurrent { remembered: remembered.generation, wanted }) }
    }

    /// What the labels have to be when an import that was decided upon reads them: of what was found, or newer.
    pub fn expected(&self, remembered: Option<&LabelsInForce>) -> NewestLabel {
        let current = |device: &DeviceId| remembered.is_some_and(|known| known.trusts(*device));
        let (trusted, others): (Vec<DeviceId>, Vec<DeviceId>) = self.newest_on.iter().partition(|device| current(device));
        // none is known when every device was replaced elsewhere, and all of them are there
        NewestLabel { generation: self.generation, devices: if trusted.is_empty() { others } else { trusted } }
    }
}
