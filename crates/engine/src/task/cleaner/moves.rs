//! Batches of moves: live blocks of several chunks, written together behind one header that
//! identifies them. They go to a stream of the log, or to an upload.

use millpond_block::{Buf, BufSlice};
use millpond_format::{
    Addr, BATCH_FIXED, BlockIdentity, BlockNo, ChunkId, Coding, Encoder, HEADER_PAGE, Item, Lsn, MAX_HEADER_PAGES, Mark, Move, NODE_BYTES,
    NODE_UNITS, Node, SegmentId, UNIT, VolumeId, crc32c,
};
use smallvec::SmallVec;

use super::READ_PAUSE;
use crate::log::{BatchKind, Lifetime, OpenBatch, Stream};
use crate::space::{AllocClass, Chunk, NODE_GRAIN, PAGE, Pause, Place, Slots};
use crate::store::{Store, Watermark, original_identities};
use crate::task::Cleaner;
use crate::task::uploads::{Copied, CopiedGroup};
use crate::{Planted, PoolState};

/// Most live bytes gathered before they are written: one header then serves many chunks.
const GATHER_BYTES: u64 = 1 << 20;
/// Stripes with parity that are written together.
const QUANTA: u64 = 16;

/// A chunk that was read and waits to be written to its new place.
#[derive(Debug)]
pub(super) struct Gathered {
    pub(super) chunk: ChunkId,
    pub(crate) from: SegmentId,
    /// Its segment is emptied into the bucket.
    pub(super) leaves_log: bool,
    pub(super) identities: Vec<(u32, BlockIdentity)>,
    pub(super) buf: Buf,
}

/// Where moved chunks go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Stream(Stream),
    /// To the upload of this class.
    Bucket(Lifetime),
}

/// A batch of moves under construction.
struct MoveBatch {
    target: Target,
    items: Encoder,
    /// Pages of payload so far.
    pages: u32,
    /// Most pages of header and payload: the rest of the segment or object, or a whole one.
    room: u32,
    pieces: Vec<BufSlice>,
    chunks: Vec<Moved>,
}

/// A chunk in a batch of moves.
struct Moved {
    chunk: ChunkId,
    from: SegmentId,
    /// Page of the payload.
    at: u32,
    /// The header has the identities of its blocks.
    is_identified: bool,
    /// The slots that are moved.
    slots: Slots,
}

impl Cleaner {
    /// Writes the gathered chunks to their new places.
    pub(crate) fn write_gathered(&mut self, store: &mut Store) {
        if self.gathered.is_empty() {
            return;
        }
        // blocks that guests freed in this turn must be in the log before the move that leaves them
        // behind
        store.seal_all();
        self.gathered_bytes = 0;
        let mut waiting = std::mem::take(&mut self.gathered);
        waiting.sort_by_key(|g| {
            let chunk = store.core.space.chunks.get(g.chunk);
            (chunk.map(|c| self.target_of(store, g, c)), g.chunk)
        });
        let mut batch: Option<MoveBatch> = None;
        for g in waiting {
            self.add_move(store, &mut batch, &g);
            store.bufs.give(g.buf);
        }
        if let Some(batch) = batch {
            self.write_moves(store, batch);
        }
    }

