//! Filling a device (resilver, replace): copies to it the data that its member should hold.
//!
//! From the start on all new writes go to the device, too; older data is copied segment by segment.
//! INV-FILL-1: while a segment is copied, no write to it is in flight or will come that the device
//! does not get: streams and checkpoints leave their open segments, and copying begins when all
//! operations that began before have ended.
//!
//! INV-FILL-3: until then no request waits for the writes to the device (`io/table/behind.rs`). All
//! of them have ended, and later ones are waited for, before the device is flushed to count as whole.
//!
//! At the end the ring of roots is copied to the device, it gets the key table (INV-CRYPT-8), everything
//! on it is made durable, and the labels are changed to say that it is whole.

use millpond_block::{Buf, BufSlice, ByteRange, DeviceError, MemberId};
use millpond_format::{DeviceId, KEY_TABLE_OFFSET, MemberState, RING_OFFSET, RING_SLOTS, SECTOR_BYTES, SegmentId, second_area};
use std::collections::VecDeque;

use super::lease::{Lease, claim_at};
use crate::io::Replica;
use crate::space::{PAGE, SegmentState};
use crate::store::{Context, FillPiece, Store};
use crate::{JobInfo, JobKind, Planted, PoolState, Time};

/// Pages copied at a time: at least beside guests, and otherwise. Beside guests a copy becomes longer
/// on devices that need [`SLOW_MILLIS`] for it: those with seeks lose more time by short ones.
const PAGES: (u32, u32) = (16, 64);
const SLOW_MILLIS: u64 = 4;
/// Copies in flight while guests are active, and while not.
const AT_A_TIME: (usize, usize) = (1, 8);

/// Progress of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Waits for operations that began before.
    Settling,
    Copying,
    /// Waits for the writes to the device that no request waited for.
    CatchingUp,
    /// The ring of roots is being read or written.
    Ring,
    Flush,
}

/// A device being filled.
#[derive(Debug)]
struct Fill {
    run: u64,
    member: MemberId,
    replica: Replica,
    step: Step,
    mark: u64,
    /// Segments left to copy, with their use counts: data of a later use is written to the device
    /// anyway, and may be in flight.
    segments: VecDeque<(SegmentId, u32)>,
    /// First page of the next part of the first segment, in the member's extent.
    page: u32,
    /// Pages of a part beside guests.
    pages: u32,
    in_flight: usize,
    done: u64,
    total: u64,
    unreadable: u64,
    /// The rings of all members before this one could not be read.
    ring_from: MemberId,
}

/// The task that fills devices, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Resilver {
    waiting: VecDeque<(MemberId, Replica)>,
    running: Option<Fill>,
    runs: u64,
}

impl Resilver {
    /// Returns whether no checkpoint may begin, because the ring of roots is being copied.
    pub(crate) fn holds_roots(&self) -> bool {
        self.running.as_ref().is_some_and(|fill| matches!(fill.step, Step::Ring | Step::Flush))
    }

    /// Returns whether no change of the key table may begin, because a device is about to get it.
    pub(crate) fn holds_keys(&self, store: &Store) -> bool {
        let waits_for_keys = |fill: &Fill| fill.step == Step::CatchingUp && !lacks_keys(store, fill);
        self.holds_roots() || self.running.as_ref().is_some_and(waits_for_keys)
    }

