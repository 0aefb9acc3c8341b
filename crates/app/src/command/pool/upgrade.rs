//! `pool upgrade`: turns on features of the format.

use clap::Args;
use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::{self, Kind};
use millpond_api::{PoolFeature, PoolUpgrade, UpgradePool};

use crate::command::candidates;
use crate::command::consent::Consent;
use crate::output::{Format, write_out};

/// Turn on the features of the format that a pool lacks
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond pool upgrade -n tank
  millpond pool upgrade -y tank

A new version of Millpond uses pools of older versions as they are, and turns nothing on by itself. With -n, the features are listed, with the loss
for older versions; a feature that is on stays on. See docs/upgrades.md.")]
pub struct Upgrade {
    /// Name of the pool
    #[arg(add = candidates::pools())]
    name: String,
    #[command(flatten)]
    consent: Consent,
    /// table or json
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

impl Upgrade {
    pub async fn run(self, client: &Client) -> Outcome {
        names::check(Kind::Pool, &self.name)?;
        let path = format!("/v1/pools/{}/upgrade", self.name);
        let planned: PoolUpgrade = client.post(&path, &UpgradePool { dry_run: true }).await?;
        let waits = planned.features.iter().any(|feature| feature.on && !feature.in_force);
        if self.consent.dry_run || (planned.turned_on.is_empty() && !waits) {
            return self.show(&planned);
        }
        if planned.turned_on.is_empty() {
            // older versions are refused already; the answer has the reason why the features wait
            let done: PoolUpgrade = client.post(&path, &UpgradePool { dry_run: false }).await?;
            return self.show(&done);
        }
        if self.format == Format::Table {
            write_out(&listed(&planned))?;
        }
        self.consent.ask("upgrade", &format!("the use of pool {} by versions without {}", self.name, planned.turned_on.join(", ")))?;
        let done: PoolUpgrade = client.post(&path, &UpgradePool { dry_run: false }).await?;
        match self.format {
            Format::Json => self.show(&done),
            Format::Table => write_out(&format!("turned on {}\n", done.turned_on.join(", "))),
        }
    }

    fn show(&self, upgrade: &PoolUpgrade) -> Outcome {
        match self.format {
            Format::Json => {
                let text = serde_json::to_string_pretty(upgrade).map_err(|e| Failure::failed(format!("cannot encode the answer: {e}")))?;
                write_out(&(text + "\n"))
            }
            Format::Table => write_out(&listed(upgrade)),
        }
    }
}

/// Lists the features, and those that an upgrade turns on.
fn listed(upgrade: &PoolUpgrade) -> String {
    let line = |feature: &PoolFeature| {
        let state = match (feature.on, feature.automatic) {
            (true, _) if feature.in_force => "on",
            (true, _) => "on, not in use until every label names it",
            (false, true) => "off, automatic",
            (false, false) => "off",
        };
        format!("{} (since {}): {state}\n  {} {}\n", feature.name, feature.since, feature.meaning, feature.closes)
    };
    let features: String = upgrade.features.iter().map(line).collect();
    let end = match upgrade.turned_on.as_slice() {
        [] => "nothing to turn on: the pool has every feature that this version turns on by an upgrade\n".to_owned(),
        names => format!("an upgrade turns on {}\n", names.join(", ")),
    };
    format!("pool {}, format {}\n{features}{end}", upgrade.name, upgrade.format)
}
