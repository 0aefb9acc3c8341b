//! How many free segments the host is to have bytes for, from how fast the log grows, and how long there have been more.
//!
//! The estimate is that of a database that recycles its log files: bytes of log a minute, which jump up at once and fall by a tenth a minute. Time
//! comes in with each turn.

use crate::pool::Pool;
use crate::space::PAGE;
use crate::{ReadySpace, Time};

const MINUTE: u64 = 60_000;
const SECOND: u64 = 1_000;
/// Minutes that the estimate falls by at most after a pause: nothing is left of it then.
const MOST_MINUTES: u64 = 240;
/// Of how many bytes of log guests leave one to preparing, and how much of that can be saved up.
const PREPARE_PART: u64 = 4;
const MOST_SAVED: u64 = 64 << 20;
/// Seconds in which what has been surplus for long is given back, if that takes more than the usual rate.
const GIVE_BACK_SECONDS: u64 = 240;
/// Milliseconds for which a host that refused a write for want of space counts as nearly full.
const FULL_MILLIS: u64 = 60_000;
/// What a nearly full host leaves of the target.
const SHORT_PART: u64 = 4;
/// A pool is at rest after such a part of the time for which there has to be surplus, and gives it back after the other part.
const REST_PART: u64 = 10;
const REST_SURPLUS_PART: u64 = 2;

/// A number of bytes as it was at a time.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Time,
    bytes: u64,
}

/// What is known of it.
#[derive(Debug)]
pub(crate) struct Stock {
    /// Bytes of log since the import; those of a minute, and when the current minute began.
    logged: u64,
    per_minute: u64,
    minute: Mark,
    /// Bytes by which what is not free grew in a second, and how much was not free when the current second began.
    taken_per_second: u64,
    second: Mark,
    /// Since when there is surplus, and the least of it since then, beside what is due.
    surplus: Option<(Time, u64)>,
    /// Bytes that have been surplus for long, and bytes per second at which they go.
    pub(super) due: u64,
    pub(super) rate: u64,
    /// When the next of them may go, and when the pool flushed last.
    pub(super) give_back_at: Time,
    pub(super) last_flush: Time,
    /// Bytes that may be prepared while guests write; below 0 when a step was larger than what was left.
    pub(super) allowance: i64,
    /// Bytes that a new pool is to have ready until they were there once, and it was written to.
    pub(super) at_first: u64,
    /// When a write found no space on the host last; what the caller says of it.
    full: Option<Time>,
    short: bool,
}

impl Stock {
    pub(crate) fn new(now: Time) -> Stock {
        let mark = Mark { at: now, bytes: 0 };
        Stock {
            logged: 0,
            per_minute: 0,
            minute: mark,
            taken_per_second: 0,
            second: mark,
            surplus: None,
            due: 0,
            rate: 0,
            give_back_at: now,
            last_flush: Time(0),
            allowance: 0,
            at_first: 0,
            full: None,
            short: false,
        }
    }

    /// The log grew.
    pub(crate) fn count(&mut self, bytes: u64) {
        self.logged += bytes;
        let most = i64::try_from(MOST_SAVED).unwrap_or(i64::MAX);
        self.allowance = self.allowance.saturating_add_unsigned(bytes / PREPARE_PART).min(most);
    }

    /// So much was prepared.
    pub(super) fn charge(&mut self, bytes: u64) {
        let least = -i64::try_from(MOST_SAVED).unwrap_or(i64::MAX);
        self.allowance = self.allowance.saturating_sub_unsigned(bytes).max(least);
    }

    /// The pool flushes its devices.
    pub(crate) fn flushed(&mut self, now: Time) {
        self.last_flush = now;
    }

    /// The host has no space for a write.
    pub(super) fn found_full(&mut self, now: Time) {
        self.full = Some(now);
    }

    /// What the caller says of the host.
    pub(crate) fn set_short(&mut self, short: bool) {
        self.short = short;
    }

    /// Is the host nearly full?
    pub(super) fn is_short(&self, now: Time) -> bool {
        self.short || self.full.is_some_and(|at| now.0 < at.0 + FULL_MILLIS)
    }

    /// Bytes by which what is not free grew in a second, lately: what the log took and did not get back.
    pub(super) fn taken_per_second(&self) -> u64 {
        self.taken_per_second
    }

    /// Takes note of the time, and of how many bytes of the pool are not free.
    pub(super) fn at(&mut self, now: Time, taken: u64) {
        let (minute, grown) = (self.logged - self.minute.bytes, taken.saturating_sub(self.second.bytes));
        let (minutes, millis) = (now.0.saturating_sub(self.minute.at.0) / MINUTE, now.0.saturating_sub(self.second.at.0));
        for _ in 0..minutes.min(MOST_MINUTES) {
            self.per_minute -= self.per_minute.div_ceil(10);
        }
        self.per_minute = self.per_minute.max(minute);
        if minutes > 0 {
            self.minute = Mark { at: now, bytes: self.logged };
        }
        if millis >= SECOND {
            self.taken_per_second = grown * SECOND / millis;
            self.second = Mark { at: now, bytes: taken };
        } else {
            self.taken_per_second = self.taken_per_second.max(grown);
        }
    }

    /// Bytes that are to be ready in a pool of so many; `rests`: nobody has asked it anything for long.
    pub(super) fn target(&self, bounds: &ReadySpace, pool: u64, rests: bool, short: bool) -> u64 {
        let wanted = if rests { 0 } else { 2 * self.per_minute };
        let target = wanted.max(bounds.least).min(bounds.most).min(pool / 8);
        if short { target / SHORT_PART } else { target }
    }

    /// So much more than the target is ready now: what there was without a break for so many milliseconds is due.
    pub(super) fn see_surplus(&mut self, now: Time, surplus: u64, millis: u64) {
        self.due = self.due.min(surplus);
        let fresh = surplus - self.due;
        let (since, least) = self.surplus.filter(|_| fresh > 0).unwrap_or((now, fresh));
        let least = least.min(fresh);
        if least > 0 && now.0 >= since.0.saturating_add(millis) {
            self.due += least;
            self.rate = self.due / GIVE_BACK_SECONDS;
            self.surplus = None;
        } else {
            self.surplus = (least > 0).then_some((since, least));
        }
    }
}

impl Pool {
    /// Bytes of free segments that the host is to have bytes for.
    pub(crate) fn ready_target(&self) -> u64 {
        let pool = self.core.space.segments.all_pages() * PAGE;
        let short = self.host_is_short();
        let target = self.stock.target(&self.tuning.ready, pool, self.is_at_rest(), short);
        if short { target } else { target.max(self.stock.at_first) }
    }

    /// Milliseconds after which surplus is given back.
    pub(super) fn surplus_millis(&self) -> u64 {
        let millis = self.tuning.ready.surplus_millis;
        match (self.host_is_short(), self.is_at_rest()) {
            (true, _) => 0,
            (false, true) => millis / REST_SURPLUS_PART,
            (false, false) => millis,
        }
    }

    /// Has nobody asked the pool anything for long?
    fn is_at_rest(&self) -> bool {
        self.now.0 >= self.last_activity.0.saturating_add(self.tuning.ready.surplus_millis / REST_PART)
    }

    /// Has what holds the pool's files little room left?
    pub(super) fn host_is_short(&self) -> bool {
        self.stock.is_short(self.now)
    }
}

#[cfg(test)]
mod tests;
