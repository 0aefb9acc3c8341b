//! `destroy`: volumes, snapshots and ranges of snapshots.

use std::fmt::Write as _;

use clap::Args;

use super::consent::Consent;
use super::pool::jobs::wait_reclaimed;
use crate::api;
use crate::client::Client;
use crate::failure::{Failure, Outcome};
use crate::names::Doomed;
use crate::output::{Format, Listing, write_out};
use crate::size::Size;

/// Destroy a volume, a snapshot, or a range of snapshots
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond destroy -n tank/vm1@monday%friday    what would go, and how much that frees
  millpond destroy -y tank/vm1@%                all snapshots of a volume
  millpond destroy -y -r tank/vm1               a volume with its snapshots")]
pub struct Destroy {
    /// POOL/VOL, POOL/VOL@SNAP, POOL/VOL@FIRST%LAST, POOL/VOL@%
    name: String,
    /// A volume goes with its snapshots
    #[arg(short = 'r', long)]
    recursive: bool,
    /// Clones go as well, and holds do not protect
    #[arg(short = 'R', long)]
    clones: bool,
    #[command(flatten)]
    consent: Consent,
    /// Wait until the space is free again
    #[arg(short = 'w', long)]
    wait: bool,
    /// Do not wait (the default)
    #[arg(long, conflicts_with = "wait")]
    no_wait: bool,
    #[command(flatten)]
    how: Listing,
}

impl Destroy {
    /// Runs it.
    pub async fn run(self, client: &Client) -> Outcome {
        let doomed: Doomed = self.name.parse()?;
        let request = |dry_run| api::Destroy { name: self.name.clone(), recursive: self.recursive, clones: self.clones, dry_run };
        let planned: api::Destroyed = client.post("/v1/destroy", &request(true)).await?;
        if self.consent.dry_run {
            return self.tell(&planned);
        }
        if !planned.destroyed.is_empty() {
            let lost = match planned.destroyed.as_slice() {
                [only] => only.clone(),
                several => format!("{} and what it stands for ({} in all)", self.name, several.len()),
            };
            self.consent.ask("destroy", &lost)?;
        }
        let done: api::Destroyed = client.post("/v1/destroy", &request(false)).await?;
        self.tell(&done)?;
        if self.wait {
            let pool = match &doomed {
                Doomed::One(name) => name.pool(),
                Doomed::Range { of, .. } => &of.pool,
            };
            wait_reclaimed(client, pool).await?;
        }
        Ok(())
    }

    fn tell(&self, what: &api::Destroyed) -> Outcome {
        if self.how.format == Format::Json {
            let text = serde_json::to_string_pretty(what).map_err(|e| Failure::failed(format!("cannot encode the answer: {e}")))?;
            return write_out(&(text + "\n"));
        }
        let (destroyed, frees) = if what.dry_run { ("would destroy", "would free") } else { ("destroyed", "freed") };
        let mut text = String::new();
        for name in &what.destroyed {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{destroyed} {name}");
        }
        let least = if what.exact { "" } else { "at least " };
        let bytes = what.freed_bytes;
        let _ = match self.how.parsable {
            true => writeln!(text, "{frees} {least}{bytes}"),
            false => writeln!(text, "{frees} {least}{} ({bytes} bytes)", Size(bytes)),
        };
        write_out(&text)
    }
}
