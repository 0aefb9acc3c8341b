//! Appending to the log: batches, streams of segments, and room in them.

use std::sync::Arc;

use millpond_block::{Buf, BufSlice};
use millpond_format::{Addr, BATCH_FIXED, BatchHeader, ChunkId, FANOUT, HEADER_PAGE, LineageId, NO_SEGMENT, SegmentId, run_bytes};

use crate::Compression;
use crate::log::{BatchKind, Cursor, InFlight, OpenBatch, Stream};
use crate::space::{AllocClass, SegmentState};
use crate::store::{Context, Store, Watermark, ZEROES};

/// Most payload bytes of a batch: larger ones gain nothing and delay neighbours.
const BATCH_PAYLOAD: usize = 1 << 20;
/// Most payload bytes of a batch of packed blocks: one gather buffer, so that its pieces stay whole
/// pages.
const PACKED_PAYLOAD: usize = 124 << 10;

/// There is no room in the log now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoRoom;

impl Store {
    /// Moves a stream on to its next segment and reserves the one after it.
    fn advance(&mut self, stream: Stream, watermark: Watermark) -> Result<(), NoRoom> {
        let following = self.reserve_for(stream, watermark).ok_or(NoRoom)?;
        let s = &mut self.log.streams[stream];
        let (old, chunk) = (s.cursor.take(), s.chunk.take());
        if let Some(old) = old.filter(|_| matches!(stream, Stream::Cleaned(_))) {
            self.spent += u64::from(old.pages - old.page);
        }
        let Some(segment) = s.next.replace(following) else { return Err(NoRoom) };
        s.cursor = Some(Cursor { segment, page: 0, pages: self.core.space.layout.pages(segment) });
        self.core.space.segments.set_state(segment, SegmentState::Open);
        if let Some(found) = self.core.space.segments.get_mut(segment) {
            found.class = stream.number();
        }
        if let Some(chunk) = chunk {
            self.core.space.close_chunk(chunk.id);
        }
        if let Some(old) = old {
            if let Some(found) = self.core.space.segments.get_mut(old.segment) {
                found.filled = self.now.0;
            }
            self.core.space.segments.set_state(old.segment, SegmentState::Sealed);
            self.core.space.settle(old.segment);
        }
        Ok(())
    }

    /// Makes sure that a batch with `header_pages` of header and at least `pages` of payload can
    /// begin in a stream.
    pub(crate) fn make_room(&mut self, stream: Stream, watermark: Watermark, header_pages: u32, pages: u32) -> Result<Cursor, NoRoom> {
        if !self.may_change(watermark) {
            return Err(NoRoom);
        }
        loop {
            match self.log.streams[stream].cursor {
                Some(cursor) if cursor.pages - cursor.page >= header_pages + pages => return Ok(cursor),
                _ => self.advance(stream, watermark)?,
            }
        }
    }

    /// Returns the stream for blocks that replace `old`. Blocks that replace short-lived ones go to
    /// the short-lived stream.
    pub(crate) fn stream_for(&self, old: Addr, compression: Compression) -> Stream {
        if compression != Compression::Off {
            return Stream::Packed;
        }
        let Some(chunk) = old.is_some().then(|| self.core.space.chunks.get(old.chunk())).flatten() else { return Stream::Long };
        if self.core.clock.saturating_sub(chunk.birth) < self.lifespan { Stream::Short } else { Stream::Long }
    }

    /// Seals every open batch.
    pub(crate) fn seal_all(&mut self) {
        for stream in Stream::guests() {
            self.seal(stream);
        }
    }

