//! Information that can be listed: volumes, snapshots, devices, pools, jobs and counters.

use millpond_block::{CacheMode, DeviceError, DeviceSlot, MemberId, SectorProfile};
use millpond_format::{Class, DeviceId, FeatureNames, FeatureSet, Layout, MemberState, PoolId, SnapshotId, VolumeId};

use super::{BaseInfo, Compression, JobKind, Time};
use crate::error::Fault;
use crate::options::VolumeOptions;
use crate::read_cache::ReadCacheUse;

/// A volume in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Identity, never reused.
    pub id: VolumeId,
    /// Name without that of the pool.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Sector sizes that the guest sees.
    pub sector: SectorProfile,
    /// Cache mode.
    pub cache: CacheMode,
    /// Compression of new data.
    pub compression: Compression,
    /// True when writes are refused.
    pub read_only: bool,
    /// Reservation, limits and other options.
    pub options: VolumeOptions,
    /// Use of the read cache by its guests and those of its snapshots, since import.
    pub read_cache: ReadCacheUse,
    /// Bytes reachable from the head.
    pub referenced_bytes: u64,
    /// Bytes that would be freed if this volume's head and snapshots were destroyed.
    pub unique_bytes: u64,
    /// Number of listed snapshots.
    pub snapshots: u64,
    /// `volume@snapshot` that it was cloned from.
    pub origin: Option<String>,
    /// When it was created.
    pub created: Time,
    /// The source of its blocks, if it is a base.
    pub base: Option<BaseInfo>,
}

/// A snapshot in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Identity, never reused.
    pub id: SnapshotId,
    /// The volume that it belongs to.
    pub volume: VolumeId,
    /// The part of its name after `@`.
    pub name: String,
    /// When it was taken.
    pub created: Time,
    /// The pool's epoch that it closed.
    pub epoch: u64,
    /// Bytes reachable from it.
    pub referenced_bytes: u64,
    /// Bytes that would be freed if only this snapshot were destroyed.
    pub unique_bytes: u64,
    /// Number of holds that have not ended.
    pub holds: u32,
    /// These holds, those without a tag first.
    pub hold_list: Vec<HoldInfo>,
    /// Number of volumes cloned from it.
    pub clones: u32,
    /// Free text.
    pub description: String,
    /// When it may be destroyed automatically.
    pub expires: Option<Time>,
    /// Size of the volume when it was taken, in bytes.
    pub size: u64,
}

/// A hold on a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldInfo {
    /// Its tag, if any: no other hold of the snapshot has the same.
    pub tag: Option<String>,
    /// When it was set; unknown for holds without a tag.
    pub since: Option<Time>,
    /// When it ends by itself.
    pub until: Option<Time>,
    /// True when it cannot be released before its end.
    pub locked: bool,
}

/// A volume or snapshot as a file in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageInfo {
    /// Name of the volume, or the part of a snapshot's name after `@`.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Bytes reachable from it.
    pub referenced_bytes: u64,
    /// When it was created.
    pub created: Time,
    /// True when writes are refused.
    pub read_only: bool,
}

/// State of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolState {
    /// Being created, imported or recovered.
    Opening,
    /// In service.
    Online,
    /// Closing: the last checkpoint is being written.
    Closing,
    /// Closed cleanly: the caller may close the devices.
    Closed,
    /// Stopped by a fault: reads are answered where possible, nothing is written. The field is the
    /// reason.
    Faulted(Fault),
}

/// A device of a pool in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its place in the table of members.
    pub member: MemberId,
    /// Its identity, which no other device of the pool ever gets.
    pub id: DeviceId,
    /// Slot of its device in the caller's table; `None` when it is missing.
    pub slot: Option<DeviceSlot>,
    /// State in the pool.
    pub state: MemberState,
    /// Slot of its replacement.
    pub replacement: Option<DeviceSlot>,
    /// Identity of its replacement.
    pub replacement_id: Option<DeviceId>,
    /// Its purpose: data if one of its groups is for data, else that of its first group.
    pub class: Class,
    /// Layout of that group.
    pub layout: Layout,
    /// Bytes for segments.
    pub size: u64,
    /// Bytes of segments in use.
    pub allocated: u64,
    /// Bytes of free segments.
    pub free: u64,
    /// Why it was given up since import; `None` when it was not, or when another device has its
    /// place.
    pub trouble: Option<DeviceTrouble>,
    /// Milliseconds for which it has not answered, when that is long and the pool waits for it.
    pub silent: Option<u64>,
    /// Time since when writes to it wait because the filesystem or volume below it is full; they
    /// are retried automatically.
    pub full: Option<Time>,
    /// Errors since import: failed operations, and data that did not match its checksum.
    pub errors: u64,
    /// Of these errors, failed operations.
    pub failed: u64,
    /// Blocks and nodes that were written again from another copy or from parity.
    pub repaired: u64,
    /// Counters since import.
    pub counters: DeviceCounters,
}

