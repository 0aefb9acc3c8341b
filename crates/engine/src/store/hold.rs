//! Holds, which keep a snapshot from being destroyed. A snapshot has any number of holds without a
//! tag, and at most one per tag.

use millpond_format::{HoldRecord, Lock, Record, SnapshotId};

use super::Store;
use super::names::check_name;
use crate::core::Snapshot;
use crate::{Busy, CommandError, HoldInfo, Invalid, Time};

/// Tag of the locks that snapshots are taken with.
pub const LOCK_TAG: &str = "lock";
/// Longest tag in bytes, so that a page of held snapshots stays a few kilobytes.
const MAX_TAG: usize = 64;
/// Most holds of a snapshot, so that a page of 64 snapshots with all their holds stays below 2 MiB.
const MAX_HOLDS: usize = 256;

/// Difference of clocks that is not shown, in milliseconds.
const CLOCK_SLACK: u64 = 5000;

impl Store {
    /// Returns the record of a new hold.
    pub(crate) fn hold(
        &self,
        snapshot: SnapshotId,
        tag: Option<String>,
        until: Option<Time>,
        locked: bool,
    ) -> Result<Record, CommandError> {
        let held = self.known_snapshot(snapshot)?;
        let refused = |why: Invalid| Err(CommandError::Invalid(why));
        if held.holds.len() + held.tags.len() >= MAX_HOLDS {
            return refused(Invalid::TooManyHolds(MAX_HOLDS));
        }
        let until = until.map(|time| time.0);
        let Some(tag) = tag else {
            return if locked { refused(Invalid::LockWithoutTag) } else { Ok(Record::Hold { snapshot, until }) };
        };
        check_name(&tag)?;
        if tag.len() > MAX_TAG {
            return refused(Invalid::TagTooLong { length: tag.len(), most: MAX_TAG });
        }
        if locked && until.is_none() {
            return refused(Invalid::LockWithoutEnd);
        }
        // a hold with this tag that has expired is replaced
        if held.tags.iter().any(|hold| hold.tag == tag && self.tag_holds(hold)) {
            return refused(Invalid::TagTaken(tag));
        }
        let lock = until.filter(|_| locked).map_or(Lock::No, |until| self.new_lock(until.saturating_sub(self.now.0)));
        Ok(Record::HoldTagged { snapshot, hold: HoldRecord { tag, since: self.now.0, until, lock } })
    }

    /// Returns the record of the lock of a snapshot that is being taken.
    pub(crate) fn lock_of_new(&self, snapshot: SnapshotId, millis: u64) -> Record {
        let (lock, until) = (self.new_lock(millis), Some(self.now.0 + millis));
        Record::HoldTagged { snapshot, hold: HoldRecord { tag: LOCK_TAG.to_owned(), since: self.now.0, until, lock } }
    }

    /// Returns the record that releases the hold with a tag, or one without a tag.
    pub(crate) fn release_hold(&self, snapshot: SnapshotId, tag: Option<String>) -> Result<Record, CommandError> {
        let held = self.known_snapshot(snapshot)?;
        let Some(tag) = tag else {
            return match held.holds.is_empty() {
                true => Err(CommandError::Invalid(Invalid::NoHold(None))),
                false => Ok(Record::Release { snapshot }),
            };
        };
        match held.tags.iter().find(|hold| hold.tag == tag) {
            None => Err(CommandError::Invalid(Invalid::NoHold(Some(tag)))),
            Some(hold) if hold.lock != Lock::No && self.tag_holds(hold) => Err(CommandError::Invalid(Invalid::Locked(tag))),
            Some(_) => Ok(Record::ReleaseTagged { snapshot, tag }),
        }
    }

    /// Returns whether a snapshot has a hold that has not expired.
    pub(crate) fn is_held(&self, snapshot: &Snapshot) -> bool {
        snapshot.holds.iter().any(|until| self.holds_still(*until)) || snapshot.tags.iter().any(|hold| self.tag_holds(hold))
    }

    /// Returns the holds that have not expired, those without a tag first.
    pub(super) fn holds_of(&self, snapshot: &Snapshot) -> Vec<HoldInfo> {
        let plain = snapshot.holds.iter().filter(|until| self.holds_still(**until));
        let plain = plain.map(|until| HoldInfo { tag: None, since: None, until: until.map(Time), locked: false });
        let tagged = snapshot.tags.iter().filter(|hold| self.tag_holds(hold)).map(|hold| HoldInfo {
            tag: Some(hold.tag.clone()),
            since: Some(Time(hold.since)),
            until: self.until(hold).map(Time),
            locked: hold.lock != Lock::No,
        });
        plain.chain(tagged).collect()
    }

    /// Returns whether a hold with a tag has not expired.
    fn tag_holds(&self, hold: &HoldRecord) -> bool {
        match hold.lock {
            Lock::No | Lock::Until => self.holds_still(hold.until),
            Lock::Served { end, .. } => end > self.service.now(),
        }
    }

    /// Returns when a hold expires by the wall clock; of a lock that is counted in service, the
    /// earliest time.
    fn until(&self, hold: &HoldRecord) -> Option<u64> {
        match hold.lock {
            Lock::No | Lock::Until => hold.until,
            // unchanged as long as the pool is in service and nobody sets the clock
            Lock::Served { end, .. } => {
                let left = end.saturating_sub(self.service.now());
                let (stated, earliest) = (hold.until.unwrap_or(0), self.now.0 + left);
                Some(if earliest.abs_diff(stated) < CLOCK_SLACK { stated } else { earliest })
            }
        }
    }

    fn holds_still(&self, until: Option<u64>) -> bool {
        until.is_none_or(|until| until > self.now.0)
    }

    pub(crate) fn check_destroyable(&self, id: SnapshotId) -> Result<(), CommandError> {
        let snapshot = self.known_snapshot(id)?;
        if self.core.catalog.clones_of(id) > 0 {
            return Err(CommandError::Busy(Busy::HasClones { snapshot: snapshot.name.clone(), hidden: false }));
        }
        if self.is_held(snapshot) {
            return Err(CommandError::Busy(Busy::Held { snapshot: snapshot.name.clone() }));
        }
        if self.core.catalog.bases.contains_key(&snapshot.volume) { Err(CommandError::Busy(Busy::Base)) } else { Ok(()) }
    }
}
