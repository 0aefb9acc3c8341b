//! Buckets of histograms, made from the classes in which latencies are counted.

use crate::shard::{FIRST_MICROS, LATENCY_CLASSES, Load};

/// Powers of two, in microseconds, of the first and the last finite end of a bucket: 16
/// microseconds and 17 seconds.
const ENDS: std::ops::RangeInclusive<u32> = 4..=24;
/// Classes of device latencies for each power of two (`crates/device/src/latency.rs`).
const PER_POWER: usize = 4;

/// A bucket: its upper end in seconds, and its count.
pub(super) type Bucket = (f64, u64);

/// Returns a power of two, in microseconds, in seconds.
fn end(power: u32) -> f64 {
    (1u64 << power) as f64 / 1e6
}

/// Returns the buckets of one operation of guests. With `coarse`, each bucket ends at four times the
/// end of the one before, else at twice.
pub(super) fn of_guests(counts: &[u64; LATENCY_CLASSES], coarse: bool) -> Vec<Bucket> {
    let first = FIRST_MICROS.ilog2();
    let mut buckets = Vec::with_capacity(counts.len());
    let mut count = 0;
    for (class, power) in (0..counts.len() - 1).zip(first..) {
        count += counts[class];
        if !coarse || class % 2 == 0 {
            buckets.push((end(power), std::mem::take(&mut count)));
        }
    }
    buckets.push((f64::INFINITY, count + counts[counts.len() - 1]));
    buckets
}

/// Returns the buckets of latencies of a device.
pub(super) fn of_device(counts: &[u64]) -> Vec<Bucket> {
    let mut rest = counts;
    let mut buckets = Vec::with_capacity(ENDS.count() + 1);
    let mut done = 0;
    for power in ENDS {
        // classes from 4 microseconds on are quarters of a power of two
        let classes = PER_POWER * (power as usize - 1) - done;
        let (here, after) = rest.split_at(classes.min(rest.len()));
        buckets.push((end(power), here.iter().sum()));
        (rest, done) = (after, done + classes);
    }
    buckets.push((f64::INFINITY, rest.iter().sum()));
    buckets
}

/// Returns the buckets of turns: class n has those of less than 2^n microseconds, the last one all
/// longer ones.
pub(super) fn of_turns(counts: &[u64; 20]) -> Vec<Bucket> {
    let (last, finite) = counts.split_last().unwrap_or((&0, &[]));
    let (short, rest) = finite.split_at(*ENDS.start() as usize + 1);
    let first = (end(*ENDS.start()), short.iter().sum());
    let longer = rest.iter().zip(ENDS.skip(1)).map(|(count, power)| (end(power), *count));
    std::iter::once(first).chain(longer).chain([(f64::INFINITY, *last)]).collect()
}

/// Adds up loads.
pub(in super::super) fn sum<'a>(loads: impl Iterator<Item = &'a Load>) -> Load {
    loads.fold(Load::default(), |mut sum, load| {
        sum.add(load);
        sum
    })
}

#[cfg(test)]
mod tests {
    //! Buckets have the ends of the classes that they are made from.
    use millpond_device::Latencies;

    use super::*;

    #[test]
    fn buckets_of_guests_end_where_classes_do() {
        let mut counts = [0; LATENCY_CLASSES];
        (counts[0], counts[1], counts[2], counts[3], counts[20], counts[21]) = (1, 2, 4, 8, 16, 32);
        let fine = of_guests(&counts, false);
        assert_eq!(fine.len(), 22);
        assert_eq!(&fine[..4], &[(0.000_016, 1), (0.000_032, 2), (0.000_064, 4), (0.000_128, 8)]);
        assert_eq!(&fine[20..], &[(16.777_216, 16), (f64::INFINITY, 32)]);
        let coarse = of_guests(&counts, true);
        assert_eq!(&coarse[..3], &[(0.000_016, 1), (0.000_064, 6), (0.000_256, 8)]);
        assert_eq!(&coarse[10..], &[(16.777_216, 16), (f64::INFINITY, 32)]);
    }

    #[test]
    fn buckets_of_devices_end_at_powers_of_two() {
        let mut latencies = Latencies::default();
        for micros in [0, 15, 16, 31, 32, 1_000_000, 16_777_215, 16_777_216, 1 << 40] {
            latencies.count(micros * 1000);
        }
        let buckets = of_device(&latencies.counts());
        assert_eq!(&buckets[..3], &[(0.000_016, 2), (0.000_032, 2), (0.000_064, 1)]);
        assert_eq!(buckets[16], (1.048_576, 1));
        assert_eq!(&buckets[20..], &[(16.777_216, 1), (f64::INFINITY, 2)]);
        assert_eq!(of_device(&[]).iter().map(|(_, count)| count).sum::<u64>(), 0);
    }

    #[test]
    fn buckets_of_turns_have_all_of_them() {
        let counts = std::array::from_fn(|class| 1 << class);
        let buckets = of_turns(&counts);
        assert_eq!(buckets.first(), Some(&(0.000_016, 0b1_1111)));
        assert_eq!(buckets.iter().map(|(_, count)| count).sum::<u64>(), (1 << 20) - 1);
        assert_eq!(&buckets[14..], &[(0.262_144, 1 << 18), (f64::INFINITY, 1 << 19)]);
    }
}
