//! Mounts: FUSE devices of the shard, and their sessions.

use millpond_api::GuestIo;
use millpond_block::{Answer as MapAnswer, Buf, Completion, Tag};
use millpond_device::ConnectionId;
use millpond_engine::{SnapshotId, Target, Throttles, Time};
use millpond_export::fuse::{Counters, Handle, Load, MAX_TRANSFER, Message, Owner, Session};
use rustix::io::Errno;
use slab::Slab;

use super::error::ShardError;
use super::load::FileRequests;
use super::message::Answer;
use super::pool::Pool;
use super::report::{ClientInfo, ExportId, ExportInfo, OpenFile};
use super::serve::{LINGER_NANOS, need_descriptors};
use super::shard::Shard;
use super::spec::FuseExport;
use super::tree::{PoolTree, target_of};
use crate::budget::{PoolBudget, Purse};

/// Bit in the ids of sessions of mounts, which are the upper half of their tags.
const MOUNT: u32 = 0x8000_0000;
/// Most requests taken from one mount before the pool works on them: the client handles the replies
/// to these while the next are read.
const FAIR_REQUESTS: usize = 32;
/// Bytes of requests after which no more are taken.
const FAIR_BYTES: usize = 256 << 10;

/// Most replies that are written together: the first wakes the client, and those that follow at
/// once find it awake. When replies are written one at a time, the client sleeps again after each,
/// and is woken for each.
const TOGETHER: usize = 16;

/// Requests through a file of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageLoad {
    /// Name of the volume.
    pub volume: String,
    /// Name of the snapshot after `@`; `None` for a volume.
    pub snapshot: Option<String>,
    /// Number of times that it is open now.
    pub open: u64,
    /// Counters since the mount was made.
    pub counters: GuestIo,
}

/// A mounted directory.
pub(super) struct Mount {
    export: ExportId,
    name: String,
    device: ConnectionId,
    session: Session,
    /// Buffer for the next request.
    message: Message,
    /// Its requests in progress.
    requests: FileRequests,
    /// Memory that its requests hold.
    purse: Purse,
    /// The device may have a request to read.
    readable: bool,
    /// The file system is not mounted any more.
    ended: bool,
    queued: bool,
    /// Set while the mount ends; the answers are sent when it has ended.
    closing: Option<Vec<Answer<()>>>,
    /// When its requests that wait for chunks are ended, in nanoseconds of the shard's clock: set when
    /// the mount ends.
    patient_until: Option<u64>,
}

/// Table of mounts; the id of a mount's session contains its index.
#[derive(Default)]
pub(super) struct Mounts {
    table: Slab<Mount>,
    /// Mounts to serve in this turn.
    active: Vec<u32>,
    /// Counters of mounts that have ended.
    past: GuestIo,
}

impl Mounts {
    fn get_mut(&mut self, index: u32) -> Option<&mut Mount> {
        self.table.get_mut(index as usize)
    }

    fn by_tag(&mut self, tag: Tag) -> Option<(u32, &mut Mount)> {
        let index = Session::id_of(tag) & !MOUNT;
        Some((index, self.get_mut(index)?))
    }

    fn iter(&self) -> impl Iterator<Item = &Mount> {
        self.table.iter().map(|(_, mount)| mount)
    }

    fn find(&self, matches: impl Fn(&Mount) -> bool) -> Option<u32> {
        self.table.iter().find(|(_, mount)| matches(mount)).map(|(index, _)| index as u32)
    }

    /// Returns the devices through which the mounts are served.
    pub fn devices(&self) -> Vec<ConnectionId> {
        self.iter().map(|mount| mount.device).collect()
    }

    /// True when there is no mount.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// True when no mount is queued.
    pub fn is_idle(&self) -> bool {
        self.active.is_empty()
    }

    /// Returns the mounts, as listed.
    pub fn infos<P: Pool>(&self, pool: &P) -> impl Iterator<Item = ExportInfo> {
        self.iter().map(|mount| mount.info(pool))
    }

    /// Returns the ids of their exports.
    pub fn ids(&self) -> Vec<ExportId> {
        self.iter().map(|mount| mount.export).collect()
    }

