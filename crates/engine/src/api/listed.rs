//! What is listed: volumes, snapshots, devices, pools, jobs, counters.

use millpond_block::{CacheMode, SectorProfile};
use millpond_device::DeviceError;
use millpond_format::{Class, DeviceId, Layout, MemberState, PoolId, SnapshotId, VolumeId};

use super::{Compression, Time};
use crate::options::VolumeOptions;
use crate::read_cache::ReadCacheUse;

/// A volume, as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Identity, never reused.
    pub id: VolumeId,
    /// Name without the pool's.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// What the guest sees.
    pub sector: SectorProfile,
    /// Cache mode.
    pub cache: CacheMode,
    /// Compression of new data.
    pub compression: Compression,
    /// Writes are refused.
    pub read_only: bool,
    /// What it may take and what is kept for it.
    pub options: VolumeOptions,
    /// What its guests, and those of its snapshots, read from the daemon's memory since import.
    pub read_cache: ReadCacheUse,
    /// Bytes reachable from the head.
    pub referenced_bytes: u64,
    /// Bytes that would be freed if only this volume's head and snapshots went.
    pub unique_bytes: u64,
    /// Number of listed snapshots.
    pub snapshots: u64,
    /// `volume@snapshot` that it is a clone of.
    pub origin: Option<String>,
    /// When it was made.
    pub created: Time,
}

/// A snapshot, as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Identity, never reused.
    pub id: SnapshotId,
    /// Its volume.
    pub volume: VolumeId,
    /// The part of its name after `@`.
    pub name: String,
    /// When it was taken.
    pub created: Time,
    /// The pool's epoch that it closed.
    pub epoch: u64,
    /// Bytes reachable from it.
    pub referenced_bytes: u64,
    /// Bytes that would be freed if only it went.
    pub unique_bytes: u64,
    /// Holds on it that have not ended by themselves.
    pub holds: u32,
    /// These, those without a tag first.
    pub hold_list: Vec<HoldInfo>,
    /// Volumes cloned from it.
    pub clones: u32,
    /// Free text.
    pub description: String,
    /// When it may be removed by itself.
    pub expires: Option<Time>,
    /// Size of the volume when it was taken, in bytes.
    pub size: u64,
}

/// A hold on a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldInfo {
    /// Its tag, where it has one: no other hold of the snapshot has the same.
    pub tag: Option<String>,
    /// When it was made; not known of holds without a tag.
    pub since: Option<Time>,
    /// When it ends by itself.
    pub until: Option<Time>,
    /// It cannot be released before that.
    pub locked: bool,
}

/// A volume or snapshot, as a directory shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageInfo {
    /// Name of the volume, or the part of a snapshot's name after `@`.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Bytes reachable from it.
    pub referenced_bytes: u64,
    /// When it was made.
    pub created: Time,
    /// Writes are refused.
    pub read_only: bool,
}

/// Condition of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolState {
    /// Import, creation or recovery goes on.
    Opening,
    /// In service.
    Online,
    /// Closing: the last checkpoint is being written.
    Closing,
    /// Closed cleanly: the devices may be let go.
    Closed,
    /// Stopped by a fault: reads are answered where possible, nothing is written. The reason, one line.
    Faulted(String),
}

/// A device of a pool, as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its place in the table of members.
    pub member: u16,
    /// Its identity, which no other device of the pool ever has.
    pub id: DeviceId,
    /// Position in the caller's vector; `None` when it is missing.
    pub position: Option<usize>,
    /// What it is to the pool.
    pub state: MemberState,
    /// Position of the device that is taking its place.
    pub successor: Option<usize>,
    /// Identity of that device.
    pub successor_id: Option<DeviceId>,
    /// What it is used for, in the first of the groups that it belongs to.
    pub class: Class,
    /// How.
    pub layout: Layout,
    /// Usable bytes for segments.
    pub size: u64,
    /// Bytes of segments in use.
    pub allocated: u64,
    /// Bytes of free segments.
    pub free: u64,
    /// Why it was given up since import; `None` when it was not, and when another device has its place.
    pub trouble: Option<DeviceTrouble>,
    /// For how many milliseconds it has answered nothing although it was asked, when that is long; the pool waits for it.
    pub silent: Option<u64>,
    /// Since when writes to it wait because the filesystem or volume below it is full; they are tried again by themselves.
    pub full: Option<Time>,
    /// Errors seen since import: operations that failed, and what did not match its checksum.
    pub errors: u64,
    /// Blocks and nodes that were written to it again from elsewhere.
    pub repaired: u64,
    /// Counters since import.
    pub counters: DeviceCounters,
}

