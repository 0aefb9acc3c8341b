//! [`Engine`]: the facade. See the crate's documentation for the contract.

use std::collections::BTreeMap;

use millpond_block::{
    Answer, Buf, BufPool, ByteRange, Completion, DeviceGeometry, DeviceSlot, DeviceSpace, DiskError, Features, Geometry, Io, IoDone,
    Payload, Query, Request, Tag,
};
use millpond_format::{DeviceNote, SegmentId, SnapshotId, VolumeId};

use crate::Target;
use crate::open::{Import, create};
use crate::pool::{Grain, Pool};
use crate::space::Named;
use crate::{
    BucketError, BucketObject, BucketState, BucketWork, Busy, CodecWork, Command, CommandError, DiffExtent, Fault, Fetch, FetchError,
    ImageInfo, KeyTable, LabelsInForce, Metrics, PoolInfo, PoolSpec, PoolState, ReadCacheSize, Reply, SnapshotInfo, Time, Tuning,
    VolumeInfo, VolumeOptions,
};

static NO_OPTIONS: BTreeMap<VolumeId, VolumeOptions> = BTreeMap::new();

enum Phase {
    Importing(Box<Import>),
    Open(Box<Pool>),
}

/// The engine of one pool.
///
/// Call [`turn`](Engine::turn) after each group of submits, commands and completions; start the
/// operations that [`pop_io`](Engine::pop_io) returns, and report the end of each to
/// [`io_done`](Engine::io_done).
///
/// Durability: when a write completes, the kernel (or the device's volatile cache) has it and
/// everything before it; when a flush completes, or a write with FUA or under `directsync` and
/// `writethrough`, it is on stable media with its map; the same holds for a reply to a command.
pub struct Engine {
    phase: Phase,
    opening: PoolState,
    refused: Vec<Completion>,
    unanswered: Vec<Answer>,
    early: Vec<(Tag, Result<Reply, CommandError>)>,
    early_diffs: Vec<(Tag, Result<Vec<DiffExtent>, CommandError>)>,
    bufs: BufPool,
    /// Allocated space on the hosts of devices, until the pool is open.
    hosts: BTreeMap<DeviceSlot, DeviceSpace>,
}

impl Engine {
    /// Creates a pool on `devices`. The state is [`PoolState::Opening`] until it is on them.
    ///
    /// # Errors
    /// [`CommandError::Invalid`] when the spec or the devices are not acceptable; nothing was
    /// written then.
    pub fn create(spec: PoolSpec, devices: Vec<DeviceGeometry>, tuning: Tuning, now: Time) -> Result<Engine, CommandError> {
        let pool = create(spec, &devices, tuning, now)?;
        Ok(Engine::with(Phase::Open(Box::new(pool))))
    }

    /// Checks that [`Engine::create`] would create a pool on such devices. Nothing is written.
    ///
    /// # Errors
    /// Those of [`Engine::create`].
    pub fn check_create(spec: PoolSpec, devices: &[DeviceGeometry], tuning: Tuning, now: Time) -> Result<(), CommandError> {
        create(spec, devices, tuning, now).map(drop)
    }

    /// Imports the pool on `devices`, in any order: reads labels, finds the newest checkpoint,
    /// replays the log. The state is [`PoolState::Opening`], then [`PoolState::Online`], or
    /// [`PoolState::Faulted`] with the reason.
    pub fn import(devices: Vec<DeviceGeometry>, tuning: Tuning, now: Time) -> Engine {
        Engine::with(Phase::Importing(Box::new(Import::new(devices, tuning, now))))
    }

    fn with(phase: Phase) -> Engine {
        Engine {
            phase,
            opening: PoolState::Opening,
            refused: Vec::new(),
            unanswered: Vec::new(),
            early: Vec::new(),
            early_diffs: Vec::new(),
            bufs: BufPool::default(),
            hosts: BTreeMap::new(),
        }
    }

    /// Returns the state of the pool.
    pub fn state(&self) -> &PoolState {
        match &self.phase {
            Phase::Importing(_) => &self.opening,
            Phase::Open(pool) => &pool.store.state,
        }
    }

    /// Announces reads or writes of these ranges, so that their map entries are loaded into the CPU
    /// cache together. A hint without any other effect.
    pub fn expect(&self, target: Target, ranges: &[ByteRange]) {
        if let Some(pool) = self.open() {
            pool.requests.expect(&pool.store, target, ranges);
        }
    }

