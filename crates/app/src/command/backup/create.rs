//! `backup create`: what changed since the last backup goes to the target.

use clap::Args;
use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::{Name, SnapshotName, VolumeName};
use millpond_backup::{Purpose, Record};
use millpond_daemon::{Keep, Signals};
use serde::Serialize;

use super::bases;
use super::make::Maker;
use super::prune::prune_by;
use super::target::{Empty, Place};
use crate::command::candidates;
use crate::command::globs::is_pattern;
use crate::command::globs::{Wanted, expand};
use crate::output::{Cell, Column, Listing, LongListing, Shown, print};

/// Back up volumes: what changed since their last backup
///
/// POOL/VOL takes a snapshot backup-TIME and backs that up; it stays until the next backup, which reads only what changed since.
/// Several volumes of a pool are backed up at one instant.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond backup create /mnt/nas/backup tank/vm1
  millpond backup create /mnt/nas/backup tank/vm1@monday tank/vm2@monday
  millpond backup create s3://backups/pond 'tank/*' --keep '1h:2d 1d:30d 1mo:1y' -o endpoint=https://store.example

For an hourly backup, run it by cron or a timer of systemd, with --no-init and -q.
A backup that was interrupted is not listed; the next one goes on from what it stored.")]
pub struct Create {
    #[command(flatten)]
    place: Place,
    /// POOL/VOL or POOL/VOL@SNAP, one or more, or quoted patterns of volumes
    #[arg(required = true, value_name = "NAME", add = candidates::names())]
    names: Vec<String>,
    /// Afterwards delete the backups that the rules do not keep, of these volumes and of snapshots that were taken alike: by this command, or with the same description
    #[arg(long, value_name = "RULES")]
    keep: Option<String>,
    /// Refuse a target that has no backups, such as the directory of a disk that is not mounted
    #[arg(long)]
    no_init: bool,
    /// Read the volume and the backup again afterwards, and compare them
    #[arg(long)]
    verify: bool,
    /// Print no result
    #[arg(short = 'q', long)]
    quiet: bool,
    #[command(flatten)]
    how: LongListing,
}

/// A backup or publication that was made.
#[derive(Serialize)]
pub struct Made {
    pub name: String,
    pub size: u64,
    pub read: u64,
    pub stored: u64,
    pub base: Option<String>,
}

/// Columns of what was made.
pub const MADE: &[Column<Made>] = &[
    Column { name: "name", cell: |row| Cell::Text(row.name.clone()), shown: Shown::Always },
    Column { name: "size", cell: |row| Cell::Bytes(row.size), shown: Shown::Always },
    Column { name: "read", cell: |row| Cell::Bytes(row.read), shown: Shown::Always },
    Column { name: "stored", cell: |row| Cell::Bytes(row.stored), shown: Shown::Always },
    Column { name: "base", cell: |row| Cell::text_or_none(row.base.as_deref()), shown: Shown::Always },
];

impl From<Record> for Made {
    fn from(record: Record) -> Made {
        Made { name: record.name, size: record.size, read: record.read, stored: record.stored, base: record.base }
    }
}

impl Create {
    pub async fn run(self, client: &Client) -> Outcome {
        let keep = self.keep.as_deref().map(str::parse::<Keep>).transpose();
        let keep = keep.map_err(|why| Failure::usage(format!("--keep: {why}")))?;
        let (volumes, snapshots) = self.parse(client).await?;
        let target = self.place.open(Purpose::Backups, if self.no_init { Empty::Refuse } else { Empty::Prepare }).await?;
        let maker = Maker { client, place: &self.place, target: &target, verify: self.verify };
        let mut signals = Signals::catch()?;
        let id = target.head().id.clone();
        let taken = bases::take(client, &volumes, &id, self.place.name()).await?;
        let mut rows = Vec::new();
        let mut failed: Option<Failure> = None;
        for name in snapshots.iter().chain(&taken) {
            let own = taken.contains(name);
            let made = maker.one(&mut signals, name).await;
            let failure = match made {
                Ok((record, failure)) => {
                    rows.push(Made::from(record));
                    if own && failure.is_none() {
                        bases::thin(client, name, &id).await;
                    }
                    failure
                }
                Err(failure) => {
                    if own {
                        bases::destroy(client, &name.to_string()).await;
                    }
                    Some(failure.during(format!("cannot back up '{name}'")))
                }
            };
            // one volume that fails does not keep the others from theirs
            let Some(failure) = failure else { continue };
            match &failed {
                None => failed = Some(failure),
                Some(_) => eprintln!("millpond: {failure}"),
            }
        }
        if !self.quiet && (failed.is_none() || !rows.is_empty()) {
            print(&rows, MADE, &Listing::from(self.how.clone()))?;
        }
        if let Some(failure) = failed {
            return Err(failure);
        }
        let Some(keep) = keep else { return Ok(()) };
        let made = snapshots.into_iter().chain(taken).collect();
        prune_by(&self.place, &target, &mut signals, made, &keep, self.quiet).await
    }

    /// Returns the volumes and the snapshots that are named.
    async fn parse(&self, client: &Client) -> Outcome<(Vec<VolumeName>, Vec<SnapshotName>)> {
        let (mut volumes, mut snapshots) = (Vec::new(), Vec::new());
        for word in &self.names {
            let names =
                if is_pattern(word) { expand(client, std::slice::from_ref(word), Wanted::Volumes).await? } else { vec![word.clone()] };
            for name in names {
                match name.parse()? {
                    Name::Volume(of) if !volumes.contains(&of) => volumes.push(of),
                    Name::Snapshot(name) if !snapshots.contains(&name) => snapshots.push(name),
                    _ => {}
                }
            }
        }
        volumes.sort_by_key(ToString::to_string);
        Ok((volumes, snapshots))
    }
}
