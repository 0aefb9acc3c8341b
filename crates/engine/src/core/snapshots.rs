//! All snapshots, in pages as checkpoints store them: a checkpoint writes the pages that changed.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use millpond_format::{ObjectRef, SNAPSHOTS_PER_PAGE, SnapshotId, SnapshotRecord};

use super::catalog::Snapshot;
use super::stored_deadlist::Stored;
use crate::space::Pieces;

/// A page as it was when a checkpoint was fixed. The cell beside a record gets the place of its
/// deadlist once that is written.
#[derive(Debug)]
pub(crate) struct SealedPage {
    pub(crate) page: u64,
    pub(crate) records: Vec<(SnapshotRecord, Stored)>,
}

/// The snapshots.
#[derive(Debug, Default)]
pub(crate) struct SnapshotTable {
    snapshots: BTreeMap<SnapshotId, Snapshot>,
    /// Place of each page in the last checkpoint.
    stored: BTreeMap<u64, ObjectRef>,
    dirty: BTreeSet<u64>,
    /// Bytes of the records of each dirty page when last counted, and their sum.
    counted: BTreeMap<u64, usize>,
    bytes: usize,
    /// Dirty pages that are to be counted again.
    recount: BTreeSet<u64>,
    /// Snapshots whose root had no checksum yet when they were taken.
    unsettled: Vec<SnapshotId>,
}

fn page_of(id: SnapshotId) -> u64 {
    id.0 / SNAPSHOTS_PER_PAGE
}

impl SnapshotTable {
    pub(crate) fn get(&self, id: &SnapshotId) -> Option<&Snapshot> {
        self.snapshots.get(id)
    }

    /// Returns a snapshot for changing it: its page goes into the next checkpoint.
    pub(crate) fn get_mut(&mut self, id: &SnapshotId) -> Option<&mut Snapshot> {
        if !self.snapshots.contains_key(id) {
            return None;
        }
        self.touch(page_of(*id));
        self.snapshots.get_mut(id)
    }

    /// Makes the next checkpoint write a page.
    fn touch(&mut self, page: u64) {
        self.dirty.insert(page);
        self.recount.insert(page);
    }

    pub(crate) fn insert(&mut self, id: SnapshotId, snapshot: Snapshot) {
        self.touch(page_of(id));
        if snapshot.root.addr.is_pending() {
            self.unsettled.push(id);
        }
        self.snapshots.insert(id, snapshot);
    }

    /// Loads a snapshot from a checkpoint.
    pub(crate) fn load(&mut self, id: SnapshotId, snapshot: Snapshot) {
        if snapshot.deadlist.needs_write() || self.is_dirty(page_of(id)) {
            self.touch(page_of(id));
        }
        self.snapshots.insert(id, snapshot);
    }

    /// Returns a snapshot that was just loaded, to complete fields that follow from the rest of the
    /// catalog.
    pub(crate) fn loaded_mut(&mut self, id: SnapshotId) -> Option<&mut Snapshot> {
        self.snapshots.get_mut(&id)
    }

