//! The disk that a guest sees: its queues, what of them is in flight, the answers.
//!
//! INV-VHOST-1: the guest's memory is exchanged only while no queue runs, so that what was checked when a request was taken still holds when
//! it is answered.

use millpond_block::{Buf, BufPool, ByteRange, Completion, Data, Disk, DiskError, Features, Geometry, Op, Payload, Request};
use smallvec::SmallVec;
use vm_memory::{Address, GuestAddress};

use super::chain::{Chain, Segment, Segments};
use super::config;
use super::dirty::{DirtyLog, Marked};
use super::memory::{self, Memory};
use super::queue::{QueueError, QueueSetup, VirtQueue};
use super::request::{Ask, Kind, Part, Status};
use super::slots::{Slot, Slots};

/// Bytes of a serial number.
pub const SERIAL: usize = 20;
/// Writes from this size on are handed over as buffers, which saves the second copy: a batch of the log has room for few of them.
const LARGE_WRITE: u32 = 32 << 10;
/// Requests that are read before the first of them is started, so that the disk can look for what they need all at once.
const AHEAD: usize = 32;

/// What one guest may have in flight, and get done in one turn.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests in flight.
    pub requests: u16,
    /// Bytes of data of requests in flight; a single request may have more.
    pub bytes: u64,
    /// Requests per turn.
    pub turn_requests: usize,
    /// Bytes per turn, so that others have their turn.
    pub turn_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { requests: 4096, bytes: 64 << 20, turn_requests: 256, turn_bytes: 1 << 20 }
    }
}

/// What a device did that the disk does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests answered with an error.
    pub errors: u64,
    /// Chains that were no request.
    pub malformed: u64,
}

/// A request that was read from a queue and is for the disk.
struct Asked {
    queue: u16,
    head: u16,
    parts: SmallVec<[Part; 1]>,
    data: Segments,
    length: u32,
    status_at: GuestAddress,
}

/// A virtio-blk device over the memory of its guest.
pub struct Device {
    memory: Memory,
    /// Where it is noted what of the memory was written; nobody looks unless the features say so.
    log: Option<DirtyLog>,
    queues: Vec<Option<VirtQueue>>,
    slots: Slots,
    limits: Limits,
    /// Bytes of data in flight.
    bytes: u64,
    features: u64,
    /// The guest wants every write durable before it is answered.
    write_through: bool,
    /// It may have been told that they are, and has no reason to flush.
    promised: bool,
    serial: [u8; SERIAL],
    counters: Counters,
    /// The queue that is looked at first in the next turn.
    first: usize,
    /// Read and not started yet; empty between calls.
    asked: Vec<Asked>,
    /// Read, and waits for memory: nothing is taken before it is started.
    held: Option<Asked>,
    /// Reused.
    ranges: Vec<ByteRange>,
    chain: Chain,
    scratch: Vec<u8>,
}

impl Device {
    /// A device without memory and queues. `id` comes back in the upper half of every tag.
    pub fn new(id: u32, serial: &str, limits: Limits) -> Device {
        let mut bytes = [0; SERIAL];
        bytes.iter_mut().zip(serial.bytes()).for_each(|(place, byte)| *place = byte);
        Device {
            memory: Memory::new(),
            log: None,
            queues: Vec::new(),
            slots: Slots::new(id, limits.requests),
            limits,
            bytes: 0,
            features: 0,
            write_through: false,
            promised: false,
            serial: bytes,
            counters: Counters::default(),
            first: 0,
            asked: Vec::new(),
            held: None,
            ranges: Vec::new(),
            chain: Chain::default(),
            scratch: vec![0; LARGE_WRITE as usize],
        }
    }

    /// Exchanges the guest's memory and gives the old one back, which takes time to let go of.
    ///
    /// # Errors
    /// [`QueueError::Running`] while a queue runs; the memory comes back then, too.
    pub fn set_memory(&mut self, memory: Memory) -> Result<Memory, (QueueError, Memory)> {
        if self.queues.iter().flatten().next().is_some() {
            return Err((QueueError::Running, memory));
        }
        Ok(std::mem::replace(&mut self.memory, memory))
    }

    /// Exchanges the log of dirty pages, and gives the old one back.
    pub fn set_log(&mut self, log: DirtyLog) -> Option<DirtyLog> {
        self.log.replace(log)
    }

    /// What the guest has agreed to; queues started from now on go by it.
    pub fn set_features(&mut self, features: u64) {
        self.features = features;
    }

    /// Whether the guest wants a write cache: without one, every write is durable before it is answered. A guest that asks for one knows that
    /// it has to flush.
    pub fn set_write_cache(&mut self, on: bool) {
        self.write_through = !on;
        self.promised &= !on;
    }

