//! Jobs that go on after an import, and what all of them may take.
//!
//! The catalog says which run and how far they are ([`JobsRecord`]): by the record of the command that begins or ends one, and by one more
//! now and then. What was done since the last is done again after a crash: it is reading, or moving what was moved to a place that is not
//! known any more. Devices being filled or emptied are in the labels.

use millpond_block::{DiskError, Tag};
use millpond_format::{Item, JobsRecord, Record};

use crate::pool::{Owner, Pool, Work};
use crate::{CommandError, JobInfo, JobKind, PoolState, Reply, Time, Wipe};

/// Milliseconds between records of how far jobs are.
const NOTE_MILLIS: u64 = 5_000;
/// Bytes per second that jobs may be held to at the least: they read up to 4 MiB at a time.
const LEAST_RATE: u64 = 64 << 10;
/// Pages of such a record at most.
const NOTE_PAGES: usize = 2;
/// Milliseconds without a request after which guests count as not active.
const QUIET_MILLIS: u64 = 50;
/// Bytes per second of all jobs while guests are active, when nobody said another rate. Checksums and copies of what jobs read take turns of the
/// pool's one thread, which guests on fast devices notice.
const BESIDE_GUESTS: u64 = 64 << 20;

impl Pool {
    /// Carries a command about jobs out, and answers it when that is durable.
    pub(crate) fn change_jobs(&mut self, tag: Tag, change: impl FnOnce(&mut Pool) -> Result<Reply, CommandError>) {
        match change(self) {
            Ok(reply) => {
                let records = [Record::Jobs { jobs: self.jobs_now() }].into_iter().chain(self.wipe_record()).collect();
                if !self.log_records(tag, records, reply) {
                    self.drop_unwritten_jobs();
                }
            }
            Err(error) => self.replies.push_back((tag, Err(error))),
        }
    }

    /// There is no room in the log for what a command began.
    fn drop_unwritten_jobs(&mut self) {
        let JobsRecord { rebalance, scrub, .. } = self.core.catalog.jobs.clone();
        if !rebalance && self.rebalancer.is_on() {
            self.end_rebalance();
        }
        if self.core.catalog.wipe == 0 && self.wiper.is_on() {
            self.end_wipe();
        }
        if scrub.as_ref().is_none_or(|scrub| scrub.ended.is_some()) {
            self.scrubber.suspend();
            self.scrubber.resume(scrub);
        }
    }

    /// Jobs have so many bytes per second from now on; 0: as many as there are.
    pub(crate) fn set_job_rate(&mut self, rate: u64) -> Result<Reply, CommandError> {
        if (1..LEAST_RATE).contains(&rate) {
            return Err(CommandError::Invalid(format!("{rate} bytes per second are too few for jobs; give 64k or more, or none")));
        }
        self.core.catalog.jobs.rate = rate;
        Ok(Reply::Done)
    }

    /// What runs, and how far it is.
    pub(crate) fn jobs_now(&self) -> JobsRecord {
        JobsRecord { rate: self.core.catalog.jobs.rate, rebalance: self.rebalancer.is_on(), scrub: self.scrubber.record() }
    }

    /// The wipe that runs, as it is written down.
    fn wipe_now(&self) -> u8 {
        self.wiper.how().map_or(0, Wipe::code)
    }

    /// The same, when it is not written down yet.
    fn wipe_record(&self) -> Option<Record> {
        let wipe = self.wipe_now();
        (wipe != self.core.catalog.wipe).then_some(Record::Wipe { wipe })
    }

    /// Goes on with what the catalog says was under way.
    pub(crate) fn resume_jobs(&mut self) {
        let JobsRecord { rebalance, scrub, .. } = self.core.catalog.jobs.clone();
        self.scrubber.resume(scrub);
        if rebalance {
            self.rebalancer.begin();
        }
        if let Some(how) = Wipe::of(self.core.catalog.wipe) {
            self.wiper.begin(how);
        }
    }

