//! Destroying a pool: its exports end, and its labels are erased.
//!
//! INV-HOLD-2: a pool with locked snapshots is not destroyed. One that is not in service is opened
//! read-only to find out; if it cannot be opened, it is not destroyed. Only the devices that the pool
//! uses when its locks are read lose their labels: another one may have a later state, and locks.

use std::path::PathBuf;

use millpond_api::{ApiError, ErrorKind, EventKind, PoolRemoval, instant};
use millpond_block::DeviceSlot;
use millpond_engine::{MemberState, SnapshotInfo};
use millpond_format::{DeviceId, FEATURES, FeatureKind, Unknown};

use super::closing::Ending;
use super::service::Daemon;
use super::shard::{ShardHandle, ShardStatus};

/// A device that a pool used when its locks were read: where it was, and its id.
pub(super) type Examined = (PathBuf, DeviceId);

/// Content of a pool that is to be destroyed.
#[derive(Default)]
pub(super) struct Doomed {
    volumes: Vec<String>,
    snapshots: u64,
    /// Devices that it uses.
    devices: Vec<Examined>,
}

impl Doomed {
    /// Reads the content of a pool through its shard.
    ///
    /// # Errors
    /// When it has locked snapshots, or does not answer.
    pub(super) async fn of(name: &str, shard: &ShardHandle) -> Result<Doomed, ApiError> {
        let devices = used(&shard.status().await?);
        let volumes = shard.volumes().await?.into_iter().map(|volume| format!("{name}/{}", volume.name)).collect();
        let snapshots = shard.snapshots().await?;
        refuse_locked(name, &snapshots)?;
        Ok(Doomed { volumes, snapshots: snapshots.len() as u64, devices })
    }
}

/// Returns the devices that a pool uses: those of members that are not down, and replacements.
fn used(status: &ShardStatus) -> Vec<Examined> {
    let at = |slot: DeviceSlot| status.host(slot).map(|host| host.path.clone());
    let used = status.pool.devices.iter().filter(|device| device.state != MemberState::Down);
    let slots = used.flat_map(|device| [device.slot.zip(Some(device.id)), device.replacement.zip(device.replacement_id)]);
    slots.flatten().filter_map(|(slot, id)| Some((at(slot)?, id))).collect()
}

impl Daemon {
    /// Destroys a pool with all its volumes: overwrites both areas (labels, claims and roots) of
    /// its devices. With `dry_run`, only reports what would be lost, after the same checks.
    ///
    /// # Errors
    /// When clients are connected, snapshots are locked, the pool can only be read, or a label cannot
    /// be overwritten.
    pub(crate) async fn destroy_pool(&self, name: &str, dry_run: bool) -> Result<PoolRemoval, ApiError> {
        let _importing = self.importing(name).await.map_err(|e| e.during(format!("cannot destroy pool '{name}'")))?;
        let _pool = self.lock_pool(name).await?;
        let pool = self.pool(name).await?;
        let doomed = self.refuse_to_destroy(name, pool.readonly).await?;
        let mut removal = PoolRemoval {
            name: name.to_owned(),
            volumes: doomed.volumes,
            snapshots: doomed.snapshots,
            allocated: pool.allocated,
            devices: pool.devices.iter().map(|device| device.path.clone()).collect(),
            left: Vec::new(),
            exports: self.exports_of(name),
        };
        if dry_run {
            return Ok(removal);
        }
        // A shard that cannot write its last checkpoint is no reason to keep a pool that is to be
        // destroyed.
        match self.close_pool(name, true).await {
            Ending::Clean => {}
            Ending::Unclean(why) => tracing::warn!(pool = name, "closing before destroying: {why}"),
            ending @ Ending::InUse(_) => {
                self.retire(name, &ending);
                self.save()?;
                let message = format!(
                    "pool '{name}' is exported and not destroyed: its devices do not answer; when they do, import it and destroy it again"
                );
                return Err(ApiError::busy(message));
            }
        }
        removal.exports = self.exports_of(name);
        let record = {
            let mut registry = self.registry();
            registry.exports.retain(|_, export| export.record.pool != name);
            registry.pools.remove(name).map(|entry| entry.record)
        };
        record.iter().for_each(|record| self.forget_pool_of_policies(&record.id));
        self.share_read_cache();
        // Save first that the pool is gone: a crash from here on may leave a pool that can be
        // imported, but never a daemon that expects a destroyed one.
        self.save()?;
        let record = record.ok_or_else(|| ApiError::internal(format!("pool '{name}' has no record")))?;
        let taken = self.take_labels(&record, &doomed.devices).await;
        removal.exports.iter().for_each(|export| self.tell(EventKind::ExportRemoved, format!("{} {}", export.id, export.name)));
        self.conditions.forget(&record.id);
        self.tell(EventKind::PoolDestroyed, name);
        removal.left = taken?;
        Ok(removal)
    }
}

impl Daemon {
    /// Checks that a pool may be destroyed, and reads its content.
    ///
    /// # Errors
    /// The reason why it may not.
    async fn refuse_to_destroy(&self, name: &str, readonly: bool) -> Result<Doomed, ApiError> {
        let Ok(shard) = self.shard(name) else { return self.examine_to_destroy(name).await };
        let status = shard.status().await?;
        if let Some(unknown) = Unknown::of(status.pool.named_features, &status.pool.feature_names, FeatureKind::RoCompat, FEATURES) {
            return Err(needs_newer(name, &unknown));
        }
        refuse_read_only(name, readonly)?;
        let doomed = Doomed::of(name, &shard).await?;
        self.refuse_clients(name, "destroy").await?;
        Ok(doomed)
    }
}

/// Refuses to destroy a pool that the user imported read-only.
pub(super) fn refuse_read_only(name: &str, readonly: bool) -> Result<(), ApiError> {
    match readonly {
        true => {
            Err(ApiError::busy(format!("pool '{name}' is imported read-only; export it and import it without --readonly to destroy it")))
        }
        false => Ok(()),
    }
}

/// Returns the error for a pool with features that a program has to know to write to it.
pub(super) fn needs_newer(name: &str, unknown: &Unknown) -> ApiError {
    let why = format!("cannot destroy pool '{name}': it has {unknown}; install a newer version of Millpond, nothing was changed");
    ApiError::new(ErrorKind::Unavailable, why)
}

/// Refuses to destroy a pool with locked snapshots.
fn refuse_locked(name: &str, snapshots: &[SnapshotInfo]) -> Result<(), ApiError> {
    let locks = snapshots.iter().flat_map(|snapshot| &snapshot.hold_list).filter(|hold| hold.locked);
    let (count, last) = locks.fold((0u64, None), |(count, last), hold| (count + 1, last.max(hold.until)));
    let Some(last) = last else { return Ok(()) };
    let until = instant::from_millis(last.0).strftime("%Y-%m-%dT%H:%M:%SZ");
    Err(ApiError::busy(format!("cannot destroy pool '{name}': it has {count} locked snapshots, the last lock ends at {until} or later")))
}
