//! The purposes of device operations, and the contents of labels.

use std::collections::BTreeMap;
use std::rc::Weak;

use millpond_block::{DeviceSlot, MemberId};
use millpond_format::{BlockIdentity, ChunkId, DeviceNote, FeatureNames, FeatureSet, Lsn, ObjectRef, PoolId, SegmentId, Shape};

use crate::Time;
use crate::cache::{CacheSlot, Scan};
use crate::space::Piece;
use crate::tree::Miss;

/// The contents of the label, and the sizes of devices.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) id: PoolId,
    pub(crate) name: String,
    pub(crate) shape: Shape,
    /// Features in the labels, and the names of those that other programs may have to know.
    pub(crate) features: FeatureSet,
    pub(crate) feature_names: FeatureNames,
    /// Descriptions of devices as they were last seen, by id, for users.
    pub(crate) notes: Vec<DeviceNote>,
    /// Size of each member's device in bytes; 0 when the device is missing.
    pub(crate) sizes: Vec<u64>,
    /// Sizes in bytes of replacement devices, by member.
    pub(crate) replacements: BTreeMap<MemberId, u64>,
}

impl Config {
    /// Size of a member's device in bytes; 0 when the device is missing.
    pub(crate) fn size_of(&self, member: MemberId) -> u64 {
        self.sizes.get(member.index()).copied().unwrap_or(0)
    }
}

/// The purpose of a device operation; routes its completion.
#[derive(Debug)]
pub(crate) enum Context {
    /// A batch of the log.
    Batch(Lsn),
    /// Part of a read: operation and part.
    Data {
        op: u32,
        part: u32,
    },
    /// A map node.
    Node(NodeRead),
    /// A piece of a deadlist.
    DeadPiece(PieceRead),
    /// A rewrite of a copy that was wrong.
    Repair,
    /// A flush for waiters; makes everything up to this batch durable.
    Flush(Lsn),
    /// Nodes of a checkpoint: handles to mark as written.
    Nodes(Vec<u32>),
    /// Checkpoint objects.
    Objects,
    /// The checkpoint's barriers and roots.
    Checkpoint,
    /// A new pool's labels.
    Labels,
    /// Labels of a shape that changed.
    Relabel,
    /// Pages of the key table.
    Keys,
    /// A copy of the label of a member that could not be written before, in the second area if true.
    LackingLabel(MemberId, bool),
    /// A read of a piece of a device that is being filled.
    FillRead(FillPiece),
    FillWrite(FillPiece),
    /// A write of this many bytes to a device that is being filled, which nothing waits for.
    Behind(u64),
    /// A read or write of the ring of roots for a device that is being filled.
    FillRing(u64),
    /// Part of a read from the cache: operation and part.
    Cached {
        op: u32,
        part: u32,
        cache_slot: CacheSlot,
    },
    /// A read of a page of a cache device.
    CacheScan(Scan),
    CacheWrite(Scan),
    /// A discard of free segments.
    Discard(Vec<SegmentId>),
    /// Zeroes written to part of a free segment.
    Prepare,
    /// An operation of a job.
    Job(JobIo),
    /// A read or write of the claim.
    Claim(ClaimIo),
    /// The cleaner's read of the header at this page of its victim, which describes chunks that
    /// were moved there; and the attempt.
    CleanHeader(u32, u8),
    /// The cleaner's read of a chunk; for a moved one, the identities of its slots; and the
    /// attempt.
    Clean(ChunkId, Vec<(u32, BlockIdentity)>, u8),
}

/// A device operation of a job.
#[derive(Clone, Copy, Debug)]
pub(crate) enum JobIo {
    /// A scrub's read of a copy.
    Scrub(ScrubRead),
    /// A scrub's read or write of a metadata area.
    ScrubArea(ScrubArea),
    /// An overwrite or discard for a wipe.
    Wipe,
}

/// A map node that is being read, and its place when the read began: it may move meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeRead {
    pub(crate) miss: Miss,
    pub(crate) segment: SegmentId,
    pub(crate) unit: u32,
    pub(crate) attempt: u8,
    /// Read ahead of guests: errors do not count, and no other copy is read.
    pub(crate) quiet: bool,
}

/// A piece of a deadlist that is being read, and its place when the read began: it may move
/// meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct PieceRead {
    pub(crate) piece: Weak<Piece>,
    pub(crate) at: ObjectRef,
    pub(crate) attempt: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AreaPart {
    /// A label of this generation.
    Label(u64),
    Ring,
    /// The key table.
    Keys,
    /// Roots that are rewritten.
    Mended,
    /// A wrong copy of a label that is written from what the pool has, the other copy being kept.
    LabelCopy,
    /// The flush after such writes, at this generation of the labels.
    CopiesFlush(u64),
}

/// A part of a segment that is being copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FillPiece {
    /// Number of the run of filling that it belongs to.
    pub(crate) run: u64,
    pub(crate) segment: SegmentId,
    /// Byte offset on the member.
    pub(crate) offset: u64,
    /// First page in the segment, where each copy has all of it; otherwise in the member's extent.
    pub(crate) page: u32,
    pub(crate) pages: u32,
    pub(crate) attempt: u8,
    /// Time at which it began.
    pub(crate) begun: Time,
}

/// Identifies a read of a scrub.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScrubRead {
    pub(crate) run: u64,
    pub(crate) reading: u64,
    pub(crate) copy: usize,
    pub(crate) tries: u8,
}

/// A read or write of the metadata areas of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScrubArea {
    pub(crate) run: u64,
    pub(crate) member: MemberId,
    pub(crate) second: bool,
    pub(crate) part: AreaPart,
}

/// A read or write of the claim.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ClaimIo {
    /// Reads the second area's claim of a member; `slot` is of its device, `asked` is the time of
    /// the request.
    Look { member: MemberId, slot: DeviceSlot, asked: Time },
    /// Heartbeat: writes the claim to the first area, and to the second if it was not right there.
    Heartbeat,
    /// Writes to both areas that no host has the pool.
    Release,
    /// Flushes that.
    ReleaseFlush,
}
