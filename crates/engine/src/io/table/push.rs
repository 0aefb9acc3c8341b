//! Submission of single operations: which device they go to, and their count.

use millpond_block::{BufPool, BufSlice, ByteRange, Io, IoId, IoKind, MemberId};
use millpond_format::SegmentId;
use smallvec::SmallVec;

use super::part::Part;
use super::slots::Replica;
use super::{Group, IoTable, Kind};

impl<C> IoTable<C> {
    /// Queues a group without parts as idle, because no completion will come for it.
    pub(crate) fn begin(&mut self, group: u32) {
        if self.groups.get(group).is_some_and(|g| g.left == 0) {
            self.idle.push_back(group);
        }
    }

    pub(super) fn add(&mut self, context: C, kind: Kind, pin: Option<SegmentId>) -> u32 {
        self.add_at(context, kind, pin, None)
    }

    pub(super) fn add_at(&mut self, context: C, kind: Kind, pin: Option<SegmentId>, place: Option<(SegmentId, u32, u32)>) -> u32 {
        self.begun += 1;
        let (parts, nth) = (SmallVec::new(), self.begun - 1);
        let (context, urgent, quiet) = (Some(context), self.urgent, self.quiet);
        self.groups.insert(Group { context, kind, left: 0, out: 0, error: None, parts, pin, rebuild: None, nth, place, urgent, quiet })
    }

    /// Starts a part. A part of a member without a device fails at once.
    pub(super) fn push(&mut self, group: u32, mut part: Part, io: IoKind) {
        part.slot = self.slot_for(part.device, part.replica);
        let Some(device) = part.slot else { return self.fail_without_device(group, part) };
        if let Some(counters) = self.counters.get_mut(part.device.index()) {
            match &io {
                IoKind::Read { .. } => {
                    counters.reads += 1;
                    counters.read_bytes += part.range.length;
                }
                IoKind::Write { .. } => {
                    counters.writes += 1;
                    counters.write_bytes += part.range.length;
                }
                IoKind::Zero { length, .. } => {
                    counters.writes += 1;
                    counters.write_bytes += length;
                }
                IoKind::Flush => counters.flushes += 1,
                IoKind::Discard { .. } => {}
            }
        }
        if let Some(g) = self.groups.get_mut(group) {
            let id = IoId(u64::from(group) | (g.parts.len() as u64 & 0xffff) << 32 | u64::from(self.epoch) << 48);
            g.parts.push(part);
            g.left += 1;
            let urgent = g.urgent;
            self.outbox.push_back(Io { id, device, kind: io, urgent });
        }
    }

    pub(super) fn push_read(&mut self, group: u32, device: MemberId, range: ByteRange, bufs: &mut BufPool) {
        let length = usize::try_from(range.length).unwrap_or(usize::MAX);
        if !self.health.is_up(device) {
            return;
        }
        let io = IoKind::Read { offset: range.offset, length, buf: bufs.take(length) };
        self.push(group, Part::new(device, range), io);
    }

    pub(super) fn push_write(&mut self, group: u32, device: MemberId, range: ByteRange, pieces: Vec<BufSlice>, replica: Replica) {
        if !self.is_usable(device, replica) {
            return;
        }
        let io = IoKind::Write { offset: range.offset, pieces: pieces.clone() };
        self.push(group, Part { replica, pieces, ..Part::new(device, range) }, io);
    }
}
