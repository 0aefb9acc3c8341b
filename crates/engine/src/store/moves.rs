//! Reads of the headers of moves, and segments that are skipped because they cannot be read.

use millpond_format::{MAX_HEADER_PAGES, SegmentId};

use super::{Context, Store};
use crate::space::Pause;

impl Store {
    /// Skips a segment for `millis` milliseconds, because part of it is right on no copy that can
    /// be read.
    pub(crate) fn leave_unreadable(&mut self, id: SegmentId, millis: u64) {
        let why = if self.io.health.has_all(&self.core.space.layout, id) { Pause::Unreadable } else { Pause::Away };
        if let Some(segment) = self.core.space.segments.get_mut(id) {
            segment.leave_until(self.now.0 + millis, why);
        }
    }

    pub(crate) fn read_move_header(&mut self, segment: SegmentId, at: u32, attempt: u8) {
        let room = self.core.space.layout.pages(segment) - at;
        self.read_segment(Context::CleanHeader(at, attempt), segment, at, room.min(MAX_HEADER_PAGES as u32), attempt);
    }
}
