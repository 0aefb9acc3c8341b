//! `pool device-limit`: caps the throughput of a device.

use clap::Args;
use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::{self, Kind};
use millpond_api::size::Size;
use millpond_api::{LimitDevice, Pool};

use super::devices::named;
use crate::command::candidates;

/// Limit the rate of one device
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond pool device-limit tank /dev/sdb --bps 50M --iops 200
  millpond pool device-limit tank /dev/sdb --bps none

Reads and writes share a limit. Operations above it wait in their order; flushes and operations of other devices do not wait. A limit is kept across
restarts, until it is lifted or the device is removed. 'pool status -v' shows it, 'pool iostat -v -l' the time that operations wait.")]
pub struct DeviceLimit {
    /// Name of the pool
    #[arg(add = candidates::pools())]
    name: String,
    /// The device, as 'pool status' shows it: ID (or the first four digits or more of it), path, or serial number
    #[arg(add = candidates::devices())]
    device: String,
    /// Bytes per second; 0 or none lifts it
    #[arg(long, value_name = "SIZE")]
    bps: Option<String>,
    /// Operations per second; 0 or none lifts it
    #[arg(long, value_name = "N")]
    iops: Option<String>,
}

impl DeviceLimit {
    pub async fn run(self, client: &Client) -> Outcome {
        names::check(Kind::Pool, &self.name)?;
        if self.bps.is_none() && self.iops.is_none() {
            return Err(Failure::usage("nothing to limit; give --bps SIZE, --iops N, or both"));
        }
        let bps = self.bps.as_deref().map(rate).transpose()?;
        let iops = self.iops.as_deref().map(rate).transpose()?;
        let device = named(client, &self.name, &self.device).await?;
        let request = LimitDevice { device, bps, iops };
        client.post::<_, Pool>(&format!("/v1/pools/{}/limit", self.name), &request).await.map(drop)
    }
}

/// Parses a rate; 0 stands for none.
pub(super) fn rate(word: &str) -> Outcome<u64> {
    if word == "none" {
        return Ok(0);
    }
    let Size(rate) = word.strip_suffix("/s").unwrap_or(word).parse()?;
    Ok(rate)
}
