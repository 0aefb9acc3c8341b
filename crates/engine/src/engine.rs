//! [`Engine`]: the facade. See the crate's documentation for the contract.

use std::collections::BTreeMap;

use millpond_block::{Answer, BufPool, ByteRange, Completion, DiskError, Features, Geometry, Payload, Query, Request, Tag};
use millpond_device::{DeviceGeometry, DeviceIndex, DeviceSpace, Io, IoDone};
use millpond_format::{DeviceNote, SnapshotId, VolumeId};

use crate::open::{Import, create};
use crate::pool::{Grain, Pool, Target};
use crate::{
    Command, CommandError, DiffExtent, ImageInfo, LabelsInForce, Metrics, PoolInfo, PoolSpec, PoolState, Reply, SnapshotInfo, Time, Tuning,
    VolumeInfo, VolumeOptions,
};

/// What commands are told during an import.
const NOT_YET: &str = "the pool is still being opened; try again when it is online";

static NO_OPTIONS: BTreeMap<VolumeId, VolumeOptions> = BTreeMap::new();

enum Phase {
    Importing(Box<Import>),
    Open(Box<Pool>),
}

/// The engine of one pool.
///
/// Call [`turn`](Engine::turn) after each group of submits, commands and completions; start what [`pop_io`](Engine::pop_io) gives and
/// report every end to [`io_done`](Engine::io_done).
///
/// Durability: a completion of a write means that the kernel (or the device's volatile cache) has it and all before it; a completion of
/// a flush, or of a write with FUA or under `directsync` and `writethrough`, that it is on stable media with its map; a reply to a
/// command the same.
pub struct Engine {
    phase: Phase,
    opening: PoolState,
    refused: Vec<Completion>,
    unanswered: Vec<Answer>,
    early: Vec<(Tag, Result<Reply, CommandError>)>,
    early_diffs: Vec<(Tag, Result<Vec<DiffExtent>, CommandError>)>,
    bufs: BufPool,
    /// What the host has for devices, until the pool is open.
    hosts: BTreeMap<u16, DeviceSpace>,
}

impl Engine {
    /// Makes a pool on `devices`. [`PoolState::Opening`] until it is on them.
    ///
    /// # Errors
    /// [`CommandError::Invalid`] when the spec or the devices are not acceptable; nothing was written then.
    pub fn create(spec: PoolSpec, devices: Vec<DeviceGeometry>, tuning: Tuning, now: Time) -> Result<Engine, CommandError> {
        let pool = create(spec, &devices, tuning, now)?;
        Ok(Engine::with(Phase::Open(Box::new(pool))))
    }

    /// Checks that [`Engine::create`] would make a pool over such devices. Nothing is made.
    ///
    /// # Errors
    /// Those of [`Engine::create`].
    pub fn check_create(spec: PoolSpec, devices: &[DeviceGeometry], tuning: Tuning, now: Time) -> Result<(), CommandError> {
        create(spec, devices, tuning, now).map(drop)
    }

    /// Imports the pool on `devices`, in any order: reads labels, finds the newest checkpoint, replays the log.
    /// [`PoolState::Opening`], then [`PoolState::Online`] or [`PoolState::Faulted`] with the reason.
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

    /// Condition of the pool.
    pub fn state(&self) -> &PoolState {
        match &self.phase {
            Phase::Importing(_) => &self.opening,
            Phase::Open(pool) => &pool.state,
        }
    }

    /// Says that reads of these ranges are about to be submitted, so that what they need of the map comes into the processor's cache for all of
    /// them at the same time. Nothing else follows from it.
    pub fn expect(&self, target: Target, reads: &[ByteRange]) {
        if let Some(pool) = self.open() {
            pool.expect(target, reads);
        }
    }

