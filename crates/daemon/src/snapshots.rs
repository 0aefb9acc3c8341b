//! Snapshots: taking, listing, rolling back, cloning, comparing, and expiry.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use jiff::Timestamp;
use millpond_api::identity::{INTERRUPTED, Receiving, SnapshotIdentity, SnapshotOrigin, taken};
use millpond_api::instant;
use millpond_api::names::{Name, SnapshotName, VolumeName};
use millpond_api::{
    ApiError, CloneSnapshot, CreateSnapshots, Created, DiffExtent, ErrorKind, EventKind, ExtentKind, Rollback, RolledBack, Snapshot, Volume,
};
use millpond_engine::{CatalogCommand, Command, SnapshotInfo, Target, Time, VolumeId};

use super::attached::Clients;
use super::events::Happened;
use super::freeze::How;
use super::service::{Daemon, PoolEntry};
use super::shard::ShardHandle;
use super::{attached, freeze, holds, receiving};

/// Time between two looks for expired snapshots.
const EXPIRY_TURN: Duration = Duration::from_secs(5);

impl Daemon {
    /// Returns the snapshots of every pool in service that answers, of one pool, or of one volume;
    /// by volume, oldest first.
    ///
    /// # Errors
    /// When the pool or volume named does not exist or is not in service.
    pub async fn snapshots(&self, pool: Option<&str>, volume: Option<&str>) -> Result<Vec<Snapshot>, ApiError> {
        let shards = match pool {
            Some(pool) => vec![(pool.to_owned(), self.shard(pool)?)],
            None => self.answering().await,
        };
        let mut listed = Vec::new();
        let looks = shards.iter().map(|(_, shard)| async { Ok::<_, ApiError>((shard.volumes().await?, shard.snapshots().await?)) });
        let looks = join_all(looks).await;
        for ((pool, _), look) in shards.into_iter().zip(looks) {
            let (mut volumes, mut snapshots) = look?;
            volumes.sort_by(|a, b| a.name.cmp(&b.name));
            if let Some(wanted) = volume {
                volumes.retain(|volume| volume.name == wanted);
                if volumes.is_empty() {
                    return Err(ApiError::not_found(format!("no volume '{pool}/{wanted}'; see 'millpond list {pool}'")));
                }
            }
            snapshots.sort_by_key(|snapshot| (snapshot.epoch, snapshot.id));
            let pool_id = self.pool_id(&pool);
            for volume in volumes {
                let of_volume = snapshots.iter().filter(|snapshot| snapshot.volume == volume.id);
                listed.extend(of_volume.map(|snapshot| view(&pool_id, &format!("{pool}/{}", volume.name), snapshot)));
            }
        }
        Ok(listed)
    }

    /// Returns one snapshot.
    ///
    /// # Errors
    /// When there is no snapshot of this name.
    pub async fn snapshot(&self, name: &SnapshotName) -> Result<Snapshot, ApiError> {
        let (_, _, snapshot) = self.find_snapshot(name).await?;
        Ok(view(&self.pool_id(&name.of.pool), &name.of.to_string(), &snapshot))
    }

    /// Returns the id of a pool, in hexadecimal digits.
    fn pool_id(&self, pool: &str) -> String {
        self.registry().pools.get(pool).map_or_else(String::new, |entry| entry.record.id.clone())
    }

