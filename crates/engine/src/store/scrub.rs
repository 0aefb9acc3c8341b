//! The content of segments as a scrub (`task/scrub.rs`) reads it: places, and the items in them with
//! the means to verify each.

mod rows;
mod strips;

pub(crate) use self::strips::StripScan;

pub(crate) use self::rows::{InMemory, WriteStamp, copy_of};

use std::collections::{BTreeMap, VecDeque};

use millpond_block::Buf;
use millpond_format::{
    Addr, BLOCK_UNITS, BatchHeader, BlockNo, ChunkId, Coding, Item as Entry, MAX_HEADER_PAGES, NODE_BYTES, NODE_UNITS, Node, ObjectRef,
    SegmentId, UNIT, VolumeId, crc32c,
};

use super::Store;
use super::identities::Moves;
use crate::core::StoredDeadlist;
use crate::space::{Chunk, NODE_GRAIN, SegmentState};

/// A part of a segment that is read from all copies and checked as a whole.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) segment: SegmentId,
    pub(crate) uses: u32,
    pub(crate) page: u32,
    pub(crate) pages: u32,
    pub(crate) chunks: Vec<ChunkId>,
    pub(crate) objects: Vec<ObjectRef>,
    /// Number of times that it was read again because of writes meanwhile.
    pub(crate) again: u8,
}

/// Most pages of neighbouring objects that are read together.
const GATHER_PAGES: u32 = 256;

pub(crate) const PAGE: usize = 4096;

/// The way to verify an item.
#[derive(Debug)]
pub(crate) enum Check {
    /// A block with this checksum.
    Block(u32, VolumeId, BlockNo),
    Node(Addr),
    Object(ObjectRef),
    /// A header, with the bytes of one copy.
    Same(Vec<u8>),
}

/// A range of bytes of a place, and how to verify it.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) from: usize,
    pub(crate) bytes: usize,
    pub(crate) check: Check,
}

/// A copy of a place, or a column of it with parity.
pub(crate) type Copy = (usize, Option<Buf>);

impl Item {
    pub(crate) fn of<'a>(&self, copy: &'a [u8]) -> Option<&'a [u8]> {
        copy.get(self.from..self.from + self.bytes)
    }

    /// Returns the pages that it is in.
    pub(crate) fn pages(&self) -> std::ops::Range<usize> {
        self.from / PAGE..(self.from + self.bytes).div_ceil(PAGE)
    }

    pub(crate) fn is_right(&self, copy: Option<&Buf>) -> bool {
        copy.and_then(|buf| self.of(buf.bytes())).is_some_and(|bytes| self.matches(bytes))
    }

    /// Returns whether these are the right bytes.
    pub(crate) fn matches(&self, bytes: &[u8]) -> bool {
        match &self.check {
            Check::Block(crc, ..) => crc32c(bytes) == *crc,
            Check::Node(addr) => Node::checksum_at(bytes, *addr).is_some(),
            Check::Object(at) => crc32c(bytes) == at.crc,
            Check::Same(right) => bytes == right,
        }
    }
}

