//! Changes of maps: path copying, and release of the old addresses.
//!
//! INV-BASE-1: a node that takes the place of a base has that base in each entry whose blocks the base
//! has, so a write changes what it covers and nothing beside it.

use std::rc::Rc;

use millpond_format::{Addr, BLOCK_UNITS, BlockNo, ChunkId, Coding, Epoch, FANOUT, LineageId, TreeRoot, VolumeId};
use smallvec::SmallVec;

use super::catalog::{Head, Lineage};
use super::state::Core;
use crate::Planted;
use crate::tree::{Miss, capacity, node_index, slot_in};

/// Returns the root of a map that reads as a base of so many bytes.
pub(super) fn base_root(base: VolumeId, size: u64) -> TreeRoot {
    let mut height = 1;
    while capacity(height) < size / 4096 {
        height += 1;
    }
    TreeRoot { addr: Addr::of_base(base), crc: 0, height }
}

impl Core {
    /// The lineage whose head the volume is.
    pub(crate) fn lineage_of(&self, volume: VolumeId) -> Option<LineageId> {
        self.catalog.volumes.get(&volume).map(|v| v.lineage)
    }

    fn lineage_mut(&mut self, id: LineageId) -> &mut Lineage {
        self.catalog.lineages.get_mut(&id).expect("INV-CAT-1: a volume's lineage exists")
    }

    pub(super) fn head(&self, id: LineageId) -> Head {
        self.catalog.lineages.get(&id).and_then(|l| l.head).expect("INV-CAT-2: a volume's lineage has a head")
    }

    pub(super) fn set_root(&mut self, id: LineageId, root: TreeRoot) {
        if let Some(head) = &mut self.lineage_mut(id).head {
            head.root = root;
        }
    }

    /// Returns the leaf of a head that maps `block`, if it exists.
    pub(crate) fn head_leaf(&mut self, lineage: LineageId, block: u64) -> Result<Option<u32>, Miss> {
        let root = self.head(lineage).root;
        self.nodes.leaf(&root, block, &mut self.nodes_touched)
    }

    /// Returns the leaf that maps `block`, created or copied if necessary, so that it may be
    /// changed. After a miss nothing is changed.
    pub(crate) fn leaf_mut(&mut self, lineage: LineageId, block: u64) -> Result<u32, Miss> {
        let last_snap = self.lineage_mut(lineage).last_snap;
        if let Some(leaf) = self.head_leaf(lineage, block)?
            && self.editable(leaf, last_snap)
        {
            self.nodes.forget_extra_reads(leaf);
            return Ok(leaf);
        }
        let leaf = self.node_mut(lineage, block, 0);
        self.nodes.forget_extra_reads(leaf);
        Ok(leaf)
    }

    /// Returns the node of a level on the path to `block`, created or copied if necessary, so that it
    /// may be changed. The nodes of the path down to it that exist must be in memory.
    pub(super) fn node_mut(&mut self, lineage: LineageId, block: u64, to: u8) -> u32 {
        let last_snap = self.lineage_mut(lineage).last_snap;
        let mut root = self.head(lineage).root;
        while root.height == 0 || block >= capacity(root.height) {
            if root.addr.is_hole() {
                root.height += 1;
                continue;
            }
            let (addr, at) = self.new_node(root.height, 0, lineage, Addr::HOLE);
            let top = &mut self.nodes.get_mut(at).node;
            top.entries[0] = root.addr;
            top.crcs[0] = root.crc;
            root = TreeRoot { addr: addr.pending(), crc: 0, height: root.height + 1 };
        }
        self.set_root(lineage, root);
        let (mut parent, mut addr): (Option<(u32, usize)>, Addr) = (None, root.addr);
        for level in (0..root.height).rev() {
            let index = node_index(block, level);
            let (new_addr, at) = if !addr.is_some() {
                self.new_node(level, index, lineage, addr)
            } else {
                let at = self.nodes.find(addr).expect("INV-MAP-4: the path was walked a moment ago");
                self.own(lineage, at, last_snap)
            };
            if new_addr.identity() != addr.identity() {
                match parent {
                    None => self.set_root(lineage, TreeRoot { addr: new_addr.pending(), crc: 0, height: root.height }),
                    Some((up, slot)) => {
                        let node = &mut self.nodes.get_mut(up).node;
                        node.entries[slot] = new_addr.pending();
                        node.crcs[slot] = 0;
                    }
                }
            }
            if level == to {
                return at;
            }
            let slot = slot_in(block, level);
            parent = Some((at, slot));
            addr = self.nodes.get(at).node.entries[slot];
        }
        unreachable!("INV-MAP-8: a tree has a node of each level below its height")
    }

    /// True when a node may be changed in place: no snapshot has it (I4), and no checkpoint has it
    /// or is writing it (I1).
    fn editable(&self, at: u32, last_snap: Epoch) -> bool {
        let cached = self.nodes.get(at);
        cached.dirty == self.generation && cached.node.epoch > last_snap
    }

    /// Makes a node editable: in place, under a new address, or as a copy when the old one is still
    /// needed.
    fn own(&mut self, lineage: LineageId, at: u32, last_snap: Epoch) -> (Addr, u32) {
        if self.editable(at, last_snap) {
            return (self.nodes.get(at).addr, at);
        }
        let cached = self.nodes.get(at);
        let (old, born, dirty, level) = (cached.addr, cached.node.epoch, cached.dirty, cached.node.level);
        let addr = self.new_node_addr(level);
        let epoch = self.epoch;
        if dirty == 0 && born > last_snap {
            self.nodes.rekey(at, addr, self.generation);
            let node = &mut self.nodes.get_mut(at).node;
            node.epoch = epoch;
            node.lineage = lineage;
            self.space.free(old);
            return (addr, at);
        }
        let mut node = self.nodes.get(at).node.clone();
        node.epoch = epoch;
        node.lineage = lineage;
        let copy = self.nodes.insert(addr, node, self.generation);
        if born > last_snap {
            self.free_node(old);
        } else {
            self.bury(lineage, born, old, false);
        }
        (addr, copy)
    }

