//! `backup list`: the backups of a target.

use clap::Args;
use jiff::Timestamp;
use millpond_api::failure::Outcome;
use millpond_api::names::SnapshotName;
use millpond_backup::{BackupError, Purpose, Record, Target, Verified};
use serde::Serialize;

use super::target::{Chosen, Empty, blocking, failure, named};
use crate::output::{Cell, Column, Listing, Shown, print};

/// List the backups of a target
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond backup list /mnt/nas/backup
  millpond backup list /mnt/nas/backup tank/vm1 --format json

Column 'verified' has the time of the last 'millpond backup verify' that found no damage.")]
pub struct List {
    #[command(flatten)]
    chosen: Chosen,
}

/// A backup or publication.
#[derive(Serialize)]
pub struct Row {
    pub name: String,
    /// Time of the snapshot; none where the record is damaged.
    pub created: Option<Timestamp>,
    pub size: Option<u64>,
    pub stored: Option<u64>,
    pub read: Option<u64>,
    pub made: Option<Timestamp>,
    pub host: Option<String>,
    pub base: Option<String>,
    pub identity: Option<String>,
    pub description: Option<String>,
    /// Time of the last verification.
    pub verified: Option<Timestamp>,
    /// Bytes that cannot be restored, as of then.
    pub damaged_bytes: u64,
    /// Reason why the record cannot be read.
    pub error: Option<String>,
    /// Id of a publication.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

impl Row {
    fn of(name: &SnapshotName, record: Result<Record, BackupError>, verified: Result<Option<Verified>, BackupError>, place: &str) -> Row {
        let error = record.as_ref().err().or(verified.as_ref().err()).map(|error| failure(place, error).to_string());
        let verified = verified.ok().flatten();
        let record = record.ok();
        Row {
            name: name.to_string(),
            created: record.as_ref().map(|record| record.created),
            size: record.as_ref().map(|record| record.size),
            stored: record.as_ref().map(|record| record.stored),
            read: record.as_ref().map(|record| record.read),
            made: record.as_ref().map(|record| record.made),
            host: record.as_ref().map(|record| record.host.clone()),
            base: record.as_ref().and_then(|record| record.base.clone()),
            identity: record.as_ref().map(|record| record.identity.to_string()),
            description: record.as_ref().map(|record| record.description.clone()),
            damaged_bytes: verified.iter().flat_map(|verified| &verified.damaged).map(|(_, length)| length).sum(),
            verified: verified.map(|verified| verified.at),
            error,
            id: record.and_then(|record| record.publication),
        }
    }

    /// Time of the last verification, or that the data or the record is damaged.
    pub fn state(&self) -> Cell {
        match (self.verified, self.damaged_bytes) {
            _ if self.error.is_some() => Cell::Text("UNREADABLE".to_owned()),
            (Some(_), bytes) if bytes > 0 => Cell::Text("DAMAGED".to_owned()),
            (Some(at), _) => Cell::Time(at),
            (None, _) => Cell::None,
        }
    }
}

const ROWS: &[Column<Row>] = &[
    Column { name: "name", cell: |row| Cell::Text(row.name.clone()), shown: Shown::Always },
    Column { name: "created", cell: |row| row.created.map_or(Cell::None, Cell::Time), shown: Shown::Always },
    Column { name: "size", cell: |row| row.size.map_or(Cell::None, Cell::Bytes), shown: Shown::Always },
    Column { name: "stored", cell: |row| row.stored.map_or(Cell::None, Cell::Bytes), shown: Shown::Always },
    Column { name: "verified", cell: Row::state, shown: Shown::Always },
    Column { name: "made", cell: |row| row.made.map_or(Cell::None, Cell::Time), shown: Shown::Json },
    Column { name: "host", cell: |row| Cell::text_or_none(row.host.as_deref()), shown: Shown::Json },
    Column { name: "read", cell: |row| row.read.map_or(Cell::None, Cell::Bytes), shown: Shown::Json },
    Column { name: "base", cell: |row| Cell::text_or_none(row.base.as_deref()), shown: Shown::Json },
    Column { name: "description", cell: |row| Cell::text_or_none(row.description.as_deref()), shown: Shown::Json },
    Column { name: "identity", cell: |row| Cell::text_or_none(row.identity.as_deref()), shown: Shown::Json },
    Column { name: "damaged_bytes", cell: |row| Cell::Bytes(row.damaged_bytes), shown: Shown::Json },
    Column { name: "error", cell: |row| Cell::text_or_none(row.error.as_deref()), shown: Shown::Json },
];

impl List {
    pub async fn run(self) -> Outcome {
        let Chosen { place, words, how } = self.chosen;
        let target = place.open(Purpose::Backups, Empty::Refuse).await?;
        let names = named(&place, &target, &words).await?;
        let shown = place.name().to_owned();
        let rows = blocking(&place, &target, move |target: &Target| Ok(rows(target, &names, &shown)));
        print(&rows.await?, ROWS, &Listing::from(how))
    }
}

/// Returns the rows of these backups or publications, by volume and time of the snapshot.
pub fn rows(target: &Target, names: &[SnapshotName], place: &str) -> Vec<Row> {
    let records = names.iter().zip(target.records(names));
    let mut rows: Vec<Row> = records.map(|(name, record)| Row::of(name, record, target.verified(name), place)).collect();
    rows.sort_by_cached_key(|row: &Row| (row.name.split('@').next().map(str::to_owned), row.created));
    rows
}
