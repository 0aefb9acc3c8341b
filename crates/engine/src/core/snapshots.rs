//! All snapshots, in pages as checkpoints store them: a checkpoint writes those that changed.

use std::collections::{BTreeMap, BTreeSet};

use millpond_format::{ObjectRef, SNAPSHOTS_PER_PAGE, SnapshotId, SnapshotRecord};

use super::catalog::{Snapshot, Stored};

/// A page as it was when a checkpoint was fixed. Each record's deadlist is where its place says once that is written.
#[derive(Debug)]
pub(crate) struct SealedPage {
    pub(crate) page: u64,
    pub(crate) records: Vec<(SnapshotRecord, Stored)>,
}

/// The snapshots.
#[derive(Debug, Default)]
pub(crate) struct SnapshotTable {
    snapshots: BTreeMap<SnapshotId, Snapshot>,
    /// Where the last checkpoint put each page.
    stored: BTreeMap<u64, ObjectRef>,
    dirty: BTreeSet<u64>,
    /// Those whose root had no checksum yet when they were taken.
    unsettled: Vec<SnapshotId>,
}

fn page_of(id: SnapshotId) -> u64 {
    id.0 / SNAPSHOTS_PER_PAGE
}

impl SnapshotTable {
    pub(crate) fn get(&self, id: &SnapshotId) -> Option<&Snapshot> {
        self.snapshots.get(id)
    }

    /// A snapshot to change: its page goes into the next checkpoint.
    pub(crate) fn get_mut(&mut self, id: &SnapshotId) -> Option<&mut Snapshot> {
        let snapshot = self.snapshots.get_mut(id)?;
        self.dirty.insert(page_of(*id));
        Some(snapshot)
    }

    pub(crate) fn insert(&mut self, id: SnapshotId, snapshot: Snapshot) {
        self.dirty.insert(page_of(id));
        if snapshot.root.addr.is_pending() {
            self.unsettled.push(id);
        }
        self.snapshots.insert(id, snapshot);
    }

    /// Takes a snapshot over from a checkpoint.
    pub(crate) fn load(&mut self, id: SnapshotId, snapshot: Snapshot) {
        if snapshot.deadlist.needs_write() {
            self.dirty.insert(page_of(id));
        }
        self.snapshots.insert(id, snapshot);
    }

    /// A snapshot just loaded, to complete what follows from the rest of the catalog.
    pub(crate) fn loaded_mut(&mut self, id: SnapshotId) -> Option<&mut Snapshot> {
        self.snapshots.get_mut(&id)
    }

    pub(crate) fn remove(&mut self, id: &SnapshotId) -> Option<Snapshot> {
        self.dirty.insert(page_of(*id));
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

    /// Snapshots of the pages that the next checkpoint writes: all that changed, and their neighbours.
    pub(crate) fn changed(&self) -> impl Iterator<Item = &Snapshot> {
        self.dirty.iter().flat_map(|page| self.of_page(*page)).map(|(_, snapshot)| snapshot)
    }

    /// Pages that there may be.
    pub(crate) fn pages(&self) -> usize {
        self.stored.len() + self.dirty.len()
    }

    /// Pages that the next checkpoint writes.
    pub(crate) fn dirty_pages(&self) -> usize {
        self.dirty.len()
    }

    /// Does the next checkpoint write this page?
    pub(crate) fn is_dirty(&self, page: u64) -> bool {
        self.dirty.contains(&page)
    }

    /// Where the last checkpoint put the page of a snapshot.
    pub(crate) fn page_at(&self, id: SnapshotId) -> Option<ObjectRef> {
        self.stored.get(&page_of(id)).copied()
    }

    /// The pages that changed, for a checkpoint; and the deadlists that changed go to `lists`.
    pub(crate) fn seal(&mut self, lists: &mut impl Extend<(std::rc::Rc<crate::space::Deadlist>, Stored)>) -> Vec<SealedPage> {
        let dirty = std::mem::take(&mut self.dirty);
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

    /// The snapshots whose root may have got its checksum; those that `settle` says no to are asked for again next time.
    pub(crate) fn settle(&mut self, mut settle: impl FnMut(&mut Snapshot) -> bool) {
        let snapshots = &mut self.snapshots;
        self.unsettled.retain(|id| snapshots.get_mut(id).is_some_and(|snapshot| !settle(snapshot)));
    }

    /// Where a page is stored now; gives back where it was.
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

    /// Pages and deadlists for which `moves` holds are written elsewhere by the next checkpoint.
    pub(crate) fn rewrite(&mut self, moves: impl Fn(ObjectRef) -> bool) {
        let pages = self.stored.iter().filter(|(_, at)| moves(**at)).map(|(page, _)| *page);
        self.dirty.extend(pages);
        for (id, snapshot) in &mut self.snapshots {
            if snapshot.deadlist.rewrite(&moves) {
                self.dirty.insert(page_of(*id));
            }
        }
    }
}
