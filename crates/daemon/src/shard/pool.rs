//! Interface between a shard and its pool: the engine's facade as a trait, so that the loop can be
//! tested and measured on a medium in memory.

use std::collections::BTreeMap;

use millpond_block::{
    Answer, BufPool, ByteRange, Completion, DeviceSlot, DeviceSpace, Features, Geometry, Io, IoDone, Payload, Query, Request, Tag,
};
use millpond_engine::{
    Command, CommandError, DiffExtent, Engine, Entry, ImageInfo, LabelsInForce, Metrics, PoolInfo, PoolState, Reply, SnapshotId,
    SnapshotInfo, Target, Time, VolumeId, VolumeInfo, VolumeOptions,
};
use millpond_format::DeviceNote;

/// A pool as a state machine: requests, commands, completed device operations and time go in;
/// device operations, completions and replies come out. The methods are those of [`Engine`], where
/// they are documented.
pub trait Pool: 'static {
    /// Returns the pool's state.
    fn state(&self) -> &PoolState;
    /// Announces that reads of these ranges will be submitted next.
    fn expect(&mut self, _target: Target, _reads: &[ByteRange]) {}
    /// Takes a guest request; never blocks.
    fn submit(&mut self, target: Target, tag: Tag, request: Request, payload: Payload<'_>);
    /// Like [`Pool::submit`], for a guest that sees a file.
    fn submit_bytes(&mut self, target: Target, tag: Tag, request: Request, payload: Payload<'_>);
    /// Submits a request that the limits of its volume have admitted, in one of these two ways.
    fn enter(&mut self, entry: Entry<'_>) {
        let Entry { target, tag, request, payload, bytes } = entry;
        if bytes { self.submit_bytes(target, tag, request, payload) } else { self.submit(target, tag, request, payload) }
    }
    /// Takes a query; never blocks.
    fn query(&mut self, target: Target, tag: Tag, query: Query);
    /// Takes a command.
    fn command(&mut self, tag: Tag, command: Command);
    /// Continues requests, without background work.
    fn answer(&mut self, now: Time);
    /// Works on everything that it has taken; true when it wants to be called again soon.
    fn turn(&mut self, now: Time) -> bool;
    /// Takes the completion of a device operation.
    fn io_done(&mut self, done: IoDone);
    /// Notes that operations of a device are throttled on purpose.
    fn excuse(&mut self, _device: DeviceSlot) {}
    /// Sets what space the host provides for a device.
    fn set_space(&mut self, _device: DeviceSlot, _space: DeviceSpace) {}
    /// Sets whether the file systems below the devices are nearly full.
    fn set_short(&mut self, _short: bool) {}
    /// Returns the slots of devices that did not answer while the pool was opened.
    fn unanswered(&self) -> Vec<DeviceSlot> {
        Vec::new()
    }
    /// Returns the next device operation to start.
    fn pop_io(&mut self) -> Option<Io>;
    /// Returns until when operations other than reads may be handed to devices.
    fn lease(&self) -> Option<Time>;
    /// Takes back an operation that came too late for the lease.
    fn take_back(&mut self, io: Io);
    /// Returns the next completion of a guest request.
    fn pop_completion(&mut self) -> Option<Completion>;
    /// Returns the next answer to a query.
    fn pop_answer(&mut self) -> Option<Answer>;
    /// Returns the next reply to a command.
    fn pop_reply(&mut self) -> Option<(Tag, Result<Reply, CommandError>)>;
    /// Returns the pool, as listed; `None` until it is known. Until then neither commands nor
    /// comparisons are answered.
    fn pool(&self) -> Option<PoolInfo>;
    /// Returns the generation of the labels in force; `None` while they are being written.
    fn label_generation(&self) -> Option<u64> {
        None
    }
    /// Returns the labels in force.
    fn labels_in_force(&self) -> Option<LabelsInForce> {
        None
    }
    /// Returns its volumes.
    fn volumes(&self) -> Vec<VolumeInfo>;
    /// Returns the volume of this name.
    fn find_volume(&self, name: &str) -> Option<VolumeInfo>;
    /// Returns up to `most` snapshots with ids above `after`, by id.
    fn snapshots_after(&self, after: Option<SnapshotId>, most: usize) -> Vec<SnapshotInfo>;
    /// Returns the snapshot of this name.
    fn find_snapshot(&self, volume: VolumeId, name: &str) -> Option<SnapshotInfo>;
    /// Returns the file that stands for a target.
    fn image(&self, target: Target) -> Option<ImageInfo>;
    /// Returns up to `most` volumes with ids above `after`, by id.
    fn volume_images(&self, after: Option<VolumeId>, most: usize) -> Vec<(VolumeId, ImageInfo)>;
    /// Returns up to `most` snapshots of a volume with ids above `after`, by id.
    fn snapshot_images(&self, volume: VolumeId, after: Option<SnapshotId>, most: usize) -> Vec<(SnapshotId, ImageInfo)>;
    /// Returns up to `most` snapshots that a target can be compared with.
    fn older_states(&self, target: Target, most: usize) -> Vec<(String, SnapshotId)>;
    /// Returns the snapshot of this name that a target can be compared with.
    fn older_state(&self, target: Target, name: &str) -> Option<SnapshotId>;
    /// Returns the options of the volumes that have other than the default ones.
    fn options(&self) -> &BTreeMap<VolumeId, VolumeOptions>;
    /// Sets the size of the read cache, in bytes.
    fn set_read_cache(&mut self, _bytes: u64) {}
    /// Describes its devices, for their labels.
    fn describe_devices(&mut self, _seen: Vec<DeviceNote>) {}
    /// Returns the counters since the import.
    fn metrics(&self) -> Metrics;
    /// Returns geometry and features of a target; `None` when there is no such target.
    fn geometry(&self, target: Target) -> Option<(Geometry, Features)>;
    /// Begins to compare two states.
    fn start_diff(&mut self, tag: Tag, older: Option<Target>, newer: Target);
    /// Returns the next result of a comparison.
    fn pop_diff(&mut self) -> Option<(Tag, Result<Vec<DiffExtent>, CommandError>)>;
    /// Returns the pool of reusable buffers.
    fn buffers(&mut self) -> &mut BufPool;
}

impl Pool for Engine {
    fn state(&self) -> &PoolState {
        Engine::state(self)
    }

    fn expect(&mut self, target: Target, reads: &[ByteRange]) {
        Engine::expect(self, target, reads);
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

    fn command(&mut self, tag: Tag, command: Command) {
        Engine::command(self, tag, command);
    }

    fn answer(&mut self, now: Time) {
        Engine::answer(self, now);
    }

    fn turn(&mut self, now: Time) -> bool {
        Engine::turn(self, now)
    }

    fn io_done(&mut self, done: IoDone) {
        Engine::io_done(self, done);
    }

    fn set_space(&mut self, device: DeviceSlot, space: DeviceSpace) {
        Engine::set_space(self, device, space);
    }

    fn set_short(&mut self, short: bool) {
        Engine::set_short(self, short);
    }

    fn excuse(&mut self, device: DeviceSlot) {
        Engine::excuse(self, device);
    }

    fn unanswered(&self) -> Vec<DeviceSlot> {
        Engine::unanswered(self).to_vec()
    }

    fn pop_io(&mut self) -> Option<Io> {
        Engine::pop_io(self)
    }

    fn lease(&self) -> Option<Time> {
        Engine::lease(self)
    }

    fn take_back(&mut self, io: Io) {
        Engine::take_back(self, io);
    }

    fn pop_completion(&mut self) -> Option<Completion> {
        Engine::pop_completion(self)
    }

    fn pop_answer(&mut self) -> Option<Answer> {
        Engine::pop_answer(self)
    }

    fn pop_reply(&mut self) -> Option<(Tag, Result<Reply, CommandError>)> {
        Engine::pop_reply(self)
    }

    fn pool(&self) -> Option<PoolInfo> {
        Engine::pool(self)
    }

    fn label_generation(&self) -> Option<u64> {
        Engine::label_generation(self)
    }

    fn labels_in_force(&self) -> Option<LabelsInForce> {
        Engine::labels_in_force(self)
    }

    fn volumes(&self) -> Vec<VolumeInfo> {
        Engine::volumes(self)
    }

    fn find_volume(&self, name: &str) -> Option<VolumeInfo> {
        Engine::find_volume(self, name)
    }

    fn snapshots_after(&self, after: Option<SnapshotId>, most: usize) -> Vec<SnapshotInfo> {
        Engine::snapshots_after(self, after, most)
    }

    fn find_snapshot(&self, volume: VolumeId, name: &str) -> Option<SnapshotInfo> {
        Engine::find_snapshot(self, volume, name)
    }

    fn image(&self, target: Target) -> Option<ImageInfo> {
        Engine::image(self, target)
    }

    fn volume_images(&self, after: Option<VolumeId>, most: usize) -> Vec<(VolumeId, ImageInfo)> {
        Engine::volume_images(self, after, most)
    }

    fn snapshot_images(&self, volume: VolumeId, after: Option<SnapshotId>, most: usize) -> Vec<(SnapshotId, ImageInfo)> {
        Engine::snapshot_images(self, volume, after, most)
    }

    fn older_states(&self, target: Target, most: usize) -> Vec<(String, SnapshotId)> {
        Engine::older_states(self, target, most)
    }

    fn older_state(&self, target: Target, name: &str) -> Option<SnapshotId> {
        Engine::older_state(self, target, name)
    }

    fn options(&self) -> &BTreeMap<VolumeId, VolumeOptions> {
        Engine::options(self)
    }

    fn set_read_cache(&mut self, bytes: u64) {
        Engine::set_read_cache(self, bytes);
    }

    fn describe_devices(&mut self, seen: Vec<DeviceNote>) {
        Engine::describe_devices(self, seen);
    }

    fn metrics(&self) -> Metrics {
        Engine::metrics(self)
    }

    fn geometry(&self, target: Target) -> Option<(Geometry, Features)> {
        Engine::geometry(self, target)
    }

    fn start_diff(&mut self, tag: Tag, older: Option<Target>, newer: Target) {
        Engine::start_diff(self, tag, older, newer);
    }

    fn pop_diff(&mut self) -> Option<(Tag, Result<Vec<DiffExtent>, CommandError>)> {
        Engine::pop_diff(self)
    }

    fn buffers(&mut self) -> &mut BufPool {
        Engine::buffers(self)
    }
}
