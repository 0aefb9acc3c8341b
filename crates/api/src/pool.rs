//! Pools and their counters.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::device::{Device, DeviceGroup, IoMode};
use super::job::Scrub;
use super::layout::{LayoutSpec, PoolLayout};
use super::words::words;

/// Request to change properties of a pool. A missing property does not change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetPool {
    /// Limit for the reads of all jobs together, in bytes per second; 0 removes the limit.
    pub job_rate: Option<u64>,
}

/// Request to create a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatePool {
    /// Name of the pool.
    pub name: String,
    /// Devices of the pool.
    pub groups: Vec<DeviceGroup>,
    /// Method of access to the devices, now and at every import by this daemon.
    #[serde(default)]
    pub io: IoMode,
    /// If true, accepts devices that contain data.
    #[serde(default)]
    pub force: bool,
    /// If true, features of the format stay off, so that older versions can use the pool, too.
    #[serde(default)]
    pub without_features: bool,
    /// If true, checks everything and changes nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// Request to search for pools and import one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImportPool {
    /// Name or id of the pool to import. Without it, the pools found are listed and none is
    /// imported.
    pub name: Option<String>,
    /// Directories and devices to search. Empty: the places where pools were before, and the block
    /// devices of the host.
    #[serde(default)]
    pub search: Vec<String>,
    /// If true, imports the pool although devices are missing, provided that it works without them.
    #[serde(default)]
    pub degraded: bool,
    /// If true, nothing is written to the pool's devices.
    #[serde(default)]
    pub readonly: bool,
    /// If true, goes back to the newest complete checkpoint, and replays the log after it up to the
    /// first damage.
    #[serde(default)]
    pub rewind: bool,
    /// Id of the checkpoint to go back to.
    #[serde(default)]
    pub to: Option<u64>,
    /// If true, scans the segments for the newest complete checkpoint and rewrites the rings of
    /// roots. If special devices are missing, the pool gives them up for good.
    #[serde(default)]
    pub rebuild: bool,
    /// If true, imports the pool although another host has it in service or did not close it. That
    /// host loses the pool.
    #[serde(default)]
    pub force: bool,
    /// If true, only reports the result of an import.
    #[serde(default)]
    pub dry_run: bool,
}

/// Counters of answered guest requests. A request that failed is counted in `errors` alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GuestIo {
    /// Number of reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Sum of read latencies in nanoseconds, from receipt of the request until the socket has the
    /// reply.
    pub read_nanos: u64,
    /// Number of writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Sum of write latencies in nanoseconds.
    pub write_nanos: u64,
    /// Number of flushes.
    pub flushes: u64,
    /// Number of writes that had to be durable when answered: with FUA, or from a guest that
    /// switched its write cache off. Included in `writes`.
    #[serde(default)]
    pub fua_writes: u64,
    /// Number of discards and zeroings.
    pub discards: u64,
    /// Number of requests answered with an error.
    pub errors: u64,
}

impl GuestIo {
    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &GuestIo) {
        let GuestIo { reads, read_bytes, read_nanos, writes, write_bytes, write_nanos, flushes, fua_writes, discards, errors } = other;
        self.reads += reads;
        self.read_bytes += read_bytes;
        self.read_nanos += read_nanos;
        self.writes += writes;
        self.write_bytes += write_bytes;
        self.write_nanos += write_nanos;
        self.flushes += flushes;
        self.fua_writes += fua_writes;
        self.discards += discards;
        self.errors += errors;
    }
}

/// Bytes of a pool's segments by state. Copies and parity do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolSpace {
    /// Segments in use.
    pub in_use: u64,
    /// Empty segments in retention: their content is kept, so that the pool can be rewound.
    pub resting: u64,
    /// Free segments that have space on the host, so that writes to them are fast.
    pub ready: u64,
    /// Free segments without space on the host: holes of a file.
    pub holes: u64,
    /// Target for `ready`, derived from the recent rate of writes.
    pub wanted: u64,
    /// Zeroes written to holes ahead of the log since import, counted for all copies.
    pub prepared: u64,
    /// Space of free segments that was returned to the host since import, counted for all copies.
    pub given_back: u64,
    /// Space on devices that a stopped removal has taken out of segments, counted for all copies.
    /// It becomes segments again when there is room to move data to.
    #[serde(default)]
    pub given_up: u64,
}

