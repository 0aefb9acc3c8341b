//! Device operations in flight: groups that complete together, with their requesters' contexts.

mod behind;
mod columns;
mod ending;
mod full;
mod loose;
mod loss;
mod part;
mod patience;
mod push;
mod silence;
mod slots;
mod urgent;

use std::collections::{BTreeMap, VecDeque};

use millpond_block::{Buf, BufPool, BufSlice, ByteRange, DeviceError, DeviceSlot, Io, IoId, IoKind, MemberId};
use millpond_format::SegmentId;
use smallvec::SmallVec;

use self::behind::Behind;
use self::full::Full;
use self::part::Part;
use self::silence::Line;
use super::health::Health;
use super::parity::{Coders, Rebuild, Want, answers};
use crate::slab::Slab;
use crate::space::{PAGE, SegmentLayout};
use crate::{DeviceCounters, DeviceTrouble};

pub(crate) use self::behind::BehindWrites;
pub(crate) use self::slots::Replica;

/// Kind of a group's operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    /// A write whose failure does not make the table give its device up; the requester decides.
    /// A flush covers it, except on auxiliary devices.
    Loose,
    Flush,
    /// Zeros for an empty segment. The requester decides what a failure means.
    Zero,
    Discard,
}

struct Group<C> {
    /// Context of the requester; `None` once it was notified and only late completions may come.
    context: Option<C>,
    kind: Kind,
    /// Number of parts that it waits for.
    left: u16,
    /// Number of parts that the caller has, whether waited for or not.
    out: u16,
    error: Option<DeviceError>,
    parts: SmallVec<[Part; 1]>,
    pin: Option<SegmentId>,
    /// When set, the result is computed from the parts that were read.
    rebuild: Option<Box<Rebuild>>,
    /// Number of groups that began before it.
    nth: u64,
    /// Segment, page and pages of a read that another copy may serve if a device is silent.
    place: Option<(SegmentId, u32, u32)>,
    /// True when its operations overtake others.
    urgent: bool,
    /// True when its failure does not count as an error of the device.
    quiet: bool,
}

/// Stage of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// To be passed to the caller, or waiting for space on its device.
    Waiting,
    /// The caller has it.
    Out,
    Ended,
}

/// A group that has ended.
pub(crate) struct Ended<C> {
    pub(crate) context: C,
    pub(crate) result: Result<(), DeviceError>,
    /// Data that was read, joined.
    pub(crate) buf: Option<Buf>,
    /// The segment that was pinned for it.
    pub(crate) pin: Option<SegmentId>,
    /// The member that did it, if it was one.
    pub(crate) member: Option<MemberId>,
}

/// A device whose writes fail and that the pool can do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failing {
    /// The member.
    pub(crate) member: MemberId,
    /// Which of the member's devices it is.
    pub(crate) replica: Replica,
    /// Reason of the failure.
    pub(crate) why: DeviceTrouble,
}

/// Operations in flight and operations to start.
pub(crate) struct IoTable<C> {
    groups: Slab<Group<C>>,
    /// Number of groups that only wait for late completions.
    ghosts: usize,
    /// Number of groups that were begun.
    begun: u64,
    outbox: VecDeque<Io>,
    /// True while groups that begin are urgent.
    urgent: bool,
    /// True while groups that begin count no errors.
    quiet: bool,
    /// Number of this table in its engine: completions for other tables are ignored (INV-SPARE-1).
    epoch: u16,
    /// Slot of each member's device, and of its replacement; `None` when there is no device.
    slots: Vec<Option<DeviceSlot>>,
    replacements: Vec<Option<DeviceSlot>>,
    pub(crate) health: Health,
    coders: Coders,
    behind: Behind,
    /// Groups without operations: nothing to do, or no device that could do it.
    idle: VecDeque<u32>,
    failing: Vec<Failing>,
    pub(crate) counters: Vec<DeviceCounters>,
    pub(crate) errors: Vec<u64>,
    /// Of these, failed operations.
    pub(crate) failures: Vec<u64>,
    pub(crate) repaired: Vec<u64>,
    /// Writes completed on each member, and how many of them a completed flush covers.
    written: Vec<u64>,
    flushed: Vec<u64>,
    /// Devices, by slot, whose writes wait for space.
    full: BTreeMap<DeviceSlot, Full>,
    /// State of answers of each device, by slot.
    lines: Vec<Line>,
    /// The caller's time, and how much of it counts for judging silence, in milliseconds.
    now: u64,
    clock: u64,
    /// Reasons why members were given up since import.
    trouble: Vec<Option<DeviceTrouble>>,
    /// True when the table exists until the caller has no operations: only then those of a device
    /// that was given up need not be waited for.
    pub(crate) lasting: bool,
    /// True when a planted bug violates INV-SPARE-1.
    pub(crate) late_answers_count: bool,
}

