//! Catalog records: the change that each makes. Records are validated before they are logged
//! (`command`); here they are applied without checks.
//!
//! I3: snapshots, clones and rollbacks copy roots, and neither read nor write map nodes or data.

use std::collections::BTreeSet;
use std::rc::Rc;

use millpond_block::{CacheMode, SectorProfile};
use millpond_format::{BlockNo, Epoch, LineageId, Record, SnapshotId, TreeRoot, VolumeId, VolumeRecord};

use super::catalog::{Base, Catalog, Head, Lineage, Snapshot, Volume, Walk};
use super::map::base_root;
use super::state::Core;
use super::stored_deadlist::StoredDeadlist;
use crate::space::FIXED_TAIL;
use crate::{Compression, VolumeOptions};

pub(crate) fn sector_code(sector: SectorProfile) -> u8 {
    match sector {
        SectorProfile::S512n => 0,
        SectorProfile::S512e => 1,
        SectorProfile::S4kn => 2,
    }
}

pub(crate) fn sector_of(code: u8) -> SectorProfile {
    match code {
        0 => SectorProfile::S512n,
        2 => SectorProfile::S4kn,
        _ => SectorProfile::S512e,
    }
}

pub(crate) fn cache_code(mode: CacheMode) -> u8 {
    match mode {
        CacheMode::None => 0,
        CacheMode::Directsync => 1,
        CacheMode::Writethrough => 2,
        CacheMode::Writeback => 3,
        CacheMode::Unsafe => 4,
    }
}

pub(crate) fn cache_of(code: u8) -> CacheMode {
    match code {
        0 => CacheMode::None,
        2 => CacheMode::Writethrough,
        3 => CacheMode::Writeback,
        4 => CacheMode::Unsafe,
        // the safest mode for 1 and for codes that no version wrote
        _ => CacheMode::Directsync,
    }
}

pub(crate) fn compression_code(compression: Compression) -> u8 {
    match compression {
        Compression::Off => 0,
        Compression::Lz4 => 1,
        Compression::Zstd => 2,
    }
}

pub(crate) fn compression_of(code: u8) -> Compression {
    match code {
        1 => Compression::Lz4,
        2 => Compression::Zstd,
        _ => Compression::Off,
    }
}

