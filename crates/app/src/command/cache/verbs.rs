//! Subcommands of `cache`.

use clap::Subcommand;

use super::advise;
use crate::client::Client;
use crate::failure::Outcome;

/// Commands about cache modes.
#[derive(Debug, Subcommand)]
pub enum Cache {
    Advise(advise::Advise),
}

impl Cache {
    pub async fn run(self, client: &Client) -> Outcome {
        match self {
            Cache::Advise(advise) => advise.run(client).await,
        }
    }
}
