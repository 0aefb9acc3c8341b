//! Random numbers that are the same on every machine for the same seed: uniform numbers,
//! permutations, Zipf ranks.

/// xorshift64*: fast, not for cryptography.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Makes a generator; every seed is valid.
    pub fn new(seed: u64) -> Rng {
        let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        for _ in 0..4 {
            rng.next();
        }
        rng
    }

    /// Returns 64 random bits.
    #[expect(clippy::should_implement_trait, reason = "an endless source is no iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Returns a uniform number in `0..bound`; 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a uniform number in `0.0..1.0`.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Fills a buffer with random bytes.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

/// A random permutation of `0..n` without a table: a Feistel network, repeated until the value is
/// in range.
#[derive(Clone, Debug)]
pub struct Permutation {
    n: u64,
    half_bits: u32,
    keys: [u64; 4],
}

impl Permutation {
    /// Makes a permutation of `0..n`.
    pub fn new(n: u64, seed: u64) -> Permutation {
        let bits = 64 - n.max(2).saturating_sub(1).leading_zeros();
        let mut rng = Rng::new(seed);
        Permutation { n, half_bits: bits.div_ceil(2), keys: std::array::from_fn(|_| rng.next()) }
    }

    /// Returns the image of `index`. Panics unless `index` is below `n`.
    pub fn at(&self, index: u64) -> u64 {
        assert!(index < self.n, "{index} is not below {}", self.n);
        let mask = (1u64 << self.half_bits) - 1;
        let mut value = index;
        loop {
            let (mut left, mut right) = (value >> self.half_bits, value & mask);
            for key in self.keys {
                let mixed = (right ^ key).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
                (left, right) = (right, left ^ (mixed & mask));
            }
            value = left << self.half_bits | right;
            if value < self.n {
                return value;
            }
        }
    }
}

/// Zipf-distributed ranks: rank k in `0..n` with probability proportional to 1 / (k + 1)^exponent.
/// Rejection inversion after W. Hörmann and G. Derflinger (1996): constant time, no table.
#[derive(Clone, Debug)]
pub struct Zipf {
    n: f64,
    exponent: f64,
    low: f64,
    high: f64,
    shortcut: f64,
}

impl Zipf {
    /// Makes a distribution over `0..n`, with n at least 1 and an exponent above 0.
    pub fn new(n: u64, exponent: f64) -> Zipf {
        let mut zipf = Zipf { n: n as f64, exponent, low: 0.0, high: 0.0, shortcut: 0.0 };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(zipf.n + 0.5);
        zipf.shortcut = 2.0 - zipf.inverse(zipf.integral(2.5) - 2f64.powf(-exponent));
        zipf
    }

    /// Returns the next rank; 0 is the most frequent.
    pub fn sample(&self, rng: &mut Rng) -> u64 {
        loop {
            let u = self.high + rng.unit() * (self.low - self.high);
            let x = self.inverse(u);
            let k = x.round().clamp(1.0, self.n);
            if k - x <= self.shortcut || u >= self.integral(k + 0.5) - k.powf(-self.exponent) {
                return k as u64 - 1;
            }
        }
    }

    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        let t = (1.0 - self.exponent) * log;
        if t.abs() < 1e-8 { log * (1.0 + t / 2.0) } else { t.exp_m1() / (1.0 - self.exponent) }
    }

    fn inverse(&self, x: f64) -> f64 {
        let t = (x * (1.0 - self.exponent)).max(-1.0);
        if t.abs() < 1e-8 { (x * (1.0 - t / 2.0)).exp() } else { (t.ln_1p() / (1.0 - self.exponent)).exp() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_hits_everything_once() {
        for n in [1, 2, 3, 1000, 4096, 5001] {
            let order = Permutation::new(n, 7);
            let mut seen: Vec<u64> = (0..n).map(|i| order.at(i)).collect();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..n), "{n}");
        }
    }

    #[test]
    fn zipf_follows_its_law() {
        for exponent in [0.9, 1.0, 1.2] {
            let (n, draws) = (1000u64, 400_000);
            let zipf = Zipf::new(n, exponent);
            let mut rng = Rng::new(3);
            let mut counts = vec![0u32; n as usize];
            for _ in 0..draws {
                counts[zipf.sample(&mut rng) as usize] += 1;
            }
            let norm: f64 = (1..=n).map(|k| (k as f64).powf(-exponent)).sum();
            for k in [0usize, 1, 2, 9, 99] {
                let want = f64::from(draws) * ((k + 1) as f64).powf(-exponent) / norm;
                let got = f64::from(counts[k]);
                assert!((got - want).abs() < 5.0 * want.sqrt() + 1.0, "exponent {exponent} rank {k}: {got} instead of {want}");
            }
        }
    }
}
