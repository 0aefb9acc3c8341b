//! The chunk table: the place of each chunk, its live slots, and its forwards.
//!
//! A slot is *used* when it is live, that is here, at the place of the chunk, or forwarded: its block
//! was gathered into another chunk, and its address stays (INV-FORWARD-1).

use std::collections::{BTreeMap, BTreeSet};

use millpond_format::{Addr, CHUNKS_PER_PAGE, ChunkId, ChunkRecord, Encoder, Epoch, Move, NO_SEGMENT, NODE_UNITS, ObjectRef, SegmentId};

use super::forwards::Forwards;
use super::pages::Pages;
use super::slots::Slots;

/// Grain of chunks of nodes, in units.
pub(crate) const NODE_GRAIN: u8 = NODE_UNITS as u8;
/// Value of [`ChunkTable::seals`] for a chunk whose page was not marked as changed yet.
const NEVER_LISTED: u64 = u64::MAX;

/// Place of a chunk: segment, and the page in it where slot 0 would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) segment: SegmentId,
    pub(crate) page: u32,
}

/// Slots that a moved chunk still has, with a rank index (slots before each word).
#[derive(Clone, Debug)]
pub(crate) struct Present {
    slots: Slots,
    before: Vec<u16>,
}

impl Present {
    fn new(slots: Slots) -> Present {
        let mut sum = 0u32;
        let before = slots
            .words()
            .iter()
            .map(|word| {
                let here = u16::try_from(sum).unwrap_or(u16::MAX);
                sum += word.count_ones();
                here
            })
            .collect();
        Present { slots, before }
    }

    fn rank(&self, slot: u32) -> Option<u32> {
        if !self.slots.get(slot) {
            return None;
        }
        let word = (slot >> 6) as usize;
        let bits = self.slots.words().get(word)? & ((1u64 << (slot & 63)) - 1);
        Some(u32::from(*self.before.get(word)?) + bits.count_ones())
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    pub(crate) epoch: Epoch,
    /// Write clock, in blocks, when it was begun.
    pub(crate) birth: u64,
    /// Lifetime class: the stream that wrote it.
    pub(crate) class: u8,
    /// Units per slot.
    pub(crate) grain: u8,
    /// `None` for a chunk of nodes that was not written yet, and for one whose used slots are all
    /// forwarded.
    pub(crate) place: Option<Place>,
    /// Page of the header with the identities of a moved chunk; `None`: each batch has its own
    /// header, or nodes identify themselves.
    pub(crate) identities: Option<u32>,
    /// Slots in use so far.
    pub(crate) slots: u32,
    /// Slots whose blocks are needed and are here.
    pub(crate) live: Slots,
    pub(crate) live_count: u32,
    present: Option<Present>,
    /// Slots whose blocks are needed and are in another chunk; `None`: there are none.
    forwards: Option<Box<Forwards>>,
    /// True while it is appended to: it is kept even without live slots.
    pub(crate) open: bool,
    /// Value of [`ChunkTable::seals`] when its page was last marked as changed.
    listed: u64,
}

impl Chunk {
    pub(crate) fn new(epoch: Epoch, birth: u64, class: u8, grain: u8) -> Chunk {
        Chunk {
            epoch,
            birth,
            class,
            grain,
            place: None,
            identities: None,
            slots: 0,
            live: Slots::default(),
            live_count: 0,
            present: None,
            forwards: None,
            open: true,
            listed: NEVER_LISTED,
        }
    }

    /// Units from the chunk's base to a slot; `None` when a move left the slot behind.
    pub(crate) fn unit_of(&self, slot: u32) -> Option<u32> {
        let index = match &self.present {
            None => slot,
            Some(present) => present.rank(slot)?,
        };
        Some(index * u32::from(self.grain))
    }

    /// Units that the chunk occupies from its base.
    pub(crate) fn extent_units(&self) -> u32 {
        let slots = self.present.as_ref().map_or(self.slots, |present| present.slots.count());
        slots * u32::from(self.grain)
    }

    /// Units that its live slots take wherever they are moved: whole pages.
    pub(crate) fn footprint(&self) -> u32 {
        (self.live_count * u32::from(self.grain)).next_multiple_of(8)
    }

    /// Number of slots that `addr` covers.
    pub(crate) fn slots_of(&self, addr: Addr) -> u32 {
        addr.units() / u32::from(self.grain)
    }

    /// Sets the slots that the chunk has from now on.
    pub(crate) fn set_present(&mut self, slots: Slots) {
        self.live.intersect(&slots);
        self.live_count = self.live.count();
        self.present = Some(Present::new(slots));
    }

    pub(crate) fn has_all(&self) -> bool {
        self.present.is_none()
    }

    /// Returns the address of a slot's block in another chunk, if it was gathered.
    #[inline]
    pub(crate) fn forward_of(&self, slot: u32) -> Option<Addr> {
        self.forwards.as_ref()?.get(slot)
    }

    /// Number of forwarded slots.
    pub(crate) fn forward_count(&self) -> usize {
        self.forwards.as_ref().map_or(0, |forwards| forwards.len())
    }