    /// Returns the sessions whose requests that wait for chunks are to be ended.
    pub fn ending_waits(&self, now: u64) -> impl Iterator<Item = u32> {
        let is_due = move |mount: &Mount| mount.patient_until.is_some_and(|until| until <= now) && mount.session.in_flight() > 0;
        self.table.iter().filter(move |(_, mount)| is_due(mount)).map(|(index, _)| MOUNT | index as u32)
    }

    /// Returns the counters of all mounts, including ended ones.
    pub fn counters(&self) -> GuestIo {
        let mut sum = self.past;
        self.iter().for_each(|mount| sum.add(&guest_io(mount.session.counters())));
        sum
    }

    /// Returns the open files.
    pub fn open_files(&self) -> Vec<OpenFile> {
        let of_mount = |mount: &Mount| {
            let export = mount.export;
            let file = |(_, handle): (u64, &Handle)| OpenFile { export, target: target_of(handle.image), pid: handle.pid };
            mount.session.handles().map(file).collect::<Vec<_>>()
        };
        self.iter().flat_map(of_mount).collect()
    }

    /// Returns the number of open files.
    pub fn clients(&self) -> u64 {
        self.iter().map(|mount| mount.session.handles().count() as u64).sum()
    }

    fn enqueue(&mut self, index: u32) {
        if let Some(mount) = self.get_mut(index)
            && !mount.queued
        {
            mount.queued = true;
            self.active.push(index);
        }
    }

    fn enqueue_where(&mut self, wanted: impl Fn(&mut Mount) -> bool) {
        for (index, mount) in &mut self.table {
            if wanted(mount) && !std::mem::replace(&mut mount.queued, true) {
                self.active.push(index as u32);
            }
        }
    }
}

/// Returns a new buffer for a message whose buffer is handed on.
fn spare<P: Pool>(tree: &mut PoolTree<'_, P>) -> Buf {
    tree.pool.buffers().take(MAX_TRANSFER as usize)
}

impl Mount {
    /// Returns the directory tree of the pool, the session, and the message.
    fn tree<'a, P: Pool>(
        &'a mut self,
        pool: &'a mut P,
        throttles: &'a mut Throttles,
        memory: &'a PoolBudget,
        wall: Time,
        nanos: u64,
    ) -> (PoolTree<'a, P>, &'a mut Session, &'a mut Message) {
        let (purse, requests) = (&mut self.purse, &mut self.requests);
        (PoolTree { pool, throttles, wall, nanos, purse, memory, requests }, &mut self.session, &mut self.message)
    }

    fn info<P: Pool>(&self, pool: &P) -> ExportInfo {
        let client = |(number, handle): (u64, &Handle)| ClientInfo {
            id: number,
            peer: format!("pid={}", handle.pid),
            since: Time(handle.since),
            tls: None,
            counters: guest_io(handle.counters),
        };
        ExportInfo {
            id: self.export,
            name: self.name.clone(),
            target: None,
            unix: None,
            tcp: None,
            read_only: false,
            clients: self.session.handles().map(client).collect(),
            counters: guest_io(self.session.counters()),
            images: self.session.loads().into_iter().filter_map(|(image, load)| load_of(pool, target_of(image), &load)).collect(),
        }
    }
}

/// Returns the load of a file; `None` when its volume or snapshot is gone.
fn load_of<P: Pool>(pool: &P, target: Target, load: &Load) -> Option<ImageLoad> {
    let (volume, snapshot) = match target {
        Target::Head(volume) => (volume, None),
        Target::Snapshot(id) => {
            let before = id.0.checked_sub(1).map(SnapshotId);
            let found = pool.snapshots_after(before, 1).into_iter().find(|snapshot| snapshot.id == id)?;
            (found.volume, Some(found.name))
        }
    };
    let volume = pool.image(Target::Head(volume))?.name;
    Some(ImageLoad { volume, snapshot, open: load.open, counters: guest_io(load.counters) })
}

impl<P: Pool> Shard<P> {
    /// True for tags of mounts.
    pub(super) fn is_mounts(tag: Tag) -> bool {
        Session::id_of(tag) & MOUNT != 0
    }

