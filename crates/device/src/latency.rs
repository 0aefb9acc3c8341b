//! Histograms of latencies, fine enough for quantiles: the daemon counts, and its clients compute.
//!
//! Classes are one microsecond wide up to 4, then a quarter of a power of two, so a quantile is off
//! by at most 12 %. The last class has no upper end.
//!
//! `hdrhistogram` would cost more here: with one digit its table has 352 counts on the heap, and the
//! API has these classes.

/// Number of classes, which reach up to half a minute.
pub const CLASSES: usize = 96;

/// Number of latencies in each class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latencies([u64; CLASSES]);

impl Default for Latencies {
    fn default() -> Self {
        Latencies([0; CLASSES])
    }
}

impl Latencies {
    /// Counts a latency of `nanos` nanoseconds.
    pub fn count(&mut self, nanos: u64) {
        if let Some(count) = self.0.get_mut(class(nanos / 1000).min(CLASSES - 1)) {
            *count += 1;
        }
    }

    /// Returns the counts, without empty classes at the end.
    pub fn counts(&self) -> Vec<u64> {
        let used = self.0.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        self.0.iter().copied().take(used).collect()
    }
}

/// Returns the class of a latency in microseconds.
fn class(micros: u64) -> usize {
    match micros.checked_ilog2() {
        Some(octave) if octave >= 2 => 4 * (octave as usize - 1) + ((micros >> (octave - 2)) & 3) as usize,
        _ => micros as usize, // below 4
    }
}

/// Returns the lower end of a class in microseconds.
fn begin(class: usize) -> f64 {
    match class {
        0..4 => class as f64,
        _ => (4 + class % 4) as f64 * 2f64.powi(class as i32 / 4 - 1),
    }
}

/// Returns the latency in nanoseconds that the fraction `part` of all latencies does not exceed;
/// `None` without counts.
pub fn quantile(counts: &[u64], part: f64) -> Option<f64> {
    let total: u64 = counts.iter().sum();
    let rank = part * total as f64;
    let mut below = 0.0;
    for (class, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let here = *count as f64;
        if below + here >= rank {
            let (from, to) = (begin(class), begin(class + 1));
            return Some(1000.0 * (from + (to - from) * (rank - below).max(0.0) / here));
        }
        below += here;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_meet_and_every_length_falls_between_its_ends() {
        let mut last = 0;
        for micros in (0..5000).chain((13..35).map(|n| 1 << n)).chain([u64::MAX]) {
            let at = class(micros);
            assert!(at >= last && at - last <= 4 || micros > 5000, "{micros} us: {at} after {last}");
            assert!(begin(at) <= micros as f64 && (micros as f64) < begin(at + 1) || micros == u64::MAX, "{micros} us in {at}");
            last = at;
        }
        assert!(begin(CLASSES) > 30e6, "half a minute");
    }

    #[test]
    fn quantiles_of_even_lengths_are_close() {
        let mut latencies = Latencies::default();
        (1..=10_000).for_each(|micros| latencies.count(micros * 1000));
        let counts = latencies.counts();
        assert_eq!(counts.iter().sum::<u64>(), 10_000);
        for (part, wanted) in [(0.5, 5e6), (0.99, 9.9e6), (0.001, 1e4)] {
            let found = quantile(&counts, part).expect("counted");
            assert!((found / wanted - 1.0).abs() < 0.13, "{part}: {found}");
        }
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[0, 0], 0.5), None);
        latencies.count(u64::MAX);
        assert_eq!(latencies.counts().len(), CLASSES);
    }
}
