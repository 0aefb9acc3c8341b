//! Destroying snapshots: any number with one command, a limited number per turn.

use millpond_block::DiskError;
use millpond_format::{Item, ObjectRef, Record, SnapshotId};

use super::op::{Owner, Work};
use super::state::Pool;
use crate::core::Catalog;
use crate::{CommandError, Reply};

/// Snapshots checked per turn before any is destroyed.
const CHECKS_PER_TURN: usize = 1024;
/// Snapshots destroyed per slice; those of a turn are in one record.
const DESTROYS_PER_SLICE: usize = 4;
/// Most snapshots of a command that are destroyed in one record: some 150 microseconds, once.
/// Guests would notice every record of a longer command.
const DESTROYS_TOGETHER: usize = 32;

/// A command that destroys snapshots. If one of them cannot be destroyed none is, unless the reason
/// arises after the first ones are gone.
#[derive(Debug)]
pub(crate) struct Destroying {
    op: u32,
    snapshots: Vec<SnapshotId>,
    checked: usize,
    done: usize,
}

impl Pool {
    /// Starts a command that destroys snapshots; the first ones are destroyed at once.
    pub(crate) fn start_destroy(&mut self, tag: millpond_block::Tag, snapshots: Vec<SnapshotId>) {
        let op = self.new_op(Owner::Command(tag), Work::Command(Ok(Reply::Done)), true);
        self.destroying.push_back(Destroying { op, snapshots, checked: 0, done: 0 });
        self.step_destroys();
    }

    /// Continues destroying snapshots. Returns false when no command waits, or the log has no room.
    pub(crate) fn step_destroys(&mut self) -> bool {
        if !self.record_room(2) && !self.records_starve() {
            return false;
        }
        let Some(mut work) = self.destroying.pop_front() else { return false };
        let to_check = work.snapshots.iter().skip(work.checked).take(CHECKS_PER_TURN);
        if let Err(error) = to_check.clone().try_for_each(|id| self.check_destroyable(*id)) {
            self.refuse(work.op, error);
            return true;
        }
        work.checked += to_check.len();
        if work.checked == work.snapshots.len() {
            let count = match work.snapshots.len() {
                few @ ..=DESTROYS_TOGETHER => few,
                _ => DESTROYS_PER_SLICE * self.slices(),
            };
            let (count, bytes) = self.affordable(work.snapshots.iter().skip(work.done).take(count));
            if count == 0 && work.done < work.snapshots.len() {
                return self.postpone_destroy(work);
            }
            let next = work.snapshots.iter().skip(work.done).take(count).copied();
            // a snapshot that was named twice, or destroyed meanwhile, is gone as wanted
            let known: Vec<SnapshotId> = next.filter(|id| self.known_snapshot(*id).is_ok()).collect();
            if let Err(error) = known.iter().try_for_each(|id| self.check_destroyable(*id)) {
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
                self.core.apply_record(&record);
                self.checkpointer.estimate.lists += bytes;
                self.starved_commands = 0;
                self.seal_all();
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
    pub(super) fn step_removed(&mut self) -> bool {
        if self.core.catalog.removed.is_empty() || self.closing.is_some() || !self.record_room(2) {
            return false;
        }
        let next = self.core.catalog.next_removed(DESTROYS_PER_SLICE * self.slices());
        if next.is_empty() {
            return false;
        }
        let (count, bytes) = self.affordable(next.iter());
        let snapshots: Vec<SnapshotId> = next.into_iter().take(count).collect();
        if snapshots.is_empty() {
            self.ask_for_room();
            return false;
        }
        let record = Record::DestroySnapshots { snapshots };
        let op = self.new_op(Owner::Nobody, Work::Command(Ok(Reply::Done)), true);
        let logged = self.append_item(op, &Item::Record(record.clone())).is_ok();
        if logged {
            self.core.apply_record(&record);
            self.checkpointer.estimate.lists += bytes;
            self.seal_all();
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
        self.ask_for_room();
        self.destroying.push_front(work);
        false
    }

    /// Requests a checkpoint, which frees the segments that wait for one.
    pub(super) fn ask_for_room(&mut self) {
        self.checkpointer.forced |= self.log.since_checkpoint > 0 && !self.checkpointer.running();
    }

    /// Returns how many of these snapshots can be destroyed before the next checkpoint, and the
    /// bytes that it must rewrite for that: the directories of their deadlists, twice those of the
    /// following deadlists, which are split, and the pages that name both. Pieces are not
    /// rewritten.
    fn affordable<'a>(&self, snapshots: impl Iterator<Item = &'a SnapshotId>) -> (usize, usize) {
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

    fn check_destroyable(&self, id: SnapshotId) -> Result<(), CommandError> {
        let snapshot = self.known_snapshot(id)?;
        if self.core.catalog.clones_of(id) > 0 {
            return Err(CommandError::Busy(format!("snapshot '{}' has clones; destroy or promote them first", snapshot.name)));
        }
        if self.is_held(snapshot) {
            return Err(CommandError::Busy(format!("snapshot '{}' is held; release it first", snapshot.name)));
        }
        Ok(())
    }

    fn refuse(&mut self, op: u32, error: CommandError) {
        if let Some(found) = self.ops.get_mut(op) {
            found.work = Work::Command(Err(error));
        }
        self.release(op);
    }

    /// Fails waiting destroys when the pool stops.
    pub(crate) fn abandon_destroys(&mut self) {
        for work in std::mem::take(&mut self.destroying) {
            self.fail_op(work.op, DiskError::Io);
        }
    }
}
