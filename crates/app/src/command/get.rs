//! `show`, `get` and `set`: a volume or snapshot and its properties.

use std::collections::BTreeSet;
use std::iter;

use clap::Args;
use jiff::Timestamp;
use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::{Name, VolumeName};
use millpond_api::{Export, LIMITS, SetProperties, Snapshot, SnapshotHold, Volume};
use serde::Serialize;
use serde_json::Value;

use millpond_daemon::{Lines, client_lines};

use super::candidates;
use super::columns::{SNAPSHOT, VOLUME};
use super::create::{assign, settable};
use super::globs::{Wanted, expand};
use super::map;
use super::status::incomplete;
use crate::output::{Cell, Column, Format, Listing, Shown, print, print_pairs, say, write_out};

/// Show one volume or snapshot, and the commands to use it
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  millpond show tank/vm1\n  millpond show -m tank/vm1\n  millpond show -mv tank/vm1@monday --format json"
)]
pub struct Show {
    /// POOL/VOL or POOL/VOL@SNAP
    #[arg(add = candidates::names())]
    name: String,
    /// Show how much of its data is on each device
    #[arg(short = 'm', long)]
    map: bool,
    /// With -m: list each segment
    #[arg(short = 'v', long, requires = "map")]
    verbose: bool,
    #[command(flatten)]
    how: Listing,
}

/// A volume with its exports.
#[derive(Serialize)]
struct WithExports {
    #[serde(flatten)]
    volume: Volume,
    exports: Vec<Export>,
    lines: Option<Lines>,
}

impl Show {
    pub async fn run(self, client: &Client) -> Outcome {
        let name: Name = self.name.parse()?;
        if self.map {
            return map::show(client, &name, self.verbose, &self.how).await;
        }
        match name {
            Name::Snapshot(name) => {
                let snapshot: Snapshot = client.get(&format!("/v1/snapshots/{}/{}", name.of, name.snapshot)).await?;
                print_pairs(&snapshot, &everywhere(SNAPSHOT), &self.how)?;
                let for_people = self.how.format == Format::Table && self.how.columns.is_empty() && !self.how.no_header;
                if for_people { write_out(&holds(&snapshot)) } else { Ok(()) }
            }
            Name::Volume(name) => self.volume(client, &name).await,
        }
    }

    async fn volume(&self, client: &Client, name: &VolumeName) -> Outcome {
        let volume: Volume = client.get(&format!("/v1/volumes/{name}")).await?;
        let mut exports: Vec<Export> = client.get("/v1/exports").await?;
        exports.retain(|export| export.name == volume.name);
        let lines = exports.first().and_then(|export| client_lines(export, &volume.sector));
        if self.how.format == Format::Json {
            if !self.how.columns.is_empty() {
                return print_pairs(&volume, &everywhere(VOLUME), &self.how);
            }
            let shown = WithExports { volume, exports, lines };
            let text = serde_json::to_string_pretty(&shown).map_err(|e| Failure::failed(format!("cannot encode the answer: {e}")))?;
            return write_out(&(text + "\n"));
        }
        let mut columns = everywhere(VOLUME);
        if self.how.columns.is_empty() {
            columns.retain(|column| !LIMITS.contains(&column.name) || (column.cell)(&volume) != Cell::None);
        }
        print_pairs(&volume, &columns, &self.how)?;
        if !self.how.columns.is_empty() || self.how.no_header {
            return Ok(());
        }
        let mut text = volume.receiving.as_ref().map(incomplete).unwrap_or_default();
        for export in &exports {
            text += &format!("export {}  {}\n", export.id, export.uris.join(" "));
        }
        match lines {
            Some(lines) => text += &format!("\n{}", lines.text()),
            None if !exports.is_empty() || volume.receiving.is_some() => {}
            None => text += &format!("\nnot exported; to use it: millpond export nbd {name}\n"),
        }
        write_out(&text)
    }
}

/// Lists the holds of a snapshot, one per line.
fn holds(snapshot: &Snapshot) -> String {
    let time = |time: Option<Timestamp>| time.map_or_else(|| "-".to_owned(), |time| Cell::Time(time).show(false));
    let line = |hold: &SnapshotHold| {
        let tag = hold.tag.as_deref().unwrap_or("-");
        let locked = if hold.locked { "  locked" } else { "" };
        format!("hold {tag}  since {}  until {}{locked}\n", time(hold.since), time(hold.until))
    };
    snapshot.hold_list.iter().map(line).collect()
}

/// Makes all columns visible, including those that lists show only on request.
fn everywhere<T>(columns: &[Column<T>]) -> Vec<Column<T>> {
    columns.iter().map(|column| Column { name: column.name, cell: column.cell, shown: Shown::Always }).collect()
}

/// A property of a row.
#[derive(Serialize)]
pub struct Property {
    name: String,
    property: String,
    value: Value,
    #[serde(skip)]
    cell: Cell,
}

const PROPERTY: &[Column<Property>] = &[
    Column { name: "name", cell: |p| Cell::Text(p.name.clone()), shown: Shown::Always },
    Column { name: "property", cell: |p| Cell::Text(p.property.clone()), shown: Shown::Always },
    Column { name: "value", cell: |p| p.cell.clone(), shown: Shown::Always },
];

