//! The catalog: volumes, lineages of versions, and snapshots.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use millpond_block::{CacheMode, SectorProfile};
use millpond_format::{BlockNo, Epoch, HoldRecord, JobsRecord, LineageId, Lock, SnapshotId, SnapshotRecord, Standing, TreeRoot, VolumeId};

use super::reservations::Reservations;
use super::snapshots::SnapshotTable;
use super::stored_deadlist::StoredDeadlist;
use crate::space::Deadlist;
use crate::{Compression, VolumeOptions};

/// A volume: a name and properties for the head of a lineage.
#[derive(Clone, Debug)]
pub(crate) struct Volume {
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) sector: SectorProfile,
    pub(crate) cache: CacheMode,
    pub(crate) compression: Compression,
    pub(crate) read_only: bool,
    pub(crate) lineage: LineageId,
    pub(crate) created: u64,
}

/// The source of a base's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    /// Bytes that are fetched at a time.
    pub(crate) unit: u32,
    /// The place from which they are fetched, in the caller's words.
    pub(crate) source: String,
}

/// The head of a lineage.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Head {
    pub(crate) root: TreeRoot,
    /// Number of mapped blocks.
    pub(crate) mapped: u64,
}

/// A lineage: snapshots in order, then perhaps a head. The deadlist of a version has what died in
/// it and lived in the version before.
#[derive(Debug)]
pub(crate) struct Lineage {
    pub(crate) volume: VolumeId,
    pub(crate) origin: Option<SnapshotId>,
    pub(crate) origin_epoch: Epoch,
    /// In order of epochs, which is the order of ids.
    pub(crate) snapshots: BTreeSet<SnapshotId>,
    pub(crate) head: Option<Head>,
    /// Deadlist of the head.
    pub(crate) deadlist: StoredDeadlist,
    /// Epoch of the last snapshot, or of the origin: blocks born later belong to the head only.
    pub(crate) last_snap: Epoch,
    /// Units of live blocks that were written in this lineage.
    pub(crate) owned_units: u64,
}

/// A snapshot.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) lineage: LineageId,
    pub(crate) volume: VolumeId,
    pub(crate) name: String,
    pub(crate) epoch: Epoch,
    pub(crate) root: TreeRoot,
    pub(crate) mapped: u64,
    pub(crate) size: u64,
    pub(crate) created: u64,
    pub(crate) expires: Option<u64>,
    pub(crate) description: String,
    /// Holds without a tag: the time when each ends by itself.
    pub(crate) holds: Vec<Option<u64>>,
    /// Holds with tags; no two have the same tag.
    pub(crate) tags: Vec<HoldRecord>,
    /// True when it was destroyed, but lineages start from it.
    pub(crate) hidden: bool,
    /// Blocks and nodes that died between the previous version and this one.
    pub(crate) deadlist: StoredDeadlist,
    /// Lineages that start from it.
    pub(crate) children: Vec<LineageId>,
}

impl Snapshot {
    /// Maximum bytes of its record.
    pub(super) fn record_bytes(&self) -> usize {
        let lock = |hold: &HoldRecord| if hold.lock == Lock::No { 0 } else { Lock::MORE };
        let tags = self.tags.iter().map(|hold| 24 + hold.tag.len() + lock(hold)).sum::<usize>();
        160 + self.name.len() + self.description.len() + self.holds.len() * 9 + tags
    }

    /// Returns its record for a checkpoint; the place of its deadlist is filled in later.
    pub(crate) fn record(&self, id: SnapshotId) -> SnapshotRecord {
        SnapshotRecord {
            id,
            lineage: self.lineage,
            name: self.name.clone(),
            epoch: self.epoch,
            root: self.root,
            mapped: self.mapped,
            size: self.size,
            created: self.created,
            expires: self.expires,
            description: self.description.clone(),
            holds: self.holds.clone(),
            standing: Standing { hidden: self.hidden, tags: self.tags.clone() },
            deadlist: None,
        }
    }
}

/// The newest version of a lineage, which is being freed block by block.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    pub(crate) lineage: LineageId,
    pub(crate) root: TreeRoot,
    pub(crate) bound: Epoch,
    pub(crate) cursor: BlockNo,
}

