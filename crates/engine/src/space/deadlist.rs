//! Deadlists: what died between two versions of a volume, by chunk.
//!
//! A write to a volume with snapshots adds to a list, so that costs one look into a small tree; most chunks have only few dead slots in one
//! list, so these take little memory. Chunks with neighbouring ids were mostly born in neighbouring epochs (but not always: replay gives
//! nodes new ids), so lists are split by whole groups of chunks where they can.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::rc::Rc;

use millpond_format::{Addr, ChunkId, DeadRecord, Encoder, Epoch, FormatError};
use smallvec::SmallVec;

use super::slots::slots_in;

/// Slots in a window of words that grows at both ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeadSlots {
    /// The slot of the window's first bit, in words.
    first: u32,
    words: SmallVec<[u64; 2]>,
}

impl DeadSlots {
    /// Makes the window hold the words from `first` up to `end`.
    fn cover(&mut self, first: u32, end: u32) {
        if self.words.is_empty() {
            self.first = first;
        }
        if first < self.first {
            self.words.insert_many(0, (first..self.first).map(|_| 0));
            self.first = first;
        }
        let length = (end - self.first) as usize;
        if length > self.words.len() {
            self.words.resize(length, 0);
        }
    }

    /// Adds `count` slots from `start` on; false when one of them was there.
    fn insert(&mut self, start: u32, count: u32) -> bool {
        self.cover(start >> 6, (start + count).div_ceil(64));
        let mut fresh = true;
        for slot in start..start + count {
            let bit = 1u64 << (slot & 63);
            if let Some(word) = self.words.get_mut(((slot >> 6) - self.first) as usize) {
                fresh &= *word & bit == 0;
                *word |= bit;
            }
        }
        fresh
    }

    fn union(&mut self, other: &DeadSlots) {
        self.cover(other.first, other.first + other.words.len() as u32);
        let offset = (other.first - self.first) as usize;
        self.words.iter_mut().skip(offset).zip(&other.words).for_each(|(a, b)| *a |= b);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        slots_in(&self.words, self.first)
    }
}

/// Dead slots of one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dead {
    pub(crate) epoch: Epoch,
    pub(crate) slots: DeadSlots,
    /// Units of data blocks among them.
    pub(crate) units: u32,
}

/// Chunk ids of one group: so many are copied when a list that a checkpoint still has to write changes.
const GROUP: u64 = 64;

/// Chunks with neighbouring ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Group {
    /// A bit for each id.
    present: u64,
    /// In order of ids.
    dead: Vec<Dead>,
    /// All were born from the first to the second.
    epochs: (Epoch, Epoch),
    units: u64,
    /// Words of all bitmaps.
    words: usize,
}

impl Group {
    /// Where a chunk is among the others, or would be; and whether it is there.
    fn find(&self, chunk: ChunkId) -> (usize, bool) {
        let bit = 1u64 << (chunk.0 % GROUP);
        ((self.present & (bit - 1)).count_ones() as usize, self.present & bit != 0)
    }

    /// The part of a chunk; made when it is not there.
    fn part(&mut self, chunk: ChunkId, epoch: Epoch) -> Option<&mut Dead> {
        let (at, there) = self.find(chunk);
        if !there {
            let (from, to) = if self.dead.is_empty() { (epoch, epoch) } else { self.epochs };
            self.epochs = (from.min(epoch), to.max(epoch));
            self.dead.insert(at, Dead { epoch, slots: DeadSlots::default(), units: 0 });
            self.present |= 1 << (chunk.0 % GROUP);
        }
        self.dead.get_mut(at)
    }

    /// Ids in the group, in order.
    fn ids(&self, group: u64) -> impl Iterator<Item = ChunkId> + use<> {
        let present = self.present;
        (0..GROUP).filter(move |bit| present >> bit & 1 == 1).map(move |bit| ChunkId(group * GROUP + bit))
    }

    /// Takes out what was born after `epoch`.
    fn split_after(&mut self, epoch: Epoch, key: u64) -> Group {
        let (mut old, mut young) = (Group::default(), Group::default());
        let ids = self.ids(key);
        for (chunk, dead) in ids.zip(std::mem::take(&mut self.dead)) {
            let to = if dead.epoch > epoch { &mut young } else { &mut old };
            to.units += u64::from(dead.units);
            to.words += dead.slots.words.len();
            if let Some(part) = to.part(chunk, dead.epoch) {
                *part = dead;
            }
        }
        *self = old;
        young
    }
}

/// A set of addresses. Its groups are shared by its copies until they change, and lists are split and merged by whole groups where they can:
/// a list may have as many chunks as the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Deadlist {
    groups: BTreeMap<u64, Rc<Group>>,
    chunks: usize,
    /// Units of data blocks in all of it.
    units: u64,
    /// Words of all bitmaps.
    words: usize,
}

