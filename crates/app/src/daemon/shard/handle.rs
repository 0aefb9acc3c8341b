//! The way into a shard from other threads: a cloneable, `Send` handle whose calls become messages and whose answers are futures.
//!
//! Every call may be made from any thread; the futures need no particular runtime (they wait on a oneshot channel). A call to a shard
//! that has ended answers [`ShardError::Gone`]. Dropping every handle closes the pool in an orderly way, as [`ShardHandle::shutdown`] does.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use millpond_block::ByteRange;
use millpond_device::{DeviceGeometry, DeviceIndex, DeviceLimit, DeviceLoad, DeviceTimes, HostDevice, Waker};
use millpond_engine::{
    Command, DiffExtent, LabelsInForce, Metrics, NewDevice, PoolInfo, PoolState, Reply, SnapshotId, SnapshotInfo, Target, Time, VolumeId,
    VolumeInfo,
};
use millpond_format::DeviceNote;
use tokio::sync::{oneshot, watch};

pub use super::error::ShardError;
use super::fall::Fall;
use super::mount::ImageLoad;
use super::spec::{FuseExport, NbdExport};
use super::turns::Turns;
use super::vhost::VhostUserExport;
use crate::daemon::budget::Budget;
use crate::daemon::tls::Credentials;
use crate::instant;

/// Names an export over the whole daemon and across restarts; chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExportId(pub u64);

impl fmt::Display for ExportId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A file of a mount that somebody has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFile {
    /// The mount.
    pub export: ExportId,
    /// What is open.
    pub target: Target,
    /// The process that opened it.
    pub pid: u32,
}

/// Requests answered, and bytes of them; errors are counted apart and in nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounters {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Sum of the reads' latencies in nanoseconds, from receipt to the reply's hand-over to the socket.
    pub read_nanos: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Sum of the writes' latencies in nanoseconds.
    pub write_nanos: u64,
    /// Flushes.
    pub flushes: u64,
    /// Of the writes, those that asked to be durable by themselves.
    pub fua_writes: u64,
    /// Discards and zeroings.
    pub discards: u64,
    /// Bytes of them.
    pub discard_bytes: u64,
    /// Requests answered with an error.
    pub errors: u64,
}

/// A connected client of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientInfo {
    /// Number of the connection, unique within the shard.
    pub id: u64,
    /// Address of the peer: `unix:pid=123` or `10.0.0.1:3456`.
    pub peer: String,
    /// When it connected.
    pub since: Time,
    /// Protocol and cipher when its connection is encrypted.
    pub tls: Option<String>,
    /// What it did.
    pub counters: IoCounters,
}

/// An export, as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Identity.
    pub id: ExportId,
    /// NBD export name.
    pub name: String,
    /// What is served; `None` for the whole pool.
    pub target: Option<Target>,
    /// Path of the unix socket.
    pub unix: Option<PathBuf>,
    /// TCP address bound (the real port where 0 was asked for).
    pub tcp: Option<SocketAddr>,
    /// Writes are refused.
    pub read_only: bool,
    /// Clients connected now.
    pub clients: Vec<ClientInfo>,
    /// All clients since the export was made, present and gone.
    pub counters: IoCounters,
    /// Of a mount: each file that was opened and is still there.
    pub images: Vec<ImageLoad>,
}

/// A host device of the pool, in the order the devices were handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDeviceInfo {
    /// Path it was opened by.
    pub path: PathBuf,
    /// Serial number of the disk; nothing for files.
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
    /// Host devices by position; nothing where one was let go.
    pub devices: Vec<Option<HostDeviceInfo>>,
    /// All guest requests over all exports since import.
    pub guests: IoCounters,
    /// Clients connected now.
    pub clients: u64,
    /// How long its turns were.
    pub turns: Turns,
}

/// A shard and its exports at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardLook {
    /// The pool, its devices and counters.
    pub status: ShardStatus,
    /// The exports, by id.
    pub exports: Vec<ExportInfo>,
}

/// Why there is no look at a shard.
#[derive(Clone, Debug)]
pub enum Unseen {
    /// The shard's thread has not answered since then.
    Silent(Timestamp),
    /// The shard has ended, or the pool is not open.
    Refused(Arc<ShardError>),
}

/// The answer to a look, once there is one.
pub(super) type LookAnswer = Option<Result<Arc<ShardLook>, Arc<ShardError>>>;

