//! Operations of requests and commands: their creation, and their end when batches, children and
//! flushes are done.

use millpond_block::{Answer, Completion, DeviceError, DiskError, IoSlices};
use millpond_format::{BlockNo, Lsn};

use super::op::{BarrierKind, Op, Owner, ReadWork, Work};
use super::read::assemble;
use super::requests::Requests;
use super::state::Pool;
use super::write::blocks_of;
use crate::store::{Comparison, Found, Store};
use crate::{Absent, CommandError, Fault, Planted, Reply};

/// After every block of a volume.
const BEHIND_ALL: BlockNo = BlockNo(u64::MAX);

impl Requests {
    /// Creates an operation with one reference for its starter: see [`release`](Self::release).
    pub(crate) fn new_op(&mut self, owner: Owner, work: Work, durable: bool) -> u32 {
        self.ops.insert(Op { owner, work, pending: 1, lsn: Lsn(0), durable, error: None })
    }

    /// Takes in the old content of an edge; after the last one the payload consists of whole
    /// blocks.
    fn edge_read(&mut self, store: &mut Store, id: u32, block: BlockNo, data: Result<millpond_block::IoSlices, DiskError>) {
        let Some(Op { work: Work::Write(work), error, .. }) = self.ops.get_mut(id) else { return };
        if let Some(at) = work.edges.locked.iter().position(|b| *b == block)
            && let Some(place) = work.edges.old.get_mut(at)
        {
            *place = Some(data.unwrap_or_else(|failed| {
                *error = Some(failed);
                millpond_block::IoSlices::new()
            }));
        }
        if work.edges.old.iter().any(Option::is_none) {
            return;
        }
        if let Some(error) = *error {
            return self.fail_op(store, id, error);
        }
        let range = work.request.range;
        let (first, count) = blocks_of(range);
        let (head, end) = ((range.offset % 4096) as usize, (range.offset + range.length - first * 4096) as usize);
        let Some(buf) = &mut work.payload else { return self.fail_op(store, id, DiskError::Io) };
        for (block, old) in work.edges.locked.iter().zip(&work.edges.old) {
            let mut content = [0u8; 4096];
            let mut at = 0;
            for piece in old.iter().flatten() {
                if let Some(to) = content.get_mut(at..at + piece.len()) {
                    to.copy_from_slice(piece.bytes());
                }
                at += piece.len();
            }
            let base = ((block.0 - first) * 4096) as usize;
            let bytes = buf.bytes_mut();
            for (i, byte) in content.iter().enumerate() {
                let to = base + i;
                if (to < head || to >= end) && to < count * 4096 {
                    bytes[to] = *byte;
                }
            }
        }
        work.edges.filled = true;
        self.ready.push_back(id);
    }

    /// Unlocks a write's blocks and wakes the operations that wait for them.
    fn unlock(&mut self, id: u32) {
        self.unlock_before(id, BEHIND_ALL);
    }

    /// Unlocks those of a write's blocks that are before `end`.
    pub(super) fn unlock_before(&mut self, id: u32, end: BlockNo) {
        let Some(Op { work: Work::Write(work), .. }) = self.ops.get_mut(id) else { return };
        let (volume, edges) = (work.volume, &mut work.edges);
        while edges.locked.first().is_some_and(|block| *block < end) {
            let block = edges.locked.remove(0);
            if !edges.old.is_empty() {
                edges.old.remove(0);
            }
            if let Some(waiting) = self.locks.remove(&(volume, block)) {
                self.ready.extend(waiting);
            }
        }
    }

    /// Releases one of the references counted in `pending`; the operation ends with the last.
    pub(crate) fn release(&mut self, store: &mut Store, id: u32) {
        let Some(op) = self.ops.get_mut(id) else { return };
        op.pending -= 1;
        if op.pending > 0 {
            return;
        }
        if let (Work::Read(work), None) = (&mut op.work, op.error)
            && work.again
        {
            *work = ReadWork { bypass_cache: true, ..ReadWork::new(work.target, work.request) };
            op.pending = 1;
            return self.ready.push_back(id);
        }
        if op.error.is_none() {
            let after = match &op.work {
                Work::Read(work) => work.after,
                _ => op.lsn,
            };
            if after > store.log.completed {
                if !matches!(store.state, crate::PoolState::Faulted(_)) {
                    self.read_waiters.push((after, id));
                    return;
                }
                // that batch will never be complete: what it holds must not be seen (I10)
                op.error = Some(DiskError::Io);
            }
            if op.error.is_none() && op.durable && op.lsn > store.log.durable {
                store.flusher.waiting.push((id, op.lsn));
                return;
            }
        }
        self.finish(store, id);
    }