    /// Starts a guest request after checking it. Never blocks; exactly one completion follows.
    pub fn submit(&mut self, target: Target, tag: Tag, request: Request, payload: Payload<'_>) {
        match &mut self.phase {
            Phase::Importing(_) => self.refused.push(Completion { tag, result: Err(DiskError::Shutdown) }),
            Phase::Open(pool) => pool.submit(target, tag, request, payload, Grain::Sector),
        }
    }

    /// As [`submit`](Self::submit), for a guest that sees a file: accepts any range of bytes.
    /// Blocks that a write covers in part are read, filled in and written under a lock, so that
    /// concurrent writes of neighbouring bytes, through any export, lose nothing.
    pub fn submit_bytes(&mut self, target: Target, tag: Tag, request: Request, payload: Payload<'_>) {
        match &mut self.phase {
            Phase::Importing(_) => self.refused.push(Completion { tag, result: Err(DiskError::Shutdown) }),
            Phase::Open(pool) => pool.submit(target, tag, request, payload, Grain::Byte),
        }
    }

    /// Starts a query of a target's map, which takes some steps per turn; exactly one answer
    /// follows. [`millpond_block::Since`] is the id of a snapshot. The result reflects every write
    /// and discard that was answered before; it is [`DiskError::Invalid`] when that snapshot does
    /// not exist any more.
    pub fn query(&mut self, target: Target, tag: Tag, query: Query) {
        match &mut self.phase {
            Phase::Importing(_) => self.unanswered.push(Answer { tag, result: Err(DiskError::Shutdown) }),
            Phase::Open(pool) => pool.requests.start_query(&mut pool.store, target, tag, query),
        }
    }

    /// Returns the next answer to a query.
    pub fn pop_answer(&mut self) -> Option<Answer> {
        self.unanswered.pop().or_else(|| self.open_mut()?.requests.answers.pop_front())
    }

    /// Starts a command; exactly one reply follows, when its effect is durable.
    pub fn command(&mut self, tag: Tag, command: Command) {
        match &mut self.phase {
            Phase::Importing(_) => self.early.push((tag, Err(CommandError::Busy(Busy::Opening)))),
            Phase::Open(pool) => pool.command(tag, command),
        }
    }

    /// Continues requests after device operations have ended, starts new ones, and does the work
    /// that frees the space that they wait for. A caller whose devices complete at once calls this
    /// repeatedly while it helps before the next turn, so that requests do not wait for background
    /// work. `now` must not go back, and must be recent when the returned operations are started.
    pub fn answer(&mut self, now: Time) {
        match &mut self.phase {
            Phase::Importing(import) => import.at(now),
            Phase::Open(pool) => {
                pool.lease.at(now);
                pool.answer();
            }
        }
    }

    /// Runs one turn: seals the batch, starts device writes, continues background work. `now` must
    /// not go back. Returns true when it wants to be called again soon even without events.
    pub fn turn(&mut self, now: Time) -> bool {
        match &mut self.phase {
            Phase::Open(pool) => pool.turn(now),
            Phase::Importing(import) => {
                let ready = import.turn(now);
                let rests = import.rests();
                if let Some(why) = import.failure() {
                    self.opening = PoolState::Faulted(Fault::Open(Box::new(why.clone())));
                }
                if let Some(mut pool) = ready {
                    pool.store.begin_service();
                    std::mem::take(&mut self.hosts).into_iter().for_each(|(slot, space)| pool.store.set_host(slot, space));
                    self.phase = Phase::Open(Box::new(pool));
                }
                let waits = matches!(&self.phase, Phase::Importing(import) if import.waits());
                !rests && !waits && !matches!(self.opening, PoolState::Faulted(_))
            }
        }
    }

    /// Sets the time of a clock that only passes and that no user can set, in milliseconds. Only
    /// its differences matter, and only while the pool is open: locks of snapshots are counted in
    /// them.
    pub fn pass(&mut self, host: u64) {
        if let Some(pool) = self.open_mut() {
            pool.store.service.at(host);
        }
    }

    /// Reports the end of a device operation.
    pub fn io_done(&mut self, done: IoDone) {
        match &mut self.phase {
            Phase::Importing(import) => import.io_done(done),
            Phase::Open(pool) => pool.io_done(done),
        }
    }

    /// Reports that the caller delays operations of a device on purpose, so that the device is not
    /// judged as silent.
    pub fn excuse(&mut self, device: DeviceSlot) {
        match &mut self.phase {
            Phase::Importing(import) => import.excuse(device),
            Phase::Open(pool) => pool.store.io.excuse(device),
        }
    }

