//! `snapshot`, `rollback`, `clone`, `promote`.

use clap::Args;

use super::consent::refused_for;
use crate::api::{self, CloneSnapshot, CreateSnapshots, Created, RolledBack, Volume};
use crate::client::Client;
use crate::failure::{Failure, Outcome};
use crate::instant::{now, parse_span};
use crate::names::{SnapshotName, VolumeName};
use crate::output::write_out;

/// Take snapshots
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  millpond snapshot tank/vm1@before-upgrade --expire 7d\n  millpond snapshot --group tank/db@nightly tank/log@nightly"
)]
pub struct Snapshot {
    /// POOL/VOL@SNAP, one or more
    #[arg(required = true, value_name = "POOL/VOL@SNAP")]
    names: Vec<String>,
    /// All at one instant
    #[arg(long)]
    group: bool,
    /// Free text
    #[arg(long, default_value = "", hide_default_value = true)]
    description: String,
    /// Remove by itself after this time: 90s, 15m, 24h, 7d
    #[arg(long, value_name = "SPAN")]
    expire: Option<String>,
}

impl Snapshot {
    /// Runs it.
    pub async fn run(self, client: &Client) -> Outcome {
        self.names.iter().try_for_each(|name| name.parse::<SnapshotName>().map(drop))?;
        let span = self.expire.as_deref().map(parse_span).transpose()?;
        let expires = span.map(|span| now().checked_add(span)).transpose();
        let expires = expires.map_err(|_| Failure::usage("--expire is too far away; give a shorter time"))?;
        let request = CreateSnapshots { names: self.names, group: self.group, description: self.description, expires };
        client.post::<_, Created>("/v1/snapshots", &request).await.map(drop)
    }
}

/// Go back to a snapshot; newer snapshots stay, the old head is kept as a snapshot
///
/// Shut the guest down first: a file system that is mounted while its disk changes is destroyed by what its page cache still holds.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond rollback tank/vm1@before-upgrade")]
pub struct Rollback {
    /// POOL/VOL@SNAP
    name: String,
    /// Only say what would happen
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Also while clients are connected
    #[arg(long)]
    force: bool,
    /// Accepted for symmetry with other verbs; nothing is lost, so nothing is asked
    #[arg(short = 'y', long, hide = true)]
    _yes: bool,
}

impl Rollback {
    /// Runs it.
    pub async fn run(self, client: &Client) -> Outcome {
        let name: SnapshotName = self.name.parse()?;
        let request = api::Rollback { dry_run: self.dry_run, force: self.force };
        let done: RolledBack = client.post(&format!("/v1/snapshots/{}/{}/rollback", name.of, name.snapshot), &request).await?;
        let kept = if self.dry_run { "would be kept" } else { "is kept" };
        write_out(&format!("the old head of {} {kept} as {}\n", name.of, done.kept_as))?;
        if self.dry_run && !self.force && !done.connected.is_empty() {
            return write_out(&refused_for(&done.connected));
        }
        Ok(())
    }
}

/// Make a writable volume on a snapshot
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond clone tank/golden@v3 tank/vm7")]
pub struct Clone {
    /// POOL/VOL@SNAP
    name: String,
    /// POOL/NEW, in the same pool
    new: String,
}

impl Clone {
    /// Runs it.
    pub async fn run(self, client: &Client) -> Outcome {
        let name: SnapshotName = self.name.parse()?;
        let new: VolumeName = self.new.parse()?;
        let request = CloneSnapshot { name: new.to_string() };
        client.post::<_, Volume>(&format!("/v1/snapshots/{}/{}/clone", name.of, name.snapshot), &request).await.map(drop)
    }
}

/// Make a clone independent of its origin (not in this version)
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond promote tank/vm7")]
pub struct Promote {
    /// POOL/VOL
    name: String,
}

impl Promote {
    /// Runs it.
    pub async fn run(self, client: &Client) -> Outcome {
        let name: VolumeName = self.name.parse()?;
        client.post(&format!("/v1/volumes/{name}/promote"), &()).await
    }
}
