//! The interface that the simulator drives, a trait so that the oracle can be tested on a reference
//! system with known bugs.

use millpond_block::{DeviceGeometry, DeviceSlot, IoDone, IoKind, IoSlices};
pub use millpond_engine::Target;
use millpond_engine::{BucketObject, CommandError, Engine, KeyTable, PoolSpec, RestorePointScan, SnapshotInfo, StateMachine, Time, Tuning};
use millpond_format::ObjectName;

/// Returns a short name for traces.
pub fn target_name(target: Target) -> String {
    match target {
        Target::Head(id) => format!("vol{id}"),
        Target::Snapshot(id) => format!("snap{id}"),
    }
}

/// Reads a device at rest. Arguments: position in the vector given to `create` or `import`, offset
/// in bytes, buffer to fill.
pub type Media<'a> = &'a mut dyn FnMut(DeviceSlot, u64, &mut [u8]);

/// Reads an object of the bucket. Arguments: name, offset in bytes, buffer to fill; with zeroes behind the
/// end of the object.
pub type Objects<'a> = &'a mut dyn FnMut(ObjectName, u64, &mut [u8]);

/// A state machine that stores a pool; see `millpond_engine` for the contract of each call.
pub trait System: StateMachine + Sized {
    /// The system claims its devices, so that hosts can be distinguished.
    const CLAIMS: bool = false;
    /// The system can import an older checkpoint.
    const REWINDS: bool = false;
    /// The system stores options of volumes.
    const OPTIONS: bool = false;
    /// Formats the devices. The state is `Opening` until that is done.
    ///
    /// # Errors
    /// If the specification or the devices are unsuitable.
    fn create(spec: PoolSpec, devices: Vec<DeviceGeometry>, tuning: Tuning, now: Time) -> Result<Self, CommandError>;
    /// Recovers a pool. The state is `Opening`, then `Online` or `Faulted`.
    fn import(devices: Vec<DeviceGeometry>, tuning: Tuning, now: Time) -> Self;
    /// Returns the restore points on devices at rest, newest first.
    fn restore_points(_devices: Vec<DeviceGeometry>, _media: Media<'_>) -> Vec<u64> {
        Vec::new()
    }
    /// Returns the snapshots, as listed.
    fn snapshots(&self) -> Vec<SnapshotInfo>;
    /// Returns the key table.
    fn keys(&self) -> KeyTable {
        KeyTable::default()
    }
    /// Returns a line about the segments, for findings.
    fn space_report(&self) -> String {
        String::new()
    }
    /// Runs the system's check of its own accounting (I12), with all requests answered and the
    /// devices at rest. Returns one line for each error.
    fn audit(&mut self, media: Media<'_>, objects: Objects<'_>) -> Vec<String>;
    /// Returns the objects that segments of the bucket are.
    fn bucket_objects(&self) -> Vec<BucketObject> {
        Vec::new()
    }
    /// Takes back the buffers of a read.
    fn recycle(&mut self, data: IoSlices);
}

impl System for Engine {
    const CLAIMS: bool = true;
    const REWINDS: bool = true;
    const OPTIONS: bool = true;
    fn create(spec: PoolSpec, devices: Vec<DeviceGeometry>, tuning: Tuning, now: Time) -> Result<Engine, CommandError> {
        Engine::create(spec, devices, tuning, now)
    }
    fn import(devices: Vec<DeviceGeometry>, tuning: Tuning, now: Time) -> Engine {
        Engine::import(devices, tuning, now)
    }
    fn restore_points(devices: Vec<DeviceGeometry>, media: Media<'_>) -> Vec<u64> {
        let mut survey = RestorePointScan::new(devices, Tuning::default());
        loop {
            if let Some(surveyed) = survey.turn() {
                return surveyed.map_or(Vec::new(), |surveyed| surveyed.points.into_iter().map(|point| point.id).collect());
            }
            while let Some(io) = survey.pop_io() {
                let buf = match io.kind {
                    IoKind::Read { offset, length, mut buf } => {
                        media(io.device, offset, buf.bytes_mut().get_mut(..length).unwrap_or_default());
                        Some(buf)
                    }
                    _ => None,
                };
                survey.io_done(IoDone { id: io.id, result: Ok(()), buf });
            }
        }
    }
    fn snapshots(&self) -> Vec<SnapshotInfo> {
        Engine::snapshots(self)
    }
    fn keys(&self) -> KeyTable {
        Engine::keys(self)
    }
    fn space_report(&self) -> String {
        Engine::space_report(self)
    }
    fn audit(&mut self, media: Media<'_>, objects: Objects<'_>) -> Vec<String> {
        Engine::audit_with(self, media, objects).findings
    }
    fn bucket_objects(&self) -> Vec<BucketObject> {
        Engine::bucket_objects(self)
    }
    fn recycle(&mut self, data: IoSlices) {
        self.buffers().give_data(data);
    }
}
