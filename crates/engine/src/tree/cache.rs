//! Map nodes in memory: found by address, evicted when clean and unused, written by checkpoints
//! when dirty.

use millpond_format::{Addr, FANOUT, Node, TreeRoot, VolumeId};
use rustc_hash::FxHashMap;

/// A node that must be read before the caller can continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Miss {
    pub(crate) addr: Addr,
    pub(crate) crc: u32,
    pub(crate) level: u8,
    pub(crate) index: u64,
}

/// The end of the path from a root to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mapped {
    /// The block reads as zeroes.
    Hole,
    /// The block reads as that of a base.
    Base(VolumeId),
    /// A leaf maps the block.
    Leaf(u32),
}

/// A part of a map that is no hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Region {
    /// A leaf.
    Leaf(u32),
    /// All blocks that a node of this level would map read as those of a base.
    Base { base: VolumeId, level: u8 },
}

/// Number of blocks that a tree of `height` levels maps.
pub(crate) fn capacity(height: u8) -> u64 {
    1u64.checked_shl(9 * u32::from(height)).unwrap_or(u64::MAX)
}

/// Index of the node of `level` that maps `block`.
pub(crate) fn node_index(block: u64, level: u8) -> u64 {
    block.checked_shr(9 * (u32::from(level) + 1)).unwrap_or(0)
}

/// Index of the entry that maps `block` in its node of `level`.
pub(crate) fn slot_in(block: u64, level: u8) -> usize {
    (block >> (9 * u32::from(level)) & (FANOUT as u64 - 1)) as usize
}

/// A node in memory.
pub(crate) struct Cached {
    pub(crate) node: Node,
    pub(crate) addr: Addr,
    /// 0 for a clean node, else the dirty generation in which it was changed.
    pub(crate) dirty: u64,
    /// Checksum of the node as the running checkpoint writes it, once computed.
    pub(crate) crc: Option<u32>,
    /// Device reads beyond one each that long reads of guests needed for the blocks of this leaf since
    /// it was read or changed.
    extra_reads: u32,
    used_lately: bool,
    /// True when it is dead and only waits until the running checkpoint has written it.
    doomed: bool,
}

/// Bytes of memory that a node takes, with the allocator's overhead.
const NODE_MEMORY: u64 = 6400;

/// Number of nodes that fit into `bytes` bytes of memory.
fn limit_of(bytes: u64) -> usize {
    usize::try_from(bytes / NODE_MEMORY).unwrap_or(usize::MAX).max(64)
}

/// The cache of nodes.
pub(crate) struct NodeCache {
    slab: Vec<Option<Cached>>,
    vacant: Vec<u32>,
    by_addr: FxHashMap<u64, u32>,
    hand: usize,
    dirty_count: usize,
    bytes: u64,
    limit: usize,
}

impl NodeCache {
    pub(crate) fn new(bytes: u64) -> NodeCache {
        let limit = limit_of(bytes);
        NodeCache { slab: Vec::new(), vacant: Vec::new(), by_addr: FxHashMap::default(), hand: 0, dirty_count: 0, bytes, limit }
    }

    /// Leaves the `taken` bytes of its memory to other users, but at most half of it.
    pub(crate) fn share(&mut self, taken: usize) {
        self.limit = limit_of(self.bytes.saturating_sub(taken as u64).max(self.bytes / 2));
    }

    /// Finds the node at `addr`.
    pub(crate) fn find(&self, addr: Addr) -> Option<u32> {
        self.by_addr.get(&addr.identity()).copied()
    }

    pub(crate) fn get(&self, at: u32) -> &Cached {
        self.slab.get(at as usize).and_then(Option::as_ref).expect("INV-MAP-1: node handles are valid until the turn ends")
    }

    pub(crate) fn get_mut(&mut self, at: u32) -> &mut Cached {
        self.slab.get_mut(at as usize).and_then(Option::as_mut).expect("INV-MAP-1: node handles are valid until the turn ends")
    }

    /// Marks a node as used.
    pub(crate) fn touch(&mut self, at: u32) {
        if let Some(Some(cached)) = self.slab.get_mut(at as usize) {
            cached.used_lately = true;
        }
    }

    /// Counts device reads that guests' reads of a leaf needed beyond one each. Returns true, and
    /// counts from zero again, when they are `most` or more.
    pub(crate) fn count_extra_reads(&mut self, at: u32, reads: u32, most: u32) -> bool {
        let cached = self.get_mut(at);
        cached.extra_reads = cached.extra_reads.saturating_add(reads);
        let reached = cached.extra_reads >= most;
        if reached {
            cached.extra_reads = 0;
        }
        reached
    }

    /// Forgets these reads, because the leaf is about to change.
    pub(crate) fn forget_extra_reads(&mut self, at: u32) {
        self.get_mut(at).extra_reads = 0;
    }

    /// Adds a node; `dirty` as in [`Cached::dirty`].
    pub(crate) fn insert(&mut self, addr: Addr, node: Node, dirty: u64) -> u32 {
        let cached = Cached { node, addr: addr.settled(), dirty, crc: None, extra_reads: 0, used_lately: true, doomed: false };
        let at = match self.vacant.pop() {
            Some(at) => {
                if let Some(place) = self.slab.get_mut(at as usize) {
                    *place = Some(cached);
                }
                at
            }
            None => {
                self.slab.push(Some(cached));
                u32::try_from(self.slab.len() - 1).expect("fewer than 2^32 nodes in memory")
            }
        };
        self.dirty_count += usize::from(dirty != 0);
        let old = self.by_addr.insert(addr.identity(), at);
        assert!(old.is_none(), "INV-MAP-2: two nodes at one address");
        at
    }

