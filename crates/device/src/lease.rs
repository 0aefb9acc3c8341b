//! Until when a pool's devices may be changed (INV-CLAIM-1), told by a clock that never goes back.

use crate::Planted;

/// A lease. The pool tells its end by the wall clock, which somebody may set; it holds by the monotonic one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lease {
    /// Its end as the pool told it, in milliseconds since the Unix epoch, and by the monotonic clock, in nanoseconds.
    told: Option<(u64, u64)>,
    planted: Option<Planted>,
}

impl Lease {
    /// One with a known bug.
    pub fn planting(planted: Option<Planted>) -> Lease {
        Lease { planted, ..Lease::default() }
    }

    /// Takes over what the pool says; `None`: for ever. `now` of the monotonic clock was read before `wall`, so what time the caller lost between the two
    /// shortens the lease. What the wall clock says is asked once for each lease: one that is set back does not lengthen it.
    pub fn renew(&mut self, until: Option<u64>, wall: u64, now: u64) {
        if until == self.told.map(|(until, _)| until) {
            return;
        }
        let nanos = |until: u64| match until.checked_sub(wall) {
            Some(millis) => now.saturating_add(millis.saturating_mul(1_000_000)),
            None => 0,
        };
        self.told = until.map(|until| (until, nanos(until)));
    }

    /// Its end by the monotonic clock.
    pub fn end(&self) -> Option<u64> {
        self.told.map(|(_, nanos)| nanos)
    }

    /// Is it over?
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
