//! The rate of alerts to one sink.

use std::time::{Duration, Instant};

/// Alerts that are sent at once,
const BURST: u32 = 20;
/// and the time after which one more may be.
const EACH: Duration = Duration::from_secs(3);

/// Alerts that may be sent now, as a bucket of [`BURST`] that fills by one in [`EACH`].
#[derive(Debug, Default)]
pub struct Rate {
    /// Time at which the bucket is full again.
    full: Option<Instant>,
}

impl Rate {
    /// Takes one alert, and returns how long it has to wait.
    pub fn wait(&mut self, now: Instant) -> Duration {
        let full = self.full.map_or(now, |full| full.max(now)) + EACH;
        self.full = Some(full);
        (full - now).saturating_sub(EACH * BURST)
    }
}

#[cfg(test)]
mod tests {
    //! A burst passes, and then one alert in a while.
    use super::*;

    #[test]
    fn a_burst_passes_and_more_wait() {
        let (mut rate, now) = (Rate::default(), Instant::now());
        for _ in 0..BURST {
            assert_eq!(rate.wait(now), Duration::ZERO);
        }
        assert_eq!(rate.wait(now), EACH);
        assert_eq!(rate.wait(now + EACH), EACH, "the one before has waited");
        let later = now + EACH * (2 * BURST);
        assert_eq!(rate.wait(later), Duration::ZERO);
    }
}