    pub(crate) fn remove(&mut self, id: &SnapshotId) -> Option<Snapshot> {
        self.touch(page_of(*id));
        self.snapshots.remove(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&SnapshotId, &Snapshot)> {
        self.snapshots.iter()
    }

    pub(crate) fn ids_from(&self, first: SnapshotId) -> impl Iterator<Item = SnapshotId> {
        self.snapshots.range(first..).map(|(id, _)| *id)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Snapshot> {
        self.snapshots.values()
    }

    fn of_page(&self, page: u64) -> impl Iterator<Item = (&SnapshotId, &Snapshot)> {
        let first = page * SNAPSHOTS_PER_PAGE;
        self.snapshots.range(SnapshotId(first)..SnapshotId(first + SNAPSHOTS_PER_PAGE))
    }

    /// Snapshots in the pages that the next checkpoint writes: all that changed, and their
    /// neighbours.
    pub(crate) fn changed(&self) -> impl Iterator<Item = &Snapshot> {
        self.dirty.iter().flat_map(|page| self.of_page(*page)).map(|(_, snapshot)| snapshot)
    }

    /// Maximum bytes of the records in all pages that the next checkpoint writes. Examines only
    /// pages that changed since the last call.
    pub(crate) fn changed_bytes(&mut self) -> usize {
        for page in std::mem::take(&mut self.recount) {
            let bytes = self.of_page(page).map(|(_, snapshot)| snapshot.record_bytes()).sum();
            self.bytes = self.bytes + bytes - self.counted.insert(page, bytes).unwrap_or(0);
        }
        self.bytes
    }

    /// The same number, computed from all dirty pages.
    pub(crate) fn count_changed_bytes(&self) -> usize {
        self.changed().map(Snapshot::record_bytes).sum()
    }

    /// Maximum number of pages.
    pub(crate) fn pages(&self) -> usize {
        self.stored.len() + self.dirty.len()
    }

    /// Number of pages that the next checkpoint writes.
    pub(crate) fn dirty_pages(&self) -> usize {
        self.dirty.len()
    }

    /// True when the next checkpoint writes this page.
    pub(crate) fn is_dirty(&self, page: u64) -> bool {
        self.dirty.contains(&page)
    }

    /// Place of a snapshot's page in the last checkpoint.
    pub(crate) fn page_at(&self, id: SnapshotId) -> Option<ObjectRef> {
        self.stored.get(&page_of(id)).copied()
    }

    /// Returns the changed pages for a checkpoint, and adds the changed deadlists to `lists`.
    pub(crate) fn seal(&mut self, lists: &mut impl Extend<(std::rc::Rc<crate::space::Deadlist>, Stored)>) -> Vec<SealedPage> {
        let dirty = std::mem::take(&mut self.dirty);
        self.recount.clear();
        self.counted.clear();
        self.bytes = 0;
        let mut pages = Vec::with_capacity(dirty.len());
        for page in dirty {
            let first = page * SNAPSHOTS_PER_PAGE;
            let range = self.snapshots.range_mut(SnapshotId(first)..SnapshotId(first + SNAPSHOTS_PER_PAGE));
            let mut records = Vec::new();
            for (id, s) in range {
                lists.extend(s.deadlist.seal());
                records.push((s.record(*id), s.deadlist.place()));
            }
            pages.push(SealedPage { page, records });
        }
        pages
    }

    /// Calls `settle` for snapshots whose root had no checksum; those for which it returns false
    /// are tried again next time.
    pub(crate) fn settle(&mut self, mut settle: impl FnMut(&mut Snapshot) -> bool) {
        let snapshots = &mut self.snapshots;
        self.unsettled.retain(|id| snapshots.get_mut(id).is_some_and(|snapshot| !settle(snapshot)));
    }

    /// Sets the place of a page, and returns the old one.
    pub(crate) fn set_stored(&mut self, page: u64, at: Option<ObjectRef>) -> Option<ObjectRef> {
        match at {
            Some(at) => self.stored.insert(page, at),
            None => self.stored.remove(&page),
        }
    }

    /// The directory of stored pages.
    pub(crate) fn stored(&self) -> impl Iterator<Item = (u64, ObjectRef)> + '_ {
        self.stored.iter().map(|(page, at)| (*page, *at))
    }

    /// Makes the next checkpoint write pages and deadlists to another place if `moves` is true for
    /// their place.
    pub(crate) fn rewrite(&mut self, pieces: &Rc<Pieces>, moves: impl Fn(ObjectRef) -> bool) {
        let mut pages: BTreeSet<u64> = self.stored.iter().filter(|(_, at)| moves(**at)).map(|(page, _)| *page).collect();
        let found = self.snapshots.iter_mut().filter_map(|(id, s)| s.deadlist.rewrite(pieces, &moves).then_some(page_of(*id)));
        pages.extend(found);
        pages.into_iter().for_each(|page| self.touch(page));
    }

    /// Counts the bytes of the deadlists of changed pages again.
    pub(crate) fn count_lists(&mut self, pieces: &Rc<Pieces>) {
        for page in &self.dirty {
            let first = page * SNAPSHOTS_PER_PAGE;
            let range = self.snapshots.range_mut(SnapshotId(first)..SnapshotId(first + SNAPSHOTS_PER_PAGE));
            range.for_each(|(_, snapshot)| snapshot.deadlist.count(pieces));
        }
    }
}

#[cfg(test)]
mod tests {
    use millpond_format::{Epoch, LineageId, TreeRoot, VolumeId};

    use super::*;
    use crate::core::StoredDeadlist;
    use crate::space::Deadlist;

    fn seal(table: &mut SnapshotTable) -> usize {
        let mut lists: Vec<(Rc<Deadlist>, Stored)> = Vec::new();
        table.seal(&mut lists).len()
    }

    fn snapshot(name: String) -> Snapshot {
        Snapshot {
            lineage: LineageId(1),
            volume: VolumeId(1),
            name,
            epoch: Epoch(1),
            root: TreeRoot::default(),
            mapped: 0,
            size: 4096,
            created: 0,
            expires: None,
            description: String::new(),
            holds: Vec::new(),
            tags: Vec::new(),
            hidden: false,
            deadlist: StoredDeadlist::default(),
            children: Vec::new(),
        }
    }

    /// The counted bytes equal those computed from all records, and only changed pages are
    /// examined.
    #[test]
    fn records_are_counted_as_they_change() {
        const SNAPSHOTS: u64 = 10_000;
        let mut table = SnapshotTable::default();
        for id in 0..SNAPSHOTS {
            table.insert(SnapshotId(id), snapshot(format!("s{id}")));
            assert!(table.recount.len() <= 1);
            if id % 97 == 0 {
                assert_eq!(table.changed_bytes(), table.count_changed_bytes());
            } else {
                table.changed_bytes();
            }
        }
        assert_eq!(seal(&mut table) as u64, SNAPSHOTS.div_ceil(SNAPSHOTS_PER_PAGE));
        assert_eq!((table.changed_bytes(), table.counted.len()), (0, 0));
        for round in 0..2000u64 {
            let id = SnapshotId(round * 7919 % SNAPSHOTS);
            match round % 5 {
                0 => _ = table.remove(&id),
                1 => table.insert(id, snapshot("again".repeat(1 + round as usize % 9))),
                2 => table.get_mut(&id).into_iter().for_each(|s| s.description = "x".repeat(round as usize % 50)),
                3 => table.get_mut(&id).into_iter().for_each(|s| s.holds.push(None)),
                _ => _ = table.get_mut(&SnapshotId(SNAPSHOTS + round)),
            }
            // one change causes a recount of one page
            assert!(table.recount.len() <= 1);
            let bytes = table.changed_bytes();
            if round % 50 == 0 {
                assert_eq!(bytes, table.count_changed_bytes());
                assert_eq!(table.counted.keys().copied().collect::<BTreeSet<u64>>(), table.dirty);
            }
            if round % 700 == 0 {
                seal(&mut table);
            }
        }
    }
}
