//! A deliberately simple system that keeps all promises, to prove that the oracle accepts it, and
//! the same system with known bugs, to prove that the oracle finds them. For tests of the simulator
//! only.
//!
//! Everything is in memory and everything is logged. Record n goes to device n mod the number of
//! devices, behind the last record there, and contains its predecessor's checksum, so that stale
//! records never follow. Recovery replays the log up to the first missing record. Space is never
//! reused.

mod code;
mod memory;

use millpond_block::{
    Buf, BufSlice, ByteRange, Completion, DeviceGeometry, DeviceSlot, DiskError, Io, IoDone, IoId, IoKind, IoSlices, Op, Payload, Query,
    Request, Run, Tag,
};
use millpond_engine::{
    CatalogCommand, Command, CommandError, DiffExtent, Fault, Metrics, PoolInfo, PoolSpec, PoolState, Reply, SnapshotInfo, StateMachine,
    Time, Tuning, VolumeId, VolumeInfo, VolumeOptions,
};
use std::collections::{BTreeMap, VecDeque};

use crate::disk::PAGE;
use crate::system::{Media, System, Target};
use code::{Entry, HEADER};
use memory::Memory;

/// A bug of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    None,
    FlushNothing,
    FlushFirstDevice,
    FuaNotDurable,
    AckFromMemory,
    ApplyAtCompletion,
    ForgetDiscard,
    TornRequest,
    SplitGroupSnapshot,
    SnapshotNotFrozen,
    ReplyTooEarly,
    SkipGaps,
    NoChecksum,
    LoseAnswer,
    SwapBlocks,
    StaleAfterDiscard,
    ShrinkKeepsData,
    RollbackForgetsHead,
    HoldIgnored,
    TagNotLogged,
    ReleaseTakesAll,
    ReadErrorIsEnd,
    EarlyRead,
    DiffMissesHoles,
    HoleTooMany,
    NeighbourLost,
}

thread_local! {
    /// The bug of systems made on this thread, because `System::import` has no parameter for it.
    pub static BUG: std::cell::Cell<Bug> = const { std::cell::Cell::new(Bug::None) };
}

static NO_OPTIONS: BTreeMap<VolumeId, VolumeOptions> = BTreeMap::new();

/// Pages of each device that are reserved for operations that free space.
const RESERVE: usize = 200;

enum Answer {
    Guest(Tag, Result<Vec<u8>, DiskError>),
    Command(Tag, Result<Reply, CommandError>),
    /// A checkpoint is two records: the second says that the first, and all before it, are durable.
    Checkpoint(Tag),
}

struct Waiter {
    /// Answer once this many records are written (and durable, if `durable`).
    records: u64,
    durable: bool,
    answer: Answer,
}

enum Doing {
    Label,
    Scan(usize),
    Record(u64, Box<Entry>, Vec<u8>),
    Flush,
}

pub struct Reference {
    bug: Bug,
    devices: Vec<DeviceGeometry>,
    /// Member number of each device, once known.
    order: Vec<usize>,
    state: PoolState,
    pool: [u8; 16],
    memory: Memory,
    next: u64,
    chain: u64,
    cursors: Vec<usize>,
    written: u64,
    done: BTreeMap<u64, bool>,
    durable: u64,
    flushing: Option<(u64, usize)>,
    waiters: Vec<Waiter>,
    later: VecDeque<(Tag, Command)>,
    ios: VecDeque<Io>,
    doing: BTreeMap<u64, (Doing, usize)>,
    images: BTreeMap<usize, Vec<u8>>,
    io: u64,
    completions: VecDeque<Completion>,
    replies: VecDeque<(Tag, Result<Reply, CommandError>)>,
    diffs: VecDeque<(Tag, Result<Vec<DiffExtent>, CommandError>)>,
    query_answers: VecDeque<millpond_block::Answer>,
    answers: u64,
}

impl Reference {
    fn empty(devices: Vec<DeviceGeometry>) -> Reference {
        let cursors = vec![1; devices.len()];
        Reference {
            bug: BUG.get(),
            order: (0..devices.len()).collect(),
            devices,
            state: PoolState::Opening,
            pool: [0; 16],
            memory: Memory::new(BUG.get()),
            next: 0,
            chain: 0,
            cursors,
            written: 0,
            done: BTreeMap::new(),
            durable: 0,
            flushing: None,
            waiters: Vec::new(),
            later: VecDeque::new(),
            ios: VecDeque::new(),
            doing: BTreeMap::new(),
            images: BTreeMap::new(),
            io: 0,
            completions: VecDeque::new(),
            replies: VecDeque::new(),
            diffs: VecDeque::new(),
            query_answers: VecDeque::new(),
            answers: 0,
        }
    }