    /// Takes snapshots, all at one instant or one after the other. Durable on return.
    ///
    /// # Errors
    /// The first refusal; without `group`, the snapshots taken before it stay, and the error names
    /// them.
    pub async fn create_snapshots(self: &Arc<Daemon>, request: CreateSnapshots) -> Result<Created, ApiError> {
        let names = request.names.iter().map(|name| name.parse()).collect::<Result<Vec<SnapshotName>, _>>()?;
        if names.is_empty() {
            return Err(ApiError::usage("no snapshot is named; give POOL/VOL@SNAP"));
        }
        let request = receiving::with_origin(request, &names)?;
        let mut targets = Vec::with_capacity(names.len());
        for name in &names {
            let (shard, volume) = self.find_volume(&name.of).await?;
            if shard.find_snapshot(volume.id, &name.snapshot).await?.is_some() || targets.iter().any(|(_, _, other)| *other == name) {
                let message = format!("'{}' exists already; choose another name", name.snapshot);
                return Err(ApiError::new(ErrorKind::Exists, message).during(format!("cannot take '{name}'")));
            }
            targets.push((shard, volume.id, name));
        }
        if request.group && names.iter().any(|name| Some(&name.of.pool) != names.first().map(|first| &first.of.pool)) {
            return Err(ApiError::invalid("the snapshots of a group must be in one pool; take a group per pool"));
        }
        let now = instant::now();
        if let Some(over) = request.lock.filter(|until| *until <= now) {
            return Err(ApiError::invalid(format!("the lock would end at {over}, which is in the past; give a future time")));
        }
        let lock_millis = request.lock.map(|until| instant::to_millis(until).saturating_sub(instant::to_millis(now)));
        let Some(template) = &request.freeze else {
            return Ok(Created { names: self.take_each(&targets, &request, lock_millis).await?, not_frozen: Vec::new() });
        };
        freeze::check(template)?;
        let (mut guests, mut reasons) = (Vec::new(), Vec::new());
        for (shard, volume, name) in &targets {
            for found in self.guests_of(template, shard, &[(*volume, name.of.to_string())]).await? {
                match found {
                    Ok(guest) => guests.push(guest),
                    Err(reason) => reasons.push(reason),
                }
            }
        }
        let first = names.first().map_or_else(String::new, ToString::to_string);
        let refused = |reasons: &[String]| {
            let message = format!("{}; without --freeze-required it is taken anyway", reasons.join("; "));
            ApiError::busy(message).during(format!("cannot take '{first}' of a frozen guest"))
        };
        if request.freeze_required && !reasons.is_empty() {
            return Err(refused(&reasons));
        }
        let take = self.take_each(&targets, &request, lock_millis);
        let how = How { required: request.freeze_required, patient: true };
        let (taken, failed) = self.frozen(&guests, how, take).await;
        reasons.extend(failed);
        for reason in &reasons {
            let what = if taken.is_some() { "is taken without freezing its guest" } else { "is not taken" };
            let pool = names.first().map_or("", |name| name.of.pool.as_str());
            let message = format!("snapshot '{first}' {what}: {reason}");
            self.report(Happened::to_pool(EventKind::GuestNotFrozen, pool, message).about(&first));
        }
        match taken {
            // the guest was thawed too early; a snapshot may be locked, so it stays
            Some(Ok(names)) if request.freeze_required && !reasons.is_empty() => {
                let message = format!("{}, and is of a guest that was not frozen; destroy it, and try again", reasons.join("; "));
                Err(ApiError::busy(message).during(format!("'{}' is taken", names.join("', '"))))
            }
            Some(taken) => Ok(Created { names: taken?, not_frozen: reasons }),
            None => Err(refused(&reasons)),
        }
    }

    /// Takes the snapshots of a request.
    async fn take_each(
        &self,
        targets: &[(ShardHandle, VolumeId, &SnapshotName)],
        request: &CreateSnapshots,
        lock_millis: Option<u64>,
    ) -> Result<Vec<String>, ApiError> {
        let expires = request.expires.map(|time| Time(instant::to_millis(time)));
        let group_size = if request.group { targets.len() } else { 1 };
        if request.export.is_some() && targets.len() > 1 {
            return Err(ApiError::invalid("a receive takes one snapshot at a time"));
        }
        let _step = match targets.first() {
            Some((_, volume, name)) => {
                let locked = self.lock_step((request.export, request.origin.is_some()), &name.of.pool, *volume).await;
                locked.map_err(|e| e.during(format!("cannot take '{name}'")))?
            }
            None => None,
        };
        let mut taken: Vec<String> = Vec::new();
        for group in targets.chunks(group_size) {
            let Some((shard, _, first)) = group.first() else { continue };
            if request.origin.is_none() {
                for (shard, volume, name) in group {
                    receiving::refuse(shard, &name.of, *volume).await.map_err(|e| e.during(format!("cannot take '{name}'")))?;
                }
            }
            let command = Command::Catalog(CatalogCommand::Snapshot {
                targets: group.iter().map(|(_, volume, name)| (*volume, name.snapshot.clone())).collect(),
                description: request.description.clone(),
                expires,
                lock_millis,
            });
            shard.command(command).await.map_err(|error| {
                let before = if taken.is_empty() { String::new() } else { format!(" (taken before: {})", taken.join(" ")) };
                ApiError::from(error).during(format!("cannot take '{first}'{before}"))
            })?;
            for (_, _, name) in group {
                if let Some(time) = request.expires {
                    self.expires(&name.of.pool, time);
                }
                self.tell(EventKind::SnapshotCreated, name.to_string());
                taken.push(name.to_string());
            }
        }
        Ok(taken)
    }

