//! Completion: when an operation's batches, children and flushes are done, it ends here.

use millpond_block::{Completion, Data, DeviceError, DiskError};
use millpond_format::Lsn;

use super::op::{BarrierKind, Op, Owner, ReadWork, Work};
use super::state::Pool;
use crate::store::{Context, Store};
use crate::{CommandError, Fault, Planted};

impl Pool {
    /// Releases one of the references counted in `pending`; the operation ends with the last.
    pub(crate) fn release(&mut self, id: u32) {
        let Some(op) = self.ops.get_mut(id) else { return };
        op.pending -= 1;
        if op.pending > 0 {
            return;
        }
        if let (Work::Read(work), None) = (&mut op.work, op.error)
            && work.again
        {
            *work = ReadWork { past_cache: true, ..ReadWork::new(work.target, work.request) };
            op.pending = 1;
            return self.ready.push_back(id);
        }
        if op.error.is_none() {
            let after = match &op.work {
                Work::Read(work) => work.after,
                _ => op.lsn,
            };
            if after > self.store.log.completed && !matches!(self.store.state, crate::PoolState::Faulted(_)) {
                self.read_waiters.push((after, id));
                return;
            }
            if op.durable && op.lsn > self.store.log.durable {
                self.store.flusher.waiting.push((id, op.lsn));
                return;
            }
        }
        self.finish(id);
    }

    /// Fails an operation: releases its starter's reference, and waits for everything in flight for
    /// it.
    pub(crate) fn fail_op(&mut self, id: u32, error: DiskError) {
        if let Some(op) = self.ops.get_mut(id) {
            op.error.get_or_insert(error);
        }
        self.unlock(id);
        self.release(id);
    }

    /// Answers a finished operation.
    pub(crate) fn finish(&mut self, id: u32) {
        let Some(op) = self.ops.remove(id) else { return };
        if matches!(op.work, Work::Read(_)) {
            return self.deliver_read(op);
        }
        let Op { owner, work, error, lsn, .. } = op;
        let work = match work {
            Work::Compare(work) => return self.deliver_comparison(owner, *work, error),
            Work::Census(work) => return self.store.deliver_census(owner, *work, error),
            other => other,
        };
        let result = error.map_or(Ok(Data::new()), Err);
        match (owner, work) {
            (Owner::Guest(tag), work) => {
                if result.is_ok() {
                    self.store.count_guest(&work);
                }
                self.completions.push_back(Completion { tag, result });
            }
            (Owner::Command(tag), Work::Command(reply)) => {
                let reply = match (&self.store.state, error) {
                    (crate::PoolState::Faulted(why), Some(_)) => Err(CommandError::Faulted(why.clone())),
                    (_, Some(DiskError::NoSpace)) => Err(CommandError::NoSpace),
                    (_, Some(other)) => Err(CommandError::Request(other)),
                    (_, None) => reply,
                };
                self.store.replies.push_back((tag, reply));
            }
            (Owner::Parent(parent), _) => {
                if let Some(up) = self.ops.get_mut(parent) {
                    up.lsn = up.lsn.max(lsn);
                    if let Err(error) = result {
                        up.error.get_or_insert(error);
                    }
                }
                self.release(parent);
            }
            (Owner::Nobody, Work::Walk { id }) => self.reclaimer.walk_ended(id, error.is_some()),
            (Owner::Nobody, Work::Clear(work)) => {
                if let Some(error) = error {
                    self.untrimmed.insert(work.volume, error);
                }
            }
            (Owner::Command(_) | Owner::Nobody, _) => {}
        }
    }

    /// Handles the end of a batch write.
    pub(crate) fn batch_done(&mut self, lsn: Lsn, result: Result<(), DeviceError>) {
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
                if let Some(op) = self.ops.get_mut(waiter) {
                    op.lsn = op.lsn.max(batch.lsn);
                }
                self.release(waiter);
            }
            self.store.bufs.give_data(batch.pieces);
        }
        if !self.read_waiters.is_empty() {
            let completed = self.store.log.completed;
            let (over, waiting): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.read_waiters).into_iter().partition(|(lsn, _)| *lsn <= completed);
            self.read_waiters = waiting;
            over.into_iter().for_each(|(_, op)| self.finish(op));
        }
    }

    /// Starts the shared flush when an operation or task waits for one and none is running (group
    /// commit: requests that arrive while it runs share the next). Never starts two at a time: one
    /// could fail, and data that the other reports as stable would be lost with it.
    pub(crate) fn start_flush(&mut self) {
        if self.store.flusher.running.is_some() || !self.store.flusher.wanted() {
            return;
        }
        let target = self.store.log.completed;
        self.store.flusher.running = Some(std::mem::take(&mut self.store.flusher.wants));
        if self.store.tuning.plants(Planted::SkipBarrier) {
            return self.flush_done(target, Ok(()));
        }
        if self.store.io.flush(Context::Flush(target)) {
            self.store.metrics.flushes += 1;
            self.store.stock.flushed(self.store.now);
        } else {
            // nothing was written since the last flush
            self.flush_done(target, Ok(()));
        }
    }

    /// Handles the end of the shared flush. After a failed flush it is unknown what is on the
    /// media, so the pool stops.
    pub(crate) fn flush_done(&mut self, target: Lsn, result: Result<(), DeviceError>) {
        let wants = self.store.flusher.running.take().unwrap_or_default();
        if let Err(error) = result {
            return self.fault(Fault::Flush(error));
        }
        if wants.labels {
            self.relabel_done(Ok(()));
        }
        if self.store.labels.holds_flushes(self.store.generation) {
            let (before, checkpoint) = self.store.flusher.held.unwrap_or((target, false));
            self.store.flusher.held = Some((before.max(target), checkpoint || wants.checkpoint));
        } else {
            self.flushed(target, wants.checkpoint);
        }
        if wants.fill {
            self.filler.fill_flushed(&mut self.store);
        }
    }

    /// Reports data as durable that was flushed while labels were written: they now say which
    /// devices count.
    pub(crate) fn release_held(&mut self) {
        if let Some((target, checkpoint)) = self.store.flusher.held.take() {
            self.flushed(target, checkpoint);
        }
    }

    /// Marks the log as durable up to `target`, and completes the flush of a checkpoint that waits
    /// for it.
    fn flushed(&mut self, target: Lsn, checkpoint: bool) {
        self.store.log.durable = self.store.log.durable.max(target);
        let durable = self.store.log.durable;
        let (over, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.store.flusher.waiting).into_iter().partition(|(_, lsn)| *lsn <= durable);
        self.store.flusher.waiting = waiting;
        over.into_iter().for_each(|(op, _)| self.finish(op));
        if checkpoint {
            self.checkpoint_io_done(Ok(()));
        }
    }
}

impl Store {
    fn count_guest(&mut self, work: &Work) {
        match work {
            Work::Write(work) => {
                self.metrics.guest_writes += 1;
                self.metrics.guest_write_bytes += work.request.range.length;
            }
            Work::Barrier(BarrierKind::Flush) => self.metrics.guest_flushes += 1,
            _ => {}
        }
    }
}
