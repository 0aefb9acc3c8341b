//! Full copies: a new volume, in any pool, with the content of a snapshot. Each is a job of the
//! daemon.
//!
//! The volume has a temporary name until it is complete, and the snapshot is held. Both are
//! remembered before they are made, so that a daemon that was killed undoes them at its next start.
//! Data goes from shard to shard; only mapped extents of the snapshot are copied.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use millpond_api::instant;
use millpond_api::names::{SnapshotName, VolumeName};
use millpond_api::size::Size;
use millpond_api::{ApiError, CopySnapshot, ErrorKind, EventKind, FullCopy, FullCopyState, Job, JobKind, JobState};
use millpond_block::ByteRange;
use millpond_engine::{
    CatalogCommand, Command, CommandError, Compression, DiffExtent, SnapshotId, SnapshotInfo, Target, VolumeId, VolumeInfo, VolumeOptions,
};
use serde::{Deserialize, Serialize};

use super::events::Happened;
use super::receiving;
use super::service::Daemon;
use super::shard::{ShardError, ShardHandle};

/// Bytes of one read and its write.
const PIECE: u64 = 1 << 20;
/// Bytes that an engine keeps free for each reserved volume beside its reservation.
const KEPT_TO_OVERWRITE: u64 = 4 << 20;
/// Pieces in flight.
const IN_FLIGHT: usize = 4;
/// Longest part of the new name in the name of an incomplete volume.
const NAME_PART: usize = 200;

/// A copy that has not ended, as the state file has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyRecord {
    /// The pool that gets the volume.
    pub pool: String,
    /// Name of the volume while it is incomplete.
    pub volume: String,
    /// The pool of the snapshot.
    pub source: String,
    /// The snapshot.
    pub snapshot: u64,
    /// Tag of the hold on the snapshot; `None` where its pool is read-only.
    pub tag: Option<String>,
}

/// A copy, in progress or ended.
pub(super) struct Copying {
    name: VolumeName,
    /// Kept until everything that has to be undone is undone.
    record: Option<CopyRecord>,
    progress: Arc<CopyProgress>,
    begun: Instant,
    /// How it ended.
    outcome: Option<Result<(), String>>,
}

/// Progress of a copy, shared with its task.
#[derive(Debug, Default)]
struct CopyProgress {
    total: AtomicU64,
    done: AtomicU64,
    stop: AtomicBool,
}

/// Copies since the start of the daemon, and those that an earlier daemon left behind.
#[derive(Default)]
pub(super) struct Copies {
    jobs: BTreeMap<u64, Copying>,
    left: Vec<CopyRecord>,
    next: u64,
}

/// Number of ended copies that are kept for queries.
const ENDED_KEPT: usize = 64;

impl Copies {
    /// Starts with the copies that an earlier daemon left behind.
    pub(super) fn left(left: Vec<CopyRecord>) -> Copies {
        Copies { left, ..Copies::default() }
    }

    /// Returns the copies that the state file records.
    pub(super) fn records(&self) -> Vec<CopyRecord> {
        self.left.iter().chain(self.jobs.values().filter_map(|job| job.record.as_ref())).cloned().collect()
    }

    fn forget_ended(&mut self) {
        let ended: Vec<u64> =
            self.jobs.iter().filter(|(_, job)| job.outcome.is_some() && job.record.is_none()).map(|(id, _)| *id).collect();
        let many = ended.len().saturating_sub(ENDED_KEPT);
        ended.iter().take(many).for_each(|id| drop(self.jobs.remove(id)));
    }
}

/// Everything that the task of a copy needs.
struct Task {
    id: u64,
    source: ShardHandle,
    snapshot: SnapshotId,
    target: ShardHandle,
    volume: VolumeId,
    options: VolumeOptions,
    name: VolumeName,
    progress: Arc<CopyProgress>,
}