/// All volumes, lineages and snapshots, and the work that frees their space.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    pub(crate) volumes: BTreeMap<VolumeId, Volume>,
    pub(crate) lineages: BTreeMap<LineageId, Lineage>,
    pub(crate) snapshots: SnapshotTable,
    volume_names: BTreeMap<String, VolumeId>,
    snapshot_names: BTreeMap<(VolumeId, String), SnapshotId>,
    /// Bytes of the names of all volumes.
    names: usize,
    /// Number of listed snapshots of each volume.
    snapshot_counts: BTreeMap<VolumeId, u64>,
    /// Units in those lists of `frees` that are counted.
    pub(crate) backlog: u64,
    pub(crate) walks: BTreeMap<u64, Walk>,
    /// Lists of dead blocks to be freed, oldest first.
    pub(crate) frees: VecDeque<(LineageId, StoredDeadlist)>,
    /// Number of these lists, from the first on, that are cut and counted; only these are freed.
    counted_frees: usize,
    /// INV-CAT-6: lineages of removed volumes whose snapshots are to be destroyed, the last lineage
    /// first. Every snapshot of a removed volume that is not destroyed yet is in one of them.
    pub(crate) removed: Vec<LineageId>,
    pub(crate) next_volume: u32,
    pub(crate) next_snapshot: u64,
    pub(crate) next_lineage: u64,
    pub(crate) next_walk: u64,
    /// Options of volumes, where they differ from the defaults.
    options: BTreeMap<VolumeId, VolumeOptions>,
    pub(crate) reservations: Reservations,
    /// The volumes that are bases: their blocks are fetched when they are read.
    pub(crate) bases: BTreeMap<VolumeId, Base>,
    /// Jobs as they were last recorded.
    pub(crate) jobs: JobsRecord,
    /// The wipe that was running then ([`Wipe::code`](crate::Wipe::code)).
    pub(crate) wipe: u8,
}

impl Catalog {
    /// Returns the number of blocks of a base; those beyond are zero in its clones.
    pub(crate) fn base_blocks(&self, base: VolumeId) -> u64 {
        self.volumes.get(&base).map_or(u64::MAX, |volume| volume.size / 4096)
    }

    /// Options of a volume.
    pub(crate) fn options_of(&self, volume: VolumeId) -> VolumeOptions {
        self.options.get(&volume).copied().unwrap_or_default()
    }

    /// Options of all volumes where they differ from the defaults.
    pub(crate) fn options(&self) -> &BTreeMap<VolumeId, VolumeOptions> {
        &self.options
    }

    pub(crate) fn set_options(&mut self, volume: VolumeId, options: VolumeOptions) {
        let known = self.volumes.contains_key(&volume);
        match options == VolumeOptions::default() || !known {
            true => self.options.remove(&volume),
            false => self.options.insert(volume, options),
        };
        if known && options.reservation > 0 {
            self.reservations.set(volume, options.reservation, self.owned_units(volume));
        } else {
            self.reservations.remove(volume);
        }
    }

    /// Loads options from a checkpoint whose lineages are loaded.
    pub(crate) fn load_options(&mut self, options: impl Iterator<Item = (VolumeId, VolumeOptions)>) {
        let mut owned: BTreeMap<VolumeId, u64> = BTreeMap::new();
        self.lineages.values().for_each(|line| *owned.entry(line.volume).or_default() += line.owned_units);
        for (volume, options) in
            options.filter(|(volume, options)| *options != VolumeOptions::default() && self.volumes.contains_key(volume))
        {
            self.options.insert(volume, options);
            self.reservations.set(volume, options.reservation, owned.get(&volume).copied().unwrap_or(0));
        }
    }

    /// Adds to the units of data that a lineage owns. Returns the lineage if it exists.
    pub(crate) fn grow(&mut self, lineage: LineageId, units: u64) -> Option<&mut Lineage> {
        let line = self.lineages.get_mut(&lineage)?;
        line.owned_units += units;
        self.reservations.grow(line.volume, units);
        Some(line)
    }

    /// Subtracts from the units of data that a lineage owns.
    pub(crate) fn shrink(&mut self, lineage: LineageId, units: u64) {
        if let Some(line) = self.lineages.get_mut(&lineage) {
            let units = units.min(line.owned_units);
            line.owned_units -= units;
            self.reservations.shrink(line.volume, units);
        }
    }