/// The last look that was asked for.
#[derive(Clone)]
struct Asked {
    since: Timestamp,
    begun: Instant,
    answer: watch::Receiver<LookAnswer>,
}

/// Where a message's answer goes.
pub(super) type Answer<T> = oneshot::Sender<Result<T, ShardError>>;

/// What a handle says to its shard.
#[allow(dead_code, reason = "serves `import-image` and `export-image`, whose verbs are not there yet")]
pub(super) enum Message {
    Command(Command, Answer<Reply>),
    Export(NbdExport, Answer<ExportInfo>),
    ExportVhostUser(VhostUserExport, Answer<ExportInfo>),
    ExportFuse(FuseExport, Answer<ExportInfo>),
    RenewTls(ExportId, Credentials, Answer<()>),
    KeepPromises(Target, Answer<()>),
    OpenFiles(Answer<Vec<OpenFile>>),
    Unexport(ExportId, Answer<()>),
    Status(Answer<ShardStatus>),
    /// Status and exports at one instant, for all who ask meanwhile.
    Look(watch::Sender<LookAnswer>),
    Unanswered(Answer<Vec<usize>>),
    Volumes(Answer<Vec<VolumeInfo>>),
    FindVolume(String, Answer<Option<VolumeInfo>>),
    Snapshots(Option<SnapshotId>, Answer<Vec<SnapshotInfo>>),
    FindSnapshot(VolumeId, String, Answer<Option<SnapshotInfo>>),
    Exports(Answer<Vec<ExportInfo>>),
    Diff(Option<Target>, Target, Answer<Vec<DiffExtent>>),
    Limit(DeviceIndex, DeviceLimit, Answer<()>),
    ReadCache(u64),
    /// Labels are to say how devices look.
    Describe(Vec<DeviceNote>),
    /// What holds the devices has little room left, or has some again.
    Short(bool),
    Budget(Arc<Budget>),
    Read(Target, ByteRange, Answer<Vec<u8>>),
    Write(Target, u64, Vec<u8>, Answer<()>),
    Flush(Target, Answer<()>),
    AddDevice(Box<HostDevice>, Answer<NewDevice>),
    RemoveDevice(usize, Answer<bool>),
    Shutdown(Answer<()>),
    /// As if the program had a defect.
    #[cfg(test)]
    Panic,
    /// As if the kernel held the thread, until the sender is dropped.
    #[cfg(test)]
    Hold(mpsc::Receiver<()>),
    Abandon,
}

/// How long a shard may take to answer what needs no device: its thread is at other work for milliseconds at most, unless the kernel holds it.
pub const SILENCE: Duration = Duration::from_secs(10);

/// A way to talk to a shard: cheap to clone, `Send` and `Sync`.
#[derive(Clone)]
pub struct ShardHandle {
    /// Declared before `waker`: dropped first, so that the wake-up of the last handle's drop finds the channel closed.
    messages: mpsc::Sender<Message>,
    waker: WakeOnDrop,
    state: watch::Receiver<PoolState>,
    labels: watch::Receiver<Option<LabelsInForce>>,
    fall: Fall,
    asked: Arc<Mutex<Option<Asked>>>,
}

/// Wakes the shard when dropped, so that it notices that nobody is left.
#[derive(Clone)]
struct WakeOnDrop(Waker);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        self.0.wake();
    }
}

#[allow(dead_code, reason = "serves `import-image` and `export-image`, whose verbs are not there yet")]
impl ShardHandle {
    pub(super) fn new(
        messages: mpsc::Sender<Message>,
        waker: Waker,
        state: watch::Receiver<PoolState>,
        labels: watch::Receiver<Option<LabelsInForce>>,
        fall: Fall,
    ) -> ShardHandle {
        ShardHandle { messages, waker: WakeOnDrop(waker), state, labels, fall, asked: Arc::default() }
    }

    /// Why the shard has ended, when nobody asked it to. Its devices are free.
    pub fn fallen(&self) -> Option<&str> {
        self.fall.reason()
    }

    /// Makes the shard's thread panic.
    #[cfg(test)]
    pub fn panic(&self) {
        let _ = self.messages.send(Message::Panic);
        self.waker.0.wake();
    }

    /// Holds the shard's thread until the sender is dropped.
    #[cfg(test)]
    pub fn hold(&self) -> mpsc::Sender<()> {
        let (free, held) = mpsc::channel();
        self.post(Message::Hold(held));
        free
    }

