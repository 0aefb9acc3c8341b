//! Caps of single devices: set, kept in the daemon's state, and applied again after each import.

use millpond_api::{ApiError, DeviceCap, EventKind, LimitDevice, Pool};
use millpond_block::MemberId;
use millpond_device::DeviceLimit;

use super::service::Daemon;
use super::shard::{ShardError, ShardHandle};
use super::state::PoolRecord;

impl Daemon {
    /// Caps a device. In force, and saved for later imports, on return.
    ///
    /// # Errors
    /// When there is no such pool or device, or the state cannot be saved.
    pub async fn limit_device(&self, name: &str, request: LimitDevice) -> Result<Pool, ApiError> {
        let _pool = self.lock_pool(name).await?;
        let shard = self.shard(name)?;
        let member = self.member(name, &shard, &request.device).await?;
        let cap = {
            let mut registry = self.registry();
            let limits = registry.pools.get_mut(name).map(|entry| &mut entry.record.limits);
            let limits = limits.ok_or_else(|| ApiError::not_found(format!("no pool '{name}'; see 'millpond pool list'")))?;
            let old = limits.get(&member.0).copied().unwrap_or_default();
            // 0 removes a limit
            let cap = |new: Option<u64>, old: Option<u64>| new.or(old).filter(|limit| *limit > 0);
            let cap = DeviceCap { bps: cap(request.bps, old.bps), iops: cap(request.iops, old.iops) };
            match cap == DeviceCap::default() {
                true => limits.remove(&member.0),
                false => limits.insert(member.0, cap),
            };
            cap
        };
        set(&shard, member, cap)
            .await
            .map_err(|e| ApiError::from(e).during(format!("cannot limit {} of pool '{name}'", request.device)))?;
        self.save()?;
        self.tell(EventKind::DeviceLimited, format!("{name} {}", request.device));
        self.pool(name).await
    }
}

/// Caps one device of a shard. A missing device is capped at a later import.
async fn set(shard: &ShardHandle, member: MemberId, cap: DeviceCap) -> Result<(), ShardError> {
    let status = shard.status().await?;
    let slot = status.pool.devices.iter().find(|device| device.member == member).and_then(|device| device.slot);
    let Some(slot) = slot else { return Ok(()) };
    let limit = DeviceLimit { bytes_per_second: cap.bps, ops_per_second: cap.iops };
    shard.limit_device(slot, limit).await
}

/// Applies the remembered caps of a pool.
pub(super) async fn apply(record: &PoolRecord, shard: &ShardHandle) {
    for (member, cap) in &record.limits {
        if let Err(error) = set(shard, MemberId(*member), *cap).await {
            tracing::warn!(pool = record.name, device = member, %error, "a device is not capped");
        }
    }
}