    /// Whether the guest may have been told that there is no write cache, whatever the disk says now.
    pub fn set_promised(&mut self, promised: bool) {
        self.promised = promised;
    }

    /// Starts a queue. Gives the number of requests that a predecessor had in flight, which are done again first.
    ///
    /// # Errors
    /// As [`QueueError`] says.
    pub fn start(&mut self, index: usize, setup: &QueueSetup) -> Result<usize, QueueError> {
        let index16 = u16::try_from(index).map_err(|_| QueueError::Number)?;
        if self.queues.len() <= index {
            self.queues.resize_with(usize::from(index16) + 1, || None);
        }
        let place = self.queues.get_mut(index).ok_or(QueueError::Number)?;
        if place.is_some() {
            return Err(QueueError::Running);
        }
        let queue = VirtQueue::start(&self.memory, setup, self.features & config::EVENT_IDX != 0)?;
        let left = queue.left();
        *place = Some(queue);
        Ok(left)
    }

    /// Lets a queue take nothing any more; [`Device::stopped`] tells when it has ended.
    pub fn stop(&mut self, index: usize) {
        if let Some(Some(queue)) = self.queues.get_mut(index) {
            queue.stopping = true;
        }
    }

    /// The entry that a queue goes on with when it is started again; `None` while something is in flight, [`QueueError::Number`] when it
    /// does not run.
    ///
    /// # Errors
    /// [`QueueError::Number`].
    pub fn stopped(&mut self, index: usize) -> Result<Option<u16>, QueueError> {
        let place = self.queues.get_mut(index).ok_or(QueueError::Number)?;
        let queue = place.as_ref().ok_or(QueueError::Number)?;
        if !queue.stopping || !queue.is_drained() {
            return Ok(None);
        }
        Ok(place.take().map(|queue| queue.base()))
    }

    /// Hands what the guest offers to the disk, within the limits of a turn. Gives the number of requests taken, and of broken queues.
    pub fn take<D: Disk>(&mut self, disk: &mut D) -> Taken {
        let mut taken = Taken::default();
        let mut bytes = 0;
        // Neither changes while the disk is lent out.
        let bounds = (disk.geometry(), disk.features());
        if let Some(held) = self.held.take() {
            bytes += self.admit(disk, held);
        }
        let count = self.queues.len();
        for step in 0..count {
            let index = (self.first + step) % count;
            while taken.requests < self.limits.turn_requests && bytes < self.limits.turn_bytes && self.has_room() {
                let Some(Some(queue)) = self.queues.get_mut(index) else { break };
                match queue.take(&self.memory) {
                    Ok(Some(head)) => {
                        taken.requests += 1;
                        bytes += self.read(disk, index as u16, head); // below the number of queues
                        if self.asked.len() == AHEAD {
                            self.start_all(disk, &bounds);
                        }
                    }
                    Ok(None) => break,
                    Err(error) => {
                        taken.broken = Some((index, error));
                        break;
                    }
                }
            }
        }
        self.start_all(disk, &bounds);
        if count > 0 {
            self.first = (self.first + 1) % count;
        }
        taken
    }

    /// True below the limits, unless a request waits for memory.
    pub fn has_room(&self) -> bool {
        self.held.is_none() && self.bytes < self.limits.bytes && self.slots.has_room(self.asked.len())
    }

    /// Reads the request at a head, to be started with others. Gives the bytes that it moves.
    fn read<D: Disk>(&mut self, disk: &mut D, index: u16, head: u16) -> u64 {
        let Some(Some(queue)) = self.queues.get_mut(usize::from(index)) else { return 0 };
        let (table, size) = queue.table();
        let walked = self.chain.walk(&self.memory, table, size, head);
        let ask = walked.ok().and_then(|()| Ask::read(&self.memory, &mut self.chain));
        let Some(ask) = ask else {
            // There is no place for a status. The chain goes back, so that a driver that is only mistaken does not wait for ever.
            self.counters.malformed += 1;
            queue.answer(marked(&self.memory, &self.log, self.features), head, 0);
            return 0;
        };
        let parts = match ask.kind {
            Ok(Kind::Disk(parts)) => parts,
            Ok(Kind::Identity) => {
                let written = scatter(self.marked(), &ask.data, &self.serial);
                self.close(index, head, Status::Ok, ask.status_at, written);
                return 0;
            }
            Err(status) => {
                self.close(index, head, status, ask.status_at, 0);
                return 0;
            }
        };
        self.admit(disk, Asked { queue: index, head, parts, data: ask.data, length: ask.length, status_at: ask.status_at })
    }

