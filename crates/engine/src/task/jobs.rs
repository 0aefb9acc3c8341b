//! Jobs that commands start and that continue after an import: rebalance, wipe, scrub.
//!
//! The rest of the pool knows them by [`Jobs`] alone. One more such job is a struct with its own
//! `step` in a file of its own, a field of [`Jobs`], and a line in each function here.

use millpond_block::{Buf, DeviceError};
use millpond_format::{JobsRecord, Record, SegmentId};

use super::cleaner::Cleaner;
use super::evacuate::Rejoiner;
use super::rebalance::Rebalancer;
use super::resilver::Resilver;
use super::scrub::Scrubber;
use super::wipe::Wiper;
use crate::store::{JobIo, Store};
use crate::{CommandError, JobCommand, JobInfo, Reply, ScrubInfo, Wipe};

/// Jobs that commands start and that continue after an import.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    rebalancer: Rebalancer,
    wiper: Wiper,
    scrubber: Scrubber,
}

/// The other tasks that a step of a job needs.
pub(crate) struct JobTasks<'a> {
    pub(crate) cleaner: &'a mut Cleaner,
    pub(crate) resilver: &'a Resilver,
    pub(crate) rejoiner: &'a mut Rejoiner,
    /// Whether snapshots or volumes are being destroyed.
    pub(crate) destroys: bool,
}

impl Jobs {
    /// Begins or stops a job, sets the rate of all, or returns what a job would do.
    pub(crate) fn command(&mut self, store: &mut Store, resilver: &Resilver, command: JobCommand) -> Result<Reply, CommandError> {
        match command {
            JobCommand::Scrub => self.scrubber.scrub(store),
            JobCommand::StopScrub => self.scrubber.stop_scrub(store),
            JobCommand::Rebalance { dry_run } => self.rebalancer.rebalance(store, dry_run),
            JobCommand::StopRebalance => self.rebalancer.stop_rebalance(store),
            JobCommand::Wipe { how, dry_run } => self.wiper.wipe(store, resilver, how, dry_run),
            JobCommand::StopWipe => self.wiper.stop_wipe(store),
            JobCommand::SetJobRate { rate } => store.set_job_rate(rate),
        }
    }

    /// Continues all jobs. Returns true when one wants another turn soon.
    pub(crate) fn step(&mut self, store: &mut Store, tasks: &mut JobTasks<'_>) -> bool {
        let mut busy = self.rebalancer.step_rebalance(store, tasks.cleaner);
        busy |= self.wiper.step_wipe(store, tasks.resilver, tasks.cleaner, tasks.destroys);
        busy | self.scrubber.step_scrub(store, tasks.rejoiner)
    }

    /// Handles the end of a device operation of a job.
    pub(crate) fn io_done(&mut self, store: &mut Store, io: JobIo, result: Result<(), DeviceError>, buf: Option<Buf>) {
        match io {
            JobIo::Scrub(read) => self.scrubber.scrub_read(store, read, result, buf),
            JobIo::ScrubArea(area) => self.scrubber.scrub_area_done(store, area, result, buf),
            JobIo::Wipe => self.wiper.wiped(store, result),
        }
    }

    /// Returns all running jobs.
    pub(crate) fn list(&self, store: &Store) -> impl Iterator<Item = JobInfo> {
        self.rebalancer.rebalance_job().into_iter().chain(self.wiper.wipe_job(store)).chain(self.scrubber.job())
    }

    /// Returns the records of jobs whose state is not the one in the catalog; with `all`, also
    /// those with the same state.
    pub(crate) fn records(&self, store: &Store, all: bool) -> Vec<Record> {
        let (jobs, wipe) = (self.record(store), self.wipe_code());
        let changed = (all || jobs != store.core.catalog.jobs).then_some(Record::Jobs { jobs });
        let wipe = (wipe != store.core.catalog.wipe).then_some(Record::Wipe { wipe });
        changed.into_iter().chain(wipe).collect()
    }

    fn record(&self, store: &Store) -> JobsRecord {
        JobsRecord { rate: store.core.catalog.jobs.rate, rebalance: self.rebalancer.is_on(), scrub: self.scrubber.record() }
    }

    fn wipe_code(&self) -> u8 {
        self.wiper.how().map_or(0, Wipe::code)
    }

    /// Continues the jobs that the catalog lists as running.
    pub(crate) fn resume(&mut self, store: &Store) {
        let JobsRecord { rebalance, scrub, .. } = store.core.catalog.jobs.clone();
        self.scrubber.resume(scrub);
        if rebalance {
            self.rebalancer.begin();
        }
        if let Some(how) = Wipe::of(store.core.catalog.wipe) {
            self.wiper.begin(how);
        }
    }

    /// Ends the jobs of this import; the last checkpoint records their progress.
    pub(crate) fn suspend(&mut self, store: &mut Store) {
        store.core.catalog.jobs = self.record(store);
        store.core.catalog.wipe = self.wipe_code();
        self.scrubber.suspend();
    }

    /// Ends a job that a command began, because the log has no room for its record.
    pub(crate) fn drop_unwritten(&mut self, store: &mut Store) {
        let JobsRecord { rebalance, scrub, .. } = store.core.catalog.jobs.clone();
        if !rebalance && self.rebalancer.is_on() {
            self.rebalancer.end_rebalance(store);
        }
        if store.core.catalog.wipe == 0 && self.wiper.is_on() {
            self.wiper.end_wipe(store);
        }
        if scrub.as_ref().is_none_or(|scrub| scrub.ended.is_some()) {
            self.scrubber.suspend();
            self.scrubber.resume(scrub);
        }
    }

    /// Returns whether a job has segments for the cleaner to empty.
    pub(crate) fn has_victims(&self) -> bool {
        self.rebalancer.has_more() || self.wiper.has_more()
    }

    /// Returns the next segment that a job wants emptied.
    pub(crate) fn next_victim(&mut self, store: &mut Store) -> Option<SegmentId> {
        self.rebalancer.next_surplus(store).or_else(|| self.wiper.next_unclean(store))
    }

    /// Returns whether a job holds free segments, which it releases before any write is refused.
    pub(crate) fn holds_space(&self) -> bool {
        self.wiper.holds_space()
    }

    /// Returns whether a wipe runs: free segments are overwritten, so that none is prepared.
    pub(crate) fn wipes(&self) -> bool {
        self.wiper.is_on()
    }

    /// Returns whether a job needs the space of segments that are retained for a rewind.
    pub(crate) fn gives_up_retention(&self) -> bool {
        self.rebalancer.waits_for_space() || self.wiper.is_on()
    }

    /// Returns whether no checkpoint may begin, because a scrub compares rings of roots.
    pub(crate) fn holds_roots(&self) -> bool {
        self.scrubber.holds_roots()
    }

    /// Returns the findings of the running or the last scrub.
    pub(crate) fn scrub_info(&self, store: &Store) -> Option<ScrubInfo> {
        let name = |id| Some(store.core.catalog.volumes.get(&id)?.name.clone());
        self.scrubber.found.as_ref().map(|found| found.info(name))
    }
}
