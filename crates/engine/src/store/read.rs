//! Reads of segments, and repairs of wrong copies.

use std::hint::black_box;

use millpond_block::{BufSlice, ByteRange, MemberId};
use millpond_format::{Addr, FANOUT, SegmentId, TreeRoot};
use smallvec::SmallVec;

use super::{Context, Store};
use crate::io::{BucketPages, Manner, Object, Replica};
use crate::space::PAGE;
use crate::{PoolState, Target};

/// Reads whose lookups are prefetched together without an allocation.
const EXPECTED: usize = 32;

impl Store {
    /// Rewrites a wrong copy with its right content, unless it is the only copy.
    pub(crate) fn repair(&mut self, member: MemberId, segment: SegmentId, page: u32, piece: BufSlice) {
        let layout = &self.core.space.layout;
        let copy = layout.copies(segment).position(|copy| copy == member);
        // with parity each byte is stored once
        let copy = if layout.stripe(segment).is_some() { Some(0) } else { copy };
        let Some(copy) = copy else { return };
        let pages = u32::try_from(piece.len() as u64 / PAGE).unwrap_or(0);
        let places = self.core.space.layout.map(segment, page, pages, copy);
        for (device, range) in places.into_iter().filter(|(device, _)| *device == member) {
            self.repair_at(device, segment, range.offset, piece.clone());
        }
    }

    /// Rewrites part of a segment on a member at a byte offset of the device.
    pub(crate) fn repair_at(&mut self, member: MemberId, segment: SegmentId, offset: u64, piece: BufSlice) {
        if !self.writes_allowed() || !self.io.health.is_up(member) {
            return;
        }
        if let Some(repaired) = self.io.repaired.get_mut(member.index()) {
            *repaired += 1;
        }
        self.repairs.begun += 1;
        self.repairs.under_way += 1;
        self.pin(segment);
        self.io.write_to(Context::Repair, Some(segment), member, Replica::Current, offset, piece);
    }

    fn writes_allowed(&self) -> bool {
        matches!(self.state, PoolState::Online | PoolState::Closing) && !self.tuning.read_only
    }

    /// Returns the map root of a target.
    pub(crate) fn root_of(&self, target: Target) -> Option<TreeRoot> {
        match target {
            Target::Head(volume) => self.core.catalog.head(volume)?.1.head.map(|head| head.root),
            Target::Snapshot(snapshot) => self.core.catalog.snapshots.get(&snapshot).map(|s| s.root),
        }
    }

    /// Looks up the first block of each range in three steps, each for all ranges: leaf, entry,
    /// chunk. Lookups of one step are independent, so the processor waits for memory once instead
    /// of once per request. The places are discarded: the loads warm the CPU cache. Returns the
    /// addresses of the blocks whose leaves are in memory.
    pub(crate) fn expect(&self, target: Target, ranges: &[ByteRange]) -> SmallVec<[Addr; EXPECTED]> {
        let Some(root) = self.root_of(target) else { return SmallVec::new() };
        let nodes = &self.core.nodes;
        let leaf = |range: &ByteRange| nodes.peek(&root, range.offset / 4096).map(|leaf| (leaf, (range.offset / 4096) as usize % FANOUT));
        let leaves: SmallVec<[(u32, usize); EXPECTED]> = ranges.iter().filter_map(leaf).collect();
        let entry = |(leaf, slot): &(u32, usize)| {
            let node = &nodes.get(*leaf).node;
            (node.entries[*slot], node.crcs[*slot])
        };
        let entries: SmallVec<[(Addr, u32); EXPECTED]> = leaves.iter().map(entry).collect();
        let look = |(addr, crc): (Addr, u32)| {
            black_box((self.core.space.locate(addr), crc));
            addr
        };
        entries.into_iter().map(look).collect()
    }

    /// Reads pages of a segment; pins it, so that it is not reused before the read is done. Each
    /// `attempt` reads another copy, where there are several; of an object it reads it again.
    pub(crate) fn read_segment(&mut self, context: Context, segment: SegmentId, page: u32, pages: u32, attempt: u8) {
        if let Some(found) = self.core.space.segments.get_mut(segment) {
            found.pins += 1;
        }
        if self.core.space.layout.is_in_bucket(segment) {
            let manner = match context {
                _ if attempt > 0 => Manner::Again,
                Context::CleanHeader(..) | Context::Clean(..) => Manner::Later,
                _ => Manner::Urgent,
            };
            return self.read_object(context, BucketPages { segment, first: page, count: pages }, manner);
        }
        self.io.read(context, &self.core.space.layout, segment, page, pages, attempt, &mut self.bufs);
    }

    /// Reads pages of a segment ahead of guests: as [`read_segment`](Self::read_segment), but errors
    /// do not count, because a guest that needs the pages reads them itself.
    pub(crate) fn read_segment_ahead(&mut self, context: Context, segment: SegmentId, page: u32, pages: u32) {
        self.pin(segment);
        if self.core.space.layout.is_in_bucket(segment) {
            return self.read_object(context, BucketPages { segment, first: page, count: pages }, Manner::Later);
        }
        let (layout, bufs) = (&self.core.space.layout, &mut self.bufs);
        self.io.quietly(|io| io.read(context, layout, segment, page, pages, 0, bufs));
    }

    fn read_object(&mut self, context: Context, pages: BucketPages, manner: Manner) {
        let object =
            self.core.space.names.get(pages.segment).map(|named| Object { name: named.name.into(), pages: u32::from(named.pages) });
        self.bucket.read(context, object, pages, manner, &mut self.bufs);
    }
}
