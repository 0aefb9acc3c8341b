//! The pool's wall clock: it never goes back, and never stands still.

/// When the wall clock was set back, this time passes at half speed until the clock has caught up:
/// a deadline that has passed stays passed.
#[derive(Clone, Copy, Debug)]
pub(super) struct MonotonicWallClock {
    /// Last reading of the wall clock that was not behind, in milliseconds, and of the monotonic
    /// clock at that moment, in nanoseconds.
    wall: u64,
    monotonic: u64,
}

impl MonotonicWallClock {
    /// Starts at these readings of the clocks.
    pub(super) fn new(wall: u64, monotonic: u64) -> MonotonicWallClock {
        MonotonicWallClock { wall, monotonic }
    }

    /// Returns the time for these readings of the clocks, in milliseconds.
    pub(super) fn at(&mut self, wall: u64, monotonic: u64) -> u64 {
        let least = self.wall + monotonic.saturating_sub(self.monotonic) / 2_000_000;
        if wall >= least {
            *self = MonotonicWallClock { wall, monotonic };
        }
        wall.max(least)
    }
}

#[cfg(test)]
mod tests {
    use super::MonotonicWallClock;

    #[test]
    fn a_clock_that_is_set_back_is_caught_up_with() {
        const SECOND: u64 = 1_000_000_000;
        let mut time = MonotonicWallClock::new(100_000, 0);
        assert_eq!(time.at(101_000, SECOND), 101_000);
        assert_eq!(time.at(91_000, SECOND), 101_000, "ten seconds back");
        assert_eq!(time.at(101_000, 11 * SECOND), 106_000);
        assert_eq!(time.at(111_000, 21 * SECOND), 111_000);
        assert_eq!(time.at(112_000, 22 * SECOND), 112_000);
        assert_eq!(time.at(999_000, 23 * SECOND), 999_000, "and forwards at once");
    }
}
