//! How full a pool is, and when it will be full.

use std::collections::VecDeque;

use super::{Duration, Happened, Instant, Pool, Size, about};

/// Percent of the pool in use at which it is reported, once each.
const LEVELS: [u64; 3] = [80, 90, 95];
/// A level is left when so many percent below it are in use: a pool at a level is not reported over and over.
const SLACK: u64 = 5;
/// Time between two samples of what is in use, and how many are kept: the rate is that of the last hour at most.
const SAMPLE: Duration = Duration::from_secs(60);
const SAMPLES: usize = 61;
/// A forecast further away says nothing.
const FAR: Duration = Duration::from_secs(366 * 86_400);

/// The level that was reported last, and what was in use lately.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Percent; 0: none.
    level: u64,
    /// It was reported that there is no room for the writes of guests.
    full: bool,
    samples: VecDeque<(Instant, u64)>,
}

impl Room {
    /// Compares with the last look.
    pub(super) fn look(&mut self, pool: &Pool, now: Instant) -> Option<Happened> {
        if self.samples.back().is_none_or(|(at, _)| now.saturating_duration_since(*at) >= SAMPLE) {
            if self.samples.len() >= SAMPLES {
                self.samples.pop_front();
            }
            self.samples.push_back((now, pool.allocated));
        }
        let percent = percent(pool)?;
        let (full, name) = (pool.is_full(), &pool.name);
        if full != self.full {
            self.full = full;
            // levels on the way were passed with it
            self.level = LEVELS.iter().copied().rfind(|level| percent >= *level).unwrap_or(0);
            let (free, size) = (Size(pool.free), Size(pool.size));
            return Some(match full {
                true => {
                    let message = format!(
                        "pool '{name}' is full, {free} of {size} are free: writes are answered ENOSPC; destroy snapshots, discard data or add a device"
                    );
                    Happened::to_pool("pool.full", name, message)
                }
                false => Happened::to_pool("pool.has-room", name, format!("pool '{name}' has room again, {free} of {size} are free")),
            });
        }
        let reached = LEVELS.iter().copied().rfind(|level| percent >= *level).unwrap_or(0);
        let rises = reached > self.level;
        let falls = self.level > 0 && percent + SLACK < self.level;
        if !rises && !falls {
            return None;
        }
        self.level = reached;
        match (rises, reached) {
            (true, _) => {
                let forecast = self.full_in(pool, now).map(|left| format!("; full in about {} at the present rate", about(left)));
                let (free, size) = (Size(pool.free), Size(pool.size));
                let message = format!("pool '{name}' is {percent} % full, {free} of {size} are free{}", forecast.unwrap_or_default());
                Some(Happened::to_pool("pool.space", name, message))
            }
            (false, 0) => Some(Happened::to_pool("pool.has-room", name, format!("pool '{name}' is {percent} % full"))),
            (false, _) => None,
        }
    }

    /// Time until the pool is full at the rate at which it filled lately; nothing when it does not fill, or was not looked at for long enough.
    pub(super) fn full_in(&self, pool: &Pool, now: Instant) -> Option<Duration> {
        let (since, before) = self.samples.front()?;
        let span = now.saturating_duration_since(*since);
        let grown = pool.allocated.checked_sub(*before).filter(|grown| *grown > 0 && span >= SAMPLE)?;
        let millis = u128::from(pool.free) * span.as_millis() / u128::from(grown);
        Some(Duration::from_millis(u64::try_from(millis).ok()?)).filter(|left| *left <= FAR)
    }
}

/// Percent of what guests can fill that is in use.
fn percent(pool: &Pool) -> Option<u64> {
    let percent = (u128::from(pool.allocated) * 100).checked_div(u128::from(pool.size))?;
    u64::try_from(percent).ok()
}