    /// Seals a stream's open batch and submits it.
    pub(crate) fn seal(&mut self, stream: Stream) {
        if stream == Stream::Small && self.mirrors_small_writes() {
            // INV-LOG-4: seal other streams first; a batch sealed later must index this one
            Stream::guests().filter(|other| *other != Stream::Small).for_each(|other| self.seal(other));
        }
        let Some(mut batch) = self.log.streams[stream].batch.take() else { return };
        let (Some(chunk), Some(cursor)) = (self.log.streams[stream].chunk, self.log.streams[stream].cursor) else { return };
        let bufs = &mut self.bufs;
        let pieces = batch.finish(|n| bufs.take(n));
        let payload_pages = u32::try_from(batch.payload.div_ceil(4096)).unwrap_or(u32::MAX);
        // the payload of a packed batch was padded to whole pages
        if let Some(c) = self.core.space.chunks.get_mut(chunk.id) {
            c.slots = c.slots.next_multiple_of(8 / u32::from(chunk.grain));
        }
        let (epoch, birth) = self.core.space.chunks.get(chunk.id).map_or((self.core.epoch, 0), |c| (c.epoch, c.birth));
        let id = chunk.id;
        let header = self.header(stream, cursor.segment, &batch, payload_pages);
        let header = BatchHeader { epoch, chunk: id, birth, base: chunk.base, grain: chunk.grain, ..header };
        if stream == Stream::Small && self.mirrors_small_writes() {
            self.log.small_write_index.seal(header.lsn);
        }
        self.metrics.batches += 1;
        self.submit_batch(stream, &header, batch, pieces);
    }

    /// Writes a sealed batch: header and payload in one operation per copy.
    pub(crate) fn submit_batch(&mut self, stream: Stream, header: &BatchHeader, batch: OpenBatch, pieces: Vec<BufSlice>) {
        let header_bytes = batch.header_pages as usize * HEADER_PAGE;
        let mut page: Buf = self.bufs.take(header_bytes);
        if let Some(bytes) = page.bytes_mut().get_mut(..header_bytes) {
            header.encode(batch.items.bytes(), bytes);
        }
        let pages = batch.header_pages + header.payload;
        let padded = pages.next_multiple_of(self.core.space.layout.quantum(header.segment));
        if let Some(cursor) = &mut self.log.streams[stream].cursor {
            cursor.page += padded;
        }
        let bytes = u64::from(padded) * 4096;
        self.metrics.header_bytes += header_bytes as u64;
        self.log.since_checkpoint += bytes;
        self.stock.count(bytes);
        let mut all = Vec::with_capacity(pieces.len() + 1);
        all.push(BufSlice::new(page, 0..header_bytes));
        all.extend(pieces.iter().cloned());
        all.extend(self.padding(padded - pages));
        let lsn = header.lsn;
        if let Some(segment) = self.core.space.segments.get_mut(header.segment) {
            segment.last = lsn;
        }
        self.log.push(InFlight {
            lsn,
            segment: header.segment,
            unit: (header.offset + batch.header_pages) * 8,
            pieces,
            waiters: batch.waiters,
            written: false,
            deferred: batch.deferred,
        });
        self.write_pages(Context::Batch(lsn), header.segment, header.offset, all);
    }

    /// Closes a stream's chunk: the next batch begins a new one.
    pub(crate) fn close_stream_chunk(&mut self, stream: Stream) {
        if let Some(chunk) = self.log.streams[stream].chunk.take() {
            self.core.space.close_chunk(chunk.id);
        }
    }

    /// Returns how many more blocks fit into a stream's open batch: limited by header, chunk,
    /// segment, payload and, for small writes, the index.
    pub(crate) fn batch_room(&self, stream: Stream, grain: u8, packed: bool) -> usize {
        let s = &self.log.streams[stream];
        let (Some(batch), Some(chunk)) = (&s.batch, &s.chunk) else { return 0 };
        if chunk.grain != grain {
            return 0;
        }
        let items = (batch.header_pages as usize * HEADER_PAGE).saturating_sub(BATCH_FIXED + batch.items.len() + run_bytes(0, packed))
            / if packed { 5 } else { 4 };
        let Some(used) = self.core.space.chunks.get(chunk.id).map(|c| c.slots * u32::from(grain)) else { return 0 };
        let chunk_blocks = self.core.chunk_units.saturating_sub(used) / 8;
        let cap = if packed { PACKED_PAYLOAD } else { BATCH_PAYLOAD };
        let payload_blocks = cap.saturating_sub(batch.payload) / 4096;
        let blocks = items.min(chunk_blocks as usize).min(s.left() as usize).min(payload_blocks);
        if stream == Stream::Small && self.mirrors_small_writes() { blocks.min(self.log.small_write_index.room()) } else { blocks }
    }

