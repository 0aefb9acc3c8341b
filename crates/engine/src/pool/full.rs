//! Devices that are full: guests are refused at once, and go on when there is room.
//!
//! A batch whose write finds no room cannot be taken back: the map has what is in it, and later batches follow it (I10). It stays in flight until
//! there is room. Its guests do not wait for that: their writes are answered ENOSPC, which says what every failed write says, that what was to
//! be written may be there afterwards or not. Until the batch is written nothing of it is shown (I10), so who reads just that waits a while for
//! it. New writes are refused before anything of them is in the log. What needs no write goes on; the pool is not stopped.

use millpond_block::DiskError;

use super::op::{Owner, Work};
use super::state::{Context, Pool};
use crate::PoolState;
use crate::io::devices;

/// Milliseconds between tries of writes whose device was full.
pub(crate) const FULL_RETRY_MILLIS: u64 = 200;
/// Milliseconds after which a full device is given up where the pool can do without it; where it cannot, guests are refused.
pub(crate) const FULL_PATIENCE_MILLIS: u64 = 1_000;
/// Milliseconds that reads of what is not written wait for room.
const READS_MILLIS: u64 = 30_000;

impl Pool {
    /// Goes on with writes that found their device full.
    pub(super) fn step_full(&mut self) {
        self.refuses = false;
        if !self.io.is_stalled() {
            return;
        }
        if matches!(self.state, PoolState::Online | PoolState::Closing | PoolState::Opening) {
            self.io.give_up_full(FULL_PATIENCE_MILLIS);
            while let Some(failing) = self.io.pop_failing() {
                self.device_failed(failing);
            }
        }
        let full = self.io.full_for(FULL_PATIENCE_MILLIS);
        if self.state == PoolState::Opening && !full.is_empty() {
            return self.fault(format!("it cannot be opened: no room on {}; make room there", devices(&full)));
        }
        if self.now.0 >= self.last_retry.0 + FULL_RETRY_MILLIS {
            self.last_retry = self.now;
            self.io.retry_stalled();
        }
        let Some(since) = self.io.longest_full().filter(|since| self.now.0 >= since.0 + FULL_PATIENCE_MILLIS) else { return };
        // a checkpoint that waits holds guests up only when the log needs its room
        self.refuses = self.io.stalled().any(|context| matches!(context, Context::Batch(_)));
        self.refuse_waiting(self.now.0 >= since.0 + READS_MILLIS);
    }

    /// True when a guest's write is answered ENOSPC because a device is full.
    pub(super) fn refuses_write(&self, id: u32) -> bool {
        self.refuses && self.is_guests(id)
    }

    /// Is an operation a guest's, or a part of one?
    fn is_guests(&self, mut id: u32) -> bool {
        while let Some(op) = self.ops.get(id) {
            match op.owner {
                Owner::Guest(_) => return true,
                Owner::Parent(parent) => id = parent,
                Owner::Command(_) | Owner::Nobody => return false,
            }
        }
        false
    }

    /// Answers writes that wait for room, and reads of what is not written when they have waited for `long`.
    fn refuse_waiting(&mut self, long: bool) {
        let waiters = self.space_waiters.iter().chain(&self.full_waiters).chain(&self.record_waiters);
        let waiting: Vec<u32> = waiters.copied().filter(|id| self.is_guests(*id)).collect();
        self.space_waiters.retain(|id| !waiting.contains(id));
        self.full_waiters.retain(|id| !waiting.contains(id));
        self.record_waiters.retain(|id| !waiting.contains(id));
        for id in waiting {
            self.fail_op(id, DiskError::NoSpace);
        }
        if !self.refuses {
            return;
        }
        let mut refused = self.log.take_waiters();
        let others = refused.extract_if(.., |(_, id)| !self.is_guests(*id)).collect();
        self.log.give_waiters(others);
        for (_, id) in refused {
            if let Some(op) = self.ops.get_mut(id) {
                op.error.get_or_insert(DiskError::NoSpace);
            }
            self.release(id);
        }
        let completed = self.log.completed;
        for (lsn, id) in std::mem::take(&mut self.read_waiters) {
            let error = match self.ops.get(id).map(|op| (&op.work, op.owner)) {
                _ if lsn <= completed || !self.is_guests(id) => None,
                // what it is for is refused
                Some((Work::Read(_), Owner::Parent(_))) => Some(DiskError::NoSpace),
                Some((Work::Read(_) | Work::Compare(_), _)) => long.then_some(DiskError::Io),
                _ => Some(DiskError::NoSpace),
            };
            match (error, self.ops.get_mut(id)) {
                (Some(error), Some(op)) => {
                    op.error = Some(error);
                    self.finish(id);
                }
                _ => self.read_waiters.push((lsn, id)),
            }
        }
    }
}
