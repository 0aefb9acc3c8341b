//! Continuing operations that were waiting.

use millpond_block::DiskError;

use super::op::Work;
use super::requests::Requests;
use crate::PoolState;
use crate::store::Store;

impl Requests {
    pub(super) fn go_on_with_ready(&mut self, store: &mut Store) {
        for _ in 0..self.ready.len() {
            if let Some(id) = self.ready.pop_front() {
                self.go_on(store, id);
            }
        }
        self.step_fills(store);
    }

    /// Continues an operation that waited.
    pub(super) fn go_on(&mut self, store: &mut Store, id: u32) {
        let Some(op) = self.ops.get(id) else { return };
        match op.work {
            Work::Read(_) => self.try_read(store, id),
            Work::Write(_) if matches!(store.state, PoolState::Faulted(_)) => self.fail_op(store, id, DiskError::Io),
            Work::Write(_) => self.try_write(store, id, None),
            Work::Clear(_) if matches!(store.state, PoolState::Faulted(_)) => self.fail_op(store, id, DiskError::Io),
            Work::Clear(_) => self.try_clear(store, id),
            Work::Walk { .. } if matches!(store.state, PoolState::Faulted(_)) => self.release(store, id),
            Work::Walk { .. } => self.try_walk(store, id),
            Work::Compare(_) => self.try_compare(store, id),
            Work::WriteSizes(_) => self.try_census(store, id),
            Work::Barrier(_) | Work::Command(_) => self.release(store, id),
        }
    }
}