impl Core {
    /// Applies a catalog record, except [`Record::Walked`], which [`walk_to`](Core::walk_to)
    /// applies because it needs nodes, and [`Record::CreateEncrypted`], which replay refuses.
    pub(crate) fn apply_record(&mut self, record: &Record) {
        match record {
            Record::CreateVolume { volume } => self.create_volume(volume, Head::default()),
            Record::CreateBase { volume, unit, source, snapshot, name } => {
                let root = base_root(volume.id, volume.size);
                self.create_volume(volume, Head { root, mapped: 0 });
                self.catalog.bases.insert(volume.id, Base { unit: *unit, source: source.clone() });
                self.snapshot(volume.id, *snapshot, name, volume.created, "", None);
                self.epoch.0 += 1;
            }
            Record::MoveBase { volume, source } => {
                if let Some(base) = self.catalog.bases.get_mut(volume) {
                    base.source.clone_from(source);
                }
            }
            Record::DestroyVolume { volume } => self.destroy_volume(*volume),
            Record::RemoveVolume { volume } => self.remove_volume(*volume),
            Record::RenameVolume { volume, name } => self.catalog.rename_volume(*volume, name.clone()),
            Record::Resize { volume, size } => {
                if let Some(v) = self.catalog.volumes.get_mut(volume) {
                    v.size = *size;
                }
            }
            Record::Properties { volume, cache, compression, read_only } => {
                if let Some(v) = self.catalog.volumes.get_mut(volume) {
                    v.cache = cache_of(*cache);
                    v.compression = compression_of(*compression);
                    v.read_only = *read_only;
                }
            }
            Record::Options { volume, options } => self.catalog.set_options(*volume, VolumeOptions::of(options)),
            Record::Term { term } => _ = self.space.names.raise_term(*term),
            Record::Jobs { jobs } => self.catalog.jobs = jobs.clone(),
            Record::Wipe { wipe } => self.catalog.wipe = *wipe,
            Record::Sector { volume, sector } => {
                if let Some(v) = self.catalog.volumes.get_mut(volume) {
                    v.sector = sector_of(*sector);
                }
            }
            Record::Snapshot { targets, created, description, expires } => {
                for (volume, id, name) in targets {
                    self.snapshot(*volume, *id, name, *created, description, *expires);
                }
                self.epoch.0 += 1;
            }
            Record::DestroySnapshots { snapshots } => {
                for id in snapshots {
                    self.catalog.hide_snapshot(*id);
                    self.settle_hidden(*id);
                }
            }
            Record::RenameSnapshot { snapshot, name } => self.catalog.rename_snapshot(*snapshot, name.clone()),
            Record::Rollback { snapshot, keep, name, lineage, created } => self.rollback(*snapshot, *keep, name, *lineage, *created),
            Record::Clone { snapshot, volume, lineage, name, created } => {
                let Some((head, epoch, size, from)) =
                    self.catalog.snapshots.get(snapshot).map(|s| (Head { root: s.root, mapped: s.mapped }, s.epoch, s.size, s.volume))
                else {
                    return;
                };
                let like = self.catalog.volumes.get(&from).cloned();
                self.catalog.next_volume = self.catalog.next_volume.max(volume.0 + 1);
                self.add_lineage(*lineage, *volume, Some(*snapshot), epoch, head);
                let (sector, cache, compression) = like.map_or(Default::default(), |v| (v.sector, v.cache, v.compression));
                let (name, lineage) = (name.clone(), *lineage);
                let clone = Volume { name, size, sector, cache, compression, read_only: false, lineage, created: *created };
                self.catalog.add_volume(*volume, clone);
                // a clone inherits neither the reservation nor the share of the read cache
                let options = VolumeOptions { reservation: 0, read_cache: None, ..self.catalog.options_of(from) };
                self.catalog.set_options(*volume, options);
            }
            Record::Hold { snapshot, until } => {
                if let Some(s) = self.catalog.snapshots.get_mut(snapshot) {
                    s.holds.push(*until);
                }
            }
            Record::Release { snapshot } => {
                if let Some(s) = self.catalog.snapshots.get_mut(snapshot) {
                    s.holds.pop();
                }
            }
            Record::HoldTagged { snapshot, hold } => {
                if let Some(s) = self.catalog.snapshots.get_mut(snapshot) {
                    // the record of the time in service is of the same hold
                    match s.tags.iter_mut().find(|other| other.tag == hold.tag && other.since == hold.since) {
                        Some(same) => same.clone_from(hold),
                        None => {
                            s.tags.retain(|other| other.tag != hold.tag);
                            s.tags.push(hold.clone());
                        }
                    }
                }
            }
            Record::ReleaseTagged { snapshot, tag } => {
                if let Some(s) = self.catalog.snapshots.get_mut(snapshot) {
                    s.tags.retain(|hold| hold.tag != *tag);
                }
            }
            Record::Promote { volume } => self.promote(*volume),
            Record::Walked { .. } | Record::CreateEncrypted { .. } => {}
        }
    }

    fn create_volume(&mut self, volume: &VolumeRecord, head: Head) {
        self.catalog.next_volume = self.catalog.next_volume.max(volume.id.0 + 1);
        self.add_lineage(volume.lineage, volume.id, None, Epoch(0), head);
        let created = Volume {
            name: volume.name.clone(),
            size: volume.size,
            sector: sector_of(volume.sector),
            cache: cache_of(volume.cache),
            compression: compression_of(volume.compression),
            read_only: volume.read_only,
            lineage: volume.lineage,
            created: volume.created,
        };
        self.catalog.add_volume(volume.id, created);
    }

    fn add_lineage(&mut self, id: LineageId, volume: VolumeId, origin: Option<SnapshotId>, origin_epoch: Epoch, head: Head) {
        self.catalog.next_lineage = self.catalog.next_lineage.max(id.0 + 1);
        if let Some(origin) = origin.and_then(|origin| self.catalog.snapshots.get_mut(&origin)) {
            origin.children.push(id);
        }
        let lineage = Lineage {
            volume,
            origin,
            origin_epoch,
            snapshots: BTreeSet::new(),
            head: Some(head),
            deadlist: StoredDeadlist::default(),
            last_snap: origin_epoch,
            owned_units: 0,
        };
        self.catalog.lineages.insert(id, lineage);
    }

    fn snapshot(&mut self, volume: VolumeId, id: SnapshotId, name: &str, created: u64, description: &str, expires: Option<u64>) {
        self.catalog.next_snapshot = self.catalog.next_snapshot.max(id.0 + 1);
        let Some(v) = self.catalog.volumes.get(&volume) else { return };
        let (lineage, size) = (v.lineage, v.size);
        let Some(line) = self.catalog.lineages.get_mut(&lineage) else { return };
        let Some(head) = line.head else { return };
        let longest = self.pieces.directory_bytes(line.deadlist.list());
        line.deadlist.list_mut(&self.pieces).bound_tail(&self.pieces, FIXED_TAIL);
        let deadlist = StoredDeadlist::new(line.deadlist.take(&self.pieces), &self.pieces);
        line.snapshots.insert(id);
        line.last_snap = self.epoch;
        let snapshot = Snapshot {
            lineage,
            volume,
            name: name.to_owned(),
            epoch: self.epoch,
            root: head.root,
            mapped: head.mapped,
            size,
            created,
            expires,
            description: description.to_owned(),
            holds: Vec::new(),
            tags: Vec::new(),
            hidden: false,
            deadlist,
            children: Vec::new(),
        };
        self.catalog.add_snapshot(id, snapshot);
        self.list_changed(longest, 0);
    }

