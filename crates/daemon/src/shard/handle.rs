//! Handle to a shard for other threads: cloneable and `Send`. Its calls become messages, its
//! answers are futures.
//!
//! Every call may be made from any thread; the futures need no particular runtime (they wait on a
//! oneshot channel). A call to a shard that has ended returns [`ShardError::Gone`]. Dropping every
//! handle closes the pool in an orderly way, as [`ShardHandle::shutdown`] does.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use millpond_api::instant;
use millpond_block::{ByteRange, DeviceSlot};
use millpond_device::{DeviceLimit, HostDevice, Waker};
use millpond_engine::{Command, DiffExtent, LabelsInForce, NewDevice, PoolState, Reply, SnapshotInfo, Target, VolumeId, VolumeInfo};
use millpond_format::DeviceNote;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{oneshot, watch};

use super::error::ShardError;
use super::fall::Fall;
use super::fetches::FetchOrder;
use super::load::{Load, VolumeUse};
use super::message::{Answer, LookAnswer, Message};
use super::report::{ExportId, ExportInfo, OpenFile, ShardLook, ShardStatus};
use super::spec::{FuseExport, NbdExport};
use super::vhost::VhostUserExport;
use crate::budget::Budget;
use crate::helpers::Helpers;
use crate::tls::Credentials;

/// Reason why a look at a shard failed.
#[derive(Clone, Debug)]
pub enum Unseen {
    /// The shard's thread has not answered since then.
    Silent(Timestamp),
    /// The shard has ended, or the pool is not open.
    Refused(Arc<ShardError>),
}

/// The last look that was requested.
#[derive(Clone)]
struct RequestedLook {
    since: Timestamp,
    begun: Instant,
    answer: watch::Receiver<LookAnswer>,
}

/// How long a shard may take to answer a query that needs no device: its thread does other work for
/// milliseconds at most, unless it is blocked in the kernel.
pub const SILENCE: Duration = Duration::from_secs(10);

/// Handle to a shard: cheap to clone, `Send` and `Sync`.
#[derive(Clone)]
pub struct ShardHandle {
    /// Declared, so dropped, before `waker`: the last handle's wake-up finds the channel closed.
    messages: mpsc::Sender<Message>,
    waker: WakeOnDrop,
    state: watch::Receiver<PoolState>,
    labels: watch::Receiver<Option<LabelsInForce>>,
    fall: Fall,
    asked: Arc<Mutex<Option<RequestedLook>>>,
}