/// Why a device was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceTrouble {
    /// It failed.
    #[error("{0}")]
    Failed(DeviceError),
    /// It did not answer for as long as [`crate::Tuning::silence_millis`] says, and longer.
    #[error("the device does not answer")]
    Silent,
    /// The filesystem or volume below it is full.
    #[error("the filesystem or volume below is full")]
    Full,
}

/// Operations on one device since import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Flushes.
    pub flushes: u64,
}

/// The labels in force: every device of the pool that is in service has one of this generation, durably, in both places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelsInForce {
    /// Generation of the shape that they describe.
    pub generation: u64,
    /// Members that hold everything that was acknowledged, and which devices they are. Without the cache and spares, and without members
    /// that are
    /// being filled; with devices that take the places of those, which the next labels may call members: alone they are no pool.
    pub current: Vec<(u16, DeviceId)>,
    /// Devices were left behind that may say of themselves that they are the pool: some are given up or missing, or the caller knows of
    /// such
    /// ones from before, or cannot know, as the pool came by the user's word. What another host makes of those is not the state that was in
    /// service here.
    pub left_behind: bool,
}

/// A pool, as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolInfo {
    /// Name.
    pub name: String,
    /// Identity.
    pub id: PoolId,
    /// Condition.
    pub state: PoolState,
    /// It is never written to: imported to be read.
    pub read_only: bool,
    /// A device that it cannot do without is full: guests' writes are answered ENOSPC until there is room again.
    pub refuses_writes: bool,
    /// Layout of the data class.
    pub layout: Layout,
    /// Bytes that guests can fill: segments without labels and reserve.
    pub size: u64,
    /// Live bytes, snapshots and metadata included.
    pub allocated: u64,
    /// Bytes still to be had: size - allocated.
    pub free: u64,
    /// Bytes of devices that are in no segment since a removal was stopped, and not counted in `size`: they become segments again when
    /// there is room to move to.
    pub given_up: u64,
    /// Why the last removal since import ended before the device had left, when nobody stopped it.
    pub removal_ended: Option<String>,
    /// Why the removal that runs does not go on, or what one that was stopped gave up is not used again.
    pub removal_waits: Option<String>,
    /// What an import with a rewind could not use, so that it went back further: without the log after its checkpoint.
    pub fell_back: Option<String>,
    /// What segments are doing.
    pub space: SpaceInfo,
    /// Devices in member order, without those that were removed.
    pub devices: Vec<DeviceInfo>,
    /// Work on them.
    pub jobs: Vec<JobInfo>,
    /// Bytes per second that it may read; `None`: as fast as guests leave room for.
    pub job_rate: Option<u64>,
    /// What the scrub that runs, or the last one since import, has found.
    pub scrub: Option<ScrubInfo>,
}

/// Bytes of segments, by what they are doing. Copies and parity do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceInfo {
    /// Segments that hold something.
    pub in_use: u64,
    /// Empty ones that an older checkpoint still needs, so that a rewind finds it whole.
    pub resting: u64,
    /// Free ones that the host has bytes for.
    pub ready: u64,
    /// Free ones that it has none for.
    pub holes: u64,
    /// What the pool wants to have ready.
    pub wanted: u64,
}

/// What a scrub has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrubInfo {
    /// When it began.
    pub begun: Time,
    /// When it came to its end; `None` while it runs.
    pub ended: Option<Time>,
    /// It was not stopped.
    pub complete: bool,
    /// Copies of blocks, nodes, objects, labels and roots that were wrong.
    pub errors: u64,
    /// Pieces that were written again.
    pub repaired: u64,
    /// Blocks of which no copy is right.
    pub lost_blocks: u64,
    /// Map nodes of which no copy is right: each maps 2 MiB or more.
    pub lost_nodes: u64,
    /// Where these blocks are, by volume and offset: the first thousand.
    pub lost: Vec<LostData>,
}

