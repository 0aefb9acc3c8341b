//! Appends blocks that belong together, and that reads found apart, as a run of their own.
//!
//! To the log, to replay and to space accounting it is a write of the head (I10): the blocks get new
//! addresses, and their old ones are released as by any overwrite. It differs from a guest's write
//! in four ways: no operation waits for it, its stream is the cleaner's for long-lived blocks, its
//! chunks keep the age of the blocks, and it does not count as written by guests (the pool's clock):
//! replay and restore points tell it by its stream.
//!
//! Blocks that snapshots share keep their address, which gets a forward to the new place
//! (`docs/decisions/0044-forwards.md`): maps do not change for them.

use millpond_block::BufSlice;
use millpond_format::{
    Addr, BATCH_FIXED, BLOCK_UNITS, BatchHeader, BlockNo, Coding, Encoder, FORWARDS, HEADER_PAGE, LineageId, Mark, RunForm, StoredBlock,
    VolumeId, encode_forwards, encode_run,
};
use smallvec::SmallVec;

use super::{NoRoom, Store, Watermark};
use crate::log::{BatchKind, Lifetime, OpenBatch, Stream};
use crate::space::Place;

/// Stream of gathered blocks: the cleaner's for the longest-lived ones. They were read many times
/// since they were last written.
const STREAM: Stream = Stream::Cleaned(Lifetime::Old);
/// Grain of the chunks, in units.
const GRAIN: u8 = BLOCK_UNITS as u8;
/// Most blocks of a batch: 1 MiB, as in batches of guests.
const BATCH_BLOCKS: usize = 256;

/// Bytes of memory that a forward takes at most, with unused capacity, and that a chunk with forwards
/// takes for them besides a bitmap of its slots.
const FORWARD_BYTES: (u64, u64) = (16, 128);
/// Share (1/N) of the memory for maps that forwards may take.
const FORWARDS_PART: u64 = 8;

/// Most pages between two blocks that a read reads over, rather than reading the second block on its
/// own. A disk with 80,000 reads of 4 KiB per second and 950 MB/s takes 12.5 us for a read and
/// 4.3 us for a page more of one: as much as 2.9 pages. One page is common: the header between two
/// batches.
pub(crate) const GAP_PAGES: u32 = 2;

/// A leaf of a head whose blocks guests read together and that lie apart: its volume and first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scattered {
    pub(crate) volume: VolumeId,
    pub(crate) first: BlockNo,
}

/// Blocks to be read: the number of the read, and its range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatherRead {
    pub(crate) nth: u64,
    pub(crate) volume: VolumeId,
    pub(crate) first: BlockNo,
    pub(crate) blocks: usize,
}

/// A block to be written again.
#[derive(Debug)]
pub(crate) struct GatheredBlock {
    pub(crate) block: BlockNo,
    /// Checksum of its content, which the map has, and the content.
    pub(crate) crc: u32,
    pub(crate) piece: BufSlice,
    /// Its address, if that stays and gets a forward.
    pub(crate) stays: Option<Addr>,
}

impl Store {
    /// Returns whether blocks that snapshots share can be gathered.
    pub(crate) fn may_forward(&self) -> bool {
        self.features_in_force().has(&FORWARDS) && self.has_memory_for_forwards()
    }

    /// Returns whether forwards take less memory than they may.
    pub(crate) fn has_memory_for_forwards(&self) -> bool {
        let chunks = &self.core.space.chunks;
        let of_source = FORWARD_BYTES.1 + u64::from(self.core.chunk_units / BLOCK_UNITS / 8);
        let bytes = chunks.forwards() as u64 * FORWARD_BYTES.0 + chunks.forward_sources() as u64 * of_source;
        bytes < self.tuning.map_memory / FORWARDS_PART
    }

    /// Closes chunks that streams left open and that get no more blocks, because a snapshot was taken
    /// since: those that they have can be gathered.
    pub(crate) fn close_old_chunks(&mut self) {
        for stream in Stream::all() {
            let state = &self.log.streams[stream];
            let chunk = state.chunk.and_then(|open| self.core.space.chunks.get(open.id));
            if state.batch.is_none() && chunk.is_some_and(|chunk| chunk.epoch < self.core.epoch) {
                self.close_stream_chunk(stream);
            }
        }
    }

    /// Appends blocks of a volume in their order, and maps or forwards them. Their leaves must be in
    /// memory, and their addresses those in the maps.
    /// `birth` is the age of their chunks. Returns how many were appended before room ran out.
    pub(crate) fn append_gathered(&mut self, volume: VolumeId, lineage: LineageId, birth: u64, blocks: &[GatheredBlock]) -> usize {
        // INV-LOG-1: blocks that guests wrote in this turn are in the log before these
        self.seal_all();
        let mut done = 0;
        while let Some(rest) = blocks.get(done..).filter(|rest| !rest.is_empty()) {
            match self.append_gathered_batch(volume, lineage, birth, rest) {
                Ok(count) => done += count,
                Err(NoRoom) => break,
            }
        }
        done
    }

