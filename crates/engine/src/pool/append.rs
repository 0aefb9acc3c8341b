//! The tail of the log: opens batches, fills them, seals them.

use millpond_block::BufSlice;
use millpond_format::{
    Addr, BATCH_FIXED, BLOCK_UNITS, BlockNo, Coding, Encoder, HEADER_PAGE, Item, LineageId, Mark, NO_SEGMENT, Record, RunForm, StoredBlock,
    VolumeId, crc32c, encode_run,
};
use smallvec::SmallVec;

use super::codec::CompressedPayload;
use super::requests::Requests;
use crate::log::{BatchKind, OpenBatch, OpenChunk, Stream};
use crate::space::Place;
use crate::store::{NoRoom, Store, Watermark};
use crate::{Compression, Planted, PoolState};

/// Most milliseconds that small writes stay on special devices only, without an index on a normal
/// device.
const UNTOLD_MILLIS: u64 = 1_000;

/// The bytes of one write, addressed by block.
pub(crate) enum Source<'a> {
    /// Copied into the batch.
    Copy(&'a [u8]),
    /// Referenced where they are.
    Shared(BufSlice),
    /// Compressed before.
    Compressed(CompressedPayload),
}

impl Source<'_> {
    pub(super) fn block(&self, at: usize) -> &[u8] {
        let bytes = match self {
            Source::Copy(bytes) => bytes,
            Source::Shared(piece) => piece.bytes(),
            Source::Compressed(payload) => payload.plain.bytes(),
        };
        bytes.get(at * 4096..(at + 1) * 4096).unwrap_or_default()
    }

    /// Returns the stored form of a block that was compressed before, with its coding and checksum.
    fn stored(&self, at: usize) -> Option<(&[u8], Coding, u32)> {
        match self {
            Source::Compressed(payload) => payload.stored(at),
            Source::Copy(_) | Source::Shared(_) => None,
        }
    }
}

/// Consecutive blocks of a volume that an operation writes.
#[derive(Clone, Copy)]
pub(super) struct BlockRun<'a> {
    /// The operation, which waits for the batches.
    pub(super) op: u32,
    pub(super) volume: VolumeId,
    pub(super) lineage: LineageId,
    /// First block in the volume, and its position in the source.
    pub(super) first: BlockNo,
    pub(super) offset: usize,
    /// Number of blocks.
    pub(super) count: usize,
    pub(super) source: &'a Source<'a>,
}

impl Requests {
    /// Opens a batch in a user stream, in a chunk of `grain`.
    fn open_batch(
        &mut self,
        store: &mut Store,
        stream: Stream,
        watermark: Watermark,
        kind: BatchKind,
        header_pages: u32,
        grain: u8,
    ) -> Result<(), NoRoom> {
        let cursor = store.make_room(stream, watermark, header_pages, 1)?;
        let header_slots = header_pages * 8 / u32::from(grain);
        let fits = |chunk: &OpenChunk, store: &Store| {
            let found = store.core.space.chunks.get(chunk.id);
            chunk.grain == grain
                && found.is_some_and(|c| {
                    c.epoch == store.core.epoch && (c.slots + header_slots) * u32::from(grain) + 8 <= store.core.chunk_units
                })
        };
        let chunk = match store.log.streams[stream].chunk {
            Some(chunk) if fits(&chunk, store) => chunk,
            _ => {
                store.close_stream_chunk(stream);
                let id = store.core.new_chunk(stream.number(), grain);
                let place = Place { segment: cursor.segment, page: cursor.page };
                store.core.space.place_chunk(id, place, stream.number(), None, None);
                let chunk = OpenChunk { id, base: cursor.page, grain };
                store.log.streams[stream].chunk = Some(chunk);
                chunk
            }
        };
        let slots = store.core.space.chunks.get_mut(chunk.id).map_or(0, |c| {
            c.slots += header_slots;
            c.slots
        });
        let items = if stream == Stream::Small { Encoder::with_capacity(HEADER_PAGE) } else { store.log.small_write_index.take() };
        let batch = OpenBatch::new(kind, cursor.page, header_pages, slots * u32::from(grain), items);
        let s = &mut store.log.streams[stream];
        s.batch = Some(batch);
        Ok(())
    }

    /// Makes sure that the index has room for the next batch of small writes.
    fn make_room_for_note(&mut self, store: &mut Store) -> Result<(), NoRoom> {
        if store.mirrors_small_writes() && store.log.small_write_index.room() == 0 { self.tell_of_small(store) } else { Ok(()) }
    }

