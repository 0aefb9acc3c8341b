//! Pools that a search of devices finds, and what an import of them would lose.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::pool::Checkpoint;
use super::replacement::DeviceNamed;

/// A pool found by its labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Found {
    /// Name.
    pub name: String,
    /// Identity.
    pub id: String,
    /// `importable`, `degraded` (devices are missing, and the pool did without them), `incomplete` (others are missing), `outdated` (not up
    /// to date when the pool was last in service here), `contradictory` (written to apart from each other), `imported`, `in-use` by another
    /// host or program, or `no-answer`: a device that hangs.
    pub state: String,
    /// Paths found.
    pub devices: Vec<String>,
    /// Members that were not found, by number.
    pub missing: Vec<u16>,
    /// The same by where they were, with serial number and id, as far as this host has seen them.
    #[serde(default)]
    pub missing_devices: Vec<DeviceNamed>,
    /// The restore point that a rewinding import would use, and what it would lose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// Small writes that a rebuild without special devices would lose: those stored on these devices alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<Vec<LostRange>>,
    /// A warning: the changes that an import of this older state gives up, or the reason why a device cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// Name of another host that has the pool, or did not give it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_by: Option<String>,
    /// When that host last said so on the devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub used_at: Option<Timestamp>,
}

/// A part of a volume or snapshot that no device has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LostRange {
    /// `POOL/VOL` or `POOL/VOL@SNAP`.
    pub name: String,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}
