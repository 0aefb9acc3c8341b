//! Chunks of bases that the pool does not have: which reads wait for them, and keeping them.
//!
//! A read that meets such blocks waits for all chunks that it lacks. The caller fetches each chunk once
//! at a time, in any order. When the last chunk is there, the read begins anew and takes the blocks
//! from memory. Once no read needs a chunk any more, it is written to the head of its base (a *fill*),
//! like any write. Chunks ahead of a guest that reads in order are fetched before it reads them, when no
//! read waits for others ([`Scans`]).
//!
//! INV-BASE-3: only fills write to the head of a base, and what they write is what every later fetch
//! would return. So a fill that a crash undoes is repeated, reads need not wait for it, and a fill that
//! has no room is left out.
//!
//! INV-BASE-6: a fetch that is given up fails no read: if reads wait for its chunk, it is fetched anew.
//!
//! INV-BASE-4: a read that waits for a chunk holds nothing that other requests wait for, but for the
//! lock of the blocks that it is the old content of.

use std::collections::{BTreeMap, VecDeque};

use millpond_block::{Buf, BufSlice, ByteRange, DiskError, Op as RequestOp, Payload, Request, Tag};
use millpond_format::{BLOCK, VolumeId};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::fetch_ahead::Scans;
use super::op::{BarrierKind, ClearWork, Op, Owner, Work};
use super::requests::Requests;
use crate::store::Store;
use crate::{Fetch, FetchError, Planted, Target};

/// Chunks that the caller fetches at a time.
const AT_ONCE: usize = 16;
/// Those among them that are fetched ahead.
const AHEAD_AT_ONCE: usize = 4;
/// Most chunks that wait to be fetched ahead.
const MOST_AHEAD: usize = 32;
/// Chunks that are written to their bases at a time.
const FILLS_AT_ONCE: usize = 16;
/// Bytes of chunks that wait for their fill; those beyond are not kept.
const MOST_UNFILLED: u64 = 32 << 20;

/// A chunk: its base, and its number.
pub(super) type ChunkKey = (VolumeId, u64);

/// The state of a chunk that reads wait for, or that is being kept.
#[derive(Debug)]
enum ChunkState {
    /// The caller has not taken it yet.
    Wanted,
    /// The caller fetches it.
    Out,
    /// It was fetched; `None` is all zero.
    Here(Option<BufSlice>),
}

/// Whether a chunk was written to its base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fill {
    Due,
    Running,
    Over,
}

#[derive(Debug)]
struct Chunk {
    state: ChunkState,
    fill: Fill,
    /// It is among those that reads wait for and that the caller has not taken.
    queued: bool,
    /// Reads that wait for it or, while they wait for others, will use it.
    readers: SmallVec<[u32; 2]>,
}

impl Chunk {
    fn wanted() -> Chunk {
        Chunk { state: ChunkState::Wanted, fill: Fill::Due, queued: false, readers: SmallVec::new() }
    }
}

/// A read that waits.
#[derive(Debug)]
struct Waiting {
    chunks: SmallVec<[ChunkKey; 1]>,
    /// Number of chunks that are not here yet.
    left: usize,
    failed: bool,
}

/// Chunks that are fetched, and the reads that wait for them.
#[derive(Default)]
pub(crate) struct Fetches {
    chunks: BTreeMap<ChunkKey, Chunk>,
    /// Chunks for the caller to fetch, in the order in which reads met them.
    wanted: VecDeque<ChunkKey>,
    /// Chunks that no read waits for: for the caller to fetch when there are no others.
    wanted_ahead: VecDeque<ChunkKey>,
    pub(super) scans: Scans,
    /// Chunks that the caller fetches, and whether that is ahead of reads.
    out: BTreeMap<u64, (ChunkKey, bool)>,
    /// Number of the last fetch of this import.
    last: u32,
    waiting: FxHashMap<u32, Waiting>,
    /// Chunks that no read needs any more.
    to_fill: VecDeque<ChunkKey>,
    fills: usize,
}

impl Fetches {
    /// Returns a chunk that was fetched and is in memory still: its bytes, or `None` if all are zero.
    pub(super) fn here(&self, key: ChunkKey) -> Option<Option<BufSlice>> {
        match &self.chunks.get(&key)?.state {
            ChunkState::Here(bytes) => Some(bytes.clone()),
            ChunkState::Wanted | ChunkState::Out => None,
        }
    }