    /// Starts serving a mount.
    pub(super) fn export_fuse(&mut self, spec: FuseExport) -> Result<ExportInfo, ShardError> {
        if self.exports.contains_key(&spec.id) || self.mounts.ids().contains(&spec.id) {
            return Err(ShardError::ExportExists(spec.id));
        }
        need_descriptors(0)?;
        let index = self.mounts.table.vacant_key() as u32; // exports are far fewer
        let mount = Mount {
            export: spec.id,
            name: spec.name,
            device: self.ring.attach(spec.device),
            session: Session::new(MOUNT | index, Owner { uid: spec.uid, gid: spec.gid, mode: spec.mode }),
            message: Message::new(self.pool.buffers().take(MAX_TRANSFER as usize)),
            requests: FileRequests::default(),
            purse: Purse::new(self.memory.asker()),
            readable: true,
            ended: false,
            queued: false,
            closing: None,
            patient_until: None,
        };
        let info = mount.info(&self.pool);
        self.mounts.table.insert(mount);
        self.mounts.enqueue(index);
        Ok(info)
    }

    /// Stops serving a mount when the requests that were read are answered; processes that use the
    /// mount get ENOTCONN from then on. Returns `answer` when no mount has this id.
    pub(super) fn unmount(&mut self, id: ExportId, answer: Option<Answer<()>>) -> Result<(), Option<Answer<()>>> {
        let Some(index) = self.mounts.find(|mount| mount.export == id) else { return Err(answer) };
        if let Some(mount) = self.mounts.get_mut(index) {
            mount.closing.get_or_insert_default().extend(answer);
            mount.patient_until.get_or_insert(self.now + LINGER_NANOS);
        }
        self.throttles.hurry(None);
        self.mounts.enqueue(index);
        Ok(())
    }

    /// Marks the mount of a device as readable.
    pub(super) fn wake_mount(&mut self, id: ConnectionId) {
        let Some(index) = self.mounts.find(|mount| mount.device == id) else { return };
        if let Some(mount) = self.mounts.get_mut(index) {
            mount.readable = true;
        }
        self.mounts.enqueue(index);
    }

    /// Reads requests of all mounts, without waiting for an event.
    pub(super) fn look_at_mounts(&mut self) {
        self.mounts.enqueue_where(|mount| {
            mount.readable = true;
            true
        });
        self.serve_mounts();
    }

    /// Queues the mounts whose requests wait for memory: some may be free now.
    pub(super) fn wake_waiting_mounts(&mut self) {
        self.mounts.enqueue_where(|mount| mount.session.is_waiting());
    }

    /// Returns the mounts' memory to the budget `before`; from now on they use the shard's new
    /// budget.
    pub(super) fn set_budget_of_mounts(&mut self, before: &PoolBudget) {
        for (_, mount) in &mut self.mounts.table {
            mount.purse.empty(before);
            mount.purse = Purse::new(self.memory.asker());
        }
        self.wake_waiting_mounts();
    }

    /// Reads requests of queued mounts and hands them to the pool.
    pub(super) fn serve_mounts(&mut self) {
        for index in std::mem::take(&mut self.mounts.active) {
            if let Some(mount) = self.mounts.get_mut(index) {
                mount.queued = false;
            }
            self.serve_mount(index);
            self.settle_mount(index);
        }
    }

    fn serve_mount(&mut self, index: u32) {
        let mut budget = FAIR_BYTES;
        let Some(mount) = self.mounts.get_mut(index) else { return };
        if mount.session.is_waiting() {
            let (mut tree, session, message) = mount.tree(&mut self.pool, &mut self.throttles, &self.memory, self.wall, self.now);
            session.resume(message, &mut tree, spare);
        }
        for _ in 0..FAIR_REQUESTS {
            let Some(mount) = self.mounts.get_mut(index) else { return };
            if !mount.readable || mount.ended || mount.closing.is_some() || !mount.session.has_room() || budget == 0 {
                break;
            }
            let (first, second) = mount.message.space();
            match self.ring.read_message(mount.device, first, second) {
                // the device is not /dev/fuse, and its other end is closed
                Ok(0) => mount.ended = true,
                Ok(length) => {
                    budget = budget.saturating_sub(length);
                    let (mut tree, session, message) = mount.tree(&mut self.pool, &mut self.throttles, &self.memory, self.wall, self.now);
                    session.request(message, length, &mut tree, spare);
                }
                Err(Errno::WOULDBLOCK) => mount.readable = false,
                Err(error) => {
                    mount.ended = true;
                    // NODEV is the normal end
                    if error != Errno::NODEV {
                        tracing::warn!(export = %mount.export, %error, "a mount broke");
                    }
                }
            }
        }
        self.reply(index);
        if let Some(mount) = self.mounts.get_mut(index) {
            mount.purse.settle(&self.memory);
        }
    }

