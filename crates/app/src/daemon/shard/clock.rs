//! The shard's clocks. Tests can set them ahead.

use millpond_device::{Deadline, Monotonic, wall_millis};

/// The host's clocks.
#[derive(Clone, Copy, Default)]
pub(super) struct Clock {
    monotonic: Monotonic,
    /// So many nanoseconds ahead of the host's.
    #[cfg(test)]
    ahead: Option<&'static std::sync::atomic::AtomicU64>,
}

impl Clock {
    /// One that somebody sets ahead while it runs.
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

    /// Nanoseconds that never go back, counted from when this clock was made.
    pub fn nanos(&self) -> u64 {
        self.monotonic.nanos() + self.ahead()
    }

    /// Milliseconds since the Unix epoch.
    pub fn wall_millis(&self) -> u64 {
        wall_millis() + self.ahead() / 1_000_000
    }

    /// The instant at which [`nanos`](Clock::nanos) is so much.
    pub fn deadline(&self, nanos: u64) -> Deadline {
        self.monotonic.deadline(nanos.saturating_sub(self.ahead()))
    }
}
