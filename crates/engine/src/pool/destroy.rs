//! Destroying snapshots: any number with one command, a limited number per turn; and releasing the
//! space of what was destroyed, some of it per turn.

use millpond_block::DiskError;
use millpond_format::{Item, Record, SnapshotId};

use super::op::{Op, Owner, Work};
use super::state::Pool;
use crate::space::Need;
use crate::store::STUCK_MILLIS;
use crate::{CommandError, PoolState, Reply, Time};

/// Snapshots checked per turn before any is destroyed.
const CHECKS_PER_TURN: usize = 1024;
/// Snapshots destroyed per slice; those of a turn are in one record.
const DESTROYS_PER_SLICE: usize = 4;
/// Most snapshots of a command that are destroyed in one record: some 150 microseconds, once.
/// Guests would notice every record of a longer command.
const DESTROYS_TOGETHER: usize = 32;
/// Chunks whose dead slots are freed in a slice.
const FREES_PER_SLICE: usize = 12;
/// One in so many slices cuts a view of a deadlist that was split.
const SLICES_PER_VIEW: usize = 4;
/// Parts of unneeded deadlists that are dropped in a slice
/// ([`Deadlist::drop_pieces`](crate::space::Deadlist::drop_pieces)).
const FADES_PER_SLICE: usize = 256;
/// Leaves freed by one step of a walk.
const WALK_STEPS: usize = 8;

/// A command that destroys snapshots. If one of them cannot be destroyed none is, unless the reason
/// arises after the first ones are gone.
#[derive(Debug)]
pub(crate) struct Destroying {
    pub(crate) op: u32,
    snapshots: Vec<SnapshotId>,
    checked: usize,
    done: usize,
}

/// Progress of releasing the space of destroyed versions: units freed so far, and since when the
/// number has not changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    freed: u64,
    pub(crate) since: Time,
}

impl Pool {
    /// Starts a command that destroys snapshots; the first ones are destroyed at once.
    pub(super) fn start_destroy(&mut self, tag: millpond_block::Tag, snapshots: Vec<SnapshotId>) {
        let op = self.new_op(Owner::Command(tag), Work::Command(Ok(Reply::Done)), true);
        self.destroying.push_back(Destroying { op, snapshots, checked: 0, done: 0 });
        self.step_destroys();
    }

    /// Continues destroying snapshots. Returns false when no command waits, or the log has no room.
    fn step_destroys(&mut self) -> bool {
        if !self.store.record_room(2) && !self.records_starve() {
            return false;
        }
        let Some(mut work) = self.destroying.pop_front() else { return false };
        let to_check = work.snapshots.iter().skip(work.checked).take(CHECKS_PER_TURN);
        if let Err(error) = to_check.clone().try_for_each(|id| self.store.check_destroyable(*id)) {
            self.refuse(work.op, error);
            return true;
        }
        work.checked += to_check.len();
        if work.checked == work.snapshots.len() {
            let count = match work.snapshots.len() {
                few @ ..=DESTROYS_TOGETHER => few,
                _ => DESTROYS_PER_SLICE * self.store.slices(),
            };
            let (count, bytes) = self.store.affordable(work.snapshots.iter().skip(work.done).take(count));
            if count == 0 && work.done < work.snapshots.len() {
                return self.postpone_destroy(work);
            }
            let next = work.snapshots.iter().skip(work.done).take(count).copied();
            // a snapshot that was named twice, or destroyed meanwhile, is gone as wanted
            let known: Vec<SnapshotId> = next.filter(|id| self.store.known_snapshot(*id).is_ok()).collect();
            if let Err(error) = known.iter().try_for_each(|id| self.store.check_destroyable(*id)) {
                self.refuse(work.op, error);
                return true;
            }
            work.done = (work.done + count).min(work.snapshots.len());
            if !known.is_empty() {
                let record = Record::DestroySnapshots { snapshots: known };
                if self.append_item(work.op, &Item::Record(record.clone())).is_err() {
                    self.fail_op(work.op, DiskError::NoSpace);
                    return true;
                }
                self.store.core.apply_record(&record);
                self.store.checkpoint.estimate.lists += bytes;
                self.starved_commands = 0;
                self.store.seal_all();
            }
        }
        if work.done < work.snapshots.len() {
            self.destroying.push_front(work);
        } else {
            self.release(work.op);
        }
        true
    }

