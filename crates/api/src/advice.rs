//! Advice about special devices: how much data they would hold.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Expected content of special devices for each useful value of `special_small_blocks`, estimated
/// from the data that is stored now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SpecialAdvice {
    /// Name of the pool.
    pub pool: String,
    /// Usable bytes of the special devices: of the assumed ones if `assumed`, else of those in the
    /// pool; null if there are none.
    pub special_bytes: Option<u64>,
    /// True if `special_bytes` was given in the request and does not describe the pool's own
    /// devices.
    pub assumed: bool,
    /// Bytes of the blocks of all volumes and snapshots. A block that several of them share counts
    /// once, and each block counts whole, as special devices store it.
    pub data_bytes: u64,
    /// Bytes of map nodes, which are always stored on special devices.
    pub node_bytes: u64,
    /// Bytes of checkpoint objects, which are always stored on special devices.
    pub object_bytes: u64,
    /// Expected content for each value, if all volumes use the same value.
    pub thresholds: Vec<SpecialThreshold>,
    /// Largest value whose data fits.
    pub largest_fitting: Option<u64>,
    /// Content of each volume by size of writes.
    pub volumes: Vec<VolumeSmall>,
    /// Summary in one line.
    pub advice: String,
}

/// Expected content of special devices for one value of `special_small_blocks`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SpecialThreshold {
    /// The value: writes of at most this many bytes count as small.
    pub special_small_blocks: u64,
    /// Bytes that were written by small writes.
    pub small_bytes: u64,
    /// `small_bytes` as a fraction of all data, from 0 to 1.
    pub share: f64,
    /// `small_bytes` with map nodes and checkpoint objects added.
    pub total_bytes: u64,
    /// Usable bytes of special devices that can hold `total_bytes`.
    pub needed_bytes: u64,
    /// Percentage of the space for small writes that is filled.
    pub full_percent: Option<u64>,
    /// True if the data fits.
    pub fits: Option<bool>,
}

/// Content of a volume and its snapshots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeSmall {
    /// `pool/volume`; `-` for data that clones keep of destroyed volumes.
    pub name: String,
    /// Current value of the volume's property.
    pub special_small_blocks: u64,
    /// Bytes of the volume's blocks. Of a clone, only blocks written since it was made count.
    pub data_bytes: u64,
    /// Bytes of these blocks that are on special devices now.
    pub special_bytes: u64,
    /// Bytes that were written by small writes, for each value of `special_small_blocks`.
    pub small: Vec<SmallBytes>,
}

/// Bytes that were written by small writes, for one value of `special_small_blocks`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SmallBytes {
    /// The value: writes of at most this many bytes count as small.
    pub special_small_blocks: u64,
    /// Bytes that were written by small writes.
    pub bytes: u64,
    /// `bytes` as a fraction of the volume's data, from 0 to 1.
    pub share: f64,
}
