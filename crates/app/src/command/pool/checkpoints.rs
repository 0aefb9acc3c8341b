//! `pool checkpoints`.

use clap::Args;

use crate::api::Checkpoint;
use crate::client::Client;
use crate::command::columns::CHECKPOINT;
use crate::failure::Outcome;
use crate::names::{self, Kind};
use crate::output::{Listing, print};

/// List restore points of a pool, and the span of later writes that each would lose
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond pool checkpoints tank")]
pub struct Checkpoints {
    /// Name of the pool
    name: String,
    #[command(flatten)]
    how: Listing,
}

impl Checkpoints {
    /// Runs it.
    pub async fn run(self, client: &Client) -> Outcome {
        names::check(Kind::Pool, &self.name)?;
        let points: Vec<Checkpoint> = client.get(&format!("/v1/pools/{}/checkpoints", self.name)).await?;
        print(&points, CHECKPOINT, &self.how)
    }
}
