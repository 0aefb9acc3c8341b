//! `pool rebalance`: evens out the allocation of groups.

use clap::Args;
use millpond_api::client::Client;
use millpond_api::failure::Outcome;
use millpond_api::names::{self, Kind};
use millpond_api::size::Size;
use millpond_api::{GroupFill, Rebalance as Answer, RebalancePool};

use crate::command::candidates;
use crate::command::columns::GROUP_FILL;
use crate::command::pool::jobs;
use crate::output::{Format, Listing, print, write_out};

/// Distribute data evenly over the groups of a pool, after devices were added
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond pool rebalance tank -n
  millpond pool rebalance tank --wait
  millpond pool rebalance tank --stop

Segments of groups with more than their share of data are moved to the other groups, as with 'pool remove': maps do not change. Guests have
priority. New writes are distributed by free space in any case. The job continues after a restart; 'pool jobs' shows its progress.")]
pub struct Rebalance {
    /// Name of the pool
    #[arg(add = candidates::pools())]
    name: String,
    /// Stop the running rebalance; moved data stays where it is
    #[arg(long, conflicts_with_all = ["wait", "dry_run"])]
    stop: bool,
    /// Only report how much data would move
    #[arg(short = 'n', long, conflicts_with = "wait")]
    dry_run: bool,
    /// Wait until the rebalance has ended
    #[arg(short = 'w', long)]
    wait: bool,
    #[command(flatten)]
    how: Listing,
}

impl Rebalance {
    pub async fn run(self, client: &Client) -> Outcome {
        names::check(Kind::Pool, &self.name)?;
        let request = RebalancePool { stop: self.stop, dry_run: self.dry_run };
        let answer: Answer = client.post(&format!("/v1/pools/{}/rebalance", self.name), &request).await?;
        let json = self.how.format == Format::Json;
        if self.dry_run || (json && !self.stop) {
            print::<GroupFill>(&answer.groups, GROUP_FILL, &self.how)?;
        }
        if !json && !self.stop {
            self.tell(&answer)?;
        }
        if self.wait && answer.surplus_bytes > 0 { jobs::wait_rebalance(client, &self.name).await } else { Ok(()) }
    }

    fn tell(&self, answer: &Answer) -> Outcome {
        let what = match (answer.surplus_bytes, self.dry_run) {
            (0, _) => format!("nothing to do: the groups of pool {} hold their shares\n", self.name),
            (bytes, true) => format!("would move about {}\n", Size(bytes)),
            (bytes, false) => format!("moving about {}; see 'millpond pool jobs'\n", Size(bytes)),
        };
        write_out(&what)
    }
}
