//! `pool jobs`: lists background jobs and waits for their end.

use std::time::Duration;

use clap::Args;
use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::size::Size;
use millpond_api::{Job, JobKind, JobState};

use crate::command::candidates;
use crate::command::columns::JOB;
use crate::output::{Listing, print};
use crate::progress::Progress;

/// Interval between queries of a job's progress.
const LOOK: Duration = Duration::from_millis(200);

/// List background jobs, or wait for one
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond pool jobs\n  millpond pool jobs --wait reclaim:tank")]
pub struct Jobs {
    /// Wait until this job has ended
    #[arg(long, value_name = "ID", add = candidates::jobs())]
    wait: Option<String>,
    #[command(flatten)]
    how: Listing,
}

impl Jobs {
    pub async fn run(self, client: &Client) -> Outcome {
        match &self.wait {
            Some(id) => wait(client, id).await,
            None => print(&client.get::<Vec<Job>>("/v1/jobs").await?, JOB, &self.how),
        }
    }
}

/// Waits until the space of destroyed volumes and snapshots of a pool is free.
pub async fn wait_reclaimed(client: &Client, pool: &str) -> Outcome {
    wait(client, &format!("reclaim:{pool}")).await
}

/// Waits until no replace, resilver or remove job of a pool runs.
pub async fn wait_devices(client: &Client, pool: &str) -> Outcome {
    loop {
        let jobs: Vec<Job> = client.get("/v1/jobs").await?;
        let of_devices = |job: &Job| matches!(job.kind, JobKind::Replace | JobKind::Resilver | JobKind::Remove);
        let Some(job) = jobs.into_iter().find(|job| job.pool == pool && of_devices(job)) else { return Ok(()) };
        wait(client, &job.id).await?;
    }
}

/// Waits until the rebalance of a pool has ended.
pub async fn wait_rebalance(client: &Client, pool: &str) -> Outcome {
    wait(client, &format!("rebalance:{pool}")).await
}

/// Waits until the wipe of a pool has ended.
pub async fn wait_wipe(client: &Client, pool: &str) -> Outcome {
    wait(client, &format!("wipe:{pool}")).await
}

/// Waits until the scrub of a pool has ended.
pub async fn wait_scrub(client: &Client, pool: &str) -> Outcome {
    wait(client, &format!("scrub:{pool}")).await
}

/// Waits until no job has this id. A missing job is no error: it may have ended already, and ids
/// name a kind of work on a pool rather than a run of it.
async fn wait(client: &Client, id: &str) -> Outcome {
    if !id.contains(':') {
        return Err(Failure::usage(format!("'{id}' is not a job; see 'millpond pool jobs'")));
    }
    let mut progress: Option<Progress> = None;
    loop {
        let jobs: Vec<Job> = client.get("/v1/jobs").await?;
        let Some(job) = jobs.iter().find(|job| job.id == id) else { break };
        let total = job.done_bytes + job.remaining_bytes;
        if job.state == JobState::Stopped {
            return Err(Failure::failed(format!("pool '{0}' is stopped, and '{id}' with it; see 'millpond pool status {0}'", job.pool)));
        }
        progress.get_or_insert_with(|| Progress::new(id, total)).remaining(job.remaining_bytes);
        tokio::time::sleep(LOOK).await;
    }
    if let Some(progress) = progress {
        let total = progress.total();
        progress.finish(&if total > 0 { Size(total).to_string() } else { String::new() });
    }
    Ok(())
}