    /// Rolls the volume's head back to the snapshot; the old head stays as a snapshot. Durable on
    /// return. With `dry_run`, only reports.
    ///
    /// # Errors
    /// When clients are connected without `force`, or the engine refuses.
    pub async fn rollback(&self, name: &SnapshotName, request: &Rollback) -> Result<RolledBack, ApiError> {
        let (shard, _, snapshot) = self.find_snapshot(name).await?;
        let during = format!("cannot roll back to '{name}'");
        let step = self.lock_step((request.export, request.receive), &name.of.pool, snapshot.volume).await;
        let _step = step.map_err(|e| e.during(&during))?;
        let connected = attached::to(&shard, Clients::Target(Target::Head(snapshot.volume))).await.map_err(|e| e.during(&during))?;
        if !request.receive {
            // the kept state would be of no instant
            receiving::refuse(&shard, &name.of, snapshot.volume).await.map_err(|e| e.during(&during))?;
        }
        let keep_as = unused_name(&shard, snapshot.volume, if request.receive { INTERRUPTED } else { "pre-rollback" }).await?;
        let kept_as = format!("{}@{keep_as}", name.of);
        if !request.dry_run {
            if !request.force {
                attached::refuse(&connected, "shut the guest down").map_err(|e| e.during(&during))?;
            }
            let command = Command::Catalog(CatalogCommand::Rollback { snapshot: snapshot.id, keep_as });
            shard.command(command).await.map_err(|e| ApiError::from(e).during(&during))?;
            self.tell(EventKind::VolumeRolledBack, name.to_string());
        }
        Ok(RolledBack { kept_as, connected })
    }

    /// Creates a clone: a writable volume that starts from a snapshot. Durable on return.
    ///
    /// # Errors
    /// When the name is taken or names another pool.
    pub async fn clone_snapshot(&self, name: &SnapshotName, request: &CloneSnapshot) -> Result<Volume, ApiError> {
        let new: VolumeName = request.name.parse()?;
        let during = format!("cannot clone '{name}' to '{new}'");
        if new.pool != name.of.pool {
            return Err(ApiError::invalid("a clone shares its blocks with the snapshot; name the same pool").during(during));
        }
        let (shard, _, snapshot) = self.find_snapshot(name).await?;
        receiving::refuse_incomplete(&snapshot).map_err(|e| e.during(&during))?;
        let command = Command::Catalog(CatalogCommand::Clone { snapshot: snapshot.id, name: new.volume.clone() });
        shard.command(command).await.map_err(|e| ApiError::from(e).during(&during))?;
        self.tell(EventKind::VolumeCreated, new.to_string());
        self.volume(&new).await
    }

    /// Returns the differences from `older` to `newer`; without `newer`, to the head of the volume.
    ///
    /// # Errors
    /// When they are not states of one volume or the engine refuses.
    pub async fn diff(&self, older: &Name, newer: Option<&Name>) -> Result<Vec<DiffExtent>, ApiError> {
        let head = match older {
            Name::Snapshot(name) => Name::Volume(name.of.clone()),
            Name::Volume(name) => Name::Volume(name.clone()),
        };
        let newer = newer.unwrap_or(&head);
        if older.pool() != newer.pool() {
            return Err(ApiError::invalid(format!("'{older}' and '{newer}' lie in different pools; compare within one")));
        }
        let (shard, from) = self.find_target(older).await?;
        let (_, to) = self.find_target(newer).await?;
        let extents =
            shard.diff(Some(from), to).await.map_err(|e| ApiError::from(e).during(format!("cannot compare '{older}' with '{newer}'")))?;
        let extent = |extent: millpond_engine::DiffExtent| DiffExtent {
            offset: extent.offset,
            length: extent.length,
            kind: if extent.data { ExtentKind::Data } else { ExtentKind::Zero },
        };
        Ok(extents.into_iter().map(extent).collect())
    }

    /// Destroys expired snapshots, as long as the daemon lives; snapshots with holds, clones or
    /// exports wait. Searches a pool only when one of its snapshots may have expired.
    pub async fn expire(self: Arc<Daemon>) {
        loop {
            tokio::time::sleep(EXPIRY_TURN).await;
            let now = instant::now();
            let due = |entry: &PoolEntry| !entry.record.read_only && entry.due.is_some_and(|due| due <= now);
            let pools: Vec<String> = self.registry().pools.iter().filter(|(_, entry)| due(entry)).map(|(name, _)| name.clone()).collect();
            for pool in pools {
                let Ok(shard) = self.shard(&pool) else { continue };
                // a snapshot that is taken during the search sets the next time by itself
                if let Some(entry) = self.registry().pools.get_mut(&pool) {
                    entry.due = None;
                }
                let daemon = Arc::clone(&self);
                // a pool that does not answer delays no other one
                tokio::spawn(async move {
                    let next = daemon.expire_in(&pool, &shard, now).await.unwrap_or_else(|error| {
                        tracing::warn!(pool, %error, "expired snapshots stay");
                        Some(now)
                    });
                    if let Some(next) = next {
                        daemon.expires(&pool, next);
                    }
                });
            }
        }
    }

