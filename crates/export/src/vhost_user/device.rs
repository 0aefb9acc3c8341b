//! The disk that a guest sees: its queues, requests in flight, and answers.
//!
//! INV-VHOST-1: the guest's memory is replaced only while no queue runs, so that checks made when a
//! request was taken still hold when it is answered.

use millpond_block::{Buf, BufPool, ByteRange, Completion, Disk, DiskError, Features, Geometry, IoSlices, Op, Payload, Request};
use smallvec::SmallVec;
use vm_memory::{Address, GuestAddress};

use super::chain::{Chain, Segment, Segments};
use super::config;
use super::dirty::{DirtyLog, Marked};
use super::memory::{self, Memory};
use super::queue::{QueueError, QueueSetup, VirtQueue};
use super::request::{Ask, Kind, Part, Status};
use super::slots::{Slot, Slots};

/// Length of a serial number in bytes.
pub const SERIAL: usize = 20;
/// Shortest write, in bytes, that is handed to the disk as a buffer, which saves the second copy. A
/// batch of the log has space for few such writes.
const LARGE_WRITE: u32 = 32 << 10;
/// Number of requests that are read before the first of them is submitted, so that the disk can
/// prefetch metadata for all of them.
const AHEAD: usize = 32;

/// Limits of one guest's requests, in flight and per turn.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of requests in flight.
    pub requests: u16,
    /// Maximum bytes of data in flight. A single request may exceed it.
    pub bytes: u64,
    /// Maximum number of requests per turn.
    pub turn_requests: usize,
    /// Maximum bytes of data per turn, so that other guests are served.
    pub turn_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { requests: 4096, bytes: 64 << 20, turn_requests: 256, turn_bytes: 1 << 20 }
    }
}

/// Counters of a device that its disk does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Number of requests answered with an error.
    pub errors: u64,
    /// Number of chains that were not valid requests.
    pub malformed: u64,
}

/// Request for the disk that was read from a queue.
struct DiskRequest {
    queue: u16,
    head: u16,
    parts: SmallVec<[Part; 1]>,
    data: Segments,
    length: u32,
    status_at: GuestAddress,
}

/// virtio-blk device on its guest's memory.
pub struct Device {
    memory: Memory,
    /// Log of pages written; used only if the features ask for it.
    log: Option<DirtyLog>,
    queues: Vec<Option<VirtQueue>>,
    slots: Slots,
    limits: Limits,
    /// Bytes of data in flight.
    bytes: u64,
    features: u64,
    /// True if the guest wants every write to be durable before it is answered.
    write_through: bool,
    /// True if the guest may have read that there is no write cache. Then it does not flush, and
    /// relies on every write being durable when answered.
    promised: bool,
    /// The front end is gone.
    alone: bool,
    serial: [u8; SERIAL],
    counters: Counters,
    /// First queue of the next turn.
    first: usize,
    /// Requests that are read and not submitted yet; empty between calls.
    asked: Vec<DiskRequest>,
    /// Request that is read and waits for memory. No other request is taken before it is submitted.
    held: Option<DiskRequest>,
    /// Allocations that are reused.
    ranges: Vec<ByteRange>,
    chain: Chain,
    scratch: Vec<u8>,
}

impl Device {
    /// Makes a device without memory and queues. `id` is the upper half of every tag.
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
            alone: false,
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

    /// Replaces the guest's memory and returns the old one, because unmapping it takes time.
    ///
    /// # Errors
    /// [`QueueError::Running`] while a queue runs, with `memory` returned.
    pub fn set_memory(&mut self, memory: Memory) -> Result<Memory, (QueueError, Memory)> {
        if self.queues.iter().flatten().next().is_some() {
            return Err((QueueError::Running, memory));
        }
        Ok(std::mem::replace(&mut self.memory, memory))
    }

    /// Replaces the log of dirty pages and returns the old one.
    pub fn set_log(&mut self, log: DirtyLog) -> Option<DirtyLog> {
        self.log.replace(log)
    }

    /// Sets the features that the guest has accepted, for queues started from now on.
    pub fn set_features(&mut self, features: u64) {
        self.features = features;
    }

    /// Sets whether the guest wants a write cache. Without it, every write is durable before it is
    /// answered. A guest that asks for a write cache knows that it has to flush.
    pub fn set_write_cache(&mut self, on: bool) {
        self.write_through = !on;
        self.promised &= !on;
    }

    /// Sets whether the guest may have read that there is no write cache, independent of the disk's
    /// present state.
    pub fn set_promised(&mut self, promised: bool) {
        self.promised = promised;
    }