    /// Writes the replies that are ready.
    fn reply(&mut self, index: u32) {
        let Some(mount) = self.mounts.get_mut(index) else { return };
        while let Some(reply) = mount.session.pop_reply() {
            match self.ring.write_message(mount.device, reply.slices()) {
                // the caller was killed, or the mount is gone, which the next read reports
                Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => {}
                Err(error) => tracing::warn!(export = %mount.export, %error, "the kernel refused a reply"),
            }
            self.pool.buffers().give_data(reply.into_data());
        }
        mount.purse.shrink(&self.memory, mount.session.bytes());
    }

    /// Passes the pool's completion of a request to its mount.
    pub(super) fn mount_completed(&mut self, completion: Completion) {
        let now = self.now;
        let Some((index, mount)) = self.mounts.by_tag(completion.tag) else { return };
        let (ended, success) = (mount.requests.end(completion.tag, now), completion.result.is_ok());
        if let Some((target, ended)) = ended {
            let load = self.loads.of_mut(self.pool.volume_of(target));
            if success { load.count(&ended) } else { load.io.errors += 1 }
        }
        mount.session.complete(completion, now);
        if mount.session.replies() >= TOGETHER {
            self.reply(index);
        }
        self.go_on(index);
    }

    /// Passes the pool's answer to a query to its mount.
    pub(super) fn mount_answered(&mut self, answer: MapAnswer) {
        let Some((index, mount)) = self.mounts.by_tag(answer.tag) else { return };
        let (mut tree, session, _) = mount.tree(&mut self.pool, &mut self.throttles, &self.memory, self.wall, self.now);
        session.answer(answer, &mut tree);
        self.go_on(index);
    }

    /// Queues a mount after an answer: a reply is to be written, and requests that had to wait may
    /// go on.
    fn go_on(&mut self, index: u32) {
        self.mounts.enqueue(index);
    }

    /// Writes the replies that are left at the end of a turn.
    pub(super) fn flush_mounts(&mut self) {
        for index in std::mem::take(&mut self.mounts.active) {
            if let Some(mount) = self.mounts.get_mut(index) {
                mount.queued = false;
            }
            self.reply(index);
            self.settle_mount(index);
        }
    }

    /// Queues a mount again when there is more to read now, and removes one that has ended
    /// (INV-SHARD-1).
    fn settle_mount(&mut self, index: u32) {
        let Some(mount) = self.mounts.get_mut(index) else { return };
        if !mount.ended && mount.closing.is_none() {
            if mount.readable && mount.session.has_room() {
                self.mounts.enqueue(index);
            }
            return;
        }
        if mount.session.in_flight() > 0 || mount.session.is_waiting() {
            return;
        }
        let Some(mut mount) = self.mounts.table.try_remove(index as usize) else { return };
        tracing::debug!(export = %mount.export, "mount gone");
        self.ring.close(mount.device);
        mount.purse.empty(&self.memory);
        self.mounts.past.add(&guest_io(mount.session.counters()));
        self.pool.buffers().give(mount.message.into_buf());
        for answer in mount.closing.into_iter().flatten() {
            let _ = answer.send(Ok(()));
        }
    }
}

/// Returns a session's counters as they are listed.
pub(super) fn guest_io(counters: Counters) -> GuestIo {
    let Counters {
        reads,
        read_bytes,
        read_nanos,
        writes,
        write_bytes,
        write_nanos,
        flushes,
        fua_writes,
        discards,
        discard_bytes: _,
        errors,
    } = counters;
    GuestIo { reads, read_bytes, read_nanos, writes, write_bytes, write_nanos, flushes, fua_writes, discards, errors }
}