    /// Writes the index of small writes in a batch of its own.
    fn tell_of_small(&mut self, store: &mut Store) -> Result<(), NoRoom> {
        store.seal_all();
        self.open_batch(store, Stream::Long, Watermark::Guest, BatchKind::Blocks, 1, 8)?;
        store.seal(Stream::Long);
        Ok(())
    }

    /// Writes the index of small writes when no other batch has done so for a while.
    pub(super) fn step_notes(&mut self, store: &mut Store) {
        if store.log.small_write_index.bytes() == 0 || !store.mirrors_small_writes() || store.state != PoolState::Online {
            store.log.unindexed_since = None;
            return;
        }
        let since = *store.log.unindexed_since.get_or_insert(store.now);
        if store.now.0 >= since.0 + UNTOLD_MILLIS {
            store.log.unindexed_since = None;
            // without room the next batch on a normal device carries the index
            let _ = self.tell_of_small(store);
        }
    }

    /// Appends whole blocks of a volume and maps them; their leaves must be in memory. The operation
    /// waits for the batches. Returns how many blocks were appended before room ran out.
    pub(super) fn append_blocks(&mut self, store: &mut Store, blocks: &BlockRun<'_>) -> usize {
        let BlockRun { volume, lineage, first, count, .. } = *blocks;
        let compression = store.core.catalog.volumes.get(&volume).map_or(Compression::Off, |v| v.compression);
        let threshold = store.core.catalog.options_of(volume).special_small_blocks as usize;
        let mut small = count * 4096 <= threshold && store.special_room(Stream::Small);
        let mut done = 0;
        while done < count {
            let block = first.0 + done as u64;
            let old = store.old_address(lineage, block);
            // a batch that holds a clear or a record must be the only open one
            if store.exclusive_open().is_some() {
                store.seal_all();
            }
            let stream = match store.open_batch_of(old) {
                Some(stream) => stream,
                None if small => Stream::Small,
                None => store.stream_for(old, compression),
            };
            let packed = stream == Stream::Packed;
            let grain = if packed { 1 } else { 8 };
            let mut room = store.batch_room(stream, grain, packed);
            if room == 0 {
                store.seal(stream);
                let header_pages = 1 + u32::try_from((count - done) * 4 / 3500).unwrap_or(0).min(2);
                let index_room = if stream == Stream::Small { self.make_room_for_note(store) } else { Ok(()) };
                if index_room.is_err() || self.open_batch(store, stream, Watermark::Guest, BatchKind::Blocks, header_pages, grain).is_err()
                {
                    if stream == Stream::Small {
                        // special devices are full: the blocks go to a normal stream
                        small = false;
                        continue;
                    }
                    return done;
                }
                room = store.batch_room(stream, grain, packed);
            }
            let length = store.run_length(lineage, block, (count - done).min(room), stream);
            let run = BlockRun { first: BlockNo(block), offset: blocks.offset + done, count: length, ..*blocks };
            if packed {
                self.append_packed(store, &run, compression);
            } else {
                self.append_raw(store, stream, &run);
            }
            done += length;
        }
        done
    }

    /// Appends raw blocks to a stream's open batch, which has room for them, and maps them.
    fn append_raw(&mut self, store: &mut Store, stream: Stream, run: &BlockRun<'_>) {
        let BlockRun { op, volume, lineage, first, offset, count, source } = *run;
        let (defer, indexed) = (store.tuning.plants(Planted::ApplyAtCompletion), stream == Stream::Small && store.mirrors_small_writes());
        let state = &mut store.log.streams[stream];
        let segment = state.cursor.map_or(NO_SEGMENT, |cursor| cursor.segment);
        let (Some(chunk), Some(batch)) = (state.chunk, &mut state.batch) else { return };
        let crcs: SmallVec<[u32; 32]> = (offset..offset + count).map(|at| crc32c(source.block(at))).collect();
        let range = offset * 4096..(offset + count) * 4096;
        match source {
            Source::Copy(bytes) => batch.copy(bytes.get(range).unwrap_or_default(), |n| store.bufs.take(n)),
            Source::Shared(piece) => batch.attach(piece.slice(range)),
            Source::Compressed(payload) => batch.attach(payload.plain.slice(range)),
        }
        encode_run(&mut batch.items, volume, first, count, RunForm::Raw, crcs.iter().map(|crc| StoredBlock::raw(*crc, Mark::Clear)));
        let slots = count as u32; // a slot of these streams is a block
        let slot = store.core.space.chunks.get_mut(chunk.id).map_or(0, |c| {
            c.slots += slots;
            c.slots - slots
        });
        if indexed {
            store.log.small_write_index.add(volume, first, segment, chunk.id, slot, &crcs);
        }
        store.core.space.make_live(chunk.id, slot, slots);
        store.core.clock += count as u64;
        store.metrics.user_bytes += count as u64 * 4096;
        if defer {
            let blocks = crcs.iter().zip(first.0..).zip(slot..);
            batch.deferred.extend(
                blocks.map(|((crc, block), slot)| (lineage, BlockNo(block), Addr::new(chunk.id, slot, BLOCK_UNITS, Coding::Raw), *crc)),
            );
        } else {
            let mapped = store.core.set_run(lineage, first, chunk.id, slot, &crcs);
            assert!(mapped.is_ok(), "INV-MAP-5: leaves are in memory before blocks are appended");
        }
        self.wait_for_batch(store, op, stream);
    }

