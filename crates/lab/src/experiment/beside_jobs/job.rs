//! The jobs of `beside-jobs`: start, progress, end.

use super::plan::Plan;
use crate::peer::{Control, Millpond, POOL};
use crate::process::wait_until;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of a block that the read cache counts.
const BLOCK: f64 = 4096.0;

/// A job of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// Reads and checks everything.
    Scrub,
    /// Fills a new device of the first mirror.
    Replace,
    /// Moves the data of the second mirror to the first one.
    Evacuation,
}

impl Job {
    pub(super) const ALL: [Job; 3] = [Job::Scrub, Job::Replace, Job::Evacuation];

    pub(super) fn name(self) -> &'static str {
        match self {
            Job::Scrub => "scrub",
            Job::Replace => "replace",
            Job::Evacuation => "evacuation",
        }
    }

    /// Name of its kind in the list of jobs.
    fn kind(self) -> &'static str {
        match self {
            Job::Scrub => "scrub",
            Job::Replace => "replace",
            Job::Evacuation => "remove",
        }
    }
}

/// A pool of two mirrors, and the time limit of its repetition.
pub(super) struct Pool<'a> {
    pub(super) millpond: &'a Millpond,
    dir: &'a Path,
    plan: Plan,
    /// Numbers of the devices of the first and of the second mirror.
    mirrors: [[usize; 2]; 2],
    /// Number of the next device.
    next: usize,
    end: Instant,
}

impl<'a> Pool<'a> {
    /// Creates the pool in `dir`.
    pub(super) fn create(millpond: &'a Millpond, dir: &'a Path, plan: Plan) -> Result<Pool<'a>> {
        let mirrors = [[0, 1], [2, 3]];
        let pool = Pool { millpond, dir, plan, mirrors, next: 4, end: Instant::now() + plan.longest() };
        let words = ["pool", "create", POOL].map(str::to_owned).into_iter();
        let words = words.chain(mirrors.iter().flat_map(|devices| pool.mirror(devices)));
        millpond.cli(&words.collect::<Vec<String>>())?;
        Ok(pool)
    }

    fn path(&self, number: usize) -> PathBuf {
        self.dir.join(format!("disk{number}"))
    }

    /// Returns the argument that makes a new file.
    fn file(&self, number: usize) -> String {
        format!("{}:{}", self.path(number).display(), self.plan.device_bytes())
    }

    fn mirror(&self, devices: &[usize; 2]) -> Vec<String> {
        std::iter::once("mirror".to_owned()).chain(devices.iter().map(|number| self.file(*number))).collect()
    }

    /// Returns the path of the device that a removal names.
    fn leaving(&self) -> String {
        self.path(self.mirrors[1][0]).display().to_string()
    }

    /// Returns the time that the repetition has left.
    ///
    /// # Errors
    /// It has none.
    pub(super) fn time_left(&self) -> Result<Duration> {
        let left = self.end.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "the repetition has not ended within {:?}", self.plan.longest());
        Ok(left)
    }

    /// Starts a job, and waits until it is listed with work to do.
    pub(super) fn begin(&mut self, job: Job) -> Result<()> {
        match job {
            Job::Scrub => self.millpond.cli(&["pool", "scrub", POOL])?,
            Job::Replace => {
                let old = self.path(self.mirrors[0][0]).display().to_string();
                self.millpond.cli(&["pool", "replace", POOL, &old, &self.file(self.next)])?
            }
            Job::Evacuation => self.millpond.cli(&["pool", "remove", POOL, &self.leaving()])?,
        };
        let mut control = self.millpond.control()?;
        let what = format!("a {} with work to do", job.name());
        wait_until(&what, self.time_left()?, || Progress::of(&mut control, job).is_ok_and(|progress| progress.is_some()))?;
        Ok(())
    }

    /// Ends a job: stops it, or waits for its end where it cannot be stopped. No load runs
    /// meanwhile, so nothing limits its rate.
    pub(super) fn end(&mut self, job: Job) -> Result<()> {
        match job {
            // it may have ended by itself, and then it cannot be stopped
            Job::Scrub => drop(self.millpond.cli(&["pool", "scrub", POOL, "--stop"])),
            Job::Evacuation => drop(self.millpond.cli(&["pool", "remove", POOL, &self.leaving(), "--stop"])),
            Job::Replace => {}
        }
        let mut control = self.millpond.control()?;
        let is_listed = |jobs: Value| jobs.as_array().into_iter().flatten().any(|listed| listed["kind"] == job.kind());
        let what = format!("the end of the {}", job.name());
        wait_until(&what, self.time_left()?, || control.get("/v1/jobs").is_ok_and(|jobs| !is_listed(jobs)))?;
        match job {
            Job::Scrub => Ok(()),
            Job::Replace => self.forget_replaced(),
            Job::Evacuation => self.restore_mirror(),
        }
    }

    /// Deletes the file of the device that was replaced. The other device of the mirror is the next
    /// one to be replaced.
    fn forget_replaced(&mut self) -> Result<()> {
        let [old, other] = self.mirrors[0];
        self.mirrors[0] = [other, self.next];
        self.next += 1;
        std::fs::remove_file(self.path(old)).context("deleting a replaced device")
    }

    /// Adds a second mirror again, if its removal was faster than the load.
    fn restore_mirror(&mut self) -> Result<()> {
        let pool = self.millpond.control()?.get(&format!("/v1/pools/{POOL}"))?;
        let devices = pool.get("devices").and_then(Value::as_array).context("the pool lists no devices")?;
        if devices.len() == 4 {
            return Ok(());
        }
        for number in self.mirrors[1] {
            std::fs::remove_file(self.path(number)).context("deleting a removed device")?;
        }
        self.mirrors[1] = [self.next, self.next + 1];
        self.next += 2;
        let words = ["pool", "add", POOL].map(str::to_owned).into_iter().chain(self.mirror(&self.mirrors[1]));
        self.millpond.cli(&words.collect::<Vec<String>>()).map(drop)
    }
}

