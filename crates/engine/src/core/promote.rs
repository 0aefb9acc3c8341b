//! Promotion: a clone takes over the versions that it starts from, and their former volume becomes
//! a clone of them.
//!
//! The line of versions forks at the clone's origin: one end belongs to the volume that was cloned,
//! the other to the clone. The two lineages swap their ends. Every version keeps its map, its
//! deadlist and the version before it, so no block is copied, moved or freed.

use std::collections::BTreeSet;

use millpond_format::{Epoch, LineageId, SnapshotId, VolumeId};

use super::catalog::{Catalog, Lineage};
use super::state::Core;
use crate::{Planted, PromotionPlan};

/// The origin of a volume: a lineage that starts from a snapshot of another volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) lineage: LineageId,
    pub(crate) snapshot: SnapshotId,
    pub(crate) volume: VolumeId,
}

/// A fork of a line of versions, and the units that the parent owns from before it.
#[derive(Clone, Copy, Debug)]
struct Fork {
    parent: LineageId,
    at: SnapshotId,
    child: LineageId,
    units: u64,
}

/// A possible promotion.
#[derive(Clone, Debug)]
pub(crate) struct Promotion {
    /// The volume whose snapshots move.
    pub(crate) from: VolumeId,
    /// Listed snapshots that are moved.
    pub(crate) snapshots: Vec<SnapshotId>,
    /// Units of data that these snapshots account for.
    pub(crate) units: u64,
    forks: Vec<Fork>,
}

impl Promotion {
    /// Returns the plan for the caller.
    pub(crate) fn plan(&self) -> PromotionPlan {
        PromotionPlan { from: self.from, snapshots: self.snapshots.clone(), bytes: self.units * 512 }
    }
}

impl Catalog {
    /// Returns the snapshot of another volume that a volume starts from. Lineages that a rollback
    /// started from the volume's own snapshots are followed back.
    pub(crate) fn origin_of(&self, volume: VolumeId) -> Option<Origin> {
        let mut lineage = self.volumes.get(&volume)?.lineage;
        loop {
            let snapshot = self.lineages.get(&lineage)?.origin?;
            let found = self.snapshots.get(&snapshot)?;
            if found.volume != volume {
                return Some(Origin { lineage, snapshot, volume: found.volume });
            }
            lineage = found.lineage;
        }
    }

    /// True when a lineage starts from a snapshot of a lineage with a greater id. Programs without
    /// promotion refuse such a pool.
    pub(crate) fn is_reordered(&self) -> bool {
        let mut origins = self.lineages.iter().filter_map(|(id, line)| Some((id, self.snapshots.get(&line.origin?)?)));
        origins.any(|(id, origin)| origin.lineage >= *id)
    }

    /// Returns the promotion of a volume; `None` if it is not a clone.
    pub(crate) fn promotion(&self, volume: VolumeId) -> Option<Promotion> {
        let origin = self.origin_of(volume).filter(|origin| self.volumes.contains_key(&origin.volume))?;
        let mut promotion = Promotion { from: origin.volume, snapshots: Vec::new(), units: 0, forks: Vec::new() };
        let (mut child, mut next) = (origin.lineage, Some(origin.snapshot));
        while let Some(at) = next {
            let Some(snapshot) = self.snapshots.get(&at).filter(|snapshot| snapshot.volume == origin.volume) else { break };
            let parent = snapshot.lineage;
            let line = self.lineages.get(&parent)?;
            let listed = line.snapshots.range(..=at).filter(|id| self.listed(**id).is_some());
            promotion.snapshots.extend(listed);
            let units = self.units_until(parent, line, at);
            promotion.units += units;
            promotion.forks.push(Fork { parent, at, child, units });
            (child, next) = (parent, line.origin);
        }
        promotion.snapshots.sort_unstable();
        Some(promotion)
    }

    /// Snapshots whose records a promotion changes: those after each fork.
    pub(crate) fn changed_by(&self, promotion: &Promotion) -> impl Iterator<Item = SnapshotId> {
        promotion.forks.iter().flat_map(move |fork| {
            let first = SnapshotId(fork.at.0 + 1);
            let lines = [fork.parent, fork.child].into_iter().filter_map(|id| self.lineages.get(&id));
            lines.flat_map(move |line| line.snapshots.range(first..)).copied()
        })
    }