impl<C> IoTable<C> {
    /// Creates a table for members with devices in these `slots`.
    pub(crate) fn new(slots: Vec<Option<DeviceSlot>>, health: Health) -> IoTable<C> {
        let n = slots.len();
        IoTable {
            groups: Slab::default(),
            ghosts: 0,
            begun: 0,
            outbox: VecDeque::new(),
            urgent: false,
            quiet: false,
            epoch: 0,
            slots,
            replacements: vec![None; n],
            health,
            coders: Coders::default(),
            behind: Behind::default(),
            idle: VecDeque::new(),
            failing: Vec::new(),
            counters: vec![DeviceCounters::default(); n],
            errors: vec![0; n],
            failures: vec![0; n],
            repaired: vec![0; n],
            // writes of an earlier run count as not flushed
            written: vec![1; n],
            flushed: vec![0; n],
            full: BTreeMap::new(),
            lines: Vec::new(),
            now: 0,
            clock: 0,
            trouble: vec![None; n],
            lasting: false,
            late_answers_count: false,
        }
    }

    /// Replaces another table; completions of its operations are ignored.
    #[must_use]
    pub(crate) fn after<D>(self, before: &IoTable<D>) -> IoTable<C> {
        IoTable { epoch: before.epoch.wrapping_add(1), ..self }
    }

    /// Takes the reasons why members were given up from the table before.
    pub(crate) fn inherit_trouble<D>(&mut self, before: &IoTable<D>) {
        self.trouble.clone_from(&before.trouble);
    }

    /// Number of groups that a requester waits for.
    pub(crate) fn in_flight(&self) -> usize {
        self.groups.len() - self.ghosts
    }

    /// Removes the next operation to start; only a read when `held` is true.
    pub(crate) fn pop(&mut self, held: bool) -> Option<Io> {
        let io = if held {
            let at = self.outbox.iter().position(|io| matches!(io.kind, IoKind::Read { .. }))?;
            self.outbox.remove(at)
        } else {
            self.outbox.pop_front()
        }?;
        let (group, part) = names(io.id);
        if let Some(g) = self.groups.get_mut(group)
            && let Some(p) = g.parts.get_mut(usize::from(part))
        {
            p.stage = Stage::Out;
            g.out += 1;
        }
        self.begins(io.device);
        Some(io)
    }

    /// Removes the next device that failed and can be spared; the table does not use it any more.
    pub(crate) fn pop_failing(&mut self) -> Option<Failing> {
        self.failing.pop()
    }

    /// True when [`pop_idle`](Self::pop_idle) has a group.
    pub(crate) fn has_idle(&self) -> bool {
        !self.idle.is_empty()
    }

    /// Returns a mark between the groups begun before and those begun later.
    pub(crate) fn mark(&self) -> u64 {
        self.begun
    }

    /// True when all groups that began before a mark have ended.
    pub(crate) fn has_ended(&self, mark: u64) -> bool {
        self.groups.iter().filter(|group| group.context.is_some()).all(|group| group.nth >= mark)
    }

    /// Reads a range of one member.
    pub(crate) fn read_raw(&mut self, context: C, member: MemberId, range: ByteRange, bufs: &mut BufPool) {
        let group = self.add(context, Kind::Read, None);
        self.push_read(group, member, range, bufs);
        self.begin(group);
    }

    /// Reads a range of one member and pins the segment that it belongs to.
    pub(crate) fn read_pinned(&mut self, context: C, pin: SegmentId, member: MemberId, range: ByteRange, bufs: &mut BufPool) {
        let group = self.add(context, Kind::Read, Some(pin));
        self.push_read(group, member, range, bufs);
        self.begin(group);
    }

    /// Reads pages of a segment. Each `attempt` uses another copy, or, with parity, does without
    /// another column.
    #[expect(clippy::too_many_arguments, reason = "a place, and who asks")]
    pub(crate) fn read(
        &mut self,
        context: C,
        layout: &SegmentLayout,
        segment: SegmentId,
        page: u32,
        pages: u32,
        attempt: u8,
        bufs: &mut BufPool,
    ) {
        let place = (attempt == 0).then_some((segment, page, pages));
        let group = self.add_at(context, Kind::Read, Some(segment), place);
        self.read_place(group, layout, (segment, page, pages), attempt, bufs);
        self.begin(group);
    }

