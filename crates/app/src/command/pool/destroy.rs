//! `pool destroy`: destroys a pool.

use clap::Args;
use millpond_api::PoolRemoval;
use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::{self, Kind};
use millpond_api::size::Size;

use crate::command::candidates;
use crate::command::consent::Consent;
use crate::output::{Format, Listing, write_out};

/// Destroy a pool with all its volumes
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond pool destroy -n tank\n  millpond pool destroy -y tank")]
pub struct Destroy {
    /// Name of the pool
    #[arg(add = candidates::pools())]
    name: String,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    how: Listing,
}

impl Destroy {
    pub async fn run(self, client: &Client) -> Outcome {
        names::check(Kind::Pool, &self.name)?;
        let path = |dry_run: bool| format!("/v1/pools/{}?dry_run={dry_run}", self.name);
        let planned: PoolRemoval = client.delete(&path(true)).await?;
        let lost = format!(
            "pool {} with {} volumes, {} snapshots and {} of data{}",
            planned.name,
            planned.volumes.len(),
            planned.snapshots,
            Size(planned.allocated),
            ends(&planned)
        );
        if self.consent.dry_run {
            return self.tell(&planned, &format!("would destroy {lost}\n"));
        }
        self.consent.ask("destroy", &lost)?;
        let done: PoolRemoval = client.delete(&path(false)).await?;
        for left in &done.left {
            eprintln!("warning: the label on {} is left: {}; 'millpond pool create -f' overwrites it", left.path, left.reason);
        }
        self.tell(&done, &done.exports.iter().map(|export| format!("ended export {} ({})\n", export.id, export.name)).collect::<String>())
    }

    fn tell(&self, removal: &PoolRemoval, text: &str) -> Outcome {
        if self.how.format == Format::Json {
            let text = serde_json::to_string_pretty(removal).map_err(|e| Failure::failed(format!("cannot encode the answer: {e}")))?;
            return write_out(&(text + "\n"));
        }
        write_out(text)
    }
}

/// Lists the exports that end with the pool.
fn ends(planned: &PoolRemoval) -> String {
    let exports: Vec<String> = planned.exports.iter().map(|export| format!("{} ({})", export.id, export.name)).collect();
    match exports.as_slice() {
        [] => String::new(),
        [one] => format!(", and end export {one}"),
        several => format!(", and end exports {}", several.join(", ")),
    }
}
