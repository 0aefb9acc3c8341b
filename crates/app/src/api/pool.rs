//! Pools, their devices and their counters.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::replacement::DeviceNamed;

/// How segments spread over the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum LayoutSpec {
    /// Device after device.
    Linear,
    /// Each segment over `width` devices in turns of `unit` bytes.
    Stripe {
        /// Devices per segment.
        width: u16,
        /// Bytes on one device before the next takes over.
        unit: u32,
    },
    /// Each segment whole on so many devices.
    Mirror {
        /// How many.
        copies: u16,
    },
    /// Each segment over `width` devices in turns of `unit` bytes, of which `parity` may be missing.
    Parity {
        /// Devices per segment.
        width: u16,
        /// How many may be missing: 1 or 2.
        parity: u8,
        /// Bytes on one device before the next takes over.
        unit: u32,
    },
}

impl LayoutSpec {
    /// Devices that a group can do without.
    pub fn spare(self) -> u16 {
        match self {
            LayoutSpec::Linear | LayoutSpec::Stripe { .. } => 0,
            LayoutSpec::Mirror { copies } => copies.saturating_sub(1),
            LayoutSpec::Parity { parity, .. } => u16::from(parity),
        }
    }
}

/// What devices are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClassSpec {
    /// Everything that no other class takes.
    #[default]
    Data,
    /// Map nodes and objects of checkpoints.
    Special,
    /// What was just written, until it is moved to data.
    Log,
    /// Copies of what is read more than once.
    Cache,
    /// Nothing, until one takes the place of a device that is lost.
    Spare,
}

impl ClassSpec {
    /// Its name.
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

/// Devices that are used in one way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceGroup {
    /// The class of the devices.
    #[serde(default)]
    pub class: ClassSpec,
    /// How segments spread over them.
    pub layout: LayoutSpec,
    /// The devices.
    pub devices: Vec<DeviceSpec>,
}

/// Asks for more devices in a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AddDevices {
    /// What is added.
    pub groups: Vec<DeviceGroup>,
    /// Use devices that hold something, groups without the redundancy of the others, files below /dev.
    #[serde(default)]
    pub force: bool,
    /// Check everything, change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// Asks for a device to be taken out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemoveDevice {
    /// Its id, path or serial number, as listed.
    pub device: String,
    /// Keep the device that is being taken out.
    #[serde(default)]
    pub stop: bool,
    /// Check everything, change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// A pool that a device leaves, or of a dry run, could leave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceRemoval {
    /// The pool.
    #[serde(flatten)]
    pub pool: Pool,
    /// The device.
    #[serde(default)]
    pub device: DeviceNamed,
    /// The cost of the removal: bytes, time, and devices that leave too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<RemovalPlan>,
    /// Of a dry run with `stop`: the removals that would be stopped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stops: Vec<Job>,
}

/// The cost of removing a device: how much data moves, how long it takes, and which other devices leave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemovalPlan {
    /// Bytes that move to other devices.
    pub moved_bytes: u64,
    /// There is no room for all of it at once: some of it moves more than once.
    pub in_steps: bool,
    /// Devices that leave with it, because too few stay for their layout.
    pub leaves_with_it: Vec<String>,
    /// Bytes per second that are reckoned with.
    pub rate: u64,
    /// Where this rate is from.
    pub rate_of: String,
    /// Seconds that it takes at this rate.
    pub seconds: u64,
}

/// Asks for everything in a pool to be read and compared with its checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScrubPool {
    /// End the one that runs instead.
    #[serde(default)]
    pub stop: bool,
}

/// Asks for groups to be filled evenly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RebalancePool {
    /// End the rebalance that runs instead.
    #[serde(default)]
    pub stop: bool,
    /// Only say what would move.
    #[serde(default)]
    pub dry_run: bool,
}

/// What a rebalance moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rebalance {
    /// Bytes above the shares of their groups; 0: there is nothing to do.
    pub surplus_bytes: u64,
    /// Groups of data.
    pub groups: Vec<GroupFill>,
}

/// How full a group is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupFill {
    /// Its devices.
    pub devices: Vec<String>,
    /// Bytes of its segments.
    pub size: u64,
    /// Bytes of those in use.
    pub allocated: u64,
    /// Bytes of these above its share of what all groups hold, when that is worth moving.
    pub surplus: u64,
}

