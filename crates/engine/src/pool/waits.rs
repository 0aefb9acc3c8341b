//! Whether requests and commands have to wait for room, or are refused for want of it.

use millpond_block::Tag;
use millpond_format::VolumeId;

use super::command::STARVED_TURNS;
use super::destroy::Progress;
use super::op::Owner;
use super::requests::Requests;
use super::turn::STARVED_MILLIS;
use crate::PoolState;
use crate::store::Store;

/// The part of a pool that fills of bases leave to guests.
const LEFT_TO_GUESTS: u64 = 32;

impl Requests {
    /// Returns whether any operation waits for room in the log.
    pub(super) fn waits_for_space(&self) -> bool {
        !self.space_waiters.is_empty() || self.records_wait()
    }

    /// Returns whether any operation has a record to log as soon as there is room.
    pub(super) fn records_wait(&self) -> bool {
        !self.record_waiters.is_empty() || !self.parked_commands.is_empty() || !self.destroying.is_empty()
    }

    /// Returns whether destroyed versions still hold space.
    pub(super) fn is_freeing(&self, store: &Store) -> bool {
        let catalog = &store.core.catalog;
        let dead = catalog.has_frees() || store.core.is_fading();
        dead || catalog.walks.len() > self.reclaimer.stuck_walks.len() || !catalog.removed.is_empty()
    }

    /// Returns whether space is being released that guests can fill. Writes wait for it while some
    /// comes, but not in a pool that closes, which releases no more.
    pub(super) fn room_comes(&self, store: &Store) -> bool {
        let comes = |progress: Progress| store.now.0 < progress.since.0 + STARVED_MILLIS;
        store.closing.is_none() && self.reclaimer.progress.is_some_and(comes)
    }

    /// Returns whether a guest's write fails with ENOSPC because a device is full.
    pub(super) fn refuses_write(&self, id: u32) -> bool {
        self.full_devices.refuses && self.is_guests(id)
    }

    /// Returns whether chunks may be written to their bases: in a pool in service with room that guests
    /// will not miss.
    pub(super) fn may_fill(&self, store: &Store, base: VolumeId) -> bool {
        let space = &store.core.space;
        let left = space.usable_units() / LEFT_TO_GUESTS;
        store.state == PoolState::Online
            && !store.tuning.read_only
            && !store.io.is_stalled()
            && !self.full_devices.refuses
            && space.live_units() + left + store.reserved_by_others(base) < space.usable_units()
    }

    /// Returns whether an operation is a guest's, or part of one.
    pub(super) fn is_guests(&self, id: u32) -> bool {
        self.guest_of(id).is_some()
    }

    /// Returns the tag of the guest's request that an operation is, or is part of.
    pub(super) fn guest_of(&self, mut id: u32) -> Option<Tag> {
        while let Some(op) = self.ops.get(id) {
            match op.owner {
                Owner::Guest(tag) => return Some(tag),
                Owner::Parent(parent) => id = parent,
                Owner::Command(_) | Owner::Gather(_) | Owner::Ahead(_) | Owner::Fill(..) | Owner::Nobody => return None,
            }
        }
        None
    }

    /// Returns whether records have waited for room so long that none will come.
    pub(super) fn records_starve(&self) -> bool {
        self.starved_commands >= STARVED_TURNS
    }
}
