//! Commands about jobs, the record of their progress, and their rates.
//!
//! The catalog records which jobs run and their progress ([`Record::Jobs`]): by the command that
//! begins or ends one, and now and then in between. Work done since the last record is repeated
//! after a crash: it is reading, or moves to places that are not known any more. Filling and
//! emptying of devices is recorded in the labels.

use millpond_block::{DiskError, Tag};
use millpond_format::Item;

use super::op::{Owner, Work};
use super::state::Pool;
use crate::{JobCommand, JobInfo, PoolState, Reply};

/// Most pages of a record of progress.
const NOTE_PAGES: usize = 2;

impl Pool {
    /// Starts a command about jobs; one that changes something is answered when that is durable.
    pub(super) fn job_command(&mut self, tag: Tag, command: JobCommand) {
        let is_change = !command.is_dry_run();
        match self.jobs.command(&mut self.store, &self.resilver, command) {
            Ok(reply) if is_change => {
                let records = self.jobs.records(&self.store, true);
                if !self.requests.log_records(&mut self.store, tag, records, reply) {
                    self.jobs.drop_unwritten(&mut self.store);
                }
            }
            reply => self.store.replies.push_back((tag, reply)),
        }
    }

    /// Records the progress of jobs, and measures their rates.
    pub(super) fn step_jobs(&mut self) {
        if self.store.state != PoolState::Online {
            return;
        }
        self.note_service(false);
        if self.store.pace.is_due(self.store.now) {
            let jobs = self.list_jobs();
            self.store.pace.look(self.store.now, &jobs);
        }
        if !self.store.pace.records(self.store.now) {
            return;
        }
        let records = self.jobs.records(&self.store, false);
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

    /// Records the time in service, if a lock needs that.
    pub(super) fn note_service(&mut self, closing: bool) {
        if self.store.tuning.read_only || !self.store.record_room(NOTE_PAGES) {
            return;
        }
        let Some(record) = self.store.service_record(closing) else { return };
        let op = self.requests.new_op(Owner::Nobody, Work::Command(Ok(Reply::Done)), false);
        if self.requests.append_item(&mut self.store, op, &Item::Record(record.clone())).is_err() {
            return self.requests.fail_op(&mut self.store, op, DiskError::NoSpace);
        }
        self.store.core.apply_record(&record);
        self.requests.release(&mut self.store, op);
    }

    /// Returns all jobs.
    pub(super) fn list_jobs(&self) -> Vec<JobInfo> {
        let devices = self.resilver.jobs().chain(self.store.jobs_at_labels()).chain(self.store.evacuation_job());
        let jobs = devices.chain(self.jobs.list(&self.store));
        jobs.map(|job| JobInfo { rate: self.store.pace.rate_of(&job), ..job }).collect()
    }
}