    /// Carries out a change or a job and answers when it is durable. [`Command::Close`] is for [`ShardHandle::shutdown`]; given here it
    /// closes the pool but leaves the thread.
    ///
    /// # Errors
    /// [`ShardError::Command`] as the engine says, or because the pool is still `Opening`; [`ShardError::Gone`].
    pub async fn command(&self, command: Command) -> Result<Reply, ShardError> {
        self.ask(|answer| Message::Command(command, answer)).await
    }

    /// Takes a device over that a command will name.
    ///
    /// # Errors
    /// [`ShardError::Command`] when there are too many, [`ShardError::Gone`].
    pub async fn add_device(&self, device: HostDevice) -> Result<NewDevice, ShardError> {
        self.ask(|answer| Message::AddDevice(Box::new(device), answer)).await
    }

    /// Lets a device go that the pool does not use any more, and its lock with it. False while something of it is under way.
    ///
    /// # Errors
    /// [`ShardError::Gone`].
    pub async fn remove_device(&self, position: usize) -> Result<bool, ShardError> {
        self.query(|answer| Message::RemoveDevice(position, answer)).await
    }

    /// Starts serving; answers when clients can connect, with the addresses bound.
    ///
    /// # Errors
    /// [`ShardError::ExportExists`], [`ShardError::NoAddress`], [`ShardError::NoTarget`], [`ShardError::Listen`], [`ShardError::Gone`].
    pub async fn export_nbd(&self, export: NbdExport) -> Result<ExportInfo, ShardError> {
        self.ask(|answer| Message::Export(export, answer)).await
    }

    /// Starts serving over vhost-user; answers when a front end can connect.
    ///
    /// # Errors
    /// As [`ShardHandle::export_nbd`], and [`ShardError::Start`].
    pub async fn export_vhost_user(&self, export: VhostUserExport) -> Result<ExportInfo, ShardError> {
        self.ask(|answer| Message::ExportVhostUser(export, answer)).await
    }

    /// Has an export greet new clients with other credentials; those that are connected notice nothing.
    ///
    /// # Errors
    /// [`ShardError::NoExport`] when it is not there or not encrypted, [`ShardError::Gone`].
    pub async fn renew_tls(&self, id: ExportId, credentials: Credentials) -> Result<(), ShardError> {
        self.query(|answer| Message::RenewTls(id, credentials, answer)).await
    }

    /// Starts serving a mount.
    ///
    /// # Errors
    /// [`ShardError::ExportExists`], [`ShardError::Gone`].
    pub async fn export_fuse(&self, export: FuseExport) -> Result<ExportInfo, ShardError> {
        self.ask(|answer| Message::ExportFuse(export, answer)).await
    }

    /// The files of mounts that are open.
    ///
    /// # Errors
    /// [`ShardError::Gone`].
    pub async fn open_files(&self) -> Result<Vec<OpenFile>, ShardError> {
        self.query(Message::OpenFiles).await
    }

    /// Stops serving: the listeners close at once, requests received are finished and answered, then the connections close and the
    /// unix socket is removed. Answers when all that is done.
    ///
    /// # Errors
    /// [`ShardError::NoExport`], [`ShardError::Gone`].
    pub async fn unexport(&self, id: ExportId) -> Result<(), ShardError> {
        self.ask(|answer| Message::Unexport(id, answer)).await
    }

    /// The pool, its devices and counters at one instant.
    ///
    /// # Errors
    /// [`ShardError::Command`] while the pool is `Opening` and when it could not be opened; [`ShardError::Gone`].
    pub async fn status(&self) -> Result<ShardStatus, ShardError> {
        self.query(Message::Status).await
    }

    /// The pool, its devices, counters and exports at one instant. INV-SHARD-4: one question is under way at a time. Who looks while the shard is
    /// silent waits for the answer to the earlier question, and no longer than `patience` from when that was asked: a shard that does not answer
    /// has one message waiting, and costs those who look at it again no time.
    ///
    /// # Errors
    /// [`Unseen`].
    pub async fn look(&self, patience: Duration) -> Result<Arc<ShardLook>, Unseen> {
        let Asked { since, begun, mut answer } = self.question().map_err(|error| Unseen::Refused(Arc::new(error)))?;
        let left = patience.saturating_sub(begun.elapsed());
        let found = match tokio::time::timeout(left, answer.wait_for(Option::is_some)).await {
            Err(_) => return Err(Unseen::Silent(since)),
            Ok(Err(_)) => None,
            Ok(Ok(answer)) => answer.clone(),
        };
        found.unwrap_or_else(|| Err(Arc::new(ShardError::Gone))).map_err(Unseen::Refused)
    }

