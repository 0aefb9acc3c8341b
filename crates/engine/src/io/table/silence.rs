//! Devices that do not answer.
//!
//! A device is judged by whether *any* of its operations completes, not by the age of one
//! operation: a device that is busy or throttled completes others meanwhile. Time counts only while
//! this program was running to see it pass: after the host was suspended no device is judged by the
//! gap.

use millpond_block::{BufPool, DeviceSlot, MemberId};
use millpond_format::SegmentId;

use super::{Failing, IoTable, Kind, Replica, Stage};
use crate::space::Rows;
use crate::{DeviceTrouble, Time};

/// A device may be silent for this many times its longest recent pause,
const PAUSES: u64 = 4;
/// but no longer than this many times the minimum patience.
const MOST: u64 = 6;
/// How long a pause is remembered, in milliseconds: at least this long, at most twice as long.
const LATELY: u64 = 600_000;
/// At most 1/N of the patience counts of the time between two looks at the clock.
const LOOKS: u64 = 8;

/// State of how a device answers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Line {
    /// Number of operations that the caller has.
    out: u32,
    /// Time when the last one completed, or when the first of the present ones began.
    since: u64,
    /// The longest pauses of this window and of the one before, and when this one began.
    pauses: [u64; 2],
    window: u64,
    /// True when the completions of its operations do not matter any more.
    over: bool,
}

impl Line {
    fn silent(&self, clock: u64) -> u64 {
        if self.out > 0 && !self.over { clock.saturating_sub(self.since) } else { 0 }
    }

    fn patience(&self, least: u64) -> u64 {
        let longest = self.pauses.iter().copied().max().unwrap_or(0);
        least.max((PAUSES * longest).min(MOST * least))
    }
}

impl<C> IoTable<C> {
    /// Updates the time.
    pub(crate) fn at(&mut self, now: Time, patience: u64) {
        let passed = if self.now == 0 { 0 } else { now.0.saturating_sub(self.now) };
        self.clock += passed.min((patience / LOOKS).max(1));
        self.now = now.0.max(self.now);
    }

    fn line(&mut self, slot: DeviceSlot) -> Option<&mut Line> {
        let at = slot.index();
        if self.lines.len() <= at {
            self.lines.resize(at + 1, Line::default());
        }
        self.lines.get_mut(at)
    }

    /// Records that an operation was passed to the caller.
    pub(super) fn begins(&mut self, slot: DeviceSlot) {
        let clock = self.clock;
        if let Some(line) = self.line(slot) {
            if line.out == 0 || line.over {
                line.since = clock;
            }
            (line.out, line.over) = (line.out + 1, false);
        }
    }

    /// Records that an operation completed.
    pub(super) fn answers(&mut self, slot: DeviceSlot) {
        let clock = self.clock;
        if let Some(line) = self.line(slot) {
            if clock >= line.window + LATELY {
                (line.pauses, line.window) = ([0, line.pauses[0]], clock);
            }
            line.pauses[0] = line.pauses[0].max(line.silent(clock));
            (line.out, line.since) = (line.out.saturating_sub(1), clock);
        }
    }

    /// Records that the caller returned an operation that it did not pass to the device.
    pub(super) fn unsent(&mut self, slot: DeviceSlot) {
        self.line(slot).into_iter().for_each(|line| line.out = line.out.saturating_sub(1));
    }

    /// Restarts the time of a device whose operations the caller throttles: it cannot answer.
    pub(crate) fn excuse(&mut self, slot: DeviceSlot) {
        let clock = self.clock;
        self.line(slot).into_iter().for_each(|line| line.since = clock);
    }

    /// Records that the completions of a device's operations do not matter any more.
    pub(super) fn is_over(&mut self, slot: DeviceSlot) {
        self.line(slot).into_iter().for_each(|line| line.over = true);
    }

    /// Milliseconds for which the device in a slot has completed none of its operations.
    fn silence(&self, slot: DeviceSlot) -> u64 {
        self.lines.get(slot.index()).map_or(0, |line| line.silent(self.clock))
    }

    /// Milliseconds for which a member has completed none of its operations.
    pub(crate) fn silence_of(&self, member: MemberId) -> u64 {
        self.slot_of(member).map_or(0, |slot| self.silence(slot))
    }