    fn io(&mut self, device: usize, kind: IoKind, doing: Doing) {
        self.io += 1;
        self.doing.insert(self.io, (doing, device));
        self.ios.push_back(Io { id: IoId(self.io), device: DeviceSlot(device as u16), kind, urgent: false });
    }

    fn write(&mut self, device: usize, page: usize, bytes: &[u8], doing: Doing) {
        let mut buf = Buf::zeroed(bytes.len());
        buf.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        let size = buf.size();
        let piece = BufSlice::new(buf, 0..size);
        self.io(device, IoKind::Write { offset: (page * PAGE) as u64, pieces: vec![piece] }, doing);
    }

    fn fault(&mut self, why: &str) {
        if !matches!(self.state, PoolState::Faulted(_)) {
            self.state = PoolState::Faulted(Fault::Caller(why.to_owned()));
        }
        for waiter in std::mem::take(&mut self.waiters) {
            match waiter.answer {
                Answer::Guest(tag, _) => self.completions.push_back(Completion { tag, result: Err(DiskError::Io) }),
                Answer::Command(tag, _) | Answer::Checkpoint(tag) => {
                    self.replies.push_back((tag, Err(CommandError::Faulted(Fault::Caller(why.to_owned())))));
                }
            }
        }
    }

    fn wait(&mut self, durable: bool, answer: Answer) {
        let records =
            if self.bug == Bug::EarlyRead && matches!(answer, Answer::Guest(_, Ok(ref data)) if !data.is_empty()) { 0 } else { self.next };
        self.waiters.push(Waiter { records, durable, answer });
        self.answer_ready();
    }

    fn answer_ready(&mut self) {
        let (written, durable) = (self.written, self.durable);
        let ready = |w: &Waiter| w.records <= if w.durable { durable } else { written };
        let (now, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiters).into_iter().partition(ready);
        self.waiters = later;
        for waiter in now {
            self.answers += 1;
            if self.bug == Bug::LoseAnswer && self.answers.is_multiple_of(97) {
                continue;
            }
            match waiter.answer {
                Answer::Guest(tag, result) => self.completions.push_back(Completion { tag, result: result.map(data) }),
                Answer::Command(tag, result) => self.replies.push_back((tag, result)),
                Answer::Checkpoint(tag) => {
                    self.append(Entry::Command(Command::Checkpoint), Vec::new());
                    self.waiters.push(Waiter { records: self.next, durable: true, answer: Answer::Command(tag, Ok(Reply::Done)) });
                }
            }
        }
    }

    /// Appends a record and applies it.
    fn append(&mut self, entry: Entry, payload: Vec<u8>) {
        let n = self.next;
        self.next += 1;
        let member = n as usize % self.devices.len();
        let header = code::encode(&entry, n, self.chain, self.durable, &self.pool, &payload);
        self.chain = code::checksum(&header);
        let page = self.cursors[member];
        let bytes = [header, payload.clone()].concat();
        self.cursors[member] += bytes.len().div_ceil(PAGE);
        if self.bug != Bug::ApplyAtCompletion || !matches!(entry, Entry::Write { .. }) {
            self.memory.apply(&entry, &payload);
        }
        self.write(self.order[member], page, &bytes, Doing::Record(n, Box::new(entry), payload));
    }

    fn room(&self, bytes: usize) -> bool {
        let member = self.next as usize % self.devices.len();
        let pages = self.devices[self.order[member]].size as usize / PAGE;
        self.cursors[member] + RESERVE + (HEADER + bytes).div_ceil(PAGE) + 1 < pages
    }

    fn flush_all(&mut self) {
        self.flushing = Some((self.written, self.devices.len()));
        for device in 0..self.devices.len() {
            self.io(device, IoKind::Flush, Doing::Flush);
        }
    }

    fn start_flush(&mut self) {
        let wanted = self.waiters.iter().any(|w| w.durable && w.records > self.durable && w.records <= self.written);
        if !wanted || self.flushing.is_some() || self.state != PoolState::Online {
            return;
        }
        if self.bug == Bug::FlushNothing {
            self.durable = self.written;
            return;
        }
        let count = if self.bug == Bug::FlushFirstDevice { 1 } else { self.devices.len() };
        self.flushing = Some((self.written, count));
        for device in 0..count {
            self.io(device, IoKind::Flush, Doing::Flush);
        }
    }