    /// Starts a guest request; it is checked first. Never blocks; exactly one completion comes.
    pub fn submit(&mut self, target: Target, tag: Tag, request: Request, payload: Payload<'_>) {
        match &mut self.phase {
            Phase::Importing(_) => self.refused.push(Completion { tag, result: Err(DiskError::Shutdown) }),
            Phase::Open(pool) => pool.submit(target, tag, request, payload, Grain::Sector),
        }
    }

    /// The same for a guest that sees a file: any range of bytes. Blocks that a write covers in part are read, filled in and written under a
    /// lock of theirs, so that neighbours who write at the same time, through whichever export, lose nothing.
    pub fn submit_bytes(&mut self, target: Target, tag: Tag, request: Request, payload: Payload<'_>) {
        match &mut self.phase {
            Phase::Importing(_) => self.refused.push(Completion { tag, result: Err(DiskError::Shutdown) }),
            Phase::Open(pool) => pool.submit(target, tag, request, payload, Grain::Byte),
        }
    }

    /// Starts to find out what a target's map says, some steps per turn; exactly one answer comes. [`millpond_block::Since`] is the id of a snapshot.
    /// What is said of a block takes account of every write and discard answered before; [`DiskError::Invalid`] when that snapshot is gone.
    pub fn query(&mut self, target: Target, tag: Tag, query: Query) {
        match &mut self.phase {
            Phase::Importing(_) => self.unanswered.push(Answer { tag, result: Err(DiskError::Shutdown) }),
            Phase::Open(pool) => pool.start_query(target, tag, query),
        }
    }

    /// The next answer to a query.
    pub fn pop_answer(&mut self) -> Option<Answer> {
        self.unanswered.pop().or_else(|| self.open_mut()?.answers.pop_front())
    }

    /// Starts a command; exactly one reply comes, when its effect is durable.
    pub fn command(&mut self, tag: Tag, command: Command) {
        match &mut self.phase {
            Phase::Importing(_) => self.early.push((tag, Err(CommandError::Busy(NOT_YET.to_owned())))),
            Phase::Open(pool) => pool.command(tag, command),
        }
    }

    /// Goes on with requests, and with making the room that they wait for: what waits for ended device operations, and what came since. A
    /// caller whose devices answer at once calls it as often as that helps before the next turn, so that requests do not wait for background work.
    /// `now` must not go back, and is not long ago when the operations that come out are started.
    pub fn answer(&mut self, now: Time) {
        match &mut self.phase {
            Phase::Importing(import) => import.at(now),
            Phase::Open(pool) => {
                pool.keeper.at(now);
                pool.answer();
            }
        }
    }

    /// One turn: seals the batch, starts device writes, goes on with background work. `now` must not go back.
    /// True when it wants to be called again soon even without events.
    pub fn turn(&mut self, now: Time) -> bool {
        match &mut self.phase {
            Phase::Open(pool) => pool.turn(now),
            Phase::Importing(import) => {
                let ready = import.turn(now);
                let rests = import.rests();
                if let Some(why) = import.failure() {
                    self.opening = PoolState::Faulted(why.to_owned());
                }
                if let Some(mut pool) = ready {
                    std::mem::take(&mut self.hosts).into_iter().for_each(|(position, space)| pool.set_host(position, space));
                    self.phase = Phase::Open(Box::new(pool));
                }
                let waits = matches!(&self.phase, Phase::Importing(import) if import.waits());
                !rests && !waits && !matches!(self.opening, PoolState::Faulted(_))
            }
        }
    }

    /// A device operation ended.
    pub fn io_done(&mut self, done: IoDone) {
        match &mut self.phase {
            Phase::Importing(import) => import.io_done(done),
            Phase::Open(pool) => pool.io_done(done),
        }
    }

    /// Operations of a device are held back on purpose, so that none of them can end: that it answers nothing is not its fault.
    pub fn excuse(&mut self, device: DeviceIndex) {
        match &mut self.phase {
            Phase::Importing(import) => import.excuse(device.0),
            Phase::Open(pool) => pool.io.excuse(device.0),
        }
    }

