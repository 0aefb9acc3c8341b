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

    /// Adds `slot`; false when it was there.
    pub(crate) fn insert(&mut self, slot: u32) -> bool {
        let (word, bit) = ((slot >> 6) as usize, 1u64 << (slot & 63));
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        match self.words.get_mut(word) {
            Some(w) => {
                let fresh = *w & bit == 0;
                *w |= bit;
                fresh
            }
            None => false,
        }
    }

    /// Takes `slot` out; false when it was not there.
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

    pub(crate) fn count(&self) -> u32 {
        self.words.iter().map(|w| w.count_ones()).sum()
    }

    pub(crate) fn union(&mut self, other: &Slots) {
        if other.words.len() > self.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        self.words.iter_mut().zip(&other.words).for_each(|(a, b)| *a |= b);
    }

    /// Keeps what `other` holds too.
    pub(crate) fn intersect(&mut self, other: &Slots) {
        self.words.truncate(other.words.len());
        self.words.iter_mut().zip(&other.words).for_each(|(a, b)| *a &= b);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().zip(0u32..).flat_map(|(word, i)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                (rest != 0).then(|| {
                    let bit = rest.trailing_zeros();
                    rest &= rest - 1;
                    i * 64 + bit
                })
            })
        })
    }
}
