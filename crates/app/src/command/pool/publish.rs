//! `pool publish`, `pool publications` and `pool unpublish`: snapshots in a target, from which any number
//! of pools clone.

use clap::{Args, ValueHint};
use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::SnapshotName;
use millpond_api::size::Size;
use millpond_backup::{Purpose, Target, Unpublished, prune, unpublish};
use millpond_daemon::Signals;
use millpond_images::copy::CopyProgress;

use crate::command::backup::bases;
use crate::command::backup::create::{MADE, Made};
use crate::command::backup::list::{Row, rows};
use crate::command::backup::make::Maker;
use crate::command::backup::target::{Empty, Place, blocking, failure};
use crate::command::backup::verify::check;
use crate::command::candidates;
use crate::command::consent::Consent;
use crate::command::image::{Total, interruptible};
use crate::command::published::Published;
use crate::command::store::StoreOptions;
use crate::output::{Cell, Column, Listing, LongListing, Shown, print};

/// Store a snapshot in a directory or bucket, from which any number of pools clone it
///
/// Only what changed since an older published snapshot of the volume is read and stored. The target keeps publications only.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond pool publish tank/golden@v3 /mnt/nas/images
  millpond pool publish tank/golden@v3 s3://images/pond -o endpoint=https://store.example
  millpond clone --full '/mnt/nas/images#golden@v3' ssd/vm7

A publication does not need the snapshot any more. One that was interrupted is not listed; the next try goes on from what it stored.")]
pub struct Publish {
    /// POOL/VOL@SNAP
    #[arg(value_name = "POOL/VOL@SNAP", add = candidates::snapshots())]
    name: String,
    #[command(flatten)]
    place: Place,
    /// Refuse a target that has no publications, such as the directory of a disk that is not mounted
    #[arg(long)]
    no_init: bool,
    /// Read the snapshot and the publication again afterwards, and compare them
    #[arg(long)]
    verify: bool,
    #[command(flatten)]
    how: LongListing,
}

impl Publish {
    pub async fn run(self, client: &Client) -> Outcome {
        let name: SnapshotName = self.name.parse()?;
        // without the snapshot, nothing is prepared
        let (snapshot, _) = bases::before(client, &name).await?;
        let target = self.place.open(Purpose::Publications, if self.no_init { Empty::Refuse } else { Empty::Prepare }).await?;
        let how = Listing::from(self.how);
        if let (Some(identity), false) = (snapshot.identity, self.verify) {
            let own = name.clone();
            if let Some(there) = blocking(&self.place, &target, move |target| target.complete(&own, &identity)).await? {
                eprintln!("millpond: {}: '{name}' is there already", self.place.name());
                return print(&[Made { read: 0, stored: 0, ..Made::from(there) }], MADE, &how);
            }
        }
        let mut signals = Signals::catch()?;
        let maker = Maker { client, place: &self.place, target: &target, verify: self.verify };
        let made = maker.one(&mut signals, &name).await;
        let (record, differs) = made.map_err(|failure| failure.during(format!("cannot publish '{name}'")))?;
        print(&[Made::from(record)], MADE, &how)?;
        differs.map_or(Ok(()), Err)
    }
}

/// List the publications of a target
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond pool publications /mnt/nas/images
  millpond pool publications s3://images/pond --format json
  millpond pool publications --verify /mnt/nas/images

Column 'stored' has the bytes that the target got for it: what it shares with older ones is not counted.
Column 'verified' has the time of the last verification that found no damage. Exit code 1 of --verify: some are damaged; 'pool publish' of
the same snapshot repairs them. One that cannot be read has to be deleted first, with 'pool unpublish --force'.")]
pub struct Publications {
    #[command(flatten)]
    place: Place,
    /// Read all data first, and compare it with its checksums
    #[arg(long)]
    verify: bool,
    #[command(flatten)]
    how: LongListing,
}

