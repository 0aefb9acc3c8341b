//! The interface that the simulator drives: the engine's facade as a trait, so that the oracle can
//! be tested on a reference system with known bugs.

use std::collections::BTreeMap;

use millpond_block::{Answer, Completion, Data, DeviceGeometry, DeviceSlot, Io, IoDone, IoKind, Payload, Query, Request, Tag};
pub use millpond_engine::Target;
use millpond_engine::{
    Command, CommandError, DiffExtent, Engine, Entry, LabelsInForce, Metrics, PoolInfo, PoolSpec, PoolState, Reply, RestorePointScan,
    SnapshotInfo, Time, Tuning, VolumeId, VolumeInfo, VolumeOptions,
};

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

/// A storage engine as a state machine; see `millpond_engine` for the contract of each call.
pub trait System: Sized {
    /// The system claims its devices, so that hosts can be distinguished.
    const CLAIMS: bool = false;
    /// The system can import an older checkpoint.
    const REWINDS: bool = false;
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
    /// Returns the state of the pool.
    fn state(&self) -> PoolState;
    /// Starts a guest request.
    fn submit(&mut self, target: Target, tag: Tag, request: Request, payload: Payload<'_>);
    /// Starts a byte-granular request of a guest with a file.
    fn submit_bytes(&mut self, target: Target, tag: Tag, request: Request, payload: Payload<'_>);
    /// Starts a request of either kind, after the limits of its volume have admitted it.
    fn enter(&mut self, entry: Entry<'_>) {
        let Entry { target, tag, request, payload, bytes } = entry;
        if bytes { self.submit_bytes(target, tag, request, payload) } else { self.submit(target, tag, request, payload) }
    }
    /// Starts a map query: holes, or changes since a snapshot.
    fn query(&mut self, target: Target, tag: Tag, query: Query);
    /// Returns the next answer to a query.
    fn pop_answer(&mut self) -> Option<Answer>;
    /// Starts a command.
    fn command(&mut self, tag: Tag, command: Command);
    /// Makes progress with requests only, without background work.
    fn answer(&mut self, _now: Time) {}
    /// Makes progress; returns true if the system wants another turn soon.
    fn turn(&mut self, now: Time) -> bool;
    /// Reports the end of a device operation.
    fn io_done(&mut self, done: IoDone);
    /// Returns the next device operation to start.
    fn pop_io(&mut self) -> Option<Io>;
    /// Notes that a cap delays operations of a device, which is no failure of the device.
    fn excuse(&mut self, _device: DeviceSlot) {}
    /// Returns the positions of devices that did not answer while the pool was opened.
    fn unanswered(&self) -> Vec<DeviceSlot> {
        Vec::new()
    }
    /// Returns the time until which operations other than reads may be submitted to devices.
    fn lease(&self) -> Option<Time> {
        None
    }
    /// Takes back an operation that was not submitted before the lease ended.
    fn take_back(&mut self, _io: Io) {}
    /// Returns the options of volumes that differ from the defaults.
    fn options(&self) -> Option<&BTreeMap<VolumeId, VolumeOptions>> {
        None
    }
    /// Returns the next answer to a guest request.
    fn pop_completion(&mut self) -> Option<Completion>;
    /// Returns the next answer to a command.
    fn pop_reply(&mut self) -> Option<(Tag, Result<Reply, CommandError>)>;
    /// Returns the pool, as listed.
    fn pool(&self) -> Option<PoolInfo>;
    /// Returns the volumes, as listed.
    fn volumes(&self) -> Vec<VolumeInfo>;
    /// Returns the snapshots, as listed.
    fn snapshots(&self) -> Vec<SnapshotInfo>;
    /// Returns the labels in force; `None` while labels are being written.
    fn labels_in_force(&self) -> Option<LabelsInForce> {
        None
    }
    /// Returns the counters.
    fn metrics(&self) -> Metrics;
    /// Returns a line about the segments, for findings.
    fn space_report(&self) -> String {
        String::new()
    }
    /// Starts a comparison of two versions.
    fn start_diff(&mut self, tag: Tag, older: Option<Target>, newer: Target);
    /// Returns the next finished comparison.
    fn pop_diff(&mut self) -> Option<(Tag, Result<Vec<DiffExtent>, CommandError>)>;
    /// Runs the system's check of its own accounting (I12), with all requests answered and the
    /// devices at rest. Returns one line for each error.
    fn audit(&mut self, media: Media<'_>) -> Vec<String>;
    /// Takes back the buffers of a read.
    fn recycle(&mut self, data: Data);
}

impl System for Engine {
    const CLAIMS: bool = true;
    const REWINDS: bool = true;
    fn create(spec: PoolSpec, devices: Vec<DeviceGeometry>, tuning: Tuning, now: Time) -> Result<Engine, CommandError> {
        Engine::create(spec, devices, tuning, now)
    }
    fn import(devices: Vec<DeviceGeometry>, tuning: Tuning, now: Time) -> Engine {
        Engine::import(devices, tuning, now)
    }
    fn restore_points(devices: Vec<DeviceGeometry>, media: Media<'_>) -> Vec<u64> {
        let mut survey = RestorePointScan::new(devices, Tuning::default());
        loop {
            if let Some(told) = survey.turn() {
                return told.map_or(Vec::new(), |told| told.points.into_iter().map(|point| point.id).collect());
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
    fn state(&self) -> PoolState {
        Engine::state(self).clone()
    }
    fn submit(&mut self, target: Target, tag: Tag, request: Request, payload: Payload<'_>) {
        Engine::submit(self, target, tag, request, payload);
    }
    fn submit_bytes(&mut self, target: Target, tag: Tag, request: Request, payload: Payload<'_>) {
        Engine::submit_bytes(self, target, tag, request, payload);
    }
    fn query(&mut self, target: Target, tag: Tag, query: Query) {
        Engine::query(self, target, tag, query);
    }
    fn pop_answer(&mut self) -> Option<Answer> {
        Engine::pop_answer(self)
    }
    fn command(&mut self, tag: Tag, command: Command) {
        Engine::command(self, tag, command);
    }
    fn answer(&mut self, now: Time) {
        Engine::answer(self, now);
    }
    fn turn(&mut self, now: Time) -> bool {
        Engine::answer(self, now);
        Engine::turn(self, now)
    }
    fn io_done(&mut self, done: IoDone) {
        Engine::io_done(self, done);
    }
    fn pop_io(&mut self) -> Option<Io> {
        Engine::pop_io(self)
    }
    fn excuse(&mut self, device: DeviceSlot) {
        Engine::excuse(self, device);
    }
    fn unanswered(&self) -> Vec<DeviceSlot> {
        Engine::unanswered(self).to_vec()
    }
    fn lease(&self) -> Option<Time> {
        Engine::lease(self)
    }
    fn take_back(&mut self, io: Io) {
        Engine::take_back(self, io);
    }
    fn options(&self) -> Option<&BTreeMap<VolumeId, VolumeOptions>> {
        Some(Engine::options(self))
    }
    fn pop_completion(&mut self) -> Option<Completion> {
        Engine::pop_completion(self)
    }
    fn pop_reply(&mut self) -> Option<(Tag, Result<Reply, CommandError>)> {
        Engine::pop_reply(self)
    }
    fn pool(&self) -> Option<PoolInfo> {
        Engine::pool(self)
    }
    fn volumes(&self) -> Vec<VolumeInfo> {
        Engine::volumes(self)
    }
    fn snapshots(&self) -> Vec<SnapshotInfo> {
        Engine::snapshots(self)
    }
    fn labels_in_force(&self) -> Option<LabelsInForce> {
        Engine::labels_in_force(self)
    }
    fn metrics(&self) -> Metrics {
        Engine::metrics(self)
    }
    fn space_report(&self) -> String {
        Engine::space_report(self)
    }
    fn start_diff(&mut self, tag: Tag, older: Option<Target>, newer: Target) {
        Engine::start_diff(self, tag, older, newer);
    }
    fn pop_diff(&mut self) -> Option<(Tag, Result<Vec<DiffExtent>, CommandError>)> {
        Engine::pop_diff(self)
    }
    fn audit(&mut self, media: Media<'_>) -> Vec<String> {
        Engine::audit(self, media).findings
    }
    fn recycle(&mut self, data: Data) {
        self.buffers().give_data(data);
    }
}