    /// The forwarded slots, and the addresses of their blocks.
    pub(crate) fn forwards(&self) -> impl Iterator<Item = (u32, Addr)> + '_ {
        self.forwards.iter().flat_map(|forwards| forwards.iter())
    }

    /// True when the block of a slot is needed, here or elsewhere.
    pub(crate) fn uses(&self, slot: u32) -> bool {
        self.live.get(slot) || self.forward_of(slot).is_some()
    }

    /// True when some slot is needed, here or elsewhere.
    pub(crate) fn is_used(&self) -> bool {
        self.live_count > 0 || self.forwards.is_some()
    }

    /// Sets the target of a slot that is not live any more; returns the one that it had.
    pub(super) fn set_forward(&mut self, slot: u32, target: Addr) -> Option<Addr> {
        self.forwards.get_or_insert_default().insert(slot, target)
    }

    /// Removes the forward of a slot; returns its target.
    pub(super) fn take_forward(&mut self, slot: u32) -> Option<Addr> {
        let forwards = self.forwards.as_mut()?;
        let target = forwards.remove(slot);
        if forwards.len() == 0 {
            self.forwards = None;
        }
        target
    }

    /// Gives up the place, where nothing is that is needed.
    pub(super) fn vacate(&mut self) -> Option<Place> {
        (self.identities, self.present) = (None, None);
        self.place.take()
    }

    /// True when the chunk is at the place of this move, whose payload begins at page `payload`.
    pub(crate) fn is_moved_by(&self, moved: &Move, payload: u32) -> bool {
        let here = self.place.is_some_and(|place| place.page == payload + moved.at);
        let kept = self.present.as_ref().is_some_and(|present| present.slots.iter().eq(Slots::from_words(moved.present.clone()).iter()));
        here && kept && self.grain == moved.grain
    }
}

/// All chunks, in pages as checkpoints store them.
#[derive(Debug, Default)]
pub(crate) struct ChunkTable {
    chunks: Pages<Chunk>,
    /// Number of chunks with a slot for each unit (compressed blocks).
    packed: usize,
    /// Number of forwards of all chunks, and of the chunks that have any.
    forwards: usize,
    forward_sources: usize,
    /// A planted bug: chunks whose blocks are all elsewhere are in no checkpoint.
    pub(crate) forgets_forwarded: bool,
    /// Place of each page in the last checkpoint; `None` for pages that were in none.
    stored: BTreeMap<u64, Option<ObjectRef>>,
    dirty: BTreeSet<u64>,
    /// Number of checkpoints fixed so far.
    seals: u64,
    /// Pages that the running checkpoint has not encoded yet. They are encoded before they change.
    sealing: BTreeSet<u64>,
    /// Pages that changed after the running checkpoint was fixed, encoded as they were before.
    encoded: Vec<(u64, Vec<u8>)>,
}

fn page_of(id: ChunkId) -> u64 {
    id.0 / CHUNKS_PER_PAGE
}

impl ChunkTable {
    pub(crate) fn get(&self, id: ChunkId) -> Option<&Chunk> {
        self.chunks.get(id.0)
    }

    /// Returns a chunk for changing it: its page goes into the next checkpoint.
    pub(crate) fn get_mut(&mut self, id: ChunkId) -> Option<&mut Chunk> {
        let at = self.chunks.find(id.0)?;
        if self.chunks.at(at)?.listed != self.seals {
            self.mark(page_of(id));
        }
        let chunk = self.chunks.at_mut(at)?;
        chunk.listed = self.seals;
        Some(chunk)
    }

    /// Marks a page before it changes.
    fn mark(&mut self, page: u64) {
        if self.sealing.remove(&page) {
            self.encoded.push((page, self.encode_page(page)));
        }
        self.dirty.insert(page);
    }

    pub(crate) fn insert(&mut self, id: ChunkId, chunk: Chunk) {
        self.mark(page_of(id));
        self.packed += usize::from(chunk.grain == 1);
        let old = self.chunks.insert(id.0, chunk);
        assert!(old.is_none(), "I11: chunk {id} used twice");
    }

    pub(crate) fn remove(&mut self, id: ChunkId) -> Option<Chunk> {
        self.mark(page_of(id));
        let chunk = self.chunks.remove(id.0);
        self.packed -= usize::from(chunk.as_ref().is_some_and(|chunk| chunk.grain == 1));
        chunk
    }

    pub(crate) fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Number of chunks with a slot for each unit (compressed blocks).
    pub(crate) fn packed(&self) -> usize {
        self.packed
    }

    /// Number of forwards of all chunks.
    pub(crate) fn forwards(&self) -> usize {
        self.forwards
    }

    /// Number of chunks that have forwards.
    pub(crate) fn forward_sources(&self) -> usize {
        self.forward_sources
    }

    /// Counts the forwards of a chunk again, which had `before`.
    pub(super) fn count_forwards(&mut self, before: usize, now: usize) {
        self.forwards = self.forwards - before + now;
        self.forward_sources = self.forward_sources - usize::from(before > 0) + usize::from(now > 0);
    }

