//! [`ReadAhead`]: finds reads of guests that are in order, and keeps the blocks that are read ahead
//! of them.
//!
//! A *sequence* is a series of adjacent reads of one target. From its third read on, the blocks
//! behind it are read ahead, as far as its window. The window begins with four times a read and
//! doubles whenever the sequence has used half of what was read ahead, up to a limit. It is halved
//! when the sequence leaves bytes out, and when blocks are dropped before the sequence reached
//! them. Reads elsewhere in the target do not touch a sequence: it ends when it was not continued
//! for some reads of its target and another one needs its place, or for [`IDLE_MILLIS`]. While
//! guests leave most of what is read ahead of a target unused, its sequences have to be longer
//! before they are read ahead.
//!
//! Blocks that are read ahead have memory of their own, so they displace none of the read cache.
//! While a batch is being read it counts with the larger one of its range and the buffers of its
//! device reads, whose sizes are powers of two. Then it counts with the buffers that its blocks are
//! in, until its last block is dropped, because a block keeps its whole buffer in memory.
//!
//! INV-READ-AHEAD-1: a block that is being read ahead, or was, is found by its address in the map,
//! which always means the same bytes (I11), and only bytes that matched the map's checksum (I5) are
//! kept. So nothing is invalidated when guests write: an overwritten block has another address. Its
//! place is not reused while it is being read, because each device read pins its segment.
//!
//! INV-READ-AHEAD-2: a guest's read of a block that is being read ahead waits for that and is then
//! planned anew, whatever the result was: what is missing then, the guest's read reads itself.
//!
//! Blocks are kept until a guest has read them. Then they go the way of any block that was read
//! from a device: the read cache keeps those that are read more than once.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use millpond_block::{BufSlice, ByteRange};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use self::sequence::{Noted, Sequence, Sequences};
use crate::{Target, Time};

/// Bytes of a block.
const BLOCK: u64 = 4096;
/// Longest read in bytes that belongs to a sequence: devices handle longer ones well.
const LONGEST: u64 = 1 << 20;
/// Device reads, and bytes of them, in flight with which nothing more is read ahead: enough for the
/// full rate of devices, and little for a guest that waits behind them.
const MOST_READS: usize = 64;
const MOST_BYTES: u64 = 4 << 20;
/// Most device reads of a batch, before neighbours by place are joined: guests wait for all of them.
pub(crate) const BATCH_READS: usize = 32;
/// Milliseconds after which sequences that were not continued, and blocks that were not used, are
/// dropped.
const IDLE_MILLIS: u64 = 10_000;
/// Milliseconds between two searches for those.
const SWEEP_MILLIS: u64 = 1_000;
/// Part of the read cache, as 1/N, that blocks read ahead may take.
const SHARE: u64 = 8;

/// A range that is being read ahead, or was.
#[derive(Debug)]
struct Batch {
    /// The sequence that it is for.
    target: Target,
    sequence: u64,
    /// The byte after the range, and the bytes of memory that the batch takes: its buffers.
    end: u64,
    bytes: u64,
    /// Keys of its blocks that are being read; later of those that were read.
    keys: Vec<u64>,
    /// Number of those that were read and not used yet. Counts once the batch was read.
    left: usize,
    /// Number of those that guests used.
    used: u64,
    /// Device reads in flight.
    reads: usize,
    /// Operations that wait for it.
    waiters: Vec<u32>,
    /// Time at which it was read; `None` while it is being read.
    read_at: Option<Time>,
}

/// A block that is being read ahead, or was: its batch, and its content.
#[derive(Debug)]
struct Block {
    batch: u64,
    piece: Option<BufSlice>,
}

/// State of a block that a guest looks for.
#[derive(Debug)]
pub(crate) enum Ahead {
    /// It was read: its content, uncompressed.
    Read(BufSlice),
    /// It is being read by this batch.
    Reading(u64),
}

/// Sequences, and blocks that are read ahead of them.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    /// Limit of a sequence's window in bytes; 0: nothing is read ahead.
    window: u64,
    /// Limit of all batches in bytes, and the bytes of the batches that there are.
    room: u64,
    taken: u64,
    targets: BTreeMap<Target, Sequences>,
    /// Sequences to be read ahead now, in order.
    wanting: VecDeque<(Target, u64)>,
    /// Batches by number.
    batches: BTreeMap<u64, Batch>,
    blocks: FxHashMap<u64, Block>,
    /// Number of the last sequence or batch.
    last: u64,
    /// Device reads in flight, and the bytes of batches that are being read.
    reads: usize,
    reading: u64,
    /// Bytes of guests' reads that have not ended.
    guests_read: u64,
    /// Sequences with a window at the last look, and the time of that.
    active: u64,
    swept: Time,
    /// Bytes of blocks that were read, and of those that guests used.
    read_bytes: u64,
    used_bytes: u64,
    /// Addresses that blocks of targets had when they were read ahead. Empty without the planted
    /// bug that finds blocks by them.
    stale: FxHashMap<(Target, u64), u64>,
}

