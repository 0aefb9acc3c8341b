//! Whether devices are slow or failing: their recent latencies and errors, compared with devices
//! that do the same work.
//!
//! Devices of one class and layout get the same kind of work, so their latencies can be compared.
//! One that differs from the others is worn out, wrongly connected, or busy with something else.
//! The daemon reports it and does nothing else. Time that an operation waits for a cap is not the
//! device's time.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use millpond_device::quantile;

use millpond_api::{Device, DeviceHealth, DeviceState};
use millpond_format::FormatError;

#[cfg(test)]
mod tests;

/// Length of the window that counts as recent.
const WINDOW: Duration = Duration::from_secs(60);
/// Least operations of a kind in a window: a device with fewer is not judged, nor are others
/// compared with it.
const LEAST: u64 = 50;
/// A slow device takes so many times as long as its peers,
const FACTOR: f64 = 4.0;
/// and so many nanoseconds longer: smaller differences come from the pool's own turns.
const MARGIN: f64 = 2e6;
/// How long an error is remembered.
const MEMORY: Duration = Duration::from_secs(24 * 3600);

/// Health of a pool's devices, by their ids: a new device at an old path is another one.
#[derive(Debug, Default)]
pub(super) struct DevicesHealth {
    /// Start of the window, and what the devices had done by then.
    since: Option<Instant>,
    seen: BTreeMap<String, Sample>,
    /// Reason why a device is slow, as of the last window in which there was enough to compare.
    slow: BTreeMap<String, String>,
    /// Error counts of the devices at the last look.
    errors: BTreeMap<String, u64>,
    /// Number of new errors of a device, and the time of the last.
    failing: BTreeMap<String, (u64, Instant)>,
    /// Devices that are back and not in use, by their ids: path, and the reason that users read.
    returned: BTreeMap<String, (PathBuf, String)>,
}

/// A device that was found although its pool goes on without it.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// Name of the device in messages.
    pub(super) called: String,
    pub(super) path: PathBuf,
    /// Reason why this version cannot read its label, if a later one wrote it.
    pub(super) newer: Option<FormatError>,
}

impl Found {
    /// Returns the reason why the device `id` of the pool `name` is not in use.
    fn reason(&self, name: &str, id: &str) -> String {
        let path = self.path.display();
        match &self.newer {
            Some(why) => format!(
                "at {path} is a device with a label of a newer version of Millpond ({why}): it is not in use, may have newer data, and \
                 this version does not import the pool while it is there; install that version or a later one, or take the device away"
            ),
            None => format!(
                "it is back at {path}, out of date and not in use: the next import fills it again, 'millpond pool replace {name} {id} {path} --force' does it now"
            ),
        }
    }
}

/// Latency histograms of a device, since its start or for some time.
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

impl DevicesHealth {
    /// Records what the devices have done by now.
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

    /// Records new errors. They count at once; the window is for latencies.
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

    /// Records the devices that were found although the pool `name` goes on without them: `found`
    /// has them by id. Returns name and message of each new one.
    pub(super) fn found_again(&mut self, name: &str, found: &BTreeMap<String, Found>) -> Vec<(String, String)> {
        self.returned.retain(|id, known| found.get(id).is_some_and(|found| *known == (found.path.clone(), found.reason(name, id))));
        let mut news = Vec::new();
        for (id, device) in found.iter().filter(|(id, _)| !id.is_empty()) {
            if self.returned.contains_key(id) {
                continue;
            }
            let reason = device.reason(name, id);
            news.push((device.called.clone(), format!("device {id} of pool '{name}': {reason}")));
            self.returned.insert(id.clone(), (device.path.clone(), reason));
        }
        news
    }

    /// Returns the paths of devices that are back and not in use.
    pub(super) fn returned(&self) -> Vec<PathBuf> {
        self.returned.values().map(|(path, _)| path.clone()).collect()
    }

    /// Forgets errors: a scrub has found none, so earlier ones count no more.
    pub(super) fn forget_errors(&mut self) {
        self.failing.clear();
    }

    /// Fills in the health of `devices` and the reasons.
    pub(super) fn tell(&self, devices: &mut [Device]) {
        for device in devices.iter_mut().filter(|device| matches!(device.state, DeviceState::Missing | DeviceState::Failed)) {
            if let Some((_, reason)) = self.returned.get(&device.id) {
                device.health_reason = Some(reason.clone());
            }
        }
        // a reason that the pool itself gives takes precedence
        for device in devices.iter_mut().filter(|device| device.health_reason.is_none()) {
            (device.health, device.health_reason) = self.of(device.key());
        }
    }

    /// Returns a device's condition, and the reason.
    fn of(&self, key: &str) -> (DeviceHealth, Option<String>) {
        match (self.failing.get(key), self.slow.get(key)) {
            (Some((errors, _)), _) => (DeviceHealth::Failing, Some(format!("{errors} errors in the last 24 hours"))),
            (None, Some(reason)) => (DeviceHealth::Slow, Some(reason.clone())),
            (None, None) => (DeviceHealth::Ok, None),
        }
    }
}

/// Compares the median latency of a device with that of its peers. Returns the reason in a second
/// `Some` when the device is slow, `Some(None)` when it is not, and `None` when there are too few
/// operations.
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
