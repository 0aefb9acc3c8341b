//! Checks of the strips of a place, one after another, for a scrub (`task/scrub/strips.rs`).

use std::collections::{BTreeMap, VecDeque};

use millpond_block::Buf;
use millpond_format::{BatchHeader, ChunkId, MAX_HEADER_PAGES, UNIT};
use smallvec::SmallVec;

use super::{Copy, Item, Place, block_items};
use crate::Planted;
use crate::space::{Chunk, NODE_GRAIN};
use crate::store::Store;

pub(crate) const PAGE: usize = 4096;

/// A place that is being read in strips.
#[derive(Debug)]
pub(crate) struct StripScan {
    pub(crate) place: Place,
    /// The copies that are read; with parity: the columns.
    pub(crate) copies: Vec<usize>,
    /// Pages of each strip but the last.
    strip: u32,
    /// Pages whose reads were begun, and pages that were checked.
    asked: u32,
    pub(crate) looked: u32,
    /// Strips that were read out of order, by first page.
    pub(crate) early: BTreeMap<u32, Vec<Copy>>,
    walk: Walk,
}

/// Progress of checking the bytes of a place, and the items to come.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    /// Bytes of the place that were checked before.
    at: usize,
    /// Items to check, in order.
    items: VecDeque<Item>,
    written: Option<Written>,
    /// First bytes of an item or header that continues in the next bytes.
    begun: Vec<u8>,
}

/// A chunk that was never moved: headers between its blocks identify them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    chunk: ChunkId,
    /// Byte offset of its next header, and of its end.
    header: usize,
    end: usize,
    /// Live slots found.
    seen: u32,
}

impl Walk {
    /// Returns bytes of the place of which the last are in `bytes`; `None` when some are still to
    /// come.
    fn part<'a>(&'a mut self, from: usize, length: usize, bytes: &'a [u8]) -> Option<&'a [u8]> {
        if let Some(skip) = from.checked_sub(self.at) {
            if let Some(part) = bytes.get(skip..skip + length) {
                return Some(part);
            }
            self.begun.clear();
            self.begun.extend_from_slice(bytes.get(skip..).unwrap_or_default());
            return None;
        }
        // a caller that asks for more bytes than before begins again
        self.begun.truncate(self.at - from);
        let missing = length.saturating_sub(self.begun.len()).min(bytes.len());
        self.begun.extend_from_slice(bytes.get(..missing).unwrap_or_default());
        self.begun.get(..length)
    }
}

impl StripScan {
    /// Returns the next strip to read.
    pub(crate) fn next(&mut self) -> Option<Place> {
        let pages = self.strip.min(self.place.pages - self.asked);
        let page = self.place.page + self.asked;
        self.asked += pages;
        let Place { segment, uses, .. } = self.place;
        (pages > 0).then(|| Place { segment, uses, page, pages, chunks: Vec::new(), objects: Vec::new(), again: 0 })
    }
}

/// Returns whether headers between the blocks of a chunk identify them.
fn was_written(chunk: &Chunk) -> bool {
    chunk.grain != NODE_GRAIN && chunk.identities.is_none()
}

impl Store {
    /// Begins to read a place in strips. Returns the place when it has to be read as a whole.
    pub(crate) fn skim(&self, place: Place) -> Result<StripScan, Place> {
        let rows = &self.core.space.layout;
        let copies = self.copies_to_scrub(place.segment);
        let stripe = rows.stripe(place.segment);
        let whole = stripe.as_ref().is_none_or(|stripe| copies.len() == stripe.width());
        let is_written = |id: &ChunkId| self.core.space.chunks.get(*id).is_some_and(was_written);
        let alone = stripe.is_none() && place.chunks.len() == 1 && place.objects.is_empty();
        if copies.is_empty() || place.pages == 0 || !whole || (!alone && place.chunks.iter().any(is_written)) {
            return Err(place);
        }
        // with parity, whole stripes
        let strip = (self.tuning.scrub_strip / PAGE as u32).max(1).next_multiple_of(rows.quantum(place.segment));
        Ok(StripScan { place, copies, strip, asked: 0, looked: 0, early: BTreeMap::new(), walk: Walk::default() })
    }

    /// Checks the next strip. Returns false when something is wrong.
    pub(crate) fn look_at(&mut self, skim: &mut StripScan, copies: &[Copy]) -> bool {
        let pages = skim.strip.min(skim.place.pages - skim.looked);
        let bytes = pages as usize * PAGE;
        let segment = skim.place.segment;
        let share = self.core.space.layout.stripe(segment).map_or(1, |stripe| stripe.data());
        let read: Option<SmallVec<[&[u8]; 16]>> = copies.iter().map(|(_, buf)| buf.as_ref()?.bytes().get(..bytes / share)).collect();
        let Some(read) = read else { return false };
        if skim.looked == 0 && !self.begin_walk(skim, copies) {
            return false;
        }
        skim.looked += pages;
        let Some(stripe) = self.core.space.layout.stripe(segment) else {
            let Some((first, others)) = read.split_first() else { return false };
            let same = others.iter().all(|other| other == first) || self.tuning.plants(Planted::SkimOneCopy);
            return same && self.walk(&skim.place, &mut skim.walk, first);
        };
        let (unit, data) = (stripe.unit as usize, stripe.data());
        for at in (0..bytes / share).step_by(unit) {
            let turn: SmallVec<[&[u8]; 16]> = read.iter().map(|column| column.get(at..at + unit).unwrap_or_default()).collect();
            let right = turn.iter().take(data).all(|column| self.walk(&skim.place, &mut skim.walk, column));
            if !right || !(self.io.agrees(&stripe, &turn) || self.tuning.plants(Planted::SkimOneCopy)) {
                return false;
            }
        }
        true
    }

