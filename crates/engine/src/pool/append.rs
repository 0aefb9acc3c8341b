//! The tail of the log: opens batches, fills them, seals them.

use millpond_block::{Buf, Piece};
use millpond_format::{
    Addr, BATCH_FIXED, BLOCK_UNITS, BatchHeader, BlockNo, ChunkId, Coding, Encoder, FANOUT, HEADER_PAGE, Item, LineageId, NO_SEGMENT,
    Record, SegmentId, VolumeId, crc32c, encode_run, run_bytes,
};
use smallvec::SmallVec;

use super::state::{Context, Pool};
use crate::log::{BatchKind, CLEANED, Cursor, GUESTS, InFlight, KEPT, LONG, OpenBatch, OpenChunk, PACKED, SHORT, SMALL};
use crate::space::{Place, SegmentState, Shelf};
use crate::store::{Store, ZEROES};
use crate::task::Purse;
use crate::{Compression, Planted, PoolState};

/// Most payload bytes of a batch: larger ones gain nothing and delay neighbours.
const BATCH_PAYLOAD: usize = 1 << 20;
/// Most payload bytes of a batch of packed blocks: one gather buffer, so that its pieces stay whole
/// pages.
const PACKED_PAYLOAD: usize = 124 << 10;

/// Most milliseconds that small writes stay on special devices only, without an index on a normal
/// device.
const UNTOLD_MILLIS: u64 = 1_000;

/// There is no room in the log now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoRoom;

/// The bytes of one write, addressed by block.
pub(crate) enum Source<'a> {
    /// Copied into the batch.
    Copy(&'a [u8]),
    /// Referenced where they are.
    Shared(Piece),
}

impl Source<'_> {
    fn block(&self, at: usize) -> &[u8] {
        let bytes = match self {
            Source::Copy(bytes) => bytes,
            Source::Shared(piece) => piece.bytes(),
        };
        bytes.get(at * 4096..(at + 1) * 4096).unwrap_or_default()
    }
}

impl Pool {
    /// Opens a batch in a user stream, in a chunk of `grain`.
    fn open_batch(&mut self, stream: usize, purse: Purse, kind: BatchKind, header_pages: u32, grain: u8) -> Result<(), NoRoom> {
        let cursor = self.store.make_room(stream, purse, header_pages, 1)?;
        let header_slots = header_pages * 8 / u32::from(grain);
        let fits = |chunk: &OpenChunk, pool: &Pool| {
            let found = pool.store.core.space.chunks.get(chunk.id);
            chunk.grain == grain
                && found.is_some_and(|c| {
                    c.epoch == pool.store.core.epoch && (c.slots + header_slots) * u32::from(grain) + 8 <= pool.store.core.chunk_units
                })
        };
        let chunk = match self.store.log.streams[stream].chunk {
            Some(chunk) if fits(&chunk, self) => chunk,
            _ => {
                self.store.close_stream_chunk(stream);
                let id = self.store.core.new_chunk(stream as u8, grain);
                let place = Place { segment: cursor.segment, page: cursor.page };
                self.store.core.space.place_chunk(id, place, stream as u8, u32::MAX, None);
                let chunk = OpenChunk { id, base: cursor.page, grain };
                self.store.log.streams[stream].chunk = Some(chunk);
                chunk
            }
        };
        let slots = self.store.core.space.chunks.get_mut(chunk.id).map_or(0, |c| {
            c.slots += header_slots;
            c.slots
        });
        let items = if stream == SMALL { Encoder::with_capacity(HEADER_PAGE) } else { self.store.log.notes.take() };
        let batch = OpenBatch::new(kind, cursor.page, header_pages, slots * u32::from(grain), items);
        let s = &mut self.store.log.streams[stream];
        s.batch = Some(batch);
        Ok(())
    }

    /// Makes sure that the index has room for the next batch of small writes.
    fn make_room_for_note(&mut self) -> Result<(), NoRoom> {
        if self.store.tells_of_small() && self.store.log.notes.room() == 0 { self.tell_of_small() } else { Ok(()) }
    }

    /// Writes the index of small writes in a batch of its own.
    fn tell_of_small(&mut self) -> Result<(), NoRoom> {
        self.store.seal_all();
        self.open_batch(LONG, Purse::Guest, BatchKind::Blocks, 1, 8)?;
        self.store.seal(LONG);
        Ok(())
    }

