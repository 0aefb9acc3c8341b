//! Items to check in a place: every block, node, header and object, with the means to verify it.

use std::collections::BTreeSet;
use std::rc::Rc;

use millpond_block::{Buf, Piece};
use millpond_format::{
    Addr, BLOCK_UNITS, BatchHeader, BlockNo, ChunkId, Coding, Item as Entry, NODE_BYTES, NODE_UNITS, Node, ObjectRef, SegmentId, UNIT,
    VolumeId, crc32c,
};

use super::{Place, Scrubbed};
use crate::space::{Chunk, NODE_GRAIN, Piece as DeadPiece};
use crate::store::Store;
use crate::task::Scrubber;
use crate::task::cleaner::Moves;

const PAGE: usize = 4096;

/// The way to verify an item.
#[derive(Debug)]
enum Check {
    /// A block with this checksum.
    Block(u32, VolumeId, BlockNo),
    Node(Addr),
    Object(ObjectRef),
    /// A header, with the bytes of one copy.
    Same(Vec<u8>),
}

/// A range of bytes of a place, and how to verify it.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) from: usize,
    pub(super) bytes: usize,
    check: Check,
}

impl Item {
    fn of<'a>(&self, copy: &'a [u8]) -> Option<&'a [u8]> {
        copy.get(self.from..self.from + self.bytes)
    }

    /// Returns the pages that it is in.
    pub(super) fn pages(&self) -> std::ops::Range<usize> {
        self.from / PAGE..(self.from + self.bytes).div_ceil(PAGE)
    }

    pub(super) fn is_right(&self, copy: Option<&Buf>) -> bool {
        copy.and_then(|buf| self.of(buf.bytes())).is_some_and(|bytes| self.matches(bytes))
    }

    /// Returns whether these are the right bytes.
    pub(super) fn matches(&self, bytes: &[u8]) -> bool {
        match &self.check {
            Check::Block(crc, ..) => crc32c(bytes) == *crc,
            Check::Node(addr) => Node::checksum_at(bytes, *addr).is_some(),
            Check::Object(at) => crc32c(bytes) == at.crc,
            Check::Same(right) => bytes == right,
        }
    }
}

/// A copy of a place, or a column of it with parity.
pub(super) type Copy = (usize, Option<Buf>);

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
    for entry in entries {
        let Entry::Blocks { volume, block, stored } = entry else { continue };
        for (i, (crc, units, _)) in (0u64..).zip(stored) {
            let bytes = usize::from(units) * UNIT;
            let slot = ((from - base) / UNIT) as u32 / grain;
            if chunk.live.get(slot) {
                seen += u32::from(units) / grain;
                items.push(Item { from, bytes, check: Check::Block(crc, volume, BlockNo(block.0 + i)) });
            }
            from += bytes;
        }
    }
    seen
}

impl Scrubber {
    /// Checks the copies of a place, and repairs wrong ones.
    pub(super) fn judge(&mut self, store: &mut Store, place: &Place, copies: &[Copy]) {
        let (items, unknown) = store.items(place, copies);
        self.lose_unknown(unknown);
        let mut lost = Vec::new();
        let mut wrong: Vec<(usize, Vec<&Item>)> = Vec::new();
        for item in &items {
            let bad: Vec<usize> = (0..copies.len()).filter(|at| !item.is_right(copies.get(*at).and_then(|copy| copy.1.as_ref()))).collect();
            let page = place.page + (item.from / PAGE) as u32;
            for at in &bad {
                // a read that failed was counted when it ended
                if let Some((copy, Some(_))) = copies.get(*at) {
                    self.count_scrub_error(store, place.segment, page, *copy);
                }
            }
            if bad.len() < copies.len() {
                for at in bad {
                    match wrong.iter_mut().find(|(other, _)| *other == at) {
                        Some((_, items)) => items.push(item),
                        None => wrong.push((at, vec![item])),
                    }
                }
                continue;
            }
            lost.push(item);
        }
        for (at, items) in wrong {
            self.mend(store, place, copies, at, &items);
        }
        self.lose(store, &lost);
    }