    /// Returns the progress of running and waiting jobs.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = JobInfo> + '_ {
        let kind = |replica| match replica {
            Replica::Current => JobKind::Resilver,
            Replica::Replacement => JobKind::Replace,
        };
        let running = self.running.iter().map(move |fill| JobInfo {
            kind: kind(fill.replica),
            member: Some(fill.member),
            done: fill.done,
            total: fill.total,
            errors: fill.unreadable,
            rate: 0,
        });
        let waiting = self.waiting.iter().map(move |(member, replica)| JobInfo {
            kind: kind(*replica),
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

impl Resilver {
    /// Continues filling. Returns true when it wants another turn soon.
    pub(crate) fn step_fill(&mut self, store: &mut Store, lease: &mut Lease) -> bool {
        if store.state != PoolState::Online {
            return false;
        }
        let Some(fill) = &self.running else {
            if self.waiting.is_empty() {
                return false;
            }
            self.begin_fill(store);
            return self.running.is_some();
        };
        match fill.step {
            Step::Settling => {
                let ended = store.io.has_ended(fill.mark);
                if ended && let Some(fill) = &mut self.running {
                    fill.step = Step::Copying;
                }
                ended
            }
            Step::Copying => self.copy_on(store),
            Step::CatchingUp => {
                let waits = store.checkpoint.running() || store.keys.writing || lacks_keys(store, fill);
                if store.io.has_ended(fill.mark) && !waits {
                    self.read_ring(store, lease);
                }
                false
            }
            Step::Ring | Step::Flush => false,
        }
    }

    /// Starts as many copies as guests leave room for. Returns true when everything is copied.
    fn copy_on(&mut self, store: &mut Store) -> bool {
        let most = store.job_depth(AT_A_TIME);
        while store.jobs_may_go_on()
            && let Some(piece) = self.next_piece(store, most)
        {
            store.charge_jobs(u64::from(piece.pages) * PAGE);
            self.read_piece(store, piece);
        }
        let Some(fill) = self.running.as_mut().filter(|fill| fill.segments.is_empty() && fill.in_flight == 0) else { return false };
        if !store.tuning.plants(Planted::LagForEver) {
            store.io.let_lag(None);
        }
        fill.mark = store.io.mark();
        fill.step = Step::CatchingUp;
        true
    }

    /// Copies the ring of roots once all segments are copied.
    fn read_ring(&mut self, store: &mut Store, lease: &mut Lease) {
        let Some(fill) = &mut self.running else { return };
        fill.step = Step::Ring;
        let (run, member, replacement) = (fill.run, fill.member, fill.replica == Replica::Replacement);
        let shape = &store.config.shape;
        let whole = |(at, m): &(MemberId, &millpond_format::Member)| {
            m.state == MemberState::Present && (replacement || *at != member) && !shape.is_auxiliary(*at)
        };
        // a member that failed meanwhile is not whole any more, so sources are tracked by number,
        // not counted
        let source = shape.numbered().filter(whole).map(|(at, _)| at).find(|at| *at >= fill.ring_from);
        let Some(source) = source else {
            // no ring can be read: an empty one says that this member has no root yet, and the next
            // checkpoint writes one
            store.checkpoint.forced = true;
            let length = RING_SLOTS as usize * SECTOR_BYTES;
            let mut ring = store.bufs.take(length);
            ring.bytes_mut().iter_mut().take(length).for_each(|byte| *byte = 0);
            return self.fill_ring_done(store, lease, run, Ok(()), Some(ring));
        };
        fill.ring_from = MemberId(source.0 + 1);
        let range = ByteRange { offset: RING_OFFSET, length: RING_SLOTS * SECTOR_BYTES as u64 };
        store.io.read_raw(Context::FillRing(run), source, range, &mut store.bufs);
    }

    /// Handles the end of the read of the ring, or of a write to one of the areas.
    pub(crate) fn fill_ring_done(
        &mut self,
        store: &mut Store,
        lease: &mut Lease,
        run: u64,
        result: Result<(), DeviceError>,
        buf: Option<Buf>,
    ) {
        let Some(fill) = self.of(run) else { return };
        let (member, replica) = (fill.member, fill.replica);
        match (result, buf) {
            (Ok(()), Some(buf)) => {
                fill.in_flight = 2;
                let second = second_area(store.size_of(member, replica));
                let piece = BufSlice::new(buf, 0..(RING_SLOTS as usize * SECTOR_BYTES));
                for area in [0, second] {
                    store.io.write_to(Context::FillRing(run), None, member, replica, area + RING_OFFSET, piece.clone());
                }
                self.write_keys(store, run, member, replica);
                self.claim_filled(store, lease, run, member, replica);
            }
            (Ok(()), None) => {
                fill.in_flight -= 1;
                self.flush_filled(store, run);
            }
            (Err(_), _) if fill.in_flight == 0 => self.read_ring(store, lease),
            // the device can be neither written nor given up: it stays as it is until the next
            // import
            (Err(_), _) => self.stop_filling(store, member, replica),
        }
    }

    /// Writes the key table to the device. No page of it changes before the labels call the device whole.
    fn write_keys(&mut self, store: &mut Store, run: u64, member: MemberId, replica: Replica) {
        if !store.keys.is_laid() || store.tuning.plants(Planted::OldTableCounts) {
            return;
        }
        let (piece, second) = (store.key_table_piece(), second_area(store.size_of(member, replica)));
        self.of(run).into_iter().for_each(|fill| fill.in_flight += 2);
        for area in [0, second] {
            store.io.write_to(Context::FillRing(run), None, member, replica, area + KEY_TABLE_OFFSET, piece.clone());
        }
    }

    /// Writes the claim to the device: labels may not call it whole without one (INV-CLAIM-3).
    fn claim_filled(&mut self, store: &mut Store, lease: &mut Lease, run: u64, member: MemberId, replica: Replica) {
        if let Some(piece) = lease.claim_piece(store) {
            let size = store.size_of(member, replica);
            self.of(run).into_iter().for_each(|fill| fill.in_flight += 2);
            for second in [false, true] {
                store.io.write_to(Context::FillRing(run), None, member, replica, claim_at(size, second).offset, piece.clone());
            }
        }
        self.flush_filled(store, run);
    }
}

impl Resilver {
    /// Marks the device as whole, once everything on it is durable.
    pub(crate) fn fill_flushed(&mut self, store: &mut Store) {
        let Some(fill) = self.running.take_if(|fill| fill.step == Step::Flush) else { return };
        let at = fill.member.index();
        let Some(member) = store.config.shape.members.get_mut(at) else { return };
        member.state = MemberState::Present;
        if fill.replica == Replica::Replacement {
            let Some(device) = member.replacement.take() else { return };
            let old = std::mem::replace(&mut member.device, device);
            store.labels.switching.insert(fill.member, old);
        } else {
            store.io.health.set(fill.member, MemberState::Present);
            store.labels.filled.insert(fill.member);
        }
        store.relabel(None);
    }

    /// Gives up a replacement that failed: the member keeps its device.
    pub(crate) fn replacement_failed(&mut self, store: &mut Store, member: MemberId) {
        self.stop_filling(store, member, Replica::Replacement);
        store.config.replacements.remove(&member);
        let was = store.labels.switching.remove(&member);
        if let Some(m) = store.config.shape.member_mut(member) {
            m.replacement = None;
            m.device = was.unwrap_or(m.device);
        }
        if !store.io.health.is_up(member) {
            store.config.shape.lose(member);
        }
        store.relabel(None);
    }
}

impl Resilver {
    /// Requests a flush once everything is written.
    fn flush_filled(&mut self, store: &mut Store, run: u64) {
        if let Some(fill) = self.of(run).filter(|fill| fill.in_flight == 0) {
            fill.step = Step::Flush;
            store.flusher.wants.fill = true;
        }
    }
}

impl Resilver {
    /// Queues a member, or the replacement device of a member, to be filled.
    pub(crate) fn fill(&mut self, member: MemberId, replica: Replica) {
        self.waiting.push_back((member, replica));
    }

    /// Stops filling a device.
    pub(crate) fn stop_filling(&mut self, store: &mut Store, member: MemberId, replica: Replica) {
        self.waiting.retain(|waiting| *waiting != (member, replica));
        if self.running.as_ref().is_some_and(|fill| (fill.member, fill.replica) == (member, replica)) {
            store.io.let_lag(None);
            self.running = None;
        }
    }

    /// Leaves the open segments, and lists the segments to copy.
    fn begin_fill(&mut self, store: &mut Store) {
        // nodes of a running checkpoint have places that are not written yet
        if store.checkpoint.running() {
            return;
        }
        let Some((member, replica)) = self.waiting.pop_front() else { return };
        store.leave_open_segments();
        store.io.let_lag(Some((member, replica)));
        let space = &store.core.space;
        let used = |id: SegmentId| space.segments.get(id).filter(|s| holds_something(s.state)).map(|s| (id, s.uses));
        let segments: VecDeque<_> = space.segments.ids().filter(|id| space.layout.has(*id, member)).filter_map(used).collect();
        let total = segments.len() as u64 * space.layout.extent_bytes();
        self.runs += 1;
        let (run, mark) = (self.runs, store.io.mark());
        let fill = Fill {
            run,
            member,
            replica,
            step: Step::Settling,
            mark,
            segments,
            page: 0,
            pages: PAGES.0,
            in_flight: 0,
            done: 0,
            total,
            unreadable: 0,
            ring_from: MemberId(0),
        };
        self.running = Some(fill);
    }

    /// Returns the next part to copy, unless too many are in flight.
    fn next_piece(&mut self, store: &mut Store, most: usize) -> Option<FillPiece> {
        let extent_pages = u32::try_from(store.config.shape.extent_bytes / PAGE).unwrap_or(u32::MAX);
        let beside_guests = store.guests_are_active();
        let fill = self.running.as_mut()?;
        loop {
            let (segment, uses) = *fill.segments.front()?;
            if fill.in_flight >= most {
                return None;
            }
            let held = store.core.space.segments.get(segment).is_some_and(|s| holds_something(s.state) && s.uses == uses);
            if !held || fill.page >= extent_pages {
                fill.done += u64::from(extent_pages - fill.page.min(extent_pages)) * PAGE;
                fill.segments.pop_front();
                fill.page = 0;
                continue;
            }
            let start = store.core.space.layout.extents(segment).find(|(device, _)| *device == fill.member)?.1.offset;
            let most = if beside_guests { fill.pages } else { PAGES.1 };
            let (page, pages) = (fill.page, most.min(extent_pages - fill.page));
            fill.page += pages;
            fill.in_flight += 1;
            return Some(FillPiece {
                run: fill.run,
                segment,
                offset: start + u64::from(page) * PAGE,
                page,
                pages,
                attempt: 0,
                begun: store.now,
            });
        }
    }

    fn read_piece(&mut self, store: &mut Store, piece: FillPiece) {
        let FillPiece { segment, page, pages, attempt, .. } = piece;
        let Some(fill) = &self.running else { return };
        let (member, replacement) = (fill.member, fill.replica == Replica::Replacement);
        // a member that was away may lack data that the others have
        let whole = |own: &usize| store.io.health.whole_copies(&store.core.space.layout, segment).contains(own);
        let own =
            store.core.space.layout.copies(segment).position(|copy| copy == member).filter(|own| replacement && attempt == 0 && whole(own));
        if let Some(own) = own {
            // INV-FILL-2: data that is right on the member will be right on its replacement,
            // whatever rots on other devices
            store.pin(segment);
            return store.io.read_copy(Context::FillRead(piece), &store.core.space.layout, segment, page, pages, own, &mut store.bufs);
        }
        if store.core.space.layout.copies(segment).len() > 0 {
            // not from a device that is being filled itself
            store.pin(segment);
            return store.io.read_whole(Context::FillRead(piece), &store.core.space.layout, segment, page, pages, attempt, &mut store.bufs);
        }
        if store.core.space.layout.stripe(segment).is_some() {
            let local = ByteRange { offset: u64::from(page) * PAGE, length: u64::from(pages) * PAGE };
            store.pin(segment);
            let layout = &store.core.space.layout;
            return store.io.read_column(Context::FillRead(piece), layout, segment, member, local, attempt, &mut store.bufs);
        }
        let range = ByteRange { offset: piece.offset, length: u64::from(pages) * PAGE };
        store.pin(segment);
        store.io.read_pinned(Context::FillRead(piece), segment, member, range, &mut store.bufs);
    }

    /// Writes a part that was read to the device.
    pub(crate) fn fill_read(&mut self, store: &mut Store, piece: FillPiece, result: Result<(), DeviceError>, buf: Option<Buf>) {
        let attempts = store.io.attempts(&store.core.space.layout, piece.segment);
        let Some(fill) = self.of(piece.run) else { return buf.into_iter().for_each(|buf| store.bufs.give(buf)) };
        let (member, replica) = (fill.member, fill.replica);
        match (result, buf) {
            (Ok(()), Some(buf)) => {
                store.pin(piece.segment);
                let bytes = piece.pages as usize * PAGE as usize;
                let data = BufSlice::new(buf, 0..bytes);
                store.io.write_to(Context::FillWrite(piece), Some(piece.segment), member, replica, piece.offset, data);
            }
            _ if piece.attempt + 1 < attempts => self.read_piece(store, FillPiece { attempt: piece.attempt + 1, ..piece }),
            _ => {
                // no copy can be read: reads of it fail, as before
                fill.unreadable += 1;
                fill.in_flight -= 1;
            }
        }
    }

    /// Handles the end of a write of a part.
    pub(crate) fn fill_written(&mut self, piece: FillPiece, now: Time) {
        if let Some(fill) = self.of(piece.run) {
            let is_slow = now.0.saturating_sub(piece.begun.0) >= SLOW_MILLIS;
            fill.pages = if is_slow { (2 * fill.pages).min(PAGES.1) } else { (fill.pages / 2).max(PAGES.0) };
            fill.in_flight -= 1;
            fill.done += u64::from(piece.pages) * PAGE;
        }
    }

    /// Queues the devices that an import found incomplete.
    pub(crate) fn fill_what_lacks(&mut self, store: &mut Store) {
        let members: Vec<(MemberId, MemberState, Option<DeviceId>)> =
            store.config.shape.numbered().map(|(at, m)| (at, m.state, m.replacement)).collect();
        for (at, state, replacement) in members {
            if state == MemberState::Filling {
                self.fill(at, Replica::Current);
            } else if replacement.is_some() && store.io.replacement(at).is_some() {
                self.fill(at, Replica::Replacement);
            }
        }
    }
}

/// Returns whether a device that is filled has what may be the last copy of a page of the key table, which
/// the pool does not know: it stays as it is until an import reads all devices.
fn lacks_keys(store: &Store, fill: &Fill) -> bool {
    let device = store.config.shape.member(fill.member).map(|m| m.device);
    fill.replica == Replica::Current && device.is_some_and(|device| store.keys.needs(fill.member, device))
}

/// Returns whether a segment may hold data that is needed. The last durable checkpoint may need
/// segments that wait for the next one.
fn holds_something(state: SegmentState) -> bool {
    matches!(state, SegmentState::Sealed | SegmentState::Retained(_))
}
