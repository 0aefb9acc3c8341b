//! Deadlists: what died between two versions of a volume, by epoch of birth and chunk.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;
use std::rc::Rc;

use millpond_format::{Addr, ChunkId, DeadRecord, Encoder, Epoch, FormatError};

use super::slots::Slots;

/// Dead slots of one chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dead {
    pub(crate) slots: Slots,
    /// Units of data blocks among them.
    pub(crate) units: u32,
}

/// Chunks with neighbouring ids, of one epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Group {
    chunks: BTreeMap<ChunkId, Dead>,
    units: u64,
}

/// Bytes of the record of a chunk of which little died.
const RECORD_BYTES: usize = 40;
/// Chunk ids of one group: so many are copied when a list that a checkpoint still has to write changes.
const GROUP: u64 = 64;

/// A set of addresses ordered by the epoch they were born in. Its groups are shared by its copies until they change, and lists are split
/// and merged by whole groups where they can: a list may have as many chunks as the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Deadlist {
    groups: BTreeMap<(Epoch, u64), Rc<Group>>,
    chunks: usize,
    /// Units of data blocks in all of it.
    units: u64,
}

impl Deadlist {
    fn of(groups: BTreeMap<(Epoch, u64), Rc<Group>>) -> Deadlist {
        let chunks = groups.values().map(|group| group.chunks.len()).sum();
        let units = groups.values().map(|group| group.units).sum();
        Deadlist { groups, chunks, units }
    }

    /// The group of a chunk, to be changed.
    fn group(&mut self, epoch: Epoch, chunk: ChunkId) -> &mut Group {
        Rc::make_mut(self.groups.entry((epoch, chunk.0 / GROUP)).or_default())
    }

    /// Adds an address; `slots` of its chunk from its slot on. `data`: it counts as guest data.
    pub(crate) fn insert(&mut self, epoch: Epoch, addr: Addr, slots: u32, data: bool) {
        let units = if data { addr.units() } else { 0 };
        let group = self.group(epoch, addr.chunk());
        let before = group.chunks.len();
        let dead = group.chunks.entry(addr.chunk()).or_default();
        for slot in addr.slot()..addr.slot() + slots {
            let fresh = dead.slots.insert(slot);
            assert!(fresh, "INV-SPACE-1: {addr:?} died twice");
        }
        dead.units += units;
        group.units += u64::from(units);
        self.chunks += self.group(epoch, addr.chunk()).chunks.len() - before;
        self.units += u64::from(units);
    }

    /// Takes out everything born after `epoch`.
    pub(crate) fn split_after(&mut self, epoch: Epoch) -> Deadlist {
        let after = Deadlist::of(self.groups.split_off(&(Epoch(epoch.0 + 1), 0)));
        self.units -= after.units;
        self.chunks -= after.chunks;
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
                    self.chunks += theirs.chunks.len();
                    place.insert(theirs);
                    continue;
                }
                Entry::Occupied(mine) => Rc::make_mut(mine.into_mut()),
            };
            let theirs = Rc::unwrap_or_clone(theirs);
            let before = mine.chunks.len();
            mine.units += theirs.units;
            for (chunk, dead) in theirs.chunks {
                let into = mine.chunks.entry(chunk).or_default();
                into.slots.union(&dead.slots);
                into.units += dead.units;
            }
            self.chunks += mine.chunks.len() - before;
        }
    }

    /// Takes the first chunk's part out.
    pub(crate) fn pop(&mut self) -> Option<(ChunkId, Dead)> {
        let mut first = self.groups.first_entry()?;
        let group = Rc::make_mut(first.get_mut());
        let popped = group.chunks.pop_first();
        let units = popped.as_ref().map_or(0, |(_, dead)| u64::from(dead.units));
        group.units -= units;
        if group.chunks.is_empty() {
            first.remove();
        }
        self.units -= units;
        self.chunks -= usize::from(popped.is_some());
        popped
    }

    /// Number of chunks in it.
    pub(crate) fn chunks(&self) -> usize {
        self.chunks
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Epoch, ChunkId, &Dead)> {
        self.groups.iter().flat_map(|((epoch, _), group)| group.chunks.iter().map(|(chunk, dead)| (*epoch, *chunk, dead)))
    }

    /// Units of guest data in it.
    pub(crate) fn units(&self) -> u64 {
        self.units
    }

    /// Units of guest data born after `epoch`.
    pub(crate) fn units_after(&self, epoch: Epoch) -> u64 {
        let after = (Bound::Included((Epoch(epoch.0 + 1), 0)), Bound::Unbounded);
        self.groups.range(after).map(|(_, group)| group.units).sum()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::with_capacity(self.chunks * RECORD_BYTES);
        for (epoch, chunk, dead) in self.iter() {
            DeadRecord { epoch, chunk, units: dead.units, slots: dead.slots.words().into() }.encode(&mut e);
        }
        e.into_bytes()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Deadlist, FormatError> {
        let mut list = Deadlist::default();
        for r in DeadRecord::decode_list(bytes)? {
            let group = list.group(r.epoch, r.chunk);
            group.units += u64::from(r.units);
            group.chunks.insert(r.chunk, Dead { slots: Slots::from_words(r.slots.into_owned()), units: r.units });
        }
        Ok(Deadlist::of(list.groups))
    }
}
