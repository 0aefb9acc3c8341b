//! Freeing emptied segments once it is safe, and releasing surplus free ones to the host, by the
//! rules of `task/release.rs`.

use millpond_block::{ByteRange, MemberId};
use millpond_format::{LogTail, SegmentId};

use super::{Context, Store, Waiting, Watermark};
use crate::Planted;
use crate::space::{AllocClass, PAGE, SegmentState, Wanted};

/// Number of segments waiting for the log to be durable that justifies a flush.
const FLUSH_FOR: usize = 4;

/// Most bytes released in one call: a device that does not answer for long is given up.
pub(crate) const CALL_BYTES: u64 = 256 << 20;

/// Segments released at a time when it is urgent, so that guests are not delayed.
pub(crate) const AT_A_TIME: usize = 2;

/// Milliseconds without requests after which a pool is idle.
pub(crate) const IDLE_MILLIS: u64 = 1_000;

/// Share (1/N) of the pool, and of the space in use, that may be retained for the minutes of a
/// rewind alone.
const RESTING_PART: u64 = 8;

impl Store {
    /// Frees segments whose emptying is in the log and durable; when space is short, requests a
    /// flush to make it durable.
    pub(crate) fn release_logged(&mut self) {
        let mut waiting = Waiting::default();
        // where enough segments are free the others stay retained for a rewind
        let short = |alloc_class: &AllocClass| {
            self.free_in(*alloc_class) < self.wanted_free(*alloc_class) || (*alloc_class != AllocClass::Data && self.destages())
        };
        let short: Vec<AllocClass> = AllocClass::LOCAL.into_iter().filter(short).collect();
        let retained: Vec<SegmentId> = self.core.space.segments.retained().map(|(id, _)| id).collect();
        for id in retained {
            if !short.contains(&self.core.space.layout.alloc_class(id)) {
                continue;
            }
            let Some(segment) = self.core.space.segments.get(id).filter(|_| self.is_logged(id)) else { continue };
            if segment.emptied > self.log.durable && !self.tuning.plants(Planted::ReuseBeforeFlush) {
                waiting.count(self.core.space.layout.alloc_class(id));
            } else if segment.pins == 0 {
                self.core.space.segments.set_state(id, SegmentState::Free);
            }
        }
        let needed = !self.room_beyond(Watermark::Guest, 1) || (self.is_split() && !self.room_beyond(Watermark::Cleaner, 1));
        self.flusher.space = waiting.total() >= FLUSH_FOR || (waiting.total() > 0 && needed);
        self.waiting_for_flush = waiting;
    }

    /// Releases surplus, with up to `at_a_time` segments in progress.
    pub(crate) fn give_back_surplus(&mut self, at_a_time: usize) {
        while self.core.space.segments.discarding() < at_a_time && self.give_back(CALL_BYTES.min(self.stock.due)) > 0 {}
    }

    /// Releases all free segments of an idle pool, and those of a busy one beyond its needs between
    /// checkpoints.
    pub(crate) fn give_back_now(&mut self) {
        let idle = self.now.0 > self.last_activity.0 + IDLE_MILLIS;
        let kept = if idle { 0 } else { self.kept_ready() };
        while self.core.space.segments.pages().ready > kept && self.core.space.segments.discarding() < AT_A_TIME {
            let found = self.core.space.segments.last_ready(1, self.wanted_ready(kept));
            if found.is_empty() {
                break;
            }
            self.discard(found);
        }
    }

    /// Releases about `bytes` of neighbouring segments, one segment at least, but no more than is
    /// due. Returns the bytes released.
    pub(crate) fn give_back(&mut self, bytes: u64) -> u64 {
        let found = self.core.space.segments.last_ready(bytes / PAGE, self.wanted_ready(self.ready_target() / PAGE));
        let pages: u64 = found.iter().map(|id| u64::from(self.core.space.layout.pages(*id))).sum();
        if pages == 0 || pages * PAGE > self.stock.due {
            return 0;
        }
        self.stock.due -= pages * PAGE;
        self.discard(found);
        pages * PAGE
    }

