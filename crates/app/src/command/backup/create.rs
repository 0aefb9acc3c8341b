//! `backup create`: what changed since the last backup goes to the target.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use clap::Args;
use millpond_api::client::{Client, quoted};
use millpond_api::failure::{Failure, Outcome};
use millpond_api::identity::{SnapshotIdentity, is_reserved};
use millpond_api::names::{Name, SnapshotName, VolumeName};
use millpond_api::size::Size;
use millpond_api::{DiffExtent, Snapshot, Volume, instant};
use millpond_backup::{BackupImage, ChunkId, Record, Target, Verified, create};
use millpond_daemon::{Keep, Signals, host_name};
use millpond_images::copy::{CopyError, CopyProgress, Target as Copied, Task, copy};
use millpond_images::served::ServedImage;
use millpond_images::source::Image;
use serde::Serialize;

use super::bases;
use super::prune::prune_by;
use super::target::{Empty, Place, blocking, failure};
use crate::command::candidates;
use crate::command::globs::is_pattern;
use crate::command::globs::{Wanted, expand};
use crate::command::holds::Held;
use crate::command::image::{DiffImage, Total, TransientExport, compared, copy_failure, interruptible};
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

/// A backup that was made.
#[derive(Serialize)]
struct Made {
    name: String,
    size: u64,
    read: u64,
    stored: u64,
    base: Option<String>,
}

const MADE: &[Column<Made>] = &[
    Column { name: "name", cell: |row| Cell::Text(row.name.clone()), shown: Shown::Always },
    Column { name: "size", cell: |row| Cell::Bytes(row.size), shown: Shown::Always },
    Column { name: "read", cell: |row| Cell::Bytes(row.read), shown: Shown::Always },
    Column { name: "stored", cell: |row| Cell::Bytes(row.stored), shown: Shown::Always },
    Column { name: "base", cell: |row| Cell::text_or_none(row.base.as_deref()), shown: Shown::Always },
];

