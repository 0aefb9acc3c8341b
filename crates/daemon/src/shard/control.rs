//! Messages of handles: commands, listings, exports, limits, the end.

use std::collections::hash_map::Entry;
use std::mem;
use std::sync::Arc;
use std::sync::mpsc::TryRecvError;

use millpond_api::GuestIo;
use millpond_block::{ByteRange, Completion, DeviceError, DeviceSlot, DiskError, Op, Payload, Request, Tag};
use millpond_device::{DeviceLimit, HostDevice};
use millpond_engine::{
    Busy, Command, CommandError, DiffExtent, Invalid, NewDevice, PoolState, ReadCacheSize, Reply, SnapshotInfo, Target, VolumeId,
};
use rustc_hash::FxHashMap;

use super::error::ShardError;
use super::load::{Load, VolumeUse};
use super::message::{Answer, Message};
use super::pool::Pool;
use super::report::{ClientInfo, ExportId, ExportInfo, HostDeviceInfo, ShardLook, ShardStatus};
use super::serve::{CloseMode, LINGER_NANOS};
use super::shard::{Shard, TICK};

/// Snapshots listed at a time, which takes some 100 microseconds.
const SNAPSHOTS_PER_PIECE: usize = 128;

/// Volumes listed with their use at a time, which takes some 100 microseconds.
const VOLUMES_PER_PIECE: usize = 64;

/// A caller that waits for an answer of the pool.
pub(super) enum Pending {
    Command(Answer<Reply>),
    Diff(Answer<Vec<DiffExtent>>),
    Read(Answer<Vec<u8>>),
    Done(Answer<()>),
    /// The shard itself, which closes the pool.
    Close,
}

/// Stage of a shard's life.
#[derive(Default)]
pub(super) struct Stage {
    phase: StagePhase,
    answers: Vec<Answer<()>>,
    outcome: Option<CommandError>,
    busy: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum StagePhase {
    #[default]
    Serving,
    /// Exports are ending; then the pool is closed.
    Draining,
    /// The pool is being closed.
    Closing,
    /// The pool will not be closed: the shard only waits for operations in the kernel.
    Abandoned,
    Over,
}

impl Stage {
    pub fn is_serving(&self) -> bool {
        self.phase == StagePhase::Serving
    }

    pub fn is_over(&self) -> bool {
        matches!(self.phase, StagePhase::Abandoned | StagePhase::Over)
    }

    pub fn is_abandoned(&self) -> bool {
        self.phase == StagePhase::Abandoned
    }

    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// Sets whether the pool wants another turn without an event.
    pub fn set_busy(&mut self, busy: bool) {
        self.busy = busy;
    }

    pub fn take_answers(&mut self) -> Vec<Answer<()>> {
        mem::take(&mut self.answers)
    }

    pub fn outcome(&self) -> Result<(), CommandError> {
        self.outcome.clone().map_or(Ok(()), Err)
    }
}

impl<P: Pool> Shard<P> {
    /// Handles the messages in the channel. The shard ends when no handle is left.
    pub(super) fn take_messages(&mut self) {
        loop {
            match self.messages.try_recv() {
                Ok(_) if self.stage.is_abandoned() => {}
                Ok(message) => self.take(message),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => return self.drain(),
            }
        }
    }

