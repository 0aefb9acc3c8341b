//! `alert`: tests the sinks of alerts.

use clap::{Args, Subcommand};
use millpond_api::SinkTest;
use millpond_api::client::Client;
use millpond_api::failure::{Code, Failure, Outcome};

use super::columns::SINK_TEST;
use crate::output::{Listing, print};

/// Alerts of the daemon
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:\n  millpond alert test")]
pub enum Alert {
    Test(Test),
}

/// Send a test alert to each sink of the daemon's configuration, and show which of them took it
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond alert test
  millpond alert test --format json

Exit code 1: a sink did not take the alert, or the configuration has no sink.")]
pub struct Test {
    #[command(flatten)]
    how: Listing,
}

impl Alert {
    pub async fn run(self, client: &Client) -> Outcome {
        match self {
            Alert::Test(test) => test.run(client).await,
        }
    }
}

impl Test {
    async fn run(self, client: &Client) -> Outcome {
        let tests: Vec<SinkTest> = client.post("/v1/sinks/test", &()).await?;
        if tests.is_empty() {
            return Err(Failure::failed("the daemon has no sink; add a [[sink]] to its configuration, and restart it"));
        }
        print(&tests, SINK_TEST, &self.how)?;
        let failed = tests.iter().any(|test| test.failure.is_some());
        if failed { Err(Failure::said(Code::Failed)) } else { Ok(()) }
    }
}
