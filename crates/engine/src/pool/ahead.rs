//! Blocks that are read ahead of guests: which ones of a range, and how guests' reads find them.

use millpond_block::ByteRange;
use millpond_format::{Addr, BlockNo, FANOUT, SegmentId};
use smallvec::SmallVec;

use super::memory::key_of;
use super::requests::Requests;
use super::write::blocks_of;
use crate::Planted;
use crate::api::Target;
use crate::read_ahead::{Ahead, BATCH_READS};
use crate::store::{GAP_PAGES, Store};
use crate::tree::Miss;

/// A block that is to be read ahead, and its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockAhead {
    pub(super) segment: SegmentId,
    pub(super) unit: u32,
    pub(super) addr: Addr,
    pub(super) crc: u32,
}

/// The blocks of a range that are to be read ahead, and the leaves that have its blocks: first block
/// and handle.
#[derive(Debug, Default)]
pub(super) struct RangeAhead {
    pub(super) blocks: Vec<BlockAhead>,
    pub(super) leaves: SmallVec<[(BlockNo, u32); 1]>,
    /// The block before which the range ends because it needs many device reads.
    pub(super) cut: Option<u64>,
}

impl RangeAhead {
    /// Returns whether a block is no neighbour of the last one on devices, so that it takes a device
    /// read more.
    fn is_apart(&self, block: &BlockAhead) -> bool {
        let follows = |last: &BlockAhead| {
            let gap = block.unit.checked_sub(last.unit + last.addr.units());
            last.segment == block.segment && gap.is_some_and(|units| units / 8 <= GAP_PAGES)
        };
        !self.blocks.last().is_some_and(follows)
    }
}

impl Requests {
    /// Returns the blocks of a range that are to be read ahead: those that are neither in memory
    /// nor on a cache device, as far as [`BATCH_READS`] suffice. None without the target, or when
    /// its volume has no read cache.
    ///
    /// # Errors
    /// The map node that must be read before.
    pub(super) fn blocks_ahead(&mut self, store: &mut Store, target: Target, range: ByteRange) -> Result<RangeAhead, Miss> {
        let mut found = RangeAhead::default();
        let (Some(root), Some(volume)) = (store.root_of(target), self.cache_partition(store, target, 0)) else { return Ok(found) };
        let (first, count) = blocks_of(range);
        let (mut block, end, mut reads) = (first, first + count as u64, 0);
        while block < end {
            let stop = ((block / FANOUT as u64 + 1) * FANOUT as u64).min(end);
            // these are no visits for a guest's request
            let Some(leaf) = store.core.nodes.leaf(&root, block, &mut 0)? else {
                block = stop;
                continue;
            };
            found.leaves.push((BlockNo(block - block % FANOUT as u64), leaf));
            for at in block..stop {
                let node = &store.core.nodes.get(leaf).node;
                let slot = (at % FANOUT as u64) as usize;
                let (addr, crc) = (node.entries[slot], node.crcs[slot]);
                // blocks of an open batch, or of one in flight, are in memory
                if !addr.is_some() || store.open_batch_of(addr).is_some() {
                    continue;
                }
                let Some((segment, unit)) = store.core.space.locate(addr) else { continue };
                let is_near = store.log.find_bytes(segment, unit, addr.units()).is_some()
                    || self.ahead.knows(addr.identity())
                    || self.read_cache.holds(volume, key_of(store, addr))
                    || self.cache.find(addr).is_some();
                if !is_near {
                    let block = BlockAhead { segment, unit, addr, crc };
                    reads += usize::from(found.is_apart(&block));
                    if reads > BATCH_READS {
                        found.cut = Some(at);
                        return Ok(found);
                    }
                    if store.tuning.plants(Planted::ReadAheadStale) {
                        self.ahead.plant_stale(target, at, addr.identity());
                    }
                    found.blocks.push(block);
                }
            }
            block = stop;
        }
        Ok(found)
    }

    /// Looks for a block of a target that is being read ahead, or was (INV-READ-AHEAD-1): by its
    /// address in the map. Returns its key, too.
    pub(super) fn find_ahead(&self, store: &Store, target: Target, block: u64, addr: Addr) -> Option<(u64, Ahead)> {
        let stale = if store.tuning.plants(Planted::ReadAheadStale) { self.ahead.planted_stale(target, block) } else { None };
        let key = stale.unwrap_or(addr.identity());
        Some((key, self.ahead.look_up(key)?))
    }
}
