//! Volumes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use millpond_block::{CacheMode, SectorProfile};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::device::DeviceClass;
use super::publication::BaseSource;
use super::words::words;
use super::{WipeMode, Wiping};

words! {
    /// Sector sizes of a volume.
    pub enum VolumeSector {
        /// 512-byte logical and physical sectors.
        S512n = "512n",
        /// 512-byte logical sectors, 4096-byte physical sectors.
        S512e = "512e",
        /// 4096-byte logical and physical sectors.
        S4kn = "4kn",
    }
}

impl From<SectorProfile> for VolumeSector {
    fn from(profile: SectorProfile) -> VolumeSector {
        match profile {
            SectorProfile::S512n => VolumeSector::S512n,
            SectorProfile::S512e => VolumeSector::S512e,
            SectorProfile::S4kn => VolumeSector::S4kn,
        }
    }
}

words! {
    /// Cache mode of a volume.
    pub enum VolumeCache {
        /// Writes are acknowledged when written; a flush makes them durable.
        None = "none",
        /// Writes are acknowledged when durable.
        Directsync = "directsync",
        /// Writes are acknowledged when durable; the daemon may cache reads.
        Writethrough = "writethrough",
        /// Writes are acknowledged when written; a flush makes them durable; the daemon may cache
        /// reads.
        Writeback = "writeback",
        /// Writes are acknowledged when written; flushes are ignored: a power failure may lose
        /// everything since the last checkpoint.
        Unsafe = "unsafe",
    }
}

impl From<CacheMode> for VolumeCache {
    fn from(mode: CacheMode) -> VolumeCache {
        match mode {
            CacheMode::None => VolumeCache::None,
            CacheMode::Directsync => VolumeCache::Directsync,
            CacheMode::Writethrough => VolumeCache::Writethrough,
            CacheMode::Writeback => VolumeCache::Writeback,
            CacheMode::Unsafe => VolumeCache::Unsafe,
        }
    }
}

words! {
    /// Compression of the new data of a volume.
    pub enum VolumeCompression {
        /// None.
        Off = "off",
        /// LZ4.
        Lz4 = "lz4",
        /// Zstandard.
        Zstd = "zstd",
    }
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// `pool/volume`.
    pub name: String,
    /// Id, unique within the pool and never reused.
    pub id: u32,
    /// Size in bytes.
    pub size: u64,
    /// Sector profile.
    pub sector: VolumeSector,
    /// Cache mode.
    pub cache: VolumeCache,
    /// Compression of new data.
    pub compression: VolumeCompression,
    /// True if writes are refused.
    pub readonly: bool,
    /// Bytes of the pool that are reserved for the volume and its snapshots.
    #[serde(default)]
    pub reservation: u64,
    /// Writes of at most this many bytes go to special devices; 0: none do.
    #[serde(default)]
    pub special_small_blocks: u32,
    /// Bytes of the daemon's read cache that are reserved for the volume; null: it shares the rest
    /// with other volumes.
    #[serde(default)]
    pub read_cache: Option<u64>,
    /// Blocks of 4 KiB that guests read from the read cache since the pool's import.
    #[serde(default)]
    pub read_cache_hits: u64,
    /// Blocks of 4 KiB that were not in the read cache. Requests that are too long for the cache,
    /// or excluded by the cache mode, do not count.
    #[serde(default)]
    pub read_cache_misses: u64,
    /// Values of [`LIMITS`] by name; 0: no limit.
    #[serde(flatten)]
    pub limits: BTreeMap<String, u64>,
    /// Bytes reachable from the head.
    pub referenced_bytes: u64,
    /// Bytes that would be freed if the volume and its snapshots were destroyed.
    pub unique_bytes: u64,
    /// Number of snapshots.
    pub snapshots: u64,
    /// Origin of a clone: `pool/volume@snapshot`.
    pub origin: Option<String>,
    /// Time when the volume was created.
    #[schema(value_type = String, format = DateTime)]
    pub created: Timestamp,
    /// The source of its blocks, if the volume is the base of clones of a publication: they are fetched
    /// when they are read.
    #[serde(default)]
    pub base: Option<BaseSource>,
    /// The receive into the volume that is incomplete, in the answer about one volume; lists have
    /// null.
    #[serde(default)]
    pub receiving: Option<IncompleteReceive>,
}

