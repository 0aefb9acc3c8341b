//! Preparing: writes zeroes to free segments ahead of the log, so that the host has allocated them
//! when guests' writes come.
//!
//! A first write to a hole of a file takes the host two to five times as long as one to allocated
//! space: the host has to find space and journal that, and a flush waits for the journal. Space
//! that is only reserved (`fallocate`) is slower still. Zeroes cost a sequential write that no
//! request waits for.
//!
//! Only free segments are prepared (I1 and INV-SPACE-3 allow overwriting those), and one that is
//! being prepared cannot be allocated (INV-SPACE-4). A crash leaves some zeroes in a segment that
//! held nothing. Guests come first: while they are active, nothing is prepared as long as the log
//! gets back as much space as it takes, and otherwise a sixteenth of the growth, unless the log
//! would reach a hole within two seconds and grows so slowly that the device has time for both.

use millpond_block::{ByteRange, DeviceError, MemberId};
use millpond_format::SegmentId;

use crate::space::{PAGE, SegmentState};
use crate::store::{Context, Store};
use crate::{Discard, Planted, PoolState, Time};

/// Bytes written at a time on each device.
const STEP: u64 = 4 << 20;
/// Writes in flight: while guests are active and have segments left, and otherwise.
const WRITES: (usize, usize) = (1, 2);
/// Seconds before the log reaches a hole from which on preparing does not yield to guests, and the
/// fastest growth per second for which that applies: preparing that races a faster log takes
/// bandwidth from guests, and writes twice most of the space that they fill.
const AHEAD_SECONDS: u64 = 2;
const AHEAD_BYTES: u64 = 64 << 20;
/// Milliseconds before the next try after a device refused.
const REFUSED_MILLIS: u64 = 10_000;

/// A segment that is being prepared.
#[derive(Debug)]
struct Work {
    segment: SegmentId,
    extents: Vec<(MemberId, ByteRange)>,
    next: u64,
    in_flight: usize,
    failed: bool,
}

impl Work {
    fn length(&self) -> u64 {
        self.extents.iter().map(|(_, range)| range.length).max().unwrap_or(0)
    }
}

/// The preparing task.
#[derive(Debug, Default)]
pub(crate) struct Preparer {
    work: Option<Work>,
    /// Preparing continues until the target is reached.
    fills: bool,
    /// Time of the last check for work (once per millisecond), and the earliest time of the next
    /// try.
    looked: Time,
    not_before: Time,
}

impl Preparer {
    /// Continues preparing.
    pub(crate) fn step_prepare(&mut self, store: &mut Store, wiping: bool) {
        if self.work.is_none() && self.looked == store.now {
            return;
        }
        self.looked = store.now;
        if !self.may_prepare(store, wiping) {
            return self.leave_preparing(store);
        }
        if self.work.is_none() {
            self.choose_hole(store);
        }
        let urgent = comes_to_a_hole(store);
        let depth = if urgent { WRITES.1 } else { store.job_depth(WRITES) };
        // guests whose requests wait for slow devices are active
        let idle = !store.guests_are_active() && store.log.in_flight_batches() == 0;
        while urgent || idle || store.stock.allowance > 0 {
            let Some(work) = self.work.as_mut().filter(|work| work.in_flight < depth && work.next < work.length() && !work.failed) else {
                return;
            };
            let (at, bytes) = (work.next, STEP.min(work.length() - work.next));
            (work.next, work.in_flight) = (at + bytes, work.in_flight + 1);
            let part = |(device, range): &(MemberId, ByteRange)| (*device, ByteRange { offset: range.offset + at, length: bytes });
            store.stock.charge(bytes * work.extents.len() as u64);
            store.metrics.prepared_bytes += bytes * work.extents.len() as u64;
            store.io.zero(Context::Prepare, work.extents.iter().map(part));
        }
    }

    /// Returns whether preparing is allowed: not in a pool that closes or runs full, nor during a
    /// wipe or removal, nor on a host without space.
    fn may_prepare(&self, store: &Store, wiping: bool) -> bool {
        let in_service = store.state == PoolState::Online && store.closing.is_none();
        let alone = store.evacuation.is_none() && !wiping;
        store.tuning.ready.prepare
            && store.tuning.discard != Discard::Now
            && in_service
            && alone
            && store.now >= self.not_before
            && !store.host_is_short()
            && !store.is_below_target()
    }
}

impl Preparer {
    /// Returns whether preparing continues until the target is reached. Nothing is released until
    /// then, or the two would alternate for ever.
    pub(crate) fn is_preparing(&self) -> bool {
        self.fills
    }

    /// Stops preparing; a half-prepared segment is free as before.
    fn leave_preparing(&mut self, store: &mut Store) {
        self.fills = false;
        if let Some(work) = self.work.take_if(|work| work.in_flight == 0) {
            store.core.space.segments.prepared(work.segment, false);
        }
    }

    /// Chooses the next segment to prepare, if fewer are ready than should be.
    fn choose_hole(&mut self, store: &mut Store) {
        let wanted = store.wanted_ready(store.ready_target() / PAGE);
        let fills = self.fills || store.stock.at_first > 0;
        let Some(segment) = store.core.space.segments.next_hole(wanted, fills) else {
            self.fills = false;
            if store.core.clock > 0 {
                store.stock.at_first = 0;
            }
            return;
        };
        self.fills = true;
        if !store.tuning.plants(Planted::PrepareInUse) {
            store.core.space.segments.set_state(segment, SegmentState::Preparing);
        }
        let extents = store.core.space.layout.extents(segment).collect();
        self.work = Some(Work { segment, extents, next: 0, in_flight: 0, failed: false });
    }

    /// Handles the end of a write of zeroes.
    pub(crate) fn prepare_done(&mut self, store: &mut Store, result: Result<(), DeviceError>) {
        if let Err(error) = result {
            self.not_before = Time(store.now.0 + REFUSED_MILLIS);
            if error == DeviceError::Full {
                store.stock.found_full(store.now);
            }
        }
        let Some(work) = &mut self.work else { return };
        (work.in_flight, work.failed) = (work.in_flight - 1, work.failed || result.is_err());
        let over = work.failed || work.next >= work.length();
        if let Some(work) = self.work.take_if(|work| over && work.in_flight == 0) {
            store.core.space.segments.prepared(work.segment, !work.failed);
            // the next segment can begin in this turn
            self.looked = Time(0);
        }
    }
}

/// Returns whether the log would reach a hole soon, where its flushes would wait for the host, and is
/// slow enough to be overtaken. Space that it would reuse is not counted. A log that was fast is slow
/// at once when a burst ends: flushed writes that follow would be at holes until the second of the
/// burst is over. A log without flushes loses nothing at holes, and may be as fast as its devices are:
/// zeroes would take half of their bandwidth.
fn comes_to_a_hole(store: &Store) -> bool {
    let (segments, first) = (&store.core.space.segments, store.wanted_ready(0).first);
    let ready = segments.ready_pages(first);
    let taken = store.stock.taken_per_second();
    let is_slow = taken.min(store.stock.logged_per_second()) <= AHEAD_BYTES;
    is_slow && store.stock.flushes_often() && segments.has_holes(first) && ready * PAGE < AHEAD_SECONDS * taken.min(AHEAD_BYTES)
}