    /// The question that is under way, or a new one: what the shard has answered already may be out of date.
    fn question(&self) -> Result<Asked, ShardError> {
        let mut last = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |asked: &&Asked| asked.answer.borrow().is_none() && asked.answer.has_changed().is_ok();
        if let Some(asked) = last.as_ref().filter(waits) {
            return Ok(asked.clone());
        }
        let (sender, answer) = watch::channel(None);
        self.messages.send(Message::Look(sender)).map_err(|_| ShardError::Gone)?;
        self.waker.0.wake();
        let asked = Asked { since: instant::now(), begun: Instant::now(), answer };
        *last = Some(asked.clone());
        Ok(asked)
    }

    /// Devices that did not answer while the pool was opened, by their positions among those that were given.
    ///
    /// # Errors
    /// [`ShardError::Gone`].
    pub async fn unanswered(&self) -> Result<Vec<usize>, ShardError> {
        self.ask(Message::Unanswered).await
    }

    /// The volumes.
    ///
    /// # Errors
    /// [`ShardError::Gone`].
    pub async fn volumes(&self) -> Result<Vec<VolumeInfo>, ShardError> {
        self.query(Message::Volumes).await
    }

    /// The volume of this name.
    ///
    /// # Errors
    /// [`ShardError::Gone`].
    pub async fn find_volume(&self, name: &str) -> Result<Option<VolumeInfo>, ShardError> {
        self.query(|answer| Message::FindVolume(name.to_owned(), answer)).await
    }

    /// The snapshots of all volumes, by id. Fetched piece by piece, so that clients are served in between: one that is made or goes
    /// meanwhile may be in the list or not.
    ///
    /// # Errors
    /// [`ShardError::Gone`].
    pub async fn snapshots(&self) -> Result<Vec<SnapshotInfo>, ShardError> {
        let mut all: Vec<SnapshotInfo> = Vec::new();
        loop {
            let after = all.last().map(|snapshot| snapshot.id);
            let piece = self.query(|answer| Message::Snapshots(after, answer)).await?;
            if piece.is_empty() {
                return Ok(all);
            }
            all.extend(piece);
        }
    }

    /// The snapshot of this name.
    ///
    /// # Errors
    /// [`ShardError::Gone`].
    pub async fn find_snapshot(&self, volume: VolumeId, name: &str) -> Result<Option<SnapshotInfo>, ShardError> {
        self.query(|answer| Message::FindSnapshot(volume, name.to_owned(), answer)).await
    }

    /// The exports with their clients and counters, by id.
    ///
    /// # Errors
    /// [`ShardError::Gone`].
    pub async fn exports(&self) -> Result<Vec<ExportInfo>, ShardError> {
        self.query(Message::Exports).await
    }

    /// What differs from `older` (`None`: from nothing) to `newer`, by rising offset.
    ///
    /// # Errors
    /// [`ShardError::Command`], [`ShardError::Gone`].
    pub async fn diff(&self, older: Option<Target>, newer: Target) -> Result<Vec<DiffExtent>, ShardError> {
        self.ask(|answer| Message::Diff(older, newer, answer)).await
    }

    /// Caps a device from now on, until the shard ends.
    ///
    /// # Errors
    /// [`ShardError::NoDevice`], [`ShardError::Gone`].
    pub async fn limit_device(&self, device: DeviceIndex, limit: DeviceLimit) -> Result<(), ShardError> {
        self.query(|answer| Message::Limit(device, limit, answer)).await
    }

    /// The budget for the memory of requests that all shards of a daemon share, soon: nobody waits for it.
    pub fn set_budget(&self, budget: Arc<Budget>) {
        self.post(Message::Budget(budget));
    }

    /// Sets how many bytes of what guests read may be kept in memory, soon: nobody waits for it.
    pub fn set_read_cache(&self, bytes: u64) {
        self.post(Message::ReadCache(bytes));
    }

    /// Says how the devices of the pool look, for their labels, soon: nobody waits for it.
    pub fn describe(&self, seen: Vec<DeviceNote>) {
        self.post(Message::Describe(seen));
    }