    /// Notes that the front end is gone. From now on, requests that the disk ends with
    /// [`DiskError::Shutdown`] get no answer where they are on record: they are repeated after the front
    /// end has connected again.
    pub fn set_alone(&mut self) {
        self.alone = true;
    }

    /// Returns true if all requests in flight are on record.
    pub fn has_record(&self) -> bool {
        self.queues.iter().flatten().all(VirtQueue::has_record)
    }

    /// Starts a queue. Returns the number of requests that a previous daemon had in flight; they
    /// are repeated first.
    ///
    /// # Errors
    /// See [`QueueError`].
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

    /// Makes a queue take no more requests. [`Device::stopped`] reports its end.
    pub fn stop(&mut self, index: usize) {
        if let Some(Some(queue)) = self.queues.get_mut(index) {
            queue.stopping = true;
        }
    }

    /// Returns the entry with which a stopped queue continues when it is started again; `None`
    /// while a request is in flight.
    ///
    /// # Errors
    /// [`QueueError::Number`] when the queue does not run.
    pub fn stopped(&mut self, index: usize) -> Result<Option<u16>, QueueError> {
        let place = self.queues.get_mut(index).ok_or(QueueError::Number)?;
        let queue = place.as_ref().ok_or(QueueError::Number)?;
        if !queue.stopping || !queue.is_drained() {
            return Ok(None);
        }
        Ok(place.take().map(|queue| queue.base()))
    }

