//! Preparing: zeros are written to free segments ahead of the log, so that the host has bytes for them when guests' writes come.
//!
//! A first write to a hole of a file takes the host two to five times as long as one to what it has bytes for: it has to find space, note that
//! in its journal, and a flush waits for the journal. Space that is only reserved (`fallocate`) is slower still. Zeros cost a sequential write,
//! and nobody waits for it.
//!
//! Only free segments are prepared (I1 and INV-SPACE-3 allow anybody to overwrite those), and one that is being prepared is not to be had
//! (INV-SPACE-4). A crash leaves some zeros in a segment that held nothing. Guests come first: while they write, a quarter of their bytes is
//! prepared at most, unless the log would come to a hole within two seconds and grows so slowly that the device has time for both.

use millpond_block::ByteRange;
use millpond_device::{DeviceError, DeviceIndex};
use millpond_format::SegmentId;

use crate::pool::{Context, Pool};
use crate::space::{PAGE, SegmentState};
use crate::{Discard, Planted, PoolState, Time};

/// Bytes written at a time on each device.
const STEP: u64 = 4 << 20;
/// Writes on their way at once: while guests are active and have segments left, and else.
const WRITES: (usize, usize) = (1, 2);
/// Seconds before the log comes to a hole in which preparing does not give way to guests, and how many bytes more in a second it takes for that
/// at most: preparing that races a faster log takes from the device what guests need, and writes most of what they fill twice.
const AHEAD_SECONDS: u64 = 2;
const AHEAD_BYTES: u64 = 64 << 20;
/// Milliseconds before the next try after a device refused.
const REFUSED_MILLIS: u64 = 10_000;

/// A segment that is being prepared.
#[derive(Debug)]
struct Work {
    segment: SegmentId,
    extents: Vec<(DeviceIndex, ByteRange)>,
    next: u64,
    in_flight: usize,
    failed: bool,
}

impl Work {
    fn length(&self) -> u64 {
        self.extents.iter().map(|(_, range)| range.length).max().unwrap_or(0)
    }
}

/// The task.
#[derive(Debug, Default)]
pub(crate) struct Preparer {
    work: Option<Work>,
    /// It goes on until the target is reached.
    fills: bool,
    /// When it was looked last whether there is something to do: once in a millisecond does. And before when it is not tried again.
    looked: Time,
    not_before: Time,
}

impl Pool {
    /// Goes on with preparing.
    pub(crate) fn step_prepare(&mut self) {
        if self.preparer.work.is_none() && self.preparer.looked == self.now {
            return;
        }
        self.preparer.looked = self.now;
        if !self.may_prepare() {
            return self.leave_preparing();
        }
        if self.preparer.work.is_none() {
            self.choose_hole();
        }
        let urgent = self.comes_to_a_hole();
        let depth = if urgent { WRITES.1 } else { self.job_depth(WRITES) };
        while urgent || !self.guests_are_active() || self.stock.allowance > 0 {
            let Some(work) = self.preparer.work.as_mut().filter(|work| work.in_flight < depth && work.next < work.length() && !work.failed)
            else {
                return;
            };
            let (at, bytes) = (work.next, STEP.min(work.length() - work.next));
            (work.next, work.in_flight) = (at + bytes, work.in_flight + 1);
            let part = |(device, range): &(DeviceIndex, ByteRange)| (*device, ByteRange { offset: range.offset + at, length: bytes });
            self.stock.charge(bytes * work.extents.len() as u64);
            self.metrics.prepared_bytes += bytes * work.extents.len() as u64;
            self.io.zero(Context::Prepare, work.extents.iter().map(part));
        }
    }

    /// Not where it would be in the way: of a pool that closes or runs full, of a wipe or removal, of a host without room.
    fn may_prepare(&self) -> bool {
        let in_service = self.state == PoolState::Online && self.closing.is_none();
        let alone = self.evacuation.is_none() && !self.wiper.is_on();
        self.tuning.ready.prepare
            && self.tuning.discard != Discard::Now
            && in_service
            && alone
            && self.now >= self.preparer.not_before
            && !self.host_is_short()
            && !self.is_hungry()
    }

    /// Would the log come to a hole soon, and is it slow enough to be outrun? What it gets back of what it takes is not counted.
    fn comes_to_a_hole(&self) -> bool {
        let (pages, taken) = (self.core.space.segments.pages(), self.stock.taken_per_second());
        taken <= AHEAD_BYTES && (pages.kept + pages.ready) * PAGE < AHEAD_SECONDS * taken
    }

    /// Is it on its way to the target? Nothing is given back until it is there: the two would go on for ever.
    pub(super) fn is_preparing(&self) -> bool {
        self.preparer.fills
    }

    /// A segment that is half prepared is as free as before.
    fn leave_preparing(&mut self) {
        self.preparer.fills = false;
        if let Some(work) = self.preparer.work.take_if(|work| work.in_flight == 0) {
            self.core.space.segments.prepared(work.segment, false);
        }
    }

    /// The next hole, when fewer segments are ready than should be.
    fn choose_hole(&mut self) {
        let target = self.ready_target();
        let fills = self.preparer.fills || self.stock.at_first > 0;
        let Some(segment) = self.core.space.segments.next_hole(target / PAGE, fills) else {
            self.preparer.fills = false;
            if self.core.clock > 0 {
                self.stock.at_first = 0;
            }
            return;
        };
        self.preparer.fills = true;
        if !self.planted(Planted::PrepareInUse) {
            self.core.space.segments.set_state(segment, SegmentState::Preparing);
        }
        let extents = self.core.space.rows.extents(segment).collect();
        self.preparer.work = Some(Work { segment, extents, next: 0, in_flight: 0, failed: false });
    }

    /// Some of a segment was overwritten, or could not be.
    pub(crate) fn prepare_done(&mut self, result: Result<(), DeviceError>) {
        if let Err(error) = result {
            self.preparer.not_before = Time(self.now.0 + REFUSED_MILLIS);
            if error == DeviceError::Full {
                self.stock.found_full(self.now);
            }
        }
        let Some(work) = &mut self.preparer.work else { return };
        (work.in_flight, work.failed) = (work.in_flight - 1, work.failed || result.is_err());
        let over = work.failed || work.next >= work.length();
        if let Some(work) = self.preparer.work.take_if(|work| over && work.in_flight == 0) {
            self.core.space.segments.prepared(work.segment, !work.failed);
            // the next one in this turn
            self.preparer.looked = Time(0);
        }
    }
}