    /// Removes a lineage, and the units that it owns from its volume.
    pub(crate) fn remove_lineage(&mut self, id: LineageId) -> Option<Lineage> {
        let line = self.lineages.remove(&id)?;
        self.reservations.shrink(line.volume, line.owned_units);
        Some(line)
    }

    /// Adds a lineage, and the units that it owns to its volume.
    pub(crate) fn insert_lineage(&mut self, id: LineageId, line: Lineage) {
        self.reservations.grow(line.volume, line.owned_units);
        self.lineages.insert(id, line);
    }

    /// Units of data of a volume and its snapshots.
    pub(crate) fn owned_units(&self, volume: VolumeId) -> u64 {
        self.lineages.values().filter(|line| line.volume == volume).map(|line| line.owned_units).sum()
    }

    pub(crate) fn volume_named(&self, name: &str) -> Option<VolumeId> {
        self.volume_names.get(name).copied()
    }

    pub(crate) fn snapshot_named(&self, volume: VolumeId, name: &str) -> Option<SnapshotId> {
        self.snapshot_names.get(&(volume, name.to_owned())).copied()
    }

    /// The snapshots of a volume, by name.
    pub(crate) fn snapshot_names_of(&self, volume: VolumeId) -> impl Iterator<Item = (&str, SnapshotId)> {
        let names = self.snapshot_names.range((volume, String::new())..);
        names.take_while(move |((of, _), _)| *of == volume).map(|((_, name), id)| (name.as_str(), *id))
    }

    pub(crate) fn add_volume(&mut self, id: VolumeId, volume: Volume) {
        self.names += volume.name.len();
        self.volume_names.insert(volume.name.clone(), id);
        self.volumes.insert(id, volume);
    }

    pub(crate) fn remove_volume(&mut self, id: VolumeId) -> Option<Volume> {
        let volume = self.volumes.remove(&id)?;
        self.names -= volume.name.len();
        self.volume_names.remove(&volume.name);
        self.bases.remove(&id);
        self.options.remove(&id);
        self.reservations.remove(id);
        Some(volume)
    }

    pub(crate) fn rename_volume(&mut self, id: VolumeId, name: String) {
        if let Some(volume) = self.volumes.get_mut(&id) {
            self.volume_names.remove(&volume.name);
            self.names = self.names - volume.name.len() + name.len();
            volume.name.clone_from(&name);
            self.volume_names.insert(name, id);
        }
    }

    pub(crate) fn add_snapshot(&mut self, id: SnapshotId, snapshot: Snapshot) {
        self.name_snapshot(id, &snapshot);
        self.snapshots.insert(id, snapshot);
    }

    /// Loads a snapshot from a checkpoint.
    pub(crate) fn load_snapshot(&mut self, id: SnapshotId, snapshot: Snapshot) {
        self.name_snapshot(id, &snapshot);
        self.snapshots.load(id, snapshot);
    }

    fn name_snapshot(&mut self, id: SnapshotId, snapshot: &Snapshot) {
        if !snapshot.hidden {
            self.snapshot_names.insert((snapshot.volume, snapshot.name.clone()), id);
            *self.snapshot_counts.entry(snapshot.volume).or_default() += 1;
        }
    }

    pub(crate) fn rename_snapshot(&mut self, id: SnapshotId, name: String) {
        if let Some(snapshot) = self.snapshots.get_mut(&id) {
            self.snapshot_names.remove(&(snapshot.volume, std::mem::replace(&mut snapshot.name, name.clone())));
            self.snapshot_names.insert((snapshot.volume, name), id);
        }
    }

    /// Removes a snapshot's name: it is not listed any more.
    pub(crate) fn hide_snapshot(&mut self, id: SnapshotId) {
        if let Some(snapshot) = self.snapshots.get_mut(&id) {
            if std::mem::replace(&mut snapshot.hidden, true) {
                return;
            }
            self.snapshot_names.remove(&(snapshot.volume, snapshot.name.clone()));
            if let Some(count) = self.snapshot_counts.get_mut(&snapshot.volume) {
                *count -= 1;
                if *count == 0 {
                    self.snapshot_counts.remove(&snapshot.volume);
                }
            }
        }
    }

    /// Moves the name and the count of a listed snapshot to another volume.
    pub(super) fn rename_owner(&mut self, old: VolumeId, new: VolumeId, id: SnapshotId, name: String) {
        self.snapshot_names.remove(&(old, name.clone()));
        self.snapshot_names.insert((new, name), id);
        if let Some(count) = self.snapshot_counts.get_mut(&old) {
            *count -= 1;
            if *count == 0 {
                self.snapshot_counts.remove(&old);
            }
        }
        *self.snapshot_counts.entry(new).or_default() += 1;
    }

