//! Jumps of the host's clock: the wall clock and the time since boot go on by different amounts.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use millpond_api::ConditionKind;
use millpond_api::instant::about;
use rustix::time::{ClockId, clock_gettime};

use super::{Found, HOST};

/// A time server corrects the clock by smaller steps.
const JUMP: Duration = Duration::from_secs(5);
/// A jump is a condition for this time.
const MEMORY: Duration = Duration::from_secs(3600);

/// Clocks at the last look, and the last jump.
#[derive(Debug, Default)]
pub struct ClockWatch {
    last: Option<Clocks>,
    jump: Option<(Instant, String)>,
    /// Time of the last event of an earlier daemon.
    before: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug)]
struct Clocks {
    wall: Timestamp,
    /// Includes the time for which the host was suspended.
    since_boot: Duration,
}

impl ClockWatch {
    /// Returns a watch of a daemon that starts. `last` is the time of the last event of the earlier
    /// one.
    pub(super) fn since(last: Option<Timestamp>) -> ClockWatch {
        ClockWatch { before: last, ..ClockWatch::default() }
    }

    /// Compares the clocks with the last look.
    pub(super) fn look(&mut self, wall: Timestamp, now: Instant) {
        let time = clock_gettime(ClockId::Boottime);
        let (seconds, nanos) = (u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0));
        self.compare(Clocks { wall, since_boot: Duration::new(seconds, nanos) }, now);
    }

    fn compare(&mut self, clocks: Clocks, now: Instant) {
        if self.jump.as_ref().is_some_and(|(at, _)| now.saturating_duration_since(*at) >= MEMORY) {
            self.jump = None;
        }
        let nanos = |duration: Duration| i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX);
        let by = match (self.last.replace(clocks), self.before.take()) {
            (Some(last), _) => clocks.wall.duration_since(last.wall).as_nanos() - (nanos(clocks.since_boot) - nanos(last.since_boot)),
            // only a step back is certain: the daemon may have been stopped for any time
            (None, Some(before)) => clocks.wall.duration_since(before).as_nanos().min(0),
            (None, None) => 0,
        };
        if by.unsigned_abs() < JUMP.as_nanos() {
            return;
        }
        let amount = about(Duration::from_nanos(u64::try_from(by.unsigned_abs()).unwrap_or(u64::MAX)));
        let (way, effect) = match by > 0 {
            true => ("forward", "snapshots may expire early"),
            false => ("back", "snapshots expire late, and events and snapshots may be out of order"),
        };
        let at = clocks.wall.strftime("%Y-%m-%dT%H:%M:%SZ");
        self.jump = Some((now, format!("the clock of the host was set {way} by about {amount} at {at}: {effect}")));
    }

    pub(super) fn condition(&self) -> Option<Found> {
        let (_, cause) = self.jump.as_ref()?;
        let remedy = "let a time server set the clock, in small steps; this warning ends an hour after the jump";
        Some(Found::new(ConditionKind::HostClockJump, HOST, cause.clone(), remedy))
    }
}

#[cfg(test)]
mod tests {
    //! Jumps are noticed; suspension and small corrections are none.
    use millpond_api::instant::from_millis;

    use super::*;

    #[test]
    fn jumps_are_noticed_and_forgotten() {
        let now = Instant::now();
        let mut watch = ClockWatch::default();
        let mut at = |wall: u64, boot: u64, later: u64| {
            let clocks = Clocks { wall: from_millis(wall * 1000), since_boot: Duration::from_secs(boot) };
            watch.compare(clocks, now + Duration::from_secs(later));
            watch.condition().map(|found| found.cause)
        };
        assert_eq!(at(100_000, 100, 0), None);
        assert_eq!(at(100_005, 105, 5), None);
        assert_eq!(at(200_000, 100_100, 10), None, "the host was suspended");
        assert_eq!(at(200_009, 100_105, 15), None, "a small step");
        let back = at(192_800, 100_110, 20).expect("a jump");
        assert!(back.contains("set back by about 2 h") && back.contains("out of order"), "{back}");
        assert!(at(192_805, 100_115, 25).is_some(), "it is remembered");
        assert_eq!(at(196_405, 103_715, 20 + 3600), None, "and forgotten");
        assert!(at(300_000, 103_720, 3700).is_some_and(|cause| cause.contains("forward")));
    }

    #[test]
    fn a_clock_that_is_behind_the_last_event_was_set_back() {
        let (now, boot) = (Instant::now(), Duration::from_secs(9));
        let at = |wall: u64, last: u64| {
            let mut watch = ClockWatch::since(Some(from_millis(last * 1000)));
            watch.compare(Clocks { wall: from_millis(wall * 1000), since_boot: boot }, now);
            watch.condition().is_some()
        };
        assert!(at(1_000, 5_000));
        assert!(!at(9_000, 5_000), "the daemon was stopped");
    }
}