/// Changes properties of a pool; what is missing stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetPool {
    /// Bytes per second that all jobs together may read; 0 lifts it.
    pub job_rate: Option<u64>,
}

/// What a scrub has found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Scrub {
    /// `running`, `done`, or `stopped`.
    pub state: String,
    /// When it began.
    #[schema(value_type = String, format = DateTime)]
    pub begun: Timestamp,
    /// When it came to its end.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended: Option<Timestamp>,
    /// Copies of blocks, map nodes, checkpoint objects, labels and roots that were wrong.
    pub errors: u64,
    /// Pieces that were written again.
    pub repaired: u64,
    /// Blocks of which no copy is right.
    pub lost_blocks: u64,
    /// Map nodes of which no copy is right.
    pub lost_nodes: u64,
    /// Where the lost blocks are: the first thousand.
    pub lost: Vec<LostData>,
}

impl Scrub {
    /// Blocks and map nodes of which no copy is right.
    pub fn lost(&self) -> u64 {
        self.lost_blocks + self.lost_nodes
    }

    /// The result in words, the same wherever it is read. Errors are counted by copies of blocks, repairs by pieces that were written again, each of
    /// which may hold many.
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

/// Data of which no copy is right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LostData {
    /// The volume that wrote it: it may be in its head, in snapshots of it and in clones of those. None when it was destroyed since.
    pub volume: Option<String>,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// Caps a device; what is missing stays as it is, 0 lifts it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitDevice {
    /// Its id, path or serial number, as listed.
    pub device: String,
    /// Bytes per second, reads and writes together.
    pub bps: Option<u64>,
    /// Operations per second, reads and writes together.
    pub iops: Option<u64>,
}

/// The cap of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceCap {
    /// Bytes per second, reads and writes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bps: Option<u64>,
    /// Operations per second, reads and writes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
}

/// A device to make a pool on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceSpec {
    /// Absolute path of a block device or a file.
    pub path: String,
    /// Make the file, sparse, with this many bytes.
    pub create: Option<u64>,
}

/// How devices are opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IoMode {
    /// Around the kernel's page cache, where the host can.
    #[default]
    Direct,
    /// Through the kernel's page cache; flushes are honoured all the same.
    Buffered,
}

/// Asks for a new pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatePool {
    /// Name.
    pub name: String,
    /// On what.
    pub groups: Vec<DeviceGroup>,
    /// How they are opened, now and at every import by this daemon.
    #[serde(default)]
    pub io: IoMode,
    /// Use devices that hold something.
    #[serde(default)]
    pub force: bool,
    /// Check everything, change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// Looks for pools, and imports one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImportPool {
    /// Name or id; without it, every pool found is told and none imported.
    pub name: Option<String>,
    /// Directories and devices to search; empty: where pools were before, and the block devices of the host.
    #[serde(default)]
    pub search: Vec<String>,
    /// Import it although devices are missing that it can do without.
    #[serde(default)]
    pub degraded: bool,
    /// Write nothing to its devices.
    #[serde(default)]
    pub readonly: bool,
    /// Go back to the newest checkpoint that is whole, and to the end of the sound part of the log after it.
    #[serde(default)]
    pub rewind: bool,
    /// Go back to this checkpoint.
    #[serde(default)]
    pub to: Option<u64>,
    /// Find the newest checkpoint that is whole by reading what segments say, and make the rings of roots anew. When special devices are
    /// missing: do
    /// without them for good.
    #[serde(default)]
    pub rebuild: bool,
    /// Import it although another host has it in use, or did not close it: it is taken from that host.
    #[serde(default)]
    pub force: bool,
    /// Only say what would be imported.
    #[serde(default)]
    pub dry_run: bool,
}

/// Asks for the restore points of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ListCheckpoints {
    /// Its name, or id when it is not in service.
    pub name: String,
    /// Directories and devices to search; empty: where it is, was before, or the block devices of the host.
    #[serde(default)]
    pub search: Vec<String>,
}

/// Requests of guests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GuestIo {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Sum of read latencies in nanoseconds.
    pub read_nanos: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Sum of write latencies in nanoseconds.
    pub write_nanos: u64,
    /// Flushes.
    pub flushes: u64,
    /// Of the writes, those that asked to be durable by themselves (FUA), or whose guest has switched its write cache off.
    #[serde(default)]
    pub fua_writes: u64,
    /// Discards and zeroings.
    pub discards: u64,
    /// Requests answered with an error.
    pub errors: u64,
}

