//! A rate as the judge counts it: an allowance of time that passing time fills and whatever passes uses up.

/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;

/// What is left of an allowance, in nanoseconds of its rate.
#[derive(Clone, Debug)]
pub struct Meter {
    most: i128,
    left: i128,
    at: u64,
    /// How often it was used: each time less than a nanosecond may have been rounded off.
    uses: i128,
}

impl Meter {
    /// A full one, which holds so many nanoseconds at most.
    pub fn new(most: u64, now: u64) -> Meter {
        Meter { most: i128::from(most), left: i128::from(most), at: now, uses: 0 }
    }

    fn at(&mut self, now: u64) -> i128 {
        self.left = (self.left + i128::from(now.saturating_sub(self.at))).min(self.most);
        self.at = self.at.max(now);
        self.left
    }

    /// Nothing may pass before some time has passed.
    pub fn is_over(&mut self, now: u64) -> bool {
        self.at(now) < -self.uses
    }

    /// The next one must pass.
    pub fn is_due(&mut self, now: u64) -> bool {
        self.at(now) > 1
    }

    /// When the next one must pass.
    pub fn due(&mut self, now: u64) -> u64 {
        let wait = (2 - self.at(now)).max(0);
        now.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX))
    }

    /// Something passes.
    pub fn pay(&mut self, cost: u64, now: u64) {
        self.left = self.at(now) - i128::from(cost);
        self.uses += 1;
    }
}

/// What an amount costs at a rate per second, in nanoseconds, rounded up.
pub fn cost(amount: u64, rate: u64) -> u64 {
    let nanos = (u128::from(amount) * u128::from(SECOND)).div_ceil(u128::from(rate.max(1)));
    u64::try_from(nanos).unwrap_or(u64::MAX)
}
