//! Target for free segments that are allocated on the host, from the growth of the log; and how
//! long there have been more (surplus).
//!
//! The estimate is that of a database that recycles its log files: bytes of log per minute, which
//! rise at once and fall by a tenth per minute. The time is passed in with each turn.

use crate::space::PAGE;
use crate::store::Store;
use crate::{ReadySpace, Time};

const MINUTE: u64 = 60_000;
const SECOND: u64 = 1_000;
/// Milliseconds over which the speed of the log is measured: how long after a burst of guests'
/// writes preparing may start.
const WINDOW: u64 = 200;
/// Most minutes that the estimate falls by after a pause: nothing is left of it then.
const MOST_MINUTES: u64 = 240;
/// While guests write, one byte may be prepared for so many bytes by which the space that is not
/// free grows, and the most that can be saved of that allowance.
const PREPARE_PART: i64 = 16;
const MOST_SAVED: i64 = 16 << 20;
/// Share (1/N) of the pool that may be ready.
const POOL_PART: u64 = 2;
/// Seconds in which surplus is released, if that takes more than the usual rate.
const GIVE_BACK_SECONDS: u64 = 240;
/// Most bytes of log for each flush where flushes count as frequent.
const PER_FLUSH: u64 = 1 << 20;
/// Milliseconds for which a host that refused a write for lack of space counts as nearly full.
const FULL_MILLIS: u64 = 60_000;
/// Share (1/N) of the target that applies while the host is nearly full.
const SHORT_PART: u64 = 4;
/// A pool is at rest after 1/N of the time that surplus must have lasted, and then releases surplus
/// after the second share (1/N) of it. After the third share without requests it releases surplus
/// at once: what comes then was retained for a rewind, and will not be written soon.
const REST_PART: u64 = 10;
const REST_SURPLUS_PART: u64 = 4;
const LONG_REST_PART: u64 = 2;

/// A number of bytes at a time.
#[derive(Clone, Copy, Debug)]
struct Mark {
    pub(crate) at: Time,
    bytes: u64,
}

/// The estimate, the surplus and the allowance for preparing.
#[derive(Debug)]
pub(crate) struct Stock {
    /// Bytes of log since the import, the estimate per minute, and the start of the current minute.
    logged: u64,
    per_minute: u64,
    minute: Mark,
    /// Growth in bytes per second of the space that is not free, and that space at the start of the
    /// current second.
    pub(crate) taken_per_second: u64,
    second: Mark,
    /// Flushes in the current second, bytes of log at its start, and bytes for each flush in the last
    /// one.
    flushes: u64,
    second_log: u64,
    per_flush: u64,
    /// Speed of the log in bytes per second in the last whole window, and the bytes of log at the
    /// start of the current window.
    pub(crate) logged_per_second: u64,
    window: Mark,
    /// Since when there is surplus beyond `due`, and the least of it since then.
    surplus: Option<(Time, u64)>,
    /// Bytes of surplus to release, and bytes per second at which they are released.
    pub(crate) due: u64,
    pub(crate) rate: u64,
    /// Time of the next release, and of the pool's last flush.
    pub(crate) give_back_at: Time,
    pub(crate) last_flush: Time,
    /// Bytes that may be prepared while guests write; negative when a step was larger than the
    /// rest, or when more space became free than was taken.
    pub(crate) allowance: i64,
    /// Bytes that were not free in the last turn.
    taken: Option<u64>,
    /// Bytes that a new pool prepares at first; 0 once they were ready and the pool was written to.
    pub(crate) at_first: u64,
    /// Time of the last write that found no space on the host, and whether the caller reported the
    /// host as nearly full.
    full: Option<Time>,
    short: bool,
}

impl Stock {
    pub(super) fn new(now: Time) -> Stock {
        let mark = Mark { at: now, bytes: 0 };
        Stock {
            logged: 0,
            per_minute: 0,
            minute: mark,
            taken_per_second: 0,
            second: mark,
            flushes: 0,
            second_log: 0,
            per_flush: 0,
            logged_per_second: 0,
            window: mark,
            surplus: None,
            due: 0,
            rate: 0,
            give_back_at: now,
            last_flush: Time(0),
            allowance: 0,
            taken: None,
            at_first: 0,
            full: None,
            short: false,
        }
    }

    /// Counts growth of the log.
    pub(super) fn count(&mut self, bytes: u64) {
        self.logged += bytes;
    }

    /// Counts prepared bytes against the allowance.
    pub(crate) fn charge(&mut self, bytes: u64) {
        self.allowance = self.allowance.saturating_sub_unsigned(bytes).max(-MOST_SAVED);
    }

