//! Plans of reads: each block of a range is looked up in the maps, and then where its bytes are: in a
//! batch that is being written, in a cache, or on devices. Blocks that read as those of a base are looked
//! up in the base, too.

use std::ops::Range;

use millpond_block::BufSlice;
use millpond_format::{Addr, BLOCK, BlockNo, Coding, FANOUT, Lsn, SegmentId, TreeRoot, VolumeId};
use smallvec::SmallVec;

use super::cached::follows;
use super::fetch::ChunkKey;
use super::requests::Requests;
use crate::api::Target;
use crate::cache::CacheSlot;
use crate::read_ahead::Ahead;
use crate::store::Store;
use crate::tree::{Mapped, Miss};

/// A block of a read that was read ahead: its number, key and address, the segment that has it, and
/// its content.
pub(super) struct FromAhead {
    pub(super) block: u64,
    pub(super) key: u64,
    pub(super) addr: Addr,
    pub(super) segment: SegmentId,
    pub(super) piece: BufSlice,
}

/// A read whose blocks are being looked up.
pub(super) struct Reading {
    pub(super) target: Target,
    pub(super) plan: Plan,
    pub(super) gathers: bool,
    /// The volume whose share of the read cache serves it.
    pub(super) remembered: Option<VolumeId>,
    /// Cache devices may have its blocks.
    pub(super) asks: bool,
    /// Its blocks may have been read ahead.
    pub(super) looks_ahead: bool,
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) from_ahead: SmallVec<[FromAhead; 1]>,
    /// Chunks of bases that it needs.
    pub(super) chunks: SmallVec<[ChunkKey; 1]>,
    /// True when some of them are not in memory.
    pub(super) lacks_chunks: bool,
    /// The base that it reads, and the blocks from the first to the last one that it reads of it.
    pub(super) of_base: Option<(VolumeId, Range<u64>)>,
}

/// The reason why a read cannot be planned now.
pub(super) enum Stop {
    /// A node is not in memory.
    Node(Miss),
    /// A block is just being read ahead.
    Ahead(u64),
    /// A block cannot be found.
    Failed,
}

impl From<Miss> for Stop {
    fn from(miss: Miss) -> Stop {
        Stop::Node(miss)
    }
}

/// The parts of a read, before anything is started.
pub(super) struct Plan {
    pub(super) parts: SmallVec<[Planned; 1]>,
    pub(super) after: Lsn,
    /// The volume whose leaves count the device reads, and these leaves: first block and handle.
    pub(super) counts: Option<VolumeId>,
    pub(super) leaves: SmallVec<[(BlockNo, u32); 1]>,
}

pub(super) enum Planned {
    Zero(usize),
    Ready(BufSlice),
    Blocks { segment: SegmentId, page: u32, crcs: SmallVec<[u32; 1]>, addrs: SmallVec<[Addr; 1]> },
    Packed { segment: SegmentId, unit: u32, addr: Addr, crc: u32, wanted: bool },
    Cached { cache_slot: CacheSlot, blocks: SmallVec<[(Addr, u32); 1]> },
}

impl Plan {
    pub(super) fn zero(&mut self, bytes: usize) {
        match self.parts.last_mut() {
            Some(Planned::Zero(n)) => *n += bytes,
            _ => self.parts.push(Planned::Zero(bytes)),
        }
    }

    /// Adds a block in memory; neighbours in one buffer become one piece.
    pub(super) fn ready(&mut self, piece: &BufSlice) {
        if let Some(Planned::Ready(last)) = self.parts.last_mut()
            && last.append_next(piece)
        {
            return;
        }
        self.parts.push(Planned::Ready(piece.clone()));
    }

    /// Adds a block that is read from the pool's devices, as it is stored; `wanted` when a cache
    /// may want it.
    pub(super) fn stored(&mut self, segment: SegmentId, unit: u32, addr: Addr, crc: u32, wanted: bool) {
        if addr.coding() == Coding::Raw && unit.is_multiple_of(8) {
            self.block(segment, unit / 8, crc, Some(addr).filter(|_| wanted));
        } else {
            self.parts.push(Planned::Packed { segment, unit, addr, crc, wanted });
        }
    }

    /// Adds a block at a page; neighbours become one device read. `addr` is its address when a
    /// cache may want it.
    pub(super) fn block(&mut self, segment: SegmentId, page: u32, crc: u32, addr: Option<Addr>) {
        match self.parts.last_mut() {
            Some(Planned::Blocks { segment: s, page: p, crcs, addrs }) if *s == segment && *p + crcs.len() as u32 == page => {
                crcs.push(crc);
                addrs.extend(addr);
            }
            _ => {
                let (crcs, addrs) = (SmallVec::from_elem(crc, 1), addr.into_iter().collect());
                self.parts.push(Planned::Blocks { segment, page, crcs, addrs });
            }
        }
    }

    /// Adds a block in the cache; plain neighbours become one device read.
    pub(super) fn copy(&mut self, cache_slot: CacheSlot, addr: Addr, crc: u32) {
        match self.parts.last_mut() {
            Some(Planned::Cached { cache_slot: first, blocks }) if follows(*first, blocks, cache_slot, addr) => blocks.push((addr, crc)),
            _ => self.parts.push(Planned::Cached { cache_slot, blocks: SmallVec::from_elem((addr, crc), 1) }),
        }
    }
}

