//! Deadlists: what died between two versions of a volume, by epoch of birth and chunk.

use std::collections::BTreeMap;
use std::ops::Bound;

use millpond_format::{Addr, ChunkId, DeadRecord, Encoder, Epoch, FormatError};

use super::slots::Slots;

/// Dead slots of one chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dead {
    pub(crate) slots: Slots,
    /// Units of data blocks among them.
    pub(crate) units: u32,
}

/// A set of addresses ordered by the epoch they were born in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Deadlist {
    entries: BTreeMap<(Epoch, ChunkId), Dead>,
    /// Units of data blocks in all of it.
    units: u64,
}

impl Deadlist {
    /// Adds an address; `slots` of its chunk from its slot on. `data`: it counts as guest data.
    pub(crate) fn insert(&mut self, epoch: Epoch, addr: Addr, slots: u32, data: bool) {
        let dead = self.entries.entry((epoch, addr.chunk())).or_default();
        for slot in addr.slot()..addr.slot() + slots {
            let fresh = dead.slots.insert(slot);
            assert!(fresh, "INV-SPACE-1: {addr:?} died twice");
        }
        if data {
            dead.units += addr.units();
            self.units += u64::from(addr.units());
        }
    }

    /// Takes out everything born after `epoch`.
    pub(crate) fn split_after(&mut self, epoch: Epoch) -> Deadlist {
        let entries = self.entries.split_off(&(Epoch(epoch.0 + 1), ChunkId(0)));
        let units = entries.values().map(|dead| u64::from(dead.units)).sum();
        self.units -= units;
        Deadlist { entries, units }
    }

    /// Adds all of `other`, moving the smaller into the larger.
    pub(crate) fn merge(&mut self, mut other: Deadlist) {
        if other.entries.len() > self.entries.len() {
            std::mem::swap(&mut self.entries, &mut other.entries);
        }
        self.units += other.units;
        for (key, dead) in other.entries {
            let mine = self.entries.entry(key).or_default();
            mine.slots.union(&dead.slots);
            mine.units += dead.units;
        }
    }

    /// Takes the first chunk's part out.
    pub(crate) fn pop(&mut self) -> Option<(ChunkId, Dead)> {
        let ((_, chunk), dead) = self.entries.pop_first()?;
        self.units -= u64::from(dead.units);
        Some((chunk, dead))
    }

    /// Number of chunks in it.
    pub(crate) fn chunks(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Epoch, ChunkId, &Dead)> {
        self.entries.iter().map(|((epoch, chunk), dead)| (*epoch, *chunk, dead))
    }

    /// Units of guest data in it.
    pub(crate) fn units(&self) -> u64 {
        self.units
    }

    /// Units of guest data born after `epoch`.
    pub(crate) fn units_after(&self, epoch: Epoch) -> u64 {
        let after = (Bound::Included((Epoch(epoch.0 + 1), ChunkId(0))), Bound::Unbounded);
        self.entries.range(after).map(|(_, dead)| u64::from(dead.units)).sum()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::default();
        for (epoch, chunk, dead) in self.iter() {
            DeadRecord { epoch, chunk, units: dead.units, slots: dead.slots.words().to_vec() }.encode(&mut e);
        }
        e.into_bytes()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Deadlist, FormatError> {
        let records = DeadRecord::decode_list(bytes)?;
        let entries =
            records.into_iter().map(|r| ((r.epoch, r.chunk), Dead { slots: Slots::from_words(r.slots), units: r.units })).collect();
        let mut list = Deadlist { entries, units: 0 };
        list.units = list.entries.values().map(|dead| u64::from(dead.units)).sum();
        Ok(list)
    }
}