impl Deadlist {
    fn of(groups: BTreeMap<u64, Rc<Group>>) -> Deadlist {
        let chunks = groups.values().map(|group| group.dead.len()).sum();
        let units = groups.values().map(|group| group.units).sum();
        let words = groups.values().map(|group| group.words).sum();
        Deadlist { groups, chunks, units, words }
    }

    /// Adds an address; `slots` of its chunk from its slot on. `data`: it counts as guest data.
    pub(crate) fn insert(&mut self, epoch: Epoch, addr: Addr, slots: u32, data: bool) {
        let chunk = addr.chunk();
        let units = if data { addr.units() } else { 0 };
        let group = Rc::make_mut(self.groups.entry(chunk.0 / GROUP).or_default());
        group.units += u64::from(units);
        self.units += u64::from(units);
        self.chunks += usize::from(!group.find(chunk).1);
        let Some(dead) = group.part(chunk, epoch) else { return };
        dead.units += units;
        let before = dead.slots.words.len();
        let fresh = dead.slots.insert(addr.slot(), slots);
        let more = dead.slots.words.len() - before;
        group.words += more;
        self.words += more;
        assert!(fresh, "INV-SPACE-1: {addr:?} died twice");
    }

    /// Takes out everything born after `epoch`.
    pub(crate) fn split_after(&mut self, epoch: Epoch) -> Deadlist {
        let mut after = BTreeMap::new();
        let keys: Vec<u64> = self.groups.iter().filter(|(_, group)| group.epochs.1 > epoch).map(|(key, _)| *key).collect();
        for key in keys {
            let Entry::Occupied(mut found) = self.groups.entry(key) else { continue };
            if found.get().epochs.0 > epoch {
                after.insert(key, found.remove());
                continue;
            }
            let group = Rc::make_mut(found.get_mut());
            let young = group.split_after(epoch, key);
            if group.dead.is_empty() {
                found.remove();
            }
            if !young.dead.is_empty() {
                after.insert(key, Rc::new(young));
            }
        }
        let after = Deadlist::of(after);
        self.units -= after.units;
        self.chunks -= after.chunks;
        self.words -= after.words;
        after
    }

    /// Adds all of `other`, moving the smaller into the larger.
    pub(crate) fn merge(&mut self, mut other: Deadlist) {
        if other.groups.len() > self.groups.len() {
            std::mem::swap(self, &mut other);
        }
        self.units += other.units;
        for (key, theirs) in other.groups {
            let mine = match self.groups.entry(key) {
                Entry::Vacant(place) => {
                    self.chunks += theirs.dead.len();
                    self.words += theirs.words;
                    place.insert(theirs);
                    continue;
                }
                Entry::Occupied(mine) => Rc::make_mut(mine.into_mut()),
            };
            let before = mine.dead.len();
            let mut more = 0;
            mine.units += theirs.units;
            for (chunk, dead) in theirs.ids(key).zip(&theirs.dead) {
                if let Some(part) = mine.part(chunk, dead.epoch) {
                    let words = part.slots.words.len();
                    part.slots.union(&dead.slots);
                    part.units += dead.units;
                    more += part.slots.words.len() - words;
                }
            }
            mine.words += more;
            self.words += more;
            self.chunks += mine.dead.len() - before;
        }
    }

    /// Takes the first chunk's part out.
    pub(crate) fn pop(&mut self) -> Option<(ChunkId, Dead)> {
        let mut first = self.groups.first_entry()?;
        let chunk = first.get().ids(*first.key()).next();
        let group = Rc::make_mut(first.get_mut());
        let popped = chunk.map(|chunk| (chunk, group.dead.remove(0)));
        let (units, words) = popped.as_ref().map_or((0, 0), |(_, dead)| (u64::from(dead.units), dead.slots.words.len()));
        group.units -= units;
        group.words -= words;
        group.present &= group.present.wrapping_sub(1);
        if group.dead.is_empty() {
            first.remove();
        }
        self.units -= units;
        self.words -= words;
        self.chunks -= usize::from(popped.is_some());
        popped
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ChunkId, &Dead)> {
        self.groups.iter().flat_map(|(key, group)| group.ids(*key).zip(&group.dead))
    }

    /// Units of guest data in it.
    pub(crate) fn units(&self) -> u64 {
        self.units
    }