    fn take(&mut self, message: Message) {
        // A message is carried out even when its sender does not wait for the answer any more.
        match message {
            Message::Command(_, answer) if !self.stage.is_serving() => drop(answer.send(Err(ShardError::Gone))),
            Message::Export(_, answer) if !self.stage.is_serving() => drop(answer.send(Err(ShardError::Gone))),
            Message::ExportVhostUser(_, answer) if !self.stage.is_serving() => drop(answer.send(Err(ShardError::Gone))),
            Message::ExportVhostUser(spec, answer) => drop(answer.send(self.export_vhost(spec))),
            Message::Command(command, answer) => self.start_command(command, answer),
            Message::Export(spec, answer) => drop(answer.send(self.export(spec))),
            Message::ExportFuse(_, answer) if !self.stage.is_serving() => drop(answer.send(Err(ShardError::Gone))),
            Message::ExportFuse(spec, answer) => drop(answer.send(self.export_fuse(spec))),
            Message::RenewTls(id, credentials, answer) => drop(answer.send(self.renew_tls(id, credentials))),
            Message::KeepPromises(target, answer) => {
                self.keep_promises(target);
                let _ = answer.send(Ok(()));
            }
            Message::OpenFiles(answer) => {
                // a client that has closed a file expects it to be closed: read the kernel's
                // requests first
                self.look_at_mounts();
                let _ = answer.send(Ok(self.mounts.open_files()));
            }
            Message::Unexport(id, answer) => self.unexport(id, CloseMode::ForGood, Some(answer)),
            Message::HangUp(target, answer) => {
                self.hang_up(target);
                let _ = answer.send(Ok(()));
            }
            Message::Status(answer) => drop(answer.send(self.status())),
            Message::Unanswered(answer) => drop(answer.send(Ok(self.pool.unanswered().to_vec()))),
            Message::Volumes(answer) => drop(answer.send(Ok(self.pool.volumes()))),
            Message::VolumeUses(after, answer) => drop(answer.send(Ok(self.volume_uses(after)))),
            Message::FindVolume(name, answer) => drop(answer.send(Ok(self.pool.find_volume(&name)))),
            Message::Snapshots(after, answer) => drop(answer.send(Ok(self.pool.snapshots_after(after, SNAPSHOTS_PER_PIECE)))),
            Message::FindSnapshot(volume, name, answer) => drop(answer.send(Ok(self.pool.find_snapshot(volume, &name)))),
            Message::FindSnapshots(of, names, answer) => drop(answer.send(Ok(self.find_snapshots(of, &names)))),
            Message::Look(answer) => {
                let look = self.status().map(|status| Arc::new(ShardLook { status, exports: self.export_infos() }));
                answer.send_replace(Some(look.map_err(Arc::new)));
            }
            Message::Exports(answer) => drop(answer.send(Ok(self.export_infos()))),
            Message::Diff(older, newer, answer) => self.start_diff(older, newer, answer),
            Message::Limit(device, limit, answer) => drop(answer.send(self.limit_device(device, limit))),
            Message::ReadCache(bytes) => self.set_read_cache(bytes),
            Message::Describe(seen) => self.pool.describe_devices(seen),
            Message::Short(short) => self.pool.set_short(short),
            Message::Budget(budget) => self.set_budget(budget),
            Message::Helpers(helpers) => self.coders.share(&helpers, self.ring.waker()),
            Message::Fetches(pool, to) => self.fetches.pass_to(&pool, to, self.ring.waker()),
            Message::AddDevice(host, answer) => drop(answer.send(self.add_device(*host))),
            Message::RemoveDevice(slot, answer) => drop(answer.send(Ok(self.remove_device(slot)))),
            Message::Read(target, range, answer) => self.request(target, Op::Read, range, Payload::None, Pending::Read(answer)),
            Message::Write(target, offset, bytes, answer) => {
                let range = ByteRange { offset, length: bytes.len() as u64 };
                self.request(target, Op::Write, range, Payload::Copy(&bytes), Pending::Done(answer));
            }
            Message::Flush(target, answer) => {
                let range = ByteRange { offset: 0, length: 0 };
                self.request(target, Op::Flush, range, Payload::None, Pending::Done(answer));
            }
            #[cfg(test)]
            Message::Panic => panic!("as a test asked"),
            #[cfg(test)]
            Message::Hold(held) => drop(held.recv()),
            Message::Shutdown(answer) => {
                self.stage.answers.push(answer);
                self.drain();
            }
            Message::Abandon => self.stage.phase = StagePhase::Abandoned,
        }
    }

    fn find_snapshots(&self, volume: VolumeId, names: &[String]) -> Vec<SnapshotInfo> {
        names.iter().filter_map(|name| self.pool.find_snapshot(volume, name)).collect()
    }

    fn start_command(&mut self, command: Command, answer: Answer<Reply>) {
        if let Some(refusal) = self.refusal() {
            return drop(answer.send(Err(refusal)));
        }
        let tag = self.ask(Pending::Command(answer));
        self.pool.command(tag, command);
    }

    fn start_diff(&mut self, older: Option<Target>, newer: Target, answer: Answer<Vec<DiffExtent>>) {
        if let Some(refusal) = self.refusal() {
            return drop(answer.send(Err(refusal)));
        }
        let tag = self.ask(Pending::Diff(answer));
        self.pool.start_diff(tag, older, newer);
    }

    fn limit_device(&mut self, device: DeviceSlot, limit: DeviceLimit) -> Result<(), ShardError> {
        if self.ring.device(device).is_none() {
            return Err(ShardError::NoDevice(device));
        }
        self.gate.limit(device, limit);
        Ok(())
    }

    fn add_device(&mut self, mut host: HostDevice) -> Result<NewDevice, ShardError> {
        let (geometry, space) = (host.geometry(), host.take_space());
        let slot = self.ring.add_device(host).map_err(|_| {
            ShardError::Command(CommandError::Invalid(Invalid::Caller(
                "the pool has had too many devices since it was imported; export and import it".to_owned(),
            )))
        })?;
        self.pool.set_space(slot, space);
        self.share_read_cache();
        Ok(NewDevice { slot, geometry })
    }

