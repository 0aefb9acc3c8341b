//! Device operations in flight: groups of them that complete together, each with the context that asked.

use std::collections::VecDeque;

use millpond_block::{Buf, BufPool, ByteRange, Piece};
use millpond_device::{DeviceError, DeviceIndex, Io, IoDone, IoId, IoKind};
use millpond_format::SegmentId;
use smallvec::SmallVec;

use crate::DeviceCounters;
use crate::slab::Slab;
use crate::space::{PAGE, Rows};

/// Tries of a failing write before it counts as failed.
const WRITE_TRIES: u8 = 3;

/// What a group is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Flush,
    Discard,
}

struct Group<C> {
    context: C,
    kind: Kind,
    left: u16,
    error: Option<DeviceError>,
    parts: SmallVec<[Part; 1]>,
    pin: Option<SegmentId>,
}

struct Part {
    device: DeviceIndex,
    range: ByteRange,
    buf: Option<Buf>,
    /// What a write writes, kept to try again.
    pieces: Vec<Piece>,
    tries: u8,
}

/// A group that ended.
pub(crate) struct Ended<C> {
    pub(crate) context: C,
    pub(crate) result: Result<(), DeviceError>,
    /// What was read, joined.
    pub(crate) buf: Option<Buf>,
    /// The segment that was pinned for it.
    pub(crate) pin: Option<SegmentId>,
}

/// Operations in flight and operations to start.
pub(crate) struct IoTable<C> {
    groups: Slab<Group<C>>,
    outbox: VecDeque<Io>,
    /// Position in the caller's vector of each member.
    positions: Vec<u16>,
    pub(crate) counters: Vec<DeviceCounters>,
    pub(crate) errors: Vec<u64>,
    /// Writes completed on each member, and how many of them a completed flush covers.
    written: Vec<u64>,
    flushed: Vec<u64>,
    /// Writes that found their device full, the oldest first.
    stalled: VecDeque<(u32, u16)>,
    /// One of them that is being tried again: the others follow when it gets through.
    probe: Option<(u32, u16)>,
}

impl<C> IoTable<C> {
    /// A table for members at `positions` of the caller's devices.
    pub(crate) fn new(positions: Vec<u16>) -> IoTable<C> {
        let n = positions.len();
        IoTable {
            groups: Slab::default(),
            outbox: VecDeque::new(),
            positions,
            counters: vec![DeviceCounters::default(); n],
            errors: vec![0; n],
            // what an earlier run wrote counts as not flushed
            written: vec![1; n],
            flushed: vec![0; n],
            stalled: VecDeque::new(),
            probe: None,
        }
    }

    /// Position of each member in the caller's vector.
    pub(crate) fn positions(&self) -> Vec<usize> {
        self.positions.iter().map(|p| usize::from(*p)).collect()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.groups.len()
    }

    pub(crate) fn pop(&mut self) -> Option<Io> {
        self.outbox.pop_front()
    }

    fn position(&self, member: DeviceIndex) -> DeviceIndex {
        DeviceIndex(self.positions.get(usize::from(member.0)).copied().unwrap_or(u16::MAX))
    }

    fn add(&mut self, context: C, kind: Kind, pin: Option<SegmentId>) -> u32 {
        self.groups.insert(Group { context, kind, left: 0, error: None, parts: SmallVec::new(), pin })
    }

    fn push(&mut self, group: u32, part: Part, io: IoKind) {
        let device = self.position(part.device);
        if let Some(counters) = self.counters.get_mut(usize::from(part.device.0)) {
            match &io {
                IoKind::Read { .. } => {
                    counters.reads += 1;
                    counters.read_bytes += part.range.length;
                }
                IoKind::Write { .. } => {
                    counters.writes += 1;
                    counters.write_bytes += part.range.length;
                }
                IoKind::Flush => counters.flushes += 1,
                IoKind::Discard { .. } => {}
            }
        }
        if let Some(g) = self.groups.get_mut(group) {
            let id = IoId(u64::from(group) | (g.parts.len() as u64) << 32);
            g.parts.push(part);
            g.left += 1;
            self.outbox.push_back(Io { id, device, kind: io });
        }
    }

