//! Releasing space: segments that nothing needs become free, and the host gets back the bytes of
//! surplus free ones.
//!
//! A segment whose blocks were overwritten or moved is free when the log that says so is durable:
//! after a crash, replay frees them again before it reaches batches written there since
//! (INV-SPACE-3). That does not hold when replay reads the segment (nodes and objects of the last
//! checkpoint, batches after it, and the starts of its streams), or when the cause of its emptying
//! is not in the log. Such a segment waits for the next checkpoint.
//!
//! So that a rewind finds its data, a segment that could be free after that is retained for some
//! checkpoints *and* some minutes more (`Tuning::rewind_checkpoints`, `rewind_millis`): the
//! checkpoints of that time stay whole. This retention is given up first: the minutes when more
//! than a small part of the pool is retained, both, the oldest first, when free segments run short.
//!
//! A segment that will be written again soon is better left allocated: the host would release its
//! pages only to find new ones, and a write to a hole takes the host up to three times as long as
//! one to allocated space. So allocated free segments are used first, and only a surplus over the
//! log's needs (`store/stock.rs`) that lasted some minutes is released, a little at a time.

use crate::pool::Pool;
use crate::space::{PAGE, SegmentState};
use crate::store::{AT_A_TIME, CALL_BYTES, IDLE_MILLIS};
use crate::{Discard, Planted, PoolState, Time};

/// Bytes released per second in an idle pool: a host takes some milliseconds for them.
const IDLE_BYTES: u64 = 64 << 20;

/// Milliseconds between released segments while guests are active.
const BUSY_PAUSE: u64 = 1_000;
/// Milliseconds after a flush in which nothing is released: the host's journal would delay the next
/// flush.
const FLUSH_PAUSE: u64 = 100;

impl Pool {
    /// Frees segments whose retention has ended. With `hurry`, as soon as it is safe, and as many
    /// as are wanted.
    pub(crate) fn release_rested(&mut self, hurry: bool) {
        let forgets = self.store.tuning.plants(Planted::NothingRests);
        let keep = if hurry || forgets { 0 } else { u64::from(self.store.tuning.rewind_checkpoints) };
        // retained data does not survive a removal or a wipe, so it need not be kept
        let given_up = self.store.evacuation.is_some() || self.rebalancer.is_short() || self.wiper.is_on();
        let oldest = if given_up || forgets { u64::MAX } else { self.store.oldest_kept() };
        let most = self.store.may_rest();
        while let Some((segment, generation)) = self.store.core.space.segments.rested(self.store.checkpoint_generation, keep) {
            let stays = match hurry {
                true => !self.store.is_hungry() && self.store.streams_fit(),
                false => generation >= oldest && self.store.core.space.segments.pages().resting <= most,
            };
            if stays {
                break;
            }
            self.store.core.space.segments.set_state(segment, SegmentState::Free);
        }
    }

    /// Releases space to the host that the log does not need soon.
    pub(crate) fn step_give_back(&mut self) {
        if self.store.state != PoolState::Online || self.store.closing.is_some() {
            return;
        }
        let pages = self.store.core.space.segments.pages();
        self.store.stock.at(self.store.now, (self.store.core.space.segments.used_pages() + pages.resting) * PAGE);
        let (target, millis) = (self.store.ready_target(), self.store.surplus_millis());
        let surplus = ((pages.kept + pages.ready) * PAGE).saturating_sub(target).min(pages.ready * PAGE);
        self.store.stock.see_surplus(self.store.now, surplus, millis);
        match self.store.tuning.discard {
            Discard::Never => {}
            Discard::Now => self.store.give_back_now(),
            Discard::Lazy if self.store.host_is_short() => self.store.give_back_surplus(AT_A_TIME),
            Discard::Lazy => self.give_back_some(),
        }
    }

    /// Releases surplus at a rate that guests do not notice.
    fn give_back_some(&mut self) {
        let busy = self.store.core.space.segments.discarding() > 0 || self.preparer.is_preparing() || self.store.is_hungry();
        if self.store.stock.due == 0 || self.store.now < self.store.stock.give_back_at || busy {
            return;
        }
        if self.store.now.0 > self.store.last_activity.0 + IDLE_MILLIS {
            let rate = self.store.stock.rate.max(IDLE_BYTES);
            let given = self.store.give_back(rate.min(CALL_BYTES).min(self.store.stock.due));
            self.store.stock.give_back_at = Time(self.store.now.0 + given * 1000 / rate);
        } else if self.store.flusher.running.is_none()
            && !self.store.flusher.wanted()
            && self.store.now.0 >= self.store.stock.last_flush.0 + FLUSH_PAUSE
        {
            self.store.give_back(PAGE);
            self.store.stock.give_back_at = Time(self.store.now.0 + BUSY_PAUSE);
        }
    }
}
