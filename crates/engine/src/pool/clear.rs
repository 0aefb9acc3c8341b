//! Discards and zeroing: whole blocks are unmapped, partial blocks at the edges of a zeroing are
//! overwritten with zeroes.

use millpond_block::{ByteRange, DiskError, Op as RequestOp, Payload, Request};
use millpond_format::{BlockNo, Item, VolumeId};

use super::op::{BarrierKind, ClearWork, Op, Owner, Work};
use super::requests::Requests;
use crate::Planted;
use crate::store::Store;

/// Leaves (2 MiB each) that one step of a clear changes, so that a clear of any size does not delay
/// other requests.
const LEAVES_PER_STEP: usize = 16;

impl Requests {
    /// Starts a discard (`zero` false: partial blocks stay as they are) or a zeroing.
    pub(super) fn start_clear(&mut self, store: &mut Store, owner: Owner, volume: VolumeId, range: ByteRange, zero: bool, durable: bool) {
        let end = range.offset + range.length;
        let (whole, stop) = (range.offset.div_ceil(4096), end / 4096);
        let work = Work::Barrier(BarrierKind::Clear);
        let parent = self.new_op(owner, work, durable);
        if zero {
            let mut edges = Vec::new();
            if whole > stop {
                edges.push(range);
            } else {
                let (head, tail) = (whole * 4096 - range.offset, end - stop * 4096);
                edges.push(ByteRange { offset: range.offset, length: head });
                edges.push(ByteRange { offset: stop * 4096, length: tail });
            }
            for edge in edges.into_iter().filter(|edge| edge.length > 0) {
                self.adopt(parent);
                let request = Request { op: RequestOp::Write, range: edge, fua: false };
                let zeroes = [0u8; 4096];
                let bytes = zeroes.get(..usize::try_from(edge.length).unwrap_or(0)).unwrap_or_default();
                self.start_write(store, Owner::Parent(parent), volume, request, Payload::Copy(bytes), false);
            }
        }
        if whole < stop {
            self.adopt(parent);
            let work = Work::Clear(ClearWork { volume, next: whole, end: stop });
            let child = self.new_op(Owner::Parent(parent), work, false);
            self.try_clear(store, child);
        }
        self.release(store, parent);
    }

    /// Adds a child to an operation.
    pub(super) fn adopt(&mut self, parent: u32) {
        if let Some(op) = self.ops.get_mut(parent) {
            op.pending += 1;
        }
    }

    /// Executes one step of a clear; the next follows in the next turn.
    pub(super) fn try_clear(&mut self, store: &mut Store, id: u32) {
        if self.refuses_write(id) {
            return self.fail_op(store, id, DiskError::NoSpace);
        }
        let Some(Op { work: Work::Clear(work), owner, .. }) = self.ops.get(id) else { return };
        let (volume, mut next, end) = (work.volume, work.next, work.end);
        if matches!(owner, Owner::Nobody) {
            // a rollback may have restored a larger size while the end that a shrink cut off was
            // being discarded
            next = next.max(store.core.catalog.volumes.get(&volume).map_or(0, |v| v.size / 4096));
        }
        let Some(lineage) = store.core.lineage_of(volume) else { return self.fail_op(store, id, DiskError::Io) };
        if !self.locks.is_empty() {
            let busy = self.locks.range_mut((volume, BlockNo(next))..(volume, BlockNo(end))).next();
            if let Some((_, waiting)) = busy {
                return waiting.push_back(id);
            }
        }
        let stop = match store.core.plan_clear(lineage, next, end, LEAVES_PER_STEP) {
            Ok(stop) => stop,
            Err(miss) => return self.load_node(store, miss, Some(id)),
        };
        let mapped = matches!(store.core.maps_any(lineage, next..stop), Ok(true));
        if mapped {
            let item = Item::Clear { volume, block: BlockNo(next), count: stop - next };
            let forgets = store.tuning.plants(Planted::LoseDiscardRecord)
                || (store.tuning.plants(Planted::BaseClearNotLogged) && store.core.reads_as_base(lineage, next));
            if !forgets && self.append_item(store, id, &item).is_err() {
                return self.record_waiters.push_back(id);
            }
            let cleared = store.core.clear(lineage, next, stop);
            assert!(cleared.is_ok(), "INV-MAP-6: the leaves of a planned clear are in memory");
        }
        if stop < end {
            if let Some(Op { work: Work::Clear(work), .. }) = self.ops.get_mut(id) {
                work.next = stop;
            }
            self.ready.push_back(id);
        } else {
            // a block that is a hole already may be one by a record in flight: the answer may not
            // come before that record is written (I2); and an answer that promises durability
            // covers everything acknowledged before it, as every other does
            let after = store.last_record.max(store.log.completed);
            if let Some(op) = self.ops.get_mut(id) {
                op.lsn = op.lsn.max(after);
            }
            self.release(store, id);
        }
    }
}
