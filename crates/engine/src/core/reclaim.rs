//! Frees space after destroys: deadlists slot by slot, newest versions of lineages by walking their
//! maps.

use std::rc::Rc;

use millpond_format::{Addr, BlockNo, Coding, Epoch, FANOUT, LineageId, NODE_UNITS, TreeRoot};

use super::state::Core;
use crate::space::{Deadlist, NODE_GRAIN, Need, Piece};
use crate::tree::{Miss, capacity, node_index, slot_in};

impl Core {
    /// Frees up to `chunks` chunks' parts of waiting deadlists. Returns the pieces that have to be
    /// read for the next call, the next one and the one after it, unless they are in memory. Pieces
    /// that cannot be read are not freed.
    pub(crate) fn free_some(&mut self, chunks: usize) -> Freed {
        for _ in 0..chunks {
            let Some((at, (lineage, list))) = self.catalog.next_free() else { return Freed::default() };
            if list.is_shared() {
                // the running checkpoint has yet to encode it
                return Freed::default();
            }
            let lineage = *lineage;
            if let Some(piece) = list.list().lacks() {
                if piece.take_failure(Need::Freeing) {
                    list.change_order(Deadlist::set_aside);
                    continue;
                }
                return Freed { next: Some(piece), after: list.list().next_piece() };
            }
            let popped = list.list_mut(&self.pieces).pop();
            match popped {
                Some((chunk, dead)) => {
                    self.catalog.backlog -= u64::from(dead.units);
                    if self.space.chunks.get(chunk).is_some_and(|c| c.grain == NODE_GRAIN) {
                        let generation = self.generation;
                        for slot in dead.slots.iter() {
                            self.nodes.forget(Addr::new(chunk, slot, NODE_UNITS, Coding::Raw), generation);
                        }
                    }
                    self.space.free_unlogged(chunk, dead.slots.iter());
                    self.catalog.shrink(lineage, u64::from(dead.units));
                }
                None if list.list().has_only_unreadable() => {}
                None => {
                    let ended = self.catalog.end_free(at);
                    ended.into_iter().for_each(|list| self.retire(list));
                }
            }
        }
        let after = self.catalog.next_free().and_then(|(_, (_, list))| list.list().next_piece());
        Freed { next: None, after: after.filter(|piece| !piece.is_here()) }
    }

    /// True when this address was born after `bound`.
    fn young(&self, addr: Addr, bound: Epoch) -> bool {
        addr.is_some() && self.space.chunks.get(addr.chunk()).is_some_and(|chunk| chunk.epoch > bound)
    }

    /// Returns how far a walk can go in `steps` steps, and whether that is the end. All nodes that
    /// it needs are in memory then.
    pub(crate) fn plan_walk(&mut self, id: u64, steps: usize) -> Result<Option<(BlockNo, bool)>, Miss> {
        let Some(walk) = self.catalog.walks.get(&id) else { return Ok(None) };
        let (root, bound, mut at) = (walk.root, walk.bound, walk.cursor.0);
        for _ in 0..steps {
            match self.walk_step(&root, at, bound)? {
                Step::Leaf { next, .. } | Step::Inner { next, .. } => at = next,
                Step::End => {
                    self.upper_nodes(&root, bound)?;
                    return Ok(Some((BlockNo(capacity(root.height)), true)));
                }
            }
        }
        Ok(Some((BlockNo(at), false)))
    }

    /// Frees the nodes and blocks of a walk before `to`; with `done`, the upper nodes too. After a
    /// miss it can be called again.
    pub(crate) fn walk_to(&mut self, id: u64, to: BlockNo, done: bool) -> Result<(), Miss> {
        loop {
            let Some(walk) = self.catalog.walks.get(&id) else { return Ok(()) };
            let (root, bound, at, lineage) = (walk.root, walk.bound, walk.cursor.0, walk.lineage);
            if at >= to.0 {
                break;
            }
            let (next, inner) = match self.walk_step(&root, at, bound)? {
                Step::Leaf { leaf, next, inner } => {
                    self.free_leaf(lineage, leaf, bound);
                    (next, inner)
                }
                Step::Inner { next, inner } => (next, Some(inner)),
                Step::End => break,
            };
            if let Some(inner) = inner {
                self.free_node(inner);
            }
            if let Some(walk) = self.catalog.walks.get_mut(&id) {
                walk.cursor = BlockNo(next);
            }
        }
        if done && let Some((root, bound)) = self.catalog.walks.get(&id).map(|walk| (walk.root, walk.bound)) {
            for addr in self.upper_nodes(&root, bound)? {
                self.free_node(addr);
            }
            self.catalog.walks.remove(&id);
        }
        Ok(())
    }

