//! Guest writes: reads the edges of partly covered blocks, loads leaves, checks space, appends.

use millpond_block::{Buf, BufSlice, ByteRange, DiskError, Op as RequestOp, Payload, Request};
use millpond_format::{BLOCK_UNITS, BlockNo, FANOUT, LineageId, VolumeId};

use super::append::{BlockRun, Source};
use super::op::{Edges, Op, Owner, ReadWork, Work, WriteWork};
use super::requests::Requests;
use crate::Compression;
use crate::api::Target;
use crate::store::Store;

/// Returns the blocks that a request touches: first and number.
pub(crate) fn blocks_of(range: ByteRange) -> (u64, usize) {
    let first = range.offset / 4096;
    let end = (range.offset + range.length).div_ceil(4096);
    (first, usize::try_from(end - first).unwrap_or(usize::MAX))
}

fn is_ragged(range: ByteRange) -> bool {
    !range.offset.is_multiple_of(4096) || !range.length.is_multiple_of(4096)
}

impl Requests {
    /// Starts a write.
    pub(super) fn start_write(
        &mut self,
        store: &mut Store,
        owner: Owner,
        volume: VolumeId,
        request: Request,
        payload: Payload<'_>,
        durable: bool,
    ) {
        let work = WriteWork { volume, request, payload: None, compressed: None, edges: Edges::default() };
        let id = self.new_op(owner, Work::Write(work), durable);
        match payload {
            Payload::Owned(buf) if !is_ragged(request.range) => {
                if let Some(Op { work: Work::Write(work), .. }) = self.ops.get_mut(id) {
                    work.payload = Some(buf);
                }
                self.try_write(store, id, None);
            }
            Payload::Owned(buf) => {
                let length = usize::try_from(request.range.length).unwrap_or(0);
                self.try_write(store, id, buf.bytes().get(..length));
                store.bufs.give(buf);
            }
            Payload::Copy(bytes) => self.try_write(store, id, Some(bytes)),
            Payload::None => self.fail_op(store, id, DiskError::Invalid),
        }
    }

    /// Continues a write as far as possible. `given` is the payload while it has not been copied.
    pub(super) fn try_write(&mut self, store: &mut Store, id: u32, given: Option<&[u8]>) {
        if self.refuses_write(id) {
            return self.fail_op(store, id, DiskError::NoSpace);
        }
        let Some(Op { work: Work::Write(work), .. }) = self.ops.get(id) else { return };
        let (volume, request, held) = (work.volume, work.request, work.edges.locked.clone());
        let (filled, rollbacks) = (work.edges.filled, work.edges.rollbacks);
        let Some(lineage) = store.core.lineage_of(volume) else { return self.fail_op(store, id, DiskError::Io) };
        let (first, count) = blocks_of(request.range);
        let last = first + count as u64 - 1;
        let Some(found) = store.core.catalog.volumes.get(&volume).filter(|v| last < v.size / 4096) else {
            // the volume shrank while this waited
            return self.fail_op(store, id, DiskError::OutOfBounds);
        };
        let compression = found.compression;
        if !self.locks.is_empty() {
            let busy =
                self.locks.range_mut((volume, BlockNo(first))..=(volume, BlockNo(last))).find(|((_, block), _)| !held.contains(block));
            if let Some((_, waiting)) = busy {
                waiting.push_back(id);
                return self.keep_payload(store, id, given);
            }
        }
        // a rollback makes the old content stale, and the lineage id may not show it (after a
        // splice or two promotions). Other changes of the locked blocks wait for their locks
        if is_ragged(request.range) && (!filled || rollbacks != store.core.rollbacks) {
            self.keep_payload(store, id, given);
            self.restore_payload(store, id);
            return self.read_edges(store, id, volume, request.range);
        }
        if !self.load_leaves(store, id, lineage, first, last) {
            return self.keep_payload(store, id, given);
        }
        let need = count as u64 * u64::from(BLOCK_UNITS);
        if store.core.space.live_units() + need + store.reserved_by_others(volume) > store.usable_units() {
            if self.room_comes(store) {
                self.keep_payload(store, id, given);
                return self.full_waiters.push_back(id);
            }
            return self.fail_op(store, id, DiskError::NoSpace);
        }
        let Some(Op { work: Work::Write(work), .. }) = self.ops.get_mut(id) else { return };
        let compressed = work.compressed.take();
        let is_compressed = compression != Compression::Off && compressed.is_none();
        if is_compressed && self.compresses_beside(store, volume, count) {
            self.keep_payload(store, id, given);
            return self.compress_beside(store, id, compression, count);
        }
        let Some(Op { work: Work::Write(work), .. }) = self.ops.get_mut(id) else { return };
        let kept = work.payload.take();
        let source = match (given, kept, compressed) {
            (_, _, Some(payload)) => Source::Compressed(payload),
            (Some(bytes), None, None) => Source::Copy(bytes),
            (_, Some(buf), None) => Source::Shared(BufSlice::new(buf, 0..count * 4096)),
            (None, None, None) => return self.fail_op(store, id, DiskError::Io),
        };
        let run = BlockRun { op: id, volume, lineage, first: BlockNo(first), offset: 0, count, source: &source };
        let done = self.append_blocks(store, &run);
        if done < count {
            if done == 0
                && let Source::Compressed(payload) = source
            {
                // it must not be compressed again while other writes take the room
                if let Some(Op { work: Work::Write(work), .. }) = self.ops.get_mut(id) {
                    work.compressed = Some(payload);
                }
                return self.space_waiters.push_back(id);
            }
            // appended blocks stay; the rest waits for room, as a write of its own range
            let rest = rest_of(store, &source, done, count);
            let next = first + done as u64;
            self.unlock_before(id, BlockNo(next));
            if let Some(Op { work: Work::Write(work), .. }) = self.ops.get_mut(id) {
                if done > 0 {
                    let end = request.range.offset + request.range.length;
                    work.request.range = ByteRange { offset: next * 4096, length: end - next * 4096 };
                }
                work.payload = Some(rest);
            }
            self.space_waiters.push_back(id);
            return;
        }
        match source {
            Source::Compressed(payload) => payload.recycle(store),
            Source::Shared(piece) => store.bufs.give_data([piece]),
            Source::Copy(_) => {}
        }
        self.unlock_before(id, BlockNo(last + 1));
        self.release(store, id);
    }