    /// Has a request started with others, or held until there is memory for it. Gives the bytes that it moves, if it is started.
    fn admit<D: Disk>(&mut self, disk: &mut D, asked: Asked) -> u64 {
        let bytes = u64::from(asked.length);
        if !disk.reserve(bytes) {
            self.held = Some(asked);
            return 0;
        }
        self.bytes += bytes;
        self.asked.push(asked);
        bytes
    }

    /// Answers a request that waits for memory with an error: its guest is let go of.
    pub fn refuse_held(&mut self) {
        if let Some(Asked { queue, head, status_at, .. }) = self.held.take() {
            self.close(queue, head, Status::IoError, status_at, 0);
        }
    }

    /// Bytes of data in flight: what was reserved and is not given back.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Starts the requests that were read.
    fn start_all<D: Disk>(&mut self, disk: &mut D, bounds: &(Geometry, Features)) {
        let mut asked = std::mem::take(&mut self.asked);
        self.ranges.clear();
        let reads = |asked: &Asked| asked.parts.first().filter(|part| part.op == Op::Read).map(|part| part.range);
        self.ranges.extend(asked.iter().filter_map(reads));
        if self.ranges.len() > 1 {
            disk.expect(&self.ranges);
        }
        asked.drain(..).for_each(|asked| self.start_one(disk, bounds, asked));
        self.asked = asked;
    }

    fn start_one<D: Disk>(&mut self, disk: &mut D, bounds: &(Geometry, Features), asked: Asked) {
        let Asked { queue: index, head, parts, data, length, status_at } = asked;
        let (geometry, features) = bounds;
        let fua = self.write_through(features);
        let make = |part: &Part| Request { op: part.op, range: part.range, fua: fua && part.op.modifies() };
        // All or nothing of a request of several ranges.
        let first = parts.first().filter(|_| parts.iter().all(|part| make(part).validate(geometry, features).is_ok()));
        let Some(first) = first else {
            self.bytes = self.bytes.saturating_sub(u64::from(length));
            return self.close(index, head, Status::IoError, status_at, 0);
        };
        let (op, count) = (first.op, parts.len() as u16);
        let payload = if op == Op::Write { Some(gather(&self.memory, &data, length, &mut self.scratch, disk)) } else { None };
        let data = if op == Op::Read { data } else { Default::default() };
        let tag = self.slots.insert(count, |generation| Slot::new(generation, index, head, op, status_at, data, length));
        match payload {
            Some(Gathered::Buffer(buf)) => disk.submit(tag, make(first), Payload::Owned(buf)),
            Some(Gathered::Scratch) => {
                let bytes = self.scratch.get(..length as usize).unwrap_or_default();
                disk.submit(tag, make(first), Payload::Copy(bytes));
            }
            None => parts.iter().for_each(|part| disk.submit(tag, make(part), Payload::None)),
        }
    }

    /// A guest without a way to flush, that has switched the cache off, or was told that there is none, relies on every write.
    fn write_through(&self, features: &Features) -> bool {
        features.write_cache && (self.write_through || self.promised || self.features & config::FLUSH == 0)
    }

    /// The disk has answered. True when that ended a request, whose bytes are then with the guest.
    pub fn complete(&mut self, completion: Completion, buffers: &mut BufPool) -> bool {
        let Completion { tag, result } = completion;
        let Some(slot) = self.slots.get_mut(tag) else {
            // Nobody's: a completion that came twice.
            buffers.give_data(result.unwrap_or_default());
            return false;
        };
        slot.left -= 1;
        let status = match &result {
            Ok(_) => Status::Ok,
            Err(DiskError::NotSupported) => Status::Unsupported,
            Err(_) => Status::IoError,
        };
        slot.status = slot.status.max(status);
        let mut written = 0;
        if let Ok(data) = result {
            if slot.op == Op::Read {
                written = scatter_data(marked(&self.memory, &self.log, self.features), &slot.data, &data);
            }
            buffers.give_data(data);
        }
        if slot.left > 0 {
            return false;
        }
        let (queue, head, status, status_at) = (slot.queue, slot.head, slot.status, slot.status_at);
        self.bytes = self.bytes.saturating_sub(u64::from(slot.length));
        self.slots.free(tag);
        self.close(queue, head, status, status_at, written);
        true
    }

    /// Answers a request.
    fn close(&mut self, index: u16, head: u16, status: Status, status_at: GuestAddress, written: u32) {
        self.counters.errors += u64::from(status != Status::Ok);
        // Checked when the chain was walked.
        let marked = marked(&self.memory, &self.log, self.features);
        let _ = marked.put(status_at, &[status as u8]);
        if let Some(Some(queue)) = self.queues.get_mut(usize::from(index)) {
            queue.answer(marked, head, written + 1);
        }
    }