    /// Units of guest data born after `epoch`.
    pub(crate) fn units_after(&self, epoch: Epoch) -> u64 {
        let young = self.groups.values().filter(|group| group.epochs.1 > epoch);
        young
            .map(|group| match group.epochs.0 > epoch {
                true => group.units,
                false => group.dead.iter().filter(|dead| dead.epoch > epoch).map(|dead| u64::from(dead.units)).sum(),
            })
            .sum()
    }

    /// Bytes that it takes when it is encoded.
    pub(crate) fn encoded_bytes(&self) -> usize {
        self.chunks * DeadRecord::FIXED + self.words * 8
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::with_capacity(self.encoded_bytes());
        for (chunk, dead) in self.iter() {
            let Dead { epoch, slots, units } = dead;
            DeadRecord { epoch: *epoch, chunk, units: *units, first: slots.first as u16, slots: slots.words.as_slice().into() }
                .encode(&mut e);
        }
        e.into_bytes()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Deadlist, FormatError> {
        let mut groups = BTreeMap::<u64, Rc<Group>>::new();
        for r in DeadRecord::decode_list(bytes)? {
            let group = Rc::make_mut(groups.entry(r.chunk.0 / GROUP).or_default());
            group.units += u64::from(r.units);
            if let Some(part) = group.part(r.chunk, r.epoch) {
                part.units = r.units;
                part.slots = DeadSlots { first: u32::from(r.first), words: SmallVec::from_slice(&r.slots) };
                group.words += r.slots.len();
            }
        }
        Ok(Deadlist::of(groups))
    }
}

#[cfg(test)]
mod tests {
    //! A list against a plain set of what it should hold.

    use std::collections::BTreeSet;

    use millpond_format::Coding;
    use proptest::prelude::*;

    use super::*;

    /// Chunks of an epoch in these tests: some groups have several epochs, some epochs several groups.
    const CHUNKS_PER_EPOCH: u64 = 40;

    /// Mostly in order of chunks.
    fn epoch_of(chunk: u64) -> Epoch {
        Epoch(if chunk.is_multiple_of(7) { chunk % 8 } else { chunk / CHUNKS_PER_EPOCH })
    }

    fn list(set: &BTreeSet<(u64, u32)>) -> Deadlist {
        let mut list = Deadlist::default();
        for (chunk, slot) in set {
            list.insert(epoch_of(*chunk), Addr::new(ChunkId(*chunk), *slot, 8, Coding::Raw), 1, true);
        }
        list
    }

    fn content(list: &Deadlist) -> BTreeSet<(u64, u32)> {
        list.iter().flat_map(|(chunk, dead)| dead.slots.iter().map(move |slot| (chunk.0, slot))).collect()
    }

    fn is_true(list: &Deadlist, set: &BTreeSet<(u64, u32)>) {
        assert_eq!(content(list), *set);
        assert_eq!(list.units(), set.len() as u64 * 8);
        assert_eq!(list.chunks, set.iter().map(|(chunk, _)| chunk).collect::<BTreeSet<_>>().len());
        for epoch in 0..8 {
            let after = set.iter().filter(|(chunk, _)| epoch_of(*chunk) > Epoch(epoch)).count() as u64 * 8;
            assert_eq!(list.units_after(Epoch(epoch)), after, "after {epoch}");
        }
        assert!(list.iter().all(|(chunk, dead)| dead.epoch == epoch_of(chunk.0)));
        assert_eq!(list.encode().len(), list.encoded_bytes());
    }

    proptest! {
        #[test]
        fn a_list_is_a_set(
            all in prop::collection::btree_set((0..250u64, 0..1024u32), 0..300),
            share in 0..100u32,
            epoch in 0..8u64,
        ) {
            let (one, other): (BTreeSet<_>, BTreeSet<_>) = all.iter().partition(|(chunk, slot)| (chunk * 31 + u64::from(*slot)) % 100 < u64::from(share));
            let (mut list, copy) = (list(&one), list(&other));
            is_true(&list, &one);
            is_true(&Deadlist::decode(&list.encode()).expect("its own"), &one);
            let shared = list.clone();
            list.merge(copy);
            is_true(&list, &all);
            is_true(&shared, &one);
            let after = list.split_after(Epoch(epoch));
            let (young, old): (BTreeSet<_>, BTreeSet<_>) = all.iter().partition(|(chunk, _)| epoch_of(*chunk) > Epoch(epoch));
            is_true(&after, &young);
            is_true(&list, &old);
            let mut popped = BTreeSet::new();
            while let Some((chunk, dead)) = list.pop() {
                popped.extend(dead.slots.iter().map(|slot| (chunk.0, slot)));
            }
            prop_assert_eq!(popped, old);
            prop_assert!(list.is_empty() && list.units() == 0 && list.encoded_bytes() == 0);
        }
    }
}
