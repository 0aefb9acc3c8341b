//! How full a pool is, and when it will be full.

use std::collections::VecDeque;

use crate::conditions::find::{NEARLY_FULL, percent};

use super::{Duration, EventKind, Happened, Instant, Pool, Size, about};

/// Percentages in use at which an event is reported, once each.
const LEVELS: [u64; 3] = [NEARLY_FULL, 90, 95];
/// A level ends when so many percent less are in use: a pool at a level is not reported over and
/// over.
const SLACK: u64 = 5;
/// Time between two samples of the bytes in use; with so many samples as are kept, the rate is that
/// of the last hour at most.
const SAMPLE: Duration = Duration::from_secs(60);
const SAMPLES: usize = 61;
/// Longest forecast that is given.
const FAR: Duration = Duration::from_secs(366 * 86_400);

/// Last reported level, and recent samples of the bytes in use.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Percentage in use; 0 for no level.
    level: u64,
    /// An event has reported that there is no space for the writes of guests.
    full: bool,
    samples: VecDeque<(Instant, u64)>,
}

impl Room {
    /// Compares with the last look, and returns an event.
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
            // this event stands for the levels on the way
            self.level = LEVELS.iter().copied().rfind(|level| percent >= *level).unwrap_or(0);
            let (free, size) = (Size(pool.free), Size(pool.size));
            return Some(match full {
                true => {
                    let message = format!(
                        "pool '{name}' is full, {free} of {size} are free: writes are answered ENOSPC; destroy snapshots, discard data or add a device"
                    );
                    Happened::to_pool(EventKind::PoolFull, name, message)
                }
                false => Happened::to_pool(
                    EventKind::PoolHasRoom,
                    name,
                    format!("pool '{name}' has free space again, {free} of {size} are free"),
                ),
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
                Some(Happened::to_pool(EventKind::PoolSpace, name, message))
            }
            (false, 0) => Some(Happened::to_pool(EventKind::PoolHasRoom, name, format!("pool '{name}' is {percent} % full"))),
            (false, _) => None,
        }
    }

    /// Returns the time until the pool is full at its recent rate; `None` when it does not fill, or
    /// was not observed for long enough.
    pub(super) fn full_in(&self, pool: &Pool, now: Instant) -> Option<Duration> {
        let (since, before) = self.samples.front()?;
        let span = now.saturating_duration_since(*since);
        let grown = pool.allocated.checked_sub(*before).filter(|grown| *grown > 0 && span >= SAMPLE)?;
        let millis = u128::from(pool.free) * span.as_millis() / u128::from(grown);
        Some(Duration::from_millis(u64::try_from(millis).ok()?)).filter(|left| *left <= FAR)
    }
}
