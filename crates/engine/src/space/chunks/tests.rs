//! Compares the table with a map of plain chunks, page by page as checkpoints write it.

use millpond_format::crc32c;

use super::*;
use millpond_testing::Random;

/// A chunk as the twin knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Plain {
    epoch: Epoch,
    birth: u64,
    class: u8,
    grain: u8,
    place: Option<Place>,
    identities: Option<u32>,
    slots: u32,
    live: BTreeSet<u32>,
    present: Option<BTreeSet<u32>>,
}

/// A bitmap of the slots.
fn slots_of(set: &BTreeSet<u32>) -> Slots {
    let mut slots = Slots::default();
    set.iter().for_each(|slot| assert_eq!(slots.insert_range(*slot, 1), 1));
    slots
}

fn set_of(words: &[u64]) -> BTreeSet<u32> {
    Slots::from_words(words.to_vec()).iter().collect()
}

impl Plain {
    fn unit_of(&self, slot: u32) -> Option<u32> {
        match &self.present {
            None => Some(slot * u32::from(self.grain)),
            Some(present) => present.contains(&slot).then(|| present.range(..slot).count() as u32 * u32::from(self.grain)),
        }
    }

    fn compare(&self, chunk: &Chunk, random: &mut Random) {
        let fields = (chunk.epoch, chunk.birth, chunk.class, chunk.grain, chunk.place, chunk.identities, chunk.slots);
        assert_eq!(fields, (self.epoch, self.birth, self.class, self.grain, self.place, self.identities, self.slots));
        assert_eq!((set_of(chunk.live.words()), chunk.live_count as usize), (self.live.clone(), self.live.len()));
        assert_eq!(chunk.has_all(), self.present.is_none());
        let stored = self.present.as_ref().map_or(self.slots, |present| present.len() as u32);
        assert_eq!(chunk.extent_units(), stored * u32::from(self.grain));
        assert_eq!(chunk.footprint() as usize, (self.live.len() * usize::from(self.grain)).div_ceil(8) * 8);
        for slot in [0, self.slots, random.small(self.slots + 1), random.small(self.slots + 1)] {
            assert_eq!(chunk.unit_of(slot), self.unit_of(slot), "slot {slot} of {self:?}");
        }
    }

    /// Compares it with its record in a page; a chunk without a place has none.
    fn compare_record(&self, record: &ChunkRecord<'_>) {
        let place = Place { segment: record.segment, page: record.base };
        assert_eq!((record.epoch, record.birth, record.class, record.grain), (self.epoch, self.birth, self.class, self.grain));
        assert_eq!((Some(place), record.identities, record.slots), (self.place, self.identities.unwrap_or(u32::MAX), self.slots));
        assert_eq!(set_of(&record.live), self.live);
        assert_eq!(set_of(&record.present), self.present.clone().unwrap_or_default());
    }
}

type Chunks = BTreeMap<ChunkId, Plain>;

struct Twin {
    table: ChunkTable,
    plain: Chunks,
    /// Pages that changed since the last checkpoint was fixed.
    dirty: BTreeSet<u64>,
    /// Chunks and changed pages as they were when the running checkpoint was fixed, without the
    /// pages that it has written.
    sealed: (Chunks, BTreeSet<u64>),
    /// Pages and their content as checkpoints wrote them.
    stored: BTreeMap<u64, (ObjectRef, Vec<u8>)>,
    next: u64,
    random: Random,
}

impl Twin {
    fn any(&mut self) -> Option<ChunkId> {
        self.random.pick(self.plain.keys()).copied()
    }

    fn place(&mut self) -> Place {
        Place { segment: SegmentId(self.random.small(9)), page: self.random.small(1000) }
    }

