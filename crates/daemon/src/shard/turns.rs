//! Lengths of the loop's turns: the longest shows up as the worst latency of guests.
//! The classes are those of the API, and counting takes a shift and an increment.

/// Number of classes of length; the last has no upper bound: it begins at a quarter of a second.
pub const TURN_CLASSES: usize = 20;

/// Turns counted by length: class n holds those of less than 2^n and at least 2^(n-1) microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// Number of turns of each class.
    pub counts: [u64; TURN_CLASSES],
    /// Sum of their lengths in nanoseconds.
    pub nanos: u64,
}

impl Turns {
    /// Counts a turn of `nanos` nanoseconds.
    pub(super) fn count(&mut self, nanos: u64) {
        let class = (u64::BITS - (nanos / 1000).leading_zeros()) as usize;
        if let Some(count) = self.counts.get_mut(class.min(TURN_CLASSES - 1)) {
            *count += 1;
            self.nanos = self.nanos.saturating_add(nanos);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{TURN_CLASSES, Turns};

    #[test]
    fn turns_fall_into_the_class_below_the_next_power_of_two() {
        let mut turns = Turns::default();
        for nanos in [0, 999, 1_000, 1_999, 2_000, 1_023_999, 1_024_000, u64::MAX] {
            turns.count(nanos);
        }
        let mut expected = [0; TURN_CLASSES];
        (expected[0], expected[1], expected[2], expected[10], expected[11], expected[19]) = (2, 2, 1, 1, 1, 1);
        assert_eq!(turns.counts, expected);
    }
}
