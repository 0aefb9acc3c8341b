//! `pool scrub`: starts, stops and awaits scrubs.

use clap::Args;
use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::{self, Kind};
use millpond_api::{Pool, PoolHealth, ScrubPool};

use crate::command::candidates;
use crate::command::pool::jobs;

/// Read and check every copy of all data in a pool, repair errors, and report data that cannot be repaired
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond pool scrub tank
  millpond pool scrub tank --wait
  millpond pool scrub tank --stop
  millpond pool scrub --wait                  all pools

Guests have priority. 'pool jobs' shows the progress, 'pool status' the result, 'pool status -v' the location of data without a good copy.")]
pub struct Scrub {
    /// Name of the pool; without it, all pools in service
    #[arg(add = candidates::pools())]
    name: Option<String>,
    /// Stop the running scrub; its results so far are kept
    #[arg(long, conflicts_with = "wait")]
    stop: bool,
    /// Wait until all data is read; fails if there is data without a good copy
    #[arg(short = 'w', long)]
    wait: bool,
}

impl Scrub {
    pub async fn run(self, client: &Client) -> Outcome {
        let names = match &self.name {
            Some(name) => vec![name.clone()],
            None => in_service(client).await?,
        };
        let request = ScrubPool { stop: self.stop };
        let mut failed = None;
        for name in &names {
            names::check(Kind::Pool, name)?;
            // a pool whose scrub runs already does not stop the loop over the other pools
            match client.post::<_, Pool>(&format!("/v1/pools/{name}/scrub"), &request).await {
                Ok(_) => {}
                // pools without a running scrub are no error when all scrubs are stopped
                Err(_) if self.stop && self.name.is_none() => {}
                Err(failure) if names.len() > 1 => drop(failed.get_or_insert(failure)),
                Err(failure) => return Err(failure),
            }
        }
        if self.wait {
            for name in &names {
                if let Err(failure) = wait(client, name).await {
                    failed.get_or_insert(failure);
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

async fn in_service(client: &Client) -> Outcome<Vec<String>> {
    let pools: Vec<Pool> = client.get("/v1/pools").await?;
    let serving = |pool: &Pool| matches!(pool.health, PoolHealth::Online | PoolHealth::Degraded);
    Ok(pools.into_iter().filter(serving).map(|pool| pool.name).collect())
}

/// Waits for the end of a scrub and reports its result.
async fn wait(client: &Client, name: &str) -> Outcome {
    jobs::wait_scrub(client, name).await?;
    let pool: Pool = client.get(&format!("/v1/pools/{name}")).await?;
    let Some(scrub) = pool.scrub else { return Ok(()) };
    let found = format!("scrub of {name}: {}, {}", scrub.state, scrub.found(name));
    if scrub.lost() == 0 {
        eprintln!("{found}");
        return Ok(());
    }
    Err(Failure::failed(format!("{found}; restore the affected data from a backup")))
}
