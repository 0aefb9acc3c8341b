//! Random numbers: the same sequence for each seed.

/// A linear congruential generator, with the constants of Knuth's MMIX. Only its upper bits are
/// used, because the lower ones have short periods.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Makes a generator. Neighbouring seeds begin with similar numbers.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn step(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0
    }

    /// Returns a number below `n`, and 0 for `n` = 0. It has at most 31 bits.
    pub fn below(&mut self, n: u64) -> u64 {
        (self.step() >> 33) % n.max(1)
    }

    /// Returns a position in a list of `n` items.
    pub fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    /// Returns a number below `n` of 32 bits.
    pub fn small(&mut self, n: u32) -> u32 {
        self.below(u64::from(n)) as u32
    }

    /// Returns true once in `n` calls on average.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns one of the items; `None` when there is none.
    pub fn pick<T>(&mut self, mut items: impl ExactSizeIterator<Item = T>) -> Option<T> {
        let at = self.index(items.len());
        items.nth(at)
    }

    /// Returns a byte.
    pub fn byte(&mut self) -> u8 {
        (self.step() >> 56) as u8
    }

    /// Fills a buffer with bytes that cannot be compressed.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(4) {
            let word = ((self.step() >> 32) as u32).to_le_bytes();
            part.copy_from_slice(&word[..part.len()]);
        }
    }

    /// Returns bytes that cannot be compressed.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.fill(&mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn a_seed_gives_one_sequence_that_uses_every_value() {
        let numbers = |seed| {
            let mut random = Random::new(seed);
            (0..1000).map(|_| random.below(10)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(2));
        assert!((0..10).all(|value| numbers(1).iter().filter(|number| **number == value).count() > 50));
        let mut random = Random::new(3);
        assert_eq!((random.below(0), random.pick([0u8; 0].iter()), random.bytes(7).len()), (0, None, 7));
        let bytes = random.bytes(100_000);
        let ones: u32 = bytes.iter().map(|byte| byte.count_ones()).sum();
        assert!((395_000..405_000).contains(&ones), "{ones}");
    }
}
