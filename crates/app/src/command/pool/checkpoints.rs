//! `pool checkpoints`: lists restore points.

use std::path::PathBuf;

use clap::Args;
use millpond_api::client::Client;
use millpond_api::failure::Outcome;
use millpond_api::names::{self, Kind};
use millpond_api::size::Size;
use millpond_api::{Checkpoint, ListCheckpoints};

use crate::command::candidates;
use crate::command::columns::CHECKPOINT;
use crate::command::exports::path_text;
use crate::output::{Format, Listing, print, write_out};

/// List the restore points of a pool, whether each is complete, and the writes that a rewind to it would lose
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond pool checkpoints tank\n  millpond pool checkpoints tank -d /srv")]
pub struct Checkpoints {
    /// Name of the pool
    #[arg(add = candidates::pools())]
    name: String,
    /// Directory or device to search for a pool that is not in service
    #[arg(short = 'd', long = "dir", value_name = "DIR")]
    search: Vec<PathBuf>,
    #[command(flatten)]
    how: Listing,
}

impl Checkpoints {
    pub async fn run(self, client: &Client) -> Outcome {
        names::check(Kind::Pool, &self.name)?;
        let search = self.search.iter().map(|path| path_text(path)).collect::<Outcome<Vec<_>>>()?;
        let points: Vec<Checkpoint> = client.post("/v1/checkpoints", &ListCheckpoints { name: self.name, search }).await?;
        print(&points, CHECKPOINT, &self.how)?;
        let for_people = self.how.format == Format::Table && self.how.columns.is_empty() && !self.how.no_header;
        if for_people { write_out(&rewind(&points)) } else { Ok(()) }
    }
}

/// Describes how much `--rewind` loses, if replay of the log after the checkpoint reduces the loss.
fn rewind(points: &[Checkpoint]) -> String {
    let start = points.iter().find_map(|point| Some((point, point.lost_by_rewind?)));
    match start.filter(|(point, lost)| point.lost_bytes != Some(*lost)) {
        Some((point, lost)) => format!(
            "\nLOST: writes that 'pool import --to ID' loses. 'pool import --rewind' goes back to {}, replays the log after it, and loses {}.\n",
            point.id,
            Size(lost)
        ),
        None => String::new(),
    }
}
