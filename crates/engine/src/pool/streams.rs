//! The beginning of the log: reserves the first segment of every stream, and has a root name them.

use millpond_format::{Leg, Lsn, MAX_LEGS, Root, STREAMS};

use super::state::Pool;
use crate::Fault;
use crate::log::{KEPT, SMALL, is_special};
use crate::space::Shelf;
use crate::store::Store;

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

impl Store {
    /// Starts streams on special devices once such devices have room; a checkpoint is requested,
    /// which makes the streams usable.
    pub(crate) fn begin_special_streams(&mut self) {
        for stream in [SMALL, KEPT] {
            let home = self.special_home(stream).filter(|shelf| self.log.streams[stream].next.is_none() && self.has_special_room(*shelf));
            if let Some(shelf) = home {
                self.log.streams[stream].next = self.core.space.segments.reserve(shelf, false);
                self.checkpoint.forced = true;
            }
        }
    }

    /// Returns whether there is a free segment to start with for every stream that the pool cannot
    /// do without.
    pub(crate) fn streams_fit(&self) -> bool {
        let streams = |shelf: Shelf| (0..STREAMS).filter(|stream| !is_special(*stream) && self.shelf_of(*stream) == shelf).count();
        Shelf::ALL.into_iter().all(|shelf| self.core.space.segments.free_in(shelf) >= streams(shelf))
    }

    /// Reserves the first segment of every stream. Streams on special devices begin later where
    /// there are none, or none is free.
    pub(crate) fn reserve_streams(&mut self) -> bool {
        (0..STREAMS).all(|stream| {
            let special = is_special(stream);
            if special && self.special_home(stream).is_none() {
                return true;
            }
            let shelf = self.shelf_of(stream);
            // a stream on special devices may have its segment since labels were written
            let next = self.log.streams[stream].next.or_else(|| self.core.space.segments.reserve(shelf, false));
            self.log.streams[stream].next = next;
            special || next.is_some()
        })
    }
}
