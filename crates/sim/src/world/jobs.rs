//! Jobs in the worlds whose devices fail: rebalance, scrub and wipe run, are stopped and get rate
//! limits, while crashes and device faults occur. A census of all maps runs beside them.

use millpond_engine::{Command, JobCommand, JobKind, PoolState, QueryCommand, Wipe};

use super::World;
use super::fate::JOB_PATIENCE;
use crate::System;
use crate::oracle::{Verdict, broken};

/// Rate limits in bytes per second: none, one so low that jobs do not end within a world, and one
/// that hardly slows them.
const RATES: [u64; 3] = [0, 64 << 10, 64 << 20];

impl<S: System> World<S> {
    /// Starts or stops a job or changes the rate limit, sometimes.
    pub(super) fn work(&mut self) {
        let Some(fate) = &mut self.fate else { return };
        let chance = fate.chance;
        let Some(rng) = &mut fate.work else { return };
        if rng.below(1000) >= chance {
            return;
        }
        let command = match rng.weighted(&[30, 10, 20, 5, 15, 15, 5, 10]) {
            0 => Command::Job(JobCommand::Rebalance { dry_run: rng.percent(10) }),
            1 => Command::Job(JobCommand::StopRebalance),
            2 => Command::Job(JobCommand::Scrub),
            3 => Command::Job(JobCommand::StopScrub),
            4 => Command::Job(JobCommand::SetJobRate { rate: *rng.pick(&RATES) }),
            5 => Command::Job(JobCommand::Wipe { how: *rng.pick(&[Wipe::Discard, Wipe::Zero]), dry_run: rng.percent(10) }),
            6 => Command::Job(JobCommand::StopWipe),
            _ => Command::Query(QueryCommand::WriteSizes),
        };
        // One census at a time: more than are answered would delay all other queries for ever.
        let asked = self.running.values().any(|plan| {
            matches!((&plan.command, &command), (Some(Command::Query(QueryCommand::WriteSizes)), Command::Query(QueryCommand::WriteSizes)))
        });
        if self.state() == PoolState::Online && !asked {
            self.stats.changes += 1;
            self.command(command, vec![], vec![]);
        }
    }

    /// Removes the rate limit of jobs.
    fn hurry_jobs(&mut self) -> Verdict {
        let held = self.fate.as_ref().is_some_and(|fate| fate.work.is_some());
        if held && self.state() == PoolState::Online {
            self.command_and_wait(JobCommand::SetJobRate { rate: 0 })?;
        }
        Ok(())
    }

    /// Waits until all jobs have ended.
    pub(super) fn finish_jobs(&mut self) -> Verdict {
        self.hurry_jobs()?;
        for waited in 0..JOB_PATIENCE {
            self.settle_down()?;
            self.observe();
            if self.fate.as_ref().is_none_or(|fate| !fate.jobs) {
                return Ok(());
            }
            // A wipe waits for absent devices and for free space, as long as it takes.
            let jobs = self.system.as_ref().and_then(S::pool).map(|pool| pool.jobs).unwrap_or_default();
            if waited >= JOB_PATIENCE / 2 && jobs.iter().all(|job| job.kind == JobKind::Wipe) {
                self.command_and_wait(JobCommand::StopWipe)?;
            }
            self.machine.pass(1_000_000);
        }
        let jobs = self.system.as_ref().and_then(S::pool).map(|pool| pool.jobs);
        broken(format!("jobs do not come to an end: {jobs:?}"))
    }
}