    /// Adds the live blocks of a chunk to the batch of moves, or to a new one when they do not fit.
    fn add_move(&mut self, store: &mut Store, batch: &mut Option<MoveBatch>, g: &Gathered) {
        let Some(chunk) = store.core.space.chunks.get(g.chunk) else { return };
        let here = chunk.place.is_some_and(|place| place.segment == g.from);
        if chunk.live_count == 0 || !here || matches!(store.state, PoolState::Faulted(_)) {
            return;
        }
        let (target, live, grain) = (self.target_of(store, g, chunk), chunk.live.clone(), chunk.grain);
        if !self.may_move(store, batch, g, target) {
            return;
        }
        let Some(identities) = kept_identities(store, g, &live) else {
            // as with unreadable chunks: it stays where it is
            return store.leave_unreadable(g.from, READ_PAUSE);
        };
        let Some(chunk) = store.core.space.chunks.get(g.chunk) else { return };
        let moved = Move {
            chunk: g.chunk,
            epoch: chunk.epoch,
            birth: chunk.birth,
            grain,
            at: batch.as_ref().filter(|b| b.target == target).map_or(0, |b| b.pages),
            present: live.words().to_vec(),
            identities,
        };
        let pages = pages_of(chunk, &live);
        let mut item = Encoder::default();
        Item::Move(moved.clone()).encode(&mut item);
        let first_header = (BATCH_FIXED + item.len()).div_ceil(HEADER_PAGE) as u32;
        let fits = batch.as_ref().is_some_and(|b| {
            let header = (BATCH_FIXED + b.items.len() + item.len()).div_ceil(HEADER_PAGE);
            b.target == target && header <= MAX_HEADER_PAGES / 2 && header as u32 + b.pages + pages <= b.room
        });
        if !fits && let Some(full) = batch.take() {
            self.write_moves(store, full);
        }
        let moved = if fits { moved } else { Move { at: 0, ..moved } };
        let Some((buf, bytes)) = copy_live(store, g, &live) else { return };
        let room = match target {
            Target::Stream(stream) => room_in(store, stream, first_header + pages),
            Target::Bucket(class) => self.uploads.room(store, class, first_header + pages),
        };
        let (items, pieces) = (Encoder::default(), Vec::new());
        let b = batch.get_or_insert_with(|| MoveBatch { target, items, pages: 0, room, pieces, chunks: Vec::new() });
        b.chunks.push(Moved { chunk: g.chunk, from: g.from, at: moved.at, is_identified: grain != NODE_GRAIN, slots: live });
        Item::Move(moved).encode(&mut b.items);
        b.pages += pages;
        b.pieces.push(BufSlice::new(buf, 0..pages as usize * 4096));
        store.metrics.cleaner_bytes += bytes as u64;
    }

    /// Returns whether a chunk can be moved now. When the records of its move do not fit into the next
    /// checkpoint together with those of the batch, that is written first.
    fn may_move(&mut self, store: &mut Store, batch: &mut Option<MoveBatch>, g: &Gathered, target: Target) -> bool {
        if let Target::Bucket(_) = target {
            // its place changes when the object exists
            return self.uploads.takes(store);
        }
        let moves = batch.as_ref().map_or(0, |b| b.chunks.len()) + 1;
        if store.core.space.chunks.changes_with(g.chunk) || has_room_for_move(store, g.from, moves) {
            return true;
        }
        batch.take().into_iter().for_each(|full| self.write_moves(store, full));
        if has_room_for_move(store, g.from, 1) {
            return true;
        }
        // it is tried again after the next checkpoint
        if !store.moves_wait_for_checkpoint() {
            leave_for_room(store, g.from);
        }
        false
    }

    fn write_moves(&mut self, store: &mut Store, moves: MoveBatch) {
        let stream = match moves.target {
            Target::Stream(stream) => stream,
            Target::Bucket(class) => return self.upload(store, class, moves),
        };
        let noted = BATCH_FIXED + store.log.small_write_index.bytes() + moves.items.len();
        let header_pages = u32::try_from(noted.div_ceil(HEADER_PAGE)).unwrap_or(u32::MAX);
        let Ok(cursor) = store.make_room(stream, Watermark::Cleaner, header_pages, moves.pages) else {
            // the chunks stay where they are
            self.blocked_at = Some(store.core.space.segments.free_in(AllocClass::Data));
            return;
        };
        let mut items = store.log.small_write_index.take();
        items.raw(moves.items.bytes());
        let batch = OpenBatch::new(BatchKind::Exclusive, cursor.page, header_pages, 0, items);
        let header = store.header(stream, cursor.segment, &batch, moves.pages);
        for Moved { chunk, at, is_identified, slots, .. } in moves.chunks {
            let place = Place { segment: cursor.segment, page: cursor.page + header_pages + at };
            let identities = is_identified.then_some(cursor.page);
            store.core.space.place_chunk(chunk, place, stream.number(), identities, Some(slots));
        }
        if !self.for_job && self.victim.is_none_or(|victim| store.core.space.layout.alloc_class(victim) != AllocClass::Log) {
            store.spent += u64::from(header_pages + moves.pages);
        }
        store.submit_batch(stream, &header, batch, moves.pieces);
    }

