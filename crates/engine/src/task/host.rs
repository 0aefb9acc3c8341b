//! What the host has for the pool's devices: which free segments it has bytes for when a pool is opened, and which devices keep theirs.

use millpond_device::{DeviceIndex, DeviceSpace};
use millpond_format::SegmentId;

use crate::pool::Pool;
use crate::space::{PAGE, SegmentState};

/// Of a new pool such a part is prepared at once at most.
const FIRST_PART: u64 = 16;

impl Pool {
    /// Says what the host has for the device at a position of the caller's.
    pub(crate) fn set_host(&mut self, position: u16, space: DeviceSpace) {
        self.hosts.insert(position, space);
        let member = self.io.positions().iter().position(|at| *at == usize::from(position));
        if let Some(member) = member.and_then(|member| u16::try_from(member).ok()) {
            let ids = self.of_member(member);
            ids.into_iter().for_each(|id| self.judge_segment(id));
        }
    }

    /// Another device has a member's place: the host has less for free segments than it had.
    pub(crate) fn judge_member(&mut self, member: u16) {
        for id in self.of_member(member) {
            let before = self.core.space.segments.get(id).is_some_and(|segment| segment.backed);
            self.judge_segment(id);
            let (now, kept) = self.core.space.segments.get(id).map_or((false, false), |s| (s.backed, s.kept));
            self.core.space.segments.set_backed(id, before && now, kept);
        }
    }

    /// New devices came, and segments with them.
    pub(crate) fn judge_new(&mut self, first: SegmentId) {
        let ids = self.core.space.segments.ids().skip(first.0 as usize);
        ids.for_each(|id| self.judge_segment(id));
    }

    fn of_member(&self, member: u16) -> Vec<SegmentId> {
        self.core.space.segments.ids().filter(|id| self.core.space.rows.has(*id, DeviceIndex(member))).collect()
    }

    /// A segment is ready when the host has bytes for all of it on each of its devices, and stays that when each of them keeps what it has.
    fn judge_segment(&mut self, id: SegmentId) {
        let Some(segment) = self.core.space.segments.get(id).filter(|_| !self.core.space.rows.is_gap(id)) else { return };
        let (mut known, mut kept) = (true, true);
        for (device, range) in self.core.space.rows.extents(id) {
            // nothing is written to a device that is missing
            let Some(position) = self.io.position_of(device.0) else { continue };
            let host = u16::try_from(position).ok().and_then(|position| self.hosts.get(&position));
            kept &= host.is_some_and(|host| host.kept);
            known &= host.is_some_and(|host| host.has(&(range.offset..range.offset + range.length)));
        }
        let backed = if segment.state == SegmentState::Free { known } else { segment.backed };
        self.core.space.segments.set_backed(id, backed, kept);
    }

    /// Does a member keep the bytes that it has?
    pub(super) fn keeps_bytes(&self, member: DeviceIndex) -> bool {
        let position = self.io.position_of(member.0).and_then(|position| u16::try_from(position).ok());
        position.and_then(|position| self.hosts.get(&position)).is_some_and(|host| host.kept)
    }

    /// A new pool begins with some segments that the host has bytes for.
    pub(crate) fn prepare_first(&mut self) {
        let pool = self.core.space.segments.all_pages() * PAGE;
        self.stock.at_first = self.tuning.ready.at_first.min(pool / FIRST_PART);
    }
}