impl Daemon {
    /// Begins to copy a snapshot into a new volume; with `dry_run`, only reports what the copy
    /// would take. The job has begun on return.
    ///
    /// # Errors
    /// When the name is taken, there is not enough room, or an engine refuses.
    pub async fn copy_snapshot(self: &Arc<Daemon>, name: &SnapshotName, request: &CopySnapshot) -> Result<FullCopy, ApiError> {
        let new: VolumeName = request.name.parse()?;
        let during = format!("cannot copy '{name}' to '{new}'");
        let (source, of, snapshot) = self.find_snapshot(name).await?;
        receiving::refuse_incomplete(&snapshot).map_err(|e| e.during(&during))?;
        let target = self.shard(&new.pool)?;
        let taken = target.find_volume(&new.volume).await?.is_some() || self.is_being_copied(&new);
        if taken {
            return Err(ApiError::from(ShardError::Command(CommandError::Exists(new.to_string()))).during(during));
        }
        self.check_room(&target, &new.pool, &of, &snapshot).await.map_err(|e| e.during(&during))?;
        let total = snapshot.referenced_bytes;
        if request.dry_run {
            return Ok(FullCopy {
                id: 0,
                name: new.to_string(),
                total_bytes: total,
                done_bytes: 0,
                state: FullCopyState::Planned,
                error: None,
            });
        }
        let stamp = instant::now().as_millisecond();
        let read_only = self.registry().pools.get(&name.of.pool).is_some_and(|entry| entry.record.read_only);
        let progress = Arc::new(CopyProgress { total: AtomicU64::new(total), ..CopyProgress::default() });
        let (id, record) = {
            let mut copies = self.copies();
            copies.next += 1;
            let id = copies.next;
            let part: String = new.volume.chars().take(NAME_PART).collect();
            let record = CopyRecord {
                pool: new.pool.clone(),
                volume: format!("{part}.copying-{stamp}-{id}"),
                source: name.of.pool.clone(),
                snapshot: snapshot.id.0,
                tag: (!read_only).then(|| format!("copy-{stamp}-{id}")),
            };
            let (progress, kept) = (Arc::clone(&progress), Some(record.clone()));
            copies.jobs.insert(id, Copying { name: new.clone(), record: kept, progress, begun: Instant::now(), outcome: None });
            (id, record)
        };
        match self.prepare_copy(&record, &source, &target, &of, &snapshot).await {
            Ok(volume) => {
                // reservation and read cache were set for the original volume alone
                let options = VolumeOptions { reservation: 0, read_cache: None, ..of.options };
                let task = Task { id, source, snapshot: snapshot.id, target, volume, options, name: new, progress };
                let daemon = Arc::clone(self);
                tokio::spawn(async move { daemon.copy(task).await });
                self.full_copy(id)
            }
            Err(error) => {
                self.end_copy(id, Err(error.to_string())).await;
                Err(error.during(during))
            }
        }
    }

    /// Saves the record, holds the snapshot, and creates the volume.
    async fn prepare_copy(
        &self,
        record: &CopyRecord,
        source: &ShardHandle,
        target: &ShardHandle,
        of: &VolumeInfo,
        snapshot: &SnapshotInfo,
    ) -> Result<VolumeId, ApiError> {
        self.save()?;
        if let Some(tag) = record.tag.clone() {
            source.command(CatalogCommand::Hold { snapshot: snapshot.id, tag: Some(tag), until: None, locked: false }).await?;
        }
        let (sector, cache, compression) = (of.sector, of.cache, of.compression);
        let command =
            Command::Catalog(CatalogCommand::CreateVolume { name: record.volume.clone(), size: snapshot.size, sector, cache, compression });
        target.command(command).await?;
        let made = target.find_volume(&record.volume).await?;
        made.map(|volume| volume.id).ok_or_else(|| ApiError::internal("the new volume is not there; see the daemon's messages"))
    }

    /// Checks that there is room. Compressed data may take less than `referenced_bytes`, so such a
    /// copy may always try.
    async fn check_room(&self, target: &ShardHandle, pool: &str, of: &VolumeInfo, snapshot: &SnapshotInfo) -> Result<(), ApiError> {
        let (status, volumes) = (target.status().await?, target.volumes().await?);
        let reserved = volumes.iter().filter(|volume| volume.options.reservation > 0);
        let kept: u64 = reserved.map(|volume| volume.options.reservation.saturating_sub(volume.unique_bytes) + KEPT_TO_OVERWRITE).sum();
        let free = status.pool.free.saturating_sub(kept);
        if of.compression != Compression::Off || snapshot.referenced_bytes <= free {
            return Ok(());
        }
        let message = format!(
            "it needs {} and pool '{pool}' has {} free; destroy snapshots, or add a device with 'millpond pool add'",
            Size(snapshot.referenced_bytes),
            Size(free)
        );
        Err(ApiError::new(ErrorKind::NoSpace, message))
    }