    /// Writes the index of small writes when no other batch has done so for a while.
    pub(crate) fn step_notes(&mut self) {
        if self.store.log.notes.bytes() == 0 || !self.store.tells_of_small() || self.store.state != PoolState::Online {
            self.store.log.untold_since = None;
            return;
        }
        let since = *self.store.log.untold_since.get_or_insert(self.store.now);
        if self.store.now.0 >= since.0 + UNTOLD_MILLIS {
            self.store.log.untold_since = None;
            // without room the next batch on a normal device carries the index
            let _ = self.tell_of_small();
        }
    }

    /// Appends whole blocks of a volume and maps them; their leaves must be in memory. `op` waits
    /// for the batches. Returns how many blocks were appended before room ran out.
    pub(crate) fn append_blocks(
        &mut self,
        op: u32,
        volume: VolumeId,
        lineage: LineageId,
        first: BlockNo,
        count: usize,
        source: &Source<'_>,
    ) -> usize {
        let compression = self.store.core.catalog.volumes.get(&volume).map_or(Compression::Off, |v| v.compression);
        let threshold = self.store.core.catalog.options_of(volume).special_small_blocks as usize;
        let mut small = count * 4096 <= threshold && self.store.special_room(SMALL);
        let mut done = 0;
        while done < count {
            let block = first.0 + done as u64;
            let old = self.store.old_address(lineage, block);
            // a batch that holds a clear or a record must be the only open one
            if self.store.exclusive_open().is_some() {
                self.store.seal_all();
            }
            let stream = match self.store.open_batch_of(old) {
                Some(stream) => stream,
                None if small => SMALL,
                None => self.store.stream_for(old, compression),
            };
            let packed = stream == PACKED;
            let grain = if packed { 1 } else { 8 };
            let mut room = self.store.batch_room(stream, grain, packed);
            if room == 0 {
                self.store.seal(stream);
                let header_pages = 1 + u32::try_from((count - done) * 4 / 3500).unwrap_or(0).min(2);
                let told = if stream == SMALL { self.make_room_for_note() } else { Ok(()) };
                if told.is_err() || self.open_batch(stream, Purse::Guest, BatchKind::Blocks, header_pages, grain).is_err() {
                    if stream == SMALL {
                        // special devices are full: the blocks go to a normal stream
                        small = false;
                        continue;
                    }
                    return done;
                }
                room = self.store.batch_room(stream, grain, packed);
            }
            let run = self.store.run_length(lineage, block, (count - done).min(room), stream);
            if packed {
                self.append_packed(op, volume, lineage, BlockNo(block), done, run, source, compression);
            } else {
                self.append_raw(op, stream, volume, lineage, BlockNo(block), done, run, source);
            }
            done += run;
        }
        done
    }

    /// Appends raw blocks to a stream's open batch, which has room for them, and maps them.
    #[expect(clippy::too_many_arguments, reason = "one call site; a struct would only rename them")]
    fn append_raw(
        &mut self,
        op: u32,
        stream: usize,
        volume: VolumeId,
        lineage: LineageId,
        first: BlockNo,
        offset: usize,
        count: usize,
        source: &Source<'_>,
    ) {
        let (defer, told) = (self.store.tuning.plants(Planted::ApplyAtCompletion), stream == SMALL && self.store.tells_of_small());
        let (Some(chunk), Some(batch)) = (self.store.log.streams[stream].chunk, &mut self.store.log.streams[stream].batch) else { return };
        let crcs: SmallVec<[u32; 32]> = (offset..offset + count).map(|at| crc32c(source.block(at))).collect();
        let range = offset * 4096..(offset + count) * 4096;
        match source {
            Source::Copy(bytes) => batch.copy(bytes.get(range).unwrap_or_default(), |n| self.store.bufs.take(n)),
            Source::Shared(piece) => batch.attach(piece.slice(range)),
        }
        encode_run(&mut batch.items, volume, first, count, false, crcs.iter().map(|crc| (*crc, BLOCK_UNITS as u8, Coding::Raw)));
        let slots = count as u32; // a slot of these streams is a block
        let slot = self.store.core.space.chunks.get_mut(chunk.id).map_or(0, |c| {
            c.slots += slots;
            c.slots - slots
        });
        if told {
            let segment = self.store.log.streams[stream].cursor.map_or(NO_SEGMENT, |cursor| cursor.segment);
            self.store.log.notes.add(volume, first, segment, chunk.id, slot, &crcs);
        }
        self.store.core.space.make_live(chunk.id, slot, slots);
        self.store.core.clock += count as u64;
        self.store.metrics.user_bytes += count as u64 * 4096;
        if defer {
            let blocks = crcs.iter().zip(first.0..).zip(slot..);
            batch.deferred.extend(
                blocks.map(|((crc, block), slot)| (lineage, BlockNo(block), Addr::new(chunk.id, slot, BLOCK_UNITS, Coding::Raw), *crc)),
            );
        } else {
            let mapped = self.store.core.set_run(lineage, first, chunk.id, slot, &crcs);
            assert!(mapped.is_ok(), "INV-MAP-5: leaves are in memory before blocks are appended");
        }
        self.wait_for_batch(op, stream);
    }