    /// Adds moved chunks to an upload.
    fn upload(&mut self, store: &mut Store, class: Lifetime, moves: MoveBatch) {
        let copied = |moved: Moved| Copied { chunk: moved.chunk, from: moved.from, page: moved.at, slots: moved.slots };
        let chunks = moves.chunks.into_iter().map(copied).collect();
        self.uploads.add(store, class, CopiedGroup { items: moves.items, payload: moves.pages, pieces: moves.pieces, chunks });
    }
}

impl Cleaner {
    /// Returns where a chunk goes. Nodes stay in the log (INV-OBJ-6): an import reads them.
    fn target_of(&self, store: &Store, g: &Gathered, chunk: &Chunk) -> Target {
        let leaves_log = g.leaves_log && (chunk.grain != NODE_GRAIN || store.tuning.plants(Planted::MetaInBucket));
        if leaves_log { Target::Bucket(lifetime_of(store, chunk)) } else { Target::Stream(self.stream_of(store, chunk)) }
    }

    /// Returns the stream for a chunk by its class and age; when space is short, the one with most
    /// room left. Chunks on special devices stay there.
    fn stream_of(&self, store: &Store, chunk: &Chunk) -> Stream {
        let origin = Stream::from_number(chunk.class);
        if (chunk.grain == NODE_GRAIN || origin.is_some_and(Stream::is_special)) && store.special_room(Stream::Kept) {
            return Stream::Kept;
        }
        if store.records_lack_room() {
            let left = |stream: &Stream| store.log.streams[*stream].left();
            return Stream::cleaned().max_by_key(left).unwrap_or(Stream::Cleaned(Lifetime::Short));
        }
        Stream::Cleaned(lifetime_of(store, chunk))
    }
}

/// Returns the lifetime class for a chunk that is moved, by its class and age.
fn lifetime_of(store: &Store, chunk: &Chunk) -> Lifetime {
    let age = store.core.clock.saturating_sub(chunk.birth);
    let life = store.lifespan.max(1);
    match Stream::from_number(chunk.class) {
        Some(Stream::Short) => Lifetime::Short,
        _ if age < 4 * life => Lifetime::Young,
        _ if age < 16 * life => Lifetime::Grown,
        _ => Lifetime::Old,
    }
}

/// Returns the pages that these slots of a chunk take together.
fn pages_of(chunk: &Chunk, slots: &Slots) -> u32 {
    (slots.count() * u32::from(chunk.grain)).div_ceil(8)
}

/// Copies the live blocks of a chunk next to each other, up to whole pages. Returns them, and the bytes of
/// the blocks.
fn copy_live(store: &mut Store, g: &Gathered, live: &Slots) -> Option<(Buf, usize)> {
    let chunk = store.core.space.chunks.get(g.chunk)?;
    let (unit_bytes, bytes) = (usize::from(chunk.grain) * 512, pages_of(chunk, live) as usize * 4096);
    let units: SmallVec<[u32; 64]> = live.iter().filter_map(|slot| chunk.unit_of(slot)).collect();
    let mut buf = store.bufs.take(bytes);
    let (source, target) = (g.buf.bytes(), buf.bytes_mut());
    let mut to = 0;
    for unit in units {
        let from = unit as usize * 512;
        if let (Some(from), Some(into)) = (source.get(from..from + unit_bytes), target.get_mut(to..to + unit_bytes)) {
            into.copy_from_slice(from);
        }
        to += unit_bytes;
    }
    if let Some(rest) = target.get_mut(to..bytes) {
        rest.fill(0);
    }
    Some((buf, to))
}

