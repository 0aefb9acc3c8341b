//! A deliberately simple system that keeps all promises, to prove that the oracle accepts it, and
//! the same system with known bugs, to prove that the oracle finds them. For tests of the simulator
//! only.
//!
//! Everything is in memory and everything is logged. Record n goes to device n mod the number of
//! devices, behind the last record there, and contains its predecessor's checksum, so that stale
//! records never follow. Recovery replays the log up to the first missing record. Space is never
//! reused.

mod code;
mod machine;
mod memory;

use millpond_block::{
    Buf, BufSlice, ByteRange, Completion, DeviceGeometry, DeviceSlot, DiskError, Io, IoId, IoKind, IoSlices, Op, Payload, Request, Tag,
};
use millpond_engine::{Command, CommandError, DiffExtent, Fault, PoolState, Reply, VolumeId, VolumeOptions};
use std::collections::{BTreeMap, VecDeque};

use crate::disk::PAGE;
use crate::system::Target;
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