    /// Appends blocks, compressed where that saves space, to the open packed batch, which has room
    /// for them, and maps them.
    #[expect(clippy::too_many_arguments, reason = "one call site; a struct would only rename them")]
    fn append_packed(
        &mut self,
        op: u32,
        volume: VolumeId,
        lineage: LineageId,
        first: BlockNo,
        offset: usize,
        count: usize,
        source: &Source<'_>,
        compression: Compression,
    ) {
        let Some(chunk) = self.store.log.streams[PACKED].chunk else { return };
        let mut stored: Vec<(u32, u8, Coding)> = Vec::with_capacity(count);
        let defer = self.store.tuning.plants(Planted::ApplyAtCompletion);
        for i in 0..count {
            let plain = source.block(offset + i);
            let (bytes, coding) = self.codec.compress(plain, compression).unwrap_or((plain, Coding::Raw));
            let Some(batch) = &mut self.store.log.streams[PACKED].batch else { return };
            batch.room(bytes.len(), |n| self.store.bufs.take(n)).copy_from_slice(bytes);
            let (crc, units) = (crc32c(bytes), u32::try_from(bytes.len() / 512).unwrap_or(BLOCK_UNITS));
            let slots = units / u32::from(chunk.grain);
            let slot = self.store.core.space.chunks.get_mut(chunk.id).map_or(0, |c| {
                c.slots += slots;
                c.slots - slots
            });
            self.store.core.space.make_live(chunk.id, slot, slots);
            let addr = Addr::new(chunk.id, slot, units, coding);
            let block = BlockNo(first.0 + i as u64);
            self.store.core.clock += 1;
            self.store.metrics.user_bytes += u64::from(units) * 512;
            if defer {
                batch.deferred.push((lineage, block, addr, crc));
            } else {
                let mapped = self.store.core.set_block(lineage, block, addr, crc);
                assert!(mapped.is_ok(), "INV-MAP-5: leaves are in memory before blocks are appended");
            }
            stored.push((crc, units as u8, coding));
        }
        if let Some(batch) = &mut self.store.log.streams[PACKED].batch {
            encode_run(&mut batch.items, volume, first, count, true, stored.into_iter());
        }
        self.wait_for_batch(op, PACKED);
    }

    /// Makes an operation wait for a stream's open batch.
    fn wait_for_batch(&mut self, op: u32, stream: usize) {
        if let Some(batch) = &mut self.store.log.streams[stream].batch
            && batch.waiters.last() != Some(&op)
        {
            batch.waiters.push(op);
            if let Some(op) = self.ops.get_mut(op) {
                op.pending += 1;
            }
        }
    }

    /// Appends an item (a clear or a record) to a batch that must be the only open one; `op` waits
    /// for it. The caller applies the effect of the item.
    pub(crate) fn append_item(&mut self, op: u32, item: &Item) -> Result<(), NoRoom> {
        let mut encoded = Encoder::default();
        item.encode(&mut encoded);
        let fits = self.store.exclusive_open().is_some_and(|stream| {
            self.store.log.streams[stream]
                .batch
                .as_ref()
                .is_some_and(|batch| BATCH_FIXED + batch.items.len() + encoded.len() <= batch.header_pages as usize * HEADER_PAGE)
        });
        if !fits {
            self.store.seal_all();
            let header_pages =
                u32::try_from((BATCH_FIXED + self.store.log.notes.bytes() + encoded.len()).div_ceil(HEADER_PAGE)).unwrap_or(u32::MAX);
            self.open_batch(LONG, Purse::Record, BatchKind::Exclusive, header_pages, 8)?;
        }
        if !matches!(item, Item::Record(Record::Walked { .. })) {
            // the batch that is open now gets the next number
            self.store.last_record = self.store.log.next;
        }
        if let Some(batch) = &mut self.store.log.streams[LONG].batch {
            batch.items.raw(encoded.bytes());
        }
        self.wait_for_batch(op, LONG);
        Ok(())
    }
}

