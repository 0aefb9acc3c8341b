//! Clears of ranges in maps: entries become holes, nodes without entries are removed.
//!
//! A range that reads as a base is cleared by subtrees: one that lies within the range becomes a hole
//! as a whole, one that lies in it in part is replaced by a node first. So the work depends on the
//! depth of the map, not on the length of the range.

use std::ops::Range;

use millpond_format::{Addr, FANOUT, LineageId, TreeRoot};

use super::state::Core;
use crate::Planted;
use crate::tree::{Mapped, Miss, Region, capacity, node_index, slot_in};

/// The next part of a map to be cleared.
#[derive(Debug)]
enum Part {
    /// Blocks of a leaf.
    Leaf { leaf: u32, blocks: Range<u64> },
    /// Blocks that read as those of a base.
    Base(BasePart),
}

/// Blocks of one entry that read as those of a base.
#[derive(Debug)]
struct BasePart {
    blocks: Range<u64>,
    /// Level of the node that the entry stands in place of.
    level: u8,
    /// End of all blocks of the entry, which may lie beyond the end of the base.
    end: u64,
    /// True when all blocks of the base in the entry are to be cleared.
    whole: bool,
    /// A subtree of the entry that begins at the first block and ends here or before is cleared whole.
    limit: u64,
}

impl BasePart {
    /// Returns the end of the largest subtree at the first block that is cleared whole, or of the
    /// blocks of one leaf.
    fn step(&self) -> u64 {
        let at = self.blocks.start;
        if self.whole {
            return self.blocks.end;
        }
        let ends = (1..=self.level).rev().map(capacity).filter(|span| at.is_multiple_of(*span)).map(|span| at.saturating_add(span));
        let leaf = (at / FANOUT as u64 + 1) * FANOUT as u64;
        ends.into_iter().find(|end| *end <= self.limit).unwrap_or(leaf).min(self.blocks.end)
    }
}

impl Core {
    /// Returns the first part of a map in a range of blocks that is no hole; `None` when there is none.
    fn next_part(&mut self, root: &TreeRoot, range: &Range<u64>) -> Result<Option<Part>, Miss> {
        let mut from = range.start;
        while let Some((block, region)) = self.nodes.next_mapped(root, from)?.filter(|(block, _)| *block < range.end) {
            let (base, level) = match region {
                Region::Leaf(leaf) => {
                    let stop = ((block / FANOUT as u64 + 1) * FANOUT as u64).min(range.end);
                    return Ok(Some(Part::Leaf { leaf, blocks: block..stop }));
                }
                Region::Base { base, level } => (base, level),
            };
            let span = capacity(level + 1);
            let first = node_index(block, level).saturating_mul(span);
            let end = first.saturating_add(span);
            let within = end.min(self.catalog.base_blocks(base));
            if block < within {
                let (whole, limit) = (block == first && within <= range.end, if within <= range.end { end } else { range.end });
                return Ok(Some(Part::Base(BasePart { blocks: block..within.min(range.end), level, end, whole, limit })));
            }
            from = end;
        }
        Ok(None)
    }

    /// Returns whether the map has anything to be cleared in a range of blocks.
    ///
    /// # Errors
    /// The node that must be read before.
    pub(crate) fn maps_any(&mut self, lineage: LineageId, blocks: Range<u64>) -> Result<bool, Miss> {
        let root = self.head(lineage).root;
        Ok(self.next_part(&root, &blocks)?.is_some())
    }

    /// Returns whether a block reads as that of a base without a leaf.
    pub(crate) fn reads_as_base(&mut self, lineage: LineageId, block: u64) -> bool {
        let root = self.head(lineage).root;
        matches!(self.nodes.look_up(&root, block, &mut 0), Ok(Mapped::Base(_)))
    }

