//! Volumes.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// `pool/volume`.
    pub name: String,
    /// Identity within the pool, never reused.
    pub id: u32,
    /// Bytes.
    pub size: u64,
    /// `512n`, `512e` or `4kn`.
    pub sector: String,
    /// Cache mode.
    pub cache: String,
    /// Compression of new data.
    pub compression: String,
    /// Writes are refused.
    pub readonly: bool,
    /// Bytes reachable from the head.
    pub referenced_bytes: u64,
    /// Bytes that would be freed if the volume and its snapshots went.
    pub unique_bytes: u64,
    /// Number of snapshots.
    pub snapshots: u64,
    /// `pool/volume@snapshot` that it is a clone of.
    pub origin: Option<String>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created: Timestamp,
}

/// Asks for a new volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateVolume {
    /// `pool/volume`.
    pub name: String,
    /// Bytes, a multiple of 4096.
    pub size: u64,
    /// Sector profile; `512e` when missing.
    pub sector: Option<String>,
    /// Properties; what is missing takes its default.
    #[serde(default)]
    pub properties: SetProperties,
}

/// Changes properties; what is missing stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetProperties {
    /// Cache mode.
    pub cache: Option<String>,
    /// `off`, `lz4` or `zstd`.
    pub compression: Option<String>,
    /// Refuse writes.
    pub readonly: Option<bool>,
}

/// Changes the size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Resize {
    /// New size: `20G`, `+5G`, `-1G`.
    pub size: String,
    /// Agree to lose what is beyond a smaller size.
    #[serde(default)]
    pub allow_shrink: bool,
    /// Only say what would happen.
    #[serde(default)]
    pub dry_run: bool,
}

/// What a resize does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Resized {
    /// Bytes before.
    pub old_size: u64,
    /// Bytes after.
    pub size: u64,
}

/// Gives another name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rename {
    /// The new name, complete.
    pub name: String,
}

/// Removes volumes and snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Destroy {
    /// `pool/volume`, `pool/volume@snapshot`, `pool/volume@a%c` or `pool/volume@%`.
    pub name: String,
    /// A volume goes with its snapshots.
    #[serde(default)]
    pub recursive: bool,
    /// Clones go as well, and holds do not protect.
    #[serde(default)]
    pub clones: bool,
    /// Only say what would go.
    #[serde(default)]
    pub dry_run: bool,
}

/// What goes, or went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Destroyed {
    /// Names, in the order they go.
    pub destroyed: Vec<String>,
    /// Bytes that this frees, now or in the background.
    pub freed_bytes: u64,
    /// False: `freed_bytes` is a lower bound, for what only several of the snapshots share is not in it.
    pub exact: bool,
    /// It was only asked.
    pub dry_run: bool,
}