    /// Sets the allocated space on the host of a device when the pool is opened or the device is
    /// added. By default the host is assumed to have allocated nothing for free
    /// segments, and to do so at the first write. No stored data depends on it.
    pub fn set_space(&mut self, device: DeviceSlot, space: DeviceSpace) {
        match &mut self.phase {
            Phase::Importing(_) => _ = self.hosts.insert(device, space),
            Phase::Open(pool) => pool.store.set_host(device, space),
        }
    }

    /// Sets whether the storage below the pool's devices is nearly full: then as much space as
    /// possible is released to the host, and no segments are prepared.
    pub fn set_short(&mut self, short: bool) {
        if let Phase::Open(pool) = &mut self.phase {
            pool.store.stock.set_short(short);
        }
    }

    /// Returns the slots of devices that did not answer while the pool was opened: the import was
    /// refused because of them, or continued without them.
    pub fn unanswered(&self) -> &[DeviceSlot] {
        match &self.phase {
            Phase::Importing(import) => import.unanswered(),
            Phase::Open(pool) => &pool.unanswered,
        }
    }

    /// Returns the next device operation to start. Operations may be executed and complete in any
    /// order.
    pub fn pop_io(&mut self) -> Option<Io> {
        match &mut self.phase {
            Phase::Importing(import) => import.pop_io(),
            Phase::Open(pool) => pool.store.io.pop(pool.lease.holds_back()),
        }
    }

    /// Returns the next compression or decompression to do, on any thread and in any order; to be
    /// returned by [`codec_done`](Engine::codec_done). There is none where
    /// [`Tuning::codec_at_once`] is without limit.
    pub fn pop_codec_work(&mut self) -> Option<CodecWork> {
        self.open_mut()?.requests.codec.pop()
    }

    /// Takes work back that [`pop_codec_work`](Engine::pop_codec_work) returned and that was done.
    pub fn codec_done(&mut self, work: CodecWork) {
        if let Some(pool) = self.open_mut() {
            pool.requests.codec_done(&mut pool.store, work);
        }
    }

    /// Returns the next chunk of a base to fetch, on any thread and in any order, at most 16 at a time;
    /// the result is given to [`fetched`](Engine::fetched).
    pub fn pop_fetch(&mut self) -> Option<Fetch> {
        let pool = self.open_mut()?;
        pool.requests.fetches.pop(pool.store.incarnation)
    }

    /// Takes the bytes of a chunk, all of them or more; `None` if all are zero. Reads that wait for the
    /// chunk go on; after an error they fail, and the next one asks for the chunk again. The result of
    /// a fetch that is not known, for example one of an earlier import, is ignored. Only of imports that
    /// do not write the caller has to know whose result it is: two in a row may use the same numbers.
    pub fn fetched(&mut self, fetch: Fetch, result: Result<Option<Buf>, FetchError>) {
        if let Some(pool) = self.open_mut() {
            pool.requests.fetched(&mut pool.store, fetch, result);
        }
    }

    /// Returns whether reads wait for a chunk that [`pop_fetch`](Engine::pop_fetch) returned.
    pub fn is_fetch_wanted(&self, fetch: Fetch) -> bool {
        self.open().is_some_and(|pool| pool.requests.fetches.is_wanted(fetch))
    }

    /// Fails the requests that wait for chunks of bases and whose tags `of` accepts, with
    /// [`DiskError::Shutdown`]: their client is gone.
    pub fn end_fetch_waits(&mut self, of: &dyn Fn(Tag) -> bool) {
        if let Some(pool) = self.open_mut() {
            pool.requests.end_fetch_waits(&mut pool.store, of);
        }
    }

    /// Reports what the caller knows of the pool's bucket. Data goes there while it is ready, from when the
    /// record of the term is durable. Before the first report the bucket counts as away.
    ///
    /// # Errors
    /// `Invalid` when the pool has no bucket, or the term is not later than all terms before, or another
    /// one than this import has taken; `Busy` while the pool is opened or closes, or only reads; `Faulted`.
    /// Nothing has changed then.
    pub fn set_bucket(&mut self, state: BucketState) -> Result<(), CommandError> {
        self.open_mut().map_or(Err(CommandError::Busy(Busy::Opening)), |pool| pool.set_bucket(state))
    }

    /// Returns the next request to the pool's bucket, to be made on any thread and in any order; its
    /// result is given to [`bucket_done`](Engine::bucket_done).
    pub fn pop_bucket_work(&mut self) -> Option<BucketWork> {
        self.open_mut()?.pop_bucket_work()
    }

