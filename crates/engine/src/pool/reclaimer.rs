//! [`Reclaimer`]: state of the work that releases the blocks of destroyed snapshots and volumes.

use std::collections::BTreeSet;

use super::destroy::Progress;
use crate::Time;

/// Releasing the space of destroyed versions.
#[derive(Debug)]
pub(super) struct Reclaimer {
    /// `None` while no destroyed version holds space.
    pub(crate) progress: Option<Progress>,
    /// An operation is working on a walk.
    pub(crate) walking: bool,
    /// Walks that wait for the next import because one of their nodes cannot be read.
    pub(crate) stuck_walks: BTreeSet<u64>,
    /// Time at which unreadable pieces of deadlists were last tried again.
    pub(crate) retried: Time,
    /// It used this turn's share of background work; the running checkpoint gets that of the next
    /// turn.
    pub(super) used_turn: bool,
}

impl Reclaimer {
    pub(super) fn new(now: Time) -> Reclaimer {
        Reclaimer { progress: None, walking: false, stuck_walks: BTreeSet::new(), retried: now, used_turn: false }
    }

    /// Handles the end of a step of a walk; one that failed is not tried again.
    pub(super) fn walk_ended(&mut self, id: u64, failed: bool) {
        self.walking = false;
        if failed {
            self.stuck_walks.insert(id);
        }
    }
}
