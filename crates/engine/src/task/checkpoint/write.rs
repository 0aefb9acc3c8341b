//! Writes of a checkpoint: nodes, and the roots that name it.

use millpond_block::{BufSlice, Tag};
use millpond_format::{Lsn, NODE_BYTES, Root};

use super::seal::{Sealed, wait_for_pieces};
use super::settle::settle_some;
use super::{BYTES_PER_SLICE, COUNT_MILLIS, Checkpointer, NODES_PER_WRITE, SUMS_PER_SLICE, WRITES_IN_FLIGHT};
use crate::Planted;
use crate::space::Place;
use crate::store::{Context, Stage, Store};

impl Checkpointer {
    /// Returns whether part of it is still to be encoded or written.
    pub(crate) fn is_writing(&self) -> bool {
        self.sealed.is_some()
    }

    /// Takes the commands that wait for the checkpoint that is being written, to answer them.
    pub(crate) fn take_commands(&mut self) -> Vec<Tag> {
        std::mem::take(&mut self.answering)
    }

    /// Counts exactly whether the next checkpoint fits. That takes time, so it is done only when
    /// everything dead is freed, and not often.
    pub(crate) fn counts_again(&mut self, store: &mut Store) -> bool {
        if store.core.catalog.has_frees() || store.tuning.plants(Planted::CrowdTheLog) || store.now.0 < self.counted.0 + COUNT_MILLIS {
            return false;
        }
        self.counted = store.now;
        store.checkpoint_fits_after_all()
    }

    pub(super) fn root_lsn(&self) -> Lsn {
        self.root.as_ref().map_or(Lsn(0), |root| root.lsn)
    }

    /// Does a slice of the work: deadlists and pages of the chunk table, then checksums, then the
    /// objects that contain them, then nodes. Returns false when no segment is left.
    pub(super) fn encode_some(&mut self, store: &mut Store, sealed: &mut Sealed, slices: usize) -> bool {
        let mut room = BYTES_PER_SLICE * slices;
        while room > 0 && self.pending < WRITES_IN_FLIGHT {
            let late = sealed.settling.done;
            sealed.waits = !late && wait_for_pieces(store, sealed);
            if sealed.waits {
                return true;
            }
            let Some(bytes) = (if late { self.encode_late(store, sealed) } else { self.encode_early(store, sealed) }) else { return false };
            match bytes {
                0 if late => {
                    self.write_nodes(store, sealed, slices);
                    return true;
                }
                0 => {
                    settle_some(store, sealed, SUMS_PER_SLICE * slices);
                    return true;
                }
                bytes => room = room.saturating_sub(bytes),
            }
        }
        true
    }

    /// Writes some of the nodes.
    fn write_nodes(&mut self, store: &mut Store, sealed: &mut Sealed, slices: usize) {
        let mut writes = slices;
        while writes > 0 && self.pending < WRITES_IN_FLIGHT {
            let Some(flush) = sealed.flushes.front_mut() else { return };
            let (Some(place), false) = (flush.place, flush.nodes.is_empty()) else {
                sealed.flushes.pop_front();
                continue;
            };
            writes -= 1;
            let rest = flush.nodes.split_off(flush.nodes.len().min(NODES_PER_WRITE));
            let nodes = std::mem::replace(&mut flush.nodes, rest);
            let bytes = (nodes.len() * NODE_BYTES).next_multiple_of(4096);
            flush.place = Some(Place { page: place.page + (bytes / 4096) as u32, ..place });
            let mut buf = store.bufs.take(bytes);
            for (slot, at) in nodes.iter().enumerate() {
                let cached = store.core.nodes.get(*at);
                if let Some(out) = buf.bytes_mut().get_mut(slot * NODE_BYTES..(slot + 1) * NODE_BYTES) {
                    cached.node.encode(cached.addr, out);
                }
            }
            if let Some(rest) = buf.bytes_mut().get_mut(nodes.len() * NODE_BYTES..bytes) {
                rest.fill(0);
            }
            store.metrics.node_writes += nodes.len() as u64;
            store.metrics.metadata_bytes += bytes as u64;
            let piece = BufSlice::new(buf, 0..bytes);
            self.pending += 1;
            store.write_pages(Context::Nodes(nodes), place.segment, place.page, vec![piece]);
        }
    }

    pub(crate) fn write_roots(&mut self, store: &mut Store, at_end: bool) {
        self.pending = 1;
        let Some(root) = &self.root else { return };
        let writes = store.root_writes(&root.clone(), at_end);
        store.io.write_raw(Context::Checkpoint, writes);
    }

    /// Keeps the root that the next stages write.
    pub(crate) fn begin_root(&mut self, root: Root) {
        self.root = Some(root);
    }

    /// Records that the stage waits for a flush.
    pub(crate) fn begin_barrier(&mut self) {
        self.pending = 1;
    }

    /// Counts a write or flush that ended. Returns true when it was the last of its stage.
    pub(crate) fn ends_stage(&mut self) -> bool {
        self.pending -= 1;
        self.pending == 0
    }

    /// Makes the root that was written the one in force, and releases what its checkpoint
    /// replaced. Returns false when no root was written.
    pub(crate) fn commit(&mut self, store: &mut Store) -> bool {
        store.checkpoint.stage = Stage::Idle;
        let Some(root) = self.root.take() else { return false };
        store.generation = root.generation;
        store.past_roots.push_back((root.generation, root.time));
        // the root of an import names the checkpoint of the import before
        store.checkpoint_generation = if root.checkpoint == store.checkpoint_at { root.generation - 1 } else { root.generation };
        store.checkpoint_at = root.checkpoint;
        store.checkpoint_lsn = root.lsn;
        store.log.durable = store.log.durable.max(root.lsn);
        store.log_tails = root.log_tails;
        // replaced objects are needed by the previous checkpoint at most, whatever was fixed since
        let sealed = std::mem::replace(&mut store.core.space.sealed_generation, root.generation - 1);
        for old in std::mem::take(&mut self.replaced) {
            if old.length > 0 {
                store.drop_object(old);
            }
        }
        store.core.space.sealed_generation = sealed;
        self.release_reserved(store);
        if store.evacuation.is_some() {
            store.count_moving();
        }
        store.metrics.checkpoints += 1;
        true
    }
}