    fn modify(&mut self, target: Target, request: Request, payload: &[u8]) {
        let Target::Head(volume) = target else { return };
        let ByteRange { offset, length } = request.range;
        match request.op {
            Op::Write if self.bug == Bug::TornRequest && length >= 1024 => {
                let half = (length / 1024 * 512) as usize;
                self.append(Entry::Write { volume, offset, length: half as u64 }, payload[..half].to_vec());
                let rest = Entry::Write { volume, offset: offset + half as u64, length: length - half as u64 };
                self.append(rest, payload[half..].to_vec());
            }
            Op::Write => {
                let mut payload = payload.to_vec();
                if self.bug == Bug::SwapBlocks && length == 12288 {
                    payload.rotate_left(PAGE);
                }
                self.append(Entry::Write { volume, offset, length }, payload);
            }
            // Rounds up to sectors and erases bytes of the last one that a neighbour wrote.
            Op::WriteZeroes { .. } if self.bug == Bug::NeighbourLost => {
                self.append(Entry::Zero { volume, offset, length: (offset + length).next_multiple_of(512) - offset }, Vec::new());
            }
            Op::WriteZeroes { .. } => self.append(Entry::Zero { volume, offset, length }, Vec::new()),
            _ => {
                let first = offset.div_ceil(PAGE as u64) * PAGE as u64;
                let end = (offset + length) / PAGE as u64 * PAGE as u64;
                if end > first {
                    let entry = Entry::Zero { volume, offset: first, length: end - first };
                    match self.bug {
                        Bug::ForgetDiscard => self.memory.apply(&entry, &[]),
                        Bug::StaleAfterDiscard if first.is_multiple_of(7 * PAGE as u64) => {}
                        _ => self.append(entry, Vec::new()),
                    }
                }
            }
        }
    }

    fn start(&mut self, target: Target, tag: Tag, request: Request, payload: Payload<'_>, bytes: bool) {
        let length = request.range.length as usize;
        let payload = match payload {
            Payload::None => Vec::new(),
            Payload::Copy(bytes) => bytes.to_vec(),
            Payload::Owned(buf) => buf.bytes()[..length].to_vec(),
        };
        let refuse = |error| Completion { tag, result: Err(error) };
        let Some((geometry, features, mode)) = self.memory.geometry(target) else {
            return self.completions.push_back(refuse(DiskError::Shutdown));
        };
        let valid = if bytes { request.validate_bytes(&geometry, &features) } else { request.validate(&geometry, &features) };
        if let Err(error) = valid {
            return self.completions.push_back(refuse(error));
        }
        if self.state != PoolState::Online {
            return self.completions.push_back(refuse(DiskError::Io));
        }
        match request.op {
            Op::Read => {
                let bytes = self.memory.read(target, request.range);
                self.wait(false, Answer::Guest(tag, Ok(bytes)));
            }
            Op::Cache => self.wait(false, Answer::Guest(tag, Ok(Vec::new()))),
            Op::Flush => self.wait(mode.honours_flush(), Answer::Guest(tag, Ok(Vec::new()))),
            Op::Write | Op::WriteZeroes { .. } if !self.room(payload.len()) => self.completions.push_back(refuse(DiskError::NoSpace)),
            _ => {
                self.modify(target, request, &payload);
                let durable = mode.every_write_durable() || (request.fua && mode.honours_flush() && self.bug != Bug::FuaNotDurable);
                if self.bug == Bug::AckFromMemory && !durable {
                    self.completions.push_back(Completion { tag, result: Ok(IoSlices::new()) });
                } else {
                    self.wait(durable, Answer::Guest(tag, Ok(Vec::new())));
                }
            }
        }
    }

    /// Finds the order of the devices, after all were read, and replays the log.
    fn replay(&mut self) {
        let images = std::mem::take(&mut self.images);
        let count = self.devices.len();
        let mut order = vec![usize::MAX; count];
        for (device, image) in &images {
            let Some((pool, member, members)) = code::decode_label(image) else { return self.fault("a device has no label") };
            if members != count {
                return self.fault("a device is missing");
            }
            self.pool = pool;
            if let Some(slot) = order.get_mut(member) {
                *slot = *device;
            }
        }
        if order.contains(&usize::MAX) {
            return self.fault("a device is there twice");
        }
        self.order = order;
        let mut missing = 0;
        loop {
            let member = self.next as usize % count;
            let image = &images[&self.order[member]];
            let at = self.cursors[member] * PAGE;
            let sloppy = matches!(self.bug, Bug::SkipGaps);
            let chain = if sloppy { None } else { Some(self.chain) };
            let Some((entry, header, payload)) = code::decode(image, at, self.next, chain, &self.pool, self.bug == Bug::NoChecksum) else {
                // The bug continues behind a missing record, if it can tell the record's length.
                missing += 1;
                if sloppy && missing < 2 && count > 1 {
                    self.next += 1;
                    continue;
                }
                self.next -= if sloppy && count > 1 { missing - 1 } else { 0 };
                break;
            };
            missing = 0;
            self.chain = code::checksum(header);
            self.memory.apply(&entry, payload);
            self.cursors[member] += (HEADER + payload.len()).div_ceil(PAGE);
            self.next += 1;
        }
        if !matches!(self.bug, Bug::SkipGaps | Bug::NoChecksum | Bug::ReadErrorIsEnd)
            && code::was_durable(images.values(), self.next, &self.pool)
        {
            return self.fault("a record that was durable is damaged");
        }
        self.memory.closed = false;
        self.written = self.next;
        self.flush_all(); // what is listed from now on stays
    }
}

