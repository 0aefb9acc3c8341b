//! `backup verify`: reads everything, to find what cannot be restored.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use clap::Args;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::instant;
use millpond_api::names::SnapshotName;
use millpond_api::size::Size;
use millpond_backup::{Purpose, Target, Verification, verify};
use millpond_daemon::Signals;
use millpond_images::copy::CopyProgress;
use serde::Serialize;

use super::target::{Chosen, Empty, Place, failure, named};
use crate::command::image::{Total, interruptible};
use crate::output::{Cell, Column, Listing, Shown, print};

/// Read all data of backups and compare it with its checksums
///
/// Data that is shared by several backups is read once. No new backup relies on damaged data: what the pool still has is stored again.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond backup verify /mnt/nas/backup
  millpond backup verify /mnt/nas/backup 'tank/vm1@*'

Exit code 0: all can be restored, 1: some cannot; they are listed.")]
pub struct Verify {
    #[command(flatten)]
    chosen: Chosen,
}

/// A backup with damage.
#[derive(Serialize)]
struct Row {
    name: String,
    /// Bytes that are lost.
    damaged: u64,
    /// Ranges of the volume that are lost: offset and length in bytes.
    ranges: Vec<(u64, u64)>,
    why: String,
}

impl Row {
    /// The ranges as offset and length in bytes, such as `0+1048576, 4194304+1048576`.
    fn listed(&self) -> String {
        self.ranges.iter().map(|(at, length)| format!("{at}+{length}")).collect::<Vec<_>>().join(", ")
    }
}

const ROWS: &[Column<Row>] = &[
    Column { name: "name", cell: |row| Cell::Text(row.name.clone()), shown: Shown::Always },
    Column { name: "damaged", cell: |row| Cell::Bytes(row.damaged), shown: Shown::Always },
    Column { name: "ranges", cell: |row| Cell::Text(row.listed()), shown: Shown::Json },
    Column { name: "why", cell: |row| Cell::Text(row.why.clone()), shown: Shown::Always },
];

impl Verify {
    pub async fn run(self) -> Outcome {
        let Chosen { place, words, how } = self.chosen;
        let target = place.open(Purpose::Backups, Empty::Refuse).await?;
        let names = if words.is_empty() { None } else { Some(named(&place, &target, &words).await?) };
        let (failure, found) = check(&place, &target, names).await?;
        let rows: Vec<Row> = found
            .damaged
            .into_iter()
            .map(|one| Row { name: one.name, damaged: one.ranges.iter().map(|(_, length)| length).sum(), ranges: one.ranges, why: one.why })
            .collect();
        let how = Listing::from(how);
        if failure.is_some() || how.format == crate::output::Format::Json {
            print(&rows, ROWS, &how)?;
        }
        failure.map_or(Ok(()), Err)
    }
}

/// Reads all data of these backups or publications, or of the target; returns also how the command fails
/// if some is damaged.
///
/// # Errors
/// The target's.
pub async fn check(place: &Place, target: &Arc<Target>, names: Option<Vec<SnapshotName>>) -> Outcome<(Option<Failure>, Verification)> {
    let mut signals = Signals::catch()?;
    let (of, read, shown) = (target.purpose(), Arc::clone(target), place.name().to_owned());
    let what = format!("verify {shown}");
    let found = interruptible(what, (Total::Unknown, checked), "nothing is changed", &mut signals, move |progress| {
        verify(&read, names.as_deref(), instant::now(), progress).map_err(|error| failure(&shown, &error))
    })
    .await?;
    let one = of.one();
    if found.unnamed > 0 {
        eprintln!("millpond: {}: {} damaged chunks that no {one} has; the next {one} does not rely on them", place.name(), found.unnamed);
    }
    let damaged = found.damaged.len();
    let failed = format!("{}: {damaged} of {} {of} cannot be restored whole", place.name(), found.backups);
    Ok(((damaged > 0).then(|| Failure::failed(failed)), found))
}

fn checked(_: u64, progress: &CopyProgress) -> String {
    format!("{} of data read", Size(progress.done.load(Relaxed)))
}