    /// Says what the host has for a device, by its position, when the pool is opened or the device comes. Without it the host is taken to have nothing
    /// for free segments, and to find bytes for them with the first write. Nothing that is stored depends on it.
    pub fn set_space(&mut self, device: DeviceIndex, space: DeviceSpace) {
        match &mut self.phase {
            Phase::Importing(_) => _ = self.hosts.insert(device.0, space),
            Phase::Open(pool) => pool.set_host(device.0, space),
        }
    }

    /// Says whether what holds the pool's devices has little room left: then the host gets back what it can, and nothing is prepared.
    pub fn set_short(&mut self, short: bool) {
        if let Phase::Open(pool) = &mut self.phase {
            pool.stock.set_short(short);
        }
    }

    /// Devices that did not answer while the pool was opened, by their positions: for them the import was refused, or it went on without them.
    pub fn unanswered(&self) -> &[u16] {
        match &self.phase {
            Phase::Importing(import) => import.unanswered(),
            Phase::Open(pool) => &pool.unanswered,
        }
    }

    /// The next device operation to start. They may be carried out and complete in any order.
    pub fn pop_io(&mut self) -> Option<Io> {
        match &mut self.phase {
            Phase::Importing(import) => import.pop_io(),
            Phase::Open(pool) => pool.io.pop(pool.holds_back()),
        }
    }

    /// Until when operations other than reads may be handed to devices (INV-CLAIM-1); for ever where there is none. The caller makes sure of it where
    /// it hands them over, for operations may wait after [`pop_io`](Engine::pop_io), and gives those that came too late to
    /// [`take_back`](Engine::take_back).
    pub fn lease(&self) -> Option<Time> {
        match &self.phase {
            Phase::Importing(import) => import.lease(),
            Phase::Open(pool) => pool.lease(),
        }
    }

    /// An operation that no device was given, because the lease was over: it is popped again when the claim was seen in place.
    pub fn take_back(&mut self, io: Io) {
        match &mut self.phase {
            Phase::Importing(import) => import.take_back(io),
            Phase::Open(pool) => pool.io.take_back(io),
        }
    }

    /// The next answer to a guest request.
    pub fn pop_completion(&mut self) -> Option<Completion> {
        match &mut self.phase {
            Phase::Importing(_) => self.refused.pop(),
            Phase::Open(pool) => self.refused.pop().or_else(|| pool.completions.pop_front()),
        }
    }

    /// The next answer to a command.
    pub fn pop_reply(&mut self) -> Option<(Tag, Result<Reply, CommandError>)> {
        self.early.pop().or_else(|| self.open_mut()?.replies.pop_front())
    }

    /// Starts to compare two states; `older` `None` is the empty disk.
    pub fn start_diff(&mut self, tag: Tag, older: Option<Target>, newer: Target) {
        match &mut self.phase {
            Phase::Importing(_) => self.early_diffs.push((tag, Err(CommandError::Busy(NOT_YET.to_owned())))),
            Phase::Open(pool) => pool.start_diff(tag, older, newer),
        }
    }

    /// The next finished comparison: extents in order, neighbours joined.
    pub fn pop_diff(&mut self) -> Option<(Tag, Result<Vec<DiffExtent>, CommandError>)> {
        self.early_diffs.pop().or_else(|| self.open_mut()?.diffs.pop_front())
    }

    /// What volumes may take and what is kept for them, of those that have others than the defaults.
    pub fn options(&self) -> &BTreeMap<VolumeId, VolumeOptions> {
        self.open().map_or(&NO_OPTIONS, |pool| pool.core.catalog.options())
    }

    /// Size, sectors and features of a target, while it exists.
    pub fn geometry(&self, target: Target) -> Option<(Geometry, Features)> {
        self.open().and_then(|pool| pool.geometry(target))
    }

