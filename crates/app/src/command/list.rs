//! `list`: lists volumes, snapshots, or both.

use std::collections::BTreeSet;

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use millpond_api::client::{Client, quoted};
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::{Name, Scope};
use millpond_api::{Pool, Snapshot, Volume};
use serde::Serialize;

use super::candidates;
use super::columns::{SNAPSHOT, VOLUME};
use super::globs::{Pattern, is_pattern};
use crate::output::{Cell, Column, Listing, Shown, print, sort};

/// Kinds of objects to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Type {
    #[value(aliases = ["volumes", "vol", "vols", "filesystem"])]
    Volume,
    #[value(aliases = ["snapshots", "snap", "snaps"])]
    Snapshot,
    All,
}

/// List volumes and snapshots
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond list -t snapshot tank/vm1 -o name,unique_bytes --format json
  millpond list 'tank/vm*' -S referenced_bytes
  millpond list 'tank/vm1@auto-*' -s created")]
pub struct List {
    /// Only these pools, volumes or snapshots, or quoted patterns
    #[arg(value_name = "POOL[/VOL]", add = candidates::scopes())]
    scopes: Vec<String>,
    /// Kind of objects to list [default: volumes, or the named snapshots]
    #[arg(short = 't', long = "type", value_enum)]
    kind: Option<Type>,
    /// Sort by this column, ascending
    #[arg(short = 's', long, value_name = "COLUMN")]
    sort: Option<String>,
    /// Sort by this column, descending
    #[arg(short = 'S', long, value_name = "COLUMN", conflicts_with = "sort")]
    sort_down: Option<String>,
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

/// An argument that narrows the list.
enum Narrow {
    To(Scope),
    Matching(Pattern),
}

impl Narrow {
    fn parse(word: &str) -> Outcome<Narrow> {
        Ok(if is_pattern(word) { Narrow::Matching(Pattern::parse(word)?) } else { Narrow::To(word.parse()?) })
    }

    fn is_of_snapshots(&self) -> bool {
        match self {
            Narrow::To(scope) => matches!(scope, Scope::Name(Name::Snapshot(_))),
            Narrow::Matching(pattern) => pattern.is_of_snapshots(),
        }
    }
}

impl List {
    pub async fn run(self, client: &Client) -> Outcome {
        let scopes: Vec<Narrow> = self.scopes.iter().map(|word| Narrow::parse(word)).collect::<Outcome<_>>()?;
        let of_snapshots = !scopes.is_empty() && scopes.iter().all(Narrow::is_of_snapshots);
        let default = if of_snapshots { Type::Snapshot } else { Type::Volume };
        match self.kind.unwrap_or(default) {
            Type::Volume => self.show(volumes(client, &scopes).await?, VOLUME),
            Type::Snapshot => self.show(snapshots(client, &scopes).await?, SNAPSHOT),
            Type::All => self.show(all(client, &scopes).await?, ROW),
        }?;
        if scopes.is_empty() { name_silent_pools(client).await } else { Ok(()) }
    }

    fn show<T: Serialize>(&self, mut rows: Vec<T>, columns: &[Column<T>]) -> Outcome {
        if let Some(by) = self.sort.as_ref().or(self.sort_down.as_ref()) {
            sort(&mut rows, columns, by, self.sort_down.is_some())?;
        }
        print(&rows, columns, &self.how)
    }
}

/// Fails if a pool does not answer, because a list of all pools then lacks its volumes and
/// snapshots.
async fn name_silent_pools(client: &Client) -> Outcome {
    let pools: Vec<Pool> = client.get("/v1/pools").await?;
    let silent: Vec<String> = pools.into_iter().filter(|pool| pool.silent_since.is_some()).map(|pool| format!("'{}'", pool.name)).collect();
    if silent.is_empty() {
        return Ok(());
    }
    let (it, does) = if silent.len() == 1 { ("pool", "does") } else { ("pools", "do") };
    Err(Failure::failed(format!("{it} {} {does} not answer: the list is without them; see 'millpond status'", silent.join(", "))))
}

/// Lists the volumes in the scopes, each once. A snapshot as scope stands for its volume.
async fn volumes(client: &Client, scopes: &[Narrow]) -> Outcome<Vec<Volume>> {
    if scopes.is_empty() {
        return client.get("/v1/volumes").await;
    }
    let mut all: Vec<Volume> = Vec::new();
    for scope in scopes {
        let found: Vec<Volume> = match scope {
            Narrow::Matching(pattern) => pattern.volumes(client).await?,
            Narrow::To(Scope::Pool(pool)) => client.get(&format!("/v1/volumes?pool={}", quoted(pool))).await?,
            Narrow::To(Scope::Name(Name::Volume(name))) => vec![client.get(&format!("/v1/volumes/{name}")).await?],
            Narrow::To(Scope::Name(Name::Snapshot(name))) => vec![client.get(&format!("/v1/volumes/{}", name.of)).await?],
        };
        all.extend(found);
    }
    Ok(once(all, |volume| &volume.name))
}

async fn snapshots(client: &Client, scopes: &[Narrow]) -> Outcome<Vec<Snapshot>> {
    if scopes.is_empty() {
        return client.get("/v1/snapshots").await;
    }
    let mut all: Vec<Snapshot> = Vec::new();
    for scope in scopes {
        let found: Vec<Snapshot> = match scope {
            Narrow::Matching(pattern) => pattern.snapshots(client).await?,
            Narrow::To(Scope::Pool(pool)) => client.get(&format!("/v1/snapshots?pool={}", quoted(pool))).await?,
            Narrow::To(Scope::Name(Name::Volume(name))) => {
                client.get(&format!("/v1/snapshots?pool={}&volume={}", quoted(&name.pool), quoted(&name.volume))).await?
            }
            Narrow::To(Scope::Name(Name::Snapshot(name))) => {
                vec![client.get(&format!("/v1/snapshots/{}/{}", name.of, name.snapshot)).await?]
            }
        };
        all.extend(found);
    }
    Ok(once(all, |snapshot| &snapshot.name))
}

/// Removes rows that several scopes have in common.
fn once<T>(all: Vec<T>, name: impl Fn(&T) -> &String) -> Vec<T> {
    let mut seen = BTreeSet::new();
    all.into_iter().filter(|row| seen.insert(name(row).clone())).collect()
}

/// Lists volumes, each followed by its snapshots.
async fn all(client: &Client, scopes: &[Narrow]) -> Outcome<Vec<Row>> {
    let volumes = volumes(client, scopes).await?;
    let snapshots = snapshots(client, scopes).await?;
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
