//! Whether devices are slow or failing: what they did lately, compared with others that do the same.
//!
//! Devices of one class and layout get the same kind of work, so their latencies can be compared, and one that is apart from the others is
//! worn out, wrongly connected, or busy with something else. Nothing is done about it but saying so. What a cap holds up is not the
//! device's time.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use millpond_device::quantile;

use crate::api::Device;

#[cfg(test)]
mod tests;

/// What counts as lately.
const WINDOW: Duration = Duration::from_secs(60);
/// Operations of a kind in a window below which nothing is said of a device, nor of others by it.
const LEAST: u64 = 50;
/// So many times as long as its peers a device takes that is slow,
const FACTOR: f64 = 4.0;
/// and so many nanoseconds longer: below, the pool's own turns are seen.
const MARGIN: f64 = 2e6;
/// How long an error is remembered.
const MEMORY: Duration = Duration::from_secs(24 * 3600);

/// The condition of a pool's devices, by their ids: another device at the same path is another one.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    /// When the window began, and what the devices had done by then.
    since: Option<Instant>,
    seen: BTreeMap<String, Sample>,
    /// Why a device is slow, as of the last window in which there was enough to compare.
    slow: BTreeMap<String, String>,
    /// Errors that the devices had at the last look.
    errors: BTreeMap<String, u64>,
    /// Errors, and when the last came.
    failing: BTreeMap<String, (u64, Instant)>,
    /// Devices that are there again and not in use, by their ids: where, and what is said of them.
    returned: BTreeMap<String, (PathBuf, String)>,
}

/// What a device did in some time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Sample {
    reads: Vec<u64>,
    writes: Vec<u64>,
}

impl Sample {
    fn of(device: &Device) -> Sample {
        Sample { reads: device.io.read_times.clone(), writes: device.io.write_times.clone() }
    }

    fn since(&self, before: &Sample) -> Sample {
        let rest = |now: &[u64], then: &[u64]| {
            now.iter().enumerate().map(|(class, count)| count.saturating_sub(then.get(class).copied().unwrap_or(0))).collect()
        };
        Sample { reads: rest(&self.reads, &before.reads), writes: rest(&self.writes, &before.writes) }
    }
}

impl Conditions {
    /// Takes in what the devices have done by now.
    pub(super) fn look(&mut self, devices: &[Device], now: Instant) {
        self.look_at_errors(devices, now);
        if self.since.is_some_and(|since| now.saturating_duration_since(since) < WINDOW) {
            return;
        }
        let seen: BTreeMap<String, Sample> = devices.iter().map(|device| (device.key().to_owned(), Sample::of(device))).collect();
        let before = std::mem::replace(&mut self.seen, seen);
        self.slow.retain(|key, _| self.seen.contains_key(key));
        self.since = Some(now);
        let lately = |device: &Device| Some(self.seen.get(device.key())?.since(before.get(device.key())?));
        let lately: Vec<(&Device, Sample)> = devices.iter().filter_map(|device| Some((device, lately(device)?))).collect();
        for (device, own) in &lately {
            let peers = || {
                lately
                    .iter()
                    .filter(|(peer, _)| peer.key() != device.key() && (&peer.class, &peer.layout) == (&device.class, &device.layout))
            };
            let reads = compare("reads", &own.reads, peers().map(|(_, peer)| peer.reads.as_slice()));
            let writes = compare("writes", &own.writes, peers().map(|(_, peer)| peer.writes.as_slice()));
            match (reads.clone().flatten().or(writes.clone().flatten()), reads.or(writes)) {
                (Some(reason), _) => drop(self.slow.insert(device.key().to_owned(), reason)),
                (None, Some(_)) => drop(self.slow.remove(device.key())),
                (None, None) => {}
            }
        }
    }

    /// Errors count at once, windows are for latencies.
    fn look_at_errors(&mut self, devices: &[Device], now: Instant) {
        let seen: BTreeMap<String, u64> = devices.iter().map(|device| (device.key().to_owned(), device.errors)).collect();
        for (key, errors) in &seen {
            let grown = self.errors.get(key).map_or(0, |before| errors.saturating_sub(*before));
            if grown > 0 {
                let (errors, last) = self.failing.entry(key.clone()).or_insert((0, now));
                (*errors, *last) = (*errors + grown, now);
            }
        }
        self.failing.retain(|key, (_, last)| seen.contains_key(key) && now.saturating_duration_since(*last) < MEMORY);
        self.errors = seen;
    }

    /// Takes in which devices were found that the pool `name` goes on without: by their ids, what they are called and where they are. Gives a name and a
    /// line for each that was not there before.
    pub(super) fn found_again(&mut self, name: &str, found: &BTreeMap<String, (String, PathBuf)>) -> Vec<(String, String)> {
        self.returned.retain(|id, (path, _)| found.get(id).is_some_and(|(_, at)| at == path));
        let mut news = Vec::new();
        for (id, (called, path)) in found.iter().filter(|(id, _)| !id.is_empty()) {
            if self.returned.contains_key(id) {
                continue;
            }
            let path_text = path.display();
            let reason = format!(
                "it is back at {path_text}, out of date and not in use: the next import fills it again, 'millpond pool replace {name} {id} {path_text} --force' does it now"
            );
            news.push((called.clone(), format!("device {id} of pool '{name}': {reason}")));
            self.returned.insert(id.clone(), (path.clone(), reason));
        }
        news
    }

    /// Where they are.
    pub(super) fn returned(&self) -> Vec<PathBuf> {
        self.returned.values().map(|(path, _)| path.clone()).collect()
    }

    /// A scrub has found none: those before it count no more.
    pub(super) fn forget_errors(&mut self) {
        self.failing.clear();
    }

    /// Says of devices what is known of them.
    pub(super) fn tell(&self, devices: &mut [Device]) {
        for device in devices.iter_mut().filter(|device| matches!(device.state.as_str(), "missing" | "failed")) {
            if let Some((_, reason)) = self.returned.get(&device.id) {
                device.health_reason = Some(reason.clone());
            }
        }
        // what the pool itself says comes first
        for device in devices.iter_mut().filter(|device| device.health_reason.is_none()) {
            let (word, reason) = self.of(device.key());
            (device.health, device.health_reason) = (word.to_owned(), reason);
        }
    }

    /// What a device's condition is called, and why.
    fn of(&self, key: &str) -> (&'static str, Option<String>) {
        match (self.failing.get(key), self.slow.get(key)) {
            (Some((errors, _)), _) => ("failing", Some(format!("{errors} errors in the last 24 hours"))),
            (None, Some(reason)) => ("slow", Some(reason.clone())),
            (None, None) => ("ok", None),
        }
    }
}

/// Whether operations take much longer than those of the others: the reason, when they do; nothing at all when there is too little to compare.
fn compare<'a>(what: &str, own: &[u64], peers: impl Iterator<Item = &'a [u64]>) -> Option<Option<String>> {
    let median = |counts: &[u64]| quantile(counts, 0.5).filter(|_| counts.iter().sum::<u64>() >= LEAST);
    let own = median(own)?;
    let mut others: Vec<f64> = peers.filter_map(median).collect();
    others.sort_by(f64::total_cmp);
    let usual = *others.get(others.len().checked_sub(1)? / 2)?;
    let millis = |nanos: f64| nanos / 1e6;
    let slow = own > FACTOR * usual && own > usual + MARGIN;
    Some(slow.then(|| format!("half of its {what} take longer than {:.1} ms, {:.1} ms with its peers", millis(own), millis(usual))))
}
