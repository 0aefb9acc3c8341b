//! A rate as the checks count it: an allowance of time that grows with time and shrinks with use.

pub const SECOND: u64 = 1_000_000_000;

/// The remaining allowance, in nanoseconds at the rate.
#[derive(Clone, Debug)]
pub struct Meter {
    most: i128,
    left: i128,
    at: u64,
    /// Number of uses: each may have rounded off less than a nanosecond.
    uses: i128,
}

impl Meter {
    /// Makes a full meter with a maximum of `most` nanoseconds.
    pub fn new(most: u64, now: u64) -> Meter {
        Meter { most: i128::from(most), left: i128::from(most), at: now, uses: 0 }
    }

    fn at(&mut self, now: u64) -> i128 {
        self.left = (self.left + i128::from(now.saturating_sub(self.at))).min(self.most);
        self.at = self.at.max(now);
        self.left
    }

    /// Returns whether the allowance is exceeded, so that nothing may pass now.
    pub fn is_over(&mut self, now: u64) -> bool {
        self.at(now) < -self.uses
    }

    /// Returns whether the next use must pass now.
    pub fn is_due(&mut self, now: u64) -> bool {
        self.at(now) > 1
    }

    /// Returns the time at which the next use must pass.
    pub fn due(&mut self, now: u64) -> u64 {
        let wait = (2 - self.at(now)).max(0);
        now.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX))
    }

    /// Subtracts a use.
    pub fn pay(&mut self, cost: u64, now: u64) {
        self.left = self.at(now) - i128::from(cost);
        self.uses += 1;
    }
}

/// Returns the cost of an amount at a rate per second, in nanoseconds, rounded up.
pub fn cost(amount: u64, rate: u64) -> u64 {
    let nanos = (u128::from(amount) * u128::from(SECOND)).div_ceil(u128::from(rate.max(1)));
    u64::try_from(nanos).unwrap_or(u64::MAX)
}
