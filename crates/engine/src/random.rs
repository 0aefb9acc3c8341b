//! Random numbers for unit tests: the same sequence for each seed.

/// A linear congruential generator, with the constants of Knuth's MMIX.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Returns a number below `n`, and 0 for `n` = 0.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n.max(1)
    }

    /// As [`Self::below`], for numbers of 32 bits.
    pub(crate) fn small(&mut self, n: u32) -> u32 {
        self.below(u64::from(n)) as u32
    }

    /// True once in `n` calls on average.
    pub(crate) fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns one of the items; `None` when there is none.
    pub(crate) fn pick<T>(&mut self, mut items: impl ExactSizeIterator<Item = T>) -> Option<T> {
        let at = self.below(items.len() as u64) as usize;
        items.nth(at)
    }
}