fn data(bytes: Vec<u8>) -> IoSlices {
    if bytes.is_empty() {
        return IoSlices::new();
    }
    let mut buf = Buf::zeroed(bytes.len());
    buf.bytes_mut()[..bytes.len()].copy_from_slice(&bytes);
    IoSlices::from_iter([BufSlice::new(buf, 0..bytes.len())])
}

impl StateMachine for Reference {
    fn state(&self) -> &PoolState {
        &self.state
    }

    fn submit(&mut self, target: Target, tag: Tag, request: Request, payload: Payload<'_>) {
        self.start(target, tag, request, payload, false);
    }

    fn submit_bytes(&mut self, target: Target, tag: Tag, request: Request, payload: Payload<'_>) {
        self.start(target, tag, request, payload, true);
    }

    /// Reports all blocks as data, and all as changed, which is never wrong.
    fn query(&mut self, _: Target, tag: Tag, query: Query) {
        let set = self.bug != Bug::HoleTooMany;
        let result = match self.state {
            PoolState::Online => Ok(vec![Run { length: query.range.length, set }]),
            _ => Err(DiskError::Shutdown),
        };
        self.query_answers.push_back(millpond_block::Answer { tag, result });
    }

    fn pop_answer(&mut self) -> Option<millpond_block::Answer> {
        self.query_answers.pop_front()
    }

    fn command(&mut self, tag: Tag, command: Command) {
        if self.state != PoolState::Online {
            return self.replies.push_back((tag, Err(CommandError::Faulted(Fault::Caller("stopped".to_owned())))));
        }
        if let (Bug::SplitGroupSnapshot, Command::Catalog(CatalogCommand::Snapshot { targets, description, expires, .. })) =
            (self.bug, &command)
            && let [first, rest @ ..] = targets.as_slice()
            && !rest.is_empty()
        {
            let part = |targets: Vec<_>| {
                Command::Catalog(CatalogCommand::Snapshot {
                    targets,
                    description: description.clone(),
                    expires: *expires,
                    lock_millis: None,
                })
            };
            self.append(Entry::Command(part(vec![first.clone()])), Vec::new());
            return self.later.push_back((tag, part(rest.to_vec())));
        }
        if let Err(error) = self.memory.check(&command) {
            return self.replies.push_back((tag, Err(error)));
        }
        if command == Command::Checkpoint {
            self.append(Entry::Command(command), Vec::new());
            return self.wait(true, Answer::Checkpoint(tag));
        }
        let reply = self.memory.reply(&command);
        self.append(Entry::Command(command), Vec::new());
        if self.bug == Bug::ReplyTooEarly {
            self.replies.push_back((tag, Ok(reply)));
        } else {
            self.wait(true, Answer::Command(tag, Ok(reply)));
        }
    }

    fn turn(&mut self, _: Time) -> bool {
        if self.state == PoolState::Online {
            for (tag, command) in std::mem::take(&mut self.later) {
                let mut names = Vec::new();
                if let Command::Catalog(CatalogCommand::Snapshot { targets, .. }) = &command {
                    names = targets.iter().map(|t| t.0).collect();
                }
                let first = self.memory.last_snapshot();
                self.append(Entry::Command(command), Vec::new());
                let ids = (first.0..=first.0 + names.len() as u64).map(millpond_engine::SnapshotId).collect();
                self.wait(true, Answer::Command(tag, Ok(Reply::Snapshots(ids))));
            }
            self.start_flush();
            self.answer_ready();
            let closing = self.memory.closed && self.waiters.is_empty() && self.doing.is_empty();
            if closing {
                self.state = PoolState::Closed;
            }
        }
        false
    }