/// Prints one property of `row`, or `all` of them.
pub fn print_property<T: Serialize>(row: &T, name: &str, property: &str, columns: &[Column<T>], how: &Listing) -> Outcome {
    let values = serde_json::to_value(row).map_err(|e| Failure::failed(format!("cannot encode the answer: {e}")))?;
    // scripts always get every property
    let for_people = how.format == Format::Table && !how.no_header;
    let is_unset = |column: &Column<T>| for_people && LIMITS.contains(&column.name) && (column.cell)(row) == Cell::None;
    let asked: Vec<&str> = property.split(',').collect();
    let known = |name: &str| name == "all" || columns.iter().any(|column| column.name == name);
    if let Some(unknown) = asked.iter().find(|name| !known(name)) {
        let known: Vec<&str> = columns.iter().map(|column| column.name).collect();
        return Err(Failure::usage(format!("no property '{unknown}'; choose from all, {}", known.join(", "))));
    }
    let all = asked.contains(&"all");
    let wanted = |column: &&Column<T>| asked.contains(&column.name) || (all && column.name != "name" && !is_unset(column));
    let entry = |column: &Column<T>| Property {
        name: name.to_owned(),
        property: column.name.to_owned(),
        value: values.get(column.name).cloned().unwrap_or(Value::Null),
        cell: (column.cell)(row),
    };
    let rows: Vec<Property> = columns.iter().filter(wanted).map(entry).collect();
    print(&rows, PROPERTY, how)
}

/// Returns the names of all properties of volumes and snapshots.
fn readable() -> Vec<&'static str> {
    let of_snapshots = SNAPSHOT.iter().map(|column| column.name);
    let mut names: Vec<&str> = iter::once("all").chain(VOLUME.iter().map(|column| column.name)).chain(of_snapshots).collect();
    let mut seen = BTreeSet::new();
    names.retain(|name| seen.insert(*name));
    names
}

/// Print a property of a volume or snapshot
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond get -H -o value cache tank/vm1\n  millpond get all tank/vm1")]
pub struct Get {
    /// Property, or all
    #[arg(value_name = "PROP|all", add = candidates::words(readable()))]
    property: String,
    /// POOL/VOL or POOL/VOL@SNAP
    #[arg(add = candidates::names())]
    name: String,
    #[command(flatten)]
    how: Listing,
}

impl Get {
    pub async fn run(self, client: &Client) -> Outcome {
        match self.name.parse()? {
            Name::Snapshot(name) => {
                let snapshot: Snapshot = client.get(&format!("/v1/snapshots/{}/{}", name.of, name.snapshot)).await?;
                print_property(&snapshot, &snapshot.name, &self.property, SNAPSHOT, &self.how)
            }
            Name::Volume(name) => {
                let volume: Volume = client.get(&format!("/v1/volumes/{name}")).await?;
                print_property(&volume, &volume.name, &self.property, VOLUME, &self.how)
            }
        }
    }
}

/// Change properties of a volume: cache, compression, readonly, read_cache, reservation, special_small_blocks, limits
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond set compression=zstd tank/vm1
  millpond set iops=1000 bps_wr=20M tank/vm1
  millpond set iops_max=3000 iops_max_length=10 tank/vm1     faster for 10 seconds
  millpond set iops=none tank/vm1
  millpond set cache=none 'tank/vm*'
  millpond set readonly=on tank/vm1 --force                  although a client is connected

Limits are iops, iops_rd, iops_wr (requests per second), bps, bps_rd, bps_wr (bytes per second); all that are set apply. With _max: rate of a
burst, with _max_length: its length in seconds [default: 1]. Changes take effect at once.")]
pub struct Set {
    /// PROP=VAL, followed by volumes or quoted patterns
    #[arg(value_name = "PROP=VAL NAME", num_args = 1.., required = true, add = candidates::settings_of_volumes(settable()))]
    words: Vec<String>,
    /// With readonly=on: also while a client with write access is connected
    #[arg(long)]
    force: bool,
}

impl Set {
    pub async fn run(self, client: &Client) -> Outcome {
        // names contain no '='; at least the first word is taken as an assignment, so that a
        // missing '=' is reported there
        let assignments = self.words.iter().take_while(|word| word.contains('=')).count().max(1);
        let (assignments, names) = self.words.split_at_checked(assignments).unwrap_or_default();
        let mut properties = SetProperties { force: self.force, ..SetProperties::default() };
        assignments.iter().try_for_each(|word| assign(word, &mut properties))?;
        if names.is_empty() {
            return Err(Failure::usage("no volume is named; give PROP=VAL and then POOL/VOL"));
        }
        let names = expand(client, names, Wanted::Volumes).await?;
        if names.len() > 1 {
            for name in &names {
                client.get::<Volume>(&format!("/v1/volumes/{name}")).await?;
            }
        }
        for name in names {
            client.patch::<_, Volume>(&format!("/v1/volumes/{name}"), &properties).await?;
            say(&format!("{name}: {}", assignments.join(" ")))?;
        }
        Ok(())
    }
}
