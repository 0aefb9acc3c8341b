//! The rate of jobs, and the number of operations that they have in flight.

use super::Store;
use crate::{CommandError, Invalid, JobInfo, JobKind, Reply};

/// Default rate of all jobs in bytes per second while guests are active. Checksums and copies of
/// the data that jobs read take turns of the pool's one thread, which guests on fast devices
/// notice.
const BESIDE_GUESTS: u64 = 64 << 20;

/// Milliseconds without a request after which guests count as inactive.
pub(super) const QUIET_MILLIS: u64 = 50;

/// Lowest rate of jobs in bytes per second: they read up to 4 MiB at a time.
const LEAST_RATE: u64 = 64 << 10;

impl Store {
    /// Returns jobs of devices that are filled, while the labels do not say so yet. These jobs have
    /// not ended: the pool still lists the device that is replaced, or calls the filled one
    /// incomplete.
    pub(crate) fn jobs_at_labels(&self) -> impl Iterator<Item = JobInfo> + '_ {
        let replaced = self.labels.switching.keys().map(|member| (JobKind::Replace, *member));
        let filled = self.labels.filled.iter().map(|member| (JobKind::Resilver, *member));
        replaced.chain(filled).map(|(kind, member)| JobInfo { kind, member: Some(member), done: 1, total: 1, errors: 0, rate: 0 })
    }

    /// Returns whether jobs may read more now.
    pub(crate) fn jobs_may_go_on(&mut self) -> bool {
        let rate = self.jobs_rate();
        self.pace.allows(self.now, rate)
    }

    /// Counts bytes that jobs read against their rate.
    pub(crate) fn charge_jobs(&mut self, bytes: u64) {
        let rate = self.jobs_rate();
        self.pace.charge(rate, bytes);
    }

    /// Returns the current rate of all jobs in bytes per second; 0 means unlimited.
    fn jobs_rate(&self) -> u64 {
        if self.guests_are_active() { self.rate_beside_guests() } else { self.core.catalog.jobs.rate }
    }

    pub(crate) fn guests_are_active(&self) -> bool {
        self.now.0 <= self.last_activity.0 + QUIET_MILLIS
    }

    /// Returns how many operations a job may have in flight: fewer while guests are active.
    pub(crate) fn job_depth(&self, (active, quiet): (usize, usize)) -> usize {
        if self.guests_are_active() { active } else { quiet }
    }

    /// Sets the rate of jobs in bytes per second; 0 means unlimited.
    pub(crate) fn set_job_rate(&mut self, rate: u64) -> Result<Reply, CommandError> {
        if (1..LEAST_RATE).contains(&rate) {
            return Err(CommandError::Invalid(Invalid::JobRate(rate)));
        }
        self.core.catalog.jobs.rate = rate;
        Ok(Reply::Done)
    }

    /// Returns the rate of all jobs in bytes per second while guests are active.
    pub(crate) fn rate_beside_guests(&self) -> u64 {
        match self.core.catalog.jobs.rate {
            0 => BESIDE_GUESTS,
            rate => rate,
        }
    }
}