/// Reason why a device was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceTrouble {
    /// Its operations failed.
    #[error("{0}")]
    Failed(DeviceError),
    /// It did not answer for [`crate::Tuning::silence_millis`] or longer.
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

/// The labels in force: every device of the pool in service has labels of this generation, durable
/// in both areas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelsInForce {
    /// Generation of the shape that they describe.
    pub generation: u64,
    /// Members that have everything that was acknowledged, with their devices. Cache devices and
    /// spares are left out, and so are members that are being resilvered. Replacements of members
    /// are included, because the next labels may make them members; without other devices they are
    /// not a pool.
    pub current: Vec<(MemberId, DeviceId)>,
    /// Devices were left behind that may claim to be the pool: some are given up or missing, or the
    /// caller knows of such ones from before, or cannot know, because the pool came by the user's
    /// word. What another host makes of those is not the state that was in service here.
    pub left_behind: bool,
}

/// A pool in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolInfo {
    /// Name.
    pub name: String,
    /// Identity.
    pub id: PoolId,
    /// State.
    pub state: PoolState,
    /// True when it was imported read-only and is never written to.
    pub read_only: bool,
    /// True when a device that it cannot do without is full: guests' writes fail with ENOSPC until
    /// there is space again.
    pub refuses_writes: bool,
    /// Features in force, with those that follow from the shape.
    pub features: FeatureSet,
    /// Features that the newest label names, with those that follow from the shape. Those that are
    /// not in force are on the medium, and nothing new is written with them.
    pub named_features: FeatureSet,
    /// Names of those that other programs may have to know, as in the label.
    pub feature_names: FeatureNames,
    /// Layout of the data class.
    pub layout: Layout,
    /// Bytes that guests can fill: segments without labels and without the reserve.
    pub size: u64,
    /// Live bytes, snapshots and metadata included.
    pub allocated: u64,
    /// Free bytes: size - allocated.
    pub free: u64,
    /// Bytes of devices that a stopped removal has left without segments. Not counted in `size`.
    /// They get segments again when there is space to move data to.
    pub given_up: u64,
    /// Why the last removal since import failed before it was complete; `None` when a user stopped
    /// it.
    pub removal_ended: Option<String>,
    /// Why the running removal does not progress, or why space that a stopped removal has given up
    /// is not used again.
    pub removal_waits: Option<String>,
    /// Why an import with a rewind went back further: what it could not use without the log after
    /// its checkpoint.
    pub fell_back: Option<String>,
    /// Bytes of segments, by their use.
    pub space: SpaceInfo,
    /// Devices in member order, without those that were removed.
    pub devices: Vec<DeviceInfo>,
    /// Jobs on its devices.
    pub jobs: Vec<JobInfo>,
    /// Limit on the bytes per second that jobs read; `None`: as fast as guests leave room for.
    pub job_rate: Option<u64>,
    /// Result of the scrub that is running, or of the last one since import.
    pub scrub: Option<ScrubInfo>,
}

/// Bytes of segments, by their use. Copies and parity are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceInfo {
    /// Segments with content.
    pub in_use: u64,
    /// Empty segments in retention: an older checkpoint needs them, so that a rewind finds it
    /// complete.
    pub retained: u64,
    /// Free segments with space on the host.
    pub ready: u64,
    /// Free segments without space on the host.
    pub holes: u64,
    /// Bytes of free segments that should have space on the host.
    pub wanted: u64,
}

/// Result of a scrub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrubInfo {
    /// When it began.
    pub begun: Time,
    /// When it ended; `None` while it is running.
    pub ended: Option<Time>,
    /// False when it was stopped.
    pub complete: bool,
    /// Number of wrong copies of blocks, nodes, objects, labels and roots.
    pub errors: u64,
    /// Number of pieces that were written again.
    pub repaired: u64,
    /// Number of blocks without a correct copy.
    pub lost_blocks: u64,
    /// Number of map nodes without a correct copy; each maps 2 MiB or more.
    pub lost_nodes: u64,
    /// The first thousand of these blocks, by volume and offset.
    pub lost: Vec<LostData>,
}