/// Operations on one device, as the pool's thread sees them. Latencies count in steps of its turns, tens of microseconds under load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceIo {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Sum of read latencies in nanoseconds.
    pub read_nanos: u64,
    /// Of these, the part before they left for the device, which a limit held up.
    #[serde(default)]
    pub read_queue_nanos: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Sum of write latencies in nanoseconds.
    pub write_nanos: u64,
    /// Of these, the part before they left for the device, which a limit held up.
    #[serde(default)]
    pub write_queue_nanos: u64,
    /// Flushes.
    pub flushes: u64,
    /// Operations under way.
    pub in_flight: u64,
    /// Reads by the time that the device took: the n-th number, from 0, counts those of n microseconds up to 4, then four classes to each
    /// power of two. Classes at the end that are not there are empty.
    #[serde(default)]
    pub read_times: Vec<u64>,
    /// Writes, likewise.
    #[serde(default)]
    pub write_times: Vec<u64>,
    /// Reads and writes by the time before they left for the device.
    #[serde(default)]
    pub queue_times: Vec<u64>,
}

/// Bytes of a pool's segments, by what they are doing; copies and parity do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolSpace {
    /// Segments that hold something.
    pub in_use: u64,
    /// Empty ones that are kept as they are, so that the pool can be rewound.
    pub resting: u64,
    /// Free ones that the host has bytes for: writes to them are fast.
    pub ready: u64,
    /// Free ones that the host has no bytes for: holes of a file.
    pub holes: u64,
    /// What the pool wants to have ready, as it is written to lately.
    pub wanted: u64,
    /// Bytes of zeros written to holes ahead of the log since import, all copies together.
    pub prepared: u64,
    /// Bytes of free segments that the host got back since import, all copies together.
    pub given_back: u64,
    /// Bytes of devices that are in no segment since a removal was stopped, all copies together: they become segments again when there is
    /// room to move to.
    #[serde(default)]
    pub given_up: u64,
}

/// What the engine counts since import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolIo {
    /// Guest requests.
    pub guests: GuestIo,
    /// Bytes of guest blocks appended, after compression.
    pub user_bytes: u64,
    /// Bytes of batch headers.
    pub header_bytes: u64,
    /// Bytes of map nodes and checkpoints.
    pub metadata_bytes: u64,
    /// Bytes of live blocks that the cleaner moved.
    pub cleaner_bytes: u64,
    /// Segments emptied by the cleaner.
    pub segments_cleaned: u64,
    /// Checkpoints committed.
    pub checkpoints: u64,
    /// Bytes of log since the last checkpoint.
    pub log_bytes: u64,
    /// Map nodes visited for guest requests.
    pub nodes_touched: u64,
    /// Bytes that pieces of deadlists take in memory, of what the daemon has for maps.
    #[serde(default)]
    pub piece_memory: u64,
    /// Pieces of deadlists read.
    #[serde(default)]
    pub piece_reads: u64,
    /// Those of them that could not be read: what died is not freed while that is so.
    #[serde(default)]
    pub piece_failures: u64,
    /// Dead bytes that wait to be freed.
    pub reclaim_backlog: u64,
    /// Bytes that destroyed snapshots and volumes held and that are not given back, as the deadlists that name them cannot be read.
    #[serde(default)]
    pub unreclaimed: u64,
    /// Guest writes that waited for the cleaner.
    pub throttled: u64,
    /// Log records replayed at import.
    pub replayed_batches: u64,
    /// Bytes of memory for what guests read more than once.
    #[serde(default)]
    pub read_cache_limit: u64,
    /// Bytes of it in use.
    #[serde(default)]
    pub read_cache_bytes: u64,
    /// Blocks that guests read from there.
    #[serde(default)]
    pub read_cache_hits: u64,
    /// Blocks that were not there, of requests that looked.
    #[serde(default)]
    pub read_cache_misses: u64,
    /// Blocks that guests read from devices of class cache.
    #[serde(default)]
    pub cache_hits: u64,
    /// Bytes of them, as stored.
    #[serde(default)]
    pub cache_hit_bytes: u64,
    /// Blocks that they read elsewhere and that could have been there.
    #[serde(default)]
    pub cache_misses: u64,
    /// Bytes of blocks copied there, as stored.
    #[serde(default)]
    pub cache_fill_bytes: u64,
    /// Turns of the pool's thread by length: the n-th number, from 0, counts those of less than 2^n microseconds and not less than half of
    /// that, the last all longer ones. A guest's request waits for a turn at most twice.
    pub turns: [u64; 20],
}

