//! Devices of pools: their states, counters and limits, and the requests that add and remove them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::job::Job;
use super::layout::{ClassSpec, LayoutSpec};
use super::pool::Pool;
use super::replacement::DeviceNamed;
use super::words::words;

/// Devices of one class with one layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceGroup {
    /// The class of the devices.
    #[serde(default)]
    pub class: ClassSpec,
    /// Layout of segments over the devices.
    pub layout: LayoutSpec,
    /// The devices.
    pub devices: Vec<DeviceSpec>,
}

/// Request to add devices to a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AddDevices {
    /// Groups to add.
    pub groups: Vec<DeviceGroup>,
    /// If true, accepts devices that contain data, groups with less redundancy than the pool's
    /// others, and files below /dev.
    #[serde(default)]
    pub force: bool,
    /// If true, checks everything and changes nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// Request to remove a device from a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemoveDevice {
    /// Id, path or serial number of the device, as listed.
    pub device: String,
    /// If true, stops the running removal of the device, which stays in the pool.
    #[serde(default)]
    pub stop: bool,
    /// If true, checks everything and changes nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// Result of a request to remove a device, or of its dry run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceRemoval {
    /// The pool.
    #[serde(flatten)]
    pub pool: Pool,
    /// The device to be removed.
    #[serde(default)]
    pub device: DeviceNamed,
    /// Cost of the removal: bytes, time, and devices that are removed with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<RemovalPlan>,
    /// For a dry run with `stop`: the removals that would be stopped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stops: Vec<Job>,
}

/// Cost of a removal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemovalPlan {
    /// Bytes that move to other devices.
    pub moved_bytes: u64,
    /// True if there is not enough space for all data at once, so that some of it moves more than
    /// once.
    pub in_steps: bool,
    /// Devices that are removed with it, because too few would remain for their layout.
    pub leaves_with_it: Vec<String>,
    /// Expected rate in bytes per second.
    pub rate: u64,
    /// Origin of `rate`: the limit of a device, `job_rate`, or the rate of jobs while guests are
    /// active.
    pub rate_of: String,
    /// Duration in seconds at this rate.
    pub seconds: u64,
}

/// Request to limit the load of a device. A missing limit does not change; 0 removes a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitDevice {
    /// Id, path or serial number of the device, as listed.
    pub device: String,
    /// Limit in bytes per second, for reads and writes together.
    pub bps: Option<u64>,
    /// Limit in operations per second, for reads and writes together.
    pub iops: Option<u64>,
}

/// Limits of the load of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceCap {
    /// Limit in bytes per second, for reads and writes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bps: Option<u64>,
    /// Limit in operations per second, for reads and writes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
}

/// Device for a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceSpec {
    /// Absolute path of a block device or a file.
    pub path: String,
    /// Size in bytes of a sparse file to create at this path.
    pub create: Option<u64>,
}

/// Method of access to devices, only in requests. Other words are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IoMode {
    /// Bypass the kernel's page cache, where the host supports it.
    #[default]
    Direct,
    /// Use the kernel's page cache. Flushes still reach the device.
    Buffered,
}

/// Counters of one device, as the pool's thread measures them. Latencies have the resolution of the
/// thread's turns: tens of microseconds under load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceIo {
    /// Number of reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Sum of read latencies in nanoseconds.
    pub read_nanos: u64,
    /// Part of `read_nanos` before the reads were sent to the device, because of a limit.
    #[serde(default)]
    pub read_queue_nanos: u64,
    /// Number of writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Sum of write latencies in nanoseconds.
    pub write_nanos: u64,
    /// Part of `write_nanos` before the writes were sent to the device, because of a limit.
    #[serde(default)]
    pub write_queue_nanos: u64,
    /// Number of flushes.
    pub flushes: u64,
    /// Sum of flush latencies in nanoseconds.
    #[serde(default)]
    pub flush_nanos: u64,
    /// Number of discards.
    #[serde(default)]
    pub discards: u64,
    /// Operations in flight.
    pub in_flight: u64,
    /// Nanoseconds with at least one operation in flight, operations that wait for a limit
    /// included.
    #[serde(default)]
    pub busy_nanos: u64,
    /// Number of failed operations.
    #[serde(default)]
    pub failed: u64,
    /// Number of reads with data that did not match its checksum.
    #[serde(default)]
    pub mismatched: u64,
    /// Histogram of reads by the time that the device took. Each of the entries 0 to 3 counts
    /// reads of that many whole microseconds; after them there are four entries for each power of
    /// two. Empty entries at the end are left out.
    #[serde(default)]
    pub read_times: Vec<u64>,
    /// Histogram of writes, in the same form.
    #[serde(default)]
    pub write_times: Vec<u64>,
    /// Histogram of flushes, in the same form.
    #[serde(default)]
    pub flush_times: Vec<u64>,
    /// Histogram of reads and writes by the time before they were sent to the device, in the same
    /// form.
    #[serde(default)]
    pub queue_times: Vec<u64>,
}

