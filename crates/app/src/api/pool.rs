//! Pools, their devices and their counters.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::replacement::DeviceNamed;

/// Layout of segments over the devices of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum LayoutSpec {
    /// Each segment on one device.
    Linear,
    /// Each segment striped over `width` devices in pieces of `unit` bytes.
    Stripe {
        /// Number of devices per segment.
        width: u16,
        /// Bytes on one device before the next device is used.
        unit: u32,
    },
    /// Each segment complete on each of `copies` devices.
    Mirror {
        /// Number of copies.
        copies: u16,
    },
    /// Each segment striped over `width` devices in pieces of `unit` bytes, of which `parity`
    /// devices may be missing.
    Parity {
        /// Number of devices per segment.
        width: u16,
        /// Number of devices that may be missing: 1 or 2.
        parity: u8,
        /// Bytes on one device before the next device is used.
        unit: u32,
    },
}

impl LayoutSpec {
    /// Returns the number of devices that a segment can lose without loss of data.
    pub fn spare(self) -> u16 {
        match self {
            LayoutSpec::Linear | LayoutSpec::Stripe { .. } => 0,
            LayoutSpec::Mirror { copies } => copies.saturating_sub(1),
            LayoutSpec::Parity { parity, .. } => u16::from(parity),
        }
    }
}

/// Purpose of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClassSpec {
    /// All data that no other class takes.
    #[default]
    Data,
    /// Map nodes, checkpoint objects and small writes.
    Special,
    /// Recent writes, until they are moved to class data.
    Log,
    /// Copies of blocks that are read more than once.
    Cache,
    /// Replacement for a device that is lost; empty until then.
    Spare,
}

impl ClassSpec {
    /// Returns the name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            ClassSpec::Data => "data",
            ClassSpec::Special => "special",
            ClassSpec::Log => "log",
            ClassSpec::Cache => "cache",
            ClassSpec::Spare => "spare",
        }
    }
}

/// Devices of one class with one layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceGroup {
    /// The class of the devices.
    #[serde(default)]
    pub class: ClassSpec,
    /// Layout of segments over the devices.
    pub layout: LayoutSpec,
    /// The devices.
    pub devices: Vec<DeviceSpec>,
}

/// Request to add devices to a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AddDevices {
    /// Groups to add.
    pub groups: Vec<DeviceGroup>,
    /// If true, accepts devices that contain data, groups with less redundancy than the pool's
    /// others, and files below /dev.
    #[serde(default)]
    pub force: bool,
    /// If true, checks everything and changes nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// Request to remove a device from a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemoveDevice {
    /// Id, path or serial number of the device, as listed.
    pub device: String,
    /// If true, stops the running removal of the device, which stays in the pool.
    #[serde(default)]
    pub stop: bool,
    /// If true, checks everything and changes nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// Result of a request to remove a device, or of its dry run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceRemoval {
    /// The pool.
    #[serde(flatten)]
    pub pool: Pool,
    /// The device to be removed.
    #[serde(default)]
    pub device: DeviceNamed,
    /// Cost of the removal: bytes, time, and devices that are removed with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<RemovalPlan>,
    /// For a dry run with `stop`: the removals that would be stopped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stops: Vec<Job>,
}

/// Cost of a removal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemovalPlan {
    /// Bytes that move to other devices.
    pub moved_bytes: u64,
    /// True if there is not enough space for all data at once, so that some of it moves more than
    /// once.
    pub in_steps: bool,
    /// Devices that are removed with it, because too few would remain for their layout.
    pub leaves_with_it: Vec<String>,
    /// Expected rate in bytes per second.
    pub rate: u64,
    /// Origin of `rate`: the limit of a device, `job_rate`, or the rate of jobs while guests are
    /// active.
    pub rate_of: String,
    /// Duration in seconds at this rate.
    pub seconds: u64,
}

/// Request to read everything in a pool and compare it with its checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScrubPool {
    /// If true, stops the running scrub instead.
    #[serde(default)]
    pub stop: bool,
}

/// Request to even out how full the groups of a pool are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RebalancePool {
    /// If true, stops the running rebalance instead.
    #[serde(default)]
    pub stop: bool,
    /// If true, only reports the amount of data to move.
    #[serde(default)]
    pub dry_run: bool,
}

/// Amount of data that a rebalance moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rebalance {
    /// Bytes that groups hold above their shares; 0 if there is nothing to do.
    pub surplus_bytes: u64,
    /// Groups of class data.
    pub groups: Vec<GroupFill>,
}

/// Fill level of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupFill {
    /// Paths of its devices.
    pub devices: Vec<String>,
    /// Bytes of all its segments.
    pub size: u64,
    /// Bytes of its segments in use.
    pub allocated: u64,
    /// Bytes in use above the group's share of the data of all groups, if they are worth moving;
    /// else 0.
    pub surplus: u64,
}

/// Request to change properties of a pool. A missing property does not change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetPool {
    /// Limit for the reads of all jobs together, in bytes per second; 0 removes the limit.
    pub job_rate: Option<u64>,
}

