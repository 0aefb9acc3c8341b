//! Filling a device: with what a member should hold that was away, or that is new, or with what the member has whose place it takes.
//!
//! From the moment that a device is to be filled everything new is written to it too. What was there before is copied segment by segment.
//! INV-FILL-1: no write to a segment being copied is under way that the device does not get, and none comes: streams and checkpoints leave
//! the segments that they were filling, and copying begins when everything that had begun before has ended.
//!
//! At the end the device gets the ring of roots, everything on it is made durable, and the labels say that it is whole.

use std::collections::VecDeque;
use std::rc::Rc;

use millpond_block::{Buf, ByteRange, Piece};
use millpond_device::{DeviceError, DeviceIndex};
use millpond_format::{DeviceId, MemberState, RING_OFFSET, RING_SLOTS, SECTOR_BYTES, SegmentId};

use super::checkpoint::second_area;
use super::claim::claim_at;
use crate::pool::{Context, Pool};
use crate::space::{PAGE, SegmentState};
use crate::{JobInfo, JobKind, PoolState};

/// Pages copied at a time.
const PAGES: u32 = 64;
/// Copies under way at a time while guests are active, and while not.
const AT_A_TIME: (usize, usize) = (1, 8);

/// A piece of a segment on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FillPiece {
    /// Which run of filling it belongs to.
    run: u64,
    segment: SegmentId,
    /// Offset on the member.
    offset: u64,
    /// Page of the segment, where each copy has all of it.
    page: u32,
    pages: u32,
    attempt: u8,
}

/// How far a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Waits for what began before.
    Settling,
    Copying,
    /// The ring is read, or written.
    Ring,
    Flush,
}

/// A device being filled.
#[derive(Debug)]
struct Fill {
    run: u64,
    member: u16,
    twin: bool,
    step: Step,
    mark: u64,
    /// What is left to copy, and which use of the segment: what it is used for later is written to the device anyway, and may be under way.
    segments: VecDeque<(SegmentId, u32)>,
    /// Where the next piece of the first segment begins, in pages of the member's extent.
    page: u32,
    in_flight: usize,
    done: u64,
    total: u64,
    unreadable: u64,
    /// The rings of all members before this one could not be read.
    ring_from: u16,
}

/// The task that fills devices, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Filler {
    waiting: VecDeque<(u16, bool)>,
    running: Option<Fill>,
    runs: u64,
}

impl Filler {
    /// No checkpoint may begin now: the ring of roots is being copied.
    pub(crate) fn holds_roots(&self) -> bool {
        self.running.as_ref().is_some_and(|fill| matches!(fill.step, Step::Ring | Step::Flush))
    }

    /// What is done and to be done.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = JobInfo> + '_ {
        let kind = |twin| if twin { JobKind::Replace } else { JobKind::Resilver };
        let running = self.running.iter().map(move |fill| JobInfo {
            kind: kind(fill.twin),
            member: Some(fill.member),
            done: fill.done,
            total: fill.total,
            errors: fill.unreadable,
            rate: 0,
        });
        let waiting = self.waiting.iter().map(move |(member, twin)| JobInfo {
            kind: kind(*twin),
            member: Some(*member),
            done: 0,
            total: 0,
            errors: 0,
            rate: 0,
        });
        running.chain(waiting)
    }

    fn of(&mut self, run: u64) -> Option<&mut Fill> {
        self.running.as_mut().filter(|fill| fill.run == run)
    }
}

impl Pool {
    /// A member is to be filled, or the device that takes its place.
    pub(crate) fn fill(&mut self, member: u16, twin: bool) {
        self.filler.waiting.push_back((member, twin));
    }

    /// A device is not to be filled any more.
    pub(crate) fn stop_filling(&mut self, member: u16, twin: bool) {
        self.filler.waiting.retain(|waiting| *waiting != (member, twin));
        if self.filler.running.as_ref().is_some_and(|fill| (fill.member, fill.twin) == (member, twin)) {
            self.filler.running = None;
        }
    }

    /// Goes on with filling. True when it wants another turn soon.
    pub(crate) fn step_fill(&mut self) -> bool {
        if self.state != PoolState::Online {
            return false;
        }
        let Some(fill) = &self.filler.running else {
            if self.filler.waiting.is_empty() {
                return false;
            }
            self.begin_fill();
            return self.filler.running.is_some();
        };
        match fill.step {
            Step::Settling => {
                let ended = self.io.has_ended(fill.mark);
                if ended && let Some(fill) = &mut self.filler.running {
                    fill.step = Step::Copying;
                }
                ended
            }
            Step::Copying => self.copy_on(),
            Step::Ring | Step::Flush => false,
        }
    }