    fn insert(&mut self) {
        // pages without chunks are left out
        self.next += if self.random.once_in(20) { self.random.below(300) } else { 1 };
        let (id, class) = (ChunkId(self.next), self.random.small(9) as u8);
        let grain = self.random.pick([1, 8, NODE_GRAIN].into_iter()).expect("one of three");
        let (epoch, birth) = (Epoch(1 + self.next / 50), self.next * 3);
        self.table.insert(id, Chunk::new(epoch, birth, class, grain));
        let plain = Plain { epoch, birth, class, grain, place: None, identities: None, slots: 0, live: BTreeSet::new(), present: None };
        assert_eq!(self.plain.insert(id, plain), None);
        self.dirty.insert(page_of(id));
    }

    fn change(&mut self) {
        let Some(id) = self.any() else { return };
        let (place, what) = (self.place(), self.random.below(4));
        let (chunk, plain) = (self.table.get_mut(id).expect("it was inserted"), self.plain.get_mut(&id).expect("it was inserted"));
        self.dirty.insert(page_of(id));
        match what {
            0 => {
                (chunk.place, chunk.identities) = (Some(place), Some(place.page / 2));
                (plain.place, plain.identities) = (Some(place), Some(place.page / 2));
            }
            1 if plain.present.is_none() => {
                let more = self.random.small(150);
                assert_eq!(chunk.live.insert_range(chunk.slots, more), more);
                chunk.slots += more;
                chunk.live_count += more;
                plain.live.extend(plain.slots..plain.slots + more);
                plain.slots += more;
            }
            2 => {
                for _ in 0..self.random.below(40) {
                    let slot = self.random.small(plain.slots + 3);
                    let was = chunk.live.remove(slot);
                    chunk.live_count -= u32::from(was);
                    assert_eq!(was, plain.live.remove(&slot), "slot {slot}");
                }
            }
            _ => {
                // a move copies what lived when it began; some of that died since
                let mut present = plain.live.clone();
                let late = self.random.below(5) as usize;
                let stored = |slot: &u32| plain.present.as_ref().is_none_or(|present| present.contains(slot));
                present.extend((0..plain.slots).filter(stored).take(late));
                // a chunk without any slot is dropped
                if !present.is_empty() {
                    chunk.set_present(slots_of(&present));
                    plain.present = Some(present);
                }
            }
        }
    }

    fn remove(&mut self) {
        let Some(id) = self.any() else { return };
        let (chunk, plain) = (self.table.remove(id).expect("it was inserted"), self.plain.remove(&id).expect("it was inserted"));
        plain.compare(&chunk, &mut self.random);
        self.dirty.insert(page_of(id));
    }

    /// Writes the next page of the running checkpoint, or fixes the next checkpoint.
    fn checkpoint(&mut self) {
        let Some((page, bytes)) = self.table.next_sealed() else {
            assert!(self.sealed.1.is_empty(), "a changed page is not written");
            if self.random.once_in(3) {
                self.table.seal();
                self.sealed = (self.plain.clone(), std::mem::take(&mut self.dirty));
            }
            return;
        };
        assert!(self.sealed.1.remove(&page), "page {page} is written twice");
        let records = ChunkRecord::decode_page(&bytes).expect("its own");
        let ids = ChunkId(page * CHUNKS_PER_PAGE)..ChunkId((page + 1) * CHUNKS_PER_PAGE);
        let plain: Vec<(&ChunkId, &Plain)> = self.sealed.0.range(ids).filter(|(_, plain)| plain.place.is_some()).collect();
        assert!(records.iter().map(|record| &record.chunk).eq(plain.iter().map(|(id, _)| *id)), "page {page}");
        records.iter().zip(&plain).for_each(|(record, (_, plain))| plain.compare_record(record));
        let at = (!bytes.is_empty()).then(|| self.object(&bytes));
        let old = match at {
            Some(at) => self.stored.insert(page, (at, bytes)),
            None => self.stored.remove(&page),
        };
        assert_eq!(self.table.set_stored(page, at), old.map(|(at, _)| at));
    }

    fn object(&mut self, bytes: &[u8]) -> ObjectRef {
        let segment = SegmentId(self.random.small(9));
        ObjectRef { segment, offset: self.random.small(100), length: bytes.len() as u32, crc: crc32c(bytes) }
    }