    /// Appends blocks, compressed where that saves space, to the open packed batch, which has room
    /// for them, and maps them.
    fn append_packed(&mut self, store: &mut Store, run: &BlockRun<'_>, compression: Compression) {
        let BlockRun { op, volume, lineage, first, offset, count, source } = *run;
        let Some(chunk) = store.log.streams[Stream::Packed].chunk else { return };
        let mut stored: Vec<StoredBlock> = Vec::with_capacity(count);
        let defer = store.tuning.plants(Planted::ApplyAtCompletion);
        for i in 0..count {
            let (bytes, coding, crc) = source.stored(offset + i).unwrap_or_else(|| {
                let plain = source.block(offset + i);
                let (bytes, coding) = self.codec.codec.compress(plain, compression).unwrap_or((plain, Coding::Raw));
                (bytes, coding, crc32c(bytes))
            });
            let Some(batch) = &mut store.log.streams[Stream::Packed].batch else { return };
            batch.room(bytes.len(), |n| store.bufs.take(n)).copy_from_slice(bytes);
            let units = u32::try_from(bytes.len() / 512).unwrap_or(BLOCK_UNITS);
            let slots = units / u32::from(chunk.grain);
            let slot = store.core.space.chunks.get_mut(chunk.id).map_or(0, |c| {
                c.slots += slots;
                c.slots - slots
            });
            store.core.space.make_live(chunk.id, slot, slots);
            let addr = Addr::new(chunk.id, slot, units, coding);
            let block = BlockNo(first.0 + i as u64);
            store.core.clock += 1;
            store.metrics.user_bytes += u64::from(units) * 512;
            if defer {
                batch.deferred.push((lineage, block, addr, crc));
            } else {
                let mapped = store.core.set_block(lineage, block, addr, crc);
                assert!(mapped.is_ok(), "INV-MAP-5: leaves are in memory before blocks are appended");
            }
            stored.push(StoredBlock { crc, units: units as u8, coding, mark: Mark::Clear });
        }
        if let Some(batch) = &mut store.log.streams[Stream::Packed].batch {
            encode_run(&mut batch.items, volume, first, count, RunForm::Packed, stored.into_iter());
        }
        self.wait_for_batch(store, op, Stream::Packed);
    }

    /// Makes an operation wait for a stream's open batch.
    fn wait_for_batch(&mut self, store: &mut Store, op: u32, stream: Stream) {
        if let Some(batch) = &mut store.log.streams[stream].batch
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
    pub(crate) fn append_item(&mut self, store: &mut Store, op: u32, item: &Item) -> Result<(), NoRoom> {
        let mut encoded = Encoder::default();
        item.encode(&mut encoded);
        let fits = store.exclusive_open().is_some_and(|stream| {
            store.log.streams[stream]
                .batch
                .as_ref()
                .is_some_and(|batch| BATCH_FIXED + batch.items.len() + encoded.len() <= batch.header_pages as usize * HEADER_PAGE)
        });
        if !fits {
            store.seal_all();
            let header_pages = u32::try_from((BATCH_FIXED + store.log.small_write_index.bytes() + encoded.len()).div_ceil(HEADER_PAGE))
                .unwrap_or(u32::MAX);
            self.open_batch(store, Stream::Long, Watermark::Record, BatchKind::Exclusive, header_pages, 8)?;
        }
        if !matches!(item, Item::Record(Record::Walked { .. })) {
            // the batch that is open now gets the next number
            store.last_record = store.log.next;
        }
        if let Some(batch) = &mut store.log.streams[Stream::Long].batch {
            batch.items.raw(encoded.bytes());
        }
        self.wait_for_batch(store, op, Stream::Long);
        Ok(())
    }
}
