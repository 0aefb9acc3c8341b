//! The tail of the log: opens batches, fills them, seals them.

use millpond_block::Piece;
use millpond_format::{
    Addr, BATCH_FIXED, BLOCK_UNITS, BlockNo, Coding, Encoder, HEADER_PAGE, Item, LineageId, NO_SEGMENT, Record, VolumeId, crc32c,
    encode_run,
};
use smallvec::SmallVec;

use super::state::Pool;
use crate::log::{BatchKind, LONG, OpenBatch, OpenChunk, PACKED, SMALL};
use crate::space::Place;
use crate::store::{NoRoom, Purse};
use crate::{Compression, Planted, PoolState};

/// Most milliseconds that small writes stay on special devices only, without an index on a normal
/// device.
const UNTOLD_MILLIS: u64 = 1_000;

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
    pub(super) fn step_notes(&mut self) {
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
    pub(super) fn append_blocks(
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