/// Wakes the shard when dropped, so that it notices when no handle is left.
#[derive(Clone)]
struct WakeOnDrop(Waker);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        self.0.wake();
    }
}

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

    /// Returns why the shard has ended unexpectedly, after which its devices are free.
    pub fn fallen(&self) -> Option<&str> {
        self.fall.reason()
    }

    /// Makes the shard's thread panic.
    #[cfg(test)]
    pub fn panic(&self) {
        let _ = self.messages.send(Message::Panic);
        self.waker.0.wake();
    }

    /// Blocks the shard's thread until the sender is dropped.
    #[cfg(test)]
    pub fn hold(&self) -> mpsc::Sender<()> {
        let (free, held) = mpsc::channel();
        self.post(Message::Hold(held));
        free
    }

    /// Carries out a command; a change or a job is durable on return. [`Command::Close`] is for
    /// [`ShardHandle::shutdown`]: given here, it closes the pool but leaves the thread.
    ///
    /// # Errors
    /// [`ShardError::Command`], also while the pool is `Opening`; [`ShardError::Gone`].
    pub async fn command(&self, command: impl Into<Command>) -> Result<Reply, ShardError> {
        let command = command.into();
        self.ask(|answer| Message::Command(command, answer)).await
    }

    /// Hands over a device that a later command names.
    ///
    /// # Errors
    /// [`ShardError::Command`] after too many devices since the import, [`ShardError::Gone`].
    pub async fn add_device(&self, device: HostDevice) -> Result<NewDevice, ShardError> {
        self.ask(|answer| Message::AddDevice(Box::new(device), answer)).await
    }

    /// Releases an unused device; its throttled operations fail. False while others are in flight.
    ///
    /// # Errors
    /// [`ShardError::Gone`].
    pub async fn remove_device(&self, slot: DeviceSlot) -> Result<bool, ShardError> {
        self.query(|answer| Message::RemoveDevice(slot, answer)).await
    }

    /// Starts serving over NBD; returns the bound addresses when clients can connect.
    ///
    /// # Errors
    /// [`ShardError::ExportExists`], [`ShardError::NoAddress`], [`ShardError::NoTarget`],
    /// [`ShardError::Listen`], [`ShardError::Gone`].
    pub async fn export_nbd(&self, export: NbdExport) -> Result<ExportInfo, ShardError> {
        self.ask(|answer| Message::Export(export, answer)).await
    }

    /// Starts serving over vhost-user; returns when a front end can connect.
    ///
    /// # Errors
    /// As [`ShardHandle::export_nbd`], and [`ShardError::Start`].
    pub async fn export_vhost_user(&self, export: VhostUserExport) -> Result<ExportInfo, ShardError> {
        self.ask(|answer| Message::ExportVhostUser(export, answer)).await
    }

    /// Replaces the credentials of an export for new clients; connected clients are not affected.
    ///
    /// # Errors
    /// [`ShardError::NoExport`], also when it is not encrypted; [`ShardError::Gone`].
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

    /// Returns the open files of mounts.
    ///
    /// # Errors
    /// [`ShardError::Gone`].
    pub async fn open_files(&self) -> Result<Vec<OpenFile>, ShardError> {
        self.query(Message::OpenFiles).await
    }

    /// Stops serving: the listeners close at once, received requests are finished and answered,
    /// then the connections close and the unix socket is removed. Returns when all that is done.
    ///
    /// # Errors
    /// [`ShardError::NoExport`], [`ShardError::Gone`].
    pub async fn unexport(&self, id: ExportId) -> Result<(), ShardError> {
        self.ask(|answer| Message::Unexport(id, answer)).await
    }

    /// Ends the connections of the NBD clients of a target, whose exports continue. Requests in
    /// flight are answered and none is refused, so a client that connects again sees a pause.
    /// Returns before the connections have ended.
    ///
    /// # Errors
    /// [`ShardError::Gone`].
    pub async fn hang_up(&self, target: Target) -> Result<(), ShardError> {
        self.query(|answer| Message::HangUp(target, answer)).await
    }

    /// Returns the pool, its devices and counters at one instant.
    ///
    /// # Errors
    /// [`ShardError::Command`] when the pool is not open, or not yet; [`ShardError::Gone`].
    pub async fn status(&self) -> Result<ShardStatus, ShardError> {
        self.query(Message::Status).await
    }

    /// Returns the pool, its devices, counters and exports at one instant. INV-SHARD-4: at most one
    /// look is in progress at a time. A caller that looks while the shard is silent waits for the
    /// answer to the earlier look, and no longer than `patience` from the start of that one. So a
    /// silent shard has one message waiting, and costs later callers no time.
    ///
    /// # Errors
    /// [`Unseen`].
    pub async fn look(&self, patience: Duration) -> Result<Arc<ShardLook>, Unseen> {
        let RequestedLook { since, begun, mut answer } = self.question().map_err(|error| Unseen::Refused(Arc::new(error)))?;
        let left = patience.saturating_sub(begun.elapsed());
        let found = match tokio::time::timeout(left, answer.wait_for(Option::is_some)).await {
            Err(_) => return Err(Unseen::Silent(since)),
            Ok(Err(_)) => None,
            Ok(Ok(answer)) => answer.clone(),
        };
        found.unwrap_or_else(|| Err(Arc::new(ShardError::Gone))).map_err(Unseen::Refused)
    }

    /// Returns the look in progress, or a new one: an earlier answer may be out of date.
    fn question(&self) -> Result<RequestedLook, ShardError> {
        let mut last = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |asked: &&RequestedLook| asked.answer.borrow().is_none() && asked.answer.has_changed().is_ok();
        if let Some(asked) = last.as_ref().filter(waits) {
            return Ok(asked.clone());
        }
        let (sender, answer) = watch::channel(None);
        self.messages.send(Message::Look(sender)).map_err(|_| ShardError::Gone)?;
        self.waker.0.wake();
        let asked = RequestedLook { since: instant::now(), begun: Instant::now(), answer };
        *last = Some(asked.clone());
        Ok(asked)
    }

    /// Returns the slots of the given devices that did not answer when the pool was opened.
    ///
    /// # Errors
    /// [`ShardError::Gone`].
    pub async fn unanswered(&self) -> Result<Vec<DeviceSlot>, ShardError> {
        self.ask(Message::Unanswered).await
    }

    /// Returns the volumes.
    ///
    /// # Errors
    /// [`ShardError::Gone`].
    pub async fn volumes(&self) -> Result<Vec<VolumeInfo>, ShardError> {
        self.query(Message::Volumes).await
    }

    /// Returns the volumes with the requests of their guests, by id, and the requests for volumes
    /// that do not exist any more. Fetches them in pieces, so that clients are served in between.
    ///
    /// # Errors
    /// [`ShardError::Gone`].
    pub async fn volume_uses(&self) -> Result<(Vec<VolumeUse>, Box<Load>), ShardError> {
        let mut all: Vec<VolumeUse> = Vec::new();
        loop {
            let after = all.last().map(|volume| volume.info.id);
            let (piece, rest) = self.query(|answer| Message::VolumeUses(after, answer)).await?;
            if piece.is_empty() {
                return Ok((all, rest));
            }
            all.extend(piece);
        }
    }

    /// Returns the volume of this name.
    ///
    /// # Errors
    /// [`ShardError::Gone`].
    pub async fn find_volume(&self, name: &str) -> Result<Option<VolumeInfo>, ShardError> {
        self.query(|answer| Message::FindVolume(name.to_owned(), answer)).await
    }

    /// Returns the snapshots of all volumes, by id. Fetches them in pieces, so that clients are
    /// served in between: the list may or may not have a snapshot that changes meanwhile.
    ///
    /// # Errors
    /// [`ShardError::Gone`].
    pub async fn snapshots(&self) -> Result<Vec<SnapshotInfo>, ShardError> {
        let mut all: Vec<SnapshotInfo> = Vec::new();
        self.each_piece_of_snapshots(|piece| all.extend(piece)).await?;
        Ok(all)
    }

    /// As [`snapshots`](Self::snapshots), for callers that need no list: hands over each piece.
    ///
    /// # Errors
    /// [`ShardError::Gone`].
    pub async fn each_piece_of_snapshots(&self, mut take: impl FnMut(Vec<SnapshotInfo>)) -> Result<(), ShardError> {
        let mut after = None;
        loop {
            let piece = self.query(|answer| Message::Snapshots(after, answer)).await?;
            let Some(last) = piece.last() else { return Ok(()) };
            after = Some(last.id);
            take(piece);
        }
    }

    /// Returns the snapshot of this name.
    ///
    /// # Errors
    /// [`ShardError::Gone`].
    pub async fn find_snapshot(&self, volume: VolumeId, name: &str) -> Result<Option<SnapshotInfo>, ShardError> {
        self.query(|answer| Message::FindSnapshot(volume, name.to_owned(), answer)).await
    }

    /// Returns the snapshots of these names that exist, in this order, at one instant.
    ///
    /// # Errors
    /// [`ShardError::Gone`].
    pub async fn find_snapshots(&self, volume: VolumeId, names: &[&str]) -> Result<Vec<SnapshotInfo>, ShardError> {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        self.query(|answer| Message::FindSnapshots(volume, names, answer)).await
    }

    /// Returns the exports with their clients and counters, by id.
    ///
    /// # Errors
    /// [`ShardError::Gone`].
    pub async fn exports(&self) -> Result<Vec<ExportInfo>, ShardError> {
        self.query(Message::Exports).await
    }

    /// Returns the differences from `older` (`None`: from nothing) to `newer`, by rising offset.
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
    pub async fn limit_device(&self, device: DeviceSlot, limit: DeviceLimit) -> Result<(), ShardError> {
        self.query(|answer| Message::Limit(device, limit, answer)).await
    }

    /// Sets the budget for request memory, shared by all shards. Returns before that is done.
    pub fn set_budget(&self, budget: Arc<Budget>) {
        self.post(Message::Budget(budget));
    }

    /// Shares compression and decompression with helpers. Returns before that is done.
    pub fn set_helpers(&self, helpers: Arc<Helpers>) {
        self.post(Message::Helpers(helpers));
    }

    /// Passes the chunks that the pool `name` lacks to this channel. Only the first call counts. Returns
    /// before that is done.
    pub fn pass_fetches_to(&self, name: &str, to: UnboundedSender<FetchOrder>) {
        self.post(Message::Fetches(name.to_owned(), to));
    }

    /// Sets the size of the read cache, in bytes. Returns before that is done.
    pub fn set_read_cache(&self, bytes: u64) {
        self.post(Message::ReadCache(bytes));
    }

    /// Describes the pool's devices, for their labels. Returns before that is done.
    pub fn describe(&self, seen: Vec<DeviceNote>) {
        self.post(Message::Describe(seen));
    }

    /// Sets whether the file systems below the devices are nearly full. Returns before that is
    /// done.
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

    /// Writes bytes (at most `MAX_REQUEST_BYTES`) at an offset, as a guest would: for image import.
    /// Durable after [`ShardHandle::flush`].
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

    /// Ends the shard: answers the requests in flight, ends the exports without refusing requests,
    /// writes the last checkpoint, and releases the devices with their locks. On return, other
    /// processes may open the devices.
    ///
    /// # Errors
    /// [`ShardError::Command`] when the pool could not be closed cleanly (the shard has ended all
    /// the same); [`ShardError::Gone`].
    pub async fn shutdown(&self) -> Result<(), ShardError> {
        self.ask(Message::Shutdown).await
    }

    /// Ends the shard without closing the pool, as a crash of the process would: clients are
    /// disconnected, no operation is started any more, waiting callers get [`ShardError::Gone`].
    /// Nothing acknowledged is lost; the next import replays the log. The devices stay locked until
    /// the kernel has finished the operations on them: see [`ShardHandle::ended`].
    pub fn abandon(&self) {
        self.post(Message::Abandon);
    }

    /// Waits until the shard has ended and other processes may open its devices. That may never
    /// happen when a device hangs.
    pub async fn ended(&self) {
        let mut state = self.state.clone();
        // the shard drops this sender after everything else
        while state.changed().await.is_ok() {}
    }

    /// True when the shard has ended, and other processes may open its devices.
    pub fn has_ended(&self) -> bool {
        let mut state = self.state.clone();
        state.mark_unchanged();
        state.has_changed().is_err()
    }

    /// Returns the pool's state as it changes, without a round trip; `Opening` at first. The
    /// channel closes when the shard has ended.
    pub fn state(&self) -> watch::Receiver<PoolState> {
        self.state.clone()
    }

    /// Waits until the pool has left `Opening`, and returns its new state.
    ///
    /// # Errors
    /// [`ShardError::Gone`].
    pub async fn opened(&self) -> Result<PoolState, ShardError> {
        let mut state = self.state.clone();
        let state = state.wait_for(|state| *state != PoolState::Opening).await.map_err(|_| ShardError::Gone)?;
        Ok(state.clone())
    }

    /// Returns the labels in force as they change; the previous ones while new ones are being
    /// written. The channel closes when the shard has ended.
    pub fn labels(&self) -> watch::Receiver<Option<LabelsInForce>> {
        self.labels.clone()
    }

    /// Sends a message that has no answer.
    fn post(&self, message: Message) {
        // a shard that has ended needs no message
        if self.messages.send(message).is_ok() {
            self.waker.0.wake();
        }
    }

    /// Sends a query that the shard answers without its devices; fails after [`SILENCE`].
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