    /// Destroys the expired snapshots of a pool, and returns when to look again.
    async fn expire_in(&self, pool: &str, shard: &ShardHandle, now: Timestamp) -> Result<Option<Timestamp>, ApiError> {
        // no snapshot is exported between the look and the command
        let _pool = self.lock_pool(pool).await?;
        let time_of = |snapshot: &SnapshotInfo| snapshot.expires.map(|time| instant::from_millis(time.0));
        let all = shard.snapshots().await?;
        let open = shard.open_files().await?;
        let (expired, waiting): (Vec<&SnapshotInfo>, Vec<&SnapshotInfo>) =
            all.iter().filter(|snapshot| snapshot.expires.is_some()).partition(|snapshot| {
                let target = Target::Snapshot(snapshot.id);
                let served = self.serves(pool, target).is_some() || open.iter().any(|file| file.target == target);
                time_of(snapshot).is_some_and(|time| time <= now) && snapshot.holds == 0 && snapshot.clones == 0 && !served
            });
        if !expired.is_empty() {
            shard.command(CatalogCommand::DestroySnapshots { snapshots: expired.iter().map(|snapshot| snapshot.id).collect() }).await?;
            let volumes = shard.volumes().await.unwrap_or_default();
            let volume = |id| volumes.iter().find(|volume| volume.id == id).map_or("?", |volume| volume.name.as_str());
            let name = |snapshot: &SnapshotInfo| format!("{pool}/{}@{}", volume(snapshot.volume), snapshot.name);
            expired.iter().for_each(|snapshot| self.tell(EventKind::SnapshotExpired, name(snapshot)));
        }
        Ok(waiting.into_iter().filter_map(time_of).min())
    }

    /// Notes that a snapshot of the pool expires at `time`.
    pub(super) fn expires(&self, pool: &str, time: Timestamp) {
        if let Some(entry) = self.registry().pools.get_mut(pool) {
            entry.due = Some(entry.due.map_or(time, |due| due.min(time)));
        }
    }
}

/// Returns a name for a snapshot of a volume's state before a command: the command and the time.
///
/// # Errors
/// When the pool does not answer.
pub(super) async fn unused_name(shard: &ShardHandle, volume: VolumeId, before: &str) -> Result<String, ApiError> {
    let stamp = format!("{before}-{}", instant::now().strftime("%Y%m%dT%H%M%SZ"));
    let mut name = stamp.clone();
    let mut n = 2u32;
    while shard.find_snapshot(volume, &name).await?.is_some() {
        name = format!("{stamp}-{n}");
        n += 1;
    }
    Ok(name)
}

fn view(pool_id: &str, volume: &str, snapshot: &SnapshotInfo) -> Snapshot {
    let (description, origin) = SnapshotOrigin::split(&snapshot.description);
    let own = || SnapshotIdentity::new(pool_id, snapshot.id.0, snapshot.epoch, snapshot.created.0);
    let received = origin.is_some();
    let (identity, receiving) = match origin {
        None => (Some(own()).filter(|_| !receiving::is_incomplete(snapshot)), None),
        Some(SnapshotOrigin { identity, position: Some(position), base }) => (None, Some(Receiving { identity, position, base })),
        Some(SnapshotOrigin { identity, position: None, .. }) => (Some(identity).filter(|_| !receiving::is_incomplete(snapshot)), None),
    };
    // a received snapshot was taken when its original was
    let created = identity.as_ref().and_then(taken).unwrap_or_else(|| instant::from_millis(snapshot.created.0));
    Snapshot {
        name: format!("{volume}@{}", snapshot.name),
        id: snapshot.id.0,
        created,
        epoch: snapshot.epoch,
        size: snapshot.size,
        referenced_bytes: snapshot.referenced_bytes,
        unique_bytes: snapshot.unique_bytes,
        holds: snapshot.holds,
        hold_tags: snapshot.hold_list.iter().filter_map(|hold| hold.tag.clone()).collect(),
        hold_list: snapshot.hold_list.iter().map(holds::view).collect(),
        clones: snapshot.clones,
        description: description.to_owned(),
        expires: snapshot.expires.map(|time| instant::from_millis(time.0)),
        received: received && identity.is_some(),
        identity,
        receiving,
    }
}