    /// Returns a snapshot if it is listed: neither destroyed nor of a removed volume.
    pub(crate) fn listed(&self, id: SnapshotId) -> Option<&Snapshot> {
        self.snapshots.get(&id).filter(|s| !s.hidden && self.volumes.contains_key(&s.volume))
    }

    /// Returns up to `most` snapshots of removed volumes to be destroyed next: of the youngest
    /// lineage, because lineages start from snapshots of older ones; the oldest first.
    pub(crate) fn next_removed(&mut self, most: usize) -> Vec<SnapshotId> {
        while let Some(id) = self.removed.last() {
            let snapshots = self.lineages.get(id).map(|line| line.snapshots.iter().copied());
            let left = snapshots.into_iter().flatten().filter(|id| self.snapshots.get(id).is_some_and(|s| !s.hidden));
            let next: Vec<SnapshotId> = left.take(most).collect();
            if !next.is_empty() {
                return next;
            }
            self.removed.pop();
        }
        Vec::new()
    }

    /// Finds the lineages of removed volumes, because a checkpoint does not store them.
    pub(crate) fn find_removed(&mut self) {
        let gone = self.lineages.iter().filter(|(_, line)| !self.volumes.contains_key(&line.volume));
        self.removed = gone.map(|(id, _)| *id).collect();
    }

    /// Bytes of the names of all volumes.
    pub(crate) fn names(&self) -> usize {
        self.names
    }

    /// Number of listed snapshots of a volume.
    pub(crate) fn snapshot_count(&self, volume: VolumeId) -> u64 {
        self.snapshot_counts.get(&volume).copied().unwrap_or(0)
    }

    /// Adds a list of dead blocks of a lineage that are to be freed.
    pub(crate) fn add_free(&mut self, lineage: LineageId, list: StoredDeadlist) {
        self.frees.push_back((lineage, list));
        self.count_frees();
    }

    /// Counts the units of waiting lists that have been cut meanwhile.
    pub(crate) fn count_frees(&mut self) {
        while let Some((_, list)) = self.frees.get(self.counted_frees)
            && list.list().is_cut()
        {
            self.backlog += list.list().units();
            self.counted_frees += 1;
        }
    }

    /// True when lists wait that are not counted yet.
    pub(crate) fn has_uncounted_frees(&self) -> bool {
        self.counted_frees < self.frees.len()
    }

    /// Returns the list to free next and its index. Skips lists with an unreadable next piece.
    pub(crate) fn next_free(&mut self) -> Option<(usize, &mut (LineageId, StoredDeadlist))> {
        self.frees.iter_mut().take(self.counted_frees).enumerate().find(|(_, (_, list))| !list.list().has_only_unreadable())
    }

    /// Removes an empty list from those that are freed.
    pub(crate) fn end_free(&mut self, at: usize) -> Option<StoredDeadlist> {
        let (_, list) = self.frees.remove(at)?;
        self.counted_frees -= usize::from(at < self.counted_frees);
        Some(list)
    }

    /// True when dead blocks wait that can be freed.
    pub(crate) fn has_frees(&self) -> bool {
        self.frees.iter().any(|(_, list)| !list.list().has_only_unreadable())
    }

    /// Units of guest data that cannot be freed because their pieces could not be read.
    pub(crate) fn units_left_out(&self) -> u64 {
        self.frees.iter().map(|(_, list)| list.list().units_left_out()).sum()
    }

    /// Tries again to free lists whose pieces could not be read.
    pub(crate) fn retry_frees(&mut self) {
        self.frees.iter_mut().filter(|(_, list)| list.list().has_unreadable()).for_each(|(_, list)| list.change_order(Deadlist::retry));
    }

    /// All deadlists.
    pub(crate) fn deadlists(&self) -> impl Iterator<Item = &StoredDeadlist> {
        let lineages = self.lineages.values().map(|line| &line.deadlist);
        lineages.chain(self.snapshots.values().map(|s| &s.deadlist)).chain(self.frees.iter().map(|(_, list)| list))
    }

