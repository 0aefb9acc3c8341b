//! `pool scrub`.

use clap::Args;

use crate::api::{Pool, ScrubPool};
use crate::client::Client;
use crate::command::pool::jobs;
use crate::failure::{Failure, Outcome};
use crate::names::{self, Kind};

/// Read every copy of everything in a pool, mend what is wrong, and name what cannot be mended
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond pool scrub tank
  millpond pool scrub tank --wait
  millpond pool scrub tank --stop

Guests go first. 'pool jobs' shows how far it is, 'pool status' what it found, 'pool status -v' where data is that no copy has.")]
pub struct Scrub {
    /// Name of the pool
    name: String,
    /// End the one that runs; what it found stays known
    #[arg(long, conflicts_with = "wait")]
    stop: bool,
    /// Wait until everything is read; fails when there is data that no copy has
    #[arg(short = 'w', long)]
    wait: bool,
}

impl Scrub {
    /// Runs it.
    pub async fn run(self, client: &Client) -> Outcome {
        names::check(Kind::Pool, &self.name)?;
        let request = ScrubPool { stop: self.stop };
        client.post::<_, Pool>(&format!("/v1/pools/{}/scrub", self.name), &request).await?;
        if !self.wait {
            return Ok(());
        }
        jobs::wait_scrub(client, &self.name).await?;
        let pool: Pool = client.get(&format!("/v1/pools/{}", self.name)).await?;
        let lost = pool.scrub.map_or(0, |scrub| scrub.lost_blocks + scrub.lost_nodes);
        if lost == 0 {
            return Ok(());
        }
        Err(Failure::failed(format!(
            "{lost} blocks of pool '{}' have no copy that is right; see 'millpond pool status -v {}', then restore what they belong to",
            self.name, self.name
        )))
    }
}
