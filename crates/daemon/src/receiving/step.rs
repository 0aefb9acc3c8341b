//! Steps of a receive: requests that a receive alone makes.
//!
//! A step is carried out only while the export of its receive exists. Both this look and the end of
//! an export hold the lock of the pool, so after the answer to a request that ends the export the
//! receive changes nothing more: its writes in progress are completed before that answer, and its
//! later steps are refused. An id of an export is never used again, and a daemon that starts has no
//! exports of receives, so that lasts also if the daemon is killed.

use millpond_api::ApiError;
use millpond_engine::VolumeId;

use crate::locks::PoolLock;
use crate::service::Daemon;
use crate::state::Served;

impl Daemon {
    /// Checks a step of a receive into a volume. The caller holds the lock of the pool.
    ///
    /// # Errors
    /// Kind busy when the export of the receive has ended: another command has ended the receive.
    pub(crate) fn check_step(&self, export: Option<u64>, pool: &str, volume: VolumeId) -> Result<(), ApiError> {
        let Some(id) = export else {
            return Err(ApiError::invalid("a receive has to name its export; use the millpond that belongs to the daemon"));
        };
        let registry = self.registry();
        let serves = |served: Option<Served>| served == Some(Served::Volume(volume.0));
        let entry = registry.exports.get(&id).filter(|entry| entry.receive && entry.record.pool == pool);
        match entry.is_some_and(|entry| serves(entry.record.protocol.served())) {
            true => Ok(()),
            false => Err(ApiError::busy("another command, such as 'millpond failover', or a restart of the daemon has ended this receive")),
        }
    }

    /// Takes the lock of the pool for a step of a receive, and checks the step. Other requests need
    /// neither.
    ///
    /// # Errors
    /// Those of [`Daemon::check_step`] and [`Daemon::lock_pool`].
    pub(crate) async fn lock_step(
        &self,
        (export, is_step): (Option<u64>, bool),
        pool: &str,
        volume: VolumeId,
    ) -> Result<Option<PoolLock>, ApiError> {
        if !is_step && export.is_none() {
            return Ok(None);
        }
        let lock = self.lock_pool(pool).await?;
        self.check_step(export, pool, volume)?;
        Ok(Some(lock))
    }
}