    fn is_being_copied(&self, name: &VolumeName) -> bool {
        self.copies().jobs.values().any(|job| job.outcome.is_none() && job.name == *name)
    }

    /// Returns the progress of a copy, or its outcome.
    ///
    /// # Errors
    /// When there is no copy of this number, or it ended long ago.
    pub fn full_copy(&self, id: u64) -> Result<FullCopy, ApiError> {
        let copies = self.copies();
        let job = copies.jobs.get(&id).ok_or_else(|| ApiError::not_found(format!("no copy {id} since the daemon started")))?;
        let (state, error) = match &job.outcome {
            None => (FullCopyState::Running, None),
            Some(Ok(())) => (FullCopyState::Done, None),
            Some(Err(why)) => (FullCopyState::Failed, Some(why.clone())),
        };
        let (total_bytes, done_bytes) = (job.progress.total.load(Relaxed), job.progress.done.load(Relaxed));
        Ok(FullCopy { id, name: job.name.to_string(), total_bytes, done_bytes, state, error })
    }

    /// Stops a copy; its incomplete volume is destroyed soon.
    ///
    /// # Errors
    /// When there is no copy of this number.
    pub fn stop_copy(&self, id: u64) -> Result<FullCopy, ApiError> {
        if let Some(job) = self.copies().jobs.get(&id) {
            job.progress.stop.store(true, Relaxed);
        }
        self.full_copy(id)
    }

    /// Returns the running copies, as jobs of the pools that get the volumes.
    pub(super) fn copy_jobs(&self) -> Vec<Job> {
        let copies = self.copies();
        let running = copies.jobs.values().filter(|job| job.outcome.is_none());
        running.map(Copying::job).collect()
    }

    async fn copy(&self, task: Task) {
        let outcome = fill(&task).await;
        let outcome = match outcome {
            Ok(()) => self.publish_copy(&task).await.map_err(|e| e.to_string()),
            Err(Stop::Asked) => Err("interrupted; the incomplete result is removed".to_owned()),
            Err(Stop::Failed(error)) => Err(full_or(error, &task)),
        };
        self.end_copy(task.id, outcome).await;
    }

    /// Gives a complete copy its properties and its name. Durable on return.
    async fn publish_copy(&self, task: &Task) -> Result<(), ShardError> {
        let _pool = self.lock_pool(&task.name.pool).await.ok();
        task.target.flush(Target::Head(task.volume)).await?;
        if task.options != VolumeOptions::default() {
            task.target.command(CatalogCommand::SetOptions { volume: task.volume, options: task.options }).await?;
        }
        let name = task.name.volume.clone();
        task.target.command(CatalogCommand::RenameVolume { volume: task.volume, name }).await.map(drop)
    }

    /// Ends a copy: releases the snapshot and, when the copy failed, destroys its volume.
    async fn end_copy(&self, id: u64, outcome: Result<(), String>) {
        let record = self.copies().jobs.get(&id).and_then(|job| job.record.clone());
        let back = match &record {
            Some(record) => self.take_back(record).await,
            None => true,
        };
        let name = {
            let mut copies = self.copies();
            let Some(job) = copies.jobs.get_mut(&id) else { return };
            job.outcome = Some(outcome.clone());
            let (name, record) = (job.name.clone(), job.record.take());
            if !back {
                copies.left.extend(record);
            }
            copies.forget_ended();
            name
        };
        if let Err(error) = self.save() {
            tracing::error!(%error, "a copy that ended is still remembered");
        }
        match outcome {
            Ok(()) => self.tell(EventKind::VolumeCopied, name.to_string()),
            Err(why) => {
                let message = format!("the full copy to '{name}' ended: {why}");
                self.report(Happened::to_pool(EventKind::VolumeCopyFailed, &name.pool, message).about(name.to_string()));
            }
        }
    }

    /// Undoes the copies that an earlier daemon left behind. Call it when a pool comes into
    /// service.
    pub(super) async fn take_back_copies(&self, pool: &str) {
        let left: Vec<CopyRecord> = self.copies().left.iter().filter(|left| left.pool == pool || left.source == pool).cloned().collect();
        for record in left {
            if !self.take_back(&record).await {
                continue;
            }
            self.copies().left.retain(|other| *other != record);
            if let Err(error) = self.save() {
                tracing::error!(%error, "cannot forget a removed copy");
            }
        }
    }