impl Store {
    /// Moves a stream on to its next segment and reserves the one after it.
    fn advance(&mut self, stream: usize, purse: Purse) -> Result<(), NoRoom> {
        let following = self.reserve_for(stream, purse).ok_or(NoRoom)?;
        let s = &mut self.log.streams[stream];
        let (old, chunk) = (s.cursor.take(), s.chunk.take());
        if let Some(old) = old.filter(|_| (CLEANED..KEPT).contains(&stream)) {
            self.spent += u64::from(old.pages - old.page);
        }
        let Some(segment) = s.next.replace(following) else { return Err(NoRoom) };
        s.cursor = Some(Cursor { segment, page: 0, pages: self.core.space.rows.pages(segment) });
        self.core.space.segments.set_state(segment, SegmentState::Open);
        if let Some(found) = self.core.space.segments.get_mut(segment) {
            found.class = stream as u8;
        }
        if let Some(chunk) = chunk {
            self.core.space.close_chunk(chunk.id);
        }
        if let Some(old) = old {
            self.core.space.segments.set_state(old.segment, SegmentState::Sealed);
            self.core.space.settle(old.segment);
        }
        Ok(())
    }

    /// Makes sure that a batch with `header_pages` of header and at least `pages` of payload can
    /// begin in a stream.
    pub(crate) fn make_room(&mut self, stream: usize, purse: Purse, header_pages: u32, pages: u32) -> Result<Cursor, NoRoom> {
        if !self.may_change(purse) {
            return Err(NoRoom);
        }
        loop {
            match self.log.streams[stream].cursor {
                Some(cursor) if cursor.pages - cursor.page >= header_pages + pages => return Ok(cursor),
                _ => self.advance(stream, purse)?,
            }
        }
    }

    /// Returns the stream for blocks that replace `old`. Blocks that replace short-lived ones go to
    /// the short-lived stream.
    fn stream_for(&self, old: Addr, compression: Compression) -> usize {
        if compression != Compression::Off {
            return PACKED;
        }
        let Some(chunk) = old.is_some().then(|| self.core.space.chunks.get(old.chunk())).flatten() else { return LONG };
        if self.core.clock.saturating_sub(chunk.birth) < self.lifespan { SHORT } else { LONG }
    }

    /// Seals every open batch.
    pub(crate) fn seal_all(&mut self) {
        for stream in GUESTS {
            self.seal(stream);
        }
    }

