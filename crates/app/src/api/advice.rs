//! Advice about special devices: what they would hold.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What special devices would hold, for each value of `special_small_blocks` that is worth a choice, as far as what is stored tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SpecialAdvice {
    /// The pool.
    pub pool: String,
    /// Usable bytes of special devices: of those that it has, or those that were asked about; nothing when there are none.
    pub special_bytes: Option<u64>,
    /// They were asked about; the pool's are others, or it has none.
    pub assumed: bool,
    /// Bytes of blocks of volumes, their snapshots included: each block once, and whole, as special devices keep it.
    pub data_bytes: u64,
    /// Bytes of map nodes, which go there in any case.
    pub node_bytes: u64,
    /// Bytes of checkpoint objects, which do, too.
    pub object_bytes: u64,
    /// What follows from each value, the same for all volumes.
    pub thresholds: Vec<SpecialThreshold>,
    /// The largest of them that fits.
    pub largest_fitting: Option<u64>,
    /// By volume.
    pub volumes: Vec<VolumeSmall>,
    /// All that in a line.
    pub advice: String,
}

/// What follows from a value of `special_small_blocks`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SpecialThreshold {
    /// Bytes of the longest write that counts as small.
    pub special_small_blocks: u64,
    /// Bytes that came with such writes.
    pub small_bytes: u64,
    /// Their part of all data, from 0 to 1.
    pub share: f64,
    /// With map nodes and checkpoint objects.
    pub total_bytes: u64,
    /// Usable bytes of special devices that have room for it.
    pub needed_bytes: u64,
    /// Percent of the room for small writes that it takes.
    pub full_percent: Option<u64>,
    /// It fits.
    pub fits: Option<bool>,
}

/// What a volume and its snapshots hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeSmall {
    /// `pool/volume`; a dash for what clones keep of volumes that were destroyed.
    pub name: String,
    /// Its value now.
    pub special_small_blocks: u64,
    /// Bytes of its blocks; of a clone, of those written since it was made.
    pub data_bytes: u64,
    /// Bytes of them that are on special devices now.
    pub special_bytes: u64,
    /// By size of writes.
    pub small: Vec<SmallBytes>,
}

/// How much came with small writes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SmallBytes {
    /// Bytes of the longest write that counts as small.
    pub special_small_blocks: u64,
    /// Bytes.
    pub bytes: u64,
    /// Their part of the volume's data, from 0 to 1.
    pub share: f64,
}