    /// Destroys the incomplete volume, where it still has its temporary name, and releases the
    /// snapshot. Returns false when one of them fails, as when a pool is not in service.
    async fn take_back(&self, record: &CopyRecord) -> bool {
        let volume = self.destroy_incomplete(record).await;
        let hold = self.release_source(record).await;
        for error in [&volume, &hold].into_iter().filter_map(|done| done.as_ref().err()) {
            tracing::warn!(pool = record.pool, volume = record.volume, %error, "cannot remove the volume or the hold of an incomplete copy yet");
        }
        volume.is_ok() && hold.is_ok()
    }

    async fn destroy_incomplete(&self, record: &CopyRecord) -> Result<(), ApiError> {
        if !self.knows(&record.pool) {
            return Ok(());
        }
        let shard = self.shard(&record.pool)?;
        let Some(volume) = shard.find_volume(&record.volume).await? else { return Ok(()) };
        Ok(shard.command(CatalogCommand::DestroyVolume { volume: volume.id }).await.map(drop)?)
    }

    async fn release_source(&self, record: &CopyRecord) -> Result<(), ApiError> {
        let Some(tag) = record.tag.clone().filter(|_| self.knows(&record.source)) else { return Ok(()) };
        let shard = self.shard(&record.source)?;
        let snapshots = shard.snapshots().await?;
        let held = |snapshot: &&SnapshotInfo| {
            snapshot.id.0 == record.snapshot && snapshot.hold_list.iter().any(|hold| hold.tag.as_ref() == Some(&tag))
        };
        let Some(snapshot) = snapshots.iter().find(held) else { return Ok(()) };
        Ok(shard.command(CatalogCommand::Release { snapshot: snapshot.id, tag: Some(tag.clone()) }).await.map(drop)?)
    }

    /// True for a pool of this daemon, in service or not.
    fn knows(&self, pool: &str) -> bool {
        let registry = self.registry();
        registry.pools.contains_key(pool) || registry.known.iter().any(|known| known.name == pool)
    }
}

impl Copying {
    fn job(&self) -> Job {
        let (total, done) = (self.progress.total.load(Relaxed), self.progress.done.load(Relaxed));
        let remaining = total.saturating_sub(done);
        let millis = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        let rate = Some(done.saturating_mul(1000) / millis).filter(|rate| *rate > 0);
        Job {
            id: format!("copy:{}", self.name),
            pool: self.name.pool.clone(),
            kind: JobKind::Copy,
            state: JobState::Running,
            remaining_bytes: remaining,
            done_bytes: done,
            rate,
            eta_seconds: rate.map(|rate| remaining.div_ceil(rate)),
            errors: 0,
        }
    }
}

/// Reason why a copy does not go on.
enum Stop {
    Asked,
    Failed(ShardError),
}

/// Copies the mapped extents of the snapshot.
async fn fill(task: &Task) -> Result<(), Stop> {
    let (from, to) = (Target::Snapshot(task.snapshot), Target::Head(task.volume));
    let extents = task.source.diff(None, from).await.map_err(Stop::Failed)?;
    let data: Vec<DiffExtent> = extents.into_iter().filter(|extent| extent.data).collect();
    task.progress.total.store(data.iter().map(|extent| extent.length).sum(), Relaxed);
    let pieces = data.into_iter().flat_map(|extent| {
        let end = extent.offset + extent.length;
        (extent.offset..end).step_by(PIECE as usize).map(move |offset| ByteRange { offset, length: PIECE.min(end - offset) })
    });
    let copied = stream::iter(pieces).map(Ok).try_for_each_concurrent(IN_FLIGHT, |piece| async move {
        if task.progress.stop.load(Relaxed) {
            return Err(Stop::Asked);
        }
        let bytes = task.source.read(from, piece).await.map_err(Stop::Failed)?;
        task.target.write(to, piece.offset, bytes).await.map_err(Stop::Failed)?;
        task.progress.done.fetch_add(piece.length, Relaxed);
        Ok(())
    });
    copied.await
}

/// Returns the text of an error; with figures when the pool filled up.
fn full_or(error: ShardError, task: &Task) -> String {
    if matches!(error, ShardError::Disk(millpond_block::DiskError::NoSpace)) {
        let (done, total) = (task.progress.done.load(Relaxed), task.progress.total.load(Relaxed));
        return format!("pool '{}' is full after {} of {}; destroy snapshots, or add a device", task.name.pool, Size(done), Size(total));
    }
    ApiError::from(error).to_string()
}