    /// True while pages of a running checkpoint are still to be encoded.
    pub(crate) fn is_sealing(&self) -> bool {
        !self.sealing.is_empty()
    }

    /// Number of pages that a checkpoint has or that wait for one.
    pub(crate) fn pages(&self) -> usize {
        self.stored.len()
    }

    /// Ids in order: for audits and recovery, not for the data path.
    pub(crate) fn ids(&self) -> Vec<ChunkId> {
        self.chunks.numbers().into_iter().map(ChunkId).collect()
    }

    /// Fixes the pages that changed since the last call; the checkpoint fetches them one by one
    /// with [`next_sealed`](Self::next_sealed).
    pub(crate) fn seal(&mut self) {
        assert!(self.sealing.is_empty() && self.encoded.is_empty(), "INV-CKPT-1: one checkpoint at a time");
        self.sealing = std::mem::take(&mut self.dirty);
        self.seals += 1;
    }

    /// Returns the next fixed page, encoded as it was then: number and bytes (empty: the page has
    /// no chunks any more).
    pub(crate) fn next_sealed(&mut self) -> Option<(u64, Vec<u8>)> {
        let early = self.encoded.pop();
        early.or_else(|| self.sealing.pop_first().map(|page| (page, self.encode_page(page))))
    }

    fn encode_page(&self, page: u64) -> Vec<u8> {
        let mut e = Encoder::with_capacity(CHUNKS_PER_PAGE as usize * 192);
        for (id, chunk) in self.chunks.page(page) {
            let place = match chunk.place {
                Some(place) => place,
                None if chunk.forwards.is_some() && !self.forgets_forwarded => Place { segment: NO_SEGMENT, page: 0 },
                None => continue,
            };
            let forwards = chunk.forwards.as_deref();
            ChunkRecord {
                chunk: ChunkId(id),
                epoch: chunk.epoch,
                birth: chunk.birth,
                segment: place.segment,
                base: place.page,
                identities: chunk.identities.unwrap_or(ChunkRecord::IN_LINE),
                grain: chunk.grain,
                class: chunk.class,
                slots: chunk.slots,
                live: chunk.live.words().into(),
                present: chunk.present.as_ref().map_or(&[][..], |p| p.slots.words()).into(),
                forwarded: forwards.map_or(&[][..], |f| f.slots().words()).into(),
                targets: forwards.map_or(&[][..], |f| f.targets()).into(),
            }
            .encode(&mut e);
        }
        e.into_bytes()
    }

    /// Sets the place of a page, and returns the old one.
    pub(crate) fn set_stored(&mut self, page: u64, at: Option<ObjectRef>) -> Option<ObjectRef> {
        match at {
            Some(at) => self.stored.insert(page, Some(at)).flatten(),
            None => self.stored.remove(&page).flatten(),
        }
    }

    /// The directory of stored pages.
    pub(crate) fn stored(&self) -> impl Iterator<Item = (u64, ObjectRef)> + '_ {
        self.stored.iter().filter_map(|(page, at)| at.map(|at| (*page, at)))
    }

    /// Number of pages that the next checkpoint writes.
    pub(crate) fn dirty_pages(&self) -> usize {
        self.dirty.len()
    }

    /// True when the next checkpoint writes the page of this chunk.
    pub(crate) fn changes_with(&self, id: ChunkId) -> bool {
        self.is_dirty(page_of(id))
    }

    /// True when the next checkpoint writes this page.
    pub(crate) fn is_dirty(&self, page: u64) -> bool {
        self.dirty.contains(&page)
    }

    /// Bytes of each page that the next checkpoint writes. Encodes all of them.
    pub(crate) fn dirty_lengths(&self) -> impl Iterator<Item = usize> + '_ {
        self.dirty.iter().map(|page| self.encode_page(*page).len())
    }

    /// Makes the next checkpoint write this page.
    pub(crate) fn dirty_page(&mut self, page: u64) {
        self.dirty.insert(page);
    }

    /// Loads a page from a checkpoint.
    pub(crate) fn load(&mut self, page: u64, at: ObjectRef, records: Vec<ChunkRecord<'_>>) {
        self.stored.insert(page, Some(at));
        for r in records {
            let live = Slots::from_words(r.live.into_owned());
            let mut chunk = Chunk::new(r.epoch, r.birth, r.class, r.grain);
            chunk.place = Some(Place { segment: r.segment, page: r.base }).filter(|_| r.segment != NO_SEGMENT);
            chunk.identities = Some(r.identities).filter(|page| *page != ChunkRecord::IN_LINE);
            chunk.slots = r.slots;
            chunk.open = false;
            chunk.live_count = live.count();
            chunk.live = live;
            if !r.present.is_empty() {
                chunk.present = Some(Present::new(Slots::from_words(r.present.into_owned())));
            }
            if !r.targets.is_empty() {
                self.count_forwards(0, r.targets.len());
                chunk.forwards = Some(Box::new(Forwards::from_record(r.forwarded.into_owned(), r.targets.into_owned())));
            }
            self.packed += usize::from(chunk.grain == 1);
            self.chunks.insert(r.chunk.0, chunk);
        }
    }
}

#[cfg(test)]
mod tests;
