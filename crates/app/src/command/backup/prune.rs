//! `backup prune`: deletes backups, and the data that no other one has.

use std::sync::Arc;

use clap::Args;
use jiff::Timestamp;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::SnapshotName;
use millpond_api::size::Size;
use millpond_backup::{BackupError, Purpose, Record, Target, prune};
use millpond_daemon::{Keep, Signals};
use millpond_images::copy::CopyProgress;
use serde::Serialize;

use super::bases;
use super::target::{Empty, Place, blocking, failure, named};
use crate::command::consent::Consent;
use crate::command::image::{Total, interruptible};
use crate::output::{Cell, Column, Format, Listing, LongListing, Shown, print};

/// Delete backups, and the data that no other backup has
///
/// With --keep, rules choose the backups of each volume that stay, as those of a policy do for snapshots; the newest one always stays.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond backup prune /mnt/nas/backup --keep '1h:2d 1d:30d 1mo:1y' -n
  millpond backup prune /mnt/nas/backup --keep '1h:2d 1d:30d 1mo:1y'
  millpond backup prune /mnt/nas/backup tank/vm1@monday
  millpond backup prune /mnt/nas/backup                 only what interrupted commands left")]
pub struct Prune {
    #[command(flatten)]
    place: Place,
    /// POOL/VOL@SNAP, or with --keep also POOL/VOL, or quoted patterns
    #[arg(value_name = "words")]
    words: Vec<String>,
    /// Rules, for example '1h:2d 1d:30d 1mo:1y': keeps the first backup of each hour of two days, and so on
    #[arg(long, value_name = "RULES")]
    keep: Option<String>,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    how: LongListing,
}

/// A backup that is deleted.
#[derive(Serialize)]
struct Row {
    name: String,
    created: Option<Timestamp>,
}

const ROWS: &[Column<Row>] = &[
    Column { name: "name", cell: |row| Cell::Text(row.name.clone()), shown: Shown::Always },
    Column { name: "created", cell: |row| row.created.map_or(Cell::None, Cell::Time), shown: Shown::Always },
];

impl Prune {
    pub async fn run(self) -> Outcome {
        let keep = self.keep.as_deref().map(str::parse::<Keep>).transpose();
        let keep = keep.map_err(|why| Failure::usage(format!("--keep: {why}")))?;
        if keep.is_none() && self.words.iter().any(|word| !word.contains('@')) {
            return Err(Failure::usage("give POOL/VOL@SNAP to delete it, or --keep with rules"));
        }
        let target = self.place.open(Purpose::Backups, Empty::Refuse).await?;
        let chosen = match &keep {
            None if self.words.is_empty() => Vec::new(),
            _ => named(&self.place, &target, &self.words).await?,
        };
        let rows = blocking(&self.place, &target, move |target| chosen_rows(target, &chosen, keep.as_ref())).await?;
        let names: Vec<String> = rows.iter().map(|row| row.name.clone()).collect();
        // rules are given once, and applied by timers
        if self.keep.is_none() && !names.is_empty() && !self.consent.dry_run {
            self.consent.ask_for_all("delete backups", &names)?;
        }
        let how = Listing::from(self.how);
        if !rows.is_empty() || how.format == Format::Json {
            print(&rows, ROWS, &how)?;
        }
        let mut signals = Signals::catch()?;
        delete(&self.place, &target, &mut signals, &rows, (self.consent.dry_run, how.format == Format::Json)).await
    }
}

