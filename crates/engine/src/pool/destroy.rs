//! Destroying snapshots: any number with one command, a limited number per turn; and releasing the
//! space of what was destroyed, some of it per turn.

use millpond_block::DiskError;
use millpond_format::{Item, Record, SnapshotId};

use super::op::{Op, Owner, Work};
use super::requests::Requests;
use super::state::Pool;
use crate::space::Need;
use crate::store::{STUCK_MILLIS, Store};
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

impl Requests {
    /// Starts a command that destroys snapshots; the first ones are destroyed at once.
    pub(super) fn start_destroy(&mut self, store: &mut Store, tag: millpond_block::Tag, snapshots: Vec<SnapshotId>) {
        let op = self.new_op(Owner::Command(tag), Work::Command(Ok(Reply::Done)), true);
        self.destroying.push_back(Destroying { op, snapshots, checked: 0, done: 0 });
        self.step_destroys(store);
    }

    /// Continues destroying snapshots. Returns false when no command waits, or the log has no room.
    fn step_destroys(&mut self, store: &mut Store) -> bool {
        if !store.record_room(2) && !self.records_starve() {
            return false;
        }
        let Some(mut work) = self.destroying.pop_front() else { return false };
        let to_check = work.snapshots.iter().skip(work.checked).take(CHECKS_PER_TURN);
        if let Err(error) = to_check.clone().try_for_each(|id| store.check_destroyable(*id)) {
            self.refuse(store, work.op, error);
            return true;
        }
        work.checked += to_check.len();
        if work.checked == work.snapshots.len() {
            let count = match work.snapshots.len() {
                few @ ..=DESTROYS_TOGETHER => few,
                _ => DESTROYS_PER_SLICE * store.slices(),
            };
            let (count, bytes) = store.affordable(work.snapshots.iter().skip(work.done).take(count));
            if count == 0 && work.done < work.snapshots.len() {
                return self.postpone_destroy(store, work);
            }
            let next = work.snapshots.iter().skip(work.done).take(count).copied();
            // a snapshot that was named twice, or destroyed meanwhile, is gone as wanted
            let known: Vec<SnapshotId> = next.filter(|id| store.known_snapshot(*id).is_ok()).collect();
            if let Err(error) = known.iter().try_for_each(|id| store.check_destroyable(*id)) {
                self.refuse(store, work.op, error);
                return true;
            }
            work.done = (work.done + count).min(work.snapshots.len());
            if !known.is_empty() {
                let record = Record::DestroySnapshots { snapshots: known };
                if self.append_item(store, work.op, &Item::Record(record.clone())).is_err() {
                    self.fail_op(store, work.op, DiskError::NoSpace);
                    return true;
                }
                store.core.apply_record(&record);
                store.checkpoint.estimate.lists += bytes;
                self.starved_commands = 0;
                store.seal_all();
            }
        }
        if work.done < work.snapshots.len() {
            self.destroying.push_front(work);
        } else {
            self.release(store, work.op);
        }
        true
    }

    /// Continues destroying the snapshots of removed volumes. Returns false when there are none, or
    /// the log has no room.
    fn step_removed(&mut self, store: &mut Store) -> bool {
        if store.core.catalog.removed.is_empty() || store.closing.is_some() || !store.record_room(2) {
            return false;
        }
        let next = store.core.catalog.next_removed(DESTROYS_PER_SLICE * store.slices());
        if next.is_empty() {
            return false;
        }
        let (count, bytes) = store.affordable(next.iter());
        let snapshots: Vec<SnapshotId> = next.into_iter().take(count).collect();
        if snapshots.is_empty() {
            store.ask_for_room();
            return false;
        }
        let record = Record::DestroySnapshots { snapshots };
        let op = self.new_op(Owner::Nobody, Work::Command(Ok(Reply::Done)), true);
        let logged = self.append_item(store, op, &Item::Record(record.clone())).is_ok();
        if logged {
            store.core.apply_record(&record);
            store.checkpoint.estimate.lists += bytes;
            store.seal_all();
        }
        self.release(store, op);
        logged
    }

