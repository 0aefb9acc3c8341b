//! Maximum space of the volumes and snapshots, counted from the writes of guests, not from the
//! figures of the system.

use millpond_engine::{SnapshotId, VolumeId};
use millpond_format::NODE_BYTES;
use smallvec::SmallVec;

use super::history::{Cell, Value, ZERO};
use super::{BLOCK, Frozen, Oracle, Snapshot};
use crate::rng::mix;
use crate::trace::NEVER;

/// Minimum bytes covered by one map node.
const NODE_COVERS: u64 = 2 << 20;
/// Allowance for nodes above the leaves and for nodes that are being replaced.
const NODES_BESIDES: u64 = 4;

/// Versions of blocks. A version shared by heads and snapshots counts once.
#[derive(Default)]
struct Blocks(Vec<u64>);

impl Blocks {
    /// Adds the possible versions of a block: as many as its most uncertain cell has values.
    fn count(&mut self, block: usize, cells: impl Iterator<Item = SmallVec<[Value; 2]>>) {
        let mut states: SmallVec<[u64; 2]> = SmallVec::from_elem(0, 1);
        for (at, values) in cells.enumerate() {
            let newest = states.last().copied().unwrap_or(0);
            states.resize(states.len().max(values.len()), newest);
            for (nth, state) in states.iter_mut().enumerate() {
                let value = values.get(nth).or(values.last()).copied().unwrap_or(ZERO);
                // A block of zeroes takes no space.
                *state ^= if value == ZERO { 0 } else { mix(mix(value) ^ at as u64) };
            }
        }
        self.0.extend(states.into_iter().filter(|state| *state != 0).map(|state| mix(state) ^ mix(block as u64)));
    }

    fn bytes(mut self) -> u64 {
        self.0.sort_unstable();
        self.0.dedup();
        self.0.len() as u64 * BLOCK
    }
}

impl Oracle {
    /// Returns the maximum bytes of all heads and snapshots: each version of a block once, writes
    /// in flight included, and the map nodes.
    pub fn held_bytes(&self) -> u64 {
        self.held(|_| true, self.snapshots.values())
    }

    /// Returns the same with destroyed snapshots that volumes were rolled back to: these may stay
    /// hidden.
    pub fn held_bytes_and_hidden(&self) -> u64 {
        self.held(|_| true, self.snapshots.values().chain(self.hidden.values()))
    }

    /// Returns the same for one volume and its snapshots.
    pub fn held_bytes_of(&self, id: VolumeId) -> u64 {
        self.held(|volume| volume == id, self.snapshots.values())
    }

    fn held<'a>(&'a self, of: impl Fn(VolumeId) -> bool, snapshots: impl Iterator<Item = &'a Snapshot>) -> u64 {
        let mut blocks = Blocks::default();
        let per_block = self.grid.per_block() as usize;
        let mut nodes = 0;
        for volume in self.volumes.values().filter(|volume| of(volume.id)) {
            nodes += volume.size().div_ceil(NODE_COVERS) + NODES_BESIDES;
            for (at, cells) in volume.cells.chunks(per_block).enumerate() {
                blocks.count(at, cells.iter().map(|cell| self.values(cell)));
            }
        }
        for snapshot in snapshots.filter(|snapshot| of(snapshot.volume)) {
            nodes += snapshot.size().div_ceil(NODE_COVERS) + NODES_BESIDES;
            // A write that was in flight at the snapshot and is acknowledged now may come after it;
            // then the snapshot holds the older value.
            let values = |cell: &Frozen| match (cell, self.cuts.get(snapshot.cut)) {
                (Frozen::Known(value), _) => SmallVec::from_elem(*value, 1),
                (Frozen::Open(cell), Some(cut)) => cell.possible(cut, &self.pieces),
                (Frozen::Open(cell), None) => self.values(cell),
            };
            for (at, cells) in snapshot.cells.chunks(per_block).enumerate() {
                blocks.count(at, cells.iter().map(values));
            }
        }
        blocks.bytes() + nodes * NODE_BYTES as u64
    }

    /// Returns the bytes of blocks that only this snapshot holds; `None` while that is uncertain.
    pub fn unique_bytes(&self, id: SnapshotId) -> Option<u64> {
        let per_block = self.grid.per_block() as usize;
        let known = |cells: &[Frozen]| cells.iter().map(|cell| if let Frozen::Known(value) = cell { Some(*value) } else { None }).collect();
        let versions = |cells: &[Frozen]| cells.chunks(per_block).map(known).collect::<Option<Vec<Vec<Value>>>>();
        let own = versions(&self.snapshots.get(&id)?.cells)?;
        let mut unique: Vec<bool> = own.iter().map(|block| block.iter().any(|value| *value != ZERO)).collect();
        for (_, other) in self.snapshots.iter().filter(|(other, _)| **other != id) {
            let other = versions(&other.cells)?;
            unique.iter_mut().zip(own.iter().zip(&other)).for_each(|(unique, (own, other))| *unique &= own != other);
        }
        for volume in self.volumes.values() {
            let heads = volume.cells.chunks(per_block).map(|block| block.iter().map(Cell::certain).collect::<Option<Vec<Value>>>());
            let heads: Option<Vec<Vec<Value>>> = heads.collect();
            unique.iter_mut().zip(own.iter().zip(&heads?)).for_each(|(unique, (own, head))| *unique &= own != head);
        }
        Some(unique.into_iter().filter(|unique| *unique).count() as u64 * BLOCK)
    }

    /// Returns the possible values of a cell, the newest last: the newest acknowledged one, and
    /// those of requests in flight or failed.
    fn values(&self, cell: &Cell) -> SmallVec<[Value; 2]> {
        let newest =
            cell.pieces().map(|id| self.pieces.get(id)).filter(|piece| piece.high < NEVER && !piece.dead).map(|piece| piece.low).max();
        let alive = cell.pieces().map(|id| self.pieces.get(id)).filter(|piece| !piece.dead && newest.is_none_or(|low| piece.high >= low));
        let base = cell.base().filter(|_| newest.is_none());
        base.into_iter().chain(alive.map(|piece| piece.value)).collect()
    }
}

#[cfg(test)]
mod tests;
