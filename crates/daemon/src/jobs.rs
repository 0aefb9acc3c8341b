//! Jobs that users start: rebalance, scrub and wipe; and the rate limit of jobs. The pool itself
//! remembers all of it.

use millpond_api::{
    ApiError, EventKind, GroupFill, JobKind, Pool, Rebalance, RebalancePool, ScrubPool, SetPool, WipeMode, WipePool, Wiping,
};
use millpond_block::MemberId;
use millpond_engine::{Command, GroupFill as Fill, JobCommand, Reply, Wipe};

use super::devices::remembered_path;
use super::events::Happened;
use super::service::Daemon;
use super::shard::ShardHandle;

impl Daemon {
    /// Begins to scrub a pool, or stops that. The job has begun on return, and continues after a
    /// restart.
    ///
    /// # Errors
    /// When there is no such pool, a scrub runs already, or there is none to stop.
    pub async fn scrub(&self, name: &str, request: ScrubPool) -> Result<Pool, ApiError> {
        let during = format!("cannot {} pool '{name}'", if request.stop { "stop the scrub of" } else { "scrub" });
        let command = if request.stop { Command::Job(JobCommand::StopScrub) } else { Command::Job(JobCommand::Scrub) };
        if !request.stop {
            self.note_errors_of(name).await;
        }
        self.shard(name)?.command(command).await.map_err(|e| ApiError::from(e).during(&during))?;
        if !request.stop {
            self.tell(EventKind::PoolScrubbing, name);
            self.expect_job(name, JobKind::Scrub, None);
        } else {
            self.report_stop(name, &JobKind::Scrub);
        }
        self.pool(name).await
    }

    /// Begins to even out how full groups are, stops that, or reports the bytes to move. The job
    /// has begun on return, and continues after a restart.
    ///
    /// # Errors
    /// When there is no such pool, a rebalance runs already, or there is none to stop.
    pub async fn rebalance(&self, name: &str, request: RebalancePool) -> Result<Rebalance, ApiError> {
        let during = format!("cannot {} pool '{name}'", if request.stop { "stop the rebalance of" } else { "rebalance" });
        let shard = self.shard(name)?;
        let command = match request.stop {
            true if request.dry_run => return Err(ApiError::usage("stopping is not rehearsed; leave one of the two out")),
            true => Command::Job(JobCommand::StopRebalance),
            false => Command::Job(JobCommand::Rebalance { dry_run: request.dry_run }),
        };
        let reply = shard.command(command).await.map_err(|e| ApiError::from(e).during(&during))?;
        if request.stop {
            self.report_stop(name, &JobKind::Rebalance);
        }
        let Reply::Fills(fills) = reply else { return Ok(Rebalance { surplus_bytes: 0, groups: Vec::new() }) };
        let surplus_bytes = fills.iter().map(|fill| fill.surplus).sum();
        if surplus_bytes > 0 && !request.dry_run {
            self.tell(EventKind::PoolRebalancing, name);
            self.expect_job(name, JobKind::Rebalance, None);
        }
        Ok(Rebalance { surplus_bytes, groups: self.groups(name, &shard, &fills).await? })
    }

    /// Begins to wipe data that nothing refers to, stops that, or reports the bytes. The job has
    /// begun on return, and continues after a restart.
    ///
    /// # Errors
    /// When there is no such pool, a device is missing, the pool has a cache, or there is no wipe
    /// to stop.
    pub async fn wipe(&self, name: &str, request: WipePool) -> Result<Wiping, ApiError> {
        let during = format!("cannot {} pool '{name}'", if request.stop { "stop the wipe of" } else { "wipe" });
        let how = match request.mode {
            WipeMode::Discard => Wipe::Discard,
            WipeMode::Zero => Wipe::Zero,
        };
        let command = match request.stop {
            true if request.dry_run => return Err(ApiError::usage("stopping is not rehearsed; leave one of the two out")),
            true => Command::Job(JobCommand::StopWipe),
            false => Command::Job(JobCommand::Wipe { how, dry_run: request.dry_run }),
        };
        let reply = self.shard(name)?.command(command).await.map_err(|e| ApiError::from(e).during(&during))?;
        if request.stop {
            self.report_stop(name, &JobKind::Wipe);
        }
        let Reply::Wipe(plan) = reply else { return Ok(Wiping::default()) };
        if !request.dry_run {
            self.tell(EventKind::PoolWiping, name);
            self.expect_job(name, JobKind::Wipe, None);
        }
        Ok(Wiping { moved_bytes: plan.moved, erased_bytes: plan.erased })
    }

    /// Changes properties of a pool. In force, and durable, on return.
    ///
    /// # Errors
    /// When there is no such pool, or the engine refuses a value.
    pub async fn set_pool(&self, name: &str, request: SetPool) -> Result<Pool, ApiError> {
        if let Some(rate) = request.job_rate {
            let during = format!("cannot set job_rate of pool '{name}'");
            self.shard(name)?.command(JobCommand::SetJobRate { rate }).await.map_err(|e| ApiError::from(e).during(&during))?;
            let message = format!("pool '{name}' changed: job_rate is {rate} bytes per second (0: no limit)");
            self.report(Happened::to_pool(EventKind::PoolChanged, name, message));
        }
        self.pool(name).await
    }

    /// Reports that a command has stopped a job.
    pub(super) fn report_stop(&self, pool: &str, kind: &JobKind) {
        let message = format!("{kind} in pool '{pool}' is stopped by a command");
        self.report(Happened::to_pool(EventKind::JobStopped, pool, message).about(format!("{kind}:{pool}")));
    }

    async fn groups(&self, name: &str, shard: &ShardHandle, fills: &[Fill]) -> Result<Vec<GroupFill>, ApiError> {
        let status = shard.status().await?;
        let names = self.device_names(name, &status);
        let device = |member: &MemberId| names.member(*member);
        let group = |fill: &Fill| {
            let devices = fill.members.iter().map(device).collect();
            GroupFill { devices, size: fill.size, allocated: fill.allocated, surplus: fill.surplus }
        };
        Ok(fills.iter().map(group).collect())
    }

    /// Notes that a command has begun a job: its end is reported as an event, its beginning was
    /// already.
    pub(super) fn expect_job(&self, pool: &str, kind: JobKind, member: Option<MemberId>) {
        let record = self.registry().pools.get(pool).map(|entry| entry.record.clone());
        if let Some(record) = record {
            let path = member.and_then(|member| remembered_path(&record.devices, member));
            self.watches().expect_job(&record.id, kind, member, path);
        }
    }
}
