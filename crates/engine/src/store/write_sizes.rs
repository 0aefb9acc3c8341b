//! The steps of a census (`pool/write_sizes.rs`): blocks by the size of the request that wrote them,
//! version by version.

use std::collections::BTreeMap;

use millpond_block::DiskError;
use millpond_format::{Addr, Epoch, LineageId, NODE_BYTES, SegmentId, SnapshotId, TreeRoot, VolumeId};

use super::Store;
use super::usage::Spans;
use crate::core::Catalog;
use crate::log::Stream;
use crate::space::{AllocClass, SegmentState};
use crate::tree::{Miss, capacity, node_index, slot_in};
use crate::{CommandError, Reply, VolumeCensus, WRITE_SIZES, WriteSizes};

/// The cost of counting the blocks of a leaf, in steps of a comparison.
pub(crate) const STEPS_PER_LEAF: usize = 8;

/// A census in progress.
#[derive(Debug)]
pub(crate) struct CensusWork {
    /// The version being scanned; `None` at the end.
    pub(crate) version: Option<Version>,
    /// The next block to scan.
    pub(crate) next: u64,
    pub(crate) spans: Spans,
    pub(crate) volumes: BTreeMap<VolumeId, VolumeCensus>,
    pub(crate) nodes: u64,
}

/// A version, and the limits of the blocks that are counted in it.
pub(crate) struct Part {
    pub(crate) root: TreeRoot,
    /// Root of the lineage's next version, which counts the blocks that both have.
    after: TreeRoot,
    /// Only blocks born later belong to the lineage.
    bound: Epoch,
    /// Most blocks of a small write of the volume, for blocks on special devices.
    small: u64,
}

/// The result of scanning a leaf or skipping a subtree.
pub(crate) struct Looked {
    /// The block after it.
    pub(crate) stop: u64,
    /// Nodes on the path that were counted for the first time.
    pub(crate) nodes: u64,
    /// Counted blocks on special devices.
    pub(crate) special: u64,
}

/// A subtree on the path to a block.
#[derive(Clone, Copy)]
pub(super) struct Side {
    addr: Addr,
    crc: u32,
    /// Number of levels.
    height: u8,
}

/// A version of a lineage: a snapshot, or its head.
pub(crate) type Version = (LineageId, Option<SnapshotId>);

impl CensusWork {
    pub(crate) fn of(&mut self, volume: VolumeId) -> &mut VolumeCensus {
        self.volumes.entry(volume).or_insert(VolumeCensus { volume, sizes: Default::default(), special: 0 })
    }
}

impl Store {
    /// Returns the reply to the command.
    pub(crate) fn census_reply(&self, work: CensusWork, error: Option<DiskError>) -> Result<Reply, CommandError> {
        match error {
            None => Ok(Reply::WriteSizes(self.census(work))),
            Some(_) => Err(self.read_failure()),
        }
    }

    /// Returns the version to scan after this one: a lineage's head first, then its snapshots from
    /// the youngest on.
    pub(crate) fn following(&self, (lineage, at): Version) -> Option<Version> {
        let lineages = &self.core.catalog.lineages;
        let before = lineages.get(&lineage).and_then(|line| match at {
            None => line.snapshots.last().copied(),
            Some(at) => Catalog::before(line, at),
        });
        match before {
            Some(snapshot) => Some((lineage, Some(snapshot))),
            None => lineages.range(LineageId(lineage.0 + 1)..).next().map(|(id, _)| (*id, None)),
        }
    }

    /// Returns the scan limits of a version; `None` when it no longer exists.
    pub(crate) fn part(&self, (lineage, at): Version) -> Option<Part> {
        let catalog = &self.core.catalog;
        let line = catalog.lineages.get(&lineage)?;
        let head = || line.head.map(|head| head.root);
        let root_of = |id: SnapshotId| catalog.snapshots.get(&id).map(|snapshot| snapshot.root);
        let (root, after) = match at {
            None => (head()?, None),
            Some(at) => (root_of(at).filter(|_| line.snapshots.contains(&at))?, Catalog::after(line, at).map_or_else(head, root_of)),
        };
        let small = match u64::from(catalog.options_of(line.volume).special_small_blocks) / 4096 {
            0 => WRITE_SIZES[WRITE_SIZES.len() - 1] / 4096,
            blocks => blocks,
        };
        Some(Part { root, after: after.unwrap_or_default(), bound: line.origin_epoch, small })
    }