    /// The pool, once it is known.
    pub fn pool(&self) -> Option<PoolInfo> {
        self.open().map(Pool::info)
    }

    /// Generation of the labels in force; `None` while they are being written, and until the pool is open.
    pub fn label_generation(&self) -> Option<u64> {
        self.open().and_then(Pool::label_generation)
    }

    /// The labels in force; `None` while they are being written, and until the pool is open.
    pub fn labels_in_force(&self) -> Option<LabelsInForce> {
        self.open().and_then(Pool::labels_in_force)
    }

    /// Its volumes.
    pub fn volumes(&self) -> Vec<VolumeInfo> {
        self.open().map(Pool::volumes).unwrap_or_default()
    }

    /// Its snapshots, by volume and age.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        self.open().map(Pool::snapshots).unwrap_or_default()
    }

    /// Up to `most` snapshots of ids above `after`, by id: for a list of many, piece by piece.
    pub fn snapshots_after(&self, after: Option<SnapshotId>, most: usize) -> Vec<SnapshotInfo> {
        self.open().map(|pool| pool.snapshots_after(after, most)).unwrap_or_default()
    }

    /// The volume of this name.
    pub fn find_volume(&self, name: &str) -> Option<VolumeInfo> {
        self.open()?.find_volume(name)
    }

    /// The snapshot of this name.
    pub fn find_snapshot(&self, volume: VolumeId, name: &str) -> Option<SnapshotInfo> {
        self.open()?.find_snapshot(volume, name)
    }

    /// What is served as a file: cheap to tell, unlike all that a listing says. `None` when it is gone.
    pub fn image(&self, target: Target) -> Option<ImageInfo> {
        self.open()?.image(target)
    }

    /// Up to `most` volumes of ids above `after`, by id.
    pub fn volume_images(&self, after: Option<VolumeId>, most: usize) -> Vec<(VolumeId, ImageInfo)> {
        self.open().map(|pool| pool.volume_images(after, most)).unwrap_or_default()
    }

    /// Up to `most` snapshots of a volume of ids above `after`, by id.
    pub fn snapshot_images(&self, volume: VolumeId, after: Option<SnapshotId>, most: usize) -> Vec<(SnapshotId, ImageInfo)> {
        self.open().map(|pool| pool.snapshot_images(volume, after, most)).unwrap_or_default()
    }

    /// Up to `most` snapshots that a target can be compared with by [`query`](Engine::query): those of its volume, by name.
    pub fn older_states(&self, target: Target, most: usize) -> Vec<(String, SnapshotId)> {
        self.open().map(|pool| pool.older_states(target, most)).unwrap_or_default()
    }

    /// The one of this name.
    pub fn older_state(&self, target: Target, name: &str) -> Option<SnapshotId> {
        self.open()?.older_state(target, name)
    }

    /// Counters since import.
    pub fn metrics(&self) -> Metrics {
        self.open().map(Pool::metrics).unwrap_or_default()
    }

    /// Sets how many bytes of blocks the read cache may keep, at once; what is more goes.
    pub fn set_read_cache(&mut self, bytes: u64) {
        match &mut self.phase {
            Phase::Importing(import) => import.set_read_cache(bytes),
            Phase::Open(pool) => pool.arrange_read_cache(bytes),
        }
    }

    /// Says how the devices of the pool look that are there: their labels say it to whoever misses one, after those that are missing now,
    /// too.
    pub fn describe_devices(&mut self, seen: Vec<DeviceNote>) {
        if let Phase::Open(pool) = &mut self.phase {
            pool.describe_devices(seen);
        }
    }

    /// Where buffers for payloads come from and data of reads goes back to.
    pub fn buffers(&mut self) -> &mut BufPool {
        match &mut self.phase {
            Phase::Importing(_) => &mut self.bufs,
            Phase::Open(pool) => &mut pool.bufs,
        }
    }

    /// One line about segments, for debugging: how many are in each state and how full.
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
