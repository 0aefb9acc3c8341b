//! `pool import` and `pool export`: take a pool into service, and out of it.

use std::path::PathBuf;

use clap::Args;
use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::{self, Kind};
use millpond_api::size::Size;
use millpond_api::{Checkpoint, Found, ImportPool, LostRange, PoolExport};

use crate::command::candidates;
use crate::command::columns::{FOUND, GOES_BACK, LOST, missing};
use crate::command::consent::Consent;
use crate::command::exports::path_text;
use crate::output::{Cell, Listing, print, say};

/// Close a pool and release its devices
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond pool export tank
  millpond pool export tank --force

With --force clients are disconnected, and a pool that cannot be closed, because its device hangs or the host below it is full, is stopped without a
clean close. No acknowledged write is lost; the next import replays the log, and takes longer.")]
pub struct Export {
    /// Name of the pool
    #[arg(add = candidates::pools())]
    name: String,
    /// Disconnect the clients of the pool, and stop it without a clean close if it cannot be closed
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
            eprintln!("pool '{}' was not closed cleanly: {why}; no acknowledged write is lost, the next import replays the log", self.name);
        }
        Ok(())
    }
}

/// Describes the loss if special devices are given up.
fn given_up(found: &Found, lost: &[LostRange]) -> String {
    let bytes = lost.iter().map(|range| range.length).sum();
    let devices = missing(found).unwrap_or_else(|| "none".to_owned());
    format!("the special devices permanently ({devices}), and {} of volumes and snapshots that only they held", Size(bytes))
}

/// Describes the loss if the pool goes back to a checkpoint.
fn lost(point: &Checkpoint) -> String {
    let bytes = point.lost_bytes.map_or_else(|| "unknown amount".to_owned(), |bytes| Size(bytes).to_string());
    let seconds = point.lost_millis.div_ceil(1000);
    format!("all writes after checkpoint {} of {} ({bytes}, up to {seconds} s)", point.id, Cell::Time(point.time).show(false))
}

/// Import a pool; without a name, list the pools found
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  millpond pool import -d /srv\n  millpond pool import tank -d /srv\n  millpond pool import tank --to 41 -n\n  millpond pool import tank --rebuild -n\n  millpond pool import tank --force"
)]
pub struct Import {
    /// Name or id of the pool
    #[arg(add = candidates::pools())]
    name: Option<String>,
    /// Directory or device to search [default: previous locations of pools, and all block devices]
    #[arg(short = 'd', long = "dir", value_name = "DIR")]
    search: Vec<PathBuf>,
    /// Write nothing to the devices: exports are read-only, changes are refused
    #[arg(long)]
    readonly: bool,
    /// Import without missing devices, if redundancy allows it; these devices are out of date from then on
    #[arg(long)]
    degraded: bool,
    /// If the newest state is damaged: go back to the newest complete checkpoint, and replay the log after it as far as it is intact
    #[arg(long, conflicts_with = "to", requires = "name")]
    rewind: bool,
    /// Go back to this checkpoint of 'pool checkpoints'; all later writes are lost
    #[arg(long, value_name = "CHECKPOINT", requires = "name")]
    to: Option<u64>,
    /// If all special devices are lost: import the pool without them, permanently; -n lists the data that is lost. If all roots are lost: search
    /// all devices for checkpoints, import the newest complete one, and replay the log after it as far as it is intact
    #[arg(long, conflicts_with_all = ["to", "rewind"], requires = "name")]
    rebuild: bool,
    /// Take the pool from another host that did not export it or still uses it. Only if that host is off or has lost the devices: its guests
    /// lose writes that they did not flush
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
                    say("no pool was found that is not in service; -d DIR searches a directory or device")
                } else {
                    Ok(())
                }
            }
        }
    }
}
