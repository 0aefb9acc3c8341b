//! Compression and decompression of requests' blocks: at once, or as [`CodecWork`] that the caller
//! does beside other requests.
//!
//! A turn codes a few blocks at once, so that a single small request does not wait for another
//! thread. The rest becomes work of at most [`WORK_BLOCKS`] blocks, which ends in any order. A write
//! that waits for it has no effect yet (INV-CODEC-1): it is not in the log, holds no lock but that of blocks that
//! it covers in part, and begins anew when its blocks are compressed (rollbacks, resizes and
//! snapshots may have come between). A read that waits for it has verified bytes in memory; an
//! address always means the same bytes (I11), so nothing that happens meanwhile makes them stale.

use std::collections::VecDeque;

use millpond_block::{Buf, BufSlice, DiskError};
use millpond_format::{Addr, BLOCK, Coding, VolumeId};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::op::{Op, Owner, Part, Work};
use super::requests::Requests;
use crate::codec::{Codec, CodecKind, CodecWork, Compress, Decompress};
use crate::store::Store;
use crate::{Compression, Planted};

/// Most blocks of a work: 0.1 ms of Zstandard.
const WORK_BLOCKS: usize = 8;
/// Blocks that can be decompressed in the time that compressing one takes.
const COMPRESSION_COST: usize = 4;

/// Work of requests that the caller does.
#[derive(Default)]
pub(crate) struct CodecQueue {
    pub(super) codec: Codec,
    /// Number of the last work.
    last: u64,
    /// Blocks that this turn may still decompress at once; a block to be compressed counts as
    /// [`COMPRESSION_COST`].
    left: usize,
    /// True when the caller does no work: every turn codes all blocks at once.
    no_caller: bool,
    waiting: VecDeque<CodecWork>,
    /// Requests that wait for work, by its number.
    waiters: FxHashMap<u64, Waiter>,
}

/// A request that waits for a work.
#[derive(Debug)]
enum Waiter {
    /// A write, and the position of these blocks in it, in works.
    Write { op: u32, at: usize },
    /// A read, and the parts that the blocks are, with their addresses.
    Read { op: u32, parts: SmallVec<[(u32, Addr); 1]> },
}

impl CodecQueue {
    /// Creates a queue without work; the first turn may code so much at once.
    pub(super) fn new(at_once: usize) -> CodecQueue {
        CodecQueue { left: at_once, no_caller: at_once == usize::MAX, ..CodecQueue::default() }
    }

    /// Begins a turn.
    pub(super) fn begin_turn(&mut self, at_once: usize) {
        (self.left, self.no_caller) = (at_once, at_once == usize::MAX);
    }

    /// Returns whether blocks that cost so much are coded at once.
    fn codes_at_once(&mut self, cost: usize) -> bool {
        let at_once = cost <= self.left;
        if at_once {
            self.left = self.left.saturating_sub(cost);
        }
        at_once
    }

    fn add(&mut self, waiter: Waiter, kind: CodecKind) {
        self.last += 1;
        self.waiters.insert(self.last, waiter);
        self.waiting.push_back(CodecWork { id: self.last, kind });
    }

    /// Returns the next work for the caller.
    pub(crate) fn pop(&mut self) -> Option<CodecWork> {
        self.waiting.pop_front()
    }
}

/// The payload of a write, with its blocks compressed.
#[derive(Debug)]
pub(crate) struct CompressedPayload {
    pub(super) plain: BufSlice,
    /// By [`WORK_BLOCKS`] blocks; `None` until they are compressed.
    parts: SmallVec<[Option<Compress>; 1]>,
}

impl CompressedPayload {
    /// Returns whether all blocks are compressed.
    pub(super) fn is_complete(&self) -> bool {
        self.parts.iter().all(Option::is_some)
    }

    /// Returns the stored form of a block, with its coding and checksum.
    pub(super) fn stored(&self, at: usize) -> Option<(&[u8], Coding, u32)> {
        self.parts.get(at / WORK_BLOCKS)?.as_ref()?.stored(at % WORK_BLOCKS)
    }

