//! Sizes of what a checkpoint writes: pages and segments of nodes, objects, deadlists and the table
//! of chunks.

use millpond_format::{NODE_BYTES, ObjectRef};

use super::WRITE_PAGES;
use crate::Planted;
use crate::core::StoredDeadlist;
use crate::log::Cursor;
use crate::space::stored_bytes;
use crate::store::{META_HEAD_PAGES, Store};

/// Part (1/N) of the bytes of long pages that is added for the indexes of their parts, which have 20
/// bytes, and begin at steps of 64, for 4 KiB at least.
const INDEX_PART: usize = 32;

impl Store {
    /// Returns the number of segments for `pages` pages from `cursor` on. The last `waste` pages of
    /// each segment may be too few for the next write, and are not counted.
    pub(super) fn segments_for(&self, pages: usize, waste: usize, cursor: Option<Cursor>) -> usize {
        let left = cursor.map_or(0, |cursor| (cursor.pages - cursor.page) as usize);
        let segment = self.core.space.layout.smallest().saturating_sub(META_HEAD_PAGES) as usize;
        pages.saturating_sub(left.saturating_sub(waste)).div_ceil(segment.saturating_sub(waste).max(1))
    }

    /// Returns the number of pages in a chunk of nodes.
    pub(super) fn chunk_pages(&self) -> usize {
        self.core.chunk_units.div_ceil(8) as usize
    }

    /// Returns the pages of `nodes` nodes, in chunks of whole pages.
    pub(super) fn node_pages(&self, nodes: usize) -> usize {
        let in_chunk = (self.core.chunk_units as usize * 512 / NODE_BYTES).max(1);
        nodes.div_ceil(in_chunk) * (in_chunk * NODE_BYTES).div_ceil(4096)
    }

    /// Returns the number of segments for `bytes` of objects.
    pub(super) fn object_segments(&self, bytes: usize) -> usize {
        self.segments_for(self.written_pages(bytes), self.core.pieces.part_bytes() / 4096, None)
    }

    /// Returns the pages of `bytes` of objects, which are written in whole pages.
    pub(super) fn written_pages(&self, bytes: usize) -> usize {
        let pages = bytes.div_ceil(4096);
        if self.tuning.plants(Planted::CrowdTheLog) { pages } else { pages + pages.div_ceil(WRITE_PAGES) }
    }

    /// Returns the bytes of objects that fit into `segments` segments.
    pub(in crate::store) fn object_room(&self, segments: usize) -> usize {
        let pages = self.core.space.layout.smallest().saturating_sub(META_HEAD_PAGES) as usize;
        let pages = segments * pages.saturating_sub(self.core.pieces.part_bytes() / 4096);
        (pages - pages.div_ceil(WRITE_PAGES)) * 4096
    }

    /// Returns the most bytes that `chunks` chunks take in their pages of the table, besides forwards.
    pub(super) fn record_bytes(&self, chunks: usize) -> usize {
        let packed = self.core.space.chunks.packed().min(chunks);
        chunks * 64 + ((chunks - packed) * self.bitmap_bytes(8) + packed * self.bitmap_bytes(1)) * 2
    }

    /// Returns the most bytes that forwards take in the pages of the table, however many of these a
    /// change makes dirty: a bitmap of their slots in each chunk, the targets, and what long pages take
    /// for the indexes of their parts.
    pub(super) fn forward_bytes(&self) -> usize {
        let chunks = &self.core.space.chunks;
        let (forwards, sources) = (chunks.forwards(), chunks.forward_sources());
        let bytes = forwards * 8 + sources * (self.bitmap_bytes(8) + 4);
        // a page is padded to a step, for which records without forwards have room
        bytes + bytes / INDEX_PART + sources * ObjectRef::STEP
    }

    /// Returns the most bytes by which the next checkpoint grows when one more page of the chunk table
    /// changes. It has room for all forwards anyway.
    pub(in crate::store) fn chunk_page_bytes(&self) -> usize {
        self.stored_bytes(self.record_bytes(self.core.space.chunks.len().min(64))) + 24
    }

    /// Returns the most bytes of the directory of a deadlist.
    pub(in crate::store) fn list_bytes(&self, list: &StoredDeadlist) -> usize {
        self.core.pieces.directory_bytes(list.list())
    }

    /// Returns the most bytes that an object of `bytes` takes in its segment: it begins at a step,
    /// and a long one has an index of its parts.
    pub(in crate::store) fn stored_bytes(&self, bytes: usize) -> usize {
        stored_bytes(bytes, self.core.pieces.part_bytes())
    }

    /// Returns the bytes of a bitmap over the slots of a full chunk, each of `grain` units.
    pub(super) fn bitmap_bytes(&self, grain: u32) -> usize {
        self.core.chunk_units.div_ceil(64 * grain) as usize * 8
    }
}
