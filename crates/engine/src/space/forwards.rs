//! Forwards of a chunk: slots whose blocks were gathered into another chunk, while their addresses
//! stay.

use millpond_format::Addr;

use super::slots::Slots;

/// The forwarded slots of a chunk, and the addresses of their blocks in the order of slots.
#[derive(Clone, Debug, Default)]
pub(crate) struct Forwards {
    slots: Slots,
    targets: Vec<Addr>,
}

impl Forwards {
    /// Takes those of a record: as many targets as slots.
    pub(super) fn from_record(words: Vec<u64>, targets: Vec<Addr>) -> Forwards {
        Forwards { slots: Slots::from_words(words), targets }
    }

    pub(super) fn slots(&self) -> &Slots {
        &self.slots
    }

    pub(super) fn targets(&self) -> &[Addr] {
        &self.targets
    }

    pub(super) fn get(&self, slot: u32) -> Option<Addr> {
        self.targets.get(self.slots.get(slot).then(|| self.slots.rank(slot))?).copied()
    }

    /// Sets the target of a slot; returns the one that it had.
    pub(super) fn insert(&mut self, slot: u32, target: Addr) -> Option<Addr> {
        let rank = self.slots.rank(slot);
        if self.slots.insert_range(slot, 1) == 0 {
            return self.targets.get_mut(rank).map(|old| std::mem::replace(old, target));
        }
        self.targets.insert(rank, target);
        None
    }

    pub(super) fn remove(&mut self, slot: u32) -> Option<Addr> {
        let rank = self.slots.rank(slot);
        self.slots.remove(slot).then(|| self.targets.remove(rank))
    }

    pub(super) fn len(&self) -> usize {
        self.targets.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, Addr)> + '_ {
        self.slots.iter().zip(self.targets.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use millpond_format::{BLOCK_UNITS, ChunkId, Coding};
    use millpond_testing::Random;

    use super::*;

    #[test]
    fn forwards_are_a_map_of_slots() {
        let (mut forwards, mut plain, mut random) = (Forwards::default(), BTreeMap::new(), Random::new(5));
        for step in 0..5_000 {
            let slot = random.small(300);
            let target = Addr::new(ChunkId(step), random.small(900), BLOCK_UNITS, Coding::Raw);
            match random.below(2) {
                0 => assert_eq!(forwards.insert(slot, target), plain.insert(slot, target)),
                _ => assert_eq!(forwards.remove(slot), plain.remove(&slot)),
            }
            assert_eq!((forwards.len(), forwards.get(slot)), (plain.len(), plain.get(&slot).copied()));
            if step % 100 == 0 {
                assert!(forwards.iter().eq(plain.iter().map(|(slot, target)| (*slot, *target))));
                let again = Forwards::from_record(forwards.slots().words().to_vec(), forwards.targets().to_vec());
                assert!(again.iter().eq(forwards.iter()));
            }
        }
    }
}