    fn read_place(&mut self, group: u32, layout: &SegmentLayout, place: (SegmentId, u32, u32), attempt: u8, bufs: &mut BufPool) {
        let (segment, page, pages) = place;
        if let Some(stripe) = layout.stripe(segment) {
            let from = u64::from(page) * PAGE;
            let want = Want::Bytes { from, to: from + u64::from(pages) * PAGE };
            if self.rebuild(group, &stripe, want, attempt, bufs) {
                return;
            }
        }
        let order = self.health.order(layout, segment, page);
        let copy = order.get(usize::from(attempt) % order.len().max(1)).copied().unwrap_or(0);
        for (device, range) in layout.map(segment, page, pages, copy) {
            self.push_read(group, device, range, bufs);
        }
    }

    /// Reads pages from complete copies only: for callers that cannot recognise an older state.
    #[expect(clippy::too_many_arguments, reason = "a place, and who asks")]
    pub(crate) fn read_whole(
        &mut self,
        context: C,
        layout: &SegmentLayout,
        segment: SegmentId,
        page: u32,
        pages: u32,
        attempt: u8,
        bufs: &mut BufPool,
    ) {
        let whole = self.health.whole_copies(layout, segment);
        match whole.get(usize::from(attempt) % whole.len().max(1)) {
            Some(copy) => self.read_copy(context, layout, segment, page, pages, *copy, bufs),
            None => {
                let group = self.add(context, Kind::Read, Some(segment));
                self.begin(group);
            }
        }
    }

    /// Reads pages of one copy of a segment; without copies, of the segment.
    #[expect(clippy::too_many_arguments, reason = "a place, and who asks")]
    pub(crate) fn read_copy(
        &mut self,
        context: C,
        layout: &SegmentLayout,
        segment: SegmentId,
        page: u32,
        pages: u32,
        copy: usize,
        bufs: &mut BufPool,
    ) {
        let group = self.add(context, Kind::Read, Some(segment));
        for (device, range) in layout.map(segment, page, pages, copy) {
            self.push_read(group, device, range, bufs);
        }
        self.begin(group);
    }

    /// Number of copies of a segment that can be read; with parity, the number of ways to read it
    /// without one more column than those that are missing.
    pub(crate) fn copies(&self, layout: &SegmentLayout, segment: SegmentId) -> u8 {
        if let Some(stripe) = layout.stripe(segment) {
            let missing = self.health.missing(&stripe);
            return answers(stripe.width(), stripe.parity.min(1 + missing.count_ones() as usize), missing);
        }
        u8::try_from(self.health.order(layout, segment, 0).len()).unwrap_or(u8::MAX).max(1)
    }

    /// Maximum number of useful attempts to read pages of a segment: twice for each copy, because a
    /// copy that fails meanwhile shifts the order of the others.
    pub(crate) fn attempts(&self, layout: &SegmentLayout, segment: SegmentId) -> u8 {
        if let Some(stripe) = layout.stripe(segment) {
            // a device given up meanwhile changes the results: allow as many as with all devices
            return answers(stripe.width(), stripe.parity, 0).saturating_add(1);
        }
        u8::try_from(2 * layout.copies(segment).len()).unwrap_or(u8::MAX).max(2)
    }

    /// Writes other bytes to each of several members.
    pub(crate) fn write_raw(&mut self, context: C, writes: Vec<(MemberId, u64, BufSlice)>) {
        let group = self.add(context, Kind::Write, None);
        for (device, offset, piece) in writes {
            let range = ByteRange { offset, length: piece.len() as u64 };
            self.push_write(group, device, range, vec![piece], Replica::Current);
        }
        self.begin(group);
    }

    /// Writes other bytes to each of several members or their replacements.
    pub(crate) fn write_each(&mut self, context: C, writes: Vec<(MemberId, Replica, u64, BufSlice)>) {
        let group = self.add(context, Kind::Write, None);
        for (member, replica, offset, piece) in writes {
            let range = ByteRange { offset, length: piece.len() as u64 };
            self.push_write(group, member, range, vec![piece], replica);
        }
        self.begin(group);
    }

    /// Writes to a member or its replacement.
    pub(crate) fn write_to(
        &mut self,
        context: C,
        pin: Option<SegmentId>,
        member: MemberId,
        replica: Replica,
        offset: u64,
        piece: BufSlice,
    ) {
        let group = self.add(context, Kind::Write, pin);
        let range = ByteRange { offset, length: piece.len() as u64 };
        self.push_write(group, member, range, vec![piece], replica);
        self.begin(group);
    }

