//! Gathering, as far as requests take part: reads of guests show which blocks lie apart, and blocks
//! to be gathered are read as guests read them.

use millpond_block::{ByteRange, Op as RequestOp, Request};
use millpond_format::{BlockNo, VolumeId};

use super::op::{Owner, ReadWork, Work};
use super::requests::Requests;
use super::state::Pool;
use crate::api::Target;
use crate::space::PAGE;
use crate::store::{GatherRead, Scattered, Store};

/// Most leaves of one turn.
const MOST_SCATTERED: usize = 64;

/// Returns the volume of a read whose device reads count for gathering: a long one of a guest, or
/// ahead of one, of a head. `length` is in bytes.
pub(super) fn counts_for_gathering(store: &Store, owner: Owner, target: Target, length: u64) -> Option<VolumeId> {
    let (Owner::Guest(_) | Owner::Ahead(_), Target::Head(volume)) = (owner, target) else { return None };
    let gather = &store.tuning.gather;
    (gather.after_reads > 0 && length >= gather.from_bytes && !store.tuning.read_only).then_some(volume)
}

impl Requests {
    /// Counts the device reads beyond one of a read of `leaves`, evenly over these.
    pub(super) fn count_scattered(&mut self, store: &mut Store, volume: VolumeId, leaves: &[(BlockNo, u32)], reads: usize) {
        let each = reads.saturating_sub(1) / leaves.len().max(1);
        for (first, leaf) in leaves.iter().filter(|_| each > 0) {
            let most = store.tuning.gather.after_reads;
            if store.core.nodes.count_extra_reads(*leaf, u32::try_from(each).unwrap_or(u32::MAX), most)
                && self.scattered.len() < MOST_SCATTERED
            {
                self.scattered.push(Scattered { volume, first: *first });
            }
        }
    }

    /// Reads blocks to be gathered from the pool's devices, and remembers them nowhere.
    fn read_to_gather(&mut self, store: &mut Store, read: GatherRead) {
        let range = ByteRange { offset: read.first.0 * PAGE, length: read.blocks as u64 * PAGE };
        let request = Request { op: RequestOp::Read, range, fua: false };
        let work = ReadWork { bypass_cache: true, ..ReadWork::new(Target::Head(read.volume), request) };
        let id = self.new_op(Owner::Gather(read.nth), Work::Read(work), false);
        self.try_read(store, id);
    }
}

impl Pool {
    /// Continues gathering. Returns true when it wants another turn soon.
    pub(super) fn step_gather(&mut self) -> bool {
        for leaf in std::mem::take(&mut self.requests.scattered) {
            self.gatherer.want(leaf);
        }
        for (nth, result) in std::mem::take(&mut self.requests.gather_reads) {
            self.gatherer.blocks_read(nth, result);
        }
        let wiping = self.jobs.wipes();
        self.gatherer.step_gather(&mut self.store, wiping);
        while let Some(read) = self.gatherer.next_read(&mut self.store, wiping) {
            self.requests.read_to_gather(&mut self.store, read);
        }
        self.gatherer.can_append(&self.store) || !self.requests.gather_reads.is_empty()
    }
}
