//! Which version came after which, and whose it is: what promotions move.
//!
//! Every snapshot there ever was is remembered with the one before it. Whether the engine still has one that was destroyed makes no
//! difference: it goes where its line goes.

use std::collections::{BTreeMap, BTreeSet};

use millpond_engine::{SnapshotId, VolumeId};

use super::Oracle;

/// A snapshot, listed or destroyed.
#[derive(Clone, Copy, Debug)]
struct Link {
    volume: VolumeId,
    before: Option<SnapshotId>,
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Ancestry(BTreeMap<SnapshotId, Link>);

impl Ancestry {
    /// From `at` on backwards, `at` included: each snapshot, and whose it is.
    fn line(&self, at: Option<SnapshotId>) -> impl Iterator<Item = (SnapshotId, VolumeId)> + '_ {
        let find = |id: SnapshotId| self.0.get(&id).map(|link| (id, *link));
        let links = std::iter::successors(at.and_then(find), move |(_, link)| link.before.and_then(find));
        links.map(|(id, link)| (id, link.volume))
    }

    /// The first snapshot of another volume.
    fn origin(&self, volume: VolumeId, base: Option<SnapshotId>) -> Option<(SnapshotId, VolumeId)> {
        self.line(base).find(|(_, of)| *of != volume)
    }

    /// Snapshots that a promotion of the volume moves, destroyed ones too.
    fn moved(&self, volume: VolumeId, base: Option<SnapshotId>) -> Vec<SnapshotId> {
        let Some((first, from)) = self.origin(volume, base) else { return Vec::new() };
        self.line(Some(first)).take_while(|(_, of)| *of == from).map(|(id, _)| id).collect()
    }
}

impl Oracle {
    /// A head was frozen as a snapshot.
    pub(super) fn descend(&mut self, volume: VolumeId, id: SnapshotId) {
        let before = self.volumes.get_mut(&volume).and_then(|v| v.base.replace(id));
        self.ancestry.0.insert(id, Link { volume, before });
    }

    /// A head starts anew from a snapshot.
    pub(super) fn start_from(&mut self, volume: VolumeId, id: SnapshotId) {
        self.volumes.get_mut(&volume).into_iter().for_each(|v| v.base = Some(id));
        self.find_origins();
    }

    fn find_origins(&mut self) {
        for (id, volume) in &mut self.volumes {
            volume.origin = self.ancestry.origin(*id, volume.base).map(|(origin, _)| origin);
        }
    }

    /// The volume that another one is a clone of, whether its snapshot is listed or not.
    pub fn origin_volume(&self, volume: VolumeId) -> Option<VolumeId> {
        let base = self.volumes.get(&volume)?.base;
        self.ancestry.origin(volume, base).map(|(_, of)| of)
    }

    /// Snapshots of one volume with a version of another one directly after them, and that one. Only lines count that lead to a head or to
    /// a listed snapshot.
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

    /// Does another volume start from a snapshot of this one, listed or destroyed?
    pub fn is_needed_by_others(&self, volume: VolumeId) -> bool {
        self.crossings().iter().any(|(id, _)| self.ancestry.0.get(id).is_some_and(|link| link.volume == volume))
    }

    /// Listed snapshots that a promotion of the volume moves.
    pub(super) fn promotion(&self, volume: VolumeId) -> Vec<SnapshotId> {
        let base = self.volumes.get(&volume).and_then(|v| v.base);
        self.ancestry.moved(volume, base).into_iter().filter(|id| self.snapshots.contains_key(id)).collect()
    }

    /// A clone was promoted.
    pub(super) fn promote(&mut self, volume: VolumeId) {
        let base = self.volumes.get(&volume).and_then(|v| v.base);
        for id in self.ancestry.moved(volume, base) {
            self.ancestry.0.get_mut(&id).into_iter().for_each(|link| link.volume = volume);
            self.snapshots.get_mut(&id).into_iter().for_each(|snapshot| snapshot.volume = volume);
        }
        self.find_origins();
    }
}