    /// Returns whether the pool can be imported without its special devices. Then batches on normal
    /// devices carry an index of small writes.
    pub(crate) fn mirrors_small_writes(&self) -> bool {
        self.core.space.targets.nodes == Some(AllocClass::Nodes)
    }

    /// Returns the stream whose open batch holds `old`: later writes of the block in this turn must
    /// go there, too (INV-LOG-1).
    pub(crate) fn open_batch_of(&self, old: Addr) -> Option<Stream> {
        Stream::guests().find(|stream| {
            let s = &self.log.streams[*stream];
            match (&s.batch, &s.chunk) {
                (Some(batch), Some(chunk)) => chunk.id == old.chunk() && old.slot() * u32::from(chunk.grain) >= batch.first_unit,
                _ => false,
            }
        })
    }

    pub(crate) fn old_address(&mut self, lineage: LineageId, block: u64) -> Addr {
        match self.core.head_leaf(lineage, block) {
            Ok(Some(leaf)) => self.core.nodes.get(leaf).node.entries[(block % 512) as usize],
            _ => Addr::HOLE,
        }
    }

    /// Returns how many of the next blocks may go into the same stream: no other open batch holds
    /// them.
    pub(crate) fn run_length(&mut self, lineage: LineageId, block: u64, most: usize, stream: Stream) -> usize {
        let others_open = Stream::guests().any(|s| s != stream && self.log.streams[s].batch.is_some());
        let mut run = if others_open { 1 } else { most };
        while run < most {
            let at = block + run as u64;
            let from = (at % FANOUT as u64) as usize;
            let here = (FANOUT - from).min(most - run);
            if let Ok(Some(leaf)) = self.core.head_leaf(lineage, at) {
                let entries = &self.core.nodes.get(leaf).node.entries[from..from + here];
                if let Some(ahead) = entries.iter().position(|old| self.open_batch_of(*old).is_some_and(|other| other != stream)) {
                    return run + ahead;
                }
            }
            run += here;
        }
        run
    }

    pub(crate) fn exclusive_open(&self) -> Option<Stream> {
        Stream::guests().find(|s| self.log.streams[*s].batch.as_ref().is_some_and(|batch| batch.kind == BatchKind::Exclusive))
    }

    /// Returns the header of a batch, without its chunk.
    pub(crate) fn header(&self, stream: Stream, segment: SegmentId, batch: &OpenBatch, payload: u32) -> BatchHeader {
        BatchHeader {
            stream: stream.number(),
            pages: batch.header_pages as u8,
            pool: self.config.id,
            incarnation: self.incarnation,
            next: self.log.streams[stream].next.unwrap_or(NO_SEGMENT),
            lsn: self.log.next,
            durable: self.log.durable,
            epoch: self.core.epoch,
            chunk: ChunkId(0),
            birth: 0,
            segment,
            offset: batch.page,
            base: 0,
            payload,
            grain: 8,
        }
    }

    /// Returns `pages` pages of zeroes.
    fn padding(&self, pages: u32) -> impl Iterator<Item = BufSlice> + use<> {
        let (mut left, zeroes) = (pages as usize * 4096, Arc::clone(&self.zeroes));
        std::iter::from_fn(move || {
            let step = left.min(ZEROES);
            left -= step;
            (step > 0).then(|| BufSlice::zeroes(Arc::clone(&zeroes), 0..step))
        })
    }
}
