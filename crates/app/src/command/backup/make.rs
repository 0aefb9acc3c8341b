//! Making a backup or a publication: a snapshot goes from the daemon to a target.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use millpond_api::client::{Client, quoted};
use millpond_api::failure::{Failure, Outcome};
use millpond_api::identity::{SnapshotIdentity, is_reserved};
use millpond_api::names::SnapshotName;
use millpond_api::size::Size;
use millpond_api::{DiffExtent, Snapshot, Volume, instant};
use millpond_backup::{BackupImage, ChunkId, Purpose, Record, Target, Verified, create};
use millpond_daemon::{Signals, host_name};
use millpond_images::copy::{CopyError, CopyProgress, Target as Copied, Task, copy};
use millpond_images::served::ServedImage;
use millpond_images::source::Image;

use super::bases;
use super::target::{Place, blocking, failure, random};
use crate::command::holds::Held;
use crate::command::image::{DiffImage, Total, TransientExport, compared, copy_failure, interruptible};

/// A command that stores snapshots in a target.
pub struct Maker<'a> {
    pub client: &'a Client,
    pub place: &'a Place,
    pub target: &'a Arc<Target>,
    /// Read both again afterwards, and compare.
    pub verify: bool,
}

impl Maker<'_> {
    /// Stores a snapshot; returns also why the complete backup or publication was not found equal to it.
    ///
    /// # Errors
    /// Nothing was made, and why.
    pub async fn one(&self, signals: &mut Signals, name: &SnapshotName) -> Outcome<(Record, Option<Failure>)> {
        let (client, target) = (self.client, self.target);
        let (snapshot, older) = bases::before(client, name).await?;
        let volume: Volume = client.get(&format!("/v1/volumes/{}", name.of)).await?;
        if is_reserved(&name.snapshot) {
            return Err(Failure::failed("it is part of an incomplete receive; give another snapshot"));
        }
        let identity =
            snapshot.identity.clone().ok_or_else(|| Failure::failed("the daemon is older; use the millpond that belongs to it"))?;
        let base = base(self.place, target, name, &older).await?;
        let mut names = vec![name.clone()];
        names.extend(base.iter().map(|(_, name)| name.clone()));
        let tag = match target.purpose() {
            Purpose::Backups => bases::HOLDS,
            Purpose::Publications => "publish",
        };
        let held = Held::hold(client, tag, names).await;
        let made = self.export(signals, (name, &snapshot, &identity), &volume, base).await;
        held.release(client, &[]).await;
        made
    }

    async fn export(
        &self,
        signals: &mut Signals,
        (name, snapshot, identity): (&SnapshotName, &Snapshot, &SnapshotIdentity),
        volume: &Volume,
        base: Option<(Record, SnapshotName)>,
    ) -> Outcome<(Record, Option<Failure>)> {
        let client = self.client;
        let export = TransientExport::open(client, &name.to_string(), true).await?;
        let plan = plan(client, (name, identity), base.as_ref()).await;
        let serving = Arc::new(ServedImage { socket: export.socket().to_owned(), layered: false, server: None });
        let made = match plan {
            Ok(extents) => {
                let image: Arc<dyn Image> = match extents {
                    Some(extents) => Arc::new(DiffImage { image: serving, extents: Arc::new(extents) }),
                    None => serving,
                };
                let publication = if self.target.purpose() == Purpose::Publications { Some(random()?) } else { None };
                let record = Record { publication, ..record(snapshot, identity, volume, base.as_ref().map(|(base, _)| base)) };
                self.make(signals, record, base.map(|(base, _)| base), image, &export).await
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
        record: Record,
        base: Option<Record>,
        image: Arc<dyn Image>,
        export: &TransientExport,
    ) -> Outcome<(Record, Option<Failure>)> {
        let (name, size, place) = (record.name.clone(), record.size, self.place.name().to_owned());
        let (into, from, one) = (Arc::clone(self.target), place.clone(), self.target.purpose().one());
        let verb = match self.target.purpose() {
            Purpose::Backups => "backup",
            Purpose::Publications => "publish",
        };
        let left = "the next one goes on from what it stored";
        let made = interruptible(format!("{verb} {name}"), (Total::Of(size), stored), left, signals, move |progress| {
            create(&into, &*image, record, base.as_ref(), progress).map_err(|error| failure(&place, &error))
        })
        .await?;
        if !self.verify {
            return Ok((made, None));
        }
        let (again, read, socket) = (made.clone(), Arc::clone(self.target), export.socket().to_owned());
        let left = format!("the {one} is complete, but not verified");
        let same = interruptible(format!("verify {name}"), (Total::Of(size), compared), &left, signals, move |progress| {
            let image = read.share(&progress.stop).and_then(|lock| BackupImage::new(Arc::clone(&read), &again, &lock));
            let image = image.map_err(|error| failure(&from, &error))?;
            copy(&image, &Copied::Socket(socket), Task::Compare, progress).map_err(|error| {
                if matches!(error, CopyError::Differs(_)) {
                    condemn(&read, &again);
                }
                copy_failure(error, &format!("the {one}"), &again.name)
            })
        });
        Ok((made, same.await.err()))
    }
}

/// Notes that nothing of a backup or publication can be relied on.
fn condemn(target: &Target, record: &Record) {
    let noted = record.name.parse().map(|name| {
        let verified = Verified { at: instant::now(), damaged: vec![(0, record.size)] };
        target.put_verified(&name, verified).and_then(|()| Ok(target.store().settle()?))
    });
    if !matches!(noted, Ok(Ok(()))) {
        let one = target.purpose().one();
        eprintln!("millpond: the {one} '{}' differs from its snapshot, and cannot be marked as damaged; delete it", record.name);
    }
}

fn stored(total: u64, progress: &CopyProgress) -> String {
    format!("{}, {} stored", Size(total), Size(progress.written.load(Relaxed)))
}

/// Returns the backup or publication on which this one builds, with the name of its snapshot in the pool.
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
        publication: None,
    }
}
