//! What the simulator drives: the engine's facade as a trait, so that the judge can be tried on a reference system with known bugs.

use std::collections::BTreeMap;

use millpond_block::{Answer, Completion, Data, Payload, Query, Request, Tag};
use millpond_device::{DeviceGeometry, DeviceIndex, Io, IoDone, IoKind};
pub use millpond_engine::Target;
use millpond_engine::{
    Command, CommandError, DiffExtent, Engine, Entry, LabelsInForce, Metrics, PoolInfo, PoolSpec, PoolState, Reply, SnapshotInfo, Survey,
    Time, Tuning, VolumeId, VolumeInfo, VolumeOptions,
};

/// A short name for traces.
pub fn target_name(target: Target) -> String {
    match target {
        Target::Head(id) => format!("vol{id}"),
        Target::Snapshot(id) => format!("snap{id}"),
    }
}

/// Reads a device at rest: its position in the vector given to `create` or `import`, the offset in bytes, the buffer to fill.
pub type Media<'a> = &'a mut dyn FnMut(usize, u64, &mut [u8]);

/// A storage engine as a state machine; see `millpond_engine` for what each call promises.
pub trait System: Sized {
    /// It knows of other hosts.
    const CLAIMS: bool = false;
    /// It can go back to an older state.
    const REWINDS: bool = false;
    /// Formats the devices; `Opening` until done.
    ///
    /// # Errors
    /// When the specification or the devices do not do.
    fn create(spec: PoolSpec, devices: Vec<DeviceGeometry>, tuning: Tuning, now: Time) -> Result<Self, CommandError>;
    /// Recovers a pool; `Opening` until `Online` or `Faulted`.
    fn import(devices: Vec<DeviceGeometry>, tuning: Tuning, now: Time) -> Self;
    /// The restore points on devices at rest, the newest first.
    fn restore_points(_devices: Vec<DeviceGeometry>, _media: Media<'_>) -> Vec<u64> {
        Vec::new()
    }
    /// Condition of the pool.
    fn state(&self) -> PoolState;
    /// Starts a guest request.
    fn submit(&mut self, target: Target, tag: Tag, request: Request, payload: Payload<'_>);
    /// Starts one of a guest that sees a file: of any bytes.
    fn submit_bytes(&mut self, target: Target, tag: Tag, request: Request, payload: Payload<'_>);
    /// Starts either, as it comes from the limits of its volume.
    fn enter(&mut self, entry: Entry<'_>) {
        let Entry { target, tag, request, payload, bytes } = entry;
        if bytes { self.submit_bytes(target, tag, request, payload) } else { self.submit(target, tag, request, payload) }
    }
    /// Starts to find out what the map says.
    fn query(&mut self, target: Target, tag: Tag, query: Query);
    /// The next answer to a query.
    fn pop_answer(&mut self) -> Option<Answer>;
    /// Starts a command.
    fn command(&mut self, tag: Tag, command: Command);
    /// Goes on with requests, without background work.
    fn answer(&mut self, _now: Time) {}
    /// Lets the system work; true when it wants to be called again soon.
    fn turn(&mut self, now: Time) -> bool;
    /// A device operation ended.
    fn io_done(&mut self, done: IoDone);
    /// The next device operation to start.
    fn pop_io(&mut self) -> Option<Io>;
    /// Operations of a device are held back on purpose.
    fn excuse(&mut self, _device: DeviceIndex) {}
    /// Positions of devices that did not answer while the pool was opened.
    fn unanswered(&self) -> Vec<usize> {
        Vec::new()
    }
    /// Until when operations other than reads may be handed to devices.
    fn lease(&self) -> Option<Time> {
        None
    }
    /// Takes an operation back that came too late for that.
    fn take_back(&mut self, _io: Io) {}
    /// What volumes may take, where it is not the default.
    fn options(&self) -> Option<&BTreeMap<VolumeId, VolumeOptions>> {
        None
    }
    /// The next answer to a guest request.
    fn pop_completion(&mut self) -> Option<Completion>;
    /// The next answer to a command.
    fn pop_reply(&mut self) -> Option<(Tag, Result<Reply, CommandError>)>;
    /// The pool, as listed.
    fn pool(&self) -> Option<PoolInfo>;
    /// The volumes, as listed.
    fn volumes(&self) -> Vec<VolumeInfo>;
    /// The snapshots, as listed.
    fn snapshots(&self) -> Vec<SnapshotInfo>;
    /// The labels in force; `None` while labels are being written.
    fn labels_in_force(&self) -> Option<LabelsInForce> {
        None
    }
    /// Counters.
    fn metrics(&self) -> Metrics;
    /// One line about its segments, for findings.
    fn space_report(&self) -> String {
        String::new()
    }
    /// Starts a comparison of two states.
    fn start_diff(&mut self, tag: Tag, older: Option<Target>, newer: Target);
    /// The next comparison that is done.
    fn pop_diff(&mut self) -> Option<(Tag, Result<Vec<DiffExtent>, CommandError>)>;
    /// The system's own check of its accounting (I12), with no request unanswered and the devices at rest: what is wrong, one line each.
    fn audit(&mut self, media: Media<'_>) -> Vec<String>;
    /// Takes the buffers of a read back.
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
        let mut survey = Survey::new(devices, Tuning::default());
        loop {
            if let Some(told) = survey.turn() {
                return told.map_or(Vec::new(), |told| told.points.into_iter().map(|point| point.id).collect());
            }
            while let Some(io) = survey.pop_io() {
                let buf = match io.kind {
                    IoKind::Read { offset, length, mut buf } => {
                        media(usize::from(io.device.0), offset, buf.bytes_mut().get_mut(..length).unwrap_or_default());
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
    fn excuse(&mut self, device: DeviceIndex) {
        Engine::excuse(self, device);
    }
    fn unanswered(&self) -> Vec<usize> {
        Engine::unanswered(self).iter().map(|position| usize::from(*position)).collect()
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
