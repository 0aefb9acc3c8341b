//! Scan of the segments that an evacuation empties: what is left, and why it cannot be moved now.

use std::collections::{BTreeSet, VecDeque};

use millpond_block::MemberId;
use millpond_format::SegmentId;

use crate::io::Health;
use crate::space::{Pause, Segment, SegmentLayout, SegmentState};

/// The result of a scan of all segments that are to be given up.
#[derive(Default)]
pub(super) struct Look {
    /// Segments that are not empty, or not free yet.
    pub(super) left: u64,
    /// Some of them can only be freed by a checkpoint.
    pub(super) waits: bool,
    /// Segments for the cleaner to empty now.
    pub(super) todo: VecDeque<SegmentId>,
    /// Segments with content that is right in no copy; `lists` counts those with checkpoint
    /// objects.
    pub(super) unreadable: Vec<SegmentId>,
    pub(super) lists: u64,
    /// Number of segments with content that only devices may have that are missing or not whole,
    /// and those devices.
    pub(super) away: u64,
    pub(super) lacks: BTreeSet<MemberId>,
    /// Number of segments whose moves do not fit into the next checkpoint.
    pub(super) lacks_room: u64,
}

impl Look {
    /// Counts a segment.
    pub(super) fn add(&mut self, id: SegmentId, segment: &Segment, now: u64, health: &Health, layout: &SegmentLayout) {
        if segment.state == SegmentState::Absent {
            return;
        }
        self.left += 1;
        match (segment.state, segment.pause(now)) {
            (SegmentState::Sealed, Some(Pause::Room)) => self.lacks_room += 1,
            (SegmentState::Sealed, Some(Pause::Unreadable)) if health.has_all(layout, id) => {
                self.unreadable.push(id);
                self.lists += u64::from(segment.objects > 0);
            }
            // a segment that lacked a device which is back by now is tried again
            (SegmentState::Sealed, Some(_)) => {
                self.away += 1;
                self.lacks.extend(health.lacking(layout, id));
            }
            (SegmentState::Sealed, None) if segment.objects == 0 && segment.placed > 0 => self.todo.push_back(id),
            // only a checkpoint frees those
            (SegmentState::Sealed | SegmentState::Retained(_), _) => self.waits = true,
            _ => {}
        }
    }

    /// Returns why the evacuation makes no progress; `None` when the cleaner has something to do.
    pub(super) fn reason(&self) -> Option<String> {
        if !self.todo.is_empty() {
            None
        } else if self.away > 0 {
            let (noun, lacks) = if self.lacks.len() == 1 { ("member", "is") } else { ("members", "are") };
            let members: Vec<String> = self.lacks.iter().map(MemberId::to_string).collect();
            let members = members.join(", ");
            Some(format!("something that has to be moved cannot be read while {noun} {members} {lacks} away or not whole"))
        } else if !self.unreadable.is_empty() {
            Some("something that has to be moved cannot be read on any copy".to_owned())
        } else {
            (self.lacks_room > 0).then(|| "the next checkpoint has no room for what has to be moved".to_owned())
        }
    }
}