    /// Discards segments, neighbours in one call to their device.
    fn discard(&mut self, segments: Vec<SegmentId>) {
        segments.iter().for_each(|id| self.core.space.segments.set_state(*id, SegmentState::Discarding));
        let extents = segments.iter().flat_map(|id| self.core.space.layout.extents(*id));
        let mut extents: Vec<(MemberId, ByteRange)> = extents.filter(|(device, _)| !self.keeps_bytes(*device)).collect();
        extents.sort_unstable_by_key(|(device, range)| (*device, range.offset));
        let mut joined: Vec<(MemberId, ByteRange)> = Vec::with_capacity(extents.len());
        for (device, range) in extents {
            match joined.last_mut() {
                Some((last, before)) if *last == device && before.offset + before.length == range.offset => before.length += range.length,
                _ => joined.push((device, range)),
            }
        }
        self.metrics.given_back_bytes += joined.iter().map(|(_, range)| range.length).sum::<u64>();
        self.io.discard(Context::Discard(segments), joined.into_iter());
    }

    /// Returns the pages that may be retained for the minutes of a rewind alone. A part of the
    /// space in use is enough for that: an eighth of a large pool that holds little would be more
    /// than a hundred times what is needed, and the host has to allocate every page of it.
    pub(crate) fn may_rest(&self) -> u64 {
        let pool = self.core.space.segments.all_pages() / RESTING_PART;
        let used = self.core.space.live_units() / 8 / RESTING_PART;
        pool.min(used.max(self.tuning.ready.retained / PAGE))
    }

    /// Frees segments after their discard. A host that refused keeps their bytes, but they are as
    /// free as before.
    pub(crate) fn given_back(&mut self, segments: &[SegmentId]) {
        for segment in segments {
            self.core.space.segments.set_state(*segment, SegmentState::Free);
        }
    }

    /// Returns whether free segments cannot be allocated for a moment, because the host is working
    /// on them.
    pub(crate) fn holds_free_segments(&self) -> bool {
        self.core.space.segments.discarding() + self.core.space.segments.preparing() > 0
    }

    /// Returns the generation of the newest checkpoint that is older than the period of a rewind:
    /// it and all later ones stay whole.
    pub(crate) fn oldest_kept(&mut self) -> u64 {
        let since = self.now.0.saturating_sub(self.tuning.rewind_millis);
        while self.past_roots.get(1).is_some_and(|(_, time)| *time <= since) {
            self.past_roots.pop_front();
        }
        self.past_roots.front().map_or(0, |(generation, _)| *generation)
    }

    /// Returns the time of the oldest checkpoint since import that a rewind finds whole without the
    /// log, in milliseconds since the Unix epoch; `None` when there is none.
    pub(crate) fn oldest_restore_point(&self) -> Option<u64> {
        let outlived = self.core.space.segments.outlived();
        self.past_roots.iter().find(|(generation, _)| *generation > outlived).map(|(_, time)| *time)
    }

    /// Returns whether further checkpoints would free segments.
    pub(crate) fn rests_for_checkpoints(&self) -> bool {
        let keep = u64::from(self.tuning.rewind_checkpoints);
        self.core.space.segments.retained_since().is_some_and(|newest| newest + keep >= self.checkpoint_generation)
    }

    /// Returns whether everything that emptied a retained segment is in the log, and replay does
    /// not read the segment.
    fn is_logged(&self, id: SegmentId) -> bool {
        let begins = |log_tail: &LogTail| log_tail.streams.iter().any(|start| start.segment == id || start.next == id);
        self.core
            .space
            .segments
            .get(id)
            .is_some_and(|s| !s.metadata && s.last <= self.checkpoint_lsn && (s.unlogged == 0 || s.unlogged < self.checkpoint_generation))
            && !self.log_tails.iter().any(begins)
    }

    /// Returns `pages` of ready segments as they are divided among the classes. Guests wait for writes
    /// to the log alone, so its class comes first: it has the smallest part of the free space of a pool,
    /// and would get as small a part of what is ready.
    pub(crate) fn wanted_ready(&self, pages: u64) -> Wanted {
        Wanted { pages, first: self.is_split().then_some(self.core.space.targets.landing) }
    }

    /// Returns the pages of allocated free segments that a busy pool keeps: for the log between two
    /// checkpoints, twice.
    fn kept_ready(&self) -> u64 {
        (2 * self.checkpoint_log_bytes() / PAGE).min(self.core.space.segments.all_pages() / 2)
    }
}