    /// Appends a batch of as many blocks as fit into one chunk and the rest of a segment. Returns how
    /// many.
    fn append_gathered_batch(
        &mut self,
        volume: VolumeId,
        lineage: LineageId,
        birth: u64,
        blocks: &[GatheredBlock],
    ) -> Result<usize, NoRoom> {
        let most = blocks.len().min(BATCH_BLOCKS);
        let header_bytes =
            BATCH_FIXED + self.log.small_write_index.bytes() + items_of(volume, blocks.get(..most).unwrap_or_default()).len();
        let header_pages = u32::try_from(header_bytes.div_ceil(HEADER_PAGE)).unwrap_or(u32::MAX);
        // the chunk has a slot for each page of the header, too
        let in_chunk = (self.core.chunk_units / BLOCK_UNITS).saturating_sub(header_pages);
        if in_chunk == 0 {
            return Err(NoRoom);
        }
        // nodes change, too: the room that guests need
        let cursor = self.make_room(STREAM, Watermark::Guest, header_pages, 1)?;
        let (room, quantum) = (cursor.pages - cursor.page, self.core.space.layout.quantum(cursor.segment));
        let pages = room.min(header_pages + in_chunk.min(most as u32));
        // no padding but at the end
        let pages = if pages > quantum { pages - pages % quantum } else { pages };
        let Some(blocks) = blocks.get(..pages.saturating_sub(header_pages).max(1) as usize) else { return Err(NoRoom) };
        let count = blocks.len() as u32;

        let id = self.core.new_chunk(STREAM.number(), GRAIN);
        if let Some(chunk) = self.core.space.chunks.get_mut(id) {
            chunk.birth = birth;
            chunk.slots = header_pages + count;
        }
        let place = Place { segment: cursor.segment, page: cursor.page };
        self.core.space.place_chunk(id, place, STREAM.number(), None, None);
        let mut items = self.log.small_write_index.take();
        items.raw(items_of(volume, blocks).bytes());
        let mut batch = OpenBatch::new(BatchKind::Exclusive, cursor.page, header_pages, header_pages * BLOCK_UNITS, items);
        let mut slot = header_pages;
        for run in runs_of(blocks) {
            if run.first().is_some_and(|first| first.stays.is_none()) {
                self.core.space.make_live(id, slot, run.len() as u32);
                let crcs: SmallVec<[u32; 32]> = run.iter().map(|block| block.crc).collect();
                let mapped = run.first().map(|first| self.core.set_run(lineage, first.block, id, slot, &crcs));
                assert!(mapped.is_none_or(|mapped| mapped.is_ok()), "INV-MAP-5: leaves are in memory before blocks are appended");
            }
            for (source, at) in run.iter().zip(slot..).filter_map(|(block, at)| Some((block.stays?, at))) {
                let is_used = self.core.space.forward(source, Addr::new(id, at, BLOCK_UNITS, Coding::Raw));
                assert!(is_used, "INV-FORWARD-3: {source:?} is in a map, so it is needed");
            }
            slot += run.len() as u32;
        }
        self.metrics.gathered_bytes += u64::from(count) * 4096;
        blocks.iter().for_each(|block| batch.attach(block.piece.clone()));
        let pieces = batch.finish(|bytes| self.bufs.take(bytes));
        let header = self.header(STREAM, cursor.segment, &batch, count);
        let header = BatchHeader { epoch: self.core.epoch, chunk: id, birth, base: cursor.page, grain: GRAIN, ..header };
        self.submit_batch(STREAM, &header, batch, pieces);
        self.core.space.close_chunk(id);
        Ok(blocks.len())
    }

    /// Returns whether a block was gathered and, unless its address stayed, has not moved since. Guests
    /// could read its content before, so a read of it need not wait for its batch (I10).
    pub(crate) fn is_gathered(&self, addr: Addr) -> bool {
        let chunk = self.core.space.chunks.get(addr.chunk());
        chunk.is_some_and(|chunk| (chunk.class == STREAM.number() && chunk.identities.is_none()) || chunk.forward_of(addr.slot()).is_some())
    }

    /// Returns the number of places that so many gathered blocks are at, approximately: segments,
    /// because headers between batches are read over.
    pub(crate) fn gathered_places(&self, blocks: usize) -> usize {
        let per_batch = (self.core.chunk_units / BLOCK_UNITS).saturating_sub(1).clamp(1, BATCH_BLOCKS as u32) as usize;
        let pages = blocks + blocks.div_ceil(per_batch);
        pages.div_ceil(self.core.space.layout.smallest().max(1) as usize) + 1
    }
}

/// Blocks that follow each other in their volume, and whose addresses all stay or all change.
fn runs_of(blocks: &[GatheredBlock]) -> impl Iterator<Item = &[GatheredBlock]> {
    blocks.chunk_by(|a, b| a.block.0 + 1 == b.block.0 && a.stays.is_some() == b.stays.is_some())
}

/// The items of a batch header for these blocks.
fn items_of(volume: VolumeId, blocks: &[GatheredBlock]) -> Encoder {
    let mut items = Encoder::default();
    for run in runs_of(blocks) {
        let Some(first) = run.first() else { continue };
        let stay: SmallVec<[(Addr, u32); 32]> = run.iter().filter_map(|block| Some((block.stays?, block.crc))).collect();
        if stay.is_empty() {
            let stored = run.iter().map(|block| StoredBlock::raw(block.crc, Mark::Clear));
            encode_run(&mut items, volume, first.block, run.len(), RunForm::Raw, stored);
        } else {
            encode_forwards(&mut items, volume, first.block, stay.into_iter());
        }
    }
    items
}