    /// Returns its buffers to the pool of buffers.
    pub(super) fn recycle(self, store: &mut Store) {
        for part in self.parts.into_iter().flatten() {
            store.bufs.give(part.out);
        }
        store.bufs.give_data([self.plain]);
    }

    /// Returns the payload as it came, for a write that must begin anew.
    pub(super) fn into_plain(self, store: &mut Store) -> Buf {
        let mut buf = store.bufs.take(self.plain.len());
        if let Some(to) = buf.bytes_mut().get_mut(..self.plain.len()) {
            to.copy_from_slice(self.plain.bytes());
        }
        self.recycle(store);
        buf
    }
}

/// A packed block of a read: the part, its address, and its stored form, which has the right
/// checksum.
pub(super) struct PackedBlock {
    pub(super) part: u32,
    pub(super) addr: Addr,
    pub(super) coding: Coding,
    pub(super) stored: BufSlice,
}

impl Requests {
    /// Decodes the stored form of a compressed block at once.
    pub(super) fn unpack(&mut self, store: &mut Store, stored: &[u8], coding: Coding) -> Option<BufSlice> {
        let mut buf = store.bufs.take(BLOCK);
        self.codec.codec.decompress(stored, coding, buf.bytes_mut().get_mut(..BLOCK)?)?;
        Some(BufSlice::new(buf, 0..BLOCK))
    }

    /// Lets the caller compress the blocks of a write whose payload is kept, and which waits for
    /// that.
    pub(super) fn compress_beside(&mut self, store: &mut Store, id: u32, compression: Compression, count: usize) {
        let Some(Op { work: Work::Write(work), .. }) = self.ops.get_mut(id) else { return };
        let Some(buf) = work.payload.take() else { return self.fail_op(store, id, DiskError::Io) };
        let plain = BufSlice::new(buf, 0..count * BLOCK);
        let works = count.div_ceil(WORK_BLOCKS);
        work.compressed = Some(CompressedPayload { plain: plain.clone(), parts: (0..works).map(|_| None).collect() });
        for at in 0..works {
            let plain = plain.slice(at * WORK_BLOCKS * BLOCK..((at + 1) * WORK_BLOCKS).min(count) * BLOCK);
            let out = store.bufs.take(Compress::room(plain.len() / BLOCK));
            self.codec.add(Waiter::Write { op: id, at }, CodecKind::Compress(Compress { plain, compression, out, blocks: Vec::new() }));
        }
    }

    /// Returns whether the caller compresses the blocks of a write to a compressed volume: those that
    /// this turn cannot compress at once. Small writes on special devices stay plain.
    pub(super) fn compresses_beside(&mut self, store: &Store, volume: VolumeId, count: usize) -> bool {
        let threshold = store.core.catalog.options_of(volume).special_small_blocks as usize;
        count * BLOCK > threshold && !self.codec.codes_at_once(count.saturating_mul(COMPRESSION_COST))
    }

    /// Decompresses blocks of a read, or lets the caller do it. Blocks that are read ahead take
    /// nothing of what a turn decompresses at once, which is for guests that wait.
    pub(super) fn decompress(&mut self, store: &mut Store, id: u32, blocks: SmallVec<[PackedBlock; 1]>) {
        if blocks.is_empty() {
            return;
        }
        let is_ahead = matches!(self.ops.get(id), Some(Op { owner: Owner::Ahead(_), .. }));
        if (!is_ahead || self.codec.no_caller) && self.codec.codes_at_once(blocks.len()) {
            for PackedBlock { part, addr, coding, stored } in blocks {
                let piece = self.unpack(store, stored.bytes(), coding);
                store.bufs.give_data([stored]);
                self.decompressed(store, id, part, addr, piece);
            }
            return;
        }
        let mut blocks = blocks.into_iter().peekable();
        while blocks.peek().is_some() {
            let (parts, stored): (SmallVec<[_; 1]>, SmallVec<[_; 1]>) =
                blocks.by_ref().take(WORK_BLOCKS).map(|block| ((block.part, block.addr), (block.stored, block.coding))).unzip();
            if let Some(op) = self.ops.get_mut(id) {
                op.pending += 1;
            }
            let out = store.bufs.take(stored.len() * BLOCK);
            let kind = CodecKind::Decompress(Decompress { stored, out, good: SmallVec::new() });
            self.codec.add(Waiter::Read { op: id, parts }, kind);
        }
    }

