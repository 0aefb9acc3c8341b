//! Operations: guest requests, commands and background work in progress.

use millpond_block::{Buf, BufSlice, DiskError, IoSlices, MemberId, Request, Tag};
use millpond_format::{Addr, BlockNo, Coding, Lsn, SegmentId, VolumeId};
use smallvec::SmallVec;

use super::codec::CompressedPayload;
use crate::api::Target;
use crate::cache::CacheSlot;
use crate::store::{CensusWork, Comparison};
use crate::{CommandError, Reply};

/// The receiver of an operation's result.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owner {
    Guest(Tag),
    Command(Tag),
    /// Another operation, which counts it as a child.
    Parent(u32),
    /// The gatherer: the number of its read.
    Gather(u64),
    /// Read-ahead: the number of the batch.
    Ahead(u64),
    /// The fill of a chunk: the base, and the number of the chunk.
    Fill(VolumeId, u64),
    /// No receiver: background work.
    Nobody,
}

/// An operation.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) owner: Owner,
    pub(crate) work: Work,
    /// Number of incomplete batches that hold its data, and of unfinished children.
    pub(crate) pending: u32,
    /// The last batch that holds its data.
    pub(crate) lsn: Lsn,
    /// The operation completes only once it is durable.
    pub(crate) durable: bool,
    pub(crate) error: Option<DiskError>,
}

/// The work of an operation.
#[derive(Debug)]
pub(crate) enum Work {
    Read(ReadWork),
    Write(WriteWork),
    Clear(ClearWork),
    /// A flush, a fill, or a wait for children.
    Barrier(BarrierKind),
    Command(Result<Reply, CommandError>),
    /// A comparison of two states.
    Compare(Box<Comparison>),
    /// A scan of all maps for the census.
    WriteSizes(Box<CensusWork>),
    /// A walk that reclaims a destroyed version.
    Walk {
        id: u64,
    },
}

/// The request that a barrier answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarrierKind {
    Flush,
    Clear,
    Fill,
}

/// A read.
#[derive(Debug)]
pub(crate) struct ReadWork {
    pub(crate) target: Target,
    pub(crate) request: Request,
    pub(crate) parts: SmallVec<[Part; 1]>,
    /// Batch that must be complete before the data may be returned: the daemon's death must not
    /// lose data that a guest has seen (I10).
    pub(crate) after: Lsn,
    /// Copies with wrong content.
    pub(crate) bad: Vec<CorruptCopy>,
    /// A block from the cache had wrong content, or one could not be decompressed: the whole read is
    /// repeated without the cache.
    pub(crate) again: bool,
    pub(crate) bypass_cache: bool,
    /// The volume whose share of the read cache serves this read; `None` without read cache.
    pub(crate) remembered: Option<VolumeId>,
}

impl ReadWork {
    /// Creates a read that has not begun.
    pub(super) fn new(target: Target, request: Request) -> ReadWork {
        ReadWork {
            target,
            request,
            parts: SmallVec::new(),
            after: Lsn(0),
            bad: Vec::new(),
            again: false,
            bypass_cache: false,
            remembered: None,
        }
    }
}

/// A copy of a part of a read that had wrong content.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CorruptCopy {
    pub(crate) part: u32,
    pub(crate) member: MemberId,
}

/// A part of a read, in order.
#[derive(Debug)]
pub(crate) enum Part {
    /// Bytes that read as zeroes.
    Zero(usize),
    /// Bytes in memory.
    Ready(BufSlice),
    /// Plain blocks that are being read from a device, with their checksums; with addresses when a
    /// cache may want the blocks.
    Blocks { crcs: SmallVec<[u32; 1]>, addrs: SmallVec<[Addr; 1]>, place: (SegmentId, u32), attempt: u8 },
    /// A packed block that is being read; its address is a hole when no cache wants it.
    Packed { crc: u32, coding: Coding, skip: usize, units: u32, place: (SegmentId, u32), pages: u32, attempt: u8, addr: Addr },
    /// Adjacent plain blocks, or one packed block, that are being read from the cache: addresses
    /// and checksums.
    Cached { blocks: SmallVec<[(Addr, u32); 1]>, cache_slot: CacheSlot },
    /// A device read of several of the parts before it: its first page, its pages, and these parts.
    /// No part of the reply.
    Joined { page: u32, pages: u32, parts: SmallVec<[u32; 4]> },
}

/// A write.
#[derive(Debug)]
pub(crate) struct WriteWork {
    pub(crate) volume: VolumeId,
    pub(crate) request: Request,
    /// The payload, when it had to be kept: the request's bytes, or whole blocks once the edges
    /// were filled in.
    pub(crate) payload: Option<Buf>,
    /// The payload in its place, while its blocks are being compressed and afterwards.
    pub(crate) compressed: Option<CompressedPayload>,
    pub(crate) edges: Edges,
}

/// The blocks at the ends of a write that it covers only in part.
#[derive(Debug, Default)]
pub(crate) struct Edges {
    /// Blocks locked for this write.
    pub(crate) locked: SmallVec<[BlockNo; 2]>,
    /// The pool's count of rollbacks before the old content was read: a later rollback may have
    /// changed the locked blocks.
    pub(crate) rollbacks: u64,
    /// Old content of the locked blocks, in the same order.
    pub(crate) old: SmallVec<[Option<IoSlices>; 2]>,
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