    /// Records a flush of the pool's devices.
    pub(crate) fn flushed(&mut self, now: Time) {
        self.last_flush = now;
        self.flushes += 1;
    }

    /// Returns whether little is written between two flushes, in the last second and since then. Each
    /// such flush would wait until the host has recorded that it allocated holes.
    pub(crate) fn flushes_often(&self) -> bool {
        self.per_flush.max(self.since_flushes()) <= PER_FLUSH
    }

    /// Bytes of log for each flush in the current second.
    fn since_flushes(&self) -> u64 {
        (self.logged - self.second_log) / (self.flushes + 1)
    }

    /// Records that the host had no space for a write.
    pub(crate) fn found_full(&mut self, now: Time) {
        self.full = Some(now);
    }

    /// Sets whether the caller reports the host as nearly full.
    pub(crate) fn set_short(&mut self, short: bool) {
        self.short = short;
    }

    /// Returns whether the host is nearly full.
    pub(crate) fn is_short(&self, now: Time) -> bool {
        self.short || self.full.is_some_and(|at| now.0 < at.0 + FULL_MILLIS)
    }

    /// Returns the recent growth in bytes per second of the space that is not free: space that the
    /// log took, minus space that was freed.
    pub(crate) fn taken_per_second(&self) -> u64 {
        self.taken_per_second
    }

    /// Returns the speed of the log in bytes per second, over a shorter time than
    /// [`taken_per_second`](Stock::taken_per_second): that of the last whole window, or that of the
    /// current one if it is faster already, so that a new burst counts at once.
    pub(crate) fn logged_per_second(&self) -> u64 {
        self.logged_per_second.max((self.logged - self.window.bytes) * SECOND / WINDOW)
    }

    /// Takes in the time and the number of bytes of the pool that are not free.
    pub(crate) fn at(&mut self, now: Time, taken: u64) {
        let last = self.taken.replace(taken).unwrap_or(taken);
        let growth = i64::try_from(i128::from(taken) - i128::from(last)).unwrap_or(0) / PREPARE_PART;
        self.allowance = (self.allowance + growth).clamp(-MOST_SAVED, MOST_SAVED);
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
            self.per_flush = self.since_flushes();
            (self.flushes, self.second_log) = (0, self.logged);
        } else {
            self.taken_per_second = self.taken_per_second.max(grown);
        }
        let millis = now.0.saturating_sub(self.window.at.0);
        if millis >= WINDOW {
            self.logged_per_second = (self.logged - self.window.bytes) * SECOND / millis;
            self.window = Mark { at: now, bytes: self.logged };
        }
    }

    /// Returns the target in bytes for a pool of `pool` bytes; `rests`: it had no request for long;
    /// `short`: its host is nearly full.
    fn target(&self, bounds: &ReadySpace, pool: u64, rests: bool, short: bool) -> u64 {
        let wanted = if rests { 0 } else { 2 * self.per_minute };
        let target = wanted.max(bounds.least).min(bounds.most).min(pool / POOL_PART);
        if short { target / SHORT_PART } else { target }
    }

    /// Takes in the surplus of the moment: the least surplus over `millis` milliseconds without a
    /// break becomes due.
    pub(crate) fn see_surplus(&mut self, now: Time, surplus: u64, millis: u64) {
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

impl Store {
    /// Returns the bytes of free segments that shall be allocated on the host.
    pub(crate) fn ready_target(&self) -> u64 {
        let pool = self.core.space.segments.all_pages() * PAGE;
        let short = self.host_is_short();
        let target = self.stock.target(&self.tuning.ready, pool, self.is_at_rest(), short);
        if short { target } else { target.max(self.stock.at_first) }
    }

    /// Returns the milliseconds after which surplus is released.
    pub(crate) fn surplus_millis(&self) -> u64 {
        let millis = self.tuning.ready.surplus_millis;
        let quiet = self.now.0.saturating_sub(self.last_activity.0);
        match quiet {
            _ if self.host_is_short() || quiet >= millis / LONG_REST_PART => 0,
            _ if self.is_at_rest() => millis / REST_SURPLUS_PART,
            _ => millis,
        }
    }

    /// Returns whether the pool had no request for long.
    fn is_at_rest(&self) -> bool {
        self.now.0 >= self.last_activity.0.saturating_add(self.tuning.ready.surplus_millis / REST_PART)
    }

    /// Returns whether the storage below the pool's files is nearly full.
    pub(crate) fn host_is_short(&self) -> bool {
        self.stock.is_short(self.now)
    }
}

#[cfg(test)]
mod tests;