    /// Reads a range of one member.
    pub(crate) fn read_raw(&mut self, context: C, member: DeviceIndex, range: ByteRange, bufs: &mut BufPool) {
        let group = self.add(context, Kind::Read, None);
        self.push_read(group, member, range, bufs);
    }

    fn push_read(&mut self, group: u32, device: DeviceIndex, range: ByteRange, bufs: &mut BufPool) {
        let length = usize::try_from(range.length).unwrap_or(usize::MAX);
        let io = IoKind::Read { offset: range.offset, length, buf: bufs.take(length) };
        self.push(group, Part { device, range, buf: None, pieces: Vec::new(), tries: 0 }, io);
    }

    /// Reads pages of a segment.
    pub(crate) fn read(&mut self, context: C, rows: &Rows, segment: SegmentId, page: u32, pages: u32, bufs: &mut BufPool) {
        let group = self.add(context, Kind::Read, Some(segment));
        for (device, range) in rows.map(segment, page, pages) {
            self.push_read(group, device, range, bufs);
        }
    }

    fn push_write(&mut self, group: u32, device: DeviceIndex, range: ByteRange, pieces: Vec<Piece>) {
        let io = IoKind::Write { offset: range.offset, pieces: pieces.clone() };
        self.push(group, Part { device, range, buf: None, pieces, tries: 0 }, io);
    }

    /// Writes to one or more members, each its own bytes.
    pub(crate) fn write_raw(&mut self, context: C, writes: Vec<(DeviceIndex, u64, Piece)>) {
        let group = self.add(context, Kind::Write, None);
        for (device, offset, piece) in writes {
            let range = ByteRange { offset, length: piece.len() as u64 };
            self.push_write(group, device, range, vec![piece]);
        }
    }