impl ReadAhead {
    /// Sets the limit of a sequence's window in bytes, and the size of the read cache. Returns the
    /// bytes of it that blocks read ahead may take. Those beyond are dropped.
    pub(crate) fn arrange(&mut self, window: u64, read_cache: u64) -> u64 {
        self.window = window;
        self.room = if window == 0 { 0 } else { read_cache / SHARE / BLOCK * BLOCK };
        while self.taken > self.room && self.drop_oldest() {}
        self.room
    }

    /// Returns the limit of each sequence's window in bytes: all of them together take a quarter of
    /// the room, and up to half of it in buffers, so that none pushes out what another one will use.
    fn window_limit(&self) -> u64 {
        (self.room / 4 / self.active.max(1)).min(self.window) / BLOCK * BLOCK
    }

    /// Notes a read of a guest.
    pub(crate) fn note(&mut self, target: Target, range: ByteRange, now: Time) {
        if self.room == 0 || range.length > LONGEST {
            return;
        }
        let most = self.window_limit();
        self.last += 1;
        let Noted { wants, opened, ended } = self.targets.entry(target).or_default().note(range, self.last, now, most);
        self.active += u64::from(opened);
        self.wanting.extend(wants.map(|nth| (target, nth)));
        if let Some(nth) = ended {
            let is_its = |batch: &Batch| batch.target == target && batch.sequence == nth && batch.read_at.is_some();
            self.drop_batches(is_its);
        }
    }

    /// Returns whether there is neither a sequence nor a block.
    pub(crate) fn is_idle(&self) -> bool {
        self.targets.is_empty() && self.batches.is_empty()
    }

    /// Returns the number of device reads in flight.
    pub(crate) fn reads(&self) -> usize {
        self.reads
    }

    /// Notes that a read of a guest begins.
    pub(crate) fn guest_begins(&mut self, bytes: u64) {
        self.guests_read += bytes;
    }

    /// Notes that a read of a guest has ended.
    pub(crate) fn guest_ended(&mut self, bytes: u64) {
        self.guests_read -= bytes;
    }

    /// Returns whether nothing more should be read ahead now: so much is being read ahead, or
    /// guests ask for a whole window at a time, so that devices are busy without it.
    pub(crate) fn is_busy(&self) -> bool {
        self.reads >= MOST_READS || self.reading >= MOST_BYTES || self.guests_read >= self.window
    }

    /// Returns the target of the sequence that is to be read ahead next.
    pub(crate) fn wanting(&self) -> Option<Target> {
        self.wanting.front().map(|(target, _)| *target)
    }

    fn sequence(&mut self, target: Target, nth: u64) -> Option<&mut Sequence> {
        self.targets.get_mut(&target)?.list.iter_mut().find(|sequence| sequence.nth == nth)
    }

    /// Returns the next range to be read ahead of that sequence, whose target has `size` bytes.
    /// `None` when there is nothing to be read ahead of it any more; then the next sequence is in
    /// its place.
    pub(crate) fn next_range(&mut self, size: u64) -> Option<ByteRange> {
        let (target, nth) = *self.wanting.front()?;
        let most = self.window_limit();
        let range = self.sequence(target, nth).and_then(|sequence| sequence.next_range(size, most));
        if range.is_none() {
            self.wanting.pop_front();
            if let Some(sequence) = self.sequence(target, nth) {
                sequence.wants = false;
            }
        }
        range
    }

    /// Begins a batch with that range, and returns its number; `None` when there is no room for it
    /// now.
    pub(crate) fn begin(&mut self, range: ByteRange) -> Option<u64> {
        let (target, nth) = *self.wanting.front()?;
        while self.taken + range.length > self.room {
            if !self.drop_oldest() {
                return None;
            }
        }
        let end = range.offset + range.length;
        if let Some(sequence) = self.sequence(target, nth) {
            sequence.ahead = sequence.ahead.max(end);
        }
        self.last += 1;
        self.taken += range.length;
        self.reading += range.length;
        let batch = Batch {
            target,
            sequence: nth,
            end,
            bytes: range.length,
            keys: Vec::new(),
            left: 0,
            used: 0,
            reads: 0,
            waiters: Vec::new(),
            read_at: None,
        };
        self.batches.insert(self.last, batch);
        Some(self.last)
    }