/// Deletes the backups that the rules do not keep, of those that are of the same volumes and of
/// snapshots of the same kind as these: taken by this command, or with the same description, as a policy
/// gives it. So rules of one schedule delete nothing of another one.
///
/// # Errors
/// The target's.
pub async fn prune_by(
    place: &Place,
    target: &Arc<Target>,
    signals: &mut Signals,
    made: Vec<SnapshotName>,
    keep: &Keep,
    quiet: bool,
) -> Outcome {
    let rules = keep.clone();
    let rows = blocking(place, target, move |target| {
        let mut kinds = Vec::new();
        for record in target.records(&made) {
            let record = record?;
            kinds.push((record.name.split('@').next().unwrap_or_default().to_owned(), kind(&record.description).to_owned()));
        }
        let names: Vec<SnapshotName> = target.names()?.into_iter().filter(|name| made.iter().any(|made| made.of == name.of)).collect();
        let is_of_kind = |name: &SnapshotName, record: &Record| {
            kinds.iter().any(|(of, kind_of)| *of == name.of.to_string() && kind_of == kind(&record.description))
        };
        let mut same = Vec::new();
        for (name, record) in names.iter().zip(target.records(&names)) {
            match record {
                Ok(record) if !is_of_kind(name, &record) => {}
                // the rules say what is wrong with one that cannot be read
                _ => same.push(name.clone()),
            }
        }
        chosen_rows(target, &same, Some(&rules))
    });
    let rows = rows.await?;
    if rows.is_empty() {
        return Ok(());
    }
    delete(place, target, signals, &rows, (false, quiet)).await
}

/// Returns what the descriptions of snapshots of one schedule have in common.
fn kind(description: &str) -> &str {
    if description.starts_with(bases::DESCRIPTION) { bases::DESCRIPTION } else { description }
}

/// Returns those of these backups that are deleted: all, or those that the rules do not keep. The rules
/// neither keep nor delete backups that are known to be damaged, so that none takes the place of a good
/// one.
fn chosen_rows(target: &Target, names: &[SnapshotName], keep: Option<&Keep>) -> Result<Vec<Row>, BackupError> {
    let records = names.iter().zip(target.records(names));
    let Some(keep) = keep else {
        return Ok(records
            .map(|(name, record)| Row { name: name.to_string(), created: record.ok().map(|record| record.created) })
            .collect());
    };
    let mut good = Vec::new();
    for (name, record) in records {
        let record =
            record.map_err(|error| BackupError::Unreadable { of: Purpose::Backups, name: name.to_string(), why: error.to_string() })?;
        if target.verified(name)?.is_none_or(|verified| verified.damaged.is_empty()) {
            // of volumes of the same name on two hosts, each has its own
            good.push((name.of.to_string(), record.identity.pool().to_owned(), record.created, name));
        }
    }
    good.sort_by_key(|(volume, pool, created, name)| (volume.clone(), pool.clone(), *created, name.to_string()));
    let mut gone = Vec::new();
    for of_volume in good.chunk_by(|a, b| (&a.0, &a.1) == (&b.0, &b.1)) {
        let times: Vec<Timestamp> = of_volume.iter().map(|(_, _, created, _)| *created).collect();
        let superfluous = of_volume.iter().zip(keep.superfluous_of(&times)).filter(|(_, superfluous)| *superfluous);
        gone.extend(superfluous.map(|((_, _, created, name), _)| Row { name: name.to_string(), created: Some(*created) }));
    }
    Ok(gone)
}

async fn delete(place: &Place, target: &Arc<Target>, signals: &mut Signals, rows: &[Row], (dry, quiet): (bool, bool)) -> Outcome {
    let names: Vec<SnapshotName> = rows.iter().filter_map(|row| row.name.parse().ok()).collect();
    let (count, own, said) = (names.len(), Arc::clone(target), place.name().to_owned());
    let left = "the next prune deletes the rest";
    let pruned =
        interruptible(format!("prune {said}"), (Total::Hidden, |_, _: &CopyProgress| String::new()), left, signals, move |progress| {
            prune(&own, &names, dry, progress).map_err(|error| failure(&said, &error))
        })
        .await?;
    if !quiet {
        let (would, freed) = if dry { ("would delete", "would free") } else { ("deleted", "freed") };
        eprintln!("millpond: {}: {would} {count} backups and {} chunks, {freed} {}", place.name(), pruned.chunks, Size(pruned.bytes));
    }
    Ok(())
}