words! {
    /// Class of a device of a pool.
    pub enum DeviceClass {
        /// All data that no other class takes.
        Data = "data",
        /// Map nodes, checkpoint objects and small writes.
        Special = "special",
        /// Recent writes, until they are moved to class data.
        Log = "log",
        /// Copies of blocks that are read more than once.
        Cache = "cache",
        /// Replacement for a device that is lost; empty until then.
        Spare = "spare",
        /// The pool is not in service.
        Unknown = "unknown",
    }
}

words! {
    /// Layout of the group of a device.
    pub enum DeviceLayout {
        /// Each segment on one device.
        Linear = "linear",
        /// Each segment striped over several devices.
        Stripe = "stripe",
        /// Each segment complete on each of several devices.
        Mirror = "mirror",
        /// Each segment striped over several devices, of which one may be missing.
        Parity1 = "parity1",
        /// Each segment striped over several devices, of which two may be missing.
        Parity2 = "parity2",
        /// The pool is not in service.
        Unknown = "unknown",
    }
}

impl DeviceLayout {
    /// Returns true if the data of a device is on other devices, too.
    pub fn is_redundant(&self) -> bool {
        match self {
            DeviceLayout::Mirror | DeviceLayout::Parity1 | DeviceLayout::Parity2 => true,
            DeviceLayout::Linear | DeviceLayout::Stripe | DeviceLayout::Unknown | DeviceLayout::Other(_) => false,
        }
    }
}

words! {
    /// State of a device in its pool.
    pub enum DeviceState {
        /// In use.
        Online = "online",
        /// A spare that does not replace any device yet.
        Available = "available",
        /// Not found.
        Missing = "missing",
        /// No longer used by the pool, or out of date.
        Failed = "failed",
        /// The pool has stopped because of this device, or for a reason that concerns all devices.
        Faulted = "faulted",
        /// Being filled with the data that it lacks.
        Resilvering = "resilvering",
        /// Another device in the list takes its place.
        Replacing = "replacing",
        /// The pool is not in service.
        Unavailable = "unavailable",
    }
}

words! {
    /// Condition of a device.
    pub enum DeviceHealth {
        /// No trouble is known.
        Ok = "ok",
        /// Slow compared with devices of the same class and layout, in the last minute with enough
        /// operations to compare.
        Slow = "slow",
        /// Its errors have increased in the last 24 hours.
        Failing = "failing",
        /// It does not answer.
        Silent = "silent",
        /// The filesystem or volume below it is full.
        Full = "full",
        /// The pool no longer uses it.
        Failed = "failed",
        /// It was not found at the import.
        Missing = "missing",
        /// It is being resilvered.
        Filling = "filling",
    }
}

impl DeviceHealth {
    /// Returns the value for daemons that do not report the condition of devices: an empty word.
    fn not_reported() -> DeviceHealth {
        DeviceHealth::Other(String::new())
    }
}

/// A device of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Device {
    /// Id of the device: eight hexadecimal digits, unique in the pool and constant. Empty if not
    /// known.
    #[serde(default)]
    pub id: String,
    /// Path at which the device was opened. For a missing device the last known path, or its id if
    /// the path is not known or belongs to another device of the pool now.
    pub path: String,
    /// Serial number of the disk; null for files and for disks without one.
    #[serde(default)]
    pub serial: Option<String>,
    /// Last known path of a missing device.
    #[serde(default)]
    pub was: Option<String>,
    /// Class of the device.
    pub class: DeviceClass,
    /// Layout of its group.
    pub layout: DeviceLayout,
    /// State of the device in the pool.
    pub state: DeviceState,
    /// Usable size in bytes.
    pub size: u64,
    /// Bytes of segments in use.
    pub allocated: u64,
    /// Bytes of free segments.
    pub free: u64,
    /// Number of errors: failed operations and checksum mismatches. The number is kept across
    /// restarts, until the device is replaced or a scrub that began after the last error finds
    /// none.
    pub errors: u64,
    /// Number of these errors that were repaired from another device.
    #[serde(default)]
    pub repaired: u64,
    /// Logical sector size in bytes; 0 if the device is not open.
    pub sector: u32,
    /// True if the kernel's page cache is bypassed.
    pub direct: bool,
    /// Limits of the device.
    #[serde(default)]
    pub limit: DeviceCap,
    /// Condition of the device; empty if the daemon does not report it.
    #[serde(default = "DeviceHealth::not_reported")]
    pub health: DeviceHealth,
    /// Reason if `health` is not `ok`.
    #[serde(default)]
    pub health_reason: Option<String>,
    /// Counters since import.
    pub io: DeviceIo,
}

impl Device {
    /// Returns the id, which is unique in the pool, or the path if the id is not known.
    pub fn key(&self) -> &str {
        if self.id.is_empty() { &self.path } else { &self.id }
    }
}
