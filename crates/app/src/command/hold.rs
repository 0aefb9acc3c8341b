//! `hold` and `release`: a held snapshot cannot be destroyed.

use clap::Args;

use crate::api;
use crate::client::Client;
use crate::failure::Outcome;
use crate::instant::{now, parse_time};
use crate::names::SnapshotName;

/// Protect a snapshot from being destroyed
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond hold tank/vm1@audit --until 2027-01-31")]
pub struct Hold {
    /// POOL/VOL@SNAP
    name: String,
    /// The hold ends then: 2027-01-31T12:00:00Z, 2027-01-31, or 24h from now
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
}

impl Hold {
    /// Runs it.
    pub async fn run(self, client: &Client) -> Outcome {
        let name: SnapshotName = self.name.parse()?;
        let until = self.until.as_deref().map(|text| parse_time(text, now())).transpose()?;
        let path = format!("/v1/snapshots/{}/{}/hold", name.of, name.snapshot);
        client.post::<_, api::Snapshot>(&path, &api::Hold { until }).await.map(drop)
    }
}

/// Take one hold back
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond release tank/vm1@audit")]
pub struct Release {
    /// POOL/VOL@SNAP
    name: String,
}

impl Release {
    /// Runs it.
    pub async fn run(self, client: &Client) -> Outcome {
        let name: SnapshotName = self.name.parse()?;
        client.post::<_, api::Snapshot>(&format!("/v1/snapshots/{}/{}/release", name.of, name.snapshot), &()).await.map(drop)
    }
}
