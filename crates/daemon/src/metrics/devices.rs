//! Series of devices.

use millpond_api::{Device, DeviceHealth, DeviceState, PoolHealth};

use super::buckets;
use super::pools::PoolFacts;
use super::series::Kind::{Counter, Gauge, Histogram, Info};
use super::series::{Series, Subject, seconds};

/// A device of a pool.
#[derive(Debug)]
pub(super) struct DeviceFacts {
    pool: String,
    device: Device,
    /// Its pool is in service, so its counters are known.
    known: bool,
}

impl DeviceFacts {
    /// Returns the devices of a pool.
    pub fn of(facts: &PoolFacts) -> impl Iterator<Item = DeviceFacts> {
        let known = facts.load.is_some() && facts.pool.health != PoolHealth::Unavailable;
        facts.pool.devices.iter().map(move |device| DeviceFacts { pool: facts.pool.name.clone(), device: device.clone(), known })
    }
}

impl Subject for DeviceFacts {
    const LABELS: &'static [&'static str] = &["pool", "class", "device"];

    fn values(&self) -> Vec<&str> {
        vec![&self.pool, self.device.class.as_str(), self.device.key()]
    }
}

/// A series with one value per device of a pool in service.
macro_rules! value {
    ($kind:ident, $name:literal, $help:literal, $value:expr) => {
        Series {
            name: $name,
            kind: $kind,
            help: $help,
            labels: &[],
            read: |facts, to| {
                let value: fn(&Device) -> u64 = $value;
                if facts.known {
                    to.put(&[], value(&facts.device));
                }
            },
        }
    };
}

pub(super) const DEVICES: &[Series<DeviceFacts>] = &[
    Series {
        name: "millpond_device",
        kind: Info,
        help: "Path and serial number of a device, and layout of its group",
        labels: &["path", "serial", "layout"],
        read: |facts, to| {
            let Device { path, serial, layout, .. } = &facts.device;
            to.put(&[path, serial.as_deref().unwrap_or_default(), layout.as_str()], true);
        },
    },
    Series {
        name: "millpond_device_state",
        kind: Gauge,
        help: "1 for the state of a device in its pool, 0 for the others",
        labels: &["state"],
        read: |facts, to| to.put_state(DeviceState::WORDS, facts.device.state.as_str()),
    },
    Series {
        name: "millpond_device_health",
        kind: Gauge,
        help: "1 for the condition of a device, 0 for the others",
        labels: &["condition"],
        read: |facts, to| to.put_state(DeviceHealth::WORDS, facts.device.health.as_str()),
    },
    Series {
        name: "millpond_device_size_bytes",
        kind: Gauge,
        help: "Usable bytes",
        labels: &[],
        read: |facts, to| to.put(&[], facts.device.size),
    },
    value!(Gauge, "millpond_device_allocated_bytes", "Bytes of segments in use", |device| device.allocated),
    value!(Gauge, "millpond_device_free_bytes", "Bytes of free segments", |device| device.free),
    Series {
        name: "millpond_device_operations",
        kind: Counter,
        help: "Operations that the device completed",
        labels: &["operation"],
        read: |facts, to| {
            let io = &facts.device.io;
            let counts = [("read", io.reads), ("write", io.writes), ("flush", io.flushes), ("discard", io.discards)];
            counts.iter().filter(|_| facts.known).for_each(|(operation, count)| to.put(&[operation], *count));
        },
    },
    Series {
        name: "millpond_device_transferred_bytes",
        kind: Counter,
        help: "Bytes of reads and writes",
        labels: &["operation"],
        read: |facts, to| {
            let io = &facts.device.io;
            let bytes = [("read", io.read_bytes), ("write", io.write_bytes)];
            bytes.iter().filter(|_| facts.known).for_each(|(operation, bytes)| to.put(&[operation], *bytes));
        },
    },
    Series {
        name: "millpond_device_operation_duration_seconds",
        kind: Histogram,
        help: "Time that the device took for an operation",
        labels: &["operation"],
        read: |facts, to| {
            let io = &facts.device.io;
            let reads = io.read_nanos.saturating_sub(io.read_queue_nanos);
            let writes = io.write_nanos.saturating_sub(io.write_queue_nanos);
            let times = [("read", reads, &io.read_times), ("write", writes, &io.write_times), ("flush", io.flush_nanos, &io.flush_times)];
            for (operation, nanos, times) in times.into_iter().filter(|_| facts.known) {
                to.put_histogram(&[operation], nanos, &buckets::of_device(times));
            }
        },
    },
    Series {
        name: "millpond_device_queue_duration_seconds",
        kind: Histogram,
        help: "Time that a read or write waited for the limits of the device",
        labels: &[],
        read: |facts, to| {
            let io = &facts.device.io;
            if facts.known {
                to.put_histogram(&[], io.read_queue_nanos + io.write_queue_nanos, &buckets::of_device(&io.queue_times));
            }
        },
    },
    value!(Gauge, "millpond_device_operations_in_flight", "Operations in flight", |device| device.io.in_flight),
    Series {
        name: "millpond_device_busy_seconds",
        kind: Counter,
        help: "Time with at least one operation in flight",
        labels: &[],
        read: |facts, to| {
            if facts.known {
                to.put(&[], seconds(facts.device.io.busy_nanos));
            }
        },
    },
    Series {
        name: "millpond_device_errors",
        kind: Counter,
        help: "Errors since import: failed operations, and data that did not match its checksum",
        labels: &["kind"],
        read: |facts, to| {
            if facts.known {
                to.put(&["operation"], facts.device.io.failed);
                to.put(&["checksum"], facts.device.io.mismatched);
            }
        },
    },
    Series {
        name: "millpond_device_unresolved_errors",
        kind: Gauge,
        help: "Errors until the device is replaced or a scrub finds none, kept over restarts",
        labels: &[],
        read: |facts, to| to.put(&[], facts.device.errors),
    },
    value!(Gauge, "millpond_device_repaired_errors", "Unresolved errors whose data was repaired from other devices", |device| {
        device.repaired
    }),
];
