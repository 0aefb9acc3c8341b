//! `rebase`: the blocks of clones of publications are fetched from another address.

use clap::{Args, ValueHint};
use millpond_api::Rebased;
use millpond_api::client::Client;
use millpond_api::failure::Outcome;

use super::backup::target::Place;
use super::candidates;
use super::globs::{Wanted, expand};
use super::store::StoreOptions;
use crate::output::{say, write_out};

/// Fetch the blocks of clones of a publication from another address, because its target has moved
///
/// A volume is the base of the clones: 'millpond list -o name,base' shows bases with their addresses. The new target must have the same
/// publication; the old one is not needed. Reads that wait for the old one go on with the new one. Options and credentials are replaced, too.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond rebase -n --to /mnt/new/images tank/publication-5f0c2a91
  millpond rebase --to /mnt/new/images 'tank/publication-*'
  millpond rebase --to s3://images/pond -o endpoint=https://store.example tank/publication-5f0c2a91")]
pub struct Rebase {
    /// POOL/VOL, a base; one or more, or quoted patterns
    #[arg(required = true, value_name = "POOL/VOL", add = candidates::volumes())]
    names: Vec<String>,
    /// The new address: a directory, or s3://BUCKET/PREFIX
    #[arg(long, value_name = "TARGET", value_hint = ValueHint::DirPath)]
    to: String,
    #[command(flatten)]
    store: StoreOptions,
    /// Only check the new target, and report what would change
    #[arg(short = 'n', long)]
    dry_run: bool,
}

impl Rebase {
    pub async fn run(self, client: &Client) -> Outcome {
        let names = expand(client, &self.names, Wanted::Volumes).await?;
        let place = Place::new(&self.to, self.store);
        let (target, options, credentials) = (place.absolute(), place.options(), place.credentials());
        for name in names {
            let request = millpond_api::Rebase {
                name,
                target: target.clone(),
                options: options.clone(),
                credentials: credentials.clone(),
                dry_run: self.dry_run,
            };
            let done: Rebased = client.post("/v1/publications/rebase", &request).await?;
            let (name, before, now) = (&done.name, done.before.words(), done.source.words());
            if self.dry_run {
                write_out(&format!("would fetch the blocks of {name} from {now}, not from {before}\n"))?;
            } else {
                say(&format!("the blocks of {name} are fetched from {now} now, not from {before}"))?;
            }
        }
        Ok(())
    }
}