/// A device of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Device {
    /// Eight hexadecimal digits that stay with the device and are no other device's of the pool; empty when not known.
    #[serde(default)]
    pub id: String,
    /// Path it was opened by; of a missing one the path it was at, or its id when that is not known or another device of the pool is there now.
    pub path: String,
    /// Serial number of the disk; nothing for files and for what has none.
    #[serde(default)]
    pub serial: Option<String>,
    /// Where it was, when it is missing.
    #[serde(default)]
    pub was: Option<String>,
    /// Class: `data`, `special`, `log`, `cache` or `spare`; `unknown` when its pool is not in service.
    pub class: String,
    /// `linear`, `stripe`, `mirror`, `parity1` or `parity2`; `unknown` when its pool is not in service.
    pub layout: String,
    /// `online`, a spare `available`; `missing`, `failed` or `resilvering`; `replacing`, and the device that takes its place is another
    /// one in the list;
    /// `unavailable` when its pool is not in service.
    pub state: String,
    /// Usable bytes.
    pub size: u64,
    /// Bytes of segments in use.
    pub allocated: u64,
    /// Bytes of free segments.
    pub free: u64,
    /// Errors: operations that failed, and what did not match its checksum. They are kept over restarts, until the device is replaced or a scrub that
    /// began after the last one finds none.
    pub errors: u64,
    /// Of these, written again from another device.
    #[serde(default)]
    pub repaired: u64,
    /// Logical sector in bytes; 0 when not open.
    pub sector: u32,
    /// The kernel's page cache is bypassed.
    pub direct: bool,
    /// What it is capped at.
    #[serde(default)]
    pub limit: DeviceCap,
    /// `ok`; `slow`, as compared with devices of the same class and layout in the last minute in which there was enough to compare;
    /// `failing`, when its errors have grown in the last 24 hours; `silent`, when it does not answer; `full`, when the filesystem or volume
    /// below it is; `failed`, when it was given up; `missing`; `filling`, while it gets what it lacks.
    #[serde(default)]
    pub health: String,
    /// Why it is not `ok`.
    #[serde(default)]
    pub health_reason: Option<String>,
    /// Counters since import.
    pub io: DeviceIo,
}

