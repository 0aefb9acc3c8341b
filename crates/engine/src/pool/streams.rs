//! The beginning of the log: reserves the first segment of every stream, and has a root name them.

use millpond_format::{Leg, Lsn, MAX_LEGS, Root};

use super::state::Pool;
use crate::Fault;

impl Pool {
    /// Reserves the segments in which this import's log begins, and publishes a root that names
    /// them.
    pub(crate) fn open_log(&mut self) {
        if !self.store.reserve_streams() {
            return self.fault(Fault::NoLogSegment);
        }
        let streams = std::array::from_fn(|i| self.store.log.streams[i].start());
        self.store.legs.push(Leg { incarnation: self.store.incarnation, end: Lsn(u64::MAX), streams });
        // with too many legs the pool opens with a checkpoint instead
        if self.store.legs.len() < MAX_LEGS {
            self.publish(Root {
                pool: self.store.config.id,
                generation: self.store.generation + 1,
                incarnation: self.store.incarnation,
                time: self.store.now.0,
                checkpoint: self.store.checkpoint_at,
                lsn: self.store.checkpoint_lsn,
                legs: self.store.legs.clone(),
            });
        }
    }
}