/// State and results of a scrub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Scrub {
    /// `running`, `done`, or `stopped`.
    pub state: String,
    /// Time when it began.
    #[schema(value_type = String, format = DateTime)]
    pub begun: Timestamp,
    /// Time when it ended.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended: Option<Timestamp>,
    /// Number of bad copies of blocks, map nodes, checkpoint objects, labels and roots.
    pub errors: u64,
    /// Number of pieces that were repaired. A piece may contain many blocks.
    pub repaired: u64,
    /// Number of blocks without a good copy.
    pub lost_blocks: u64,
    /// Number of map nodes without a good copy.
    pub lost_nodes: u64,
    /// Ranges of the lost blocks: the first thousand.
    pub lost: Vec<LostData>,
}

impl Scrub {
    /// Returns the number of blocks and map nodes without a good copy.
    pub fn lost(&self) -> u64 {
        self.lost_blocks + self.lost_nodes
    }

    /// Returns the result as a sentence, the same for every output. Errors count copies of blocks;
    /// repairs count pieces, each of which may contain many blocks.
    pub fn found(&self, pool: &str) -> String {
        match (self.errors, self.lost()) {
            (0, 0) => "0 errors".to_owned(),
            (errors, 0) => format!("{errors} errors, all repaired ({} pieces written again)", self.repaired),
            (errors, lost) => format!(
                "{errors} errors, {} pieces written again; {lost} blocks and map nodes are lost, for no copy of them is right: 'millpond pool status -v {pool}' says of which volumes",
                self.repaired
            ),
        }
    }
}

/// Range of data without a good copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LostData {
    /// The volume that wrote the data; null if it was destroyed since. The data may be in the
    /// volume's head, in its snapshots, and in clones of these.
    pub volume: Option<String>,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// Request to limit the load of a device. A missing limit does not change; 0 removes a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitDevice {
    /// Id, path or serial number of the device, as listed.
    pub device: String,
    /// Limit in bytes per second, for reads and writes together.
    pub bps: Option<u64>,
    /// Limit in operations per second, for reads and writes together.
    pub iops: Option<u64>,
}

/// Limits of the load of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceCap {
    /// Limit in bytes per second, for reads and writes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bps: Option<u64>,
    /// Limit in operations per second, for reads and writes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
}

/// Device for a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceSpec {
    /// Absolute path of a block device or a file.
    pub path: String,
    /// Size in bytes of a sparse file to create at this path.
    pub create: Option<u64>,
}

/// Method of access to devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IoMode {
    /// Bypass the kernel's page cache, where the host supports it.
    #[default]
    Direct,
    /// Use the kernel's page cache. Flushes still reach the device.
    Buffered,
}

/// Request to create a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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

/// Request for the restore points of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ListCheckpoints {
    /// Name of the pool, or its id if it is not in service.
    pub name: String,
    /// Directories and devices to search. Empty: the pool's current or last known places, or the
    /// block devices of the host.
    #[serde(default)]
    pub search: Vec<String>,
}

/// Counters of guest requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GuestIo {
    /// Number of reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Sum of read latencies in nanoseconds.
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

/// Counters of one device, as the pool's thread measures them. Latencies have the resolution of the
/// thread's turns: tens of microseconds under load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceIo {
    /// Number of reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Sum of read latencies in nanoseconds.
    pub read_nanos: u64,
    /// Part of `read_nanos` before the reads were sent to the device, because of a limit.
    #[serde(default)]
    pub read_queue_nanos: u64,
    /// Number of writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Sum of write latencies in nanoseconds.
    pub write_nanos: u64,
    /// Part of `write_nanos` before the writes were sent to the device, because of a limit.
    #[serde(default)]
    pub write_queue_nanos: u64,
    /// Number of flushes.
    pub flushes: u64,
    /// Operations in flight.
    pub in_flight: u64,
    /// Histogram of reads by the time that the device took. Each of the entries 0 to 3 counts
    /// reads of that many whole microseconds; after them there are four entries for each power of
    /// two. Empty entries at the end are left out.
    #[serde(default)]
    pub read_times: Vec<u64>,
    /// Histogram of writes, in the same form.
    #[serde(default)]
    pub write_times: Vec<u64>,
    /// Histogram of reads and writes by the time before they were sent to the device, in the same
    /// form.
    #[serde(default)]
    pub queue_times: Vec<u64>,
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
    /// Number of segments emptied by the cleaner.
    pub segments_cleaned: u64,
    /// Number of checkpoints written.
    pub checkpoints: u64,
    /// Bytes of log written since the last checkpoint.
    pub log_bytes: u64,
    /// Number of map nodes visited for guest requests.
    pub nodes_touched: u64,
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
}

