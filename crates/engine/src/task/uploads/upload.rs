//! [`Upload`]: an object that is being filled.
//!
//! Page 0 is the head of the object. Groups follow, each a batch of moves as in the log: a header with the
//! identities of blocks, and the blocks. A header has the segment, as in the log, so the segment is reserved
//! before the first group; the name is in the head alone.

use std::collections::VecDeque;

use millpond_block::BufSlice;
use millpond_format::{
    BATCH_FIXED, BatchHeader, ChunkId, Encoder, HEADER_PAGE, Lsn, NO_SEGMENT, ObjectHead, PoolId, Running, SegmentId, SegmentName,
};

use super::placing::Sent;
use crate::Time;
use crate::log::{Lifetime, UPLOAD_HEAD};
use crate::space::{PAGE, Slots};
use crate::store::Store;

/// Pages of the head of an object.
const HEAD_PAGES: u32 = 1;

/// A chunk that was copied to an upload.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) chunk: ChunkId,
    /// The segment from which it was copied.
    pub(crate) from: SegmentId,
    /// First page of its blocks: in the payload of its group, later in the object.
    pub(crate) page: u32,
    /// The slots that were copied.
    pub(crate) slots: Slots,
}

/// Chunks with one header.
#[derive(Debug)]
pub(crate) struct CopiedGroup {
    /// The items of the header.
    pub(crate) items: Encoder,
    /// Pages of payload, and the payload.
    pub(crate) payload: u32,
    pub(crate) pieces: Vec<BufSlice>,
    pub(crate) chunks: Vec<Copied>,
}

impl CopiedGroup {
    fn header_pages(&self) -> u32 {
        u32::try_from((BATCH_FIXED + self.items.len()).div_ceil(HEADER_PAGE)).unwrap_or(u32::MAX)
    }

    /// Pages of header and payload.
    pub(super) fn pages(&self) -> u32 {
        self.header_pages() + self.payload
    }
}

/// A group of an object: the page of its header, and its chunks.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) header: u32,
    pub(super) chunks: VecDeque<Copied>,
}

/// An object that is being filled.
#[derive(Debug)]
pub(super) struct Upload {
    pub(super) segment: SegmentId,
    pub(super) begun: Time,
    /// Pages so far, with the head, and most pages.
    pages: u32,
    most: u32,
    groups: VecDeque<Group>,
    /// The content behind the head, and its checksum.
    pieces: Vec<BufSlice>,
    sum: Running,
}

/// Returns the pages behind the head of the longest object.
pub(super) fn room_of(store: &Store) -> u32 {
    store.core.space.layout.smallest() - HEAD_PAGES
}

impl Upload {
    /// Opens an upload for a segment that is reserved for it.
    pub(super) fn new(store: &Store, segment: SegmentId) -> Upload {
        Upload {
            segment,
            begun: store.now,
            pages: HEAD_PAGES,
            most: HEAD_PAGES + room_of(store),
            groups: VecDeque::new(),
            pieces: Vec::new(),
            sum: Running::default(),
        }
    }

    /// Pages that are left.
    pub(super) fn left(&self) -> u32 {
        self.most - self.pages
    }

    /// The chunks so far.
    pub(super) fn chunks(&self) -> impl Iterator<Item = &Copied> {
        self.groups.iter().flat_map(|group| &group.chunks)
    }

    /// Returns the content of an upload that is given up.
    pub(super) fn into_pieces(self) -> Vec<BufSlice> {
        self.pieces
    }

    /// Adds a group, which fits, and counts it in the checksum.
    pub(super) fn add(&mut self, store: &mut Store, group: CopiedGroup) {
        let (header_pages, pages, at) = (group.header_pages(), group.pages(), self.pages);
        assert!(pages <= self.left(), "INV-OBJ-1: an object of {at} pages has no room for {pages}");
        let bytes = header_pages as usize * HEADER_PAGE;
        let mut header = store.bufs.take(bytes);
        if let Some(to) = header.bytes_mut().get_mut(..bytes) {
            self.header(store.config.id, header_pages, group.payload).encode(group.items.bytes(), to);
        }
        let pieces = [BufSlice::new(header, 0..bytes)].into_iter().chain(group.pieces);
        for piece in pieces {
            self.sum.update(piece.bytes());
            self.pieces.push(piece);
        }
        let payload = at + header_pages;
        let chunks = group.chunks.into_iter().map(|copied| Copied { page: payload + copied.page, ..copied });
        self.groups.push_back(Group { header: at, chunks: chunks.collect() });
        self.pages += pages;
    }

    /// Returns a header of the object: it looks like a batch of incarnation 0, which no log has.
    fn header(&self, pool: PoolId, pages: u32, payload: u32) -> BatchHeader {
        BatchHeader {
            stream: UPLOAD_HEAD,
            pages: u8::try_from(pages).unwrap_or(u8::MAX),
            pool,
            incarnation: 0,
            next: NO_SEGMENT,
            lsn: Lsn(0),
            durable: Lsn(0),
            epoch: millpond_format::Epoch(0),
            chunk: ChunkId(0),
            birth: 0,
            segment: self.segment,
            offset: self.pages,
            base: 0,
            payload,
            grain: 8,
        }
    }

    /// Ends the object. Returns its head, which `head` makes of length and checksum, the content behind
    /// that, and the chunks that are to be placed in it.
    pub(super) fn finish(
        self,
        name: SegmentName,
        class: Lifetime,
        head: impl FnOnce(u64, u32) -> ObjectHead,
    ) -> (ObjectHead, Vec<BufSlice>, Sent) {
        let Upload { segment, pages, groups, pieces, sum, .. } = self;
        let head = head(u64::from(pages) * PAGE, sum.finish());
        let pages = u16::try_from(pages).unwrap_or(u16::MAX);
        (head, pieces, Sent { segment, name, pages, class, groups, is_placed: false })
    }
}
