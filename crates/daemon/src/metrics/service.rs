//! Series of the daemon itself.

use super::pools::timestamp;
use super::series::Kind::{Counter, Gauge, Info};
use super::series::{Series, Subject};
use crate::events::EventCount;
use millpond_api::Condition;

/// Facts about the daemon.
#[derive(Debug)]
pub(super) struct Service {
    pub version: &'static str,
    /// Seconds since its start.
    pub uptime: f64,
    /// Start in seconds since the Unix epoch.
    pub started: f64,
    pub ready: bool,
    /// Memory for requests: the limit, and the bytes in use.
    pub request_memory: (u64, u64),
    pub events: Vec<EventCount>,
    pub conditions: Vec<Condition>,
}

impl Subject for Service {
    const LABELS: &'static [&'static str] = &[];

    fn values(&self) -> Vec<&str> {
        Vec::new()
    }
}

pub(super) const SERVICE: &[Series<Service>] = &[
    Series {
        name: "millpond_build",
        kind: Info,
        help: "Version of the daemon",
        labels: &["version"],
        read: |daemon, to| to.put(&[daemon.version], true),
    },
    Series {
        name: "millpond_start_timestamp_seconds",
        kind: Gauge,
        help: "Time when the daemon started",
        labels: &[],
        read: |daemon, to| to.put(&[], daemon.started),
    },
    Series {
        name: "millpond_uptime_seconds",
        kind: Gauge,
        help: "Time since the daemon started",
        labels: &[],
        read: |daemon, to| to.put(&[], daemon.uptime),
    },
    Series {
        name: "millpond_ready",
        kind: Gauge,
        help: "1 when the import of every pool has ended",
        labels: &[],
        read: |daemon, to| to.put(&[], daemon.ready),
    },
    Series {
        name: "millpond_request_memory_bytes",
        kind: Gauge,
        help: "Memory of requests in flight, shared by all clients",
        labels: &[],
        read: |daemon, to| to.put(&[], daemon.request_memory.1),
    },
    Series {
        name: "millpond_request_memory_limit_bytes",
        kind: Gauge,
        help: "Limit of the memory of requests in flight",
        labels: &[],
        read: |daemon, to| to.put(&[], daemon.request_memory.0),
    },
    Series {
        name: "millpond_events",
        kind: Counter,
        help: "Events since the daemon started, by kind and severity",
        labels: &["kind", "severity"],
        read: |daemon, to| daemon.events.iter().for_each(|event| to.put(&[&event.kind, &event.severity], event.count)),
    },
    Series {
        name: "millpond_condition_since_timestamp_seconds",
        kind: Gauge,
        help: "Time since which a condition lasts; no series if it does not exist",
        labels: &["kind", "severity", "pool", "subject"],
        read: |daemon, to| {
            for condition in &daemon.conditions {
                let Condition { kind, severity, pool, subject, since, .. } = condition;
                to.put(&[kind.as_str(), severity.as_str(), pool.as_deref().unwrap_or_default(), subject], timestamp(*since));
            }
        },
    },
];
