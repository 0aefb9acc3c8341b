//! Counters for live charts.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{DeviceIo, GuestIo};

/// Counters of a pool since its import, for charts: two answers give rates and latencies of the time
/// between them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolLoad {
    /// Time of the counts.
    #[schema(value_type = String, format = DateTime)]
    pub time: Timestamp,
    /// Time when the pool was taken into service: counts begin at 0 then.
    #[schema(value_type = String, format = DateTime)]
    pub imported: Timestamp,
    /// Requests of guests to all volumes.
    pub guests: RequestLoad,
    /// Requests of guests to the volume that was asked for.
    pub volume: Option<RequestLoad>,
    /// Devices in member order.
    pub devices: Vec<DeviceLoad>,
}

/// Requests of guests, with histograms of their latencies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RequestLoad {
    /// Counters.
    pub io: GuestIo,
    /// Upper ends of the classes of latencies in microseconds; the last class has all longer ones
    /// and no end here.
    pub ends_micros: Vec<u64>,
    /// Number of reads by class.
    pub read_times: Vec<u64>,
    /// Number of writes by class.
    pub write_times: Vec<u64>,
    /// Number of flushes by class.
    pub flush_times: Vec<u64>,
}

/// Operations of a device, with histograms of their latencies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceLoad {
    /// Id of the device.
    pub id: String,
    /// Path of the device.
    pub path: String,
    /// Counters.
    pub io: DeviceIo,
}