    /// Leaves the segments that are being filled, and lists those that have something to copy.
    fn begin_fill(&mut self) {
        // nodes of a running checkpoint have places that are not written yet
        if self.checkpointer.running() {
            return;
        }
        let Some((member, twin)) = self.filler.waiting.pop_front() else { return };
        self.leave_open_segments();
        let at = DeviceIndex(member);
        let space = &self.core.space;
        let used = |id: SegmentId| space.segments.get(id).filter(|s| holds_something(s.state)).map(|s| (id, s.uses));
        let segments: VecDeque<_> = space.segments.ids().filter(|id| space.rows.has(*id, at)).filter_map(used).collect();
        let total = segments.len() as u64 * space.rows.extent_bytes();
        self.filler.runs += 1;
        let (run, mark) = (self.filler.runs, self.io.mark());
        let fill = Fill {
            run,
            member,
            twin,
            step: Step::Settling,
            mark,
            segments,
            page: 0,
            in_flight: 0,
            done: 0,
            total,
            unreadable: 0,
            ring_from: 0,
        };
        self.filler.running = Some(fill);
    }

    /// Streams go on in other segments, checkpoints too: but not one that runs, which has promised places behind its cursors already.
    pub(crate) fn leave_open_segments(&mut self) {
        self.seal_all();
        for stream in 0..self.log.streams.len() {
            self.close_stream_chunk(stream);
            if let Some(cursor) = self.log.streams.get_mut(stream).and_then(|s| s.cursor.take()) {
                self.core.space.segments.set_state(cursor.segment, SegmentState::Sealed);
                self.core.space.settle(cursor.segment);
            }
        }
        if self.checkpointer.running() {
            return;
        }
        for cursor in [self.checkpointer.nodes_at.take(), self.checkpointer.objects_at.take()].into_iter().flatten() {
            self.core.space.segments.set_state(cursor.segment, SegmentState::Sealed);
            self.core.space.settle(cursor.segment);
        }
    }

    /// Starts copies, as many as guests leave room for.
    fn copy_on(&mut self) -> bool {
        let most = self.job_depth(AT_A_TIME);
        while self.jobs_may_go_on()
            && let Some(piece) = self.next_piece(most)
        {
            self.charge_jobs(u64::from(piece.pages) * PAGE);
            self.read_piece(piece);
        }
        let Some(fill) = &self.filler.running else { return false };
        if fill.segments.is_empty() && fill.in_flight == 0 {
            if self.checkpointer.running() {
                return false;
            }
            self.read_ring();
        }
        false
    }

    /// The next piece to copy, when there is one and not too many are under way.
    fn next_piece(&mut self, most: usize) -> Option<FillPiece> {
        let extent_pages = u32::try_from(self.config.shape.extent_bytes / PAGE).unwrap_or(u32::MAX);
        let fill = self.filler.running.as_mut()?;
        loop {
            let (segment, uses) = *fill.segments.front()?;
            if fill.in_flight >= most {
                return None;
            }
            let held = self.core.space.segments.get(segment).is_some_and(|s| holds_something(s.state) && s.uses == uses);
            if !held || fill.page >= extent_pages {
                fill.done += u64::from(extent_pages - fill.page.min(extent_pages)) * PAGE;
                fill.segments.pop_front();
                fill.page = 0;
                continue;
            }
            let start = self.core.space.rows.extents(segment).find(|(device, _)| device.0 == fill.member)?.1.offset;
            let (page, pages) = (fill.page, PAGES.min(extent_pages - fill.page));
            fill.page += pages;
            fill.in_flight += 1;
            return Some(FillPiece { run: fill.run, segment, offset: start + u64::from(page) * PAGE, page, pages, attempt: 0 });
        }
    }