/// A device of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Device {
    /// Id of the device: eight hexadecimal digits, unique in the pool and constant. Empty if not
    /// known.
    #[serde(default)]
    pub id: String,
    /// Path at which the device was opened. For a missing device the last known path, or its id if
    /// the path is not known or belongs to another device of the pool now.
    pub path: String,
    /// Serial number of the disk; null for files and for disks without one.
    #[serde(default)]
    pub serial: Option<String>,
    /// Last known path of a missing device.
    #[serde(default)]
    pub was: Option<String>,
    /// Class: `data`, `special`, `log`, `cache` or `spare`; `unknown` if the pool is not in
    /// service.
    pub class: String,
    /// Layout: `linear`, `stripe`, `mirror`, `parity1` or `parity2`; `unknown` if the pool is not
    /// in service.
    pub layout: String,
    /// `online`, or `available` for a spare; `missing`, `failed` or `resilvering`; `replacing` if
    /// another device in the list takes its place; `unavailable` if the pool is not in service.
    pub state: String,
    /// Usable size in bytes.
    pub size: u64,
    /// Bytes of segments in use.
    pub allocated: u64,
    /// Bytes of free segments.
    pub free: u64,
    /// Number of errors: failed operations and checksum mismatches. The number is kept across
    /// restarts, until the device is replaced or a scrub that began after the last error finds
    /// none.
    pub errors: u64,
    /// Number of these errors that were repaired from another device.
    #[serde(default)]
    pub repaired: u64,
    /// Logical sector size in bytes; 0 if the device is not open.
    pub sector: u32,
    /// True if the kernel's page cache is bypassed.
    pub direct: bool,
    /// Limits of the device.
    #[serde(default)]
    pub limit: DeviceCap,
    /// `ok`; `slow`: compared with devices of the same class and layout, in the last minute with
    /// enough operations to compare; `failing`: its errors have increased in the last 24 hours;
    /// `silent`: it does not answer; `full`: the filesystem or volume below it is full; `failed`:
    /// the pool no longer uses it; `missing`; `filling`: it is being resilvered.
    #[serde(default)]
    pub health: String,
    /// Reason if `health` is not `ok`.
    #[serde(default)]
    pub health_reason: Option<String>,
    /// Counters since import.
    pub io: DeviceIo,
}

impl Device {
    /// Returns the id, which is unique in the pool, or the path if the id is not known.
    pub fn key(&self) -> &str {
        if self.id.is_empty() { &self.path } else { &self.id }
    }
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pool {
    /// Name of the pool.
    pub name: String,
    /// Id of the pool.
    pub id: String,
    /// `opening` (being imported), `online`, `readonly` (imported read-only), `degraded` (a device
    /// of another class than cache is missing or incomplete), `closing`, `faulted`, or
    /// `unavailable` (could not be imported).
    pub health: String,
    /// Reason if the pool is not `online`: the devices that cause it, by path, and a remedy.
    pub reason: Option<String>,
    /// True if the pool was imported read-only: nothing is written to its devices.
    pub readonly: bool,
    /// Layout of class data; null if the pool is not in service.
    pub layout: Option<LayoutSpec>,
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

/// Background job of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Id: `reclaim:POOL`, `resilver:POOL:DEVICE`, `replace:POOL:DEVICE`, `remove:POOL:DEVICE`,
    /// `rebalance:POOL`, `wipe:POOL`, `scrub:POOL` or `copy:POOL/VOL`.
    pub id: String,
    /// Name of the pool.
    pub pool: String,
    /// Kind: the first word of the id.
    pub kind: String,
    /// `running`, or `stopped` if its pool is `faulted`.
    pub state: String,
    /// Bytes that remain.
    pub remaining_bytes: u64,
    /// Bytes done, if the total is known.
    #[serde(default)]
    pub done_bytes: u64,
    /// Recent rate in bytes per second, if known.
    #[serde(default)]
    pub rate: Option<u64>,
    /// Seconds until the job ends at this rate.
    #[serde(default)]
    pub eta_seconds: Option<u64>,
    /// Number of pieces that cannot be read from any copy.
    #[serde(default)]
    pub errors: u64,
}

/// Restore point of a pool: a checkpoint that its devices still hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Checkpoint {
    /// Id: the generation of its root.
    pub id: u64,
    /// Time when it was written.
    #[schema(value_type = String, format = DateTime)]
    pub time: Timestamp,
    /// LSN of the last batch that it contains.
    pub lsn: u64,
    /// Intact copies of its root on all devices. Each device has two.
    pub copies: u32,
    /// Whether everything that it refers to is still there. `yes`: its objects match their
    /// checksums, and no segment was reused since; `no`; `unknown` for checkpoints written by older
    /// versions.
    pub verified: String,
    /// Reason if `verified` is not `yes`.
    pub reason: Option<String>,
    /// Milliseconds from this checkpoint to now, or, for a pool that is not in service, to the time
    /// when it was last in use or closed. An import of this checkpoint loses the writes of this
    /// time. 0 if nothing was written.
    pub lost_millis: u64,
    /// Bytes that guests wrote after this checkpoint; null if not known.
    pub lost_bytes: Option<u64>,
    /// For the checkpoint that an import with `rewind` uses: bytes that this import loses. It
    /// replays the log after the checkpoint up to the first damage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_by_rewind: Option<u64>,
}
