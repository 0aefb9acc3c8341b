//! The wall clock as the pool is told it: it never goes back, and never stands still.

/// While the wall clock was set back, time passes at half its speed, until the clock has caught up: what is due now and then stays due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passage {
    /// What the wall clock said last that was not behind, in milliseconds, and the monotonic one then, in nanoseconds.
    wall: u64,
    monotonic: u64,
}

impl Passage {
    /// From when the clocks say this.
    pub(super) fn new(wall: u64, monotonic: u64) -> Passage {
        Passage { wall, monotonic }
    }

    /// The time when the clocks say this, in milliseconds.
    pub(super) fn at(&mut self, wall: u64, monotonic: u64) -> u64 {
        let least = self.wall + monotonic.saturating_sub(self.monotonic) / 2_000_000;
        if wall >= least {
            *self = Passage { wall, monotonic };
        }
        wall.max(least)
    }
}

#[cfg(test)]
mod tests {
    use super::Passage;

    #[test]
    fn a_clock_that_is_set_back_is_caught_up_with() {
        const SECOND: u64 = 1_000_000_000;
        let mut time = Passage::new(100_000, 0);
        assert_eq!(time.at(101_000, SECOND), 101_000);
        assert_eq!(time.at(91_000, SECOND), 101_000, "ten seconds back");
        assert_eq!(time.at(101_000, 11 * SECOND), 106_000);
        assert_eq!(time.at(111_000, 21 * SECOND), 111_000);
        assert_eq!(time.at(112_000, 22 * SECOND), 112_000);
        assert_eq!(time.at(999_000, 23 * SECOND), 999_000, "and forwards at once");
    }
}
