//! Operations: guest requests and commands on their way.

use millpond_block::{Buf, Data, DiskError, Piece, Request, Tag};
use millpond_device::DeviceIndex;
use millpond_format::{Addr, BlockNo, Coding, Lsn, SegmentId, SnapshotId, VolumeId};
use smallvec::SmallVec;

use super::census::CensusWork;
use super::diff::Comparison;
use crate::cache::Spot;
use crate::{CommandError, Reply};

/// What a request addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// The writable head of a volume.
    Head(VolumeId),
    /// A snapshot, to read.
    Snapshot(SnapshotId),
}

/// Who gets the answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owner {
    Guest(Tag),
    Command(Tag),
    /// Another operation, which counts it as a child.
    Parent(u32),
    /// Nobody: background work.
    Nobody,
}

/// An operation.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) owner: Owner,
    pub(crate) work: Work,
    /// Batches that it is in and that are not complete; children not done.
    pub(crate) pending: u32,
    /// The last batch that it is in.
    pub(crate) lsn: Lsn,
    /// It is complete only when durable.
    pub(crate) durable: bool,
    pub(crate) error: Option<DiskError>,
}

/// What an operation does.
#[derive(Debug)]
pub(crate) enum Work {
    Read(ReadWork),
    Write(WriteWork),
    Clear(ClearWork),
    /// A flush, or a wait for children.
    Barrier(BarrierKind),
    Command(Result<Reply, CommandError>),
    /// A comparison of two states.
    Compare(Box<Comparison>),
    /// A look at everything that maps hold.
    Census(Box<CensusWork>),
    /// A walk that reclaims a destroyed version.
    Walk {
        id: u64,
    },
}

/// What a barrier is to its guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarrierKind {
    Flush,
    Clear,
}

/// A read.
#[derive(Debug)]
pub(crate) struct ReadWork {
    pub(crate) target: Target,
    pub(crate) request: Request,
    pub(crate) parts: SmallVec<[Part; 1]>,
    /// Data that is in flight itself may be shown only when it cannot be lost by the daemon's death (I10).
    pub(crate) after: Lsn,
    /// Copies that were not what they should be.
    pub(crate) bad: Vec<Bad>,
    /// Something from the cache was not what it should be: all of it is read once more, past the cache.
    pub(crate) again: bool,
    pub(crate) past_cache: bool,
    /// The volume in whose share of the read cache its blocks may be.
    pub(crate) remembered: Option<VolumeId>,
}

impl ReadWork {
    /// A read of which nothing is known yet.
    pub(crate) fn new(target: Target, request: Request) -> ReadWork {
        ReadWork {
            target,
            request,
            parts: SmallVec::new(),
            after: Lsn(0),
            bad: Vec::new(),
            again: false,
            past_cache: false,
            remembered: None,
        }
    }
}

/// A copy of a part of a read that was not what it should be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bad {
    pub(crate) part: u32,
    pub(crate) member: DeviceIndex,
}

/// A part of a read, in order.
#[derive(Debug)]
pub(crate) enum Part {
    /// Bytes that read as zeroes.
    Zero(usize),
    /// Bytes that are here.
    Ready(Piece),
    /// Plain blocks on their way from a device, with their checksums. Their addresses when the cache may want them.
    Blocks { crcs: SmallVec<[u32; 1]>, addrs: SmallVec<[Addr; 1]>, place: (SegmentId, u32), attempt: u8 },
    /// A packed block on its way; no address when the cache does not want it.
    Packed { crc: u32, coding: Coding, skip: usize, units: u32, place: (SegmentId, u32), pages: u32, attempt: u8, addr: Addr },
    /// Plain blocks that follow each other, or a packed one, on their way from the cache: addresses and checksums.
    Cached { blocks: SmallVec<[(Addr, u32); 1]>, spot: Spot },
}

/// A write.
#[derive(Debug)]
pub(crate) struct WriteWork {
    pub(crate) volume: VolumeId,
    pub(crate) request: Request,
    /// The payload, when it had to be kept; the request's bytes from the start, or whole blocks once the edges were filled in.
    pub(crate) payload: Option<Buf>,
    pub(crate) edges: Edges,
}

/// The blocks at the ends of a write that it covers only in part.
#[derive(Debug, Default)]
pub(crate) struct Edges {
    /// Blocks locked for this write.
    pub(crate) locked: SmallVec<[BlockNo; 2]>,
    /// Rollbacks of the pool before the old content was read: another one may have changed what the locked blocks hold.
    pub(crate) rollbacks: u64,
    /// Old content of the locked blocks, in the same order.
    pub(crate) old: SmallVec<[Option<Data>; 2]>,
    /// The payload holds whole blocks now.
    pub(crate) filled: bool,
}

/// A clear of whole blocks.
#[derive(Debug)]
pub(crate) struct ClearWork {
    pub(crate) volume: VolumeId,
    pub(crate) next: u64,
    pub(crate) end: u64,
}