    /// Adds a dead address that a snapshot still needs to the head's deadlist.
    fn bury(&mut self, lineage: LineageId, born: Epoch, addr: Addr, data: bool) {
        self.deaths += 1;
        if self.planted == Some(Planted::ForgetDeadlistEntry) && cfg!(feature = "planted") && data && self.deaths.is_multiple_of(7) {
            return;
        }
        let slots = self.space.chunks.get(addr.chunk()).map_or(1, |chunk| chunk.slots_of(addr));
        let (pieces, longest) = (Rc::clone(&self.pieces), self.longest_tail());
        let list = &mut self.lineage_mut(lineage).deadlist;
        let before = list.share();
        list.list_mut(&pieces).insert(born, addr, slots, data, &pieces, longest);
        let now = list.share();
        self.list_changed(before, now);
    }

    /// Frees a block's old address, or adds it to the head's deadlist.
    pub(super) fn release(&mut self, lineage: LineageId, addr: Addr) {
        let Some(born) = self.space.chunks.get(addr.chunk()).map(|chunk| chunk.epoch) else { return };
        if born > self.lineage_mut(lineage).last_snap {
            self.catalog.shrink(lineage, u64::from(addr.units()));
            self.space.free(addr);
        } else {
            self.bury(lineage, born, addr, true);
        }
    }

    /// Counts one mapped block less.
    pub(super) fn unmapped_one(&mut self, lineage: LineageId) {
        if let Some(head) = &mut self.lineage_mut(lineage).head {
            head.mapped -= 1;
        }
    }

    /// Maps a block to new data.
    pub(crate) fn set_block(&mut self, lineage: LineageId, block: BlockNo, addr: Addr, crc: u32) -> Result<(), Miss> {
        let leaf = self.leaf_mut(lineage, block.0)?;
        self.set_in_leaf(lineage, leaf, block, addr, crc);
        Ok(())
    }

    /// Maps a block to new data in a leaf from [`leaf_mut`](Self::leaf_mut).
    pub(crate) fn set_in_leaf(&mut self, lineage: LineageId, leaf: u32, block: BlockNo, addr: Addr, crc: u32) {
        let slot = slot_in(block.0, 0);
        let node = &mut self.nodes.get_mut(leaf).node;
        let old = std::mem::replace(&mut node.entries[slot], addr);
        node.crcs[slot] = crc;
        let line = self.catalog.grow(lineage, u64::from(addr.units()));
        if old.is_some() {
            self.release(lineage, old);
        } else if let Some(head) = line.and_then(|line| line.head.as_mut()) {
            head.mapped += 1;
        }
    }

    /// Maps blocks from `first` on to uncompressed data in neighbouring slots of `chunk`, from
    /// `slot` on, with a checksum for each. Their leaves must be in memory.
    pub(crate) fn set_run(&mut self, lineage: LineageId, first: BlockNo, chunk: ChunkId, slot: u32, crcs: &[u32]) -> Result<(), Miss> {
        let (mut block, mut slot, mut rest) = (first.0, slot, crcs);
        while !rest.is_empty() {
            let leaf = self.leaf_mut(lineage, block)?;
            let from = slot_in(block, 0);
            let (now, later) = rest.split_at(rest.len().min(FANOUT - from));
            let node = &mut self.nodes.get_mut(leaf).node;
            let mut old: SmallVec<[Addr; 32]> = SmallVec::with_capacity(now.len());
            for (entry, at) in node.entries[from..from + now.len()].iter_mut().zip(slot..) {
                old.push(std::mem::replace(entry, Addr::new(chunk, at, BLOCK_UNITS, Coding::Raw)));
            }
            node.crcs[from..from + now.len()].copy_from_slice(now);
            let line = self.catalog.grow(lineage, now.len() as u64 * u64::from(BLOCK_UNITS));
            if let Some(head) = line.and_then(|line| line.head.as_mut()) {
                head.mapped += old.iter().filter(|addr| !addr.is_some()).count() as u64;
            }
            self.release_all(lineage, &old);
            block += now.len() as u64;
            slot += now.len() as u32;
            rest = later;
        }
        Ok(())
    }

    /// Releases old addresses; neighbours of one chunk are freed together.
    fn release_all(&mut self, lineage: LineageId, old: &[Addr]) {
        for group in old.chunk_by(|a, b| a.is_some() && b.is_some() && a.chunk() == b.chunk()) {
            let Some(addr) = group.first().copied().filter(|addr| addr.is_some()) else { continue };
            let Some((born, grain)) = self.space.chunks.get(addr.chunk()).map(|chunk| (chunk.epoch, u32::from(chunk.grain))) else {
                continue;
            };
            if born > self.lineage_mut(lineage).last_snap {
                let units: u64 = group.iter().map(|addr| u64::from(addr.units())).sum();
                self.catalog.shrink(lineage, units);
                self.space.free_slots(addr.chunk(), group.iter().flat_map(|addr| addr.slot()..addr.slot() + addr.units() / grain));
            } else {
                group.iter().for_each(|addr| self.bury(lineage, born, *addr, true));
            }
        }
    }
}

#[cfg(test)]
mod tests;
