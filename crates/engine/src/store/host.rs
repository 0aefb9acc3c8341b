//! Space on the hosts of devices: which free segments are allocated there when a pool is opened,
//! and which devices never release their bytes.

use millpond_block::{DeviceSlot, DeviceSpace, MemberId};
use millpond_format::SegmentId;

use crate::space::{PAGE, SegmentState};
use crate::store::Store;

/// Most of a new pool that is prepared at once, as 1/N.
const FIRST_PART: u64 = 16;

impl Store {
    /// Sets the allocated space on the host of the device in a slot.
    pub(crate) fn set_host(&mut self, slot: DeviceSlot, space: DeviceSpace) {
        self.hosts.insert(slot, space);
        let member = self.io.slots().iter().position(|at| *at == Some(slot)).map(MemberId::at);
        if let Some(member) = member {
            let ids = self.of_member(member);
            ids.into_iter().for_each(|id| self.judge_segment(id));
        }
    }

    /// Reexamines a member's segments after its device was replaced: fewer free ones may be
    /// allocated than before.
    pub(crate) fn judge_member(&mut self, member: MemberId) {
        for id in self.of_member(member) {
            let before = self.core.space.segments.get(id).is_some_and(|segment| segment.backed);
            self.judge_segment(id);
            let (now, kept) = self.core.space.segments.get(id).map_or((false, false), |s| (s.backed, s.kept));
            self.core.space.segments.set_backed(id, before && now, kept);
        }
    }

    /// Examines the segments of new devices.
    pub(crate) fn judge_new(&mut self, first: SegmentId) {
        let ids = self.core.space.segments.ids().skip(first.0 as usize);
        ids.for_each(|id| self.judge_segment(id));
    }

    /// Marks a segment as ready if its host has allocated all of it on each of its devices, and as
    /// kept if each of them keeps its bytes.
    fn judge_segment(&mut self, id: SegmentId) {
        let Some(segment) = self.core.space.segments.get(id).filter(|_| !self.core.space.layout.is_gap(id)) else { return };
        let (mut known, mut kept) = (true, true);
        for (device, range) in self.core.space.layout.extents(id) {
            // nothing is written to a device that is missing
            let Some(slot) = self.io.slot_of(device) else { continue };
            let host = self.hosts.get(&slot);
            kept &= host.is_some_and(|host| host.kept);
            known &= host.is_some_and(|host| host.has(&(range.offset..range.offset + range.length)));
        }
        let backed = if segment.state == SegmentState::Free { known } else { segment.backed };
        self.core.space.segments.set_backed(id, backed, kept);
    }

    /// Returns whether a member's device keeps its bytes when they are free.
    pub(super) fn keeps_bytes(&self, member: MemberId) -> bool {
        self.io.slot_of(member).and_then(|slot| self.hosts.get(&slot)).is_some_and(|host| host.kept)
    }

    /// Has some segments of a new pool prepared at once.
    pub(crate) fn prepare_first(&mut self) {
        let pool = self.core.space.segments.all_pages() * PAGE;
        self.stock.at_first = self.tuning.ready.at_first.min(pool / FIRST_PART);
    }

    fn of_member(&self, member: MemberId) -> Vec<SegmentId> {
        self.core.space.segments.ids().filter(|id| self.core.space.layout.has(*id, member)).collect()
    }
}
