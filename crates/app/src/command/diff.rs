//! `diff`: lists the ranges in which two versions of a volume differ.

use clap::Args;
use millpond_api::DiffExtent;
use millpond_api::client::{Client, quoted};
use millpond_api::failure::Outcome;
use millpond_api::names::{Name, SnapshotName};

use super::candidates;
use crate::output::{Cell, Column, Listing, Shown, print};

/// List the ranges that changed since a snapshot
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond diff tank/vm1@monday tank/vm1@tuesday --format json")]
pub struct Diff {
    /// The older state, POOL/VOL@A
    #[arg(add = candidates::snapshots())]
    older: String,
    /// The newer state, POOL/VOL@B; [default: the present state of the volume]
    #[arg(add = candidates::snapshots())]
    newer: Option<String>,
    #[command(flatten)]
    how: Listing,
}

const EXTENT: &[Column<DiffExtent>] = &[
    Column { name: "offset", cell: |e| Cell::Count(e.offset), shown: Shown::Always },
    Column { name: "length", cell: |e| Cell::Count(e.length), shown: Shown::Always },
    Column { name: "kind", cell: |e| Cell::Text(e.kind.to_string()), shown: Shown::Always },
];

impl Diff {
    pub async fn run(self, client: &Client) -> Outcome {
        let older: SnapshotName = self.older.parse()?;
        let newer: Option<Name> = self.newer.as_deref().map(str::parse).transpose()?;
        let mut path = format!("/v1/diff?older={}", quoted(&older.to_string()));
        if let Some(newer) = newer {
            path += &format!("&newer={}", quoted(&newer.to_string()));
        }
        let extents: Vec<DiffExtent> = client.get(&path).await?;
        print(&extents, EXTENT, &self.how)
    }
}