    /// Makes a clean node dirty and moves it to a new address; its old address is no longer in use.
    pub(crate) fn rekey(&mut self, at: u32, addr: Addr, dirty: u64) {
        let cached = self.get_mut(at);
        let old = cached.addr;
        cached.addr = addr.settled();
        cached.dirty = dirty;
        cached.crc = None;
        self.dirty_count += 1;
        self.by_addr.remove(&old.identity());
        let clash = self.by_addr.insert(addr.identity(), at);
        assert!(clash.is_none(), "INV-MAP-2: two nodes at one address");
    }

    fn remove(&mut self, at: u32) {
        if let Some(cached) = self.slab.get_mut(at as usize).and_then(Option::take) {
            self.by_addr.remove(&cached.addr.identity());
            self.dirty_count -= usize::from(cached.dirty != 0);
            self.vacant.push(at);
        }
    }

    /// Removes the dead node at `addr`. A node that the running checkpoint still has to write stays
    /// until then.
    pub(crate) fn forget(&mut self, addr: Addr, generation: u64) {
        let Some(at) = self.find(addr) else { return };
        let cached = self.get_mut(at);
        if cached.dirty != 0 && cached.dirty < generation {
            cached.doomed = true;
        } else {
            self.remove(at);
        }
    }

    /// Marks a node as clean: it was written.
    pub(crate) fn written(&mut self, at: u32) {
        let cached = self.get_mut(at);
        cached.dirty = 0;
        let doomed = cached.doomed;
        self.dirty_count -= 1;
        if doomed {
            self.remove(at);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_addr.len()
    }

    pub(crate) fn dirty(&self) -> usize {
        self.dirty_count
    }

    /// Maximum number of nodes in memory.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Drops clean nodes, those not used lately first, until the limit is met. Examines each node
    /// at most twice.
    pub(crate) fn evict(&mut self) {
        let mut looks = self.slab.len() * 2;
        while self.by_addr.len() > self.limit && looks > 0 {
            looks -= 1;
            self.hand = (self.hand + 1) % self.slab.len().max(1);
            let Some(Some(cached)) = self.slab.get_mut(self.hand) else { continue };
            if cached.dirty != 0 {
                continue;
            }
            if std::mem::take(&mut cached.used_lately) {
                continue;
            }
            let at = u32::try_from(self.hand).unwrap_or(u32::MAX);
            self.remove(at);
        }
    }

    /// Returns the leaf that maps `block`, `Ok(None)` if there is none. Adds the visited nodes to
    /// `touched`.
    pub(crate) fn leaf(&mut self, root: &TreeRoot, block: u64, touched: &mut u64) -> Result<Option<u32>, Miss> {
        match self.look_up(root, block, touched)? {
            Mapped::Leaf(at) => Ok(Some(at)),
            Mapped::Hole | Mapped::Base(_) => Ok(None),
        }
    }

    /// Returns the leaf that maps `block`, or the reason why there is none. Adds the visited nodes to
    /// `touched`.
    pub(crate) fn look_up(&mut self, root: &TreeRoot, block: u64, touched: &mut u64) -> Result<Mapped, Miss> {
        if block >= capacity(root.height) {
            return Ok(Mapped::Hole);
        }
        let (mut addr, mut crc) = (root.addr, root.crc);
        let mut level = root.height;
        while level > 0 {
            level -= 1;
            if let Some(base) = addr.base() {
                return Ok(Mapped::Base(base));
            }
            if addr.is_hole() {
                return Ok(Mapped::Hole);
            }
            let Some(at) = self.find(addr) else {
                return Err(Miss { addr: addr.settled(), crc, level, index: node_index(block, level) });
            };
            *touched += 1;
            self.touch(at);
            if level == 0 {
                return Ok(Mapped::Leaf(at));
            }
            let (slot, node) = (slot_in(block, level), &self.get(at).node);
            (addr, crc) = (node.entries[slot], node.crcs[slot]);
        }
        Ok(Mapped::Hole)
    }

    /// Returns the leaf that maps `block` if all nodes above it and the leaf are in memory. Does
    /// not mark nodes as used.
    pub(crate) fn peek(&self, root: &TreeRoot, block: u64) -> Option<u32> {
        if block >= capacity(root.height) {
            return None;
        }
        let mut at = self.find(root.addr)?;
        for level in (1..root.height).rev() {
            at = self.find(self.get(at).node.entries[slot_in(block, level)])?;
        }
        Some(at)
    }

    /// Returns the first block at or after `block` that is not in a hole of the map above the leaves,
    /// and what maps it; `None` when there is none.
    pub(crate) fn next_mapped(&mut self, root: &TreeRoot, block: u64) -> Result<Option<(u64, Region)>, Miss> {
        let mut at_block = block;
        'again: while at_block < capacity(root.height) {
            let (mut addr, mut crc) = (root.addr, root.crc);
            let mut level = root.height;
            while level > 0 {
                level -= 1;
                if let Some(base) = addr.base() {
                    return Ok(Some((at_block, Region::Base { base, level })));
                }
                if addr.is_hole() {
                    // skip the blocks that this missing node of `level` would map
                    let Some(next) = (node_index(at_block, level) + 1).checked_mul(capacity(level + 1)) else { return Ok(None) };
                    at_block = next;
                    continue 'again;
                }
                let Some(at) = self.find(addr) else {
                    return Err(Miss { addr: addr.settled(), crc, level, index: node_index(at_block, level) });
                };
                self.touch(at);
                if level == 0 {
                    return Ok(Some((at_block, Region::Leaf(at))));
                }
                let (slot, node) = (slot_in(at_block, level), &self.get(at).node);
                (addr, crc) = (node.entries[slot], node.crcs[slot]);
            }
            return Ok(None);
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