/// Data of which no copy is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostData {
    /// The volume that wrote it. It may be in the head, in snapshots, or in clones of them.
    pub id: VolumeId,
    /// What that is called; `None` when it was destroyed.
    pub volume: Option<String>,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// Counters since import, for `iostat`, the lab and cost tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Guest reads answered.
    pub guest_reads: u64,
    /// Bytes of them.
    pub guest_read_bytes: u64,
    /// Guest writes answered.
    pub guest_writes: u64,
    /// Bytes of them.
    pub guest_write_bytes: u64,
    /// Guest flushes answered.
    pub guest_flushes: u64,
    /// Map nodes visited for guest requests.
    pub nodes_touched: u64,
    /// Map nodes read from devices.
    pub node_reads: u64,
    /// Map nodes written.
    pub node_writes: u64,
    /// Map nodes in memory now.
    pub nodes_resident: u64,
    /// Bytes that deadlists take in memory now, of `map_memory`: where epochs begin in pieces, their content, and what is in no piece yet.
    pub piece_memory: u64,
    /// Pieces of deadlists read from devices.
    pub piece_reads: u64,
    /// Those of them that no copy had.
    pub piece_failures: u64,
    /// Device reads for guest data.
    pub data_reads: u64,
    /// Blocks that guests read from the cache.
    pub cache_hits: u64,
    /// Bytes of them, as stored.
    pub cache_hit_bytes: u64,
    /// Blocks that they read elsewhere and that the cache could have had.
    pub cache_misses: u64,
    /// Bytes of blocks copied to the cache, as stored.
    pub cache_fill_bytes: u64,
    /// Bytes of blocks in the read cache at most.
    pub read_cache_limit: u64,
    /// Bytes of blocks in it now.
    pub read_cache_bytes: u64,
    /// Blocks that guests read from it.
    pub read_cache_hits: u64,
    /// Blocks that they did not find there.
    pub read_cache_misses: u64,
    /// Batches appended for guests.
    pub batches: u64,
    /// Bytes of guest blocks appended (after compression).
    pub user_bytes: u64,
    /// Bytes of live blocks moved by the cleaner.
    pub cleaner_bytes: u64,
    /// Bytes of batch headers.
    pub header_bytes: u64,
    /// Bytes of nodes and checkpoint objects.
    pub metadata_bytes: u64,
    /// Segments emptied by the cleaner.
    pub segments_cleaned: u64,
    /// Bytes of zeros written to free segments ahead of the log, all copies together.
    pub prepared_bytes: u64,
    /// Bytes of free segments that the host got back, all copies together.
    pub given_back_bytes: u64,
    /// Device flushes.
    pub flushes: u64,
    /// Checkpoints committed.
    pub checkpoints: u64,
    /// Bytes of log since the last checkpoint.
    pub log_bytes: u64,
    /// Bytes that guests wrote since the pool was made.
    pub written_bytes: u64,
    /// Dead bytes that wait to be freed by reclaim.
    pub reclaim_backlog: u64,
    /// Bytes that destroyed snapshots and volumes held and that are not given back, as no copy of the deadlist that names them can be
    /// read. Not in the backlog.
    pub unreclaimed: u64,
    /// Log records replayed at import.
    pub replayed_batches: u64,
    /// Guest writes that waited for the cleaner.
    pub throttled: u64,
}

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobKind {
    /// Fills a member with what it should hold.
    Resilver,
    /// Fills a device that takes a member's place.
    Replace,
    /// Moves what is on a member elsewhere.
    Remove,
    /// Makes segments of what a removal that was stopped left in none.
    Rejoin,
    /// Evens out what groups hold.
    Rebalance,
    /// Makes unreadable what nothing refers to.
    Wipe,
    /// Reads every copy of everything.
    Scrub,
}

/// Work in the background on a pool's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobInfo {
    /// What it does.
    pub kind: JobKind,
    /// With which member.
    pub member: Option<u16>,
    /// Bytes done.
    pub done: u64,
    /// Bytes to do, the done ones included; 0 while it waits for others.
    pub total: u64,
    /// Pieces that cannot be read anywhere.
    pub errors: u64,
    /// Bytes done per second lately; 0 when that is not known yet.
    pub rate: u64,
}

/// A difference between two states of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiffExtent {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// True when the newer state has data there, false when it reads as zeroes.
    pub data: bool,
}