/// An incomplete receive: the present state of its volume is of no instant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IncompleteReceive {
    /// The volume, `pool/volume`. A new one is called `receiving-NAME` until it is complete.
    pub volume: String,
    /// Name of the snapshot that is received, or its identity.
    pub snapshot: String,
    /// Bytes from the start of the volume that are received, and durable.
    pub received_bytes: u64,
    /// Size of the volume in bytes.
    pub size: u64,
    /// Time of the last progress.
    #[schema(value_type = String, format = DateTime)]
    pub progressed: Timestamp,
}

/// Request to create a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateVolume {
    /// `pool/volume`.
    pub name: String,
    /// Size in bytes, a multiple of 4096.
    pub size: u64,
    /// Sector profile; by default `512e`.
    pub sector: Option<VolumeSector>,
    /// Properties. A missing property has its default value.
    #[serde(default)]
    pub properties: SetProperties,
}

/// Request to change properties. A missing property does not change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SetProperties {
    /// Cache mode.
    pub cache: Option<VolumeCache>,
    /// Compression of new data.
    pub compression: Option<VolumeCompression>,
    /// If true, writes are refused.
    pub readonly: Option<bool>,
    /// If true, `readonly` is set although clients are connected that may write. Their writes are
    /// refused, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    /// Bytes of the pool to reserve for the volume and its snapshots.
    pub reservation: Option<u64>,
    /// Writes of at most this many bytes go to special devices.
    pub special_small_blocks: Option<u64>,
    /// Read cache in memory for the volume: a size; `none`; or `auto`, to share the cache with the
    /// other volumes without a size.
    pub read_cache: Option<String>,
    /// Values of [`LIMITS`] by name; 0 removes a limit. Other names are refused.
    #[serde(flatten, deserialize_with = "limits_alone")]
    pub limits: BTreeMap<String, u64>,
}

/// Reads the limits. A name that is neither another property nor a limit is refused. An unknown
/// name is reported before a bad value.
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

/// Names of the limits of a volume: requests and bytes per second, for reads, writes, or both
/// together. `_max` is the rate in a burst, `_max_length` the length of the burst in seconds.
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

/// Segment that holds data of a volume or snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Place {
    /// Number of the segment.
    pub segment: u32,
    /// Class of its devices.
    pub class: DeviceClass,
    /// Stored bytes of the volume's or snapshot's blocks in the segment. Blocks with several copies
    /// count once.
    pub live_bytes: u64,
    /// Parts of devices that make up the segment.
    pub extents: Vec<Extent>,
}

/// Part of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Extent {
    /// Path of the device, or its last known path.
    pub device: String,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Stored bytes of the volume's or snapshot's blocks in this part. Every copy counts.
    pub live_bytes: u64,
}

/// Request to change the sector profile that guests see. The stored data does not change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SetSector {
    /// Sector profile.
    pub sector: VolumeSector,
}

/// Request to resize a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Resize {
    /// New size, or a change of it: `20G`, `+5G`, `-1G`.
    pub size: String,
    /// If true, the volume may shrink. Data beyond the new size is lost.
    #[serde(default)]
    pub allow_shrink: bool,
    /// If true, no snapshot is taken before the volume shrinks.
    #[serde(default)]
    pub no_snapshot: bool,
    /// If true, the volume may shrink while clients are connected. Their disk shrinks under them.
    #[serde(default)]
    pub force: bool,
    /// If true, the connections of NBD clients end after the resize, without an error for a client
    /// that connects again. It then sees the new size.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reconnect: bool,
    /// If true, only reports the result of the request.
    #[serde(default)]
    pub dry_run: bool,
    /// Export of the receive that makes the request, which is refused once that export has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<u64>,
}

