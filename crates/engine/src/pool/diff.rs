//! Differences between two states: both trees side by side, equal addresses passed over (never by birth alone: holes have none).

use millpond_block::Tag;
use millpond_format::{Addr, TreeRoot};

use super::op::{BarrierKind, Owner, Target, Work};
use super::state::Pool;
use crate::tree::{Miss, capacity, node_index, slot_in};
use crate::{CommandError, DiffExtent};

/// Subtrees compared per turn.
const STEPS: usize = 256;
/// How often a node may have to be read for one step before it counts as unreadable.
const TRIES: u32 = 4;

/// A comparison on its way.
pub(crate) struct Diff {
    tag: Tag,
    older: TreeRoot,
    newer: TreeRoot,
    next: u64,
    end: u64,
    found: Vec<DiffExtent>,
    /// Operation that waits for a node, and how often in a row one was missing.
    waiting: Option<u32>,
    tries: u32,
}

/// One side of a comparison on its way down.
#[derive(Clone, Copy)]
struct Side {
    addr: Addr,
    crc: u32,
    height: u8,
}

impl Pool {
    /// Starts to compare; the answer comes by `pop_diff`.
    pub(crate) fn start_diff(&mut self, tag: Tag, older: Option<Target>, newer: Target) {
        let older = older.map_or(Some(TreeRoot::default()), |target| self.root_of(target));
        let size = self.geometry(newer).map(|(geometry, _)| geometry.size);
        let (Some(older), Some(newer), Some(size)) = (older, self.root_of(newer), size) else {
            return self.diffs.push_back((tag, Err(CommandError::NotFound("one of the two".into()))));
        };
        let diff = Diff { tag, older, newer, next: 0, end: size / 4096, found: Vec::new(), waiting: None, tries: 0 };
        self.running_diffs.push(diff);
    }

    /// Goes on with the comparisons. A head that is written meanwhile is compared as far as it was when it was looked at.
    pub(crate) fn step_diffs(&mut self) {
        for mut diff in std::mem::take(&mut self.running_diffs) {
            if diff.waiting.is_some_and(|op| self.ops.get(op).is_some()) {
                self.running_diffs.push(diff);
                continue;
            }
            diff.waiting = None;
            let before = diff.next;
            match self.step_diff(&mut diff) {
                Ok(true) => self.diffs.push_back((diff.tag, Ok(diff.found))),
                Ok(false) => {
                    diff.tries = 0;
                    self.running_diffs.push(diff);
                }
                Err(_) if diff.tries >= TRIES && diff.next == before => {
                    let error = CommandError::Faulted("a map node cannot be read".into());
                    self.diffs.push_back((diff.tag, Err(error)));
                }
                Err(miss) => {
                    diff.tries = if diff.next == before { diff.tries + 1 } else { 0 };
                    let op = self.new_op(Owner::Nobody, Work::Barrier(BarrierKind::Clear), false);
                    diff.waiting = Some(op);
                    self.load_node(miss, Some(op));
                    self.running_diffs.push(diff);
                }
            }
        }
    }

    fn step_diff(&mut self, diff: &mut Diff) -> Result<bool, Miss> {
        for _ in 0..STEPS {
            if diff.next >= diff.end {
                return Ok(true);
            }
            diff.next = self.compare(diff.older, diff.newer, diff.next, diff.end, &mut diff.found)?;
        }
        Ok(false)
    }

    /// Compares the largest aligned subtree at `block` that is the same, or the leaves there. Gives back where to go on.
    fn compare(&mut self, older: TreeRoot, newer: TreeRoot, block: u64, end: u64, found: &mut Vec<DiffExtent>) -> Result<u64, Miss> {
        // a lower tree waits until the other one came down to its level; beyond its end there is nothing
        let side = |root: TreeRoot| match block < capacity(root.height) {
            true => Side { addr: root.addr, crc: root.crc, height: root.height },
            false => Side { addr: Addr::HOLE, crc: 0, height: 0 },
        };
        let mut sides = [side(older), side(newer)];
        for level in (0..older.height.max(newer.height).max(1)).rev() {
            let span = capacity(level + 1);
            let stop = ((block / span + 1) * span).min(end);
            let [old, new] = sides;
            let same_level = old.height == new.height || old.addr.is_hole() || new.addr.is_hole();
            if same_level && old.addr.identity() == new.addr.identity() {
                return Ok(stop);
            }
            let mut leaves = [None, None];
            for (side, leaf) in sides.iter_mut().zip(&mut leaves) {
                if side.height <= level || side.addr.is_hole() {
                    continue;
                }
                let Some(at) = self.core.nodes.find(side.addr) else {
                    return Err(Miss { addr: side.addr.settled(), crc: side.crc, level, index: node_index(block, level) });
                };
                self.core.nodes.touch(at);
                let (slot, node) = (slot_in(block, level), &self.core.nodes.get(at).node);
                *leaf = Some(at);
                *side = Side { addr: node.entries[slot], crc: node.crcs[slot], height: level };
            }
            if level == 0 {
                for at in block..stop {
                    let entry = |leaf: Option<u32>| leaf.map_or(Addr::HOLE, |leaf| self.core.nodes.get(leaf).node.entries[slot_in(at, 0)]);
                    let [was, is] = leaves.map(entry);
                    if was.identity() != is.identity() {
                        push(found, at, is.is_some());
                    }
                }
                return Ok(stop);
            }
        }
        Ok(end)
    }
}

fn push(found: &mut Vec<DiffExtent>, block: u64, data: bool) {
    match found.last_mut() {
        Some(last) if last.data == data && last.offset + last.length == block * 4096 => last.length += 4096,
        _ => found.push(DiffExtent { offset: block * 4096, length: 4096, data }),
    }
}
