//! Whether a remembered pool is imported by the daemon itself: a pure function of what is remembered, what was found, and the time waited.
//!
//! INV-MEMORY-1: an automatic import never shows an older state than one that was in service on this host before. What is remembered says
//! which devices held everything that was acknowledged ([`InForce`]). A device that was absent since then, or was given up, may say of itself that
//! it is whole; its label cannot know better. So when devices are missing, the newest label found must be on a device that is remembered as
//! current, and be no older than what is remembered. By the user's word (`pool import --degraded`) anything goes; what comes into service then is
//! what is remembered from there on.
//!
//! The memory is durable before an import with devices missing serves anybody, and follows each later change of the labels.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::state::PoolRecord;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

/// The labels that were last in force on this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InForce {
    /// Generation of the pool's shape.
    pub generation: u64,
    /// Members that held everything that was acknowledged, and the ids of their devices.
    pub current: BTreeMap<u16, u64>,
    /// Since when.
    pub since: Timestamp,
}

/// What the labels found say of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Evidence {
    /// Generation of the newest label.
    pub generation: u64,
    /// Ids of the devices that have a label of this generation.
    pub newest_on: Vec<u64>,
    /// Ids of all devices found.
    pub devices: Vec<u64>,
    /// Members that were not found, and were there when the newest label was written.
    pub missing: Vec<u16>,
    /// Members that were not found, and that the newest label does without.
    pub down: Vec<u16>,
    /// Another host that had the pool last.
    pub other_host: Option<String>,
}

/// What to do about a remembered pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
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
pub(super) enum Refusal {
    /// No device of it was found.
    NothingFound,
    /// All labels found are older than what was in force here.
    Older {
        /// Generation found.
        found: u64,
        /// What is remembered.
        remembered: InForce,
        /// Members that were current and were not found.
        wanted: Vec<u16>,
    },
    /// The newest label found is on a device that this host did without, or does not know.
    NotCurrent {
        /// What is remembered.
        remembered: InForce,
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

/// Decides. `waited`: since the first device was found; `limit`: for how long missing devices are waited for.
pub(super) fn decide(remembered: Option<&InForce>, found: Option<&Evidence>, waited: Duration, limit: Duration) -> Decision {
    let Some(found) = found else { return Decision::Refuse(Refusal::NothingFound) };
    if let Err(refusal) = check(remembered, found) {
        return Decision::Refuse(refusal);
    }
    match (&found.other_host, found.missing.is_empty()) {
        (_, true) => Decision::Import,
        (Some(name), false) => Decision::Refuse(Refusal::OtherHost { name: name.clone(), missing: found.missing.clone() }),
        (None, false) if waited < limit => Decision::WaitUntil(limit),
        (None, false) => Decision::ImportDegraded { without: found.missing.clone() },
    }
}

/// Whether what was found is at least as new as what is remembered (INV-MEMORY-1).
///
/// # Errors
/// Why it may be older.
pub(super) fn check(remembered: Option<&InForce>, found: &Evidence) -> Result<(), Refusal> {
    let Some(remembered) = remembered else { return Ok(()) };
    let absent = remembered.current.iter().filter(|(_, device)| !found.devices.contains(device));
    let wanted: Vec<u16> = absent.map(|(member, _)| *member).collect();
    if found.generation < remembered.generation {
        return Err(Refusal::Older { found: found.generation, remembered: remembered.clone(), wanted });
    }
    let whole = found.missing.is_empty() && found.down.is_empty();
    let current = found.newest_on.iter().any(|device| remembered.current.values().any(|known| known == device));
    if whole || current { Ok(()) } else { Err(Refusal::NotCurrent { remembered: remembered.clone(), wanted }) }
}

impl Refusal {
    /// What to say of it, and what to do.
    pub(super) fn told(&self, record: &PoolRecord) -> String {
        let by_hand = format!("'millpond pool import {} --degraded'", record.name);
        match self {
            Refusal::NothingFound => "none of its devices was found; bring them back".to_owned(),
            Refusal::Older { found, remembered, wanted } => format!(
                "the devices found have labels of generation {found}, and generation {} was in service here since {}: {}, or use the older \
                 state with {by_hand}, which gives up everything written since then",
                remembered.generation,
                remembered.since.strftime("%Y-%m-%dT%H:%M:%SZ"),
                bring_back(record, wanted)
            ),
            Refusal::NotCurrent { remembered, wanted } => format!(
                "the devices found were not up to date in generation {} of the labels, in service here since {}: {}, or use what was found with \
                 {by_hand}, which gives up everything written since then",
                remembered.generation,
                remembered.since.strftime("%Y-%m-%dT%H:%M:%SZ"),
                bring_back(record, wanted)
            ),
            Refusal::OtherHost { name, missing } => format!(
                "host '{name}' had the pool last and may have written to devices that are missing: {}, or import it without them with {by_hand}",
                bring_back(record, missing)
            ),
        }
    }
}

fn bring_back(record: &PoolRecord, members: &[u16]) -> String {
    match members {
        [] => "bring back the devices in that state".to_owned(),
        members => format!("bring back {}", names(record, members)),
    }
}

/// Members by path, as far as paths are remembered.
pub(super) fn names(record: &PoolRecord, members: &[u16]) -> String {
    let name = |member: &u16| match record.devices.get(usize::from(*member)).filter(|path| !path.as_os_str().is_empty()) {
        Some(path) => format!("device {member} ({})", path.display()),
        None => format!("device {member}"),
    };
    members.iter().map(name).collect::<Vec<_>>().join(", ")
}
