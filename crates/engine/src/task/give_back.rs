//! Giving space back: segments that nothing needs become free, and free ones return their bytes to the host.
//!
//! A segment that is written again soon is better left as it is: the host would take its pages away only to find new ones. So a busy
//! pool keeps free segments that the host has bytes for, up to what it writes between checkpoints, and uses those first; an idle one
//! gives all of them back, a few at a time.

use millpond_format::SegmentId;

use crate::PoolState;
use crate::pool::{Context, Pool};
use crate::space::SegmentState;

/// A pool without requests for so many milliseconds is idle.
const IDLE_MILLIS: u64 = 1_000;
/// Segments that an idle pool gives back at a time.
const AT_A_TIME: usize = 4;

impl Pool {
    /// Lets segments go that rested long enough. With `hurry`, as soon as it is safe.
    pub(crate) fn release_rested(&mut self, hurry: bool) {
        let keep = if hurry { 0 } else { u64::from(self.tuning.rewind_checkpoints) };
        let kept = self.kept_backed();
        while let Some(segment) = self.core.space.segments.rested(self.checkpoint_generation, keep) {
            self.core.space.segments.set_state(segment, SegmentState::Free);
            // an import waits for the first ones
            let spare = self.state == PoolState::Online && self.core.space.segments.backed_free() > kept;
            if self.tuning.discard_freed && spare {
                self.discard(segment);
            }
        }
        if self.tuning.discard_freed && self.now.0 > self.last_activity.0 + IDLE_MILLIS {
            while self.core.space.segments.discarding() < AT_A_TIME
                && let Some(segment) = self.core.space.segments.first_backed_free()
            {
                self.discard(segment);
            }
        }
    }

    /// Free segments with bytes on the host that a busy pool keeps: for the log between two checkpoints, and for the one before.
    fn kept_backed(&self) -> usize {
        let segments = &self.core.space.segments;
        let log = 2 * self.tuning.checkpoint_log_bytes / self.config.extent_bytes.max(1);
        usize::try_from(log).unwrap_or(usize::MAX).min(segments.ids().len() / 2)
    }

    fn discard(&mut self, segment: SegmentId) {
        self.core.space.segments.set_state(segment, SegmentState::Discarding);
        let extents: Vec<_> = self.core.space.rows.extents(segment).collect();
        self.io.discard(Context::Discard(segment), extents.into_iter());
    }
}