    /// Finds the members that have not answered for so long that they should not be read. True when
    /// there are any.
    pub(crate) fn find_silent(&mut self, patience: u64) -> bool {
        let silent: Vec<MemberId> = if self.lines.iter().any(|line| line.silent(self.clock) >= patience) {
            self.members().filter(|member| self.silence_of(*member) >= patience).collect()
        } else {
            Vec::new()
        };
        let any = !silent.is_empty();
        self.health.set_silent(silent);
        any
    }

    /// Repeats reads that wait for silent devices with other devices that have the same data.
    pub(crate) fn read_elsewhere(&mut self, rows: &Rows, bufs: &mut BufPool) {
        let mut any = false;
        for group in self.groups.handles() {
            let Some(g) = self.groups.get(group).filter(|g| g.kind == Kind::Read && g.context.is_some() && g.left > 0) else { continue };
            let Some(place) = g.place else { continue };
            let waits = g.parts.iter().any(|part| !part.void && part.stage != Stage::Ended && self.health.is_silent(part.device));
            if !waits || !self.has_others(rows, place.0, place.1) {
                continue;
            }
            if let Some(g) = self.groups.get_mut(group) {
                (g.left, g.error, g.rebuild, g.place) = (0, None, None, None);
                for part in &mut g.parts {
                    part.void = true;
                    part.buf.take().into_iter().for_each(|buf| bufs.give(buf));
                }
            }
            self.read_place(group, rows, place, 0, bufs);
            self.begin(group);
            any = true;
        }
        if any {
            self.drop_void();
        }
    }

    /// True when a place can be read without silent devices.
    fn has_others(&self, rows: &Rows, segment: SegmentId, page: u32) -> bool {
        if let Some(stripe) = rows.stripe(segment) {
            return self.health.missing_or_silent(&stripe).count_ones() as usize <= stripe.parity;
        }
        let first = self.health.order(rows, segment, page).first().and_then(|copy| rows.copies(segment).nth(*copy));
        first.is_some_and(|member| !self.health.is_silent(member))
    }

    /// Gives up devices that have not answered for too long, as if all of their operations had
    /// failed. A member only if the pool can do without it and all other silent members: when no
    /// device answers, the fault is elsewhere. `spares`: the labels can record it.
    pub(crate) fn give_up_silent(&mut self, least: u64, spares: bool, closing: bool) {
        let clock = self.clock;
        if self.lines.iter().all(|line| line.silent(clock) < least) {
            return;
        }
        for slot in (0..u16::try_from(self.lines.len()).unwrap_or(u16::MAX)).map(DeviceSlot) {
            let due = self.lines.get(slot.index()).is_some_and(|line| line.silent(clock) >= line.patience(least));
            if !due {
                continue;
            }
            match self.user(slot) {
                None => self.abandon(slot),
                Some((member, Replica::Current)) if !self.health.is_up(member) => self.abandon(slot),
                // nothing else is written, and the labels stay as they are
                Some(_) if closing => self.abandon(slot),
                Some((member, replica @ Replica::Replacement)) if spares => {
                    self.spare(Failing { member, replica, why: DeviceTrouble::Silent });
                }
                Some((member, replica @ Replica::Current)) if spares && self.can_spare_now(member, least / 2) => {
                    self.spare(Failing { member, replica, why: DeviceTrouble::Silent });
                }
                Some(_) => {}
            }
        }
    }

    /// Gives up silent devices that are incomplete: the pool does not depend on their data.
    pub(crate) fn give_up_incomplete(&mut self, least: u64) {
        for slot in self.unanswered(least) {
            if let Some((member, replica)) = self.user(slot)
                && (replica == Replica::Replacement || self.health.is_filling(member) || self.health.is_aside(member))
            {
                self.spare(Failing { member, replica, why: DeviceTrouble::Silent });
            }
        }
    }

    /// Slots of devices that have not answered for too long.
    pub(crate) fn unanswered(&self, least: u64) -> Vec<DeviceSlot> {
        let due = |line: &Line| line.silent(self.clock) >= line.patience(least);
        (0u16..).zip(&self.lines).filter(|(_, line)| due(line)).map(|(slot, _)| DeviceSlot(slot)).collect()
    }

    /// True when the pool can do without a member, and without all members that have been silent
    /// for `patience` milliseconds or are full.
    pub(super) fn can_spare_now(&self, member: MemberId, patience: u64) -> bool {
        let idle = |other: &MemberId| self.silence_of(*other) >= patience.max(1) || self.full_since(*other).is_some();
        let others: Vec<MemberId> = self.members().filter(|other| *other != member).filter(idle).collect();
        self.health.can_spare_beside(member, &others)
    }
}
