//! Holds, which keep a snapshot from being destroyed. A snapshot has any number of holds without a
//! tag, and at most one per tag.

use millpond_format::{HoldRecord, Record, SnapshotId};

use super::command::check_name;
use super::state::Pool;
use crate::core::Snapshot;
use crate::{CommandError, HoldInfo, Time};

/// Longest tag in bytes, so that a page of held snapshots stays a few kilobytes.
const MAX_TAG: usize = 64;
/// Most holds of a snapshot, so that a page of 64 snapshots with all their holds stays below 2 MiB.
const MAX_HOLDS: usize = 256;

impl Pool {
    /// Returns the record of a new hold.
    pub(super) fn hold(
        &self,
        snapshot: SnapshotId,
        tag: Option<String>,
        until: Option<Time>,
        locked: bool,
    ) -> Result<Record, CommandError> {
        let held = self.known_snapshot(snapshot)?;
        let refused = |why: String| Err(CommandError::Invalid(why));
        if held.holds.len() + held.tags.len() >= MAX_HOLDS {
            return refused(format!("the snapshot has {MAX_HOLDS} holds, and can have no more; release some"));
        }
        let until = until.map(|time| time.0);
        let Some(tag) = tag else {
            return if locked { refused("a lock needs a tag".into()) } else { Ok(Record::Hold { snapshot, until }) };
        };
        check_name(&tag)?;
        if tag.len() > MAX_TAG {
            return refused(format!("the tag has {} characters; use at most {MAX_TAG}", tag.len()));
        }
        if locked && until.is_none() {
            return refused("a lock needs a time when it ends".into());
        }
        // a hold with this tag that has expired is replaced
        if held.tags.iter().any(|hold| hold.tag == tag && self.holds_still(hold.until)) {
            return refused(format!("it is held with tag '{tag}' already; choose another tag, or release that one first"));
        }
        Ok(Record::HoldTagged { snapshot, hold: HoldRecord { tag, since: self.now.0, until, locked } })
    }

    /// Returns the record that releases the hold with a tag, or one without a tag.
    pub(super) fn release_hold(&self, snapshot: SnapshotId, tag: Option<String>) -> Result<Record, CommandError> {
        let held = self.known_snapshot(snapshot)?;
        let Some(tag) = tag else {
            return match held.holds.is_empty() {
                true => Err(CommandError::Invalid("the snapshot has no hold without a tag".into())),
                false => Ok(Record::Release { snapshot }),
            };
        };
        match held.tags.iter().find(|hold| hold.tag == tag) {
            None => Err(CommandError::Invalid(format!("the snapshot has no hold with tag '{tag}'"))),
            Some(hold) if hold.locked && self.holds_still(hold.until) => {
                Err(CommandError::Invalid(format!("'{tag}' is a lock, and its time has not come")))
            }
            Some(_) => Ok(Record::ReleaseTagged { snapshot, tag }),
        }
    }

    /// Returns whether a snapshot has a hold that has not expired.
    pub(crate) fn is_held(&self, snapshot: &Snapshot) -> bool {
        let mut untils = snapshot.holds.iter().copied().chain(snapshot.tags.iter().map(|hold| hold.until));
        untils.any(|until| self.holds_still(until))
    }

    /// Returns the holds that have not expired, those without a tag first.
    pub(crate) fn holds_of(&self, snapshot: &Snapshot) -> Vec<HoldInfo> {
        let plain = snapshot.holds.iter().map(|until| HoldInfo { tag: None, since: None, until: until.map(Time), locked: false });
        let tagged = snapshot.tags.iter().map(|hold| HoldInfo {
            tag: Some(hold.tag.clone()),
            since: Some(Time(hold.since)),
            until: hold.until.map(Time),
            locked: hold.locked,
        });
        plain.chain(tagged).filter(|hold| self.holds_still(hold.until.map(|time| time.0))).collect()
    }

    fn holds_still(&self, until: Option<u64>) -> bool {
        until.is_none_or(|until| until > self.now.0)
    }
}
