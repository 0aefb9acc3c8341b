//! Subcommands of `cache`.

use clap::Subcommand;
use millpond_api::client::Client;
use millpond_api::failure::Outcome;

use super::advise;

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