    /// Writes pieces to a segment from a page on, to every copy of it. With parity: whole stripes
    /// (INV-PARITY-1). Returns writes to devices that are being filled, which nothing
    /// waits for.
    pub(crate) fn write(
        &mut self,
        context: C,
        layout: &SegmentLayout,
        segment: SegmentId,
        page: u32,
        pieces: Vec<BufSlice>,
        bufs: &mut BufPool,
    ) -> BehindWrites {
        let group = self.add(context, Kind::Write, None);
        let mut later = BehindWrites::new();
        let bytes: usize = pieces.iter().map(BufSlice::len).sum();
        let pages = u32::try_from(bytes as u64 / PAGE).unwrap_or(u32::MAX);
        if let Some(stripe) = layout.stripe(segment) {
            assert!(page.is_multiple_of(layout.quantum(segment)), "INV-PARITY-1: layout are written whole");
            let local = u64::from(page) * PAGE / stripe.data() as u64;
            for ((device, start), pieces) in stripe.columns().into_iter().zip(self.coders.split(&stripe, pieces, bufs)) {
                let range = ByteRange { offset: start + local, length: bytes as u64 / stripe.data() as u64 };
                self.push_both(group, device, range, pieces, &mut later);
            }
            return self.begin_write(group, later);
        }
        for copy in 1..layout.copies(segment).len() {
            for (device, range) in layout.map(segment, page, pages, copy) {
                self.push_both(group, device, range, pieces.clone(), &mut later);
            }
        }
        let places = layout.map(segment, page, pages, 0);
        if let [(device, range)] = places.as_slice() {
            self.push_both(group, *device, *range, pieces, &mut later);
            return self.begin_write(group, later);
        }
        let mut rest = pieces.into_iter();
        let mut open: Option<BufSlice> = rest.next();
        for (device, range) in places {
            let mut need = usize::try_from(range.length).unwrap_or(usize::MAX);
            let mut mine = Vec::new();
            while need > 0 {
                let Some(piece) = open.take() else { break };
                if piece.len() > need {
                    mine.push(piece.slice(0..need));
                    open = Some(piece.slice(need..piece.len()));
                    need = 0;
                } else {
                    need -= piece.len();
                    mine.push(piece);
                    open = rest.next();
                }
            }
            self.push_both(group, device, range, mine, &mut later);
        }
        self.begin_write(group, later)
    }

    /// Ends a write that no device can take.
    fn fail_group(&mut self, group: u32) {
        if let Some(g) = self.groups.get_mut(group) {
            g.error = Some(DeviceError::Gone);
            self.idle.push_back(group);
        }
    }

    /// Flushes every member with writes since its last flush. False, without a group, if none has.
    pub(crate) fn flush(&mut self, context: C) -> bool {
        // a member that is not in service may have a replacement that is
        let written: Vec<(MemberId, Replica, u64)> = (0..)
            .map(MemberId)
            .zip(self.written.iter().zip(&self.flushed))
            .filter(|(_, (written, flushed))| written > flushed)
            .flat_map(|(member, (written, _))| [Replica::Current, Replica::Replacement].map(|replica| (member, replica, *written)))
            .filter(|(member, replica, _)| self.is_usable(*member, *replica))
            .collect();
        if written.is_empty() {
            return false;
        }
        let group = self.add(context, Kind::Flush, None);
        for (member, replica, written) in written {
            // a flush has no range; the offset holds how many writes it covers
            let range = ByteRange { offset: written, length: 0 };
            self.push(group, Part { replica, ..Part::new(member, range) }, IoKind::Flush);
        }
        self.begin(group);
        true
    }

    /// Zeroes ranges of members and allocates their space on the host.
    pub(crate) fn zero(&mut self, context: C, ranges: impl Iterator<Item = (MemberId, ByteRange)>) {
        let group = self.add(context, Kind::Zero, None);
        for (device, range) in ranges {
            if self.health.is_up(device) {
                let io = IoKind::Zero { offset: range.offset, length: range.length };
                self.push(group, Part::new(device, range), io);
            }
        }
        self.begin(group);
    }

    /// Discards ranges, so that the host may free their space.
    pub(crate) fn discard(&mut self, context: C, ranges: impl Iterator<Item = (MemberId, ByteRange)>) {
        let group = self.add(context, Kind::Discard, None);
        for (device, range) in ranges {
            if self.health.is_up(device) {
                let io = IoKind::Discard { offset: range.offset, length: range.length };
                self.push(group, Part::new(device, range), io);
            }
        }
        self.begin(group);
    }
}

/// Number of the table that an operation belongs to.
fn epoch_of(id: IoId) -> u16 {
    (id.0 >> 48) as u16
}

/// Group and part of an operation.
fn names(id: IoId) -> (u32, u16) {
    ((id.0 & 0xffff_ffff) as u32, (id.0 >> 32 & 0xffff) as u16)
}

#[cfg(test)]
mod tests;
