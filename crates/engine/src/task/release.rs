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

use crate::space::{PAGE, SegmentState};
use crate::store::{AT_A_TIME, CALL_BYTES, IDLE_MILLIS, Store};
use crate::{Discard, Planted, PoolState, Time};

/// Bytes released per second in an idle pool: a host takes some milliseconds for them.
const IDLE_BYTES: u64 = 64 << 20;

/// Milliseconds between released segments while guests are active.
const BUSY_PAUSE: u64 = 1_000;
/// Milliseconds after a flush in which nothing is released: the host's journal would delay the next
/// flush.
const FLUSH_PAUSE: u64 = 100;

/// Frees segments whose retention has ended. With `hurry`, as soon as it is safe, and as many as are
/// wanted. `given_up`: a job needs the space of retained segments.
pub(crate) fn release_retained(store: &mut Store, hurry: bool, given_up: bool) {
    let forgets = store.tuning.plants(Planted::NothingRests);
    let keep = if hurry || forgets { 0 } else { u64::from(store.tuning.rewind_checkpoints) };
    // retained data does not survive a removal or a wipe, so it need not be kept
    let given_up = given_up || store.evacuation.is_some();
    let oldest = (!given_up && !forgets).then(|| store.oldest_kept());
    let most = store.may_rest();
    while let Some((segment, generation)) = store.core.space.segments.retention_over(store.checkpoint_generation, keep) {
        let stays = match hurry {
            true => !store.is_below_target() && store.streams_fit(),
            false => oldest.is_some_and(|oldest| generation >= oldest) && store.core.space.segments.pages().retained <= most,
        };
        if stays {
            break;
        }
        store.core.space.segments.set_state(segment, SegmentState::Free);
    }
}

/// Releases space to the host that the log does not need soon. `preparing`: the preparer has not
/// reached its target.
pub(crate) fn step_give_back(store: &mut Store, preparing: bool) {
    if store.state != PoolState::Online || store.closing.is_some() {
        return;
    }
    let pages = store.core.space.segments.pages();
    store.stock.at(store.now, (store.core.space.segments.used_pages() + pages.retained) * PAGE);
    let (target, millis) = (store.ready_target(), store.surplus_millis());
    let surplus = ((pages.kept + pages.ready) * PAGE).saturating_sub(target).min(pages.ready * PAGE);
    store.stock.see_surplus(store.now, surplus, millis);
    match store.tuning.discard {
        Discard::Never => {}
        Discard::Now => store.give_back_now(),
        Discard::Lazy if store.host_is_short() => store.give_back_surplus(AT_A_TIME),
        Discard::Lazy => give_back_some(store, preparing),
    }
}

/// Releases surplus at a rate that guests do not notice.
fn give_back_some(store: &mut Store, preparing: bool) {
    let busy = store.core.space.segments.discarding() > 0 || preparing || store.is_below_target();
    if store.stock.due == 0 || store.now < store.stock.give_back_at || busy {
        return;
    }
    if store.now.0 > store.last_activity.0 + IDLE_MILLIS {
        let rate = store.stock.rate.max(IDLE_BYTES);
        let given = store.give_back(rate.min(CALL_BYTES).min(store.stock.due));
        store.stock.give_back_at = Time(store.now.0 + given * 1000 / rate);
    } else if store.flusher.running.is_none() && !store.flusher.wanted() && store.now.0 >= store.stock.last_flush.0 + FLUSH_PAUSE {
        store.give_back(PAGE);
        store.stock.give_back_at = Time(store.now.0 + BUSY_PAUSE);
    }
}
