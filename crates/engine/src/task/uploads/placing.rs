//! Chunks get their places in an object that exists: one item [`Placed`] for each header of the object, in
//! batches without payload.
//!
//! Any beginning of the items of an object is a valid state, because each chunk has its own place. The
//! segment is open until the last one is logged.
//!
//! INV-OBJ-2: no chunk's place is in an object whose create was not confirmed.
//!
//! INV-OBJ-3: an object has every slot of a chunk that is live when the chunk is placed in it: a chunk has
//! no new slots after its segment was sealed, and slots that died since are not live.

use std::collections::VecDeque;

use millpond_format::{BATCH_FIXED, Encoder, HEADER_PAGE, Item, Lsn, MAX_HEADER_PAGES, Placed, PlacedChunk, SegmentId, SegmentName};

use super::counts::Known;
use super::upload::{Copied, Group};
use super::{RETRY_MILLIS, Uploads, leave};
use crate::log::{BatchKind, Lifetime, OpenBatch, Stream};
use crate::space::{AllocClass, Named, SegmentState};
use crate::store::{Store, Watermark};
use crate::{Planted, PoolState, Time};

/// Stream of the batches: the cleaner's for blocks that live longest. It is in the log.
const STREAM: Stream = Stream::Cleaned(Lifetime::Old);
/// Most bytes of items in a batch, as of moves.
const ITEM_BYTES: usize = MAX_HEADER_PAGES / 2 * HEADER_PAGE - BATCH_FIXED;
/// Bytes of an item without its chunks, and of a chunk without its bitmap, rounded up.
const PLACED_BYTES: usize = 24;
const CHUNK_BYTES: usize = 24;

/// An object that left the engine.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) segment: SegmentId,
    pub(super) name: SegmentName,
    /// Its pages, with the head.
    pub(super) pages: u16,
    pub(super) class: Lifetime,
    /// Groups whose chunks are still to be placed.
    pub(super) groups: VecDeque<Group>,
    /// Some chunk was placed: the segment has its name.
    pub(super) is_placed: bool,
}

impl Sent {
    /// Returns the items of the next batch, and the number of chunks that they settle: chunks that are gone
    /// or in the bucket already are in no item.
    fn next_items(&self, store: &Store) -> (Vec<Placed>, usize) {
        let (mut items, mut settled, mut bytes, mut pages) = (Vec::<(u32, Placed)>::new(), 0, 0, 1);
        let chunks = self.groups.iter().flat_map(|group| group.chunks.iter().map(|copied| (group.header, copied)));
        for (header, copied) in chunks {
            if let Some(chunk) = placed_chunk(store, header, copied) {
                let is_next = items.last().is_none_or(|(last, _)| *last != header);
                bytes += CHUNK_BYTES + chunk.present.len() * 8 + if is_next { PLACED_BYTES } else { 0 };
                pages += usize::from(!store.core.space.chunks.changes_with(chunk.chunk));
                // one more page of the checkpoint for the name
                if bytes > ITEM_BYTES || !store.has_room_for_moves(AllocClass::Data, true, pages) {
                    break;
                }
                if is_next {
                    let class = Stream::Cleaned(self.class).number();
                    let placed = Placed { segment: self.segment, name: self.name, pages: self.pages, class, chunks: Vec::new() };
                    items.push((header, placed));
                }
                items.iter_mut().next_back().into_iter().for_each(|(_, placed)| placed.chunks.push(chunk.clone()));
            }
            settled += 1;
        }
        (items.into_iter().map(|(_, placed)| placed).collect(), settled)
    }

    /// Takes out chunks that are settled.
    fn pop(&mut self) -> Option<Copied> {
        while self.groups.front().is_some_and(|group| group.chunks.is_empty()) {
            self.groups.pop_front();
        }
        self.groups.front_mut()?.chunks.pop_front()
    }

    fn is_settled(&self) -> bool {
        self.groups.iter().all(|group| group.chunks.is_empty())
    }
}