    fn set_read_cache(&mut self, bytes: u64) {
        self.read_cache = bytes;
        self.share_read_cache();
    }

    /// Gives the pool its read cache. Where all devices are in memory, it would keep second copies of
    /// their blocks, and is only for volumes with a size of their own.
    fn share_read_cache(&mut self) {
        let mut devices = (0..self.ring.devices()).filter_map(|slot| self.ring.device(DeviceSlot(slot)));
        let shared = devices.any(|device| !device.in_memory());
        self.pool.set_read_cache(ReadCacheSize { bytes: self.read_cache, shared });
    }

    /// Removes a device that the pool does not use. Returns false if operations on it are in flight.
    fn remove_device(&mut self, slot: DeviceSlot) -> bool {
        // throttled operations end here and never reach the device
        for io in self.gate.forget(slot) {
            self.pool.io_done(io.fail(DeviceError::Gone));
        }
        let removed = self.ring.remove_device(slot).is_some();
        self.share_read_cache();
        removed
    }

    /// Registers a caller under a new tag. The upper half of the tag is 0, which is no session's
    /// id.
    fn ask(&mut self, pending: Pending) -> Tag {
        loop {
            self.last_tag = (self.last_tag + 1) & u64::from(u32::MAX);
            if let Entry::Vacant(place) = self.pending.entry(Tag(self.last_tag)) {
                place.insert(pending);
                return Tag(self.last_tag);
            }
        }
    }

    /// Submits a request of a handle, checked as a guest's is.
    fn request(&mut self, target: Target, op: Op, range: ByteRange, payload: Payload<'_>, pending: Pending) {
        let request = Request { op, range, fua: false };
        let checked = match self.pool.geometry(target) {
            Some((geometry, features)) => request.validate(&geometry, &features),
            None => Err(DiskError::Shutdown),
        };
        let tag = self.ask(pending);
        match checked {
            Ok(()) => self.pool.submit(target, tag, request, payload),
            Err(error) => self.answered(Completion { tag, result: Err(error) }),
        }
    }

    /// Passes the pool's completion of a request to its handle.
    pub(super) fn answered(&mut self, completion: Completion) {
        let Completion { tag, result } = completion;
        let result = result.map_err(ShardError::Disk);
        match self.pending.remove(&tag) {
            Some(Pending::Read(answer)) => {
                let _ = answer.send(result.map(|data| {
                    let bytes = data.iter().flat_map(|piece| piece.bytes()).copied().collect();
                    self.pool.buffers().give_data(data);
                    bytes
                }));
            }
            Some(Pending::Done(answer)) => drop(answer.send(result.map(drop))),
            Some(other) => drop(self.pending.insert(tag, other)),
            None => {}
        }
    }

    /// Passes the pool's reply to a command to its handle.
    pub(super) fn replied(&mut self, tag: Tag, result: Result<Reply, CommandError>) {
        match self.pending.remove(&tag) {
            Some(Pending::Command(answer)) => {
                // The command may have changed a size, a cache mode, or the limits of a volume.
                self.tell_changes();
                self.throttles.set(self.pool.options());
                let _ = answer.send(result.map_err(ShardError::Command));
            }
            Some(Pending::Close) => {
                self.stage.outcome = result.err();
                self.stage.phase = StagePhase::Over;
            }
            Some(other) => drop(self.pending.insert(tag, other)),
            None => {}
        }
    }

    /// Passes the result of a comparison to its handle.
    pub(super) fn compared(&mut self, tag: Tag, result: Result<Vec<DiffExtent>, CommandError>) {
        match self.pending.remove(&tag) {
            Some(Pending::Diff(answer)) => drop(answer.send(result.map_err(ShardError::Command))),
            Some(other) => drop(self.pending.insert(tag, other)),
            None => {}
        }
    }

    /// Returns why the pool takes no commands yet, or never will; `None` when it takes them.
    fn refusal(&self) -> Option<ShardError> {
        if self.pool.pool().is_some() {
            return None;
        }
        Some(ShardError::Command(match self.pool.state() {
            PoolState::Faulted(fault) => CommandError::Faulted(fault.clone()),
            _ => CommandError::Busy(Busy::Opening),
        }))
    }