    /// Counts the leaf that maps `block`, or skips the largest aligned subtree there in which no
    /// block counts.
    pub(crate) fn look_into(&mut self, part: &Part, block: u64, spans: &mut Spans) -> Result<Looked, Miss> {
        let mut looked = Looked { stop: block, nodes: 0, special: 0 };
        let mut new = Side { addr: part.root.addr, crc: part.root.crc, height: part.root.height };
        let mut old = match block < capacity(part.after.height) {
            true => Side { addr: part.after.addr, crc: part.after.crc, height: part.after.height },
            false => Side { addr: Addr::HOLE, crc: 0, height: 0 },
        };
        while new.height > 0 {
            let span = capacity(new.height);
            looked.stop = (block / span + 1).saturating_mul(span);
            while old.height > new.height && old.addr.is_some() {
                old = self.child(old, block)?;
            }
            if !self.is_own(new.addr, part.bound) || (old.height == new.height && old.addr.identity() == new.addr.identity()) {
                return Ok(looked);
            }
            let level = new.height - 1;
            let leaf = self.node(new, block)?;
            // a node is counted at its first block
            looked.nodes += u64::from(block.is_multiple_of(span));
            if level == 0 {
                let old = if old.addr.is_some() { Some(self.node(old, block)?) } else { None };
                looked.special = self.count(part, block, leaf, old, spans);
                return Ok(looked);
            }
            if old.height == new.height && old.addr.is_some() {
                old = self.child(old, block)?;
            }
            new = self.child(new, block)?;
        }
        Ok(looked)
    }

    /// Counts the blocks of a leaf from `block` on that the next version does not share; returns
    /// the number of those on special devices.
    fn count(&self, part: &Part, block: u64, leaf: u32, after: Option<u32>, spans: &mut Spans) -> u64 {
        let entries = |leaf: u32| &self.core.nodes.get(leaf).node.entries;
        let mut special = 0;
        for (at, addr) in (block..).zip(&entries(leaf)[slot_in(block, 0)..]) {
            let Some(chunk) = Some(addr).filter(|addr| addr.is_some()).and_then(|addr| self.core.space.chunks.get(addr.chunk())) else {
                continue;
            };
            let shared = after.is_some_and(|after| entries(after)[slot_in(at, 0)].identity() == addr.identity());
            let (counts, small) = (!shared && chunk.epoch > part.bound, Stream::from_number(chunk.class).is_some_and(Stream::is_special));
            spans.add(at, *addr, chunk, counts, small.then_some(part.small));
            special += u64::from(counts && small);
        }
        special
    }

    /// Returns whether the block or node at this address was born after `bound`.
    fn is_own(&self, addr: Addr, bound: Epoch) -> bool {
        addr.is_some() && self.core.space.chunks.get(addr.chunk()).is_some_and(|chunk| chunk.epoch > bound)
    }

    /// Returns the node at the top of a side, which must be in memory.
    fn node(&mut self, side: Side, block: u64) -> Result<u32, Miss> {
        let level = side.height - 1;
        let miss = Miss { addr: side.addr.settled(), crc: side.crc, level, index: node_index(block, level) };
        let at = self.core.nodes.find(side.addr).ok_or(miss)?;
        if level > 0 {
            // leaves are read once, so the cache keeps the leaves of guests instead
            self.core.nodes.touch(at);
        }
        Ok(at)
    }

    /// Returns the child on the path to `block`.
    fn child(&mut self, side: Side, block: u64) -> Result<Side, Miss> {
        let (at, slot) = (self.node(side, block)?, slot_in(block, side.height - 1));
        let node = &self.core.nodes.get(at).node;
        Ok(Side { addr: node.entries[slot], crc: node.crcs[slot], height: side.height - 1 })
    }

    fn census(&self, work: CensusWork) -> WriteSizes {
        let space = &self.core.space;
        let all = |id: &SegmentId| space.segments.get(*id).filter(|segment| segment.state != SegmentState::Absent);
        let bytes = |alloc_class: AllocClass| {
            let ids = space.segments.ids().filter(|id| all(id).is_some_and(|segment| segment.alloc_class == alloc_class));
            ids.map(|id| u64::from(space.layout.pages(id)) * 4096).sum()
        };
        let objects: u64 = space.segments.ids().filter_map(|id| all(&id)).map(|segment| u64::from(segment.objects)).sum();
        WriteSizes {
            volumes: work.volumes.into_values().collect(),
            nodes: work.nodes * NODE_BYTES as u64,
            objects: objects * 512,
            special: bytes(AllocClass::Special),
            special_nodes: bytes(AllocClass::Nodes),
        }
    }
}