const ROWS: &[Column<Row>] = &[
    Column { name: "name", cell: |row| Cell::Text(row.name.clone()), shown: Shown::Always },
    Column { name: "size", cell: |row| row.size.map_or(Cell::None, Cell::Bytes), shown: Shown::Always },
    Column { name: "stored", cell: |row| row.stored.map_or(Cell::None, Cell::Bytes), shown: Shown::Always },
    Column { name: "made", cell: |row| row.made.map_or(Cell::None, Cell::Time), shown: Shown::Always },
    Column { name: "host", cell: |row| Cell::text_or_none(row.host.as_deref()), shown: Shown::Always },
    Column { name: "verified", cell: Row::state, shown: Shown::Always },
    Column { name: "id", cell: |row| Cell::text_or_none(row.id.as_deref()), shown: Shown::Json },
    Column { name: "created", cell: |row| row.created.map_or(Cell::None, Cell::Time), shown: Shown::Json },
    Column { name: "description", cell: |row| Cell::text_or_none(row.description.as_deref()), shown: Shown::Json },
    Column { name: "identity", cell: |row| Cell::text_or_none(row.identity.as_deref()), shown: Shown::Json },
    Column { name: "damaged_bytes", cell: |row| Cell::Bytes(row.damaged_bytes), shown: Shown::Json },
    Column { name: "error", cell: |row| Cell::text_or_none(row.error.as_deref()), shown: Shown::Json },
];

impl Publications {
    pub async fn run(self) -> Outcome {
        let target = self.place.open(Purpose::Publications, Empty::Refuse).await?;
        let damage = if self.verify { check(&self.place, &target, None).await?.0 } else { None };
        let shown = self.place.name().to_owned();
        let rows = blocking(&self.place, &target, move |target: &Target| Ok(rows(target, &target.names()?, &shown)));
        print(&rows.await?, ROWS, &Listing::from(self.how))?;
        damage.map_or(Ok(()), Err)
    }
}

/// Delete a publication, and the data that no other one has
///
/// Volumes that were cloned with --full do not need it.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond pool unpublish -n '/mnt/nas/images#golden@v2'
  millpond pool unpublish '/mnt/nas/images#golden@v2'
  millpond pool unpublish /mnt/nas/images               only what interrupted commands left")]
pub struct Unpublish {
    /// TARGET#VOL@SNAP, or TARGET#POOL/VOL@SNAP; TARGET deletes only what interrupted commands left
    #[arg(value_name = "TARGET#VOL@SNAP", value_hint = ValueHint::DirPath)]
    word: String,
    #[command(flatten)]
    store: StoreOptions,
    #[command(flatten)]
    consent: Consent,
    /// Delete it although it, or another one, cannot be read
    #[arg(long)]
    force: bool,
}

impl Unpublish {
    pub async fn run(self) -> Outcome {
        let (place, target, name) = if Published::is(&self.word) {
            let published = Published::parse(&self.word, self.store)?;
            let (target, name) = published.find().await?;
            (published.place, target, Some(name))
        } else if self.force {
            return Err(Failure::usage("--force deletes a publication: give TARGET#VOL@SNAP"));
        } else {
            let place = Place::new(&self.word, self.store);
            let target = place.open(Purpose::Publications, Empty::Refuse).await?;
            (place, target, None)
        };
        if let (Some(name), false) = (&name, self.consent.dry_run) {
            self.consent.ask("unpublish", &name.to_string())?;
        }
        let mut signals = Signals::catch()?;
        let (said, gone, flags) = (place.name().to_owned(), name.clone(), (self.consent.dry_run, self.force));
        let left = format!("'millpond pool unpublish {}' deletes what is left of it", place.name());
        let what = format!("unpublish {}", name.as_ref().map_or_else(|| said.clone(), ToString::to_string));
        let done = interruptible(what, (Total::Hidden, |_, _: &CopyProgress| String::new()), &left, &mut signals, move |progress| {
            let done = match &gone {
                Some(name) => unpublish(&target, name, flags, progress),
                None => prune(&target, &[], flags.0, progress).map(|pruned| Unpublished { pruned, kept: None }),
            };
            done.map_err(|error| failure(&said, &error))
        });
        let done = done.await?;
        let (would, freed) = if self.consent.dry_run { ("would delete", "would free") } else { ("deleted", "freed") };
        let (pruned, named) = (done.pruned, name.map(|name| format!("'{name}' and ")).unwrap_or_default());
        eprintln!("millpond: {}: {would} {named}{} chunks, {freed} {}", place.name(), pruned.chunks, Size(pruned.bytes));
        if let Some(why) = done.kept {
            eprintln!("millpond: {}: all chunks stay: {why}", place.name());
        }
        Ok(())
    }
}
