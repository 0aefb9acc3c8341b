//! Which conditions last, and since when: compared with each look, kept in a file of the state
//! directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use millpond_api::{AlertState, Condition, ConditionKind, DeviceState, Pool, PoolHealth, ScrubState};
use serde::{Deserialize, Serialize};

use super::Found;

/// Name of the file in the state directory.
pub(super) const FILE: &str = "conditions.json";
/// Version of the file; a file of a later one is ignored.
const VERSION: u32 = 1;
/// Conditions of a pool that is not known any more end after this time: it may be imported again.
const GONE: Duration = Duration::from_secs(3600);
/// Most conditions that are followed; further ones are listed, and reported by no alert. A thousand
/// devices with all of their kinds are fewer.
const MOST: usize = 10_000;

/// Identity of a condition: kind, id of the pool, and key.
type Id = (String, String, String);

/// The conditions that last.
#[derive(Default)]
pub struct Ledger {
    entries: BTreeMap<Id, Entry>,
    /// Last complete scrub of each pool; without one, the time since which the pool is known.
    scrubs: BTreeMap<String, Timestamp>,
    /// The file is older than the entries.
    changed: bool,
}

struct Entry {
    condition: Condition,
    /// Its beginning was reported.
    begun: bool,
    /// Look since which it was not found.
    absent: Option<Instant>,
    /// Its pool was destroyed.
    over: bool,
}

/// A beginning or an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub state: AlertState,
    pub condition: Condition,
}

/// An entry in the file.
#[derive(Serialize, Deserialize)]
struct Kept {
    owner: String,
    key: String,
    condition: Condition,
}

#[derive(Serialize, Deserialize)]
struct Saved {
    version: u32,
    conditions: Vec<Kept>,
    scrubs: BTreeMap<String, Timestamp>,
}

impl Ledger {
    /// Loads the file; conditions in it were reported.
    pub(super) fn load(dir: &Path) -> Ledger {
        let path = dir.join(FILE);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ledger::default(),
            Err(error) => {
                tracing::warn!(%error, file = %path.display(), "conditions begin anew");
                return Ledger::default();
            }
        };
        match serde_json::from_slice::<Saved>(&text) {
            Ok(saved) if saved.version <= VERSION => Ledger::of(saved),
            Ok(_) => {
                tracing::warn!(file = %path.display(), "a later version wrote it: conditions begin anew");
                Ledger::default()
            }
            Err(error) => {
                tracing::warn!(%error, file = %path.display(), "conditions begin anew");
                Ledger::default()
            }
        }
    }

    fn of(saved: Saved) -> Ledger {
        let entry = |kept: Kept| {
            let id = (kept.condition.kind.to_string(), kept.owner, kept.key);
            (id, Entry { condition: kept.condition, begun: true, absent: None, over: false })
        };
        Ledger { entries: saved.conditions.into_iter().map(entry).collect(), scrubs: saved.scrubs, changed: false }
    }

    /// Returns the text of the file if it has changed since the last call.
    pub(super) fn unsaved(&mut self) -> Option<String> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let kept = self.entries.iter().filter(|(_, entry)| entry.begun).map(|((_, owner, key), entry)| Kept {
            owner: owner.clone(),
            key: key.clone(),
            condition: entry.condition.clone(),
        });
        let saved = Saved { version: VERSION, conditions: kept.collect(), scrubs: self.scrubs.clone() };
        serde_json::to_string_pretty(&saved).ok()
    }

    /// Returns a condition as lists show it; `None` while it may pass by itself.
    pub(super) fn shown(&self, found: Found, now: Timestamp) -> Option<Condition> {
        let entry = self.entries.get(&id(&found));
        if found.kind == ConditionKind::PoolFillsSoon && !entry.is_some_and(|entry| entry.begun) {
            return None;
        }
        Some(found.condition(entry.map_or(now, |entry| entry.condition.since)))
    }

    /// Compares what was found in pools with the last look, and returns what has begun and ended.
    pub(super) fn look(&mut self, found: Vec<Found>, pools: &[Pool], now: Instant, time: Timestamp) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut missing: BTreeSet<Id> = self.entries.keys().cloned().collect();
        for found in found {
            let id = id(&found);
            missing.remove(&id);
            if self.entries.len() >= MOST && !self.entries.contains_key(&id) {
                continue;
            }
            let delay = delay(&found.kind);
            let entry = self.entries.entry(id).or_insert_with(|| Entry {
                condition: found.clone().condition(time),
                begun: false,
                absent: None,
                over: false,
            });
            entry.absent = None;
            entry.condition = found.condition(entry.condition.since.min(time));
            let lasts = time.duration_since(entry.condition.since).unsigned_abs();
            if !entry.begun && lasts >= delay {
                entry.begun = true;
                self.changed = true;
                changes.push(Change { state: AlertState::Begun, condition: entry.condition.clone() });
            }
        }
        for id in missing {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            let patience = if entry.over { Some(Duration::ZERO) } else { patience(&id, entry, pools) };
            let Some(patience) = patience else { continue };
            if entry.begun && now.saturating_duration_since(*entry.absent.get_or_insert(now)) < patience {
                continue;
            }
            if let Some(entry) = self.entries.remove(&id).filter(|entry| entry.begun) {
                self.changed = true;
                changes.push(Change { state: AlertState::Ended, condition: entry.condition });
            }
        }
        changes
    }

    /// Ends the conditions of a pool at the next look.
    pub(super) fn forget(&mut self, pool_id: &str) {
        self.entries.iter_mut().filter(|((_, owner, _), _)| owner == pool_id).for_each(|(_, entry)| entry.over = true);
        self.changed |= self.scrubs.remove(pool_id).is_some();
    }

    /// Notes the last complete scrub of each pool.
    pub(super) fn note_scrubs(&mut self, pools: &[Pool], now: Timestamp) {
        for pool in pools.iter().filter(|pool| pool.health.is_in_service()) {
            let complete = pool.scrub.as_ref().filter(|scrub| scrub.state == ScrubState::Done).and_then(|scrub| scrub.ended);
            let known = self.scrubs.get(&pool.id).copied();
            // a clock that was set back must not make a scrub of the future count for ever
            let known = known.filter(|known| *known <= now);
            let last = complete.max(known).unwrap_or(now);
            self.changed |= self.scrubs.insert(pool.id.clone(), last) != Some(last);
        }
    }

    /// Returns the pools without a complete scrub for longer than `limit`: days, by id. A pool with a
    /// running scrub is none of them, nor is one that is read-only.
    pub(super) fn overdue(&self, pools: &[Pool], limit: Duration, now: Timestamp) -> BTreeMap<String, u64> {
        let scrubbing = |pool: &Pool| pool.scrub.as_ref().is_some_and(|scrub| scrub.state == ScrubState::Running);
        let open = pools.iter().filter(|pool| pool.health.is_in_service() && !pool.readonly && !scrubbing(pool));
        let age = |pool: &Pool| {
            let age = now.duration_since(*self.scrubs.get(&pool.id)?);
            let age = Duration::try_from(age).ok().filter(|age| *age > limit)?;
            Some((pool.id.clone(), age.as_secs() / 86_400))
        };
        open.filter_map(age).collect()
    }
}