    fn rollback(&mut self, to: SnapshotId, keep: SnapshotId, name: &str, lineage: LineageId, created: u64) {
        let Some((volume, head, epoch, size)) =
            self.catalog.snapshots.get(&to).map(|s| (s.volume, Head { root: s.root, mapped: s.mapped }, s.epoch, s.size))
        else {
            return;
        };
        self.snapshot(volume, keep, name, created, "head before a rollback", None);
        self.epoch.0 += 1;
        self.rollbacks += 1;
        if let Some(old) = self.lineage_of(volume).and_then(|id| self.catalog.lineages.get_mut(&id)) {
            old.head = None;
        }
        self.add_lineage(lineage, volume, Some(to), epoch, head);
        if let Some(v) = self.catalog.volumes.get_mut(&volume) {
            v.lineage = lineage;
            v.size = size;
        }
    }

    /// Removes a volume's name and head. Its snapshots may be many: they are destroyed by later
    /// records, some at a time.
    fn remove_volume(&mut self, id: VolumeId) {
        let Some(volume) = self.catalog.remove_volume(id) else { return };
        let lineages = self.catalog.lineages.iter().filter(|(_, line)| line.volume == id).map(|(lineage, _)| *lineage);
        self.catalog.removed.extend(lineages.collect::<Vec<_>>());
        self.drop_head(volume.lineage);
    }

    fn destroy_volume(&mut self, id: VolumeId) {
        let Some(volume) = self.catalog.remove_volume(id) else { return };
        let lineages: Vec<LineageId> =
            self.catalog.lineages.iter().filter(|(_, line)| line.volume == id).map(|(lineage, _)| *lineage).collect();
        // youngest first, because a lineage starts from a snapshot of an older lineage
        for lineage in lineages.into_iter().rev() {
            let snapshots = self.catalog.lineages.get(&lineage).map(|line| line.snapshots.clone()).unwrap_or_default();
            if lineage == volume.lineage {
                self.drop_head(lineage);
            }
            for snapshot in snapshots {
                self.catalog.hide_snapshot(snapshot);
                self.settle_hidden(snapshot);
            }
        }
    }

    /// Frees the head of a lineage: blocks that were born after its last snapshot.
    fn drop_head(&mut self, id: LineageId) {
        let Some(line) = self.catalog.lineages.get_mut(&id) else { return };
        let Some(head) = line.head.take() else { return };
        let (bound, last) = (line.last_snap, line.snapshots.last().copied());
        // addresses in the head's deadlist are still live in the last snapshot, or in the origin
        let stale = std::mem::take(&mut line.deadlist);
        self.list_changed(self.pieces.directory_bytes(stale.list()), 0);
        self.retire(stale);
        self.start_walk(id, head.root, bound);
        self.drop_if_empty(id);
        if let Some(last) = last {
            // after a promotion, lineages of other volumes may start from a destroyed snapshot of a
            // lineage with a head
            self.settle_hidden(last);
        }
    }

    fn start_walk(&mut self, lineage: LineageId, root: TreeRoot, bound: Epoch) {
        if !root.addr.is_some() {
            return;
        }
        let id = self.catalog.next_walk;
        self.catalog.next_walk += 1;
        self.catalog.walks.insert(id, Walk { lineage, root, bound, cursor: BlockNo(0) });
    }

    pub(super) fn drop_if_empty(&mut self, id: LineageId) {
        let Some(line) = self.catalog.lineages.get(&id) else { return };
        if line.head.is_some() || !line.snapshots.is_empty() {
            return;
        }
        let origin = line.origin;
        if let Some(line) = self.catalog.remove_lineage(id) {
            self.retire(line.deadlist);
        }
        if let Some(origin) = origin {
            if let Some(s) = self.catalog.snapshots.get_mut(&origin) {
                s.children.retain(|child| *child != id);
            }
            self.settle_hidden(origin);
        }
    }