    /// Takes the result of a request to the bucket: the bytes of a read, or none when the object was
    /// created and is durable. A store that does not answer has no result: it is asked again. A result of a
    /// request that is not known, for example one of an earlier import or one that comes twice, is ignored.
    /// An object that cannot be created stops the pool.
    pub fn bucket_done(&mut self, id: u64, result: Result<Option<Buf>, BucketError>) {
        if let Some(pool) = self.open_mut() {
            pool.bucket_done(id, result);
        }
    }

    /// Returns the objects of the bucket that the pool has segments for, in the order of these.
    pub fn bucket_objects(&self) -> Vec<BucketObject> {
        let Some(pool) = self.open() else { return Vec::new() };
        let space = &pool.store.core.space;
        let is_live = |id| space.segments.get(id).is_some_and(|segment| segment.live > 0);
        let object =
            |(id, named): (SegmentId, Named)| BucketObject { name: named.name.into(), pages: u32::from(named.pages), is_live: is_live(id) };
        space.names.iter().map(object).collect()
    }

    /// Returns the time until which operations other than reads may be handed to devices
    /// (INV-CLAIM-1); `None` means without limit. Operations may wait after
    /// [`pop_io`](Engine::pop_io), so the caller checks this when it hands them over, and returns
    /// those that are too late by [`take_back`](Engine::take_back).
    pub fn lease(&self) -> Option<Time> {
        match &self.phase {
            Phase::Importing(import) => import.lease(),
            Phase::Open(pool) => pool.lease.lease(),
        }
    }

    /// Takes back an operation that was not handed to a device because the lease had expired: it is
    /// popped again once the claim was seen in place.
    pub fn take_back(&mut self, io: Io) {
        match &mut self.phase {
            Phase::Importing(import) => import.take_back(io),
            Phase::Open(pool) => pool.store.io.take_back(io),
        }
    }

    /// Returns the next completion of a guest request.
    pub fn pop_completion(&mut self) -> Option<Completion> {
        match &mut self.phase {
            Phase::Importing(_) => self.refused.pop(),
            Phase::Open(pool) => self.refused.pop().or_else(|| pool.requests.completions.pop_front()),
        }
    }

    /// Returns the next reply to a command.
    pub fn pop_reply(&mut self) -> Option<(Tag, Result<Reply, CommandError>)> {
        self.early.pop().or_else(|| self.open_mut()?.store.replies.pop_front())
    }

    /// Starts to compare two versions; `None` as `older` is the empty disk.
    pub fn start_diff(&mut self, tag: Tag, older: Option<Target>, newer: Target) {
        match &mut self.phase {
            Phase::Importing(_) => self.early_diffs.push((tag, Err(CommandError::Busy(Busy::Opening)))),
            Phase::Open(pool) => pool.requests.start_diff(&mut pool.store, tag, older, newer),
        }
    }

    /// Returns the next finished comparison: extents in order, neighbours joined.
    pub fn pop_diff(&mut self) -> Option<(Tag, Result<Vec<DiffExtent>, CommandError>)> {
        self.early_diffs.pop().or_else(|| self.open_mut()?.requests.diffs.pop_front())
    }

    /// Returns the options of volumes that have other than the defaults.
    pub fn options(&self) -> &BTreeMap<VolumeId, VolumeOptions> {
        self.open().map_or(&NO_OPTIONS, |pool| pool.store.core.catalog.options())
    }

    /// Returns size, sectors and features of a target, while it exists.
    pub fn geometry(&self, target: Target) -> Option<(Geometry, Features)> {
        self.open().and_then(|pool| pool.store.geometry(target))
    }

    /// Returns how many times the bytes that it moves a request to a target holds in memory, at most.
    pub fn memory_times(&self, target: Target) -> u64 {
        self.open().map_or(1, |pool| pool.store.memory_times(target))
    }

    /// Returns information about the pool, once it is open.
    pub fn pool(&self) -> Option<PoolInfo> {
        self.open().map(Pool::info)
    }

    /// Returns the key table.
    pub fn keys(&self) -> KeyTable {
        self.open().map(|pool| pool.store.key_table()).unwrap_or_default()
    }

    /// Returns the generation of the labels in force; `None` while they are being written, and
    /// until the pool is open.
    pub fn label_generation(&self) -> Option<u64> {
        self.open().and_then(|pool| pool.store.label_generation())
    }

    /// Returns the labels in force; `None` while they are being written, and until the pool is
    /// open.
    pub fn labels_in_force(&self) -> Option<LabelsInForce> {
        self.open().and_then(|pool| pool.store.labels_in_force())
    }