    /// Seals a stream's open batch and submits it.
    pub(crate) fn seal(&mut self, stream: usize) {
        if stream == SMALL && self.tells_of_small() {
            // INV-LOG-4: seal other streams first; a batch sealed later must index this one
            (SHORT..SMALL).for_each(|other| self.seal(other));
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
        if stream == SMALL && self.tells_of_small() {
            self.log.notes.seal(header.lsn);
        }
        self.metrics.batches += 1;
        self.submit_batch(stream, &header, batch, pieces);
    }

    /// Writes a sealed batch: header and payload in one operation per copy.
    pub(crate) fn submit_batch(&mut self, stream: usize, header: &BatchHeader, batch: OpenBatch, pieces: Vec<Piece>) {
        let header_bytes = batch.header_pages as usize * HEADER_PAGE;
        let mut page: Buf = self.bufs.take(header_bytes);
        if let Some(bytes) = page.bytes_mut().get_mut(..header_bytes) {
            header.encode(batch.items.bytes(), bytes);
        }
        let pages = batch.header_pages + header.payload;
        let padded = pages.next_multiple_of(self.core.space.rows.quantum(header.segment));
        if let Some(cursor) = &mut self.log.streams[stream].cursor {
            cursor.page += padded;
        }
        let bytes = u64::from(padded) * 4096;
        self.metrics.header_bytes += header_bytes as u64;
        self.log.since_checkpoint += bytes;
        self.stock.count(bytes);
        let mut all = Vec::with_capacity(pieces.len() + 1);
        all.push(Piece::new(std::rc::Rc::new(page), 0..header_bytes));
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
        self.io.write(Context::Batch(lsn), &self.core.space.rows, header.segment, header.offset, all, &mut self.bufs);
    }

    /// Closes a stream's chunk: the next batch begins a new one.
    pub(crate) fn close_stream_chunk(&mut self, stream: usize) {
        if let Some(chunk) = self.log.streams[stream].chunk.take() {
            self.core.space.close_chunk(chunk.id);
        }
    }

    /// Returns how many more blocks fit into a stream's open batch: limited by header, chunk,
    /// segment, payload and, for small writes, the index.
    fn batch_room(&self, stream: usize, grain: u8, packed: bool) -> usize {
        let s = &self.log.streams[stream];
        let (Some(batch), Some(chunk)) = (&s.batch, &s.chunk) else { return 0 };
        if chunk.grain != grain {
            return 0;
        }
        let items = (batch.header_pages as usize * HEADER_PAGE).saturating_sub(BATCH_FIXED + batch.items.len() + run_bytes(0, packed))
            / if packed { 5 } else { 4 };
        let used = self.core.space.chunks.get(chunk.id).map_or(u32::MAX, |c| c.slots * u32::from(grain));
        let chunk_blocks = self.core.chunk_units.saturating_sub(used) / 8;
        let cap = if packed { PACKED_PAYLOAD } else { BATCH_PAYLOAD };
        let payload_blocks = cap.saturating_sub(batch.payload) / 4096;
        let told = if stream == SMALL && self.tells_of_small() { self.log.notes.room() } else { usize::MAX };
        items.min(chunk_blocks as usize).min(s.left() as usize).min(payload_blocks).min(told)
    }

    /// Returns whether the pool can be imported without its special devices. Then batches on normal
    /// devices carry an index of small writes.
    pub(crate) fn tells_of_small(&self) -> bool {
        self.core.space.homes.nodes == Some(Shelf::Nodes)
    }

    /// Returns the stream whose open batch holds `old`: later writes of the block in this turn must
    /// go there, too (INV-LOG-1).
    pub(crate) fn open_batch_of(&self, old: Addr) -> Option<usize> {
        { GUESTS }.find(|stream| {
            let s = &self.log.streams[*stream];
            match (&s.batch, &s.chunk) {
                (Some(batch), Some(chunk)) => chunk.id == old.chunk() && old.slot() * u32::from(chunk.grain) >= batch.first_unit,
                _ => false,
            }
        })
    }

    fn old_address(&mut self, lineage: LineageId, block: u64) -> Addr {
        match self.core.head_leaf(lineage, block) {
            Ok(Some(leaf)) => self.core.nodes.get(leaf).node.entries[(block % 512) as usize],
            _ => Addr::HOLE,
        }
    }

    /// Returns how many of the next blocks may go into the same stream: no other open batch holds
    /// them.
    fn run_length(&mut self, lineage: LineageId, block: u64, most: usize, stream: usize) -> usize {
        let others_open = { GUESTS }.any(|s| s != stream && self.log.streams[s].batch.is_some());
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

    fn exclusive_open(&self) -> Option<usize> {
        { GUESTS }.find(|s| self.log.streams[*s].batch.as_ref().is_some_and(|batch| batch.kind == BatchKind::Exclusive))
    }

    /// Returns the header of a batch, without its chunk.
    pub(crate) fn header(&self, stream: usize, segment: SegmentId, batch: &OpenBatch, payload: u32) -> BatchHeader {
        BatchHeader {
            stream: stream as u8,
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
    fn padding(&self, pages: u32) -> impl Iterator<Item = Piece> + use<> {
        let (mut left, zeroes) = (pages as usize * 4096, std::rc::Rc::clone(&self.zeroes));
        std::iter::from_fn(move || {
            let step = left.min(ZEROES);
            left -= step;
            (step > 0).then(|| Piece::zeroes(std::rc::Rc::clone(&zeroes), 0..step))
        })
    }
}