    /// Copies a payload that its submitter takes back into a buffer of whole blocks.
    fn keep_payload(&mut self, store: &mut Store, id: u32, given: Option<&[u8]>) {
        let Some(bytes) = given else { return };
        let Some(Op { work: Work::Write(work), .. }) = self.ops.get_mut(id) else { return };
        if work.payload.is_some() {
            return;
        }
        let (_, count) = blocks_of(work.request.range);
        let skip = (work.request.range.offset % 4096) as usize;
        let mut buf = store.bufs.take(count * 4096);
        if let Some(to) = buf.bytes_mut().get_mut(skip..skip + bytes.len()) {
            to.copy_from_slice(bytes);
        }
        work.payload = Some(buf);
    }

    /// Keeps the payload of a write as it came, although its blocks are compressed.
    fn restore_payload(&mut self, store: &mut Store, id: u32) {
        let Some(Op { work: Work::Write(work), .. }) = self.ops.get_mut(id) else { return };
        if let Some(compressed) = work.compressed.take() {
            work.payload = Some(compressed.into_plain(store));
        }
    }

    /// Starts reading the leaves that are not in memory. Returns true when none is missing.
    fn load_leaves(&mut self, store: &mut Store, id: u32, lineage: LineageId, first: u64, last: u64) -> bool {
        let mut complete = true;
        for leaf in first / FANOUT as u64..=last / FANOUT as u64 {
            if let Err(miss) = store.core.head_leaf(lineage, leaf * FANOUT as u64) {
                // waits for one of them: the operation checks all leaves again when it continues
                self.load_node(store, miss, complete.then_some(id));
                complete = false;
            }
        }
        complete
    }

    /// Locks the blocks that a write covers only in part, and starts reading their old content.
    fn read_edges(&mut self, store: &mut Store, id: u32, volume: VolumeId, range: ByteRange) {
        let (first, count) = blocks_of(range);
        let last = first + count as u64 - 1;
        let mut edges: smallvec::SmallVec<[BlockNo; 2]> = smallvec::SmallVec::new();
        if !range.offset.is_multiple_of(4096) {
            edges.push(BlockNo(first));
        }
        if !(range.offset + range.length).is_multiple_of(4096) && (last != first || edges.is_empty()) {
            edges.push(BlockNo(last));
        }
        for block in &edges {
            self.locks.entry((volume, *block)).or_default();
        }
        if let Some(Op { work: Work::Write(work), .. }) = self.ops.get_mut(id) {
            let old = edges.iter().map(|_| None).collect();
            work.edges = Edges { locked: edges.clone(), rollbacks: store.core.rollbacks, old, filled: false };
        }
        for block in edges {
            let range = ByteRange { offset: block.0 * 4096, length: 4096 };
            let request = Request { op: RequestOp::Read, range, fua: false };
            let target = Target::Head(volume);
            let work = ReadWork::new(target, request);
            let child = self.new_op(Owner::Parent(id), Work::Read(work), false);
            self.try_read(store, child);
        }
    }
}

/// Copies the blocks of a payload from `done` on to a new buffer.
fn rest_of(store: &mut Store, source: &Source<'_>, done: usize, count: usize) -> Buf {
    let mut rest = store.bufs.take((count - done) * 4096);
    for (at, to) in (done..count).zip(rest.bytes_mut().chunks_exact_mut(4096)) {
        to.copy_from_slice(source.block(at));
    }
    rest
}
