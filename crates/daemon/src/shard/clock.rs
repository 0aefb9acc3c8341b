//! The shard's clocks. Tests can set them ahead.

use millpond_device::{Deadline, Monotonic, wall_millis};

/// The host's clocks.
#[derive(Clone, Copy, Default)]
pub(super) struct Clock {
    monotonic: Monotonic,
    /// Nanoseconds by which it is ahead of the host's clocks.
    #[cfg(test)]
    ahead: Option<&'static std::sync::atomic::AtomicU64>,
}

impl Clock {
    /// Returns a clock that a test sets ahead while it runs.
    #[cfg(test)]
    pub fn ahead_by(nanos: &'static std::sync::atomic::AtomicU64) -> Clock {
        Clock { monotonic: Monotonic::default(), ahead: Some(nanos) }
    }

    #[cfg(test)]
    fn ahead(&self) -> u64 {
        self.ahead.map_or(0, |nanos| nanos.load(std::sync::atomic::Ordering::SeqCst))
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "as in tests")]
    fn ahead(&self) -> u64 {
        0
    }

    /// Returns the nanoseconds since this clock was made. They never go back.
    pub fn nanos(&self) -> u64 {
        self.monotonic.nanos() + self.ahead()
    }

    /// Returns the milliseconds since the Unix epoch.
    pub fn wall_millis(&self) -> u64 {
        wall_millis() + self.ahead() / 1_000_000
    }

    /// Returns the instant at which [`nanos`](Clock::nanos) reaches `nanos`.
    pub fn deadline(&self, nanos: u64) -> Deadline {
        self.monotonic.deadline(nanos.saturating_sub(self.ahead()))
    }
}