/// Result of a resize.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Resized {
    /// Old size in bytes.
    pub old_size: u64,
    /// New size in bytes.
    pub size: u64,
    /// Name of the snapshot that keeps the state before the volume shrank.
    #[serde(default)]
    pub kept_as: Option<String>,
    /// Clients that were connected to the volume.
    #[serde(default)]
    pub connected: Vec<String>,
}

/// Request to rename a volume or snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rename {
    /// The new full name.
    pub name: String,
    /// If true, the snapshot is one of a receive, and the receive renames it. Needs `export`.
    #[serde(default)]
    pub receive: bool,
    /// Export of the receive that makes the request, which is refused once that export has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<u64>,
}

/// Request to promote a clone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Promote {
    /// If true, only reports the snapshots that would move.
    #[serde(default)]
    pub dry_run: bool,
}

/// Result of a promotion, or of its dry run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Promoted {
    /// Name of the origin's volume, which becomes a clone of the last of the snapshots.
    pub from: String,
    /// Old names of the snapshots that move, oldest first.
    pub snapshots: Vec<String>,
    /// New names of these snapshots.
    pub renamed: Vec<String>,
    /// Bytes that are counted for the promoted volume afterwards, and no longer for the other one.
    pub moved_bytes: u64,
}

/// Request to destroy volumes and snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Destroy {
    /// `pool/volume`, `pool/volume@snapshot`, `pool/volume@a%c` or `pool/volume@%`.
    pub name: String,
    /// More names in the same pool. All are destroyed, or none if one of them is refused.
    #[serde(default)]
    pub more: Vec<String>,
    /// If true, destroys a volume with its snapshots.
    #[serde(default)]
    pub recursive: bool,
    /// If true, destroys clones, too.
    #[serde(default)]
    pub clones: bool,
    /// If true, ends the exports of destroyed volumes and snapshots first.
    #[serde(default)]
    pub unexport: bool,
    /// If true, ends these exports while clients are connected, and disconnects the clients.
    #[serde(default)]
    pub force: bool,
    /// Method of a wipe that starts with the request and makes the destroyed data unreadable.
    #[serde(default)]
    pub wipe: Option<WipeMode>,
    /// If true, only reports the result of the request.
    #[serde(default)]
    pub dry_run: bool,
    /// If true, a receive destroys its own snapshots, which say that it is incomplete. Needs
    /// `export`.
    #[serde(default)]
    pub receive: bool,
    /// Export of the receive that makes the request, which is refused once that export has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<u64>,
}

/// Result of a request to destroy volumes and snapshots, or of its dry run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Destroyed {
    /// Names of the destroyed volumes and snapshots, in order.
    pub destroyed: Vec<String>,
    /// Bytes that are freed, now or in the background.
    pub freed_bytes: u64,
    /// True if `freed_bytes` is exact. If false, it is a lower bound: data that several of the
    /// snapshots share is not counted.
    pub exact: bool,
    /// Work of the wipe, if the request asked for one.
    #[serde(default)]
    pub wiping: Option<Wiping>,
    /// Ids of exports that are ended first.
    #[serde(default)]
    pub unexported: Vec<u64>,
    /// True for a dry run.
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
            let refusal = read(&format!("{{\"cachee\":{value}}}")).expect_err("unknown");
            assert!(refusal.contains("no property 'cachee'"), "{refusal}");
        }
        assert!(read("{\"iops\":\"many\"}").is_err_and(|refusal| refusal.contains("iops takes a number")));
        let good = read("{\"cache\":\"none\",\"iops\":7}").expect("known");
        assert_eq!((good.cache, good.limits.get("iops")), (Some(VolumeCache::None), Some(&7)));
    }
}