    /// Prepares the items of a place whose first strip was read. Returns false when that strip does
    /// not describe all of them.
    fn begin_walk(&mut self, skim: &mut StripScan, copies: &[Copy]) -> bool {
        let place = &skim.place;
        if let [id] = place.chunks.as_slice()
            && let Some(chunk) = self.core.space.chunks.get(*id).filter(|chunk| was_written(chunk))
        {
            let end = chunk.extent_units() as usize * UNIT;
            skim.walk.written = Some(Written { chunk: *id, header: 0, end, seen: 0 });
            return true;
        }
        let joined = if self.core.space.layout.stripe(place.segment).is_some() {
            vec![(0, self.head(place, skim.strip, copies))]
        } else {
            Vec::new()
        };
        let (mut items, unknown) = self.items(place, if joined.is_empty() { copies } else { &joined });
        self.give_copies(joined);
        items.sort_unstable_by_key(|item| item.from);
        let apart = items.iter().zip(items.iter().skip(1)).all(|(item, next)| item.from + item.bytes <= next.from);
        skim.walk.items = items.into();
        unknown == 0 && apart
    }

    /// Returns the first bytes of stripes in order, as many as a header may have.
    fn head(&mut self, place: &Place, strip: u32, columns: &[Copy]) -> Option<Buf> {
        let stripe = self.core.space.layout.stripe(place.segment)?;
        let (unit, data) = (stripe.unit as usize, stripe.data());
        let bytes = place.pages.min(strip).min(MAX_HEADER_PAGES as u32) as usize * PAGE;
        let mut head = self.bufs.take(bytes);
        for (turn, to) in head.bytes_mut().get_mut(..bytes)?.chunks_mut(unit).enumerate() {
            let from = turn / data * unit;
            let column = columns.get(turn % data).and_then(|(_, buf)| buf.as_ref()?.bytes().get(from..from + to.len()));
            to.copy_from_slice(column?);
        }
        Some(head)
    }

    /// Checks the bytes that follow those checked before.
    fn walk(&self, place: &Place, walk: &mut Walk, bytes: &[u8]) -> bool {
        let mut right = true;
        while right {
            if let Some(item) = walk.items.pop_front() {
                let Some(found) = walk.part(item.from, item.bytes, bytes) else {
                    walk.items.push_front(item);
                    break;
                };
                right = item.matches(found);
                continue;
            }
            let Some(written) = walk.written.filter(|written| written.header < written.end) else { break };
            let Some(pages) = walk.part(written.header, PAGE, bytes).map(|page| BatchHeader::peek_pages(page).unwrap_or(1)) else { break };
            let Some(header) = walk.part(written.header, pages * PAGE, bytes) else { break };
            let (next, items) = self.next_batch(place, written, header);
            walk.written = Some(next);
            walk.items = items.into();
        }
        walk.at += bytes.len();
        right
    }

    /// Returns the items of a chunk's next batch, from its header. Bytes after something that is
    /// not its header are no part of the chunk.
    fn next_batch(&self, place: &Place, written: Written, header: &[u8]) -> (Written, Vec<Item>) {
        let mut items = Vec::new();
        let over = Written { header: written.end, ..written };
        let Some(chunk) = self.still_there(place, written.chunk) else { return (over, items) };
        let Ok((decoded, entries)) = BatchHeader::decode(header) else { return (over, items) };
        if !self.is_batch_at(&decoded, written.chunk, place, written.header) {
            return (over, items);
        }
        let from = written.header + header.len();
        let seen = written.seen + block_items(chunk, 0, from, entries, &mut items);
        (Written { header: from + decoded.payload as usize * PAGE, seen, ..written }, items)
    }

    /// Returns a chunk if it is still in its place.
    fn still_there(&self, place: &Place, id: ChunkId) -> Option<&Chunk> {
        self.core.space.chunks.get(id).filter(|chunk| chunk.place.is_some_and(|at| at.segment == place.segment && at.page == place.page))
    }

    /// Returns whether all live slots of a place were found.
    pub(crate) fn was_all(&self, skim: &StripScan) -> bool {
        let found = |written: Written| self.still_there(&skim.place, written.chunk).is_none_or(|chunk| chunk.live_count <= written.seen);
        skim.walk.items.is_empty() && skim.walk.written.is_none_or(found)
    }

    /// Returns buffers to the pool.
    pub(crate) fn give_copies(&mut self, copies: Vec<Copy>) {
        copies.into_iter().filter_map(|(_, buf)| buf).for_each(|buf| self.bufs.give(buf));
    }
}