    fn read_piece(&mut self, piece: FillPiece) {
        let FillPiece { segment, page, pages, attempt, .. } = piece;
        let member = self.filler.running.as_ref().map_or(0, |fill| fill.member);
        let twin = self.filler.running.as_ref().is_some_and(|fill| fill.twin);
        // a member that was away may lack what the others have
        let whole = |own: &usize| self.io.health.whole_copies(&self.core.space.rows, segment).contains(own);
        let own = self.core.space.rows.copies(segment).position(|copy| copy.0 == member).filter(|own| twin && attempt == 0 && whole(own));
        if let Some(own) = own {
            // INV-FILL-2: what a member had right its successor has right, whatever rots on the others
            self.pin(segment);
            return self.io.read_copy(Context::FillRead(piece), &self.core.space.rows, segment, page, pages, own, &mut self.bufs);
        }
        if self.core.space.rows.copies(segment).len() > 0 {
            // not from one that is being filled itself
            self.pin(segment);
            return self.io.read_whole(Context::FillRead(piece), &self.core.space.rows, segment, page, pages, attempt, &mut self.bufs);
        }
        if self.core.space.rows.stripe(segment).is_some() {
            let local = ByteRange { offset: u64::from(page) * PAGE, length: u64::from(pages) * PAGE };
            self.pin(segment);
            let rows = &self.core.space.rows;
            return self.io.read_column(Context::FillRead(piece), rows, segment, DeviceIndex(member), local, attempt, &mut self.bufs);
        }
        let range = ByteRange { offset: piece.offset, length: u64::from(pages) * PAGE };
        self.pin(segment);
        self.io.read_pinned(Context::FillRead(piece), segment, DeviceIndex(member), range, &mut self.bufs);
    }

    /// A segment may not be reused until an operation on it has ended.
    pub(crate) fn pin(&mut self, segment: SegmentId) {
        if let Some(found) = self.core.space.segments.get_mut(segment) {
            found.pins += 1;
        }
    }

    /// A piece was read: it goes to the device.
    pub(crate) fn fill_read(&mut self, piece: FillPiece, result: Result<(), DeviceError>, buf: Option<Buf>) {
        let attempts = self.io.attempts(&self.core.space.rows, piece.segment);
        let Some(fill) = self.filler.of(piece.run) else { return buf.into_iter().for_each(|buf| self.bufs.give(buf)) };
        let (member, twin) = (fill.member, fill.twin);
        match (result, buf) {
            (Ok(()), Some(buf)) => {
                self.pin(piece.segment);
                let bytes = piece.pages as usize * PAGE as usize;
                let data = Piece::new(Rc::new(buf), 0..bytes);
                self.io.write_to(Context::FillWrite(piece), Some(piece.segment), member, twin, piece.offset, data);
            }
            _ if piece.attempt + 1 < attempts => self.read_piece(FillPiece { attempt: piece.attempt + 1, ..piece }),
            _ => {
                // nobody has it: what needs it gets an error, as before
                fill.unreadable += 1;
                fill.in_flight -= 1;
            }
        }
    }

    /// A piece was written.
    pub(crate) fn fill_written(&mut self, piece: FillPiece) {
        if let Some(fill) = self.filler.of(piece.run) {
            fill.in_flight -= 1;
            fill.done += u64::from(piece.pages) * PAGE;
        }
    }

    /// Everything is copied: the roots follow.
    fn read_ring(&mut self) {
        let Some(fill) = &mut self.filler.running else { return };
        fill.step = Step::Ring;
        let (run, member, twin) = (fill.run, fill.member, fill.twin);
        let shape = &self.config.shape;
        let whole =
            |(at, m): &(u16, &millpond_format::Member)| m.state == MemberState::Present && (twin || *at != member) && !shape.is_aside(*at);
        // one that failed meanwhile is not whole any more: sources are told by who they are, not counted
        let source = (0u16..).zip(&shape.members).filter(whole).map(|(at, _)| at).find(|at| *at >= fill.ring_from);
        let Some(source) = source else {
            // nobody's can be read: an empty one says that this member has no root yet, and the next checkpoint writes one
            self.checkpointer.forced = true;
            let length = RING_SLOTS as usize * SECTOR_BYTES;
            let mut ring = self.bufs.take(length);
            ring.bytes_mut().iter_mut().take(length).for_each(|byte| *byte = 0);
            return self.fill_ring_done(run, Ok(()), Some(ring));
        };
        fill.ring_from = source + 1;
        let range = ByteRange { offset: RING_OFFSET, length: RING_SLOTS * SECTOR_BYTES as u64 };
        self.io.read_raw(Context::FillRing(run), DeviceIndex(source), range, &mut self.bufs);
    }

