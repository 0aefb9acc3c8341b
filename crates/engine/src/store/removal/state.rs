//! State of the running removal or rejoin.

use std::collections::VecDeque;

use millpond_block::MemberId;
use millpond_format::SegmentId;

use super::plan::Removal;
use crate::Time;

/// Removals of devices: the running one, and the last.
#[derive(Debug, Default)]
pub(crate) struct Removals {
    pub(super) departure: RemovalState,
    /// Why the last removal ended before the device was removed, unless a command stopped it.
    pub(crate) ended: Option<String>,
    /// Time of the last check for segments that lost special devices left behind.
    pub(crate) left_behind_looked: Time,
}

/// State of a removal from step to step.
#[derive(Debug, Default)]
pub(super) struct RemovalState {
    /// Bytes that steps have moved, until the labels say that the device is removed; bytes that
    /// later steps are to move.
    pub(crate) moved: u64,
    pub(crate) later: u64,
    /// Time of the last attempt to plan the next step.
    pub(crate) looked: Time,
    /// Since when it has waited for the cleaner to free space, and the most segments that were free
    /// meanwhile.
    pub(crate) room: Option<(Time, usize)>,
}

/// A running evacuation.
#[derive(Debug)]
pub(crate) struct Evacuation {
    /// The member to remove; `None` for segments that lost special devices left behind, or that are
    /// to be widened.
    pub(crate) member: Option<MemberId>,
    /// True if no member is removed: segments are widened by extents that a stopped removal left
    /// unused.
    pub(crate) rejoins: bool,
    pub(crate) removal: Removal,
    /// Live bytes in its segments at the start.
    pub(crate) total: u64,
    /// Bytes in segments that later steps are to empty.
    pub(crate) later: u64,
    /// Segments for the cleaner to empty, as of the last scan.
    pub(crate) todo: VecDeque<SegmentId>,
    /// Time of the last scan.
    pub(crate) looked: Time,
    /// Number of segments left, and since when it has been the same, while the only work left is to
    /// retry unreadable deadlists.
    pub(crate) hopeless: Option<(u64, Time)>,
    /// Live bytes left, and since when they have been the same, while the evacuation waits for
    /// space or devices.
    pub(crate) stalled: Option<(u64, Time)>,
    /// Why it makes no progress, for users.
    pub(crate) waits: Option<String>,
}

impl Evacuation {
    /// Returns whether the cleaner has segments to empty.
    pub(crate) fn has_more(&self) -> bool {
        !self.todo.is_empty()
    }
}

impl Removals {
    /// Returns whether the next step is to be planned, `pause` milliseconds after the last attempt;
    /// notes the attempt.
    pub(crate) fn is_due(&mut self, now: Time, pause: u64) -> bool {
        let due = now.0 >= self.departure.looked.0 + pause;
        if due {
            self.departure.looked = now;
        }
        due
    }

    /// Records that the next step has begun: it does not wait for the cleaner any more.
    pub(crate) fn step_begins(&mut self) {
        self.departure.room = None;
    }

    /// Returns whether the cleaner has to free space for the next step.
    pub(crate) fn wants_room(&self) -> bool {
        self.departure.room.is_some()
    }
}