    /// Submits the guest's requests to the disk, within the limits of a turn. Returns the number of
    /// requests taken, and a queue that broke.
    pub fn take<D: Disk>(&mut self, disk: &mut D) -> Taken {
        let mut taken = Taken::default();
        let mut bytes = 0;
        // The disk does not change during the call.
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
                        bytes += self.read(disk, index as u16, head); // less than the number of queues
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

    /// Returns true below the limits, unless a request waits for memory.
    pub fn has_room(&self) -> bool {
        self.held.is_none() && self.bytes < self.limits.bytes && self.slots.has_room(self.asked.len())
    }

    /// Reads the request at `head`, to be submitted together with others. Returns the bytes that it
    /// moves.
    fn read<D: Disk>(&mut self, disk: &mut D, index: u16, head: u16) -> u64 {
        let Some(Some(queue)) = self.queues.get_mut(usize::from(index)) else { return 0 };
        let (table, size) = queue.table();
        let walked = self.chain.walk(&self.memory, table, size, head);
        let ask = walked.ok().and_then(|()| Ask::read(&self.memory, &mut self.chain));
        let Some(ask) = ask else {
            // The chain has no space for a status. It is returned to the guest, so that a driver
            // with a bug does not wait for ever.
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
        self.admit(disk, DiskRequest { queue: index, head, parts, data: ask.data, length: ask.length, status_at: ask.status_at })
    }

    /// Schedules a request for submission, or holds it until there is memory for it. Returns the
    /// bytes that it moves if it was scheduled.
    fn admit<D: Disk>(&mut self, disk: &mut D, asked: DiskRequest) -> u64 {
        let bytes = u64::from(asked.length);
        if !disk.reserve(bytes) {
            self.held = Some(asked);
            return 0;
        }
        self.bytes += bytes;
        self.asked.push(asked);
        bytes
    }

    /// Answers the request that waits for memory with an error, because its guest is disconnected.
    pub fn refuse_held(&mut self) {
        if let Some(DiskRequest { queue, head, status_at, .. }) = self.held.take() {
            self.close(queue, head, Status::IoError, status_at, 0);
        }
    }

    /// Returns the bytes of data in flight: memory reserved and not yet returned.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Submits the requests that were read.
    fn start_all<D: Disk>(&mut self, disk: &mut D, bounds: &(Geometry, Features)) {
        let mut asked = std::mem::take(&mut self.asked);
        self.ranges.clear();
        let reads = |asked: &DiskRequest| asked.parts.first().filter(|part| part.op == Op::Read).map(|part| part.range);
        self.ranges.extend(asked.iter().filter_map(reads));
        if self.ranges.len() > 1 {
            disk.expect(&self.ranges);
        }
        asked.drain(..).for_each(|asked| self.start_one(disk, bounds, asked));
        self.asked = asked;
    }

    fn start_one<D: Disk>(&mut self, disk: &mut D, bounds: &(Geometry, Features), asked: DiskRequest) {
        let DiskRequest { queue: index, head, parts, data, length, status_at } = asked;
        let (geometry, features) = bounds;
        let fua = self.write_through(features);
        let make = |part: &Part| Request { op: part.op, range: part.range, fua: fua && part.op.modifies() };
        // A request of several ranges is submitted as a whole or refused.
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

    /// Returns true if every write must be durable when answered: if the guest cannot flush, has
    /// disabled the cache, or may have read that there is none.
    fn write_through(&self, features: &Features) -> bool {
        features.write_cache && (self.write_through || self.promised || self.features & config::FLUSH == 0)
    }

    /// Handles the disk's answer. Returns true if it completes a request; then the guest has its
    /// data.
    pub fn complete(&mut self, completion: Completion, buffers: &mut BufPool) -> bool {
        let Completion { tag, result } = completion;
        let Some(slot) = self.slots.get_mut(tag) else {
            // An unknown tag: a second completion of the same request.
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
        slot.undone |= self.alone && matches!(result, Err(DiskError::Shutdown));
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
        let (queue, head, status, status_at, undone) = (slot.queue, slot.head, slot.status, slot.status_at, slot.undone);
        self.bytes = self.bytes.saturating_sub(u64::from(slot.length));
        self.slots.free(tag);
        match self.queues.get_mut(usize::from(queue)) {
            Some(Some(on_record)) if undone && on_record.has_record() => on_record.leave(head),
            _ => self.close(queue, head, status, status_at, written),
        }
        true
    }

    /// Answers a request.
    fn close(&mut self, index: u16, head: u16, status: Status, status_at: GuestAddress, written: u32) {
        self.counters.errors += u64::from(status != Status::Ok);
        // The address was checked when the chain was read.
        let marked = marked(&self.memory, &self.log, self.features);
        let _ = marked.put(status_at, &[status as u8]);
        if let Some(Some(queue)) = self.queues.get_mut(usize::from(index)) {
            queue.answer(marked, head, written + 1);
        }
    }

    /// Returns the guest's memory for writing.
    fn marked(&self) -> Marked<'_> {
        marked(&self.memory, &self.log, self.features)
    }

    /// Calls `tell` for each queue whose guest wants a notification about the answers since the
    /// last call.
    pub fn publish(&mut self, mut tell: impl FnMut(usize)) {
        for (index, queue) in self.queues.iter_mut().enumerate() {
            if queue.as_mut().is_some_and(|queue| queue.must_tell(&self.memory)) {
                tell(index);
            }
        }
    }

    /// Removes stopped queues without requests in flight. Returns true if no queues remain.
    pub fn collect(&mut self) -> bool {
        for place in &mut self.queues {
            if place.as_ref().is_some_and(|queue| queue.stopping && queue.is_drained()) {
                *place = None;
            }
        }
        self.queues.iter().all(Option::is_none)
    }

    /// Returns true if [`Device::take`] would take a request.
    pub fn has_more(&self) -> bool {
        self.has_room() && self.queues.iter().flatten().any(|queue| queue.has_more(&self.memory))
    }

    /// Enables notifications by the guest. Returns true if it has offered a request meanwhile: the
    /// loop must then look again before it waits. At the limits no notifications are enabled,
    /// because an answer will come first, and the loop then looks again.
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

    /// Disables notifications by the guest, while the loop looks at the queues anyway.
    pub fn hush(&mut self) {
        let marked = marked(&self.memory, &self.log, self.features);
        self.queues.iter_mut().flatten().for_each(|queue| queue.hush(marked));
    }

    /// Returns the number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.slots.len()
    }

    /// Returns the counters that the disk does not have.
    pub fn counters(&self) -> Counters {
        self.counters
    }
}

/// Result of [`Device::take`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    /// Number of requests taken.
    pub requests: usize,
    /// Queue that broke, with the reason. It does not run until the front end starts it again.
    pub broken: Option<(usize, QueueError)>,
}

/// Borrows the guest's memory and log, while other fields of the device are borrowed mutably.
fn marked<'a>(memory: &'a Memory, log: &'a Option<DirtyLog>, features: u64) -> Marked<'a> {
    Marked { memory, log: log.as_ref().filter(|_| features & config::LOG_ALL != 0) }
}

enum Gathered {
    Scratch,
    Buffer(Buf),
}

/// Copies data of a write out of the guest's memory. The guest may change its memory at any time,
/// and the stored data must match its checksum.
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
        // The address was checked when the chain was read.
        let _ = memory::copy_out(memory, segment.at, part);
        rest = after;
    }
}

/// Copies data of a read into the guest's memory. Returns the number of bytes copied.
fn scatter_data(marked: Marked<'_>, segments: &[Segment], data: &IoSlices) -> u32 {
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
            written += count as u32; // requests are shorter than 4 GiB
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
