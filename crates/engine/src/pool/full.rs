//! Full devices: guests' writes fail at once with ENOSPC, and work again when there is space.
//!
//! A batch whose write finds its device full cannot be taken back: the map contains its blocks, and
//! later batches follow it (I10). It stays in flight until there is space. Its guests do not wait:
//! their writes fail with ENOSPC, which means, as for every failed write, that the new data may or
//! may not be there afterwards. Until the batch is written its blocks may not be shown (I10), so
//! reads of them wait for it for a limited time. New writes are refused before anything of them is
//! in the log. Requests that write nothing go on; the pool is not stopped.

use millpond_block::DiskError;

use super::op::{Owner, Work};
use super::requests::Requests;
use super::state::Pool;
use crate::store::{Context, Store};
use crate::{Fault, PoolState, Time};

/// Milliseconds between retries of writes whose device was full.
pub(crate) const FULL_RETRY_MILLIS: u64 = 200;
/// Milliseconds after which a full device is given up if the pool can do without it; otherwise
/// guests' writes are refused from then on.
pub(crate) const FULL_PATIENCE_MILLIS: u64 = 1_000;
/// Most milliseconds that reads wait for blocks of a batch that cannot be written.
const READS_MILLIS: u64 = 30_000;

/// Writes that wait because their device is full.
#[derive(Clone, Copy, Debug)]
pub(super) struct FullDevices {
    /// A device is full, so guests' writes fail with ENOSPC.
    pub(crate) refuses: bool,
    /// Time of the last retry.
    retried: Time,
}

impl FullDevices {
    pub(super) fn new(now: Time) -> FullDevices {
        FullDevices { refuses: false, retried: now }
    }

    /// Returns whether guests' writes fail with ENOSPC.
    pub(super) fn refuses(&self) -> bool {
        self.refuses
    }

    /// Returns whether the writes are to be tried again now.
    fn retries(&mut self, now: Time) -> bool {
        let due = now.0 >= self.retried.0 + FULL_RETRY_MILLIS;
        if due {
            self.retried = now;
        }
        due
    }
}

impl Requests {
    /// Fails guests' writes that wait for space, and when `long` also reads of blocks that cannot
    /// be written.
    fn refuse_waiting(&mut self, store: &mut Store, long: bool) {
        let waiters = self.space_waiters.iter().chain(&self.full_waiters).chain(&self.record_waiters);
        let waiting: Vec<u32> = waiters.copied().filter(|id| self.is_guests(*id)).collect();
        self.space_waiters.retain(|id| !waiting.contains(id));
        self.full_waiters.retain(|id| !waiting.contains(id));
        self.record_waiters.retain(|id| !waiting.contains(id));
        for id in waiting {
            self.fail_op(store, id, DiskError::NoSpace);
        }
        if !self.full_devices.refuses {
            return;
        }
        let mut refused = store.log.take_waiters();
        let others = refused.extract_if(.., |(_, id)| !self.is_guests(*id)).collect();
        store.log.give_waiters(others);
        for (_, id) in refused {
            if let Some(op) = self.ops.get_mut(id) {
                op.error.get_or_insert(DiskError::NoSpace);
            }
            self.release(store, id);
        }
        let completed = store.log.completed;
        for (lsn, id) in std::mem::take(&mut self.read_waiters) {
            let error = match self.ops.get(id).map(|op| (&op.work, op.owner)) {
                _ if lsn <= completed || !self.is_guests(id) => None,
                // the write that this read is for is refused
                Some((Work::Read(_), Owner::Parent(_))) => Some(DiskError::NoSpace),
                Some((Work::Read(_) | Work::Compare(_), _)) => long.then_some(DiskError::Io),
                _ => Some(DiskError::NoSpace),
            };
            match (error, self.ops.get_mut(id)) {
                (Some(error), Some(op)) => {
                    op.error = Some(error);
                    self.finish(store, id);
                }
                _ => self.read_waiters.push((lsn, id)),
            }
        }
    }
}

impl Pool {
    /// Retries writes that found their device full, and refuses guests' writes after a while.
    pub(super) fn step_full(&mut self) {
        self.requests.full_devices.refuses = false;
        if !self.store.io.is_stalled() {
            return;
        }
        if matches!(self.store.state, PoolState::Online | PoolState::Closing | PoolState::Opening) {
            self.store.io.give_up_full(FULL_PATIENCE_MILLIS);
            while let Some(failing) = self.store.io.pop_failing() {
                self.device_failed(failing);
            }
        }
        let full = self.store.io.full_for(FULL_PATIENCE_MILLIS);
        if self.store.state == PoolState::Opening && !full.is_empty() {
            return self.fault(Fault::NoRoom { devices: full });
        }
        if self.requests.full_devices.retries(self.store.now) {
            self.store.io.retry_stalled();
        }
        let Some(since) = self.store.io.longest_full().filter(|since| self.store.now.0 >= since.0 + FULL_PATIENCE_MILLIS) else { return };
        // a checkpoint that waits affects guests only when the log needs the space that it frees
        self.requests.full_devices.refuses = self.store.io.stalled().any(|context| matches!(context, Context::Batch(_)));
        let reads = self.store.now.0 >= since.0 + READS_MILLIS;
        self.requests.refuse_waiting(&mut self.store, reads);
    }
}