    /// Says whether what holds the devices has little room left, soon: nobody waits for it.
    pub fn set_short(&self, short: bool) {
        self.post(Message::Short(short));
    }

    /// Reads a range (at most `MAX_REQUEST_BYTES`), as a guest would: for image export.
    ///
    /// # Errors
    /// [`ShardError::Disk`], [`ShardError::Gone`].
    pub async fn read(&self, target: Target, range: ByteRange) -> Result<Vec<u8>, ShardError> {
        self.ask(|answer| Message::Read(target, range, answer)).await
    }

    /// Writes bytes (at most `MAX_REQUEST_BYTES`) at an offset, as a guest would: for image import. Durable after [`ShardHandle::flush`].
    ///
    /// # Errors
    /// [`ShardError::Disk`], [`ShardError::Gone`].
    pub async fn write(&self, target: Target, offset: u64, bytes: Vec<u8>) -> Result<(), ShardError> {
        self.ask(|answer| Message::Write(target, offset, bytes, answer)).await
    }

    /// Makes every write that was answered before durable.
    ///
    /// # Errors
    /// [`ShardError::Disk`], [`ShardError::Gone`].
    pub async fn flush(&self, target: Target) -> Result<(), ShardError> {
        self.ask(|answer| Message::Flush(target, answer)).await
    }

    /// Ends the shard: finishes and answers the requests that are in flight, closes the exports without refusing any other, writes the last checkpoint, lets the devices go. Answers when
    /// the devices may be opened by somebody else; their locks are released then.
    ///
    /// # Errors
    /// [`ShardError::Command`] when the pool could not be closed cleanly (the shard has ended all the same); [`ShardError::Gone`].
    pub async fn shutdown(&self) -> Result<(), ShardError> {
        self.ask(Message::Shutdown).await
    }

    /// Ends the shard without closing the pool, as a crash of the process would: clients are disconnected, no operation is started any more, whoever
    /// waits for an answer is told [`ShardError::Gone`]. Nothing acknowledged is lost; the next import replays the log. The devices stay locked
    /// until the kernel has finished the operations that it has: see [`ShardHandle::ended`].
    pub fn abandon(&self) {
        self.post(Message::Abandon);
    }

    /// Waits until the shard has ended and its devices may be opened by somebody else. It may never come to that when a device hangs.
    pub async fn ended(&self) {
        let mut state = self.state.clone();
        // the sender is dropped last of all that the shard has
        while state.changed().await.is_ok() {}
    }

    /// True when the shard has ended, and its devices may be opened by somebody else.
    pub fn has_ended(&self) -> bool {
        let mut state = self.state.clone();
        state.mark_unchanged();
        state.has_changed().is_err()
    }

    /// The pool's condition as it changes, without a round trip; `Opening` at first. The channel closes when the shard has ended.
    pub fn state(&self) -> watch::Receiver<PoolState> {
        self.state.clone()
    }

    /// Waits until the pool has left `Opening` and gives the state it came to.
    ///
    /// # Errors
    /// [`ShardError::Gone`].
    pub async fn opened(&self) -> Result<PoolState, ShardError> {
        let mut state = self.state.clone();
        let state = state.wait_for(|state| *state != PoolState::Opening).await.map_err(|_| ShardError::Gone)?;
        Ok(state.clone())
    }

    /// The labels in force as they change; the last ones while others are being written. The channel closes when the shard has ended.
    pub fn labels(&self) -> watch::Receiver<Option<LabelsInForce>> {
        self.labels.clone()
    }

    /// Says something that is not answered.
    fn post(&self, message: Message) {
        // a shard that has ended needs to be told nothing
        if self.messages.send(message).is_ok() {
            self.waker.0.wake();
        }
    }

    /// Asks for what the shard knows without its devices.
    async fn query<T>(&self, message: impl FnOnce(Answer<T>) -> Message) -> Result<T, ShardError> {
        tokio::time::timeout(SILENCE, self.ask(message)).await.unwrap_or(Err(ShardError::Silent))
    }

    pub(super) async fn ask<T>(&self, message: impl FnOnce(Answer<T>) -> Message) -> Result<T, ShardError> {
        let (sender, receiver) = oneshot::channel();
        self.messages.send(message(sender)).map_err(|_| ShardError::Gone)?;
        self.waker.0.wake();
        receiver.await.map_err(|_| ShardError::Gone)?
    }
}
