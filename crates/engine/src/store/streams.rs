//! Segments of the streams of the log that are set aside for map nodes and special devices.

use millpond_format::STREAMS;

use crate::log::{KEPT, SMALL, is_special};
use crate::space::Shelf;
use crate::store::Store;

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
