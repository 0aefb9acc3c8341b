//! The order of versions and the volume of each, which promotions change.
//!
//! Every snapshot that ever existed is kept with its predecessor. Whether the engine still keeps a
//! destroyed snapshot makes no difference: it moves with its line.

use std::collections::{BTreeMap, BTreeSet};

use millpond_engine::{SnapshotId, VolumeId};

use super::Oracle;

/// A snapshot, listed or destroyed.
#[derive(Clone, Copy, Debug)]
struct Link {
    volume: VolumeId,
    before: Option<SnapshotId>,
}

/// All snapshots.
#[derive(Clone, Debug, Default)]
pub(super) struct Ancestry(BTreeMap<SnapshotId, Link>);

impl Ancestry {
    /// Returns the snapshots from `at` backwards, `at` included, each with its volume.
    fn line(&self, at: Option<SnapshotId>) -> impl Iterator<Item = (SnapshotId, VolumeId)> + '_ {
        let find = |id: SnapshotId| self.0.get(&id).map(|link| (id, *link));
        let links = std::iter::successors(at.and_then(find), move |(_, link)| link.before.and_then(find));
        links.map(|(id, link)| (id, link.volume))
    }

    /// Returns the first snapshot of another volume, with that volume.
    fn origin(&self, volume: VolumeId, base: Option<SnapshotId>) -> Option<(SnapshotId, VolumeId)> {
        self.line(base).find(|(_, of)| *of != volume)
    }

    /// Returns the snapshots that a promotion of the volume moves, destroyed ones included.
    fn moved(&self, volume: VolumeId, base: Option<SnapshotId>) -> Vec<SnapshotId> {
        let Some((first, from)) = self.origin(volume, base) else { return Vec::new() };
        self.line(Some(first)).take_while(|(_, of)| *of == from).map(|(id, _)| id).collect()
    }
}

impl Oracle {
    /// Records that a head was frozen as a snapshot.
    pub(super) fn descend(&mut self, volume: VolumeId, id: SnapshotId) {
        let before = self.volumes.get_mut(&volume).and_then(|v| v.base.replace(id));
        self.ancestry.0.insert(id, Link { volume, before });
    }

    /// Records that a head starts from a snapshot.
    pub(super) fn start_from(&mut self, volume: VolumeId, id: SnapshotId) {
        self.volumes.get_mut(&volume).into_iter().for_each(|v| v.base = Some(id));
        self.find_origins();
    }

    fn find_origins(&mut self) {
        for (id, volume) in &mut self.volumes {
            volume.origin = self.ancestry.origin(*id, volume.base).map(|(origin, _)| origin);
        }
    }

    /// Returns the volume that another one is a clone of, even if the origin snapshot is destroyed.
    pub fn origin_volume(&self, volume: VolumeId) -> Option<VolumeId> {
        let base = self.volumes.get(&volume)?.base;
        self.ancestry.origin(volume, base).map(|(_, of)| of)
    }

    /// Returns pairs of a snapshot and another volume that has a version directly after it. Only
    /// lines that lead to a head or to a listed snapshot count.
    pub(super) fn crossings(&self) -> BTreeSet<(SnapshotId, VolumeId)> {
        let heads = self.volumes.iter().filter_map(|(id, v)| Some((*id, v.base?)));
        let listed = self.snapshots.keys().filter_map(|id| self.ancestry.0.get(id)).filter_map(|link| Some((link.volume, link.before?)));
        let (mut found, mut seen) = (BTreeSet::new(), BTreeSet::new());
        for (mut of, at) in heads.chain(listed) {
            for (id, owner) in self.ancestry.line(Some(at)) {
                if owner != of {
                    found.insert((id, of));
                }
                if !seen.insert(id) {
                    break;
                }
                of = owner;
            }
        }
        found
    }

    /// Returns whether another volume starts from a snapshot of this one, listed or destroyed.
    pub fn is_needed_by_others(&self, volume: VolumeId) -> bool {
        self.crossings().iter().any(|(id, _)| self.ancestry.0.get(id).is_some_and(|link| link.volume == volume))
    }

    /// Returns the listed snapshots that a promotion of the volume moves.
    pub(super) fn promotion(&self, volume: VolumeId) -> Vec<SnapshotId> {
        let base = self.volumes.get(&volume).and_then(|v| v.base);
        self.ancestry.moved(volume, base).into_iter().filter(|id| self.snapshots.contains_key(id)).collect()
    }

    /// Applies the promotion of a clone.
    pub(super) fn promote(&mut self, volume: VolumeId) {
        let base = self.volumes.get(&volume).and_then(|v| v.base);
        for id in self.ancestry.moved(volume, base) {
            self.ancestry.0.get_mut(&id).into_iter().for_each(|link| link.volume = volume);
            self.snapshots.get_mut(&id).into_iter().for_each(|snapshot| snapshot.volume = volume);
        }
        self.find_origins();
    }
}
