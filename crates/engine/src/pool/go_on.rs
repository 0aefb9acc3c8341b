//! Continuing operations that were waiting.

use millpond_block::DiskError;

use super::op::Work;
use super::state::Pool;
use crate::PoolState;

impl Pool {
    pub(super) fn go_on_with_ready(&mut self) {
        for _ in 0..self.ready.len() {
            if let Some(id) = self.ready.pop_front() {
                self.go_on(id);
            }
        }
    }

    /// Continues an operation that waited.
    pub(super) fn go_on(&mut self, id: u32) {
        let Some(op) = self.ops.get(id) else { return };
        match op.work {
            Work::Read(_) => self.try_read(id),
            Work::Write(_) if matches!(self.store.state, PoolState::Faulted(_)) => self.fail_op(id, DiskError::Io),
            Work::Write(_) => self.try_write(id, None),
            Work::Clear(_) if matches!(self.store.state, PoolState::Faulted(_)) => self.fail_op(id, DiskError::Io),
            Work::Clear(_) => self.try_clear(id),
            Work::Walk { .. } if matches!(self.store.state, PoolState::Faulted(_)) => self.release(id),
            Work::Walk { .. } => self.try_walk(id),
            Work::Compare(_) => self.try_compare(id),
            Work::Census(_) => self.try_census(id),
            Work::Barrier(_) | Work::Command(_) => self.release(id),
        }
    }
}