/// Data without a correct copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostData {
    /// Volume that wrote it. Its head, its snapshots or clones of them may contain the data.
    pub id: VolumeId,
    /// Name of that volume; `None` when it was destroyed.
    pub volume: Option<String>,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// Counters since import, for `iostat`, the lab and cost tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Guest reads answered.
    pub guest_reads: u64,
    /// Bytes of these reads.
    pub guest_read_bytes: u64,
    /// Guest writes answered.
    pub guest_writes: u64,
    /// Bytes of these writes.
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
    /// Bytes of memory that deadlists take now, part of `map_memory`: indexes of pieces, their
    /// content, and entries that are in no piece yet.
    pub piece_memory: u64,
    /// Pieces of deadlists read from devices.
    pub piece_reads: u64,
    /// Pieces of deadlists that could not be read from any copy.
    pub piece_failures: u64,
    /// Device reads for guest data.
    pub data_reads: u64,
    /// Blocks that guests read from cache devices.
    pub cache_hits: u64,
    /// Bytes of these blocks, as stored.
    pub cache_hit_bytes: u64,
    /// Blocks that guests read from the pool although cache devices may hold such blocks.
    pub cache_misses: u64,
    /// Bytes of blocks copied to cache devices, as stored.
    pub cache_fill_bytes: u64,
    /// Maximum bytes of blocks in the read cache.
    pub read_cache_limit: u64,
    /// Bytes of blocks in the read cache now.
    pub read_cache_bytes: u64,
    /// Blocks that guests read from the read cache.
    pub read_cache_hits: u64,
    /// Blocks that guests did not find in the read cache.
    pub read_cache_misses: u64,
    /// Bytes of blocks that were read ahead of guests that read in order.
    pub read_ahead_bytes: u64,
    /// Bytes of these blocks that guests then read.
    pub read_ahead_used_bytes: u64,
    /// Bytes of the buffers that hold blocks read ahead and not used yet, or into which they are
    /// being read. No part of `read_cache_bytes`.
    pub read_ahead_memory_bytes: u64,
    /// Batches appended for guests.
    pub batches: u64,
    /// Bytes of guest blocks appended (after compression).
    pub user_bytes: u64,
    /// Bytes of live blocks moved by the cleaner.
    pub cleaner_bytes: u64,
    /// Bytes of blocks that were written again next to each other, because guests read them together
    /// and they lay apart.
    pub gathered_bytes: u64,
    /// Bytes of blocks that snapshots share, that were gathered, and that are still needed.
    pub forwarded_bytes: u64,
    /// True when no more such blocks are gathered, because the memory for forwards is used up.
    pub forwards_full: bool,
    /// Bytes of batch headers.
    pub header_bytes: u64,
    /// Bytes of nodes and checkpoint objects.
    pub metadata_bytes: u64,
    /// Segments emptied by the cleaner.
    pub segments_cleaned: u64,
    /// Bytes of zeros written to free segments ahead of the log, over all copies.
    pub prepared_bytes: u64,
    /// Bytes of free segments whose space was discarded, over all copies.
    pub given_back_bytes: u64,
    /// Device flushes.
    pub flushes: u64,
    /// Checkpoints committed.
    pub checkpoints: u64,
    /// Bytes of log since the last checkpoint.
    pub log_bytes: u64,
    /// Time at which the last checkpoint was begun.
    pub last_checkpoint: Option<Time>,
    /// Time of the oldest checkpoint since import that a rewind finds whole without the log. Older
    /// checkpoints than the retention asks for are not looked at. `None` when there is none.
    pub oldest_restore_point: Option<Time>,
    /// Bytes that guests wrote since the pool was created.
    pub written_bytes: u64,
    /// Dead bytes that wait to be freed by reclaim.
    pub reclaim_backlog: u64,
    /// Bytes of destroyed snapshots and volumes that cannot be freed, because no copy of their
    /// deadlist can be read. Not in the backlog.
    pub unreclaimed: u64,
    /// Batches replayed at import.
    pub replayed_batches: u64,
    /// Guest writes that waited for space, until the cleaner or a checkpoint had freed some.
    pub throttled: u64,
}

/// A job on a pool's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobInfo {
    /// Kind of the job.
    pub kind: JobKind,
    /// The member that it works on.
    pub member: Option<MemberId>,
    /// Bytes done.
    pub done: u64,
    /// Bytes to do, including those done; 0 while it waits for another job.
    pub total: u64,
    /// Pieces that could not be read from any copy.
    pub errors: u64,
    /// Bytes per second lately; 0 while that is unknown.
    pub rate: u64,
}

/// A difference between two states of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiffExtent {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// True when the newer state has data there, false when it reads as zeroes.
    pub data: bool,
}