    /// Ends what runs for this import: the last checkpoint says how far it is.
    pub(crate) fn suspend_jobs(&mut self) {
        self.core.catalog.jobs = self.jobs_now();
        self.core.catalog.wipe = self.wipe_now();
        self.scrubber.suspend();
    }

    /// Writes down how far jobs are, and how fast.
    pub(crate) fn step_jobs(&mut self) {
        if self.state != PoolState::Online {
            return;
        }
        if self.pace.is_due(self.now) {
            let jobs = self.jobs();
            self.pace.look(self.now, &jobs);
        }
        if self.now < self.jobs_due {
            return;
        }
        self.jobs_due = Time(self.now.0 + NOTE_MILLIS);
        let jobs = Some(self.jobs_now()).filter(|jobs| *jobs != self.core.catalog.jobs).map(|jobs| Record::Jobs { jobs });
        let records: Vec<Record> = jobs.into_iter().chain(self.wipe_record()).collect();
        if records.is_empty() || !self.record_room(NOTE_PAGES) {
            return;
        }
        let op = self.new_op(Owner::Nobody, Work::Command(Ok(Reply::Done)), false);
        for record in records {
            if self.append_item(op, &Item::Record(record.clone())).is_err() {
                return self.fail_op(op, DiskError::NoSpace);
            }
            self.core.apply_record(&record);
        }
        self.release(op);
    }

    /// A job has ended: that is written down with the next turn.
    pub(crate) fn job_ended(&mut self) {
        self.jobs_due = self.now;
    }

    /// All jobs.
    pub(crate) fn jobs(&self) -> Vec<JobInfo> {
        let devices = self.filler.jobs().chain(self.jobs_at_labels()).chain(self.evacuation_job());
        let jobs = devices.chain(self.rebalance_job()).chain(self.wipe_job()).chain(self.scrubber.job());
        jobs.map(|job| JobInfo { rate: self.pace.rate_of(&job), ..job }).collect()
    }

    /// Devices that hold everything, where the labels do not say so yet. Their jobs have not ended: the pool still lists the device that is replaced,
    /// and calls the one that was filled incomplete.
    fn jobs_at_labels(&self) -> impl Iterator<Item = JobInfo> + '_ {
        let replaced = self.relabeler.switching.keys().map(|member| (JobKind::Replace, *member));
        let filled = self.relabeler.filled.iter().map(|member| (JobKind::Resilver, *member));
        replaced.chain(filled).map(|(kind, member)| JobInfo { kind, member: Some(member), done: 1, total: 1, errors: 0, rate: 0 })
    }

    /// May jobs read more now?
    pub(crate) fn jobs_may_go_on(&mut self) -> bool {
        let rate = self.jobs_rate();
        self.pace.allows(self.now, rate)
    }

    /// Jobs read so much.
    pub(crate) fn charge_jobs(&mut self, bytes: u64) {
        let rate = self.jobs_rate();
        self.pace.charge(rate, bytes);
    }

    /// Bytes per second of all jobs just now; 0: as many as there are.
    fn jobs_rate(&self) -> u64 {
        if self.guests_are_active() { self.rate_beside_guests() } else { self.core.catalog.jobs.rate }
    }

    /// Bytes per second that all jobs have while guests are active.
    pub(super) fn rate_beside_guests(&self) -> u64 {
        match self.core.catalog.jobs.rate {
            0 => BESIDE_GUESTS,
            rate => rate,
        }
    }

    pub(super) fn guests_are_active(&self) -> bool {
        self.now.0 <= self.last_activity.0 + QUIET_MILLIS
    }

    /// How many operations a job may have under way: fewer while guests are active.
    pub(crate) fn job_depth(&self, (active, quiet): (usize, usize)) -> usize {
        if self.guests_are_active() { active } else { quiet }
    }
}
