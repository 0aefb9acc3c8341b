//! Room for guests and commands: the usable and the reserved space, and what the next checkpoint
//! leaves to commands that free space.

use millpond_format::{ObjectRef, SnapshotId, VolumeId};

use super::{Store, Watermark};
use crate::Planted;
use crate::core::Catalog;
use crate::log::Stream;

impl Store {
    /// Requests a checkpoint, which frees the segments that wait for one.
    pub(crate) fn ask_for_room(&mut self) {
        self.checkpoint.forced |= self.log.since_checkpoint > 0 && !self.checkpoint.running();
    }

    /// Returns how many of these snapshots can be destroyed before the next checkpoint, and the
    /// bytes that it must rewrite for that: the directories of their deadlists, twice those of the
    /// following deadlists, which are split, and the pages that name both. Pieces are not
    /// rewritten.
    pub(crate) fn affordable<'a>(&self, snapshots: impl Iterator<Item = &'a SnapshotId>) -> (usize, usize) {
        let catalog = &self.core.catalog;
        let room = self.room_for_lists();
        let costs = snapshots.map(|id| {
            let Some(snapshot) = catalog.snapshots.get(id) else { return 0 };
            let line = catalog.lineages.get(&snapshot.lineage);
            let after = line.and_then(|line| Catalog::after(line, *id));
            let next = match after {
                Some(next) => catalog.snapshots.get(&next).map(|next| &next.deadlist),
                None => line.map(|line| &line.deadlist),
            };
            let pages = [Some(*id), after].into_iter().flatten().filter_map(|id| catalog.snapshots.page_at(id));
            let pages: usize = pages.map(|at| at.bytes() as usize + ObjectRef::STEP).sum();
            self.list_bytes(&snapshot.deadlist) + next.map_or(0, |list| 2 * self.list_bytes(list)) + pages
        });
        let (mut count, mut bytes) = (0, 0);
        for cost in costs {
            if bytes + cost > room {
                break;
            }
            (count, bytes) = (count + 1, bytes + cost);
        }
        (count, bytes)
    }

    /// Returns the units that guests can fill.
    pub(crate) fn usable_units(&self) -> u64 {
        let units = self.core.space.usable_units();
        if self.tuning.plants(Planted::DenyCapacity) { units / 5 * 2 } else { units }
    }

    /// Returns the units that other volumes reserve beyond those that they take.
    pub(crate) fn reserved_by_others(&self, volume: VolumeId) -> u64 {
        let reservations = &self.core.catalog.reservations;
        if self.tuning.plants(Planted::ForgetReservations) { 0 } else { reservations.missing_of_others(volume) }
    }

    /// Returns whether records of `pages` pages fit without the segments that the next checkpoint
    /// needs.
    pub(crate) fn record_room(&self, pages: usize) -> bool {
        let left = self.log.streams[Stream::Long].left() as usize;
        let segments = pages / self.core.space.layout.smallest() as usize;
        self.checkpoint_is_safe() && (left > pages || self.room_beyond(Watermark::Record, segments))
    }
}