    /// Continues destroying the snapshots of removed volumes. Returns false when there are none, or
    /// the log has no room.
    fn step_removed(&mut self) -> bool {
        if self.store.core.catalog.removed.is_empty() || self.store.closing.is_some() || !self.store.record_room(2) {
            return false;
        }
        let next = self.store.core.catalog.next_removed(DESTROYS_PER_SLICE * self.store.slices());
        if next.is_empty() {
            return false;
        }
        let (count, bytes) = self.store.affordable(next.iter());
        let snapshots: Vec<SnapshotId> = next.into_iter().take(count).collect();
        if snapshots.is_empty() {
            self.store.ask_for_room();
            return false;
        }
        let record = Record::DestroySnapshots { snapshots };
        let op = self.new_op(Owner::Nobody, Work::Command(Ok(Reply::Done)), true);
        let logged = self.append_item(op, &Item::Record(record.clone())).is_ok();
        if logged {
            self.store.core.apply_record(&record);
            self.store.checkpoint.estimate.lists += bytes;
            self.store.seal_all();
        }
        self.release(op);
        logged
    }

    /// Postpones a destroy whose changes do not fit into the next checkpoint until checkpoints and
    /// the cleaner have freed space; fails it when none comes. Recorded changes must be in the next
    /// checkpoint, and a pool whose checkpoint does not fit can never free space again.
    fn postpone_destroy(&mut self, work: Destroying) -> bool {
        if self.records_starve() {
            self.fail_op(work.op, DiskError::NoSpace);
            return true;
        }
        self.store.ask_for_room();
        self.destroying.push_front(work);
        false
    }

    fn refuse(&mut self, op: u32, error: CommandError) {
        if let Some(found) = self.ops.get_mut(op) {
            found.work = Work::Command(Err(error));
        }
        self.release(op);
    }

    /// Continues releasing the space of destroyed snapshots and volumes. Returns true when there is
    /// more to do.
    pub(super) fn reclaim(&mut self) -> bool {
        self.retry_frees();
        if self.store.core.pieces.has_uncut() {
            self.store.core.pieces.cut_some(self.store.slices().div_ceil(SLICES_PER_VIEW));
            if !self.store.core.pieces.has_uncut() {
                self.store.estimate_soon();
            }
        }
        self.store.core.catalog.count_frees();
        let more = self.is_freeing() || !self.destroying.is_empty();
        let freed = self.store.core.space.freed_units;
        if !more {
            self.reclaimer.progress = None;
        } else if self.reclaimer.progress.is_none_or(|progress| progress.freed != freed) {
            self.reclaimer.progress = Some(Progress { freed, since: self.store.now });
        }
        self.reclaimer.used_turn = more && !(self.reclaimer.used_turn && self.checkpointer.is_writing());
        if !self.reclaimer.used_turn {
            return more || self.store.core.pieces.has_uncut();
        }
        // a destroy that waits for room waits for the space of those before it
        if self.step_destroys() || self.step_removed() {
            return true;
        }
        self.store.core.fade_some(FADES_PER_SLICE * self.store.slices());
        // when no checkpoint fits, the deadlists that it would have to write must be freed first
        if self.store.core.catalog.has_frees() && (self.store.checkpoint_is_safe() || !self.store.checkpoint_fits_with(0)) {
            let freed = self.store.core.free_some(FREES_PER_SLICE * self.store.slices());
            freed.next.iter().chain(&freed.after).for_each(|piece| self.store.need_piece(piece, Need::Freeing));
            return freed.next.is_none() || self.store.core.pieces.has_uncut();
        } else if self.store.closing.is_none() && self.store.state == PoolState::Online {
            self.start_walk_step();
        }
        true
    }

    /// Starts the next step of a walk that frees a destroyed version, unless one is in progress.
    fn start_walk_step(&mut self) {
        if self.reclaimer.walking {
            return;
        }
        let Some(id) = self.store.core.catalog.walks.keys().find(|id| !self.reclaimer.stuck_walks.contains(id)).copied() else { return };
        self.reclaimer.walking = true;
        let op = self.new_op(Owner::Nobody, Work::Walk { id }, false);
        self.try_walk(op);
    }

    /// Plans, logs and applies one step of a walk.
    pub(super) fn try_walk(&mut self, op: u32) {
        let Some(Op { work: Work::Walk { id }, .. }) = self.ops.get(op) else { return };
        let id = *id;
        match self.store.core.plan_walk(id, WALK_STEPS) {
            Err(miss) => self.load_node(miss, Some(op)),
            Ok(None) => self.release(op),
            Ok(Some((cursor, done))) => {
                if self.append_item(op, &Item::Record(Record::Walked { walk: id, cursor, done })).is_err() {
                    return self.release(op);
                }
                let walked = self.store.core.walk_to(id, cursor, done);
                assert!(walked.is_ok(), "INV-MAP-6: the nodes of a planned walk are in memory");
                self.release(op);
            }
        }
    }

    /// Retries unreadable pieces of deadlists.
    fn retry_frees(&mut self) {
        if !self.store.core.catalog.frees.is_empty() && self.store.now.0 >= self.reclaimer.retried.0 + STUCK_MILLIS {
            self.reclaimer.retried = self.store.now;
            self.store.core.catalog.retry_frees();
        }
    }
}
