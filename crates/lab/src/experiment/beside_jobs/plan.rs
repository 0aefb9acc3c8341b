//! Sizes and times of `beside-jobs`, from the options of the run.
//!
//! A job runs at 64 MiB/s beside active guests, whatever the size of the pool. So the pool has as
//! much data as the jobs can read during their loads, and no job has to end beside a load.

use super::{LOADS, job::Job};
use crate::experiment::Setup;
use std::time::Duration;

/// Volume under load, in bytes.
const SIZE: u64 = 512 << 20;
/// Rate of jobs beside active guests, in bytes per second; see docs/devices.md.
pub(super) const JOB_RATE: u64 = 64 << 20;
/// Seconds before a measured load.
const RAMP: f64 = 0.3;
/// Time of a job before its measured load: an idle job saves up an allowance of 0.6 s and uses it at
/// its start, which is no steady rate.
pub(super) const SETTLE: Duration = Duration::from_millis(500);
/// Seconds whose bytes a job reads outside of its measured load: in that time, from the saved
/// allowance, and between its start and stop.
const AROUND: f64 = 1.5;
/// Room of each device beside all data: part of it (1/N), which the pool keeps free, and what guests
/// overwrite in the time of a load at this rate. With less, the second mirror cannot be removed, or
/// the cleaner needs the time of the job.
const ROOM_PART: u64 = 4;
const OVERWRITTEN_RATE: u64 = 256 << 20;
const GRAIN: u64 = 16 << 20;
/// A repetition takes at most this multiple of the time of its loads, and these seconds more, and
/// the time of writing its data to two devices at this rate.
const TIMES_OF_LOADS: f64 = 3.0;
const MORE_SECS: f64 = 30.0;
const LEAST_MEDIUM_RATE: u64 = 32 << 20;

/// Sizes and times of a repetition.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Measured seconds of a load.
    pub(super) secs: f64,
    /// Seconds before them.
    pub(super) ramp: f64,
    /// Bytes of the volume under load.
    pub(super) disk: u64,
    /// Bytes of the volume that no load touches.
    pub(super) still: u64,
}

impl Plan {
    pub(super) fn of(setup: &Setup) -> Plan {
        let mut plan = Plan { secs: setup.secs, ramp: RAMP, disk: setup.size_or(SIZE), still: 0 };
        // one mirror of the two is emptied a little beside each load
        let each_mirror = LOADS.len() as u64 * plan.job_bytes();
        plan.still = (2 * each_mirror).next_multiple_of(GRAIN);
        plan
    }

    /// Returns the bytes that a job reads at most until it is stopped, at its rate beside guests.
    fn job_bytes(&self) -> u64 {
        self.bytes_at(JOB_RATE)
    }

    /// Returns the bytes at a rate during a load and the job beside it.
    fn bytes_at(&self, rate: u64) -> u64 {
        (rate as f64 * (AROUND + self.ramp + self.secs)) as u64
    }

    /// Size of a device in bytes. Two of them have room for everything.
    pub(super) fn device_bytes(&self) -> u64 {
        let data = self.still + self.disk;
        data + data / ROOM_PART + self.bytes_at(OVERWRITTEN_RATE)
    }

    /// Returns the bytes that the devices can grow to: the pool's four, and a replacement.
    pub(super) fn all_devices_bytes(&self) -> u64 {
        5 * self.device_bytes()
    }

    /// Returns the time of all loads of a repetition.
    fn loads(&self) -> Duration {
        let jobs = Job::ALL.len();
        let each =
            SETTLE * u32::try_from(jobs).unwrap_or(u32::MAX) + Duration::from_secs_f64((2 * jobs + 1) as f64 * (self.ramp + self.secs));
        each * u32::try_from(LOADS.len()).unwrap_or(u32::MAX)
    }

    /// Returns the limit of the time of a repetition; one that takes longer fails.
    pub(super) fn longest(&self) -> Duration {
        let written = 2 * (self.disk + self.still);
        self.loads().mul_f64(TIMES_OF_LOADS) + Duration::from_secs_f64(MORE_SECS) + Duration::from_secs(written / LEAST_MEDIUM_RATE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Media;
    use std::path::PathBuf;

    fn plan(scale: f64, secs: f64) -> Plan {
        let dir = PathBuf::from("nowhere");
        Plan::of(&Setup { media: Media::Shm, dir, reps: 2, long_reps: 1, secs, size: None, scale, peers: Vec::new(), seed: 1 })
    }

    /// A repetition must not wait for the end of a job beside a load: at the rate of jobs, a scrub
    /// alone would take minutes for each load.
    #[test]
    fn a_repetition_takes_as_long_as_its_loads() {
        for (scale, secs, most_loads, most) in [(0.01, 0.3, 20, 150), (1.0, 1.5, 45, 320)] {
            let plan = plan(scale, secs);
            assert!(plan.loads() < Duration::from_secs(most_loads), "{plan:?}: {:?}", plan.loads());
            assert!(plan.longest() < Duration::from_secs(most), "{plan:?}: {:?}", plan.longest());
        }
        let least = plan(0.01, 0.3);
        assert!(least.disk + least.still < 1 << 30, "{least:?}");
    }

    #[test]
    fn no_job_runs_out_of_data_beside_a_load() {
        for secs in [0.3, 1.0, 1.5, 60.0] {
            let plan = plan(0.01, secs);
            let saved = 0.6;
            let read = (JOB_RATE as f64 * (saved + SETTLE.as_secs_f64() + RAMP + secs)) as u64;
            // each load takes data off the same mirror
            assert!(plan.still / 2 > LOADS.len() as u64 * read, "{plan:?}");
            // without a part of all data, a removal of the second mirror is refused
            let written = (OVERWRITTEN_RATE as f64 * secs) as u64;
            assert!(plan.device_bytes() - written >= (plan.still + plan.disk) * 9 / 8, "{plan:?}");
        }
    }
}
