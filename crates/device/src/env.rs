//! The host's clock and entropy, for programs that pass time and randomness to the engine.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since the Unix epoch; 0 when the clock is set to an earlier time. It jumps when the
/// clock is set.
pub fn wall_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// A clock that never goes back, counted from its creation. It includes time when the host is
/// suspended.
#[derive(Clone, Copy, Debug)]
pub struct Monotonic {
    start: Duration,
}

impl Default for Monotonic {
    fn default() -> Self {
        Monotonic { start: since_boot() }
    }
}

fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// An instant of a [`Monotonic`] clock.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    clock: Monotonic,
    nanos: u64,
}

impl Deadline {
    /// Reads the clock: true when the instant has passed.
    pub fn is_over(&self) -> bool {
        self.clock.nanos() > self.nanos
    }
}

impl Monotonic {
    /// Time since this clock was created.
    pub fn elapsed(&self) -> Duration {
        since_boot().saturating_sub(self.start)
    }

    /// Nanoseconds since this clock was created; enough for 584 years.
    pub fn nanos(&self) -> u64 {
        u64::try_from(self.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The instant at which [`nanos`](Monotonic::nanos) returns `nanos`.
    pub fn deadline(self, nanos: u64) -> Deadline {
        Deadline { clock: self, nanos }
    }
}

/// Returns `N` bytes from the kernel's entropy pool, suitable for identities.
///
/// # Errors
/// The kernel's error when it has no `getrandom` or a filter forbids it.
pub fn entropy<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match getrandom(rest, GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_move_forward_and_entropy_differs() {
        let clock = Monotonic::default();
        let first = clock.nanos();
        std::thread::sleep(Duration::from_millis(2));
        assert!(clock.nanos() >= first + 2_000_000);
        assert!(wall_millis() > 1_700_000_000_000);
        let (a, b) = (entropy::<16>().expect("entropy"), entropy::<16>().expect("entropy"));
        assert_ne!(a, b);
        assert_ne!(a, [0; 16]);
        assert_eq!(entropy::<0>().expect("nothing asked"), []);
    }
}