impl Requests {
    /// Looks up blocks of a map. `base`: the base whose own map this is, when that of a clone led to it.
    pub(super) fn plan_blocks(
        &mut self,
        store: &mut Store,
        reading: &mut Reading,
        root: &TreeRoot,
        blocks: Range<u64>,
        base: Option<VolumeId>,
    ) -> Result<(), Stop> {
        let (mut block, end) = (blocks.start, blocks.end);
        while block < end {
            let stop = ((block / FANOUT as u64 + 1) * FANOUT as u64).min(end);
            let leaf = match store.core.nodes.look_up(root, block, &mut store.core.nodes_touched)? {
                Mapped::Leaf(leaf) => leaf,
                flat => {
                    match flat {
                        Mapped::Base(of) => self.plan_base(store, reading, of, block..stop, base)?,
                        Mapped::Hole | Mapped::Leaf(_) => reading.plan.zero((stop - block) as usize * BLOCK),
                    }
                    block = stop;
                    continue;
                }
            };
            if base.is_none() {
                reading.plan.leaves.extend(reading.plan.counts.map(|_| (BlockNo(block - block % FANOUT as u64), leaf)));
            }
            while block < stop {
                let node = &store.core.nodes.get(leaf).node;
                let slot = (block % FANOUT as u64) as usize;
                let (addr, crc) = (node.entries[slot], node.crcs[slot]);
                let next = match addr.base() {
                    Some(of) => {
                        let same = node.entries.get(slot..).unwrap_or_default().iter().take_while(|entry| **entry == addr).count();
                        let next = stop.min(block + same as u64);
                        self.plan_base(store, reading, of, block..next, base)?;
                        next
                    }
                    None if addr.is_hole() => {
                        reading.plan.zero(BLOCK);
                        block + 1
                    }
                    None => {
                        self.plan_block(store, reading, block, addr, crc)?;
                        block + 1
                    }
                };
                block = next;
            }
        }
        Ok(())
    }

    /// Plans blocks that read as those of a base. INV-BASE-5: a base reads as no other base.
    fn plan_base(
        &mut self,
        store: &mut Store,
        reading: &mut Reading,
        of: VolumeId,
        blocks: Range<u64>,
        base: Option<VolumeId>,
    ) -> Result<(), Stop> {
        let Some(unit) = store.core.catalog.bases.get(&of).map(|base| u64::from(base.unit)) else { return Err(Stop::Failed) };
        let within = blocks.start..store.core.catalog.base_blocks(of).clamp(blocks.start, blocks.end);
        let beyond = blocks.end - within.end;
        match base {
            None => {
                (reading.plan.counts, reading.plan.leaves) = (None, SmallVec::new());
                let first = reading.of_base.take().map_or(within.start, |(_, blocks)| blocks.start);
                reading.of_base = Some((of, first..within.end)).filter(|_| !within.is_empty());
                let root = store.root_of(Target::Head(of)).ok_or(Stop::Failed)?;
                self.plan_blocks(store, reading, &root, within, Some(of))?;
            }
            Some(base) if base == of => self.plan_chunks(reading, of, unit / BLOCK as u64, within),
            Some(_) => return Err(Stop::Failed),
        }
        if beyond > 0 {
            reading.plan.zero(beyond as usize * BLOCK);
        }
        Ok(())
    }

    /// Plans blocks of a base that the pool does not have: those of chunks in memory.
    fn plan_chunks(&mut self, reading: &mut Reading, base: VolumeId, unit: u64, blocks: Range<u64>) {
        let mut block = blocks.start;
        while block < blocks.end {
            let (chunk, skip) = (block / unit, (block % unit) as usize);
            let stop = ((chunk + 1) * unit).min(blocks.end);
            let count = (stop - block) as usize;
            match self.fetches.here((base, chunk)) {
                Some(Some(bytes)) => reading.plan.ready(&bytes.slice(skip * BLOCK..(skip + count) * BLOCK)),
                Some(None) => reading.plan.zero(count * BLOCK),
                None => reading.lacks_chunks = true,
            }
            if reading.chunks.last() != Some(&(base, chunk)) {
                reading.chunks.push((base, chunk));
            }
            block = stop;
        }
    }

    /// Plans a block at an address.
    #[inline]
    fn plan_block(&mut self, store: &mut Store, reading: &mut Reading, block: u64, addr: Addr, crc: u32) -> Result<(), Stop> {
        let plan = &mut reading.plan;
        // the bytes are in an open batch: seal it, to find them in flight
        if let Some(stream) = store.open_batch_of(addr) {
            store.seal(stream);
        }
        let Some((segment, unit)) = store.core.space.locate(addr) else { return Err(Stop::Failed) };
        if let Some((piece, lsn)) = store.log.find_bytes(segment, unit, addr.units()) {
            plan.after = plan.after.max(if store.is_gathered(addr) { Lsn(0) } else { lsn });
            let piece = match addr.coding() {
                Coding::Raw => piece,
                coding => self.unpack(store, piece.bytes(), coding).ok_or(Stop::Failed)?,
            };
            plan.parts.push(Planned::Ready(piece));
        } else if let Some(piece) = self.find_in_memory(store, reading.remembered, addr) {
            reading.hits += 1;
            plan.parts.push(Planned::Ready(piece));
        } else if let Some((key, found)) = if reading.looks_ahead { self.find_ahead(store, reading.target, block, addr) } else { None } {
            reading.misses += 1;
            match found {
                Ahead::Reading(batch) => return Err(Stop::Ahead(batch)),
                Ahead::Read(piece) => {
                    plan.ready(&piece);
                    reading.from_ahead.push(FromAhead { block, key, addr, segment, piece });
                }
            }
        } else if let Some(cache_slot) = if reading.asks { self.cache.find(addr) } else { None } {
            reading.misses += 1;
            plan.copy(cache_slot, addr, crc);
        } else {
            reading.misses += 1;
            let wanted = reading.remembered.is_some() || (!reading.gathers && self.may_copy(store, segment));
            plan.stored(segment, unit, addr, crc, wanted);
        }
        Ok(())
    }
}