    /// The ring was read or, both areas of it, written.
    pub(crate) fn fill_ring_done(&mut self, run: u64, result: Result<(), DeviceError>, buf: Option<Buf>) {
        let Some(fill) = self.filler.of(run) else { return };
        let (member, twin) = (fill.member, fill.twin);
        match (result, buf) {
            (Ok(()), Some(buf)) => {
                let size = if twin { self.config.twins.get(&member) } else { self.config.sizes.get(usize::from(member)) };
                let second = second_area(size.copied().unwrap_or(0));
                let piece = Piece::new(Rc::new(buf), 0..(RING_SLOTS as usize * SECTOR_BYTES));
                fill.in_flight = 2;
                for area in [0, second] {
                    self.io.write_to(Context::FillRing(run), None, member, twin, area + RING_OFFSET, piece.clone());
                }
                self.claim_filled(run, member, twin);
            }
            (Ok(()), None) => {
                fill.in_flight -= 1;
                self.flush_filled(run);
            }
            (Err(_), _) if fill.in_flight == 0 => self.read_ring(),
            // the device cannot be written, nor spared: it stays as it is until the next import
            (Err(_), _) => self.stop_filling(member, twin),
        }
    }

    /// Who is whole says whose the pool is: it may not be called so without the claim (INV-CLAIM-3).
    fn claim_filled(&mut self, run: u64, member: u16, twin: bool) {
        if let Some(piece) = self.claim_piece() {
            let size = if twin { self.config.twins.get(&member) } else { self.config.sizes.get(usize::from(member)) };
            let size = size.copied().unwrap_or(0);
            self.filler.of(run).into_iter().for_each(|fill| fill.in_flight += 2);
            for second in [false, true] {
                self.io.write_to(Context::FillRing(run), None, member, twin, claim_at(size, second).offset, piece.clone());
            }
        }
        self.flush_filled(run);
    }

    /// When all of it is written, it is made durable.
    fn flush_filled(&mut self, run: u64) {
        if let Some(fill) = self.filler.of(run).filter(|fill| fill.in_flight == 0) {
            fill.step = Step::Flush;
            self.flusher.wants.fill = true;
        }
    }

    /// Everything on the device is durable: it is whole.
    pub(crate) fn fill_flushed(&mut self) {
        let Some(fill) = self.filler.running.take_if(|fill| fill.step == Step::Flush) else { return };
        let at = usize::from(fill.member);
        let Some(member) = self.config.shape.members.get_mut(at) else { return };
        member.state = MemberState::Present;
        if fill.twin {
            let Some(device) = member.successor.take() else { return };
            let old = std::mem::replace(&mut member.device, device);
            self.relabeler.switching.insert(fill.member, old);
        } else {
            self.io.health.set(fill.member, MemberState::Present);
            self.relabeler.filled.insert(fill.member);
        }
        self.relabel(None);
    }

    /// The labels say that successors are the members.
    pub(crate) fn switch(&mut self) {
        for member in std::mem::take(&mut self.relabeler.switching).into_keys() {
            let at = usize::from(member);
            let (Some(position), Some(size)) = (self.io.twin(member), self.config.twins.remove(&member)) else { continue };
            if let Some(place) = self.config.sizes.get_mut(at) {
                *place = size;
            }
            self.io.set_position(member, position);
            self.judge_member(member);
            self.io.set_twin(member, None);
            self.io.health.set(member, MemberState::Present);
        }
    }

    /// The device that was to take a member's place failed: the member stays.
    pub(crate) fn successor_failed(&mut self, member: u16) {
        self.stop_filling(member, true);
        self.config.twins.remove(&member);
        let was = self.relabeler.switching.remove(&member);
        if let Some(m) = self.config.shape.members.get_mut(usize::from(member)) {
            m.successor = None;
            m.device = was.unwrap_or(m.device);
        }
        if !self.io.health.is_up(DeviceIndex(member)) {
            self.config.shape.lose(usize::from(member));
        }
        self.relabel(None);
    }

    /// What an import found to be filled.
    pub(crate) fn fill_what_lacks(&mut self) {
        let members: Vec<(u16, MemberState, Option<DeviceId>)> =
            (0u16..).zip(&self.config.shape.members).map(|(at, m)| (at, m.state, m.successor)).collect();
        for (at, state, successor) in members {
            if state == MemberState::Filling {
                self.fill(at, false);
            } else if successor.is_some() && self.io.twin(at).is_some() {
                self.fill(at, true);
            }
        }
    }
}

/// Is there anything in a segment that somebody may need? Of one that rests a checkpoint does: the last one that holds.
fn holds_something(state: SegmentState) -> bool {
    matches!(state, SegmentState::Sealed | SegmentState::Resting(_))
}