    /// Keeps a decompressed block for the reply and for the read cache. Where a block that has the
    /// right checksum cannot be decompressed, its copies are most likely the same: the read is
    /// repeated once, from the pool's devices, and then fails. A block that is read ahead is left out.
    fn decompressed(&mut self, store: &mut Store, id: u32, part: u32, addr: Addr, piece: Option<BufSlice>) {
        let Some(Op { owner, work: Work::Read(work), .. }) = self.ops.get_mut(id) else { return };
        if let Owner::Ahead(batch) = *owner {
            piece.into_iter().for_each(|piece| self.ahead.hold(batch, addr.identity(), piece));
            return self.ready.extend(self.ahead.take_waiters(batch));
        }
        if let (Some(volume), Some(piece)) = (work.remembered, &piece) {
            self.remember(store, volume, std::iter::once(addr), piece);
        }
        let Some(Op { work: Work::Read(work), error, .. }) = self.ops.get_mut(id) else { return };
        match (piece, work.parts.get_mut(part as usize)) {
            (Some(piece), Some(place)) => *place = Part::Ready(piece),
            _ if !work.bypass_cache => work.again = true,
            _ => *error = Some(DiskError::Io),
        }
    }

    /// Takes work back that the caller has done.
    pub(crate) fn codec_done(&mut self, store: &mut Store, work: CodecWork) {
        match (self.codec.waiters.remove(&work.id), work.kind) {
            (Some(Waiter::Write { op, at }), CodecKind::Compress(done)) => {
                let Some(Op { work: Work::Write(work), .. }) = self.ops.get_mut(op) else { return };
                let Some(compressed) = &mut work.compressed else { return };
                let in_order = store.tuning.plants(Planted::CodecInOrder);
                let at = if in_order { compressed.parts.iter().position(Option::is_none).unwrap_or(at) } else { at };
                if let Some(place) = compressed.parts.get_mut(at) {
                    *place = Some(done);
                }
                if compressed.is_complete() {
                    self.ready.push_back(op);
                }
            }
            (Some(Waiter::Read { op, parts }), CodecKind::Decompress(Decompress { stored, out, good })) => {
                store.bufs.give_data(stored.into_iter().map(|(stored, _)| stored));
                let all = BufSlice::new(out, 0..parts.len() * BLOCK);
                for (at, (part, addr)) in parts.into_iter().enumerate() {
                    let good = good.get(at).is_some_and(|good| *good);
                    let piece = good.then(|| all.slice(at * BLOCK..(at + 1) * BLOCK));
                    self.decompressed(store, op, part, addr, piece);
                }
                self.release(store, op);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::MEMORY_TIMES;
    use millpond_block::BufPool;

    /// Budgets of requests rely on it.
    #[test]
    fn a_compressed_write_holds_at_most_so_many_times_its_bytes() {
        let mut bufs = BufPool::default();
        for count in 1..=4 * WORK_BLOCKS {
            let outputs = (0..count).step_by(WORK_BLOCKS).map(|at| bufs.take(Compress::room(WORK_BLOCKS.min(count - at))).size());
            let held = count * BLOCK + outputs.sum::<usize>();
            assert!(held as u64 <= MEMORY_TIMES * (count * BLOCK) as u64, "{held} bytes for {count} blocks");
        }
    }

    #[test]
    fn a_decompressed_read_holds_less() {
        let mut bufs = BufPool::default();
        for count in 1..=WORK_BLOCKS {
            // the stored forms, and as many blocks
            assert!(count * BLOCK + bufs.take(count * BLOCK).size() <= MEMORY_TIMES as usize * count * BLOCK);
        }
    }
}