impl Create {
    pub async fn run(self, client: &Client) -> Outcome {
        let keep = self.keep.as_deref().map(str::parse::<Keep>).transpose();
        let keep = keep.map_err(|why| Failure::usage(format!("--keep: {why}")))?;
        let (volumes, snapshots) = self.parse(client).await?;
        let target = self.place.open(if self.no_init { Empty::Refuse } else { Empty::Prepare }).await?;
        let mut signals = Signals::catch()?;
        let id = target.head().id.clone();
        let taken = bases::take(client, &volumes, &id, self.place.name()).await?;
        let mut rows = Vec::new();
        let mut failed: Option<Failure> = None;
        for name in snapshots.iter().chain(&taken) {
            let own = taken.contains(name);
            let made = self.one(client, &mut signals, &target, name).await;
            let failure = match made {
                Ok((record, failure)) => {
                    rows.push(Made { name: record.name, size: record.size, read: record.read, stored: record.stored, base: record.base });
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

    /// Backs up a snapshot; returns also why the complete backup was not found equal to it.
    async fn one(
        &self,
        client: &Client,
        signals: &mut Signals,
        target: &Arc<Target>,
        name: &SnapshotName,
    ) -> Outcome<(Record, Option<Failure>)> {
        let (snapshot, older) = bases::before(client, name).await?;
        let volume: Volume = client.get(&format!("/v1/volumes/{}", name.of)).await?;
        if is_reserved(&name.snapshot) {
            return Err(Failure::failed("it is part of an incomplete receive; back up another snapshot"));
        }
        let identity =
            snapshot.identity.clone().ok_or_else(|| Failure::failed("the daemon is older; use the millpond that belongs to it"))?;
        let base = base(&self.place, target, name, &older).await?;
        let mut names = vec![name.clone()];
        names.extend(base.iter().map(|(_, name)| name.clone()));
        let held = Held::hold(client, bases::HOLDS, names).await;
        let made = self.export(client, signals, target, (name, &snapshot, &identity), &volume, base).await;
        held.release(client, &[]).await;
        made
    }

    async fn export(
        &self,
        client: &Client,
        signals: &mut Signals,
        target: &Arc<Target>,
        (name, snapshot, identity): (&SnapshotName, &Snapshot, &SnapshotIdentity),
        volume: &Volume,
        base: Option<(Record, SnapshotName)>,
    ) -> Outcome<(Record, Option<Failure>)> {
        let export = TransientExport::open(client, &name.to_string(), true).await?;
        let plan = plan(client, (name, identity), base.as_ref()).await;
        let serving = Arc::new(ServedImage { socket: export.socket().to_owned(), layered: false, server: None });
        let made = match plan {
            Ok(extents) => {
                let image: Arc<dyn Image> = match extents {
                    Some(extents) => Arc::new(DiffImage { image: serving, extents: Arc::new(extents) }),
                    None => serving,
                };
                let record = record(snapshot, identity, volume, base.as_ref().map(|(base, _)| base));
                self.make(signals, target, record, base.map(|(base, _)| base), image, &export).await
            }
            Err(failure) => Err(failure),
        };
        let closed = export.close(client).await;
        let made = made?;
        closed?;
        Ok(made)
    }

    async fn make(
        &self,
        signals: &mut Signals,
        target: &Arc<Target>,
        record: Record,
        base: Option<Record>,
        image: Arc<dyn Image>,
        export: &TransientExport,
    ) -> Outcome<(Record, Option<Failure>)> {
        let (name, size, place) = (record.name.clone(), record.size, self.place.name().to_owned());
        let (into, from) = (Arc::clone(target), place.clone());
        let left = "the next one goes on from what it stored";
        let made = interruptible(format!("backup {name}"), (Total::Of(size), stored), left, signals, move |progress| {
            create(&into, &*image, record, base.as_ref(), progress).map_err(|error| failure(&place, &error))
        })
        .await?;
        if !self.verify {
            return Ok((made, None));
        }
        let (again, read, socket) = (made.clone(), Arc::clone(target), export.socket().to_owned());
        let left = "the backup is complete, but not verified";
        let same = interruptible(format!("verify {name}"), (Total::Of(size), compared), left, signals, move |progress| {
            let image = read.share(&progress.stop).and_then(|lock| BackupImage::new(Arc::clone(&read), &again, &lock));
            let image = image.map_err(|error| failure(&from, &error))?;
            copy(&image, &Copied::Socket(socket), Task::Compare, progress).map_err(|error| {
                if matches!(error, CopyError::Differs(_)) {
                    condemn(&read, &again);
                }
                copy_failure(error, "the backup", &again.name)
            })
        });
        Ok((made, same.await.err()))
    }
}

/// Notes that nothing of a backup can be relied on.
fn condemn(target: &Target, record: &Record) {
    let noted = record.name.parse().map(|name| {
        let verified = Verified { at: instant::now(), damaged: vec![(0, record.size)] };
        target.put_verified(&name, verified).and_then(|()| Ok(target.store().settle()?))
    });
    if !matches!(noted, Ok(Ok(()))) {
        eprintln!("millpond: the backup '{}' differs from its snapshot, and cannot be marked as damaged; delete it", record.name);
    }
}

fn stored(total: u64, progress: &CopyProgress) -> String {
    format!("{}, {} stored", Size(total), Size(progress.written.load(Relaxed)))
}

/// Returns the backup on which this one builds, with the name of its snapshot in the pool.
async fn base(place: &Place, target: &Arc<Target>, name: &SnapshotName, older: &[Snapshot]) -> Outcome<Option<(Record, SnapshotName)>> {
    let known: Vec<(SnapshotIdentity, SnapshotName)> = older
        .iter()
        .filter_map(|snapshot| Some((snapshot.identity.clone()?, snapshot.name.parse::<SnapshotName>().ok()?)))
        .filter(|(_, name)| !is_reserved(&name.snapshot))
        .collect();
    let (of, own, identities) = (name.of.clone(), name.clone(), known.iter().map(|(identity, _)| identity.clone()).collect::<Vec<_>>());
    let found = blocking(place, target, move |target| {
        let damaged = target.verified(&own)?.is_some_and(|verified| !verified.damaged.is_empty());
        if damaged { Ok(None) } else { target.base(&of, &identities) }
    });
    let Some(record) = found.await? else { return Ok(None) };
    let name = known.into_iter().find(|(identity, _)| *identity == record.identity).map(|(_, name)| name);
    Ok(name.map(|name| (record, name)))
}

/// Returns what differs from the base. The names are looked up again afterwards: holds prevent no
/// rename.
async fn plan(
    client: &Client,
    (name, identity): (&SnapshotName, &SnapshotIdentity),
    base: Option<&(Record, SnapshotName)>,
) -> Outcome<Option<Vec<DiffExtent>>> {
    let extents: Option<Vec<DiffExtent>> = match base {
        Some((_, base)) => {
            let (older, newer) = (quoted(&base.to_string()), quoted(&name.to_string()));
            Some(client.get(&format!("/v1/diff?older={older}&newer={newer}")).await?)
        }
        None => None,
    };
    for (name, identity) in base.iter().map(|(record, name)| (name, &record.identity)).chain([(name, identity)]) {
        let now: Snapshot = client.get(&format!("/v1/snapshots/{}/{}", name.of, name.snapshot)).await?;
        if now.identity.as_ref() != Some(identity) {
            return Err(Failure::failed(format!("'{name}' is another snapshot now; run it again")));
        }
    }
    Ok(extents)
}

fn record(snapshot: &Snapshot, identity: &SnapshotIdentity, volume: &Volume, base: Option<&Record>) -> Record {
    Record {
        format: Record::FORMAT,
        name: snapshot.name.clone(),
        identity: identity.clone(),
        description: snapshot.description.clone(),
        created: snapshot.created,
        size: snapshot.size,
        sector: volume.sector.clone(),
        cache: volume.cache.clone(),
        compression: volume.compression.clone(),
        host: host_name(),
        made: instant::now(),
        base: base.map(|base| base.name.clone()),
        read: 0,
        stored: 0,
        root: ChunkId::ZERO,
    }
}