    fn io_done(&mut self, done: IoDone) {
        let Some((doing, device)) = self.doing.remove(&done.id.0) else { return };
        match doing {
            Doing::Label => {
                if self.doing.is_empty() {
                    self.flush_all();
                }
            }
            Doing::Scan(offset) => {
                let Some(image) = self.images.get_mut(&device) else { return };
                match (done.result, done.buf) {
                    (Ok(()), Some(buf)) => {
                        let length = (image.len() - offset).min(1 << 20);
                        image[offset..offset + length].copy_from_slice(&buf.bytes()[..length]);
                    }
                    _ if self.bug == Bug::ReadErrorIsEnd => {}
                    _ => return self.fault("the log cannot be read"),
                }
                if self.doing.is_empty() && self.state == PoolState::Opening {
                    self.replay();
                }
            }
            Doing::Record(n, entry, payload) => {
                if done.result.is_err() {
                    return self.fault("the log cannot be written");
                }
                if self.bug == Bug::ApplyAtCompletion && matches!(*entry, Entry::Write { .. }) {
                    self.memory.apply(&entry, &payload);
                }
                self.done.insert(n, true);
                while self.done.remove(&self.written).is_some() {
                    self.written += 1;
                }
                self.answer_ready();
            }
            Doing::Flush => {
                if done.result.is_err() {
                    return self.fault("a flush failed");
                }
                if let Some((target, left)) = &mut self.flushing {
                    *left -= 1;
                    if *left == 0 {
                        self.durable = self.durable.max(*target);
                        self.flushing = None;
                        if self.state == PoolState::Opening {
                            self.state = PoolState::Online;
                        }
                        self.answer_ready();
                    }
                }
            }
        }
    }

    fn pop_io(&mut self) -> Option<Io> {
        self.ios.pop_front()
    }

    fn pop_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    fn pop_reply(&mut self) -> Option<(Tag, Result<Reply, CommandError>)> {
        let next = self.replies.pop_front();
        let closing = self.memory.closed && self.replies.is_empty() && self.waiters.is_empty();
        if next.is_some() && closing && self.state == PoolState::Online {
            self.state = PoolState::Closed;
        }
        next
    }

    fn pool(&self) -> Option<PoolInfo> {
        let layout = millpond_engine::Layout::Linear;
        let (name, id) = ("reference".to_owned(), millpond_engine::PoolId(self.pool));
        Some(PoolInfo {
            name,
            id,
            state: self.state.clone(),
            layout,
            size: 0,
            allocated: 0,
            free: 0,
            given_up: 0,
            removal_ended: None,
            removal_waits: None,
            fell_back: None,
            space: millpond_engine::SpaceInfo::default(),
            devices: Vec::new(),
            jobs: Vec::new(),
            scrub: None,
            job_rate: None,
            read_only: false,
            refuses_writes: false,
        })
    }

    fn volumes(&self) -> Vec<VolumeInfo> {
        self.memory.volumes()
    }

    fn options(&self) -> &BTreeMap<VolumeId, VolumeOptions> {
        &NO_OPTIONS
    }

    fn metrics(&self) -> Metrics {
        Metrics::default()
    }

    fn start_diff(&mut self, tag: Tag, older: Option<Target>, newer: Target) {
        let extents = self.memory.diff(older, newer);
        self.diffs.push_back((tag, Ok(extents)));
    }

    fn pop_diff(&mut self) -> Option<(Tag, Result<Vec<DiffExtent>, CommandError>)> {
        self.diffs.pop_front()
    }
}

impl System for Reference {
    fn create(spec: PoolSpec, devices: Vec<DeviceGeometry>, _: Tuning, _: Time) -> Result<Reference, CommandError> {
        let mut system = Reference::empty(devices);
        system.pool = spec.id.0;
        for device in 0..system.devices.len() {
            let label = code::encode_label(&system.pool, device, system.devices.len());
            system.write(device, 0, &label, Doing::Label);
        }
        Ok(system)
    }

    fn import(devices: Vec<DeviceGeometry>, _: Tuning, _: Time) -> Reference {
        let mut system = Reference::empty(devices);
        for device in 0..system.devices.len() {
            let length = system.devices[device].size as usize;
            system.images.insert(device, vec![0; length]);
            for offset in (0..length).step_by(1 << 20) {
                let length = (length - offset).min(1 << 20);
                system.io(device, IoKind::Read { offset: offset as u64, length, buf: Buf::zeroed(length) }, Doing::Scan(offset));
            }
        }
        system
    }

    fn snapshots(&self) -> Vec<SnapshotInfo> {
        self.memory.snapshots()
    }

    fn audit(&mut self, _: Media<'_>) -> Vec<String> {
        Vec::new()
    }

    fn recycle(&mut self, _: IoSlices) {}
}
