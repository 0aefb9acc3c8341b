//! `rename`: renames a volume or a snapshot.

use clap::Args;
use millpond_api::client::Client;
use millpond_api::failure::Outcome;
use millpond_api::names::{Name, SnapshotName};

use super::candidates;
use crate::output::say;

/// Rename a volume or snapshot
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond rename tank/vm1 tank/web1\n  millpond rename tank/web1@a @b")]
pub struct Rename {
    /// POOL/VOL or POOL/VOL@SNAP
    #[arg(add = candidates::names())]
    old: String,
    /// New name; for a snapshot, @SNAP is enough
    #[arg(add = candidates::new_volumes())]
    new: String,
}

impl Rename {
    pub async fn run(self, client: &Client) -> Outcome {
        let old: Name = self.old.parse()?;
        let new: Name = match (&old, self.new.strip_prefix('@')) {
            (Name::Snapshot(SnapshotName { of, .. }), Some(snapshot)) => format!("{of}@{snapshot}").parse()?,
            _ => self.new.parse()?,
        };
        let path = match &old {
            Name::Volume(name) => format!("/v1/volumes/{name}/rename"),
            Name::Snapshot(name) => format!("/v1/snapshots/{}/{}/rename", name.of, name.snapshot),
        };
        client.post::<_, ()>(&path, &millpond_api::Rename { name: new.to_string(), ..millpond_api::Rename::default() }).await?;
        say(&format!("{old} is {new} now"))
    }
}
