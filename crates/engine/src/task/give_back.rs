//! Giving space back: segments that nothing needs become free, and free ones return their bytes to the host.
//!
//! A segment whose blocks were overwritten or moved is free when the log that says so is durable: after a crash, replay frees them again
//! before it comes to what was written there since (INV-SPACE-3). That is not so when replay reads the segment: nodes and objects of the
//! last checkpoint, batches after it, and where its streams began; or when what emptied it is not in the log. Such a segment waits for the
//! next checkpoint.
//!
//! So that a rewind finds its data, what rested long enough for that stays as it is for some checkpoints *and* some minutes more
//! (`Tuning::rewind_checkpoints`, `rewind_millis`): the checkpoints of that time stay whole. It is the first thing that is given up: the minutes when
//! more than a small part of the pool rests, both, the oldest first, when free segments run short.
//!
//! A segment that is written again soon is better left as it is: the host would take its pages away only to find new ones. So a busy
//! pool keeps free segments that the host has bytes for, up to what it writes between checkpoints, and uses those first; an idle one
//! gives all of them back, a few at a time.

use millpond_format::{Leg, SegmentId};

use super::reserve::{Purse, Waiting};
use crate::pool::{Context, Pool};
use crate::space::{SegmentState, Shelf};
use crate::{Planted, PoolState};

/// A pool without requests for so many milliseconds is idle.
const IDLE_MILLIS: u64 = 1_000;
/// Segments that wait for the log to be durable that are worth a flush.
const FLUSH_FOR: usize = 4;
/// Of how many segments one may rest for the minutes of a rewind alone.
const RESTING_PART: usize = 8;
/// Segments given back at a time, so that guests do not wait for it.
const AT_A_TIME: usize = 2;

impl Pool {
    /// Lets segments go that rested long enough. With `hurry`, as soon as it is safe, and as many as are wanted.
    pub(crate) fn release_rested(&mut self, hurry: bool) {
        let forgets = self.planted(Planted::NothingRests);
        let keep = if hurry || forgets { 0 } else { u64::from(self.tuning.rewind_checkpoints) };
        // a device that leaves takes the past with it, and so does a wipe
        let given_up = self.evacuation.is_some() || self.rebalancer.is_short() || self.wiper.is_on();
        let oldest = if given_up || forgets { u64::MAX } else { self.oldest_kept() };
        let most = self.core.space.segments.ids().len() / RESTING_PART;
        while let Some((segment, generation)) = self.core.space.segments.rested(self.checkpoint_generation, keep) {
            let stays = match hurry {
                true => !self.is_hungry() && self.streams_fit(),
                false => generation >= oldest && self.core.space.segments.resting_count() <= most,
            };
            if stays {
                break;
            }
            self.core.space.segments.set_state(segment, SegmentState::Free);
        }
        if !self.tuning.discard_freed || self.state == PoolState::Opening {
            return;
        }
        let idle = self.now.0 > self.last_activity.0 + IDLE_MILLIS;
        let kept = if idle { 0 } else { self.kept_backed() };
        while self.core.space.segments.backed_free() > kept
            && self.core.space.segments.discarding() < AT_A_TIME
            && let Some(segment) = self.core.space.segments.first_backed_free()
        {
            self.discard(segment);
        }
    }

    /// Generation of the newest checkpoint that is older than a rewind has to reach: it and all later ones stay whole.
    fn oldest_kept(&mut self) -> u64 {
        let since = self.now.0.saturating_sub(self.tuning.rewind_millis);
        while self.past_roots.get(1).is_some_and(|(_, time)| *time <= since) {
            self.past_roots.pop_front();
        }
        self.past_roots.front().map_or(0, |(generation, _)| *generation)
    }

    /// Would more checkpoints alone let segments go?
    pub(crate) fn rests_for_checkpoints(&self) -> bool {
        let keep = u64::from(self.tuning.rewind_checkpoints);
        self.core.space.segments.resting_since().is_some_and(|newest| newest + keep >= self.checkpoint_generation)
    }

    /// Lets segments go that were emptied by what is in the log and durable; when space is short, asks for a flush that makes it so.
    pub(crate) fn release_logged(&mut self) {
        let mut waiting = Waiting::default();
        // where free segments do not run short they go on resting, for a rewind
        let short = |shelf: &Shelf| self.free_in(*shelf) < self.wanted_free(*shelf) || (*shelf != Shelf::Data && self.destages());
        let short: Vec<Shelf> = Shelf::ALL.into_iter().filter(short).collect();
        let resting: Vec<SegmentId> = self.core.space.segments.resting().map(|(id, _)| id).collect();
        for id in resting {
            if !short.contains(&self.core.space.rows.shelf(id)) {
                continue;
            }
            let Some(segment) = self.core.space.segments.get(id).filter(|_| self.is_logged(id)) else { continue };
            if segment.emptied > self.log.durable && !self.planted(Planted::ReuseBeforeFlush) {
                waiting.count(self.core.space.rows.shelf(id));
            } else if segment.pins == 0 {
                self.core.space.segments.set_state(id, SegmentState::Free);
            }
        }
        let needed = !self.room_beyond(Purse::Guest, 1) || (self.is_split() && !self.room_beyond(Purse::Cleaner, 1));
        self.flusher.space = waiting.total() >= FLUSH_FOR || (waiting.total() > 0 && needed);
        self.waiting_for_flush = waiting;
    }

    /// Is all that emptied a resting segment in the log, and does replay not read it?
    fn is_logged(&self, id: SegmentId) -> bool {
        let begins = |leg: &Leg| leg.streams.iter().any(|start| start.segment == id || start.next == id);
        self.core
            .space
            .segments
            .get(id)
            .is_some_and(|s| !s.metadata && s.last <= self.checkpoint_lsn && (s.unlogged == 0 || s.unlogged < self.checkpoint_generation))
            && !self.legs.iter().any(begins)
    }

    /// Free segments with bytes on the host that a busy pool keeps: for the log between two checkpoints, and for the one before.
    fn kept_backed(&self) -> usize {
        let segments = &self.core.space.segments;
        let log = 2 * self.tuning.checkpoint_log_bytes / self.config.shape.extent_bytes.max(1);
        usize::try_from(log).unwrap_or(usize::MAX).min(segments.ids().len() / 2)
    }

    fn discard(&mut self, segment: SegmentId) {
        self.core.space.segments.set_state(segment, SegmentState::Discarding);
        let extents: Vec<_> = self.core.space.rows.extents(segment).collect();
        self.io.discard(Context::Discard(segment), extents.into_iter());
    }
}
