//! All jobs: their list, the record of those that continue after an import, and their rates.
//!
//! The catalog records which jobs run and their progress ([`JobsRecord`]): by the command that
//! begins or ends one, and now and then in between. Work done since the last record is repeated
//! after a crash: it is reading, or moves to places that are not known any more. Filling and
//! emptying of devices is recorded in the labels.

use millpond_block::{DiskError, Tag};
use millpond_format::{Item, JobsRecord, Record};

use super::op::{Owner, Work};
use super::state::Pool;
use crate::{CommandError, JobInfo, PoolState, Reply, Wipe};

/// Most pages of a record of progress.
const NOTE_PAGES: usize = 2;

impl Pool {
    /// Executes a command about jobs, and answers it when the change is durable.
    pub(crate) fn change_jobs(&mut self, tag: Tag, change: impl FnOnce(&mut Pool) -> Result<Reply, CommandError>) {
        match change(self) {
            Ok(reply) => {
                let records = [Record::Jobs { jobs: self.jobs_now() }].into_iter().chain(self.wipe_record()).collect();
                if !self.requests.log_records(&mut self.store, tag, records, reply) {
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
    fn jobs_now(&self) -> JobsRecord {
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
        let op = self.requests.new_op(Owner::Nobody, Work::Command(Ok(Reply::Done)), false);
        for record in records {
            if self.requests.append_item(&mut self.store, op, &Item::Record(record.clone())).is_err() {
                return self.requests.fail_op(&mut self.store, op, DiskError::NoSpace);
            }
            self.store.core.apply_record(&record);
        }
        self.requests.release(&mut self.store, op);
    }

    /// Returns all jobs.
    pub(crate) fn jobs(&self) -> Vec<JobInfo> {
        let devices = self.resilver.jobs().chain(self.store.jobs_at_labels()).chain(self.store.evacuation_job());
        let jobs = devices.chain(self.rebalancer.rebalance_job()).chain(self.wiper.wipe_job(&self.store)).chain(self.scrubber.job());
        jobs.map(|job| JobInfo { rate: self.store.pace.rate_of(&job), ..job }).collect()
    }
}
