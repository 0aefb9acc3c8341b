//! Forecasts of a pool's space.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Forecast of the space of a pool. Rates are null until the daemon has measured for a minute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PoolPlan {
    /// Name of the pool.
    pub name: String,
    /// Bytes that guests can use.
    pub size: u64,
    /// Live bytes, including snapshots and metadata.
    pub allocated: u64,
    /// Free bytes.
    pub free: u64,
    /// Seconds over which the rates were measured, up to an hour; null if not long enough yet.
    pub measured_seconds: Option<u64>,
    /// Change of the live bytes per second; negative if space was freed.
    pub growth_rate: Option<i64>,
    /// Bytes that guests wrote per second.
    pub write_rate: Option<u64>,
    /// Seconds until the pool is full at this rate; null if it does not fill, or is not known.
    pub full_in_seconds: Option<u64>,
    /// Volumes of the pool, or those of the policy.
    pub volumes: Vec<VolumePlan>,
    /// Space that a policy will take.
    pub policy: Option<PolicyPlan>,
}

/// A volume in a forecast.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumePlan {
    /// `pool/volume`.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Bytes that guests wrote per second.
    pub write_rate: Option<u64>,
    /// Most bytes that the snapshots of the policy take at this rate.
    pub snapshot_bytes: Option<u64>,
}

/// Space that a policy will take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PolicyPlan {
    /// Name of the policy.
    pub name: String,
    /// Rules.
    pub keep: String,
    /// False if no volume of the pool is attached: the forecast is for all volumes.
    pub attached: bool,
    /// Snapshots of each volume once all rules are full.
    pub snapshots: u64,
    /// Seconds after which all rules are full.
    pub full_after_seconds: u64,
    /// Most bytes that all snapshots take then.
    pub most_bytes: Option<u64>,
    /// Whether these fit into the free space and the space of snapshots that the policy has
    /// already.
    pub fits: Option<bool>,
}