/// Progress of a job at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    at: Instant,
    /// Bytes that the list of jobs reports as done. It counts data as done that guests freed.
    done: f64,
    /// Bytes that the devices have read, without those for guests. Those that the cleaner reads
    /// count, too.
    read: f64,
}

impl Progress {
    /// Reads the progress of a job; `None` if it is not listed, or has no work left.
    pub(super) fn of(control: &mut Control, job: Job) -> Result<Option<Progress>> {
        let jobs = control.get("/v1/jobs")?;
        let listed = jobs.as_array().into_iter().flatten().find(|listed| listed["kind"] == job.kind());
        let Some(listed) = listed.filter(|listed| listed["remaining_bytes"].as_u64() > Some(0)) else { return Ok(None) };
        let done = listed["done_bytes"].as_f64().context("a job does not tell the bytes done")?;
        let pool = control.get(&format!("/v1/pools/{POOL}"))?;
        let devices = pool.get("devices").and_then(Value::as_array).context("the pool lists no devices")?;
        let read = devices.iter().map(|device| device.pointer("/io/read_bytes").and_then(Value::as_f64)).sum::<Option<f64>>();
        let read = read.context("a device tells no bytes")?;
        let missed = pool.pointer("/io/read_cache_misses").and_then(Value::as_f64).context("the pool does not tell cache misses")?;
        Ok(Some(Progress { at: Instant::now(), done, read: read - BLOCK * missed }))
    }

    /// Returns the rate of the job since `before` in bytes per second: of the bytes reported as done
    /// and the bytes read the fewer ones, because neither alone is work of the job only.
    pub(super) fn rate_since(&self, before: &Progress) -> f64 {
        let seconds = self.at.duration_since(before.at).as_secs_f64();
        let bytes = (self.done - before.done).min(self.read - before.read).max(0.0);
        if seconds > 0.0 { bytes / seconds } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_counts_neither_freed_data_nor_reads_of_others() {
        let at = Instant::now();
        let before = Progress { at, done: 10.0, read: 1000.0 };
        let after = |done: f64, read: f64| Progress { at: at + Duration::from_secs(2), done, read }.rate_since(&before);
        assert_eq!(after(110.0, 1100.0), 50.0);
        assert_eq!(after(10_010.0, 1100.0), 50.0, "segments that guests freed were skipped");
        assert_eq!(after(110.0, 9000.0), 50.0, "the cleaner read something else");
        assert_eq!(after(10.0, 9000.0), 0.0, "a job that stands still");
        assert_eq!(before.rate_since(&before), 0.0);
    }
}