    /// Writes pieces to a segment from a page on.
    pub(crate) fn write(&mut self, context: C, rows: &Rows, segment: SegmentId, page: u32, pieces: Vec<Piece>) {
        let group = self.add(context, Kind::Write, None);
        let bytes: usize = pieces.iter().map(Piece::len).sum();
        let pages = u32::try_from(bytes as u64 / PAGE).unwrap_or(u32::MAX);
        let places = rows.map(segment, page, pages);
        if let [(device, range)] = places.as_slice() {
            self.push_write(group, *device, *range, pieces);
            return;
        }
        let mut rest = pieces.into_iter();
        let mut open: Option<Piece> = rest.next();
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
            self.push_write(group, device, range, mine);
        }
    }

    /// Flushes every member that has completed writes which no completed flush covers. False when there is none: nothing was started.
    pub(crate) fn flush(&mut self, context: C) -> bool {
        let members: Vec<(u16, u64)> = (0u16..)
            .zip(self.written.iter().zip(&self.flushed))
            .filter(|(_, (written, flushed))| written > flushed)
            .map(|(member, (written, _))| (member, *written))
            .collect();
        if members.is_empty() {
            return false;
        }
        let group = self.add(context, Kind::Flush, None);
        for (member, written) in members {
            // a flush has no range: the offset remembers how many writes it covers
            let range = ByteRange { offset: written, length: 0 };
            self.push(group, Part { device: DeviceIndex(member), range, buf: None, pieces: Vec::new(), tries: 0 }, IoKind::Flush);
        }
        true
    }

    /// Gives the space of ranges back.
    pub(crate) fn discard(&mut self, context: C, ranges: impl Iterator<Item = (DeviceIndex, ByteRange)>) {
        let group = self.add(context, Kind::Discard, None);
        for (device, range) in ranges {
            let io = IoKind::Discard { offset: range.offset, length: range.length };
            self.push(group, Part { device, range, buf: None, pieces: Vec::new(), tries: 0 }, io);
        }
    }

    /// Starts the oldest write again that found its device full.
    pub(crate) fn retry_stalled(&mut self) {
        if self.probe.is_none() {
            self.probe = self.stalled.pop_front();
            self.probe.into_iter().for_each(|(group, part)| self.resubmit(group, part));
        }
    }

    /// True when writes wait for room on a device.
    pub(crate) fn is_stalled(&self) -> bool {
        self.probe.is_some() || !self.stalled.is_empty()
    }

    fn resubmit(&mut self, group: u32, part: u16) {
        let Some(p) = self.groups.get(group).and_then(|g| g.parts.get(usize::from(part))) else { return };
        let io = IoKind::Write { offset: p.range.offset, pieces: p.pieces.clone() };
        let device = self.position(p.device);
        self.outbox.push_back(Io { id: IoId(u64::from(group) | u64::from(part) << 32), device, kind: io });
    }

    /// Takes a completion in. Gives the group back when it was its last.
    pub(crate) fn done(&mut self, done: IoDone, bufs: &mut BufPool) -> Option<Ended<C>> {
        let (group, part) = ((done.id.0 & 0xffff_ffff) as u32, (done.id.0 >> 32) as u16);
        let g = self.groups.get_mut(group)?;
        let p = g.parts.get_mut(usize::from(part))?;
        let member = usize::from(p.device.0);
        let probe = self.probe.take_if(|at| *at == (group, part)).is_some();
        if let Err(error) = done.result {
            if let Some(errors) = self.errors.get_mut(member) {
                *errors += 1;
            }
            if g.kind == Kind::Write {
                if error == DeviceError::Full {
                    let at = if probe { 0 } else { self.stalled.len() };
                    self.stalled.insert(at, (group, part));
                    return None;
                }
                p.tries += 1;
                if error != DeviceError::Gone && p.tries < WRITE_TRIES {
                    self.resubmit(group, part);
                    return None;
                }
            }
            g.error.get_or_insert(error);
        } else if g.kind == Kind::Write
            && let Some(written) = self.written.get_mut(member)
        {
            *written += 1;
        } else if g.kind == Kind::Flush
            && let Some(flushed) = self.flushed.get_mut(member)
        {
            *flushed = (*flushed).max(p.range.offset);
        }
        if probe {
            std::mem::take(&mut self.stalled).into_iter().for_each(|(group, part)| self.resubmit(group, part));
        }
        let g = self.groups.get_mut(group)?;
        if let Some(p) = g.parts.get_mut(usize::from(part)) {
            p.buf = done.buf;
        }
        g.left -= 1;
        if g.left > 0 {
            return None;
        }
        let mut g = self.groups.remove(group)?;
        // those that the log or a read still holds come back from there
        bufs.give_data(g.parts.iter_mut().flat_map(|part| part.pieces.drain(..)));
        let buf = if let [part] = g.parts.as_mut_slice() { part.buf.take() } else { join(g.parts, bufs) };
        Some(Ended { context: g.context, result: g.error.map_or(Ok(()), Err), buf, pin: g.pin })
    }
}

/// The parts of a read as one buffer.
fn join(parts: SmallVec<[Part; 1]>, bufs: &mut BufPool) -> Option<Buf> {
    let total: u64 = parts.iter().filter(|p| p.buf.is_some()).map(|p| p.range.length).sum();
    if total == 0 {
        return None;
    }
    let mut joined = bufs.take(usize::try_from(total).ok()?);
    let mut at = 0;
    for part in parts {
        let length = usize::try_from(part.range.length).ok()?;
        if let Some(buf) = part.buf {
            joined.bytes_mut().get_mut(at..at + length)?.copy_from_slice(buf.bytes().get(..length)?);
            at += length;
            bufs.give(buf);
        }
    }
    Some(joined)
}
