//! Volumes, snapshots and devices by the names that users give.

use std::path::PathBuf;

use millpond_api::names::{Name, SnapshotName, VolumeName};
use millpond_api::{ApiError, DeviceNamed, IoMode};
use millpond_block::MemberId;
use millpond_engine::{SnapshotInfo, Target, VolumeInfo};

use super::device_names::DeviceNames;
use super::service::Daemon;
use super::shard::{ShardHandle, ShardStatus};
use super::state::PoolRecord;

impl Daemon {
    /// Returns the shard and the target that a name stands for.
    pub(super) async fn find_target(&self, name: &Name) -> Result<(ShardHandle, Target), ApiError> {
        Ok(match name {
            Name::Volume(name) => {
                let (shard, volume) = self.find_volume(name).await?;
                (shard, Target::Head(volume.id))
            }
            Name::Snapshot(name) => {
                let (shard, _, snapshot) = self.find_snapshot(name).await?;
                (shard, Target::Snapshot(snapshot.id))
            }
        })
    }

    /// Finds a volume by name.
    pub(super) async fn find_volume(&self, name: &VolumeName) -> Result<(ShardHandle, VolumeInfo), ApiError> {
        let shard = self.shard(&name.pool)?;
        let found = shard.find_volume(&name.volume).await?;
        let volume = found.ok_or_else(|| ApiError::not_found(format!("no volume '{name}'; see 'millpond list {}'", name.pool)))?;
        Ok((shard, volume))
    }

    /// Finds a snapshot by name.
    pub(super) async fn find_snapshot(&self, name: &SnapshotName) -> Result<(ShardHandle, VolumeInfo, SnapshotInfo), ApiError> {
        let (shard, volume) = self.find_volume(&name.of).await?;
        let found = shard.find_snapshot(volume.id, &name.snapshot).await?;
        let snapshot =
            found.ok_or_else(|| ApiError::not_found(format!("no snapshot '{name}'; see 'millpond list -t snapshot {}'", name.of)))?;
        Ok((shard, volume, snapshot))
    }

    /// Returns the names of the devices of a pool in service.
    pub(super) fn device_names(&self, name: &str, status: &ShardStatus) -> DeviceNames {
        let fresh = || PoolRecord::new(name.to_owned(), String::new(), Vec::new(), IoMode::default());
        let record = self.registry().pools.get(name).map(|entry| entry.record.clone());
        DeviceNames::of(&record.unwrap_or_else(fresh), status)
    }

    /// Returns all names of a member of a pool.
    pub(super) async fn device_named(&self, name: &str, shard: &ShardHandle, member: MemberId) -> Result<DeviceNamed, ApiError> {
        let status = shard.status().await?;
        let names = self.device_names(name, &status);
        let known =
            names.get(member, false).ok_or_else(|| ApiError::not_found(format!("pool '{name}' has no device {member} any more")))?;
        let text = |path: &PathBuf| path.display().to_string();
        let listed = status.pool.devices.iter().find(|device| device.member == member);
        let host = listed.and_then(|device| status.host(device.slot?));
        Ok(DeviceNamed {
            id: known.id.clone(),
            path: known.path.as_ref().map(text).unwrap_or_default(),
            was: known.was.as_ref().map(text),
            serial: known.serial.clone(),
            size: host.map(|host| host.geometry.size).or(listed.map(|device| device.size)).unwrap_or(0),
        })
    }
}