impl Device {
    /// The id, which differs from those of other devices of the pool; the path where the id is not known.
    pub fn key(&self) -> &str {
        if self.id.is_empty() { &self.path } else { &self.id }
    }
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pool {
    /// Name.
    pub name: String,
    /// Identity.
    pub id: String,
    /// `opening` (being imported), `online`, `readonly` (imported to be read), `degraded` (a device is missing or not whole, and not one
    /// of class cache), `closing`, `faulted`, or `unavailable` when it could not be imported.
    pub health: String,
    /// Why it is not `online`: the devices that are the cause, by path, and what to do.
    pub reason: Option<String>,
    /// Nothing is written to its devices: it was imported to be read.
    pub readonly: bool,
    /// Layout of the data class; nothing when the pool is not in service, and so not known.
    pub layout: Option<LayoutSpec>,
    /// Bytes that guests can fill.
    pub size: u64,
    /// Live bytes, snapshots and metadata included.
    pub allocated: u64,
    /// Bytes still to be had.
    pub free: u64,
    /// Seconds until it is full, at the rate at which it filled within the last hour; nothing when it does not fill, or was not looked at for
    /// long enough.
    #[serde(default)]
    pub full_in_seconds: Option<u64>,
    /// What its segments are doing.
    #[serde(default)]
    pub space: PoolSpace,
    /// Why the last removal of a device ended before it had left, when nobody stopped it.
    #[serde(default)]
    pub removal_ended: Option<String>,
    /// When it ended so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub removal_ended_at: Option<Timestamp>,
    /// Why the removal of a device that runs does not go on, or what one that was stopped gave up is not used again.
    #[serde(default)]
    pub removal_waits: Option<String>,
    /// The reason for which a rewind skipped the newest checkpoint and used an older one, without the log after it.
    #[serde(default)]
    pub fell_back: Option<String>,
    /// Its thread has not answered since then: what else is listed is what the daemon remembers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub silent_since: Option<Timestamp>,
    /// Devices in member order.
    pub devices: Vec<Device>,
    /// When it was taken into service.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub imported: Option<Timestamp>,
    /// Counters since import.
    pub io: PoolIo,
    /// Clients connected to its exports.
    pub clients: u64,
    /// The scrub that runs, or the last one.
    pub scrub: Option<Scrub>,
    /// Bytes per second that jobs may read, all together; nothing: as fast as guests leave room for.
    #[serde(default)]
    pub job_rate: Option<u64>,
    /// Warnings about the devices that a request adds to the pool, one line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A pool with less than this part free, and less than so many bytes, has no room for the writes of guests.
const FULL_PART: u64 = 100;
const FULL_BYTES: u64 = 16 << 20;

impl Pool {
    /// Guests' writes are refused for want of space, or soon will be.
    pub fn is_full(&self) -> bool {
        self.size > 0 && !self.readonly && self.free <= (self.size / FULL_PART).min(FULL_BYTES)
    }
}

/// What `pool destroy` loses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolRemoval {
    /// The pool.
    pub name: String,
    /// Volumes lost.
    pub volumes: Vec<String>,
    /// Number of snapshots lost.
    pub snapshots: u64,
    /// Live bytes lost.
    pub allocated: u64,
    /// Devices whose labels go.
    pub devices: Vec<String>,
    /// Of these, the ones that were not there: their labels are left, and why.
    #[serde(default)]
    pub left: Vec<LeftDevice>,
    /// Exports that end.
    #[serde(default)]
    pub exports: Vec<EndedExport>,
}

/// An export that ends with what it serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EndedExport {
    /// Its number.
    pub id: u64,
    /// The volume, snapshot or pool that it serves.
    pub name: String,
}

/// A device whose label is left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeftDevice {
    /// Where it was.
    pub path: String,
    /// Why.
    pub reason: String,
}

/// Background work of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// `reclaim:POOL`, `resilver:POOL:DEVICE`, `replace:POOL:DEVICE`, `remove:POOL:DEVICE`, `rebalance:POOL`, `wipe:POOL`, `scrub:POOL`, `copy:POOL/VOL`.
    pub id: String,
    /// The pool.
    pub pool: String,
    /// What is done.
    pub kind: String,
    /// `running`, or `stopped` with its pool, which is `faulted`.
    pub state: String,
    /// Bytes still to do.
    pub remaining_bytes: u64,
    /// Bytes done, where it is known how many there are.
    #[serde(default)]
    pub done_bytes: u64,
    /// Bytes per second lately, where that is known.
    #[serde(default)]
    pub rate: Option<u64>,
    /// Seconds until it ends at that rate.
    #[serde(default)]
    pub eta_seconds: Option<u64>,
    /// What could not be read anywhere.
    #[serde(default)]
    pub errors: u64,
}

/// A restore point of a pool: a checkpoint that its devices still hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Checkpoint {
    /// Generation of its root.
    pub id: u64,
    /// When it was written.
    #[schema(value_type = String, format = DateTime)]
    pub time: Timestamp,
    /// Last batch of the log that it contains.
    pub lsn: u64,
    /// Intact copies of its root over all devices; there are two on each.
    pub copies: u32,
    /// Is everything there that it refers to? `yes`: its objects match their checksums, and no segment was used for something else since;
    /// `no`;
    /// `unknown` of what older versions wrote.
    pub verified: String,
    /// Why it is not `yes`.
    pub reason: Option<String>,
    /// Milliseconds from it to now; of a pool that is not in service, to when it was last seen in use, or closed. Writes of this span would be lost
    /// by an import of this checkpoint. 0 when nothing was written.
    pub lost_millis: u64,
    /// Bytes that guests wrote after it; nothing where that is not known.
    pub lost_bytes: Option<u64>,
    /// Of the checkpoint that a rewinding import begins at: bytes that it loses, which replays the log after the checkpoint as far as it is sound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_by_rewind: Option<u64>,
}