impl Store {
    /// Returns every object of the last checkpoint.
    pub(crate) fn all_objects(&self) -> impl Iterator<Item = ObjectRef> + '_ {
        let catalog = &self.core.catalog;
        let lists = catalog.deadlists().filter_map(StoredDeadlist::stored);
        // several lists may refer to one piece
        let pieces = catalog.deadlists().flat_map(|list| list.list().pieces()).filter_map(|piece| piece.stored());
        let pieces: BTreeMap<(SegmentId, u32), ObjectRef> = pieces.map(|at| ((at.segment, at.offset), at)).collect();
        let space = &self.core.space;
        let tables = space.chunks.stored().chain(catalog.snapshots.stored()).chain(space.names.stored()).map(|(_, at)| at);
        let whole = tables.chain(space.names.stored_doomed()).chain(lists).chain(pieces.into_values()).chain([self.checkpoint_at]);
        let parts = |at: ObjectRef| self.checkpoint.parts.get(&(at.segment, at.offset)).into_iter().flatten().copied().chain([at]);
        whole.filter(|at| at.bytes() > 0).flat_map(parts)
    }

    /// Returns the bytes of all copies of a segment, including parity.
    pub(crate) fn scrub_bytes(&self, id: SegmentId) -> u64 {
        self.core.space.layout.extents(id).map(|(_, range)| range.length).sum()
    }

    /// Returns the places to read in a segment. Places share no page, so a repair of one does not
    /// overwrite another.
    pub(crate) fn places_of(&self, segment: SegmentId, uses: u32, mut objects: Vec<ObjectRef>) -> VecDeque<Place> {
        let place = |page, pages| Place { segment, uses, page, pages, chunks: Vec::new(), objects: Vec::new(), again: 0 };
        let space = &self.core.space;
        let mut chunks = space.segments.get(segment).map(|s| s.chunks.clone()).unwrap_or_default();
        chunks.sort_unstable();
        chunks.dedup();
        let mut places: BTreeMap<u32, Place> = BTreeMap::new();
        for id in chunks {
            let Some(chunk) = space.chunks.get(id) else { continue };
            let Some(at) = chunk.place.filter(|at| at.segment == segment) else { continue };
            let header = chunk.identities.filter(|_| chunk.grain != NODE_GRAIN);
            // chunks that were moved together share a header that identifies their blocks
            let first = header.unwrap_or(at.page);
            let end = at.page + chunk.extent_units().div_ceil(8);
            let head = (first + MAX_HEADER_PAGES as u32).min(space.layout.pages(segment));
            // with parity, stripes are not shared with another batch
            let end = if header.is_some() && space.layout.stripe(segment).is_none() { end.max(head) } else { end };
            let known = places.entry(first).or_insert_with(|| place(first, 0));
            known.pages = known.pages.max(end - first);
            known.chunks.push(id);
        }
        objects.sort_unstable_by_key(|at| at.offset);
        objects.dedup();
        let mut found: VecDeque<Place> = places.into_values().collect();
        let mut open: Option<Place> = None;
        for at in objects {
            let start = u64::from(at.offset) * ObjectRef::STEP as u64;
            let (page, end) = ((start / 4096) as u32, (start + u64::from(at.bytes())).div_ceil(4096) as u32);
            if let Some(full) = open.take_if(|p| page >= p.page + p.pages && end - p.page > GATHER_PAGES) {
                found.push_back(full);
            }
            let known = open.get_or_insert_with(|| place(page, 0));
            known.pages = known.pages.max(end - known.page);
            known.objects.push(at);
        }
        found.extend(open);
        self.whole_rows(found)
    }

    /// Returns the copies of a segment (with parity: the columns) that should be right.
    pub(crate) fn copies_to_scrub(&self, segment: SegmentId) -> Vec<usize> {
        let rows = &self.core.space.layout;
        match rows.copies(segment).len() {
            0 => rows.stripe(segment).map_or(vec![0], |stripe| self.io.health.whole_columns(&stripe)),
            _ => self.io.health.whole_copies(rows, segment).to_vec(),
        }
    }

    /// Returns whether a place has not been freed since the scrub began.
    pub(crate) fn lies_still(&self, place: &Place) -> bool {
        self.core.space.segments.get(place.segment).is_some_and(|s| s.uses == place.uses && s.state == SegmentState::Sealed)
    }

    /// Returns the items of a place, and the number of live blocks that cannot be identified.
    pub(crate) fn items(&self, place: &Place, copies: &[Copy]) -> (Vec<Item>, u64) {
        let (mut items, mut unknown) = (Vec::new(), 0);
        let first = place.page as usize * PAGE;
        for id in &place.chunks {
            self.chunk_items(place, *id, copies, &mut items, &mut unknown);
        }
        for at in &place.objects {
            let from = at.offset as usize * ObjectRef::STEP;
            items.push(Item { from: from - first, bytes: at.bytes() as usize, check: Check::Object(*at) });
        }
        (items, unknown)
    }

    /// Adds the items of the live part of a chunk, if it is still in its place.
    fn chunk_items(&self, place: &Place, id: ChunkId, copies: &[Copy], items: &mut Vec<Item>, unknown: &mut u64) {
        let Some(chunk) = self.core.space.chunks.get(id) else { return };
        let Some(at) = chunk.place.filter(|at| at.segment == place.segment) else { return };
        let Some(base) = at.page.checked_sub(place.page).map(|page| page as usize * PAGE) else { return };
        if chunk.grain == NODE_GRAIN {
            let nodes = chunk.live.iter().filter_map(|slot| Some((slot, chunk.unit_of(slot)?)));
            items.extend(nodes.map(|(slot, unit)| {
                let addr = Addr::new(id, slot, NODE_UNITS, Coding::Raw);
                Item { from: base + unit as usize * UNIT, bytes: NODE_BYTES, check: Check::Node(addr) }
            }));
            return;
        }
        let seen = if chunk.identities.is_none() {
            self.written_items(place, id, chunk, base, copies, items)
        } else {
            self.moved_items(place, id, chunk, base, copies, items)
        };
        *unknown += u64::from(chunk.live_count.saturating_sub(seen) * u32::from(chunk.grain)).div_ceil(u64::from(BLOCK_UNITS));
    }

    /// Adds the items of a chunk that was never moved: the headers between its blocks, and the
    /// blocks. Returns the number of live slots found.
    fn written_items(&self, place: &Place, id: ChunkId, chunk: &Chunk, base: usize, copies: &[Copy], items: &mut Vec<Item>) -> u32 {
        let (mut at, end, mut seen) = (base, base + chunk.extent_units() as usize * UNIT, 0);
        while at < end {
            let mine = |header: &BatchHeader| self.is_batch_at(header, id, place, at);
            let Some((header, entries, raw)) = header_at(copies, at, mine) else { break };
            let from = at + raw.len();
            items.push(Item { from: at, bytes: raw.len(), check: Check::Same(raw) });
            seen += block_items(chunk, base, from, entries, items);
            at = from + header.payload as usize * PAGE;
        }
        seen
    }

    /// Returns whether `header` is that of a batch of a chunk, `at` bytes into a place.
    fn is_batch_at(&self, header: &BatchHeader, chunk: ChunkId, place: &Place, at: usize) -> bool {
        let page = place.page + (at / PAGE) as u32;
        (header.pool, header.chunk, header.segment, header.offset) == (self.config.id, chunk, place.segment, page)
    }

    /// Adds the items of a chunk that was moved: the header that it shares with others, and its
    /// blocks. Returns the number of live slots found.
    fn moved_items(&self, place: &Place, id: ChunkId, chunk: &Chunk, base: usize, copies: &[Copy], items: &mut Vec<Item>) -> u32 {
        let found = copies.iter().filter_map(|(_, buf)| Some(buf.as_ref()?.bytes())).find_map(|bytes| {
            let (moves, pages) = Moves::decode(bytes, self.config.id, place.segment, place.page)?;
            Some((moves.identities(id, chunk)?, bytes.get(..pages * PAGE)?.to_vec()))
        });
        let Some((identities, raw)) = found else { return 0 };
        if !items.iter().any(|item| item.from == 0) {
            items.push(Item { from: 0, bytes: raw.len(), check: Check::Same(raw) });
        }
        let mut seen = 0;
        for (slot, identity) in identities {
            let Some(unit) = chunk.unit_of(slot).filter(|_| chunk.live.get(slot)) else { continue };
            let check = Check::Block(identity.crc, identity.volume, identity.block);
            items.push(Item { from: base + unit as usize * UNIT, bytes: usize::from(identity.units) * UNIT, check });
            seen += u32::from(identity.units) / u32::from(chunk.grain);
        }
        seen
    }

    /// Extends places of segments with parity to whole stripes; places that share one are joined.
    fn whole_rows(&self, places: impl IntoIterator<Item = Place>) -> VecDeque<Place> {
        let rows = &self.core.space.layout;
        let mut found: VecDeque<Place> = VecDeque::new();
        for place in places {
            if rows.stripe(place.segment).is_none() {
                found.push_back(place);
                continue;
            }
            let quantum = rows.quantum(place.segment);
            let (first, end) = (place.page / quantum * quantum, (place.page + place.pages).next_multiple_of(quantum));
            match found.back_mut().filter(|last| first < last.page + last.pages) {
                Some(last) => {
                    last.pages = last.pages.max(end - last.page);
                    last.chunks.extend(place.chunks);
                    last.objects.extend(place.objects);
                }
                None => found.push_back(Place { page: first, pages: end - first, ..place }),
            }
        }
        found
    }
}