    /// Answers a finished operation.
    pub(super) fn finish(&mut self, store: &mut Store, id: u32) {
        let Some(op) = self.ops.remove(id) else { return };
        if matches!(op.work, Work::Read(_)) {
            self.fetches.leave(id);
            return self.deliver_read(store, op);
        }
        let Op { owner, work, error, lsn, .. } = op;
        let work = match work {
            Work::Compare(work) => return self.deliver_comparison(store, owner, *work, error),
            Work::WriteSizes(work) => {
                if let Owner::Command(tag) = owner {
                    let reply = store.census_reply(*work, error);
                    store.replies.push_back((tag, reply));
                }
                return;
            }
            other => other,
        };
        let result = error.map_or(Ok(IoSlices::new()), Err);
        match (owner, work) {
            (Owner::Guest(tag), work) => {
                if result.is_ok() {
                    count_guest(store, &work);
                }
                self.completions.push_back(Completion { tag, result });
            }
            (Owner::Command(tag), Work::Command(reply)) => {
                let reply = match (&store.state, error) {
                    (crate::PoolState::Faulted(why), Some(_)) => Err(CommandError::Faulted(why.clone())),
                    (_, Some(DiskError::NoSpace)) => Err(CommandError::NoSpace),
                    (_, Some(other)) => Err(CommandError::Request(other)),
                    (_, None) => reply,
                };
                store.replies.push_back((tag, reply));
            }
            (Owner::Parent(parent), _) => {
                if let Some(up) = self.ops.get_mut(parent) {
                    up.lsn = up.lsn.max(lsn);
                    if let Err(error) = result {
                        up.error.get_or_insert(error);
                    }
                }
                self.release(store, parent);
            }
            (Owner::Nobody, Work::Walk { id }) => self.reclaimer.walk_ended(id, error.is_some()),
            (Owner::Nobody, Work::Clear(work)) => {
                if let Some(error) = error {
                    self.untrimmed.insert(work.volume, error);
                }
            }
            (Owner::Fill(base, chunk), _) => self.fetches.filled((base, chunk)),
            (Owner::Command(_) | Owner::Gather(_) | Owner::Ahead(_) | Owner::Nobody, _) => {}
        }
    }

    /// Fails an operation: releases its starter's reference, and waits for everything in flight for
    /// it.
    pub(crate) fn fail_op(&mut self, store: &mut Store, id: u32, error: DiskError) {
        if let Some(op) = self.ops.get_mut(id) {
            op.error.get_or_insert(error);
        }
        self.unlock(id);
        self.release(store, id);
    }

    /// Answers a finished read to its owner.
    fn deliver_read(&mut self, store: &mut Store, op: Op) {
        let Work::Read(work) = op.work else { return };
        if let Owner::Ahead(batch) = op.owner {
            // INV-READ-AHEAD-2
            return self.ready.extend(self.ahead.batch_ended(batch, store.now));
        }
        let range = work.request.range;
        let result = match op.error {
            Some(error) => Err(error),
            None => Ok(assemble(store, work.parts, range)),
        };
        match op.owner {
            Owner::Guest(tag) => {
                self.ahead.guest_ended(range.length);
                store.metrics.guest_reads += 1;
                store.metrics.guest_read_bytes += range.length;
                self.completions.push_back(millpond_block::Completion { tag, result });
            }
            Owner::Parent(parent) => self.edge_read(store, parent, millpond_format::BlockNo(range.offset / 4096), result),
            Owner::Gather(nth) => self.gather_reads.push((nth, result)),
            Owner::Command(_) | Owner::Ahead(_) | Owner::Fill(..) | Owner::Nobody => {}
        }
    }

    /// Delivers the result to its owner.
    fn deliver_comparison(&mut self, store: &mut Store, owner: Owner, work: Comparison, error: Option<DiskError>) {
        match (owner, work.found) {
            (Owner::Guest(tag), Found::Runs { mut runs, most, .. }) => {
                runs.truncate(most);
                self.answers.push_back(Answer { tag, result: error.map_or(Ok(runs), Err) });
            }
            (Owner::Command(tag), Found::Extents(extents)) => {
                let result = match error {
                    None => Ok(extents),
                    Some(DiskError::Invalid) => Err(CommandError::NotFound(Absent::Version)),
                    Some(_) => Err(store.read_failure()),
                };
                self.diffs.push_back((tag, result));
            }
            (Owner::Command(tag), Found::Places(units)) => {
                let places = store.places(units);
                let result = store.answer_of(error, Reply::Places(places));
                store.replies.push_back((tag, result));
            }
            (Owner::Command(tag), Found::Lost(ranges)) => {
                let result = store.answer_of(error, Reply::Lost(ranges));
                store.replies.push_back((tag, result));
            }
            _ => {}
        }
    }
}

impl Pool {
    /// Handles the end of a batch write.
    pub(super) fn batch_done(&mut self, lsn: Lsn, result: Result<(), DeviceError>) {
        if let Err(error) = result {
            return self.fault(Fault::Log(error));
        }
        if self.store.tuning.plants(Planted::ApplyAtCompletion) {
            for (lineage, block, addr, crc) in self.store.log.take_deferred(lsn) {
                let _ = self.store.core.set_block(lineage, block, addr, crc);
            }
        }
        for batch in self.store.log.written(lsn) {
            for waiter in batch.waiters {
                if let Some(op) = self.requests.ops.get_mut(waiter) {
                    op.lsn = op.lsn.max(batch.lsn);
                }
                self.requests.release(&mut self.store, waiter);
            }
            self.store.bufs.give_data(batch.pieces);
        }
        if !self.requests.read_waiters.is_empty() {
            let completed = self.store.log.completed;
            let (over, waiting): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.requests.read_waiters).into_iter().partition(|(lsn, _)| *lsn <= completed);
            self.requests.read_waiters = waiting;
            over.into_iter().for_each(|(_, op)| self.requests.finish(&mut self.store, op));
        }
    }
}

fn count_guest(store: &mut Store, work: &Work) {
    match work {
        Work::Write(work) => {
            store.metrics.guest_writes += 1;
            store.metrics.guest_write_bytes += work.request.range.length;
        }
        Work::Barrier(BarrierKind::Flush) => store.metrics.guest_flushes += 1,
        _ => {}
    }
}
