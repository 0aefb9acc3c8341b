//! Rates of jobs: measured and limited; and when their progress is recorded.
//!
//! A job that may not continue now is tried again in every turn. Allowance that jobs do not use
//! while the engine is not called is saved, up to that of [`SAVED_MILLIS`]. While there is no job,
//! nothing is saved: one that starts beside guests begins at its rate, without a burst.

use std::collections::BTreeMap;

use millpond_block::MemberId;

use crate::{JobInfo, JobKind, Time};

/// Milliseconds of allowance that can be saved: an idle caller calls every half second.
const SAVED_MILLIS: u64 = 600;
/// Milliseconds between two measurements of the progress of jobs.
const LOOK_MILLIS: u64 = 1_000;
/// Milliseconds between records of the progress of jobs.
const NOTE_MILLIS: u64 = 5_000;

/// Shortest period that a rate is averaged over, in milliseconds; the longest is twice as long.
/// Some jobs advance in steps of a segment.
const WINDOW_MILLIS: u64 = 16_000;

/// The measured rate of one job.
#[derive(Clone, Copy, Debug)]
struct Speed {
    /// Time and bytes done at the last two starts of a window.
    before: (Time, u64),
    since: (Time, u64),
    pub(crate) rate: u64,
}

/// Rates of all jobs of a pool.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Bytes that jobs may still read; negative when a read was larger than the rest.
    pub(crate) allowance: i64,
    filled: Time,
    speeds: BTreeMap<(JobKind, Option<MemberId>), Speed>,
    looked: Time,
    /// Time at which the progress of jobs is next recorded.
    record_at: Time,
}

impl Pace {
    /// Returns whether jobs may continue, which together have `rate` bytes per second; 0 means
    /// unlimited.
    pub(super) fn allows(&mut self, now: Time, rate: u64) -> bool {
        if rate == 0 {
            (self.filled, self.allowance) = (now, 0);
            return true;
        }
        let millis = now.0.saturating_sub(self.filled.0);
        let earned = |millis: u64| i64::try_from(u128::from(rate) * u128::from(millis) / 1000).unwrap_or(i64::MAX);
        let more = earned(millis);
        // low rates earn no byte in a millisecond
        if more > 0 {
            // jobs ask at least as often as an idle caller calls
            let most = if millis > SAVED_MILLIS { 1 } else { earned(SAVED_MILLIS).max(1) };
            self.filled = now;
            self.allowance = self.allowance.saturating_add(more).min(most);
        }
        self.allowance > 0
    }

    /// Counts bytes that jobs read.
    pub(super) fn charge(&mut self, rate: u64, bytes: u64) {
        let most = i64::try_from(rate).unwrap_or(i64::MAX);
        self.allowance = if rate == 0 { 0 } else { self.allowance.saturating_sub_unsigned(bytes).max(-most) };
    }

    /// Returns whether it is time to measure the jobs.
    pub(crate) fn is_due(&self, now: Time) -> bool {
        now.0 >= self.looked.0 + LOOK_MILLIS
    }

    /// Returns whether it is time to record the progress of jobs; the next record follows after a
    /// pause.
    pub(crate) fn records(&mut self, now: Time) -> bool {
        let due = now >= self.record_at;
        if due {
            self.record_at = Time(now.0 + NOTE_MILLIS);
        }
        due
    }

    /// Has the end of a job recorded in the next turn.
    pub(crate) fn record_soon(&mut self) {
        self.record_at = Time(0);
    }

    /// Takes in the progress of all jobs.
    pub(crate) fn look(&mut self, now: Time, jobs: &[JobInfo]) {
        self.looked = now;
        let before = std::mem::take(&mut self.speeds);
        for job in jobs {
            let key = (job.kind, job.member);
            let begin = (now, job.done);
            let first = Speed { before: begin, since: begin, rate: 0 };
            let mut speed = before.get(&key).copied().filter(|last| last.since.1 <= job.done).unwrap_or(first);
            if now.0 >= speed.since.0.0 + WINDOW_MILLIS {
                (speed.before, speed.since) = (speed.since, begin);
            }
            let (at, done) = speed.before;
            let millis = u128::from(now.0.saturating_sub(at.0).max(1));
            speed.rate = u64::try_from(u128::from(job.done - done) * 1000 / millis).unwrap_or(u64::MAX);
            self.speeds.insert(key, speed);
        }
    }

    /// Returns the recent rate of a job in bytes per second; 0 when it is not known yet.
    pub(crate) fn rate_of(&self, job: &JobInfo) -> u64 {
        self.speeds.get(&(job.kind, job.member)).map_or(0, |speed| speed.rate)
    }
}

#[cfg(test)]
mod tests;
