//! Volumes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::{WipeMode, Wiping};

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
    /// Bytes of the pool that are kept for it and its snapshots.
    #[serde(default)]
    pub reservation: u64,
    /// Writes of at most so many bytes go to special devices; 0: none.
    #[serde(default)]
    pub special_small_blocks: u32,
    /// Bytes of the daemon's read cache that are its own; null: what volumes without share.
    #[serde(default)]
    pub read_cache: Option<u64>,
    /// Blocks of 4 KiB that guests read from the daemon's memory since the pool's import.
    #[serde(default)]
    pub read_cache_hits: u64,
    /// Blocks that were not there, though the requests were short enough and the cache mode allows it.
    #[serde(default)]
    pub read_cache_misses: u64,
    /// [`LIMITS`] by name; 0: none.
    #[serde(flatten)]
    pub limits: BTreeMap<String, u64>,
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
pub struct SetProperties {
    /// Cache mode.
    pub cache: Option<String>,
    /// `off`, `lz4` or `zstd`.
    pub compression: Option<String>,
    /// Refuse writes.
    pub readonly: Option<bool>,
    /// Refuse the writes of clients that are connected and may write, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    /// Bytes of the pool to keep for it and its snapshots.
    pub reservation: Option<u64>,
    /// Bytes; writes of at most so many go to special devices.
    pub special_small_blocks: Option<u64>,
    /// Memory for what guests read: a size, `none`, or `auto` for a share of what volumes without a size have.
    pub read_cache: Option<String>,
    /// [`LIMITS`] by name; 0 lifts one. Other names are refused.
    #[serde(flatten, deserialize_with = "limits_alone")]
    pub limits: BTreeMap<String, u64>,
}

/// A name that is no other property has to be a limit. An unknown name is reported before a bad value.
fn limits_alone<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, u64>, D::Error> {
    let given = BTreeMap::<String, serde_json::Value>::deserialize(from)?;
    let number = |(name, value): (String, serde_json::Value)| {
        if !LIMITS.contains(&name.as_str()) {
            return Err(D::Error::custom(format!("no property '{name}' can be set")));
        }
        let number = value.as_u64().ok_or_else(|| D::Error::custom(format!("{name} takes a number, 0 for none, and not {value}")))?;
        Ok((name, number))
    };
    given.into_iter().map(number).collect()
}

/// Limits of a volume: requests and bytes per second, of reads, writes, or both together; `_max` in a burst; `_max_length` seconds that it lasts.
pub const LIMITS: [&str; 18] = [
    "iops",
    "iops_max",
    "iops_max_length",
    "iops_rd",
    "iops_rd_max",
    "iops_rd_max_length",
    "iops_wr",
    "iops_wr_max",
    "iops_wr_max_length",
    "bps",
    "bps_max",
    "bps_max_length",
    "bps_rd",
    "bps_rd_max",
    "bps_rd_max_length",
    "bps_wr",
    "bps_wr_max",
    "bps_wr_max_length",
];

/// A segment that holds data of a volume or snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Place {
    /// Its number.
    pub segment: u32,
    /// Class of its devices.
    pub class: String,
    /// Bytes of the volume's or snapshot's blocks in it, as stored; once, where it is on several devices.
    pub live_bytes: u64,
    /// What it is made of.
    pub extents: Vec<Extent>,
}

/// A part of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Extent {
    /// Path of the device, or where it was.
    pub device: String,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Bytes of the volume's or snapshot's blocks in it; each copy counts.
    pub live_bytes: u64,
}

/// Changes what guests are told of sectors; what is stored is not looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SetSector {
    /// `512n`, `512e` or `4kn`.
    pub sector: String,
}

/// Changes the size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Resize {
    /// New size: `20G`, `+5G`, `-1G`.
    pub size: String,
    /// Agree to lose what is beyond a smaller size.
    #[serde(default)]
    pub allow_shrink: bool,
    /// Keep no snapshot of what a volume was before it shrinks.
    #[serde(default)]
    pub no_snapshot: bool,
    /// Also while clients are connected, whose disk shrinks under them.
    #[serde(default)]
    pub force: bool,
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
    /// Of a volume that shrinks: the snapshot that keeps what it was.
    #[serde(default)]
    pub kept_as: Option<String>,
    /// Clients that were connected to the volume.
    #[serde(default)]
    pub connected: Vec<String>,
}

/// Gives another name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rename {
    /// The new name, complete.
    pub name: String,
}

/// Makes a clone independent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Promote {
    /// Only say what would move.
    #[serde(default)]
    pub dry_run: bool,
}

/// Snapshots and clones that a promotion moved, or would move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Promoted {
    /// The volume that becomes a clone of the last of the snapshots.
    pub from: String,
    /// Names of the snapshots before, oldest first.
    pub snapshots: Vec<String>,
    /// Their names afterwards.
    pub renamed: Vec<String>,
    /// Bytes that count for the promoted volume from then on.
    pub moved_bytes: u64,
}

/// Removes volumes and snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Destroy {
    /// `pool/volume`, `pool/volume@snapshot`, `pool/volume@a%c` or `pool/volume@%`.
    pub name: String,
    /// Others of the same pool: all go, or none when one of them is refused.
    #[serde(default)]
    pub more: Vec<String>,
    /// A volume goes with its snapshots.
    #[serde(default)]
    pub recursive: bool,
    /// Clones go as well.
    #[serde(default)]
    pub clones: bool,
    /// Exports of what goes are ended first.
    #[serde(default)]
    pub unexport: bool,
    /// These also while clients are connected, who are disconnected.
    #[serde(default)]
    pub force: bool,
    /// What it leaves on the devices is made unreadable by a job that begins with it.
    #[serde(default)]
    pub wipe: Option<WipeMode>,
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
    /// What the wipe does, when one was asked for.
    #[serde(default)]
    pub wiping: Option<Wiping>,
    /// Exports that are ended first, by number.
    #[serde(default)]
    pub unexported: Vec<u64>,
    /// It was only asked.
    pub dry_run: bool,
}

#[cfg(test)]
mod tests {
    //! Properties in JSON.
    use super::*;

    #[test]
    fn an_unknown_property_is_named_whatever_its_value() {
        let read = |text: &str| serde_json::from_str::<SetProperties>(text).map_err(|e| e.to_string());
        for value in ["\"none\"", "7", "null"] {
            let told = read(&format!("{{\"cachee\":{value}}}")).expect_err("unknown");
            assert!(told.contains("no property 'cachee'"), "{told}");
        }
        assert!(read("{\"iops\":\"many\"}").is_err_and(|told| told.contains("iops takes a number")));
        let good = read("{\"cache\":\"none\",\"iops\":7}").expect("known");
        assert_eq!((good.cache.as_deref(), good.limits.get("iops")), (Some("none"), Some(&7)));
    }
}