    /// Lets a read wait for the chunks among these that are not here; the others are kept for it, and
    /// those that it needed before are not.
    pub(super) fn wait(&mut self, op: u32, keys: SmallVec<[ChunkKey; 1]>) {
        let mut left = 0;
        for key in &keys {
            let chunk = self.chunks.entry(*key).or_insert_with(Chunk::wanted);
            if matches!(chunk.state, ChunkState::Wanted) && !chunk.queued {
                chunk.queued = true;
                self.wanted.push_back(*key);
            }
            if !chunk.readers.contains(&op) {
                chunk.readers.push(op);
            }
            left += usize::from(!matches!(chunk.state, ChunkState::Here(_)));
        }
        let before = self.waiting.insert(op, Waiting { chunks: keys.clone(), left, failed: false });
        // in order, as reads meet them
        let unneeded = before.into_iter().flat_map(|before| before.chunks).filter(|key| keys.binary_search(key).is_err());
        unneeded.for_each(|key| self.forget_reader(key, op));
    }

    /// Returns whether a read waited for a chunk that cannot be had.
    pub(super) fn has_failed(&self, op: u32) -> bool {
        !self.waiting.is_empty() && self.waiting.get(&op).is_some_and(|waiting| waiting.failed)
    }

    /// Returns the reads that wait for chunks. Those that have failed, or have all their chunks, go on by
    /// themselves.
    pub(super) fn readers(&self) -> Vec<u32> {
        let waiting = self.waiting.iter().filter(|(_, waiting)| !waiting.failed && waiting.left > 0);
        let mut readers: Vec<u32> = waiting.map(|(op, _)| *op).collect();
        readers.sort_unstable();
        readers
    }

    /// Ends the wait of a read.
    pub(super) fn leave(&mut self, op: u32) {
        if self.waiting.is_empty() {
            return;
        }
        let left = self.waiting.remove(&op);
        left.into_iter().flat_map(|waiting| waiting.chunks).for_each(|key| self.forget_reader(key, op));
    }

    fn forget_reader(&mut self, key: ChunkKey, op: u32) {
        let Some(chunk) = self.chunks.get_mut(&key) else { return };
        chunk.readers.retain(|reader| *reader != op);
        if chunk.readers.is_empty() {
            self.without_readers(key);
        }
    }

    /// Decides on a chunk that no read needs any more.
    fn without_readers(&mut self, key: ChunkKey) {
        let Some(chunk) = self.chunks.get(&key) else { return };
        match (&chunk.state, chunk.fill) {
            (ChunkState::Here(_), Fill::Due) => self.to_fill.push_back(key),
            (ChunkState::Here(_), Fill::Over) => drop(self.chunks.remove(&key)),
            // `pop` drops it, `done` or the end of the fill come here again
            (ChunkState::Wanted | ChunkState::Out, _) | (ChunkState::Here(_), Fill::Running) => {}
        }
    }

    /// Returns whether reads wait for a chunk that the caller fetches.
    pub(crate) fn is_wanted(&self, fetch: Fetch) -> bool {
        self.out.contains_key(&fetch.id) && self.chunks.get(&(fetch.base, fetch.chunk)).is_some_and(|chunk| !chunk.readers.is_empty())
    }

    /// Returns whether a read has waited for chunks before.
    pub(super) fn is_known(&self, op: u32) -> bool {
        !self.waiting.is_empty() && self.waiting.contains_key(&op)
    }

    /// Lets a chunk be fetched that no read waits for.
    pub(super) fn want_ahead(&mut self, key: ChunkKey) {
        if self.wanted_ahead.len() < MOST_AHEAD && !self.chunks.contains_key(&key) {
            self.chunks.insert(key, Chunk::wanted());
            self.wanted_ahead.push_back(key);
        }
    }

    /// Forgets the chunks that wait to be fetched ahead.
    fn end_ahead(&mut self) {
        for key in std::mem::take(&mut self.wanted_ahead) {
            if self.chunks.get(&key).is_some_and(|chunk| matches!(chunk.state, ChunkState::Wanted) && chunk.readers.is_empty()) {
                self.chunks.remove(&key);
            }
        }
    }

    /// Takes the next chunk that is wanted, and whether no read waits for it.
    fn next_wanted(&mut self) -> Option<(ChunkKey, bool)> {
        while let Some(key) = self.wanted.pop_front() {
            let Some(chunk) = self.chunks.get_mut(&key) else { continue };
            chunk.queued = false;
            if !matches!(chunk.state, ChunkState::Wanted) {
                continue;
            }
            if !chunk.readers.is_empty() {
                return Some((key, false));
            }
            self.chunks.remove(&key);
        }
        while self.out.values().filter(|(_, ahead)| *ahead).count() < AHEAD_AT_ONCE {
            let key = self.wanted_ahead.pop_front()?;
            if self.chunks.get(&key).is_some_and(|chunk| matches!(chunk.state, ChunkState::Wanted)) {
                return Some((key, true));
            }
        }
        None
    }

