//! Pools found by a search of devices, and the losses of an import of each.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::checkpoint::Checkpoint;
use super::replacement::DeviceNamed;
use super::words::words;

words! {
    /// State of a pool that was found by a search.
    pub enum FoundState {
        /// All devices were found.
        Importable = "importable",
        /// Devices are missing, and the pool works without them.
        Degraded = "degraded",
        /// Devices are missing that the pool needs.
        Incomplete = "incomplete",
        /// Older than the pool's state when it was last in service here.
        Outdated = "outdated",
        /// The devices were written to separately.
        Contradictory = "contradictory",
        /// A device has a label of a newer version of Millpond.
        Newer = "newer",
        /// In service here.
        Imported = "imported",
        /// In use by another host or program.
        InUse = "in-use",
        /// A device hangs.
        NoAnswer = "no-answer",
    }
}

/// A pool found by its labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Found {
    /// Name of the pool.
    pub name: String,
    /// Id of the pool.
    pub id: String,
    /// Whether it can be imported.
    pub state: FoundState,
    /// Paths of the devices found.
    pub devices: Vec<String>,
    /// Numbers of the members that were not found.
    pub missing: Vec<u16>,
    /// Last known path, serial number and id of the missing members, as far as this host has seen
    /// them.
    #[serde(default)]
    pub missing_devices: Vec<DeviceNamed>,
    /// Restore point that an import with `rewind` would use, with the data that it would lose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// Small writes that a rebuild without special devices would lose, because they are stored on
    /// special devices only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<Vec<LostRange>>,
    /// Warning: the changes that an import of this older state discards, or the reason why a device
    /// cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// Name of another host that has the pool in service, or did not close it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_by: Option<String>,
    /// Time when that host last renewed its claim on the devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub used_at: Option<Timestamp>,
}

/// Range of a volume or snapshot whose data is on no device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LostRange {
    /// `POOL/VOL` or `POOL/VOL@SNAP`.
    pub name: String,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}