    /// Rewrites the pages of one copy that have wrong items: right bytes stay, the others come from
    /// other copies.
    fn mend(&mut self, store: &mut Store, place: &Place, copies: &[Copy], at: usize, items: &[&Item]) {
        let bytes = place.pages as usize * PAGE;
        let base = copies.get(at).into_iter().chain(copies).find_map(|(_, buf)| buf.as_ref()?.bytes().get(..bytes));
        let (Some(base), Some((copy, _))) = (base, copies.get(at)) else { return };
        let mut whole = store.bufs.take(bytes);
        if let Some(to) = whole.bytes_mut().get_mut(..bytes) {
            to.copy_from_slice(base);
        }
        let mut pages: Vec<(usize, usize)> = Vec::new();
        for item in items {
            let right =
                copies.iter().find_map(|(_, buf)| buf.as_ref().filter(|buf| item.is_right(Some(buf))).and_then(|buf| item.of(buf.bytes())));
            let (Some(right), Some(to)) = (right, whole.bytes_mut().get_mut(item.from..item.from + item.bytes)) else { continue };
            to.copy_from_slice(right);
            pages.push((item.pages().start, item.pages().end));
        }
        pages.sort_unstable();
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for (first, end) in pages {
            match runs.last_mut().filter(|run| first <= run.1) {
                Some(run) => run.1 = run.1.max(end),
                None => runs.push((first, end)),
            }
        }
        let (Some(member), whole) = (store.core.space.rows.copies(place.segment).nth(*copy), Rc::new(whole)) else { return };
        for (first, end) in runs {
            let piece = Piece::new(Rc::clone(&whole), first * PAGE..end * PAGE);
            store.repair(member, place.segment, place.page + first as u32, piece);
            self.found.iter_mut().for_each(|found| found.repaired += 1);
        }
    }
}

impl Scrubber {
    /// Records items without a good copy as lost.
    pub(super) fn lose(&mut self, store: &mut Store, items: &[&Item]) {
        let mut objects = Vec::new();
        for item in items {
            let Some(found) = &mut self.found else { continue };
            match &item.check {
                Check::Block(_, volume, block) => found.lose_block(*volume, *block),
                Check::Node(_) => found.lose_node(),
                Check::Object(at) => objects.push(*at),
                Check::Same(_) => {}
            }
        }
        self.write_objects_again(store, &objects);
    }

    /// Records `count` blocks that cannot be identified as lost.
    pub(super) fn lose_unknown(&mut self, count: u64) {
        if let Some(found) = self.found.as_mut().filter(|_| count > 0) {
            found.lose_unknown(count);
            found.errors += 1;
        }
    }

    /// Has the next checkpoint rewrite objects without a good copy elsewhere: their content is in
    /// memory. Of a piece of a deadlist only the index of its epochs may be in memory: then the
    /// blocks that it names are not freed.
    fn write_objects_again(&mut self, store: &mut Store, lost: &[ObjectRef]) {
        let places: BTreeSet<(SegmentId, u32)> = lost.iter().map(|at| (at.segment, at.offset)).collect();
        let pieces = store.core.catalog.deadlists().flat_map(|list| list.list().pieces());
        let here = |piece: &Rc<DeadPiece>| piece.stored().is_some_and(|at| places.contains(&(at.segment, at.offset)));
        let gone = pieces.filter(here).filter(|piece| !piece.spoil()).filter_map(|piece| piece.stored());
        let gone: BTreeSet<(SegmentId, u32)> = gone.map(|at| (at.segment, at.offset)).collect();
        gone.iter().for_each(|_| self.found.iter_mut().for_each(Scrubbed::lose_node));
        let lost: Vec<ObjectRef> = lost.iter().filter(|at| !gone.contains(&(at.segment, at.offset))).copied().collect();
        if lost.is_empty() {
            return;
        }
        store.rewrite_objects(|at| lost.iter().any(|gone| (gone.segment, gone.offset) == (at.segment, at.offset)));
        store.checkpoint.forced = true;
        self.found.iter_mut().for_each(|found| found.repaired += lost.len() as u64);
    }
}

impl Store {
    /// Returns the items of a place, and the number of live blocks that cannot be identified.
    pub(super) fn items(&self, place: &Place, copies: &[Copy]) -> (Vec<Item>, u64) {
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
        let seen = if chunk.identities == u32::MAX {
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
    pub(super) fn is_batch_at(&self, header: &BatchHeader, chunk: ChunkId, place: &Place, at: usize) -> bool {
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
}