    /// The guest's memory, to write to.
    fn marked(&self) -> Marked<'_> {
        marked(&self.memory, &self.log, self.features)
    }

    /// Calls `tell` for each queue whose guest waits to be told of the answers given since the last time.
    pub fn publish(&mut self, mut tell: impl FnMut(usize)) {
        for (index, queue) in self.queues.iter_mut().enumerate() {
            if queue.as_mut().is_some_and(|queue| queue.must_tell(&self.memory)) {
                tell(index);
            }
        }
    }

    /// Lets go of queues that were stopped and have nothing in flight. True when there are none left.
    pub fn collect(&mut self) -> bool {
        for place in &mut self.queues {
            if place.as_ref().is_some_and(|queue| queue.stopping && queue.is_drained()) {
                *place = None;
            }
        }
        self.queues.iter().all(Option::is_none)
    }

    /// True when there is something that [`Device::take`] would take.
    pub fn has_more(&self) -> bool {
        self.has_room() && self.queues.iter().flatten().any(|queue| queue.has_more(&self.memory))
    }

    /// Asks the guest to tell when it offers something. True when it has done so meanwhile: look again then, before waiting. While the
    /// limits are reached nothing is asked for; an answer comes first then anyway, and so does the next look.
    pub fn listen(&mut self) -> bool {
        if !self.has_room() {
            return false;
        }
        let mut more = false;
        let marked = marked(&self.memory, &self.log, self.features);
        for queue in self.queues.iter_mut().flatten() {
            more |= queue.listen(marked);
        }
        more
    }

    /// Asks the guest not to tell: it is looked after anyway.
    pub fn hush(&mut self) {
        let marked = marked(&self.memory, &self.log, self.features);
        self.queues.iter_mut().flatten().for_each(|queue| queue.hush(marked));
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.slots.len()
    }

    /// What the disk does not count.
    pub fn counters(&self) -> Counters {
        self.counters
    }
}

/// What a turn has brought.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    /// Requests taken.
    pub requests: usize,
    /// A queue that broke, and why: it stands still until the front end starts it again.
    pub broken: Option<(usize, QueueError)>,
}

/// What is lent out of a device whose other parts are in use.
fn marked<'a>(memory: &'a Memory, log: &'a Option<DirtyLog>, features: u64) -> Marked<'a> {
    Marked { memory, log: log.as_ref().filter(|_| features & config::LOG_ALL != 0) }
}

enum Gathered {
    Scratch,
    Buffer(Buf),
}

/// Copies what the guest writes out of its memory: it may change it at any time, and what is checksummed must be what is stored.
fn gather<D: Disk>(memory: &Memory, data: &[Segment], length: u32, scratch: &mut [u8], disk: &mut D) -> Gathered {
    if length < LARGE_WRITE {
        copy_out(memory, data, scratch);
        return Gathered::Scratch;
    }
    let mut buf = disk.buffer(length as usize);
    copy_out(memory, data, buf.bytes_mut());
    Gathered::Buffer(buf)
}

fn copy_out(memory: &Memory, data: &[Segment], target: &mut [u8]) {
    let mut rest = target;
    for segment in data {
        let Some((part, after)) = rest.split_at_mut_checked(segment.length as usize) else { return };
        // Checked when the chain was walked.
        let _ = memory::copy_out(memory, segment.at, part);
        rest = after;
    }
}

/// Copies what was read into the guest's memory. Gives the bytes copied.
fn scatter_data(marked: Marked<'_>, segments: &[Segment], data: &Data) -> u32 {
    let mut segments = segments.iter().copied();
    let mut place = segments.next();
    let mut written = 0;
    for piece in data {
        let mut bytes = piece.bytes();
        while !bytes.is_empty() {
            let Some(segment) = &mut place else { return written };
            let count = bytes.len().min(segment.length as usize);
            let (part, rest) = bytes.split_at(count);
            let _ = marked.put(segment.at, part);
            written += count as u32; // requests are shorter than that
            bytes = rest;
            segment.length -= count as u32;
            segment.at = segment.at.unchecked_add(count as u64); // inside the guest's memory
            if segment.length == 0 {
                place = segments.next();
            }
        }
    }
    written
}

fn scatter(marked: Marked<'_>, segments: &[Segment], bytes: &[u8]) -> u32 {
    let mut rest = bytes;
    let mut written = 0;
    for segment in segments {
        let count = rest.len().min(segment.length as usize);
        let (part, after) = rest.split_at(count);
        let _ = marked.put(segment.at, part);
        written += count as u32;
        rest = after;
    }
    written
}

#[cfg(test)]
mod tests;
