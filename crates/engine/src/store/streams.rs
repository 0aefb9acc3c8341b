//! Segments of the streams of the log that are set aside for map nodes and special devices.

use millpond_block::BufSlice;
use millpond_format::SegmentId;

use super::{Context, Store};
use crate::log::Stream;
use crate::space::{AllocClass, SegmentState};

impl Store {
    /// Starts streams on special devices once such devices have room; a checkpoint is requested,
    /// which makes the streams usable.
    pub(crate) fn begin_special_streams(&mut self) {
        for stream in [Stream::Small, Stream::Kept] {
            let home = self
                .special_home(stream)
                .filter(|alloc_class| self.log.streams[stream].next.is_none() && self.has_special_room(*alloc_class));
            if let Some(alloc_class) = home {
                self.log.streams[stream].next = self.core.space.segments.reserve(alloc_class, false);
                self.checkpoint.forced = true;
            }
        }
    }

    /// Returns whether there is a free segment to start with for every stream that the pool cannot
    /// do without.
    pub(crate) fn streams_fit(&self) -> bool {
        let streams = |alloc_class: AllocClass| {
            Stream::all().filter(|stream| !stream.is_special() && self.alloc_class_of(*stream) == alloc_class).count()
        };
        AllocClass::ALL.into_iter().all(|alloc_class| self.core.space.segments.free_in(alloc_class) >= streams(alloc_class))
    }

    /// Reserves the first segment of every stream. Streams on special devices begin later where
    /// there are none, or none is free.
    pub(crate) fn reserve_streams(&mut self) -> bool {
        Stream::all().all(|stream| {
            let special = stream.is_special();
            if special && self.special_home(stream).is_none() {
                return true;
            }
            let alloc_class = self.alloc_class_of(stream);
            // a stream on special devices may have its segment since labels were written
            let next = self.log.streams[stream].next.or_else(|| self.core.space.segments.reserve(alloc_class, false));
            self.log.streams[stream].next = next;
            special || next.is_some()
        })
    }

    /// Makes streams continue in other segments, and checkpoints too, except a running one: it has
    /// assigned places behind its cursors already.
    pub(crate) fn leave_open_segments(&mut self) {
        self.seal_all();
        for stream in Stream::all() {
            self.close_stream_chunk(stream);
            if let Some(cursor) = self.log.streams[stream].cursor.take() {
                self.core.space.segments.set_state(cursor.segment, SegmentState::Sealed);
                self.core.space.settle(cursor.segment);
            }
        }
        if self.checkpoint.running() {
            return;
        }
        for cursor in [self.checkpoint.nodes_at.take(), self.checkpoint.objects_at.take()].into_iter().flatten() {
            self.core.space.segments.set_state(cursor.segment, SegmentState::Sealed);
            self.core.space.settle(cursor.segment);
        }
    }

    /// Writes pieces to a segment from a page on. Devices that are being filled get them, too, and are
    /// not waited for.
    pub(crate) fn write_pages(&mut self, context: Context, segment: SegmentId, page: u32, pieces: Vec<BufSlice>) {
        for write in self.io.write(context, &self.core.space.layout, segment, page, pieces, &mut self.bufs) {
            self.pin(segment);
            self.io.write_behind(Context::Behind(write.bytes()), segment, write);
        }
    }

    /// Prevents reuse of a segment until an operation on it has ended.
    pub(crate) fn pin(&mut self, segment: SegmentId) {
        if let Some(found) = self.core.space.segments.get_mut(segment) {
            found.pins += 1;
        }
    }
}