    /// Removes a destroyed snapshot if no lineage starts from it, or if the only one that does can
    /// continue its lineage.
    fn settle_hidden(&mut self, id: SnapshotId) {
        let Some(snapshot) = self.catalog.snapshots.get(&id) else { return };
        if !snapshot.hidden {
            return;
        }
        match snapshot.children.as_slice() {
            [] => self.remove_version(id),
            [child] => {
                let child = *child;
                if self.splice(id, child) {
                    self.remove_version(id);
                }
            }
            _ => {}
        }
    }

    /// Joins the only lineage that starts from the last version of a lineage without a head to that
    /// lineage. So the versions before it are neighbours again, and deadlists can free blocks that
    /// no version needs. The deadlists of the child have all blocks that died in it, whatever their
    /// birth, so the deadlists of the joined lineage are complete.
    fn splice(&mut self, at: SnapshotId, child: LineageId) -> bool {
        let Some(parent) = self.catalog.snapshots.get(&at).map(|s| s.lineage) else { return false };
        if !self.catalog.goes_on_with(at, child) {
            return false;
        }
        let Some(young) = self.catalog.remove_lineage(child) else { return false };
        for snapshot in &young.snapshots {
            if let Some(s) = self.catalog.snapshots.get_mut(snapshot) {
                s.lineage = parent;
            }
        }
        if let Some(v) = self.catalog.volumes.get_mut(&young.volume)
            && v.lineage == child
        {
            v.lineage = parent;
        }
        if let Some(s) = self.catalog.snapshots.get_mut(&at) {
            s.children.clear();
        }
        for walk in self.catalog.walks.values_mut().filter(|walk| walk.lineage == child) {
            walk.lineage = parent;
        }
        for (lineage, _) in self.catalog.frees.iter_mut().filter(|(lineage, _)| *lineage == child) {
            *lineage = parent;
        }
        for lineage in self.catalog.removed.iter_mut().filter(|lineage| **lineage == child) {
            *lineage = parent;
        }
        let mut stale = None;
        if let Some(line) = self.catalog.lineages.get_mut(&parent) {
            self.catalog.reservations.shrink(line.volume, line.owned_units);
            line.volume = young.volume;
            self.catalog.reservations.grow(line.volume, line.owned_units + young.owned_units);
            line.snapshots.extend(young.snapshots);
            line.head = young.head;
            stale = Some(std::mem::replace(&mut line.deadlist, young.deadlist));
            line.last_snap = young.last_snap;
            line.owned_units += young.owned_units;
        }
        stale.into_iter().for_each(|list| self.retire(list));
        true
    }

    /// Removes a version from its lineage. Between two versions: blocks that were born after the
    /// version before and died by the next one were only here, and are freed; the rest of the next
    /// version's deadlist is merged with this one's. At the end of a lineage without a head, a walk
    /// finds the blocks that were born after the version before.
    fn remove_version(&mut self, id: SnapshotId) {
        let Some(mut snapshot) = self.catalog.snapshots.remove(&id) else { return };
        let lineage = snapshot.lineage;
        let Some(line) = self.catalog.lineages.get(&lineage) else { return };
        let before = self.catalog.epoch_before(line, id);
        let next = Catalog::after(line, id);
        let has_head = line.head.is_some();
        if let Some(line) = self.catalog.lineages.get_mut(&lineage) {
            line.snapshots.remove(&id);
            if next.is_none() {
                line.last_snap = before;
            }
        }
        let mine = snapshot.deadlist.take(&self.pieces);
        self.retire(snapshot.deadlist);
        let longest = if next.is_some() { FIXED_TAIL } else { self.longest_tail() };
        let target = match next {
            Some(next) => self.catalog.snapshots.get_mut(&next).map(|s| &mut s.deadlist),
            None if has_head => self.catalog.lineages.get_mut(&lineage).map(|l| &mut l.deadlist),
            None => None,
        };
        match target {
            Some(deadlist) => {
                let before_split = self.pieces.directory_bytes(deadlist.list());
                let only_here = deadlist.list_mut(&self.pieces).split_after(before, &self.pieces);
                deadlist.list_mut(&self.pieces).merge(Rc::unwrap_or_clone(mine), &self.pieces, longest);
                let now = deadlist.share();
                if next.is_none() {
                    self.list_changed(before_split, now);
                }
                if !only_here.is_empty() {
                    self.catalog.add_free(lineage, StoredDeadlist::new(Rc::new(only_here), &self.pieces));
                }
            }
            None => {
                self.fade(mine);
                self.start_walk(lineage, snapshot.root, before);
            }
        }
        let last = self.catalog.lineages.get(&lineage).and_then(|line| line.snapshots.last().copied());
        self.drop_if_empty(lineage);
        if let Some(last) = last {
            // a hidden version may now be the end of its lineage, or the only one before the
            // lineage that starts from it
            self.settle_hidden(last);
        }
    }
}
