//! `destroy`: volumes, snapshots and ranges of snapshots.

use std::fmt::Write as _;

use clap::Args;

use super::consent::Consent;
use super::pool::jobs::{wait_reclaimed, wait_wipe};
use crate::api;
use crate::client::Client;
use crate::failure::{Failure, Outcome};
use crate::names::Doomed;
use crate::output::{Format, write_out};
use crate::size::Size;

/// Destroy a volume, a snapshot, or a range of snapshots
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond destroy -n tank/vm1@monday%friday    what would go, and how much that frees
  millpond destroy -y tank/vm1@%                all snapshots of a volume
  millpond destroy -y -r tank/vm1               a volume with its snapshots
  millpond destroy -y -w --wipe zero tank/vm1   the same, and nothing of it is left on the devices

--wipe: see 'millpond pool wipe --help'.")]
pub struct Destroy {
    /// POOL/VOL, POOL/VOL@SNAP, POOL/VOL@FIRST%LAST, POOL/VOL@%
    name: String,
    /// A volume goes with its snapshots
    #[arg(short = 'r', long)]
    recursive: bool,
    /// Clones go as well, and holds do not protect
    #[arg(short = 'R', long)]
    clones: bool,
    /// none, discard or zero: make what it leaves on the devices unreadable; a job does that. `-o wipe=MODE` is the same
    #[arg(short = 'o', long, value_name = "MODE")]
    wipe: Option<String>,
    #[command(flatten)]
    consent: Consent,
    /// Wait until the space is free again, and wiped
    #[arg(short = 'w', long)]
    wait: bool,
    /// Do not wait (the default)
    #[arg(long, conflicts_with = "wait")]
    no_wait: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: Format,
    /// Exact numbers
    #[arg(short = 'p', long)]
    parsable: bool,
}

impl Destroy {
    /// Runs it.
    pub async fn run(self, client: &Client) -> Outcome {
        let doomed: Doomed = self.name.parse()?;
        let wipe = self.wipe.as_deref().map_or(Ok(None), wipe_of)?;
        let request = |dry_run| api::Destroy { name: self.name.clone(), recursive: self.recursive, clones: self.clones, wipe, dry_run };
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
            if wipe.is_some() {
                wait_wipe(client, pool).await?;
            }
        }
        Ok(())
    }

    fn tell(&self, what: &api::Destroyed) -> Outcome {
        if self.format == Format::Json {
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
        let _ = match self.parsable {
            true => writeln!(text, "{frees} {least}{bytes}"),
            false => writeln!(text, "{frees} {least}{} ({bytes} bytes)", Size(bytes)),
        };
        if let Some(wiping) = &what.wiping {
            let _ = writeln!(text, "{}", wiping_line(wiping, what.dry_run));
        }
        write_out(&text)
    }
}

/// The value of `--wipe`, or of `-o`.
fn wipe_of(option: &str) -> Result<Option<api::WipeMode>, Failure> {
    match option.strip_prefix("wipe=").unwrap_or(option) {
        "none" => Ok(None),
        "discard" => Ok(Some(api::WipeMode::Discard)),
        "zero" => Ok(Some(api::WipeMode::Zero)),
        _ => Err(Failure::usage(format!("'{option}' is no way to wipe; give none, discard or zero"))),
    }
}

/// What a wipe does, in words.
pub fn wiping_line(wiping: &api::Wiping, dry_run: bool) -> String {
    let (moved, erased) = (Size(wiping.moved_bytes), Size(wiping.erased_bytes));
    match dry_run {
        true => format!("would wipe about {erased} on each copy, and move {moved} that live beside it"),
        false => format!("wiping about {erased} on each copy, and moving {moved} that live beside it; see 'millpond pool jobs'"),
    }
}