    pub(crate) fn head(&self, volume: VolumeId) -> Option<(&Volume, &Lineage)> {
        let volume = self.volumes.get(&volume)?;
        Some((volume, self.lineages.get(&volume.lineage)?))
    }

    /// The version before a snapshot in its lineage.
    pub(crate) fn before(lineage: &Lineage, id: SnapshotId) -> Option<SnapshotId> {
        lineage.snapshots.range(..id).next_back().copied()
    }

    /// The snapshot after one in its lineage.
    pub(crate) fn after(lineage: &Lineage, id: SnapshotId) -> Option<SnapshotId> {
        lineage.snapshots.range((Bound::Excluded(id), Bound::Unbounded)).next().copied()
    }

    /// Epoch of the version before a snapshot in its lineage.
    pub(crate) fn epoch_before(&self, lineage: &Lineage, id: SnapshotId) -> Epoch {
        let before = Catalog::before(lineage, id).and_then(|id| self.snapshots.get(&id));
        before.map_or(lineage.origin_epoch, |snapshot| snapshot.epoch)
    }

    /// Units of data that only this snapshot has: those that died by the next version and were born
    /// after the version before. After the last snapshot of a lineage without a head, the next
    /// version is in the only lineage that starts from it. `None` for other snapshots that lineages
    /// start from, and for the last one of a lineage without a head.
    pub(crate) fn units_alone(&self, id: SnapshotId) -> Option<u64> {
        let snapshot = self.snapshots.get(&id)?;
        let line = self.lineages.get(&snapshot.lineage)?;
        let died = match snapshot.children.as_slice() {
            [] => self.died_by_next(line, id),
            [child] if self.goes_on_with(id, *child) => self.died_by_next(self.lineages.get(child)?, id),
            _ => None,
        };
        Some(died?.units_after(self.epoch_before(line, id)))
    }

    /// The deadlist of the first version after `id` in a lineage.
    fn died_by_next<'a>(&'a self, line: &'a Lineage, id: SnapshotId) -> Option<&'a Deadlist> {
        let next = Catalog::after(line, id).and_then(|next| self.snapshots.get(&next)).map(|next| next.deadlist.list());
        next.or(line.head.is_some().then(|| line.deadlist.list()))
    }

    /// True when the lineage that starts from a snapshot can continue the snapshot's lineage after
    /// the snapshot is removed: the snapshot is the end of a lineage without a head.
    pub(crate) fn goes_on_with(&self, at: SnapshotId, child: LineageId) -> bool {
        let line = self.snapshots.get(&at).and_then(|snapshot| self.lineages.get(&snapshot.lineage));
        let (Some(line), Some(young)) = (line, self.lineages.get(&child)) else { return false };
        let foreign = line.volume != young.volume;
        // a promoted clone and the volume that starts from it stay separate
        let both = foreign && self.volumes.contains_key(&line.volume) && self.volumes.contains_key(&young.volume);
        line.head.is_none() && line.snapshots.last() == Some(&at) && !both && !(foreign && line.snapshots.len() > 1)
    }

    /// Number of other volumes that start from a snapshot.
    pub(crate) fn clones_of(&self, id: SnapshotId) -> u32 {
        let Some(snapshot) = self.snapshots.get(&id) else { return 0 };
        let lines = snapshot.children.iter().filter_map(|child| self.lineages.get(child));
        let mut clones: Vec<VolumeId> = lines.filter(|l| l.volume != snapshot.volume && self.is_needed(l)).map(|l| l.volume).collect();
        clones.sort_unstable();
        clones.dedup();
        u32::try_from(clones.len()).unwrap_or(u32::MAX)
    }

    /// True when a lineage, or one that starts from it, has a head or a listed snapshot. Lineages
    /// of destroyed volumes, which exist until their space is reclaimed, do not count.
    fn is_needed(&self, line: &Lineage) -> bool {
        let mut todo = vec![line];
        while let Some(line) = todo.pop() {
            if !self.volumes.contains_key(&line.volume) {
                continue;
            }
            if line.head.is_some() || line.snapshots.iter().any(|id| self.listed(*id).is_some()) {
                return true;
            }
            let children = line.snapshots.iter().filter_map(|id| self.snapshots.get(id)).flat_map(|s| &s.children);
            todo.extend(children.filter_map(|child| self.lineages.get(child)));
        }
        false
    }
}

#[cfg(test)]
mod tests;
