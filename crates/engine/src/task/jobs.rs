//! Jobs that continue after an import, and the rate limit of all jobs.
//!
//! The catalog records which jobs run and their progress ([`JobsRecord`]): by the command that
//! begins or ends one, and now and then in between. Work done since the last record is repeated
//! after a crash: it is reading, or moves to places that are not known any more. Filling and
//! emptying of devices is recorded in the labels.

use millpond_block::{DiskError, Tag};
use millpond_format::{Item, JobsRecord, Record};

use crate::pool::{Owner, Pool, Work};
use crate::store::Store;
use crate::{CommandError, Invalid, JobInfo, JobKind, PoolState, Reply, Wipe};

/// Lowest rate of jobs in bytes per second: they read up to 4 MiB at a time.
const LEAST_RATE: u64 = 64 << 10;
/// Most pages of a record of progress.
const NOTE_PAGES: usize = 2;
/// Milliseconds without a request after which guests count as inactive.
const QUIET_MILLIS: u64 = 50;
/// Default rate of all jobs in bytes per second while guests are active. Checksums and copies of
/// the data that jobs read take turns of the pool's one thread, which guests on fast devices
/// notice.
const BESIDE_GUESTS: u64 = 64 << 20;

impl Pool {
    /// Executes a command about jobs, and answers it when the change is durable.
    pub(crate) fn change_jobs(&mut self, tag: Tag, change: impl FnOnce(&mut Pool) -> Result<Reply, CommandError>) {
        match change(self) {
            Ok(reply) => {
                let records = [Record::Jobs { jobs: self.jobs_now() }].into_iter().chain(self.wipe_record()).collect();
                if !self.log_records(tag, records, reply) {
                    self.drop_unwritten_jobs();
                }
            }
            Err(error) => self.store.replies.push_back((tag, Err(error))),
        }
    }

    /// Ends a job that a command began, because the log has no room for its record.
    fn drop_unwritten_jobs(&mut self) {
        let JobsRecord { rebalance, scrub, .. } = self.store.core.catalog.jobs.clone();
        if !rebalance && self.rebalancer.is_on() {
            self.rebalancer.end_rebalance(&mut self.store);
        }
        if self.store.core.catalog.wipe == 0 && self.wiper.is_on() {
            self.wiper.end_wipe(&mut self.store);
        }
        if scrub.as_ref().is_none_or(|scrub| scrub.ended.is_some()) {
            self.scrubber.suspend();
            self.scrubber.resume(scrub);
        }
    }

    /// Returns the record of running jobs and their progress.
    pub(crate) fn jobs_now(&self) -> JobsRecord {
        JobsRecord { rate: self.store.core.catalog.jobs.rate, rebalance: self.rebalancer.is_on(), scrub: self.scrubber.record() }
    }

    /// Returns the code of the running wipe as recorded.
    fn wipe_now(&self) -> u8 {
        self.wiper.how().map_or(0, Wipe::code)
    }

    /// Returns the record of a change of the wipe that is not logged yet.
    fn wipe_record(&self) -> Option<Record> {
        let wipe = self.wipe_now();
        (wipe != self.store.core.catalog.wipe).then_some(Record::Wipe { wipe })
    }

    /// Continues the jobs that the catalog lists as running.
    pub(crate) fn resume_jobs(&mut self) {
        let JobsRecord { rebalance, scrub, .. } = self.store.core.catalog.jobs.clone();
        self.scrubber.resume(scrub);
        if rebalance {
            self.rebalancer.begin();
        }
        if let Some(how) = Wipe::of(self.store.core.catalog.wipe) {
            self.wiper.begin(how);
        }
    }

    /// Ends the jobs of this import; the last checkpoint records their progress.
    pub(crate) fn suspend_jobs(&mut self) {
        self.store.core.catalog.jobs = self.jobs_now();
        self.store.core.catalog.wipe = self.wipe_now();
        self.scrubber.suspend();
    }

    /// Records the progress of jobs, and measures their rates.
    pub(crate) fn step_jobs(&mut self) {
        if self.store.state != PoolState::Online {
            return;
        }
        if self.store.pace.is_due(self.store.now) {
            let jobs = self.jobs();
            self.store.pace.look(self.store.now, &jobs);
        }
        if !self.store.pace.records(self.store.now) {
            return;
        }
        let jobs = Some(self.jobs_now()).filter(|jobs| *jobs != self.store.core.catalog.jobs).map(|jobs| Record::Jobs { jobs });
        let records: Vec<Record> = jobs.into_iter().chain(self.wipe_record()).collect();
        if records.is_empty() || !self.store.record_room(NOTE_PAGES) {
            return;
        }
        let op = self.new_op(Owner::Nobody, Work::Command(Ok(Reply::Done)), false);
        for record in records {
            if self.append_item(op, &Item::Record(record.clone())).is_err() {
                return self.fail_op(op, DiskError::NoSpace);
            }
            self.store.core.apply_record(&record);
        }
        self.release(op);
    }

    /// Returns all jobs.
    pub(crate) fn jobs(&self) -> Vec<JobInfo> {
        let devices = self.filler.jobs().chain(self.store.jobs_at_labels()).chain(self.store.evacuation_job());
        let jobs = devices.chain(self.rebalancer.rebalance_job()).chain(self.wiper.wipe_job(&self.store)).chain(self.scrubber.job());
        jobs.map(|job| JobInfo { rate: self.store.pace.rate_of(&job), ..job }).collect()
    }
}

impl Store {
    /// Returns jobs of devices that are filled, while the labels do not say so yet. These jobs have
    /// not ended: the pool still lists the device that is replaced, or calls the filled one
    /// incomplete.
    fn jobs_at_labels(&self) -> impl Iterator<Item = JobInfo> + '_ {
        let replaced = self.labels.switching.keys().map(|member| (JobKind::Replace, member.0));
        let filled = self.labels.filled.iter().map(|member| (JobKind::Resilver, member.0));
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

    pub(super) fn guests_are_active(&self) -> bool {
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
    pub(super) fn rate_beside_guests(&self) -> u64 {
        match self.core.catalog.jobs.rate {
            0 => BESIDE_GUESTS,
            rate => rate,
        }
    }
}
