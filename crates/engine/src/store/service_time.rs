//! The time for which the pool has been in service, by a clock that only passes. Locks of snapshots
//! are counted in it.
//!
//! INV-HOLD-1: a lock ends when the pool has been in service for the length of the lock since it
//! was made, whatever the wall clock says. The host passes in the time since the import by its
//! monotonic clock, so neither a clock that is set back nor one that is set forward ends a lock
//! early. Time in which the pool is not in service does not count: a lock never ends early, but it
//! may end late.
//!
//! The pool keeps the time in its locks: each lock has the time at which it was made, and the one
//! that ends last is recorded again now and then, and when the pool is closed. After an import the
//! time goes on from the latest of these: a crash makes locks last longer, by at most
//! [`NOTE_MILLIS`]. Without a lock nothing is recorded, and nothing depends on the time.

use millpond_format::{HoldRecord, Lock, Record, SnapshotId};

use super::Store;

/// Longest time between two records of the time in service while there is a lock, in milliseconds.
const NOTE_MILLIS: u64 = 600_000;

/// The time in service, in milliseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServiceTime {
    /// Time before this import, as far as locks recorded it.
    before: u64,
    /// The host's clock when the pool came into service; `None` until the host passed a time in.
    begun: Option<u64>,
    /// Time since then.
    since: u64,
    /// Time in service at the last record.
    noted: u64,
    /// The lock that ends last: its end, its snapshot, and its tag.
    last: Option<(u64, SnapshotId, String)>,
}

impl ServiceTime {
    /// Returns the time in service.
    pub(crate) fn now(&self) -> u64 {
        self.before + self.since
    }

    /// Takes the reading of the host's monotonic clock, in milliseconds.
    pub(crate) fn at(&mut self, host: u64) {
        let begun = *self.begun.get_or_insert(host);
        self.since = self.since.max(host.saturating_sub(begun));
    }

    /// Takes account of a lock.
    fn meet(&mut self, snapshot: SnapshotId, hold: &HoldRecord) {
        let Lock::Served { end, seen } = hold.lock else { return };
        self.before = self.before.max(seen.saturating_sub(self.since));
        if self.last.as_ref().is_none_or(|(last, ..)| *last < end) {
            self.last = Some((end, snapshot, hold.tag.clone()));
        }
    }
}

impl Store {
    /// Learns the time in service from the locks of a pool that has just been imported.
    pub(crate) fn begin_service(&mut self) {
        let mut time = ServiceTime::default();
        for (id, snapshot) in self.core.catalog.snapshots.iter() {
            snapshot.tags.iter().for_each(|hold| time.meet(*id, hold));
        }
        time.noted = time.now();
        self.service = time;
    }

    /// Returns a new lock for so many milliseconds.
    pub(super) fn new_lock(&self, millis: u64) -> Lock {
        let seen = self.service.now();
        Lock::Served { end: seen + millis, seen }
    }

    /// Notes that a record with a lock was applied.
    pub(crate) fn locked(&mut self, record: &Record) {
        if let Record::HoldTagged { snapshot, hold } = record {
            self.service.meet(*snapshot, hold);
        }
    }

    /// Returns the record of the time in service, if it is time for one. `closing`: the pool is
    /// being closed.
    pub(crate) fn service_record(&mut self, closing: bool) -> Option<Record> {
        let (now, noted) = (self.service.now(), self.service.noted);
        let (end, snapshot, tag) = self.service.last.as_ref().filter(|(end, ..)| now > noted && *end > noted)?;
        // once more when it ends: after a crash it has still ended
        if !closing && now - noted < NOTE_MILLIS && *end > now {
            return None;
        }
        let held = self.core.catalog.snapshots.get(snapshot)?;
        let hold = held.tags.iter().find(|hold| hold.tag == *tag)?;
        let hold = HoldRecord { lock: Lock::Served { end: *end, seen: now.min(*end) }, ..hold.clone() };
        let record = Record::HoldTagged { snapshot: *snapshot, hold };
        self.service.noted = now;
        Some(record)
    }
}