/// Counters of the engine since import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolIo {
    /// Counters of guest requests.
    pub guests: GuestIo,
    /// Bytes of guest blocks written to the log, after compression.
    pub user_bytes: u64,
    /// Bytes of batch headers written.
    pub header_bytes: u64,
    /// Bytes of map nodes and checkpoints written.
    pub metadata_bytes: u64,
    /// Bytes of live blocks that the cleaner moved.
    pub cleaner_bytes: u64,
    /// Bytes of blocks that were written again in order, because reads found them apart.
    #[serde(default)]
    pub gathered_bytes: u64,
    /// Bytes of blocks that snapshots share, that were written again in order, and that are still
    /// needed: they are elsewhere than their addresses say.
    #[serde(default)]
    pub forwarded_bytes: u64,
    /// True when no more such blocks are written in order: their places take all the memory that they may.
    #[serde(default)]
    pub forwards_full: bool,
    /// Number of segments emptied by the cleaner.
    pub segments_cleaned: u64,
    /// Number of checkpoints written.
    pub checkpoints: u64,
    /// Time when the last checkpoint began; null if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_checkpoint: Option<Timestamp>,
    /// Time of the oldest checkpoint since import that a rewind finds complete. Checkpoints that are
    /// older than the retention asks for do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub oldest_restore_point: Option<Timestamp>,
    /// Bytes of log written since the last checkpoint.
    pub log_bytes: u64,
    /// Number of batches of the log written for guests.
    #[serde(default)]
    pub batches: u64,
    /// Number of flushes of the pool's devices.
    #[serde(default)]
    pub flushes: u64,
    /// Number of map nodes visited for guest requests.
    pub nodes_touched: u64,
    /// Number of map nodes read from devices.
    #[serde(default)]
    pub node_reads: u64,
    /// Number of map nodes written.
    #[serde(default)]
    pub node_writes: u64,
    /// Number of map nodes in memory.
    #[serde(default)]
    pub nodes_resident: u64,
    /// Bytes of memory for pieces of deadlists; a part of the daemon's memory for maps.
    #[serde(default)]
    pub piece_memory: u64,
    /// Number of pieces of deadlists read.
    #[serde(default)]
    pub piece_reads: u64,
    /// Number of these reads that failed. While a piece cannot be read, its dead blocks are not
    /// freed.
    #[serde(default)]
    pub piece_failures: u64,
    /// Dead bytes that wait to be freed.
    pub reclaim_backlog: u64,
    /// Bytes of destroyed snapshots and volumes that are not freed, because their deadlists cannot
    /// be read.
    #[serde(default)]
    pub unreclaimed: u64,
    /// Number of guest writes that waited for the cleaner.
    pub throttled: u64,
    /// Number of batches replayed at import.
    pub replayed_batches: u64,
    /// Size limit of the read cache in memory, in bytes.
    #[serde(default)]
    pub read_cache_limit: u64,
    /// Bytes of the read cache in use.
    #[serde(default)]
    pub read_cache_bytes: u64,
    /// Blocks that guests read from the read cache.
    #[serde(default)]
    pub read_cache_hits: u64,
    /// Blocks that were not in the read cache. Requests that bypass it do not count.
    #[serde(default)]
    pub read_cache_misses: u64,
    /// Bytes of blocks that were read ahead of guests that read in order.
    #[serde(default)]
    pub read_ahead_bytes: u64,
    /// Bytes of these blocks that guests then read.
    #[serde(default)]
    pub read_ahead_used_bytes: u64,
    /// Bytes of memory that blocks read ahead take now, at most an eighth of `read_cache_limit`
    /// but for reads in flight. Not counted in `read_cache_bytes`.
    #[serde(default)]
    pub read_ahead_memory_bytes: u64,
    /// Blocks that guests read from devices of class cache.
    #[serde(default)]
    pub cache_hits: u64,
    /// Bytes of these blocks, as stored.
    #[serde(default)]
    pub cache_hit_bytes: u64,
    /// Blocks that guests read from other devices and that could have been in the cache.
    #[serde(default)]
    pub cache_misses: u64,
    /// Bytes of blocks copied to devices of class cache, as stored.
    #[serde(default)]
    pub cache_fill_bytes: u64,
    /// Histogram of the turns of the pool's thread by length. Entry n, from 0, counts turns of less
    /// than 2^n and at least 2^(n-1) microseconds; the last entry counts all longer turns, too. A
    /// guest's request waits for at most two turns.
    pub turns: [u64; 20],
    /// Sum of the lengths of these turns in nanoseconds.
    #[serde(default)]
    pub turn_nanos: u64,
}

words! {
    /// State of a pool.
    pub enum PoolHealth {
        /// The dry run of a request to create it.
        Planned = "planned",
        /// Being imported.
        Opening = "opening",
        /// In service, with all its devices.
        Online = "online",
        /// In service, imported read-only.
        Readonly = "readonly",
        /// In service, but a device that is neither cache nor spare is missing or incomplete.
        Degraded = "degraded",
        /// Being closed.
        Closing = "closing",
        /// Stopped because of an error.
        Faulted = "faulted",
        /// Not in service: it could not be imported, or does not answer.
        Unavailable = "unavailable",
    }
}