/// Returns the place of a chunk in the object, if it is still needed and not in the bucket. It may have been
/// moved within the log meanwhile.
fn placed_chunk(store: &Store, header: u32, copied: &Copied) -> Option<PlacedChunk> {
    let space = &store.core.space;
    let chunk = space.chunks.get(copied.chunk).filter(|chunk| chunk.live_count > 0)?;
    let place = chunk.place.filter(|place| !space.layout.is_in_bucket(place.segment))?;
    let id = copied.chunk;
    assert!(chunk.live.is_part_of(&copied.slots), "INV-OBJ-3: chunk {id} in segment {} has slots that its object lacks", place.segment);
    Some(PlacedChunk { chunk: copied.chunk, page: copied.page, header, present: copied.slots.words().to_vec() })
}

impl Uploads {
    /// Logs the places of objects that exist, the oldest first, as far as there is room.
    pub(super) fn place(&mut self, store: &mut Store) {
        while let Some(mut sent) = self.created.pop_front() {
            if store.now < self.next_places || store.state != PoolState::Online || !self.place_some(store, &mut sent) {
                return self.created.push_front(sent);
            }
            if sent.is_settled() {
                self.end_object(store, &sent);
            } else {
                self.created.push_front(sent);
            }
        }
    }

    /// Logs the places of one batch; false when there is no room for one: the next checkpoint makes some.
    fn place_some(&mut self, store: &mut Store, sent: &mut Sent) -> bool {
        // slots that guests freed in this turn are in the log first, as before moves
        store.seal_all();
        let (items, settled) = sent.next_items(store);
        let is_written = items.is_empty() || write_places(store, &items);
        if !is_written || (settled == 0 && !sent.is_settled()) {
            self.next_places = Time(store.now.0 + RETRY_MILLIS);
            store.checkpoint.forced |= !store.checkpoint.running();
            return false;
        }
        sent.is_placed |= !items.is_empty();
        for copied in (0..settled).map_while(|_| sent.pop()) {
            leave(&mut self.from, copied.from);
        }
        true
    }

    /// Ends an object that exists and of which no more chunks are to be placed. One without chunks is
    /// doomed.
    pub(super) fn end_object(&mut self, store: &mut Store, sent: &Sent) {
        if sent.is_placed {
            store.core.space.seal_bucket_segment(sent.segment);
            self.counts.note(sent.name.count, Known::Logged(Lsn(store.log.next.0 - 1)));
        } else {
            // a running checkpoint has its list already
            let generation = store.generation + 1 + u64::from(store.checkpoint.running());
            store.core.space.names.doom(Named { name: sent.name, pages: sent.pages }, generation);
            store.core.space.segments.set_state(sent.segment, SegmentState::Free);
            self.counts.note(sent.name.count, Known::Listed(generation));
        }
        // names are counted in the next checkpoint
        store.estimate_soon();
    }
}

/// Writes a batch with places and applies it; false when there is no room.
fn write_places(store: &mut Store, places: &[Placed]) -> bool {
    if store.tuning.plants(Planted::PlacedNotLogged) {
        return places.iter().all(|placed| store.core.space.place_in_bucket(placed));
    }
    let mut items = Encoder::default();
    places.iter().for_each(|placed| Item::Placed(placed.clone()).encode(&mut items));
    let bytes = BATCH_FIXED + store.log.small_write_index.bytes() + items.len();
    let header_pages = u32::try_from(bytes.div_ceil(HEADER_PAGE)).unwrap_or(u32::MAX);
    let Ok(cursor) = store.make_room(STREAM, Watermark::Cleaner, header_pages, 0) else { return false };
    let mut all = store.log.small_write_index.take();
    all.raw(items.bytes());
    let batch = OpenBatch::new(BatchKind::Exclusive, cursor.page, header_pages, 0, all);
    let header = store.header(STREAM, cursor.segment, &batch, 0);
    for placed in places {
        let fits = store.core.space.place_in_bucket(placed);
        assert!(fits, "INV-OBJ-1: segment {} gets object {:?}, and no other", placed.segment, placed.name);
    }
    store.submit_batch(STREAM, &header, batch, Vec::new());
    true
}
