//! Devices that do not answer.
//!
//! A device is judged by whether *any* of its operations completes, not by the age of one
//! operation: a device that is busy or throttled completes others meanwhile. Time counts only while
//! this program was running to see it pass: after the host was suspended no device is judged by the
//! gap.

use millpond_block::{DeviceSlot, MemberId};

use super::IoTable;
use crate::Time;

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
    pub(super) fn silent(&self, clock: u64) -> u64 {
        if self.out > 0 && !self.over { clock.saturating_sub(self.since) } else { 0 }
    }

    pub(super) fn patience(&self, least: u64) -> u64 {
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
}