    /// Postpones a destroy whose changes do not fit into the next checkpoint until checkpoints and
    /// the cleaner have freed space; fails it when none comes. Recorded changes must be in the next
    /// checkpoint, and a pool whose checkpoint does not fit can never free space again.
    fn postpone_destroy(&mut self, store: &mut Store, work: Destroying) -> bool {
        if self.records_starve() {
            self.fail_op(store, work.op, DiskError::NoSpace);
            return true;
        }
        store.ask_for_room();
        self.destroying.push_front(work);
        false
    }

    fn refuse(&mut self, store: &mut Store, op: u32, error: CommandError) {
        if let Some(found) = self.ops.get_mut(op) {
            found.work = Work::Command(Err(error));
        }
        self.release(store, op);
    }

    /// Starts the next step of a walk that frees a destroyed version, unless one is in progress.
    fn start_walk_step(&mut self, store: &mut Store) {
        if self.reclaimer.walking {
            return;
        }
        let Some(id) = store.core.catalog.walks.keys().find(|id| !self.reclaimer.stuck_walks.contains(id)).copied() else { return };
        self.reclaimer.walking = true;
        let op = self.new_op(Owner::Nobody, Work::Walk { id }, false);
        self.try_walk(store, op);
    }

    /// Plans, logs and applies one step of a walk.
    pub(super) fn try_walk(&mut self, store: &mut Store, op: u32) {
        let Some(Op { work: Work::Walk { id }, .. }) = self.ops.get(op) else { return };
        let id = *id;
        match store.core.plan_walk(id, WALK_STEPS) {
            Err(miss) => self.load_node(store, miss, Some(op)),
            Ok(None) => self.release(store, op),
            Ok(Some((cursor, done))) => {
                if self.append_item(store, op, &Item::Record(Record::Walked { walk: id, cursor, done })).is_err() {
                    return self.release(store, op);
                }
                let walked = store.core.walk_to(id, cursor, done);
                assert!(walked.is_ok(), "INV-MAP-6: the nodes of a planned walk are in memory");
                self.release(store, op);
            }
        }
    }

    /// Retries unreadable pieces of deadlists.
    fn retry_frees(&mut self, store: &mut Store) {
        if !store.core.catalog.frees.is_empty() && store.now.0 >= self.reclaimer.retried.0 + STUCK_MILLIS {
            self.reclaimer.retried = store.now;
            store.core.catalog.retry_frees();
        }
    }
}

impl Pool {
    /// Continues releasing the space of destroyed snapshots and volumes. Returns true when there is
    /// more to do.
    pub(super) fn reclaim(&mut self) -> bool {
        self.requests.retry_frees(&mut self.store);
        if self.store.core.pieces.has_uncut() {
            self.store.core.pieces.cut_some(self.store.slices().div_ceil(SLICES_PER_VIEW));
            if !self.store.core.pieces.has_uncut() {
                self.store.estimate_soon();
            }
        }
        self.store.core.catalog.count_frees();
        let more = self.requests.is_freeing(&self.store) || !self.requests.destroying.is_empty();
        let freed = self.store.core.space.freed_units;
        if !more {
            self.requests.reclaimer.progress = None;
        } else if self.requests.reclaimer.progress.is_none_or(|progress| progress.freed != freed) {
            self.requests.reclaimer.progress = Some(Progress { freed, since: self.store.now });
        }
        self.requests.reclaimer.used_turn = more && !(self.requests.reclaimer.used_turn && self.checkpointer.is_writing());
        if !self.requests.reclaimer.used_turn {
            return more || self.store.core.pieces.has_uncut();
        }
        // a destroy that waits for room waits for the space of those before it
        if self.requests.step_destroys(&mut self.store) || self.requests.step_removed(&mut self.store) {
            return true;
        }
        self.store.core.fade_some(FADES_PER_SLICE * self.store.slices());
        // when no checkpoint fits, the deadlists that it would have to write must be freed first
        if self.store.core.catalog.has_frees() && (self.store.checkpoint_is_safe() || !self.store.checkpoint_fits_with(0)) {
            let freed = self.store.core.free_some(FREES_PER_SLICE * self.store.slices());
            freed.next.iter().chain(&freed.after).for_each(|piece| self.store.need_piece(piece, Need::Freeing));
            return freed.next.is_none() || self.store.core.pieces.has_uncut();
        } else if self.store.closing.is_none() && self.store.state == PoolState::Online {
            self.requests.start_walk_step(&mut self.store);
        }
        true
    }
}
