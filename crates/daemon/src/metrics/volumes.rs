//! Series of volumes. Snapshots are counted by volume: a series for each of them would be without
//! bound.

use millpond_engine::{SnapshotInfo, Time};

use super::pools::{durations, request_bytes, requests};
use super::series::Kind::{Counter, Gauge, Histogram};
use super::series::{Series, Subject, seconds};
use crate::shard::VolumeUse;

/// Sums over the snapshots of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SnapshotSums {
    unique_bytes: u64,
    oldest: Time,
    newest: Time,
}

impl SnapshotSums {
    /// Adds a snapshot to the sums so far.
    pub fn with(before: Option<SnapshotSums>, snapshot: &SnapshotInfo) -> SnapshotSums {
        let SnapshotInfo { created, unique_bytes, .. } = *snapshot;
        let before = before.unwrap_or(SnapshotSums { unique_bytes: 0, oldest: created, newest: created });
        SnapshotSums {
            unique_bytes: before.unique_bytes + unique_bytes,
            oldest: before.oldest.min(created),
            newest: before.newest.max(created),
        }
    }
}

/// A volume of a pool.
#[derive(Debug)]
pub(super) struct VolumeFacts {
    pub pool: String,
    pub volume: VolumeUse,
    /// `None` without snapshots, and while their sums are not known.
    pub snapshots: Option<SnapshotSums>,
}

impl Subject for VolumeFacts {
    const LABELS: &'static [&'static str] = &["pool", "volume"];

    fn values(&self) -> Vec<&str> {
        vec![&self.pool, &self.volume.info.name]
    }
}

impl VolumeFacts {
    fn is_limited(&self) -> bool {
        self.volume.info.options.limits != millpond_engine::Limits::default()
    }
}

/// A series with one value per volume.
macro_rules! value {
    ($kind:ident, $name:literal, $help:literal, $value:expr) => {
        Series {
            name: $name,
            kind: $kind,
            help: $help,
            labels: &[],
            read: |facts, to| {
                let value: fn(&VolumeFacts) -> u64 = $value;
                to.put(&[], value(facts));
            },
        }
    };
}

/// A series with a time of snapshots, for volumes that have some.
macro_rules! snapshot_time {
    ($name:literal, $help:literal, $time:expr) => {
        Series {
            name: $name,
            kind: Gauge,
            help: $help,
            labels: &[],
            read: |facts, to| {
                let time: fn(&SnapshotSums) -> Time = $time;
                facts.snapshots.iter().for_each(|sums| to.put(&[], time(sums).0 as f64 / 1e3));
            },
        }
    };
}

pub(super) const VOLUMES: &[Series<VolumeFacts>] = &[
    value!(Gauge, "millpond_volume_size_bytes", "Size that guests see", |facts| facts.volume.info.size),
    value!(Gauge, "millpond_volume_referenced_bytes", "Logical bytes of data in the volume without its snapshots", |facts| {
        facts.volume.info.referenced_bytes
    }),
    value!(Gauge, "millpond_volume_unique_bytes", "Stored bytes that go when volume and snapshots are destroyed", |facts| {
        facts.volume.info.unique_bytes
    }),
    value!(Gauge, "millpond_volume_snapshots", "Number of snapshots", |facts| facts.volume.info.snapshots),
    Series {
        name: "millpond_volume_snapshot_unique_bytes",
        kind: Gauge,
        help: "Sum of the bytes that one snapshot alone has, at most 30 s old",
        labels: &[],
        read: |facts, to| match facts.snapshots {
            Some(sums) => to.put(&[], sums.unique_bytes),
            None if facts.volume.info.snapshots == 0 => to.put(&[], 0_u64),
            None => {}
        },
    },
    snapshot_time!("millpond_volume_oldest_snapshot_timestamp_seconds", "Time of the oldest snapshot, at most 30 s old", |sums| {
        sums.oldest
    }),
    snapshot_time!("millpond_volume_newest_snapshot_timestamp_seconds", "Time of the newest snapshot, at most 30 s old", |sums| {
        sums.newest
    }),
    Series {
        name: "millpond_volume_requests",
        kind: Counter,
        help: "Requests to the volume and its snapshots that were answered",
        labels: &["operation"],
        read: |facts, to| requests(&facts.volume.load, to),
    },
    Series {
        name: "millpond_volume_request_bytes",
        kind: Counter,
        help: "Bytes of reads and writes",
        labels: &["operation"],
        read: |facts, to| request_bytes(&facts.volume.load, to),
    },
    value!(Counter, "millpond_volume_request_errors", "Requests that failed", |facts| facts.volume.load.io.errors),
    Series {
        name: "millpond_volume_request_duration_seconds",
        kind: Histogram,
        help: "Time from receipt of a request until its reply; for operations that the volume has seen",
        labels: &["operation"],
        read: |facts, to| durations(&facts.volume.load, true, to),
    },
    Series {
        name: "millpond_volume_cache_blocks",
        kind: Counter,
        help: "Blocks of 4 KiB that guests read, by result in the read cache (hit or miss)",
        labels: &["result"],
        read: |facts, to| {
            to.put(&["hit"], facts.volume.info.read_cache.hits);
            to.put(&["miss"], facts.volume.info.read_cache.misses);
        },
    },
    Series {
        name: "millpond_volume_limit_waiting_requests",
        kind: Gauge,
        help: "Requests that wait for the volume's limits now; for volumes with limits",
        labels: &[],
        read: |facts, to| {
            if facts.is_limited() {
                to.put(&[], facts.volume.limits.waiting);
            }
        },
    },
    Series {
        name: "millpond_volume_limit_delayed_requests",
        kind: Counter,
        help: "Requests that have waited for the volume's limits",
        labels: &[],
        read: |facts, to| {
            if facts.is_limited() {
                to.put(&[], facts.volume.limits.waited);
            }
        },
    },
    Series {
        name: "millpond_volume_limit_delay_seconds",
        kind: Counter,
        help: "Sum of the times that requests have waited for the volume's limits",
        labels: &[],
        read: |facts, to| {
            if facts.is_limited() {
                to.put(&[], seconds(facts.volume.limits.waited_nanos));
            }
        },
    },
];