    /// Ends the range of a batch at a byte: the rest would need too many device reads at a time.
    /// Its sequence goes on there if nothing behind it was read ahead.
    pub(crate) fn cut(&mut self, nth: u64, end: u64) {
        let Some(batch) = self.batches.get_mut(&nth) else { return };
        let rest = batch.end.saturating_sub(end);
        let (target, sequence, before) = (batch.target, batch.sequence, batch.end);
        batch.end -= rest;
        batch.bytes -= rest;
        self.taken -= rest;
        self.reading -= rest;
        if let Some(sequence) = self.sequence(target, sequence).filter(|sequence| sequence.ahead == before) {
            sequence.ahead = end.max(sequence.next);
        }
    }

    /// Notes that a batch has so many device reads in flight, with buffers of so many bytes in all.
    pub(crate) fn reads_begin(&mut self, nth: u64, reads: usize, bytes: u64) {
        if let Some(batch) = self.batches.get_mut(&nth) {
            let more = bytes.saturating_sub(batch.bytes);
            batch.reads += reads;
            batch.bytes += more;
            self.reads += reads;
            self.reading += more;
            self.taken += more;
        }
    }

    /// Notes that a device read of a batch has ended.
    pub(crate) fn read_ended(&mut self, nth: u64) {
        if let Some(batch) = self.batches.get_mut(&nth).filter(|batch| batch.reads > 0) {
            batch.reads -= 1;
            self.reads -= 1;
        }
    }

    /// Notes that a batch reads a block.
    pub(crate) fn expects(&mut self, nth: u64, key: u64) {
        if let Some(batch) = self.batches.get_mut(&nth)
            && let Entry::Vacant(place) = self.blocks.entry(key)
        {
            place.insert(Block { batch: nth, piece: None });
            batch.keys.push(key);
        }
    }

    /// Keeps the content of a block that a batch has read.
    pub(crate) fn hold(&mut self, nth: u64, key: u64, piece: BufSlice) {
        if let Some(block) = self.blocks.get_mut(&key).filter(|block| block.batch == nth && block.piece.is_none()) {
            block.piece = Some(piece);
            self.read_bytes += BLOCK;
        }
    }

    /// Ends the reads of a batch: blocks that were not read will not be. Returns the operations
    /// that waited for it.
    pub(crate) fn batch_ended(&mut self, nth: u64, now: Time) -> Vec<u32> {
        let Some(batch) = self.batches.get_mut(&nth) else { return Vec::new() };
        self.reads -= std::mem::take(&mut batch.reads);
        self.reading -= batch.bytes;
        self.taken -= batch.bytes;
        let (target, sequence, waiters) = (batch.target, batch.sequence, std::mem::take(&mut batch.waiters));
        let blocks = &mut self.blocks;
        batch.keys.retain(|key| match blocks.get(key) {
            Some(block) if block.batch == nth && block.piece.is_none() => {
                blocks.remove(key);
                false
            }
            // blocks that were used meanwhile are gone
            Some(block) => block.batch == nth,
            None => false,
        });
        batch.bytes = bytes_of_buffers(batch.keys.iter().filter_map(|key| blocks.get(key)?.piece.as_ref()));
        self.taken += batch.bytes;
        (batch.left, batch.read_at) = (batch.keys.len(), Some(now));
        // a sequence that has ended meanwhile will use nothing of it
        if batch.left == 0 || (waiters.is_empty() && self.sequence(target, sequence).is_none()) {
            self.drop_batch(nth);
        }
        // the room became smaller, or the buffers are larger than the range
        while self.taken > self.room && self.drop_oldest() {}
        waiters
    }

    /// Returns the operations that wait for a batch, some blocks of which were read. Those that
    /// need other blocks of it wait again: a device that is slow holds up only reads that need it.
    pub(crate) fn take_waiters(&mut self, nth: u64) -> Vec<u32> {
        self.batches.get_mut(&nth).map(|batch| std::mem::take(&mut batch.waiters)).unwrap_or_default()
    }

