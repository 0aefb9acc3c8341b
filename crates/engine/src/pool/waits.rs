//! Whether requests and commands have to wait for room, or are refused for want of it.

use super::command::STARVED_TURNS;
use super::destroy::Progress;
use super::op::Owner;
use super::requests::Requests;
use super::turn::STARVED_MILLIS;
use crate::store::Store;

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

    /// Returns whether an operation is a guest's, or part of one.
    pub(super) fn is_guests(&self, mut id: u32) -> bool {
        while let Some(op) = self.ops.get(id) {
            match op.owner {
                Owner::Guest(_) => return true,
                Owner::Parent(parent) => id = parent,
                Owner::Command(_) | Owner::Gather(_) | Owner::Ahead(_) | Owner::Fill(..) | Owner::Nobody => return false,
            }
        }
        false
    }

    /// Returns whether records have waited for room so long that none will come.
    pub(super) fn records_starve(&self) -> bool {
        self.starved_commands >= STARVED_TURNS
    }
}