    /// Returns all volumes.
    pub fn volumes(&self) -> Vec<VolumeInfo> {
        self.open().map(Pool::volumes).unwrap_or_default()
    }

    /// Returns up to `most` volumes with ids above `after`, by id: for long lists in parts.
    pub fn volumes_after(&self, after: Option<VolumeId>, most: usize) -> Vec<VolumeInfo> {
        self.open().map(|pool| pool.volumes_after(after, most)).unwrap_or_default()
    }

    /// Returns the volume that a target belongs to; `None` when the target does not exist.
    pub fn volume_of(&self, target: Target) -> Option<VolumeId> {
        self.open()?.store.volume_of(target)
    }

    /// Returns all snapshots, by volume and age.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        self.open().map(|pool| pool.store.snapshots()).unwrap_or_default()
    }

    /// Returns up to `most` snapshots with ids above `after`, by id: for long lists in parts.
    pub fn snapshots_after(&self, after: Option<SnapshotId>, most: usize) -> Vec<SnapshotInfo> {
        self.open().map(|pool| pool.store.snapshots_after(after, most)).unwrap_or_default()
    }

    /// Returns the volume with this name.
    pub fn find_volume(&self, name: &str) -> Option<VolumeInfo> {
        self.open()?.find_volume(name)
    }

    /// Returns the snapshot of a volume with this name.
    pub fn find_snapshot(&self, volume: VolumeId, name: &str) -> Option<SnapshotInfo> {
        self.open()?.store.find_snapshot(volume, name)
    }

    /// Returns the properties of a target that is served as a file; cheaper than those of a
    /// listing. `None` when it does not exist.
    pub fn image(&self, target: Target) -> Option<ImageInfo> {
        self.open()?.store.image(target)
    }

    /// Returns up to `most` volumes with ids above `after`, by id.
    pub fn volume_images(&self, after: Option<VolumeId>, most: usize) -> Vec<(VolumeId, ImageInfo)> {
        self.open().map(|pool| pool.store.volume_images(after, most)).unwrap_or_default()
    }

    /// Returns up to `most` snapshots of a volume with ids above `after`, by id.
    pub fn snapshot_images(&self, volume: VolumeId, after: Option<SnapshotId>, most: usize) -> Vec<(SnapshotId, ImageInfo)> {
        self.open().map(|pool| pool.store.snapshot_images(volume, after, most)).unwrap_or_default()
    }

    /// Returns up to `most` snapshots that a target can be compared with by
    /// [`query`](Engine::query): those of its volume, by name.
    pub fn older_states(&self, target: Target, most: usize) -> Vec<(String, SnapshotId)> {
        self.open().map(|pool| pool.store.older_states(target, most)).unwrap_or_default()
    }

    /// Returns the snapshot of this name that a target can be compared with.
    pub fn older_state(&self, target: Target, name: &str) -> Option<SnapshotId> {
        self.open()?.store.older_state(target, name)
    }

    /// Returns the counters since the import.
    pub fn metrics(&self) -> Metrics {
        self.open().map(Pool::metrics).unwrap_or_default()
    }

    /// Sets the size of the read cache, at once; excess blocks are evicted.
    pub fn set_read_cache(&mut self, size: ReadCacheSize) {
        match &mut self.phase {
            Phase::Importing(import) => import.set_read_cache(size),
            Phase::Open(pool) => pool.requests.arrange_read_cache(&pool.store, size),
        }
    }

    /// Describes the devices that are present. Their labels store this, and keep the last
    /// description of missing ones, for users who look for a missing device.
    pub fn describe_devices(&mut self, seen: Vec<DeviceNote>) {
        if let Phase::Open(pool) = &mut self.phase {
            pool.label_writer.describe_devices(&mut pool.store, seen);
        }
    }

    /// Returns the pool of buffers for payloads, to which data of reads is returned.
    pub fn buffers(&mut self) -> &mut BufPool {
        match &mut self.phase {
            Phase::Importing(_) => &mut self.bufs,
            Phase::Open(pool) => &mut pool.store.bufs,
        }
    }

    /// Returns the number of segments in each state and how full they are, as one line for
    /// debugging.
    pub fn space_report(&self) -> String {
        self.open().map(Pool::space_report).unwrap_or_default()
    }

    pub(crate) fn open(&self) -> Option<&Pool> {
        match &self.phase {
            Phase::Importing(_) => None,
            Phase::Open(pool) => Some(pool),
        }
    }

    fn open_mut(&mut self) -> Option<&mut Pool> {
        match &mut self.phase {
            Phase::Importing(_) => None,
            Phase::Open(pool) => Some(pool),
        }
    }
}
