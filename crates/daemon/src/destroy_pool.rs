//! Destroying a pool: its exports end, and its labels are erased.

use millpond_api::{ApiError, EventKind, PoolRemoval, instant};
use millpond_engine::SnapshotInfo;

use super::closing::Ending;
use super::service::Daemon;

impl Daemon {
    /// Destroys a pool with all its volumes: overwrites both areas (labels, claims and roots) of
    /// its devices. With `dry_run`, only reports what would be lost.
    ///
    /// # Errors
    /// When clients are connected or a label cannot be overwritten.
    pub(crate) async fn destroy_pool(&self, name: &str, dry_run: bool) -> Result<PoolRemoval, ApiError> {
        let _importing = self.importing(name).await.map_err(|e| e.during(format!("cannot destroy pool '{name}'")))?;
        let _pool = self.lock_pool(name).await?;
        let pool = self.pool(name).await?;
        let mut removal = PoolRemoval {
            name: name.to_owned(),
            volumes: Vec::new(),
            snapshots: 0,
            allocated: pool.allocated,
            devices: pool.devices.iter().map(|device| device.path.clone()).collect(),
            left: Vec::new(),
            exports: self.exports_of(name),
        };
        if let Ok(shard) = self.shard(name) {
            removal.volumes = shard.volumes().await?.into_iter().map(|volume| format!("{name}/{}", volume.name)).collect();
            let snapshots = shard.snapshots().await?;
            refuse_locked(name, &snapshots)?;
            removal.snapshots = snapshots.len() as u64;
        }
        if dry_run {
            return Ok(removal);
        }
        if pool.readonly {
            let why = format!("pool '{name}' is imported read-only; export it and import it without --readonly to destroy it");
            return Err(ApiError::busy(why));
        }
        self.refuse_others(name).await?;
        self.refuse_clients(name, "destroy").await?;
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
        removal.left = self.take_labels(&record).await?;
        removal.exports.iter().for_each(|export| self.tell(EventKind::ExportRemoved, format!("{} {}", export.id, export.name)));
        self.conditions.forget(&record.id);
        self.tell(EventKind::PoolDestroyed, name);
        Ok(removal)
    }
}

/// Refuses to destroy a pool with locked snapshots.
fn refuse_locked(name: &str, snapshots: &[SnapshotInfo]) -> Result<(), ApiError> {
    let locks = snapshots.iter().flat_map(|snapshot| &snapshot.hold_list).filter(|hold| hold.locked);
    let (count, last) = locks.fold((0u64, None), |(count, last), hold| (count + 1, last.max(hold.until)));
    let Some(last) = last else { return Ok(()) };
    let until = instant::from_millis(last.0).strftime("%Y-%m-%dT%H:%M:%SZ");
    Err(ApiError::busy(format!("cannot destroy pool '{name}': it has {count} locked snapshots, the last lock ends at {until} or later")))
}