    /// Returns the next chunk for the caller to fetch. No other import that writes has the number
    /// `incarnation`, so no result of a fetch of one is taken for one of another. Imports that only read
    /// leave no trace, and two in a row have the same number.
    pub(crate) fn pop(&mut self, incarnation: u32) -> Option<Fetch> {
        if self.out.len() >= AT_ONCE {
            return None;
        }
        let (key, ahead) = self.next_wanted()?;
        let chunk = self.chunks.get_mut(&key)?;
        chunk.state = ChunkState::Out;
        self.last = self.last.wrapping_add(1);
        let id = u64::from(incarnation) << 32 | u64::from(self.last);
        self.out.insert(id, (key, ahead));
        Some(Fetch { id, base: key.0, chunk: key.1, ahead })
    }

    /// Takes the result of a fetch. Returns the reads that can go on.
    fn done(&mut self, key: ChunkKey, result: Result<Option<BufSlice>, FetchError>) -> SmallVec<[u32; 2]> {
        let failed = result.is_err();
        let readers = match (result, self.chunks.get_mut(&key)) {
            (_, None) => return SmallVec::new(),
            (Ok(bytes), Some(chunk)) => {
                chunk.state = ChunkState::Here(bytes);
                chunk.readers.clone()
            }
            (Err(FetchError::NotNow), Some(chunk)) if !chunk.readers.is_empty() => {
                (chunk.state, chunk.queued) = (ChunkState::Wanted, true);
                self.wanted.push_front(key);
                return SmallVec::new();
            }
            (Err(_), Some(_)) => self.chunks.remove(&key).map(|chunk| chunk.readers).unwrap_or_default(),
        };
        let mut ready = SmallVec::new();
        for op in &readers {
            let Some(waiting) = self.waiting.get_mut(op) else { continue };
            waiting.left -= 1;
            // a read that has failed goes on once
            if !waiting.failed && (failed || waiting.left == 0) {
                ready.push(*op);
            }
            waiting.failed |= failed;
        }
        if readers.is_empty() {
            self.without_readers(key);
        }
        ready
    }

    /// Notes that a fill has ended, whatever its result.
    pub(super) fn filled(&mut self, key: ChunkKey) {
        self.fills -= 1;
        if let Some(chunk) = self.chunks.get_mut(&key) {
            chunk.fill = Fill::Over;
            if chunk.readers.is_empty() {
                self.chunks.remove(&key);
            }
        }
    }
}

impl Requests {
    /// Takes the result of a fetch; see [`Engine::fetched`](crate::Engine::fetched).
    pub(crate) fn fetched(&mut self, store: &mut Store, fetch: Fetch, result: Result<Option<Buf>, FetchError>) {
        let by_order = store.tuning.plants(Planted::BaseFetchByOrder);
        let oldest = self.fetches.out.first_key_value().map(|(id, _)| *id).filter(|_| by_order);
        let id = oldest.unwrap_or(fetch.id);
        let known = self.fetches.out.get(&id).map(|(key, _)| *key);
        let Some(key) = known.filter(|key| by_order || *key == (fetch.base, fetch.chunk)) else {
            return result.ok().flatten().into_iter().for_each(|buf| store.bufs.give(buf));
        };
        self.fetches.out.remove(&id);
        let length = chunk_range(store, key).map_or(0, |range| range.length as usize);
        let result = match result {
            Ok(Some(buf)) if buf.bytes().len() < length => Err(FetchError::Damaged),
            Ok(bytes) => Ok(bytes.map(|buf| BufSlice::new(buf, 0..length))),
            Err(FetchError::NotNow) if store.tuning.plants(Planted::BaseAheadFails) => Err(FetchError::Missing),
            Err(FetchError::NotNow) => Err(FetchError::NotNow),
            Err(_) if store.tuning.plants(Planted::BaseReadsZero) => Ok(None),
            Err(error) => Err(error),
        };
        let ready = self.fetches.done(key, result);
        self.ready.extend(ready);
    }

