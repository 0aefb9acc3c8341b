//! Reports of a shard: its exports, their clients, the host devices, and all counters at one
//! instant.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use millpond_api::GuestIo;
use millpond_block::{DeviceGeometry, DeviceSlot};
use millpond_device::{DeviceLimit, DeviceLoad, DeviceTimes};
use millpond_engine::{Metrics, PoolInfo, Target, Time};

use super::mount::ImageLoad;
use super::turns::Turns;

/// Identifies an export in the whole daemon and across restarts; chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExportId(pub u64);

impl fmt::Display for ExportId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An open file of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFile {
    /// Export of the mount.
    pub export: ExportId,
    /// Volume or snapshot behind the file.
    pub target: Target,
    /// The process that opened it.
    pub pid: u32,
}

/// A connected client of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientInfo {
    /// Number of the connection, unique within the shard.
    pub id: u64,
    /// Address of the peer: `unix:pid=123` or `10.0.0.1:3456`.
    pub peer: String,
    /// Time of the connection.
    pub since: Time,
    /// Protocol and cipher when its connection is encrypted.
    pub tls: Option<String>,
    /// Counters of its requests.
    pub counters: GuestIo,
}

/// An export, as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Id of the export.
    pub id: ExportId,
    /// NBD export name.
    pub name: String,
    /// Volume or snapshot that is served; `None` for the whole pool.
    pub target: Option<Target>,
    /// Path of the unix socket.
    pub unix: Option<PathBuf>,
    /// TCP address bound (the real port where 0 was requested).
    pub tcp: Option<SocketAddr>,
    /// Writes are refused.
    pub read_only: bool,
    /// Clients that are connected now.
    pub clients: Vec<ClientInfo>,
    /// Counters of all clients since the export was made, connected or not.
    pub counters: GuestIo,
    /// For a mount: the files that were opened and still exist.
    pub images: Vec<ImageLoad>,
}

/// A host device of the pool; devices are in the order in which they were handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDeviceInfo {
    /// Path it was opened by.
    pub path: PathBuf,
    /// Serial number of the disk; `None` for files.
    pub serial: Option<String>,
    /// Size and sectors.
    pub geometry: DeviceGeometry,
    /// True when the kernel's page cache is bypassed.
    pub direct: bool,
    /// Counters.
    pub load: DeviceLoad,
    /// Latencies.
    pub times: DeviceTimes,
    /// Cap in force.
    pub limit: DeviceLimit,
}

/// Everything that `pool list`, `pool status` and `pool iostat` show, at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardStatus {
    /// The pool, its state and capacity.
    pub pool: PoolInfo,
    /// The engine's counters.
    pub metrics: Metrics,
    /// Host devices by slot; `None` where a device was released.
    pub devices: Vec<Option<HostDeviceInfo>>,
    /// All guest requests over all exports since import.
    pub guests: GuestIo,
    /// Number of clients that are connected now.
    pub clients: u64,
    /// Lengths of its turns.
    pub turns: Turns,
}

impl ShardStatus {
    /// Returns the host device in a slot.
    pub fn host(&self, slot: DeviceSlot) -> Option<&HostDeviceInfo> {
        self.devices.get(slot.index())?.as_ref()
    }

    /// Returns all open host devices.
    pub fn hosts(&self) -> impl Iterator<Item = (DeviceSlot, &HostDeviceInfo)> {
        (0..).map(DeviceSlot).zip(&self.devices).filter_map(|(slot, host)| Some((slot, host.as_ref()?)))
    }
}

/// A shard and its exports at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardLook {
    /// The pool, its devices and counters.
    pub status: ShardStatus,
    /// The exports, by id.
    pub exports: Vec<ExportInfo>,
}