    /// Units that a lineage owns and that were born before one of its snapshots was taken. Exact if
    /// nothing is compressed, because a version counts its blocks, not their units. Otherwise units
    /// are divided in proportion.
    fn units_until(&self, id: LineageId, line: &Lineage, at: SnapshotId) -> u64 {
        let mapped = |id: Option<SnapshotId>| id.and_then(|id| self.snapshots.get(&id)).map_or(0, |s| s.mapped * 8);
        let Some(bound) = self.snapshots.get(&at).map(|snapshot| snapshot.epoch) else { return 0 };
        let (mut own, mut inherited) = (0, 0);
        for list in line.snapshots.range(..=at).filter_map(|id| self.snapshots.get(id)).map(|s| s.deadlist.list()) {
            let young = list.units_after(line.origin_epoch);
            own += young;
            inherited += list.units() - young;
        }
        // blocks that died since, or are still live
        let early = own + mapped(Some(at)).saturating_sub(mapped(line.origin).saturating_sub(inherited));
        let (mut own, mut shared) = (0, 0);
        let later = || line.snapshots.range(SnapshotId(at.0 + 1)..).filter_map(|id| self.snapshots.get(id));
        for list in later().map(|s| s.deadlist.list()).chain(line.head.is_some().then(|| line.deadlist.list())) {
            let young = list.units_after(bound);
            own += young;
            shared += list.units() - young;
        }
        let end = line.head.map_or(later().next_back().map(|s| s.mapped), |head| Some(head.mapped));
        let late = end.map_or(0, |mapped_blocks| own + (mapped_blocks * 8).saturating_sub(mapped(Some(at)).saturating_sub(shared)));
        let mut waiting = (0, 0);
        for list in self.frees.iter().filter(|(of, _)| *of == id).map(|(_, list)| list.list()) {
            let side = if list.units_after(bound) > 0 { &mut waiting.1 } else { &mut waiting.0 };
            *side += list.units();
        }
        let rest = line.owned_units.saturating_sub(waiting.0 + waiting.1);
        let (early, all) = (u128::from(early), u128::from(early) + u128::from(late));
        let early = if all <= u128::from(rest) { early } else { early * u128::from(rest) / all };
        u64::try_from(early).unwrap_or(rest) + waiting.0
    }

    /// Moves a snapshot to another volume and lineage.
    fn move_snapshot(&mut self, id: SnapshotId, volume: VolumeId, lineage: LineageId) {
        let Some(snapshot) = self.snapshots.get(&id) else { return };
        let (old, hidden, name) = (snapshot.volume, snapshot.hidden, snapshot.name.clone());
        if snapshot.lineage != lineage
            && let Some(snapshot) = self.snapshots.get_mut(&id)
        {
            snapshot.lineage = lineage;
        }
        if old == volume {
            return;
        }
        // a checkpoint stores only its lineage, from which the volume follows
        if let Some(snapshot) = self.snapshots.loaded_mut(id) {
            snapshot.volume = volume;
        }
        if !hidden {
            self.rename_owner(old, volume, id, name);
        }
    }
}

impl Core {
    /// Gives a clone the versions that it starts from.
    pub(super) fn promote(&mut self, volume: VolumeId) {
        let Some(promotion) = self.catalog.promotion(volume) else { return };
        for fork in &promotion.forks {
            self.swap_ends(*fork, volume, promotion.from);
        }
        for fork in promotion.forks {
            self.drop_if_empty(fork.child);
        }
    }

    /// Swaps the versions after a fork between the parent and the child lineage.
    fn swap_ends(&mut self, fork: Fork, volume: VolumeId, from: VolumeId) {
        let Fork { parent, at, child, units } = fork;
        let Some(bound) = self.catalog.snapshots.get(&at).map(|snapshot| snapshot.epoch) else { return };
        let (Some(mut line), Some(mut end)) = (self.catalog.remove_lineage(parent), self.catalog.remove_lineage(child)) else { return };
        let later: BTreeSet<SnapshotId> = line.snapshots.split_off(&SnapshotId(at.0 + 1));
        line.snapshots.append(&mut end.snapshots);
        end.snapshots = later;
        std::mem::swap(&mut line.head, &mut end.head);
        if !(cfg!(feature = "planted") && self.planted == Some(Planted::PromoteKeepsDeadlists)) {
            std::mem::swap(&mut line.deadlist, &mut end.deadlist);
        }
        std::mem::swap(&mut line.last_snap, &mut end.last_snap);
        let units = units.min(line.owned_units);
        (line.owned_units, end.owned_units) = (units + end.owned_units, line.owned_units - units);
        (line.volume, end.volume) = (volume, from);
        for id in &line.snapshots {
            self.catalog.move_snapshot(*id, volume, parent);
        }
        for id in &end.snapshots {
            self.catalog.move_snapshot(*id, from, child);
        }
        let swapped = |lineage: LineageId| match lineage {
            lineage if lineage == parent => child,
            lineage if lineage == child => parent,
            lineage => lineage,
        };
        self.catalog.volumes.values_mut().for_each(|v| v.lineage = swapped(v.lineage));
        // the snapshot at the fork exists, so walks free versions that come after it
        self.catalog.walks.values_mut().for_each(|walk| walk.lineage = swapped(walk.lineage));
        for (lineage, list) in &mut self.catalog.frees {
            // dead blocks lived in one version, either before or after the fork
            if *lineage == child || list.list().units_after(bound) > 0 {
                *lineage = swapped(*lineage);
            }
        }
        self.catalog.insert_lineage(parent, line);
        self.catalog.insert_lineage(child, end);
    }
}

/// INV-CAT-4: a lineage starts from a snapshot that is younger than the snapshot that the parent
/// lineage starts from. So origins form no circle. Since clones can be promoted, the ids of
/// lineages do not show that.
pub(crate) fn starts_later(child: Epoch, parent: Epoch) -> bool {
    parent < child
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_of_a_sound_catalog_form_no_circle() {
        assert!(starts_later(Epoch(2), Epoch(1)));
        assert!(starts_later(Epoch(1), Epoch(0)));
        // in a forged circle, some lineage does not start later than its parent
        assert!(!starts_later(Epoch(1), Epoch(2)));
        assert!(!starts_later(Epoch(1), Epoch(1)));
    }
}
