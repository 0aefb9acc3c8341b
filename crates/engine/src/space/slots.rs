//! A growing bitmap over the slots of a chunk.

/// A set of slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slots {
    words: Vec<u64>,
}

impl Slots {
    pub(crate) fn from_words(words: Vec<u64>) -> Slots {
        Slots { words }
    }

    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    pub(crate) fn get(&self, slot: u32) -> bool {
        self.words.get((slot >> 6) as usize).is_some_and(|word| word >> (slot & 63) & 1 == 1)
    }

    /// Adds `count` slots from `first` on; returns how many were new.
    pub(crate) fn insert_range(&mut self, first: u32, count: u32) -> u32 {
        let (mut at, end) = (first, first + count);
        let words = (end as usize).div_ceil(64);
        if words > self.words.len() {
            self.words.resize(words, 0);
        }
        let mut fresh = 0;
        while at < end {
            let stop = ((at | 63) + 1).min(end);
            let mask = (u64::MAX >> (64 - (stop - at))) << (at & 63);
            if let Some(word) = self.words.get_mut((at >> 6) as usize) {
                fresh += (mask & !*word).count_ones();
                *word |= mask;
            }
            at = stop;
        }
        fresh
    }

    /// Removes `slot`; false when it was not in the set.
    pub(crate) fn remove(&mut self, slot: u32) -> bool {
        let bit = 1u64 << (slot & 63);
        match self.words.get_mut((slot >> 6) as usize) {
            Some(word) if *word & bit != 0 => {
                *word &= !bit;
                true
            }
            _ => false,
        }
    }

    /// Number of slots in the set below `slot`.
    pub(super) fn rank(&self, slot: u32) -> usize {
        let (whole, bits) = ((slot >> 6) as usize, slot & 63);
        let below: u32 = self.words.iter().take(whole).map(|word| word.count_ones()).sum();
        let part = self.words.get(whole).map_or(0, |word| (word & ((1u64 << bits) - 1)).count_ones());
        (below + part) as usize
    }

    pub(crate) fn count(&self) -> u32 {
        self.words.iter().map(|w| w.count_ones()).sum()
    }

    /// Returns whether `other` has all slots of this set.
    pub(crate) fn is_part_of(&self, other: &Slots) -> bool {
        self.words.iter().enumerate().all(|(at, word)| word & !other.words.get(at).copied().unwrap_or(0) == 0)
    }

    /// Keeps the slots that `other` has too.
    pub(crate) fn intersect(&mut self, other: &Slots) {
        self.words.truncate(other.words.len());
        self.words.iter_mut().zip(&other.words).for_each(|(a, b)| *a &= b);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        slots_in(&self.words, 0)
    }
}

/// Slots of a bitmap whose first word is word `first` of the whole.
pub(super) fn slots_in(words: &[u64], first: u32) -> impl Iterator<Item = u32> {
    words.iter().zip(first..).flat_map(|(word, at)| {
        let mut rest = *word;
        std::iter::from_fn(move || {
            (rest != 0).then(|| {
                let bit = rest.trailing_zeros();
                rest &= rest - 1;
                at * 64 + bit
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::Slots;

    #[test]
    fn a_part_has_no_slot_that_the_whole_lacks() {
        let of = |words: &[u64]| Slots::from_words(words.to_vec());
        assert!(of(&[]).is_part_of(&of(&[])) && of(&[5, 0, 0]).is_part_of(&of(&[7])) && of(&[5]).is_part_of(&of(&[5, 1])));
        assert!(!of(&[5]).is_part_of(&of(&[6])) && !of(&[5, 1]).is_part_of(&of(&[5])) && !of(&[1]).is_part_of(&of(&[])));
    }

    #[test]
    fn a_range_is_its_slots_one_by_one() {
        for first in [0u32, 1, 62, 63, 64, 130] {
            for count in [0u32, 1, 2, 63, 64, 65, 200] {
                let (mut one, mut all) = (Slots::default(), Slots::default());
                for slot in [0, 63, 64, 131] {
                    one.insert_range(slot, 1);
                    all.insert_range(slot, 1);
                }
                let fresh: u32 = (first..first + count).map(|slot| one.insert_range(slot, 1)).sum();
                assert_eq!(all.insert_range(first, count), fresh, "{count} from {first}");
                assert!(one.iter().eq(all.iter()), "{count} from {first}");
            }
        }
    }
}