    /// Fails the reads that wait for chunks and that are wanted no more: `which` gets their targets and
    /// ranges.
    pub(super) fn end_fetches(&mut self, store: &mut Store, error: DiskError, which: impl Fn(Target, ByteRange) -> bool) {
        for op in self.fetches.readers() {
            if matches!(self.ops.get(op), Some(Op { work: Work::Read(read), .. }) if which(read.target, read.request.range)) {
                self.fail_op(store, op, error);
            }
        }
    }

    /// Fails the requests of guests that wait for chunks and whose tags are these.
    pub(crate) fn end_fetch_waits(&mut self, store: &mut Store, of: &dyn Fn(Tag) -> bool) {
        for op in self.fetches.readers() {
            if self.guest_of(op).is_some_and(of) {
                self.fail_op(store, op, DiskError::Shutdown);
            }
        }
    }

    /// Fails the reads that wait for chunks: the pool closes.
    pub(super) fn close_fetches(&mut self, store: &mut Store) {
        self.fetches.end_ahead();
        if !store.tuning.plants(Planted::BaseCloseWaits) {
            self.end_fetches(store, DiskError::Shutdown, |_, _| true);
        }
    }

    /// Returns whether there are chunks to be written to their bases now.
    pub(super) fn fills_are_due(&self) -> bool {
        !self.fetches.to_fill.is_empty() && self.fetches.fills < FILLS_AT_ONCE
    }

    /// Writes chunks that no read needs any more to their bases.
    pub(super) fn step_fills(&mut self, store: &mut Store) {
        while let Some(key) = self.fetches.to_fill.front().copied() {
            let (range, may) = (chunk_range(store, key), self.may_fill(store, key.0));
            let held = range.map_or(0, |range| range.length) * self.fetches.to_fill.len() as u64;
            let busy = self.fetches.fills >= FILLS_AT_ONCE;
            if may && busy && held <= MOST_UNFILLED {
                return;
            }
            self.fetches.to_fill.pop_front();
            let Some(Chunk { state: ChunkState::Here(bytes), fill: fill @ Fill::Due, readers, .. }) = self.fetches.chunks.get_mut(&key)
            else {
                continue;
            };
            let Some(range) = range.filter(|_| may && !busy) else {
                *fill = Fill::Over;
                if readers.is_empty() {
                    self.fetches.chunks.remove(&key);
                }
                continue;
            };
            let bytes = bytes.clone();
            *fill = Fill::Running;
            self.fetches.fills += 1;
            self.start_fill(store, key, range, bytes.as_ref().map(BufSlice::bytes));
            store.bufs.give_data(bytes);
        }
    }

    /// Writes a chunk to the head of its base: blocks of zeroes become holes.
    fn start_fill(&mut self, store: &mut Store, key: ChunkKey, range: ByteRange, bytes: Option<&[u8]>) {
        let parent = self.new_op(Owner::Fill(key.0, key.1), Work::Barrier(BarrierKind::Fill), false);
        let blocks: Vec<bool> = match bytes {
            Some(bytes) => bytes.chunks(BLOCK).map(|block| block.iter().all(|byte| *byte == 0)).collect(),
            None => vec![true; range.length as usize / BLOCK],
        };
        let mut at = 0;
        for run in blocks.chunk_by(|a, b| a == b) {
            let (first, end) = (at, at + run.len());
            at = end;
            self.adopt(parent);
            match bytes.and_then(|bytes| bytes.get(first * BLOCK..end * BLOCK)).filter(|_| run.first() == Some(&false)) {
                Some(bytes) => {
                    let range = ByteRange { offset: range.offset + (first * BLOCK) as u64, length: bytes.len() as u64 };
                    let request = Request { op: RequestOp::Write, range, fua: false };
                    self.start_write(store, Owner::Parent(parent), key.0, request, Payload::Copy(bytes), false);
                }
                None => {
                    let from = range.offset / BLOCK as u64;
                    let work = ClearWork { volume: key.0, next: from + first as u64, end: from + end as u64 };
                    let child = self.new_op(Owner::Parent(parent), Work::Clear(work), false);
                    self.try_clear(store, child);
                }
            }
        }
        self.release(store, parent);
    }
}

/// Returns the bytes of a base that a chunk covers; `None` if there is no such base or chunk.
fn chunk_range(store: &Store, (base, chunk): ChunkKey) -> Option<ByteRange> {
    let catalog = &store.core.catalog;
    let (unit, size) = (u64::from(catalog.bases.get(&base)?.unit), catalog.volumes.get(&base)?.size);
    let offset = chunk.checked_mul(unit).filter(|offset| *offset < size)?;
    Some(ByteRange { offset, length: unit.min(size - offset) })
}