/// Returns the most pages of a batch of moves, of which it has `needed` at least: the rest of the stream's
/// segment, or a whole one.
fn room_in(store: &Store, stream: Stream, needed: u32) -> u32 {
    let left = store.log.streams[stream].left();
    // the header may take one page more, for the index of small writes
    let note = u32::from(store.mirrors_small_writes());
    if left >= needed + note { left - note } else { store.core.space.layout.smallest() - note }
}

/// Returns the live bytes that are written together: many where segments have parity, because
/// the last stripe is padded.
pub(super) fn gather_bytes(store: &Store) -> u64 {
    let stream = &store.log.streams[Stream::Cleaned(Lifetime::Short)];
    let next = stream.cursor.map(|c| c.segment).or(stream.next);
    let layout = &store.core.space.layout;
    let (quantum, pages) = next.map_or((1, 0), |id| (layout.quantum(id), layout.pages(id)));
    if quantum > 1 {
        return (u64::from(quantum) * PAGE * QUANTA).min(u64::from(pages) * PAGE / 2);
    }
    GATHER_BYTES.min(store.config.shape.extent_bytes * 2)
}

/// Skips a segment for a while, until there may be room for moves.
fn leave_for_room(store: &mut Store, id: SegmentId) {
    if let Some(segment) = store.core.space.segments.get_mut(id) {
        segment.leave_until(store.now.0 + READ_PAUSE, Pause::Room);
    }
}

/// Returns the identities of the live slots of a chunk; nodes are identified by their address.
/// `None` when a block does not match its checksum, or the header with the identities is
/// damaged: a batch with such a block would look torn, and replay would end the log before it
/// and lose everything after it.
pub(super) fn kept_identities(store: &Store, g: &Gathered, live: &Slots) -> Option<Vec<BlockIdentity>> {
    let chunk = store.core.space.chunks.get(g.chunk)?;
    if chunk.grain == NODE_GRAIN {
        let nodes = live.iter().filter_map(|slot| Some((slot, chunk.unit_of(slot)?))).map(|(slot, unit)| {
            let from = unit as usize * 512;
            let addr = Addr::new(g.chunk, slot, NODE_UNITS, Coding::Raw);
            let crc = Node::checksum_at(g.buf.bytes().get(from..from + NODE_BYTES)?, addr)?;
            let (volume, block) = (VolumeId(0), BlockNo(0));
            Some(BlockIdentity { volume, block, lsn: Lsn(0), crc, units: NODE_GRAIN, coding: Coding::Raw, mark: Mark::Clear })
        });
        return nodes.collect();
    }
    let all = if g.identities.is_empty() && chunk.has_all() {
        original_identities(g.buf.bytes(), store.config.id, g.chunk)
    } else {
        g.identities.clone()
    };
    let mut kept = Vec::with_capacity(all.len());
    for (slot, identity) in all.into_iter().filter(|(slot, _)| live.get(*slot)) {
        let from = chunk.unit_of(slot)? as usize * UNIT;
        if crc32c(g.buf.bytes().get(from..from + usize::from(identity.units) * UNIT)?) != identity.crc {
            return None;
        }
        kept.push(identity);
    }
    let slots: u32 = kept.iter().map(|identity| u32::from(identity.units) / u32::from(chunk.grain)).sum();
    if slots != live.count() {
        return None;
    }
    if store.tuning.plants(Planted::CleanerNewSequence) {
        let now = store.log.next;
        kept.iter_mut().for_each(|identity| identity.lsn = now);
    }
    Some(kept)
}

/// Returns whether the records of `moves` moves fit into the next checkpoint, the last one out
/// of this segment.
fn has_room_for_move(store: &Store, from: SegmentId, moves: usize) -> bool {
    let stays = store.core.space.segments.get(from).is_some_and(|s| !s.is_given_up());
    store.has_room_for_moves(store.core.space.layout.alloc_class(from), stays, moves)
}