    /// Finishes the running checkpoint and writes another one, from which the table is loaded.
    fn reload(&mut self) {
        while !self.sealed.1.is_empty() {
            self.checkpoint();
        }
        self.plain.retain(|id, plain| {
            // no import finds a chunk without a place
            let kept = plain.place.is_some();
            if !kept {
                self.table.remove(*id);
                self.dirty.insert(page_of(*id));
            }
            kept
        });
        self.table.seal();
        self.sealed = (self.plain.clone(), std::mem::take(&mut self.dirty));
        while !self.sealed.1.is_empty() {
            self.checkpoint();
        }
        assert_eq!(self.table.next_sealed(), None);
        self.table = ChunkTable::default();
        for (page, (at, bytes)) in &self.stored {
            self.table.load(*page, *at, ChunkRecord::decode_page(bytes).expect("its own"));
        }
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0..5 => self.insert(),
            5..12 => self.change(),
            12..14 => self.remove(),
            14..19 => self.checkpoint(),
            _ if self.random.once_in(8) => self.reload(),
            _ => {
                let page = self.random.below(self.next / CHUNKS_PER_PAGE + 2);
                if self.table.stored().any(|(stored, _)| stored == page) {
                    self.table.dirty_page(page);
                    self.dirty.insert(page);
                }
            }
        }
    }

    fn compare(&mut self) {
        assert_eq!(self.table.len(), self.plain.len());
        assert_eq!(self.table.packed(), self.plain.values().filter(|plain| plain.grain == 1).count());
        assert_eq!(self.table.dirty_pages(), self.dirty.len());
        assert_eq!(self.table.pages(), self.stored.len());
        assert!(self.table.stored().eq(self.stored.iter().map(|(page, (at, _))| (*page, *at))));
        let asked = ChunkId(self.random.below(self.next + 70));
        assert_eq!(self.table.changes_with(asked), self.dirty.contains(&page_of(asked)));
        assert_eq!(self.table.get(asked).is_some(), self.plain.contains_key(&asked));
        for id in [self.any(), self.plain.keys().next_back().copied()].into_iter().flatten() {
            self.plain[&id].compare(self.table.get(id).expect("it was inserted"), &mut self.random);
        }
    }

    fn compare_all(&mut self) {
        assert!(self.table.ids().iter().eq(self.plain.keys()));
        self.plain.iter().for_each(|(id, plain)| plain.compare(self.table.get(*id).expect("it was inserted"), &mut self.random));
        let lengths: Vec<usize> = self.table.dirty_lengths().collect();
        assert_eq!(lengths.len(), self.dirty.len());
        for (page, length) in self.dirty.iter().zip(lengths) {
            let ids = ChunkId(page * CHUNKS_PER_PAGE)..ChunkId((page + 1) * CHUNKS_PER_PAGE);
            assert_eq!(length == 0, self.plain.range(ids).all(|(_, plain)| plain.place.is_none()), "page {page}");
        }
    }
}

/// Compares each page that a checkpoint writes with the chunks as they were when the checkpoint was
/// fixed, while they change.
#[test]
fn a_table_is_a_map_of_chunks() {
    for seed in 0..3 {
        let mut twin = Twin {
            table: ChunkTable::default(),
            plain: Chunks::new(),
            dirty: BTreeSet::new(),
            sealed: Default::default(),
            stored: BTreeMap::new(),
            next: 0,
            random: Random::new(seed),
        };
        for step in 0..2000 {
            twin.step();
            twin.compare();
            if step % 100 == 0 {
                twin.compare_all();
            }
        }
        while let Some(id) = twin.any() {
            twin.table.remove(id);
            twin.plain.remove(&id);
            twin.dirty.insert(page_of(id));
        }
        twin.reload();
        twin.compare_all();
        assert!(twin.stored.is_empty(), "a page without chunks is kept");
    }
}