    /// Returns how far a clear from `start` to `end` can go in one step: to the end of the
    /// `leaves`-th leaf that exists, or subtree that reads as a base. All nodes that it needs are in
    /// memory then.
    ///
    /// # Errors
    /// The node that must be read before.
    pub(crate) fn plan_clear(&mut self, lineage: LineageId, start: u64, end: u64, leaves: usize) -> Result<u64, Miss> {
        let root = self.head(lineage).root;
        let mut at = start;
        for _ in 0..leaves {
            at = match self.next_part(&root, &(at..end))? {
                None => return Ok(end),
                Some(Part::Leaf { blocks, .. }) => (blocks.start / FANOUT as u64 + 1) * FANOUT as u64,
                Some(Part::Base(part)) => part.step(),
            };
        }
        Ok(at.min(end))
    }

    /// Makes blocks from `start` to `end` read as zeroes. When the first node misses, nothing is
    /// changed; after a later miss the call can be repeated.
    ///
    /// # Errors
    /// The node that must be read before.
    pub(crate) fn clear(&mut self, lineage: LineageId, start: u64, end: u64) -> Result<(), Miss> {
        let mut at = start;
        // what comes after the range need not be in memory
        while at < end {
            let root = self.head(lineage).root;
            match self.next_part(&root, &(at..end))? {
                None => break,
                Some(Part::Leaf { leaf, blocks }) => {
                    at = blocks.end;
                    self.clear_leaf(lineage, leaf, &blocks)?;
                }
                Some(Part::Base(part)) if part.whole || self.planted == Some(Planted::BaseClearWhole) => {
                    at = part.end;
                    self.clear_entry(lineage, part.blocks.start, part.level);
                }
                // its parts follow
                Some(Part::Base(part)) => _ = self.node_mut(lineage, part.blocks.start, part.level),
            }
        }
        Ok(())
    }

    /// Makes blocks of a leaf holes.
    fn clear_leaf(&mut self, lineage: LineageId, leaf: u32, blocks: &Range<u64>) -> Result<(), Miss> {
        let first = slot_in(blocks.start, 0);
        let range = first..first + usize::try_from(blocks.end - blocks.start).unwrap_or(FANOUT);
        if self.nodes.get(leaf).node.entries[range.clone()].iter().all(|addr| addr.is_hole()) {
            return Ok(());
        }
        let leaf = self.leaf_mut(lineage, blocks.start)?;
        for slot in range {
            let node = &mut self.nodes.get_mut(leaf).node;
            let old = std::mem::take(&mut node.entries[slot]);
            node.crcs[slot] = 0;
            if old.is_some() {
                self.unmapped_one(lineage);
                self.release(lineage, old);
            }
        }
        self.prune(lineage, blocks.start, 0);
        Ok(())
    }

    /// Makes the entry that stands in place of the node of `level` on the path to `block` a hole.
    fn clear_entry(&mut self, lineage: LineageId, block: u64, level: u8) {
        if level + 1 == self.head(lineage).root.height {
            return self.set_root(lineage, TreeRoot::default());
        }
        let at = self.node_mut(lineage, block, level + 1);
        let (slot, node) = (slot_in(block, level + 1), &mut self.nodes.get_mut(at).node);
        node.entries[slot] = Addr::HOLE;
        node.crcs[slot] = 0;
        self.prune(lineage, block, level + 1);
    }

    /// Removes empty nodes on the path to `block` from the map, from the node of level `from` up. The
    /// path must be editable.
    fn prune(&mut self, lineage: LineageId, block: u64, from: u8) {
        let root = self.head(lineage).root;
        let mut path: Vec<(u32, usize)> = Vec::with_capacity(usize::from(root.height));
        let mut addr = root.addr;
        for level in (from..root.height).rev() {
            let Some(at) = self.nodes.find(addr) else { return };
            let slot = slot_in(block, level);
            path.push((at, slot));
            addr = self.nodes.get(at).node.entries[slot];
        }
        while let Some((at, _)) = path.pop() {
            let cached = self.nodes.get(at);
            if cached.node.entries.iter().any(|addr| !addr.is_hole()) {
                return;
            }
            let addr = cached.addr;
            self.free_node(addr);
            match path.last() {
                None => self.set_root(lineage, TreeRoot::default()),
                Some((up, slot)) => {
                    let node = &mut self.nodes.get_mut(*up).node;
                    node.entries[*slot] = Addr::HOLE;
                    node.crcs[*slot] = 0;
                }
            }
        }
    }
}