impl PoolHealth {
    /// Returns true if the pool serves its volumes.
    pub fn is_in_service(&self) -> bool {
        match self {
            PoolHealth::Online | PoolHealth::Readonly | PoolHealth::Degraded => true,
            PoolHealth::Planned
            | PoolHealth::Opening
            | PoolHealth::Closing
            | PoolHealth::Faulted
            | PoolHealth::Unavailable
            | PoolHealth::Other(_) => false,
        }
    }
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pool {
    /// Name of the pool.
    pub name: String,
    /// Id of the pool.
    pub id: String,
    /// State of the pool.
    pub health: PoolHealth,
    /// Reason if the pool is not `online`: the devices that cause it, by path, and a remedy.
    pub reason: Option<String>,
    /// True if the pool was imported read-only: nothing is written to its devices.
    pub readonly: bool,
    /// Version of the format of its labels; null if the pool is not in service.
    #[serde(default)]
    pub format: Option<u16>,
    /// Names of the features of the format that it has.
    #[serde(default)]
    pub features: Vec<String>,
    /// Layout of class data; null if the pool is not in service. Later versions may add kinds.
    #[schema(value_type = Option<LayoutSpec>)]
    pub layout: Option<PoolLayout>,
    /// Bytes that guests can use.
    pub size: u64,
    /// Live bytes, including snapshots and metadata.
    pub allocated: u64,
    /// Free bytes.
    pub free: u64,
    /// Seconds until the pool is full at the rate of the last hour; null if it does not fill, or
    /// was not observed for long enough.
    #[serde(default)]
    pub full_in_seconds: Option<u64>,
    /// Space of its segments by state.
    #[serde(default)]
    pub space: PoolSpace,
    /// Reason why the last removal of a device ended early, unless a request stopped it.
    #[serde(default)]
    pub removal_ended: Option<String>,
    /// Time when it ended early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub removal_ended_at: Option<Timestamp>,
    /// Reason why the running removal of a device does not proceed, or why the space that a stopped
    /// removal has taken out of segments is not used again.
    #[serde(default)]
    pub removal_waits: Option<String>,
    /// Reason why a rewind skipped the newest checkpoint and used an older one, without the log
    /// after it.
    #[serde(default)]
    pub fell_back: Option<String>,
    /// Time since which the pool's thread has not answered. The other values are then the last ones
    /// that the daemon knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub silent_since: Option<Timestamp>,
    /// Devices in member order.
    pub devices: Vec<Device>,
    /// Time when the pool was taken into service.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub imported: Option<Timestamp>,
    /// Counters since import.
    pub io: PoolIo,
    /// Number of clients connected to its exports.
    pub clients: u64,
    /// The running scrub, or the last one.
    pub scrub: Option<Scrub>,
    /// Limit for the reads of all jobs together, in bytes per second; null if jobs only yield to
    /// guests.
    #[serde(default)]
    pub job_rate: Option<u64>,
    /// Reasons why policies make no snapshots in the pool or freeze no guests, and guests that may be
    /// frozen; one line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub late_policies: Vec<String>,
    /// Warnings about the devices that a request adds to the pool, one line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A pool is full when less than 1/`FULL_PART` of its size and less than `FULL_BYTES` are free.
const FULL_PART: u64 = 100;
const FULL_BYTES: u64 = 16 << 20;

impl Pool {
    /// Returns true if guest writes are refused for lack of space, or soon will be.
    pub fn is_full(&self) -> bool {
        self.size > 0 && !self.readonly && self.free <= (self.size / FULL_PART).min(FULL_BYTES)
    }
}

/// Losses of a destroyed pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolRemoval {
    /// Name of the pool.
    pub name: String,
    /// Names of the volumes lost.
    pub volumes: Vec<String>,
    /// Number of snapshots lost.
    pub snapshots: u64,
    /// Live bytes lost.
    pub allocated: u64,
    /// Devices whose labels are erased.
    pub devices: Vec<String>,
    /// Devices that were not there, so that their labels remain, with the reasons.
    #[serde(default)]
    pub left: Vec<LeftDevice>,
    /// Exports that are ended.
    #[serde(default)]
    pub exports: Vec<EndedExport>,
}

/// Export that ends because its volume, snapshot or pool is destroyed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EndedExport {
    /// Id of the export.
    pub id: u64,
    /// Name of its volume, snapshot or pool.
    pub name: String,
}

/// Device whose label remains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeftDevice {
    /// Last known path.
    pub path: String,
    /// Reason.
    pub reason: String,
}
