//! The lease: how long the pool's devices may be changed (INV-CLAIM-1), on a clock that never goes
//! back.

use crate::Planted;

/// A lease. The pool gives its end by the wall clock, which users may set; it is kept by the
/// monotonic clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lease {
    /// Its end: milliseconds since the Unix epoch as the pool gave it, and nanoseconds of the
    /// monotonic clock.
    end: Option<(u64, u64)>,
    planted: Option<Planted>,
}

impl Lease {
    /// A lease with a planted bug.
    pub fn planting(planted: Option<Planted>) -> Lease {
        Lease { planted, ..Lease::default() }
    }

    /// Takes the end of the lease from the pool; `None`: no end. `now`, of the monotonic clock, was
    /// read before `wall`, so a delay of the caller between the two shortens the lease. The wall
    /// clock is used once for each new end: setting it back does not lengthen the lease.
    pub fn renew(&mut self, until: Option<u64>, wall: u64, now: u64) {
        if until == self.end.map(|(until, _)| until) {
            return;
        }
        let nanos = |until: u64| match until.checked_sub(wall) {
            Some(millis) => now.saturating_add(millis.saturating_mul(1_000_000)),
            None => 0,
        };
        self.end = until.map(|until| (until, nanos(until)));
    }

    /// Returns its end in nanoseconds of the monotonic clock.
    pub fn end(&self) -> Option<u64> {
        self.end.map(|(_, nanos)| nanos)
    }

    /// True when the lease has ended at `now`.
    pub fn is_over(&self, now: u64) -> bool {
        self.end().is_some_and(|end| now > end) && !Planted::LeaveLate.is_in(self.planted)
    }
}

#[cfg(test)]
mod tests {
    use super::Lease;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_wall_clock_that_is_set_back_lengthens_no_lease() {
        let mut lease = Lease::default();
        assert!(!lease.is_over(u64::MAX), "there is none");
        lease.renew(Some(110_000), 100_000, 5 * SECOND);
        assert!(!lease.is_over(15 * SECOND) && lease.is_over(15 * SECOND + 1));
        lease.renew(Some(110_000), 50_000, 6 * SECOND);
        assert_eq!(lease.end(), Some(15 * SECOND), "the same lease");
        lease.renew(Some(112_000), 102_000, 7 * SECOND);
        assert_eq!(lease.end(), Some(17 * SECOND));
        lease.renew(Some(0), 102_000, 8 * SECOND);
        assert!(lease.is_over(8 * SECOND), "another host has the pool");
    }
}