fn id(found: &Found) -> Id {
    let key = if found.key.is_empty() { &found.subject } else { &found.key };
    (found.kind.to_string(), found.owner.clone(), key.clone())
}

/// Returns how long a condition must last before it is reported.
fn delay(kind: &ConditionKind) -> Duration {
    Duration::from_secs(match kind {
        // its thread may just be busy
        ConditionKind::PoolSilent => 10,
        // a daemon that starts waits for devices
        ConditionKind::PoolUnavailable => 30,
        // exports come back some time after their pool
        ConditionKind::ExportStopped => 60,
        // a short burst of writes is no trend, and an import may replay a long log
        ConditionKind::PoolFillsSoon | ConditionKind::PoolChanging => 600,
        _ => 0,
    })
}

/// Returns how long a condition must be absent before its end is reported; `None` while the state of
/// its pool or device says nothing about it.
fn patience((_, owner, key): &Id, entry: &Entry, pools: &[Pool]) -> Option<Duration> {
    use ConditionKind::{PoolChanging, PoolFillsSoon, PoolSilent, PoolSpace, PoolUnavailable};
    let kind = &entry.condition.kind;
    let own = Duration::from_secs(match kind {
        // use and rates go up and down
        PoolFillsSoon | PoolSpace => 600,
        _ => 0,
    });
    if owner.is_empty() {
        return Some(own);
    }
    let Some(pool) = pools.iter().find(|pool| pool.id == *owner) else { return Some(GONE) };
    if matches!(kind, PoolUnavailable | PoolSilent | PoolChanging) {
        return Some(own);
    }
    let says_nothing = !pool.health.is_in_service() && pool.health != PoolHealth::Faulted;
    // a device that is being filled has not recovered yet
    let filling = |key: &str| pool.devices.iter().any(|device| device.key() == key && device.state == DeviceState::Resilvering);
    if says_nothing || entry.condition.device.is_some() && filling(key) { None } else { Some(own) }
}
