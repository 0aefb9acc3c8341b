//! `list`: volumes, snapshots, or both.

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use serde::Serialize;

use super::columns::{SNAPSHOT, VOLUME};
use crate::api::{Snapshot, Volume};
use crate::client::{Client, quoted};
use crate::failure::Outcome;
use crate::names::{Name, Scope};
use crate::output::{Cell, Column, Listing, Shown, print};

/// What to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Type {
    Volume,
    Snapshot,
    All,
}

/// List volumes and snapshots
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond list -t snapshot tank/vm1 -o name,unique_bytes --format json")]
pub struct List {
    /// Only this pool, volume or snapshot
    #[arg(value_name = "POOL[/VOL]")]
    scope: Option<String>,
    /// What to list; without it volumes, or the snapshot named
    #[arg(short = 't', long = "type", value_enum)]
    kind: Option<Type>,
    #[command(flatten)]
    how: Listing,
}

/// A row of `-t all`.
#[derive(Serialize)]
struct Row {
    name: String,
    r#type: &'static str,
    size: u64,
    referenced_bytes: u64,
    unique_bytes: u64,
    created: Timestamp,
}

const ROW: &[Column<Row>] = &[
    Column { name: "name", cell: |r| Cell::Text(r.name.clone()), shown: Shown::Always },
    Column { name: "type", cell: |r| Cell::Text(r.r#type.to_owned()), shown: Shown::Always },
    Column { name: "size", cell: |r| Cell::Bytes(r.size), shown: Shown::Always },
    Column { name: "referenced_bytes", cell: |r| Cell::Bytes(r.referenced_bytes), shown: Shown::Always },
    Column { name: "unique_bytes", cell: |r| Cell::Bytes(r.unique_bytes), shown: Shown::Always },
    Column { name: "created", cell: |r| Cell::Time(r.created), shown: Shown::Always },
];

impl List {
    /// Runs it.
    pub async fn run(self, client: &Client) -> Outcome {
        let scope: Option<Scope> = self.scope.as_deref().map(str::parse).transpose()?;
        let default = if matches!(scope, Some(Scope::Name(Name::Snapshot(_)))) { Type::Snapshot } else { Type::Volume };
        match self.kind.unwrap_or(default) {
            Type::Volume => print(&volumes(client, scope.as_ref()).await?, VOLUME, &self.how),
            Type::Snapshot => print(&snapshots(client, scope.as_ref()).await?, SNAPSHOT, &self.how),
            Type::All => print(&all(client, scope.as_ref()).await?, ROW, &self.how),
        }
    }
}

/// The volumes in a scope; that of a snapshot is its volume.
async fn volumes(client: &Client, scope: Option<&Scope>) -> Outcome<Vec<Volume>> {
    match scope {
        None => client.get("/v1/volumes").await,
        Some(Scope::Pool(pool)) => client.get(&format!("/v1/volumes?pool={}", quoted(pool))).await,
        Some(Scope::Name(Name::Volume(name))) => Ok(vec![client.get(&format!("/v1/volumes/{name}")).await?]),
        Some(Scope::Name(Name::Snapshot(name))) => Ok(vec![client.get(&format!("/v1/volumes/{}", name.of)).await?]),
    }
}

async fn snapshots(client: &Client, scope: Option<&Scope>) -> Outcome<Vec<Snapshot>> {
    match scope {
        None => client.get("/v1/snapshots").await,
        Some(Scope::Pool(pool)) => client.get(&format!("/v1/snapshots?pool={}", quoted(pool))).await,
        Some(Scope::Name(Name::Volume(name))) => {
            client.get(&format!("/v1/snapshots?pool={}&volume={}", quoted(&name.pool), quoted(&name.volume))).await
        }
        Some(Scope::Name(Name::Snapshot(name))) => Ok(vec![client.get(&format!("/v1/snapshots/{}/{}", name.of, name.snapshot)).await?]),
    }
}

/// Volumes, each followed by its snapshots.
async fn all(client: &Client, scope: Option<&Scope>) -> Outcome<Vec<Row>> {
    let volumes = volumes(client, scope).await?;
    let snapshots = snapshots(client, scope).await?;
    let mut rows = Vec::with_capacity(volumes.len() + snapshots.len());
    for volume in volumes {
        let of_volume = snapshots.iter().filter(|snapshot| snapshot.name.split('@').next() == Some(&volume.name));
        let children: Vec<Row> = of_volume
            .map(|snapshot| Row {
                name: snapshot.name.clone(),
                r#type: "snapshot",
                size: snapshot.size,
                referenced_bytes: snapshot.referenced_bytes,
                unique_bytes: snapshot.unique_bytes,
                created: snapshot.created,
            })
            .collect();
        rows.push(Row {
            name: volume.name,
            r#type: "volume",
            size: volume.size,
            referenced_bytes: volume.referenced_bytes,
            unique_bytes: volume.unique_bytes,
            created: volume.created,
        });
        rows.extend(children);
    }
    Ok(rows)
}