    /// Returns the volumes after one, with their use. After the last volume: no volume, and the
    /// requests for those that do not exist any more.
    fn volume_uses(&mut self, after: Option<VolumeId>) -> (Vec<VolumeUse>, Box<Load>) {
        let infos = self.pool.volumes_after(after, VOLUMES_PER_PIECE);
        let Some(last) = infos.last() else { return (Vec::new(), self.past_requests()) };
        let listed = (after, last.id);
        let mut live: FxHashMap<VolumeId, Box<Load>> = FxHashMap::default();
        let pool = &self.pool;
        let wanted = |target| pool.volume_of(target).filter(|volume| Some(*volume) > listed.0 && *volume <= listed.1);
        let clients = self.clients.iter().filter_map(|client| Some((wanted(client.target)?, client.load())));
        for (volume, load) in clients.chain(self.vhost.loads(wanted)) {
            live.entry(volume).or_default().add(&load);
        }
        let mut uses = Vec::with_capacity(infos.len());
        for info in infos {
            let mut load = live.remove(&info.id).unwrap_or_default();
            load.add(&self.loads.of(info.id));
            uses.push(VolumeUse { limits: self.throttles.effect(info.id), load, info });
        }
        (uses, Box::default())
    }

    /// Returns the requests for volumes that do not exist any more.
    fn past_requests(&mut self) -> Box<Load> {
        let pool = &self.pool;
        let exists = |volume| pool.geometry(Target::Head(volume)).is_some();
        let mut rest = Box::new(self.loads.rest(exists));
        let gone = |target| if pool.volume_of(target).is_some_and(exists) { None } else { Some(()) };
        let clients = self.clients.iter().filter_map(|client| Some((gone(client.target)?, client.load())));
        clients.chain(self.vhost.loads(gone)).for_each(|(_, load)| rest.add(&load));
        rest
    }

    fn export_infos(&self) -> Vec<ExportInfo> {
        let mut clients: FxHashMap<ExportId, Vec<ClientInfo>> = FxHashMap::default();
        self.clients.iter().for_each(|client| clients.entry(client.export).or_default().push(client.info()));
        let sockets = self.exports.values().map(|export| export.listed(clients.remove(&export.spec.id).unwrap_or_default()));
        sockets.chain(self.vhost.infos()).chain(self.mounts.infos(&self.pool)).collect()
    }

    fn status(&self) -> Result<ShardStatus, ShardError> {
        let Some(pool) = self.pool.pool() else { return Err(self.refusal().unwrap_or(ShardError::Gone)) };
        let describe = |(slot, device): (DeviceSlot, &HostDevice)| {
            let (load, times, limit) = self.gate.of(slot, self.now);
            let (path, serial) = (device.path().to_owned(), device.serial().map(str::to_owned));
            HostDeviceInfo { path, serial, geometry: device.geometry(), direct: device.direct(), load, times, limit }
        };
        let slots = (0..self.ring.devices()).map(DeviceSlot);
        let devices = slots.map(|slot| self.ring.device(slot).map(|device| describe((slot, device)))).collect();
        let mut guests: GuestIo = self.past;
        self.exports.values().for_each(|export| guests.add(&export.past));
        self.clients.iter().for_each(|client| guests.add(&client.counters()));
        self.vhost.count(&mut guests);
        guests.add(&self.mounts.counters());
        let clients = (self.clients.len() + self.vhost.len()) as u64 + self.mounts.clients();
        Ok(ShardStatus { pool, metrics: self.pool.metrics(), devices, guests, clients, turns: self.turns })
    }

    /// Begins the end: ends every export, then closes the pool.
    fn drain(&mut self) {
        if self.stage.is_serving() {
            self.stage.phase = StagePhase::Draining;
            self.throttles.lift();
            // a tick after the connections were ended
            self.fetches.end_at(self.now + LINGER_NANOS + TICK.as_nanos() as u64 * 2);
            let ids: Vec<_> = self.exports.keys().copied().chain(self.vhost.ids()).chain(self.mounts.ids()).collect();
            ids.into_iter().for_each(|id| self.unexport(id, CloseMode::Restart, None));
        }
    }

    /// Continues what is ending: exports without listeners and clients, then the pool.
    pub(super) fn advance_ends(&mut self) {
        self.remove_ended_exports();
        self.end_fetches();
        let unserved = self.exports.is_empty() && self.vhost.is_empty() && self.mounts.is_empty();
        let quiet = unserved && self.pending.is_empty();
        if self.stage.phase == StagePhase::Draining && quiet {
            if self.refusal().is_some() {
                // Nothing was opened, so there is nothing to close.
                self.stage.phase = StagePhase::Over;
                return;
            }
            self.stage.phase = StagePhase::Closing;
            let tag = self.ask(Pending::Close);
            self.pool.command(tag, Command::Close);
            self.stage.set_busy(true);
        }
    }
}
