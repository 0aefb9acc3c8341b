//! `pool import` and `pool export`.

use std::path::PathBuf;

use clap::Args;

use crate::api::{Found, ImportPool};
use crate::client::Client;
use crate::command::columns::FOUND;
use crate::command::exports::path_text;
use crate::failure::{Failure, Outcome};
use crate::names::{self, Kind};
use crate::output::{Listing, print};

/// Close a pool and let its devices go
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond pool export tank")]
pub struct Export {
    /// Name of the pool
    name: String,
}

impl Export {
    /// Runs it.
    pub async fn run(self, client: &Client) -> Outcome {
        names::check(Kind::Pool, &self.name)?;
        client.post(&format!("/v1/pools/{}/export", self.name), &()).await
    }
}

/// Take a pool into service; without a name, list the pools found
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond pool import -d /srv\n  millpond pool import tank -d /srv")]
pub struct Import {
    /// Name or id of the pool
    name: Option<String>,
    /// Directory, or device, to search; without it, where pools were before and the block devices
    #[arg(short = 'd', long = "dir", value_name = "DIR")]
    search: Vec<PathBuf>,
    /// Only say what would be imported
    #[arg(short = 'n', long)]
    dry_run: bool,
    #[arg(long, hide = true)]
    readonly: bool,
    /// Import it although devices are missing that it can do without; they are out of date from then on
    #[arg(long)]
    degraded: bool,
    #[arg(long, hide = true)]
    rewind: bool,
    #[arg(long, hide = true, value_name = "CHECKPOINT")]
    to: Option<String>,
    #[arg(long, hide = true)]
    rebuild: bool,
    #[command(flatten)]
    how: Listing,
}

impl Import {
    /// Runs it.
    pub async fn run(self, client: &Client) -> Outcome {
        let later = [(self.readonly, "--readonly"), (self.rewind, "--rewind"), (self.to.is_some(), "--to"), (self.rebuild, "--rebuild")];
        if let Some((_, option)) = later.iter().find(|(given, _)| *given) {
            return Err(Failure::later(&format!("pool import {option}")));
        }
        if let Some(name) = &self.name {
            names::check(Kind::Pool, name)?;
        }
        let search = self.search.iter().map(|path| path_text(path)).collect::<Outcome<Vec<_>>>()?;
        let quiet = self.name.is_some() && !self.dry_run;
        let request = ImportPool { name: self.name, search, degraded: self.degraded, dry_run: self.dry_run };
        let found: Vec<Found> = client.post("/v1/import", &request).await?;
        if quiet { Ok(()) } else { print(&found, FOUND, &self.how) }
    }
}