    /// Returns the next node to free at or after block `at`: a leaf, or a level-1 node without any
    /// young leaf left. Subtrees that were not born after `bound` are skipped.
    fn walk_step(&mut self, root: &TreeRoot, mut at: u64, bound: Epoch) -> Result<Step, Miss> {
        let floor = u8::from(root.height > 1);
        'again: while at < capacity(root.height) {
            let (mut addr, mut crc) = (root.addr, root.crc);
            for level in (floor..root.height).rev() {
                if !self.young(addr, bound) {
                    at = (node_index(at, level) + 1).saturating_mul(capacity(level + 1));
                    continue 'again;
                }
                let handle = self.resident(addr, crc, level, at)?;
                let node = &self.nodes.get(handle).node;
                if level == 0 {
                    return Ok(Step::Leaf { leaf: handle, next: FANOUT as u64, inner: None });
                }
                if level == 1 {
                    let (entries, crcs) = (node.entries.clone(), node.crcs.clone());
                    let first = at / capacity(2) * capacity(2);
                    let end = first + capacity(2);
                    let mut young = (slot_in(at, 1)..FANOUT).filter(|slot| self.young(entries[*slot], bound));
                    let Some(slot) = young.next() else { return Ok(Step::Inner { next: end, inner: addr }) };
                    let more = young.next().is_some();
                    let block = first + slot as u64 * FANOUT as u64;
                    let leaf = self.resident(entries[slot], crcs[slot], 0, block)?;
                    let (next, inner) = if more { (block + FANOUT as u64, None) } else { (end, Some(addr)) };
                    return Ok(Step::Leaf { leaf, next, inner });
                }
                let slot = slot_in(at, level);
                (addr, crc) = (node.entries[slot], node.crcs[slot]);
            }
        }
        Ok(Step::End)
    }

    fn resident(&mut self, addr: Addr, crc: u32, level: u8, block: u64) -> Result<u32, Miss> {
        let found = self.nodes.find(addr);
        let handle = found.ok_or(Miss { addr: addr.settled(), crc, level, index: node_index(block, level) })?;
        self.nodes.touch(handle);
        Ok(handle)
    }

    /// Addresses of the young nodes of level 2 and higher; the walk has freed the lower ones.
    fn upper_nodes(&mut self, root: &TreeRoot, bound: Epoch) -> Result<Vec<Addr>, Miss> {
        let mut found = Vec::new();
        let mut todo = vec![(root.addr, root.crc, root.height, 0u64)];
        while let Some((addr, crc, height, block)) = todo.pop() {
            if height < 3 || !self.young(addr, bound) {
                continue;
            }
            found.push(addr);
            if height > 3 {
                let handle = self.resident(addr, crc, height - 1, block)?;
                let node = &self.nodes.get(handle).node;
                let children = node.entries.iter().zip(node.crcs.iter()).zip(0u64..);
                todo.extend(children.map(|((addr, crc), i)| (*addr, *crc, height - 1, block + i * capacity(height - 1))));
            }
        }
        Ok(found)
    }

    /// Frees a leaf, and the blocks in it that were born after `bound`.
    fn free_leaf(&mut self, lineage: LineageId, leaf: u32, bound: Epoch) {
        let cached = self.nodes.get(leaf);
        let (addr, entries) = (cached.addr, cached.node.entries.clone());
        let mut units = 0;
        for block in entries.iter().filter(|block| block.is_some()) {
            if self.young(*block, bound) {
                units += u64::from(block.units());
                self.space.free(*block);
            }
        }
        self.catalog.shrink(lineage, units);
        self.free_node(addr);
    }
}

/// Pieces to be read so that freeing can continue.
#[derive(Debug, Default)]
pub(crate) struct Freed {
    /// Nothing can be freed before this piece was read.
    pub(crate) next: Option<Rc<Piece>>,
    /// The piece after it.
    pub(crate) after: Option<Rc<Piece>>,
}

/// The next step of a walk.
enum Step {
    /// Free this leaf, then perhaps the node above it, and continue at `next`.
    Leaf { leaf: u32, next: u64, inner: Option<Addr> },
    /// Free this level-1 node and continue at `next`.
    Inner { next: u64, inner: Addr },
    /// Only upper nodes are left.
    End,
}