    /// Returns whether any block is being read ahead or was.
    pub(crate) fn has_blocks(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// Returns whether a block is being read ahead, or was.
    pub(crate) fn knows(&self, key: u64) -> bool {
        self.blocks.contains_key(&key)
    }

    /// Looks for a block.
    pub(crate) fn look_up(&self, key: u64) -> Option<Ahead> {
        let block = self.blocks.get(&key)?;
        Some(match &block.piece {
            Some(piece) => Ahead::Read(piece.clone()),
            None => Ahead::Reading(block.batch),
        })
    }

    /// Makes an operation wait for a batch that is being read.
    pub(crate) fn wait(&mut self, nth: u64, op: u32) {
        let batch = self.batches.get_mut(&nth).filter(|batch| batch.read_at.is_none());
        batch.expect("INV-READ-AHEAD-2: a block that is being read belongs to a batch in flight").waiters.push(op);
    }

    /// Forgets a block that a guest has read.
    pub(crate) fn was_used(&mut self, key: u64) {
        let Some(block) = self.blocks.get(&key).filter(|block| block.piece.is_some()) else { return };
        let nth = block.batch;
        self.blocks.remove(&key);
        self.used_bytes += BLOCK;
        let Some(batch) = self.batches.get_mut(&nth) else { return };
        batch.used += 1;
        if batch.read_at.is_some() {
            batch.left = batch.left.saturating_sub(1);
            if batch.left == 0 {
                self.drop_batch(nth);
            }
        }
    }

    /// Drops the oldest batch that was read. Returns false when there is none.
    fn drop_oldest(&mut self) -> bool {
        let oldest = self.batches.iter().find(|(_, batch)| batch.read_at.is_some()).map(|(nth, _)| *nth);
        oldest.into_iter().for_each(|nth| self.drop_batch(nth));
        oldest.is_some()
    }

    /// Drops all batches of some kind.
    fn drop_batches(&mut self, is_one: impl Fn(&Batch) -> bool) {
        let found: Vec<u64> = self.batches.iter().filter(|(_, batch)| is_one(batch)).map(|(nth, _)| *nth).collect();
        found.into_iter().for_each(|nth| self.drop_batch(nth));
    }

    /// Drops a batch with its blocks. If its sequence has not reached its end, the window was too
    /// wide.
    fn drop_batch(&mut self, nth: u64) {
        let Some(batch) = self.batches.remove(&nth) else { return };
        self.taken -= batch.bytes;
        let mut unused = 0;
        for key in batch.keys {
            if self.blocks.get(&key).is_some_and(|block| block.batch == nth) {
                self.blocks.remove(&key);
                unused += 1;
            }
        }
        let Some(sequences) = self.targets.get_mut(&batch.target) else { return };
        sequences.judge(batch.used * BLOCK, unused * BLOCK);
        let sequence = sequences.list.iter_mut().find(|sequence| sequence.nth == batch.sequence);
        if let Some(sequence) = sequence.filter(|sequence| unused > 0 && sequence.next < batch.end) {
            sequence.narrow();
        }
    }

    /// Drops sequences and blocks that were not used for long, about once a second.
    pub(crate) fn sweep(&mut self, now: Time) {
        if now.0 < self.swept.0 + SWEEP_MILLIS {
            return;
        }
        self.swept = now;
        let is_idle = |at: Time| now.0 >= at.0 + IDLE_MILLIS;
        for sequences in self.targets.values_mut() {
            sequences.list.retain(|sequence| !is_idle(sequence.at));
        }
        self.targets.retain(|_, sequences| !sequences.list.is_empty());
        let targets = &self.targets;
        let is_there = |target: &Target, nth: u64| targets.get(target).is_some_and(|its| its.list.iter().any(|one| one.nth == nth));
        self.wanting.retain(|(target, nth)| is_there(target, *nth));
        self.drop_batches(|batch| batch.read_at.is_some_and(is_idle));
        let windows = self.targets.values().flat_map(|sequences| &sequences.list).filter(|sequence| sequence.window > 0);
        self.active = windows.count() as u64;
    }

    /// Returns the bytes of memory that batches take.
    pub(crate) fn memory(&self) -> u64 {
        self.taken
    }

    /// Returns the bytes of blocks that were read ahead since the import, and of those that guests
    /// used.
    pub(crate) fn counters(&self) -> (u64, u64) {
        (self.read_bytes, self.used_bytes)
    }

    /// Plants a bug: remembers the address that a block of a target has now.
    pub(crate) fn plant_stale(&mut self, target: Target, block: u64, key: u64) {
        self.stale.insert((target, block), key);
    }

    /// Returns the address that a block had when it was read ahead, if the bug is planted.
    pub(crate) fn planted_stale(&self, target: Target, block: u64) -> Option<u64> {
        self.stale.get(&(target, block)).copied()
    }
}

/// Returns the bytes of the buffers that have these blocks, several of which may share one.
fn bytes_of_buffers<'a>(blocks: impl Iterator<Item = &'a BufSlice>) -> u64 {
    let mut buffers: SmallVec<[(usize, usize); BATCH_READS]> = blocks.map(BufSlice::buffer).collect();
    buffers.sort_unstable();
    buffers.dedup();
    buffers.iter().map(|(_, bytes)| *bytes as u64).sum()
}

mod sequence;
#[cfg(test)]
mod tests;
