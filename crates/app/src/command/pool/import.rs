//! `pool import` and `pool export`: take a pool into service, and out of it.

use std::path::PathBuf;

use clap::Args;

use crate::api::{Checkpoint, Found, ImportPool, LostRange, PoolExport};
use crate::client::Client;
use crate::command::columns::{FOUND, GOES_BACK, LOST, missing};
use crate::command::consent::Consent;
use crate::command::exports::path_text;
use crate::failure::{Failure, Outcome};
use crate::names::{self, Kind};
use crate::output::{Cell, Listing, print, say};
use crate::size::Size;

/// Close a pool and let its devices go
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond pool export tank
  millpond pool export tank --force

With --force clients are disconnected, and a pool that cannot be closed is given up: its device hangs, or the host below it is full. Nothing that was
acknowledged is lost; the next import replays the log, and takes longer for it.")]
pub struct Export {
    /// Name of the pool
    name: String,
    /// Disconnect its clients, and give it up when it cannot be closed
    #[arg(short, long)]
    force: bool,
}

impl Export {
    pub async fn run(self, client: &Client) -> Outcome {
        names::check(Kind::Pool, &self.name)?;
        let exported: PoolExport = client.post(&format!("/v1/pools/{}/export?force={}", self.name, self.force), &()).await?;
        for peer in &exported.disconnected {
            eprintln!("disconnected {peer}");
        }
        let why = exported.reason.unwrap_or_default();
        if exported.in_use {
            return Err(Failure::failed(format!("pool '{}' is out of service, but {why}", self.name)));
        }
        if !exported.clean {
            eprintln!("pool '{}' was not closed cleanly: {why}; nothing acknowledged is lost, the next import replays the log", self.name);
        }
        Ok(())
    }
}

/// Describes the loss if special devices are given up.
fn given_up(found: &Found, lost: &[LostRange]) -> String {
    let bytes = lost.iter().map(|range| range.length).sum();
    let devices = missing(found).unwrap_or_else(|| "none".to_owned());
    format!("special devices for good ({devices}), and {} of volumes and snapshots that were there alone", Size(bytes))
}

/// Describes the loss if the pool goes back to a checkpoint.
fn lost(point: &Checkpoint) -> String {
    let bytes = point.lost_bytes.map_or_else(|| "nobody knows how much".to_owned(), |bytes| Size(bytes).to_string());
    let seconds = point.lost_millis.div_ceil(1000);
    format!("what came after checkpoint {} of {} ({bytes}, up to {seconds} s)", point.id, Cell::Time(point.time).show(false))
}

/// Take a pool into service; without a name, list the pools found
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  millpond pool import -d /srv\n  millpond pool import tank -d /srv\n  millpond pool import tank --to 41 -n\n  millpond pool import tank --rebuild -n\n  millpond pool import tank --force"
)]
pub struct Import {
    /// Name or id of the pool
    name: Option<String>,
    /// Directory, or device, to search; without it, where pools were before and the block devices
    #[arg(short = 'd', long = "dir", value_name = "DIR")]
    search: Vec<PathBuf>,
    /// Write nothing to its devices: guests read, changes are refused
    #[arg(long)]
    readonly: bool,
    /// Import it although devices are missing that it can do without; they are out of date from then on
    #[arg(long)]
    degraded: bool,
    /// When its newest state is damaged: go back to the newest checkpoint that is whole, and as far as the log after it is sound
    #[arg(long, conflicts_with = "to", requires = "name")]
    rewind: bool,
    /// Go back to this one of 'pool checkpoints'; everything later is lost
    #[arg(long, value_name = "CHECKPOINT", requires = "name")]
    to: Option<u64>,
    /// When special devices are gone: do without them for good; what was there alone is lost, and -n names it. When every root is gone: look for
    /// checkpoints on all of the devices, and go to the newest that is whole, and as far as its log is sound
    #[arg(long, conflicts_with_all = ["to", "rewind"], requires = "name")]
    rebuild: bool,
    /// Take it from another host that did not export it, or has it in use: only when that host is off, or has lost the devices. Its guests lose
    /// what they did not flush
    #[arg(short, long, requires = "name")]
    force: bool,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    how: Listing,
}

impl Import {
    pub async fn run(self, client: &Client) -> Outcome {
        if let Some(name) = &self.name {
            names::check(Kind::Pool, name)?;
        }
        let search = self.search.iter().map(|path| path_text(path)).collect::<Outcome<Vec<_>>>()?;
        let quiet = self.name.is_some() && !self.consent.dry_run;
        let Import { degraded, readonly, rewind, to, rebuild, force, .. } = self;
        let back = rewind || rebuild || to.is_some();
        let request = ImportPool { name: self.name, search, degraded, readonly, rewind, to, rebuild, force, dry_run: self.consent.dry_run };
        if back && quiet && !readonly {
            let planned: Vec<Found> = client.post("/v1/import", &ImportPool { dry_run: true, ..request.clone() }).await?;
            if let Some((found, lost)) = planned.first().and_then(|found| Some((found, found.lost.as_ref()?))) {
                self.consent.ask("rebuild", &given_up(found, lost))?;
            }
            let point = planned.iter().find_map(|found| found.checkpoint.as_ref());
            // a rewind that replays the whole log loses nothing, so no confirmation is needed
            if let Some(point) = point.filter(|point| to.is_some() || point.lost_bytes != Some(0)) {
                self.consent.ask("go back", &lost(point))?;
            }
        }
        let found: Vec<Found> = client.post("/v1/import", &request).await?;
        // the list goes to stdout, warnings to stderr
        found.iter().filter_map(|found| found.warning.as_ref()).for_each(|warning| eprintln!("warning: {warning}"));
        if let Some((first, lost)) = found.first().and_then(|found| Some((found, found.lost.as_ref()?))) {
            // the list of losses goes to stdout, its meaning to stderr
            eprintln!("{}", given_up(first, lost));
            return if quiet { Ok(()) } else { print(lost, LOST, &self.how) };
        }
        match (quiet, back) {
            (true, _) => Ok(()),
            (false, true) => print(&found, GOES_BACK, &self.how),
            (false, false) => {
                print(&found, FOUND, &self.how)?;
                if found.is_empty() {
                    say("no pool is found that is not in service; -d DIR searches a directory, or a device")
                } else {
                    Ok(())
                }
            }
        }
    }
}