/// Returns the first copy of a header at byte `at` that `right` accepts.
fn header_at(copies: &[Copy], at: usize, right: impl Fn(&BatchHeader) -> bool) -> Option<(BatchHeader, Vec<Entry>, Vec<u8>)> {
    copies.iter().filter_map(|(_, buf)| buf.as_ref()?.bytes().get(at..)).find_map(|bytes| {
        let (header, items) = BatchHeader::decode(bytes).ok()?;
        let raw = bytes.get(..usize::from(header.pages) * PAGE)?.to_vec();
        right(&header).then_some((header, items, raw))
    })
}

/// Adds the items of a batch of a chunk that begins at byte `base` of its place; the batch's blocks
/// begin at `from`. Returns the number of live slots found.
pub(super) fn block_items(chunk: &Chunk, base: usize, mut from: usize, entries: Vec<Entry>, items: &mut Vec<Item>) -> u32 {
    let (grain, mut seen) = (u32::from(chunk.grain), 0);
    for (volume, block, stored) in entries.into_iter().filter_map(Entry::into_blocks) {
        for (i, stored) in (0u64..).zip(stored) {
            let bytes = usize::from(stored.units) * UNIT;
            let slot = ((from - base) / UNIT) as u32 / grain;
            if chunk.live.get(slot) {
                seen += u32::from(stored.units) / grain;
                items.push(Item { from, bytes, check: Check::Block(stored.crc, volume, BlockNo(block.0 + i)) });
            }
            from += bytes;
        }
    }
    seen
}
