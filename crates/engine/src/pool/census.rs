//! The census: how much of each volume and its snapshots was written by requests of which size. It
//! shows how much data special devices would hold.
//!
//! Every block is counted once, in the last version of its lineage that has it and only if it was
//! born in that lineage. So a subtree that a version shares with the next one is skipped as a
//! whole. Like a comparison the census continues turn by turn and looks up roots anew each time:
//! blocks that change meanwhile may be counted in their old or new state.

use std::collections::BTreeMap;

use millpond_block::{DiskError, Tag};
use millpond_format::{Addr, Epoch, LineageId, NODE_BYTES, SegmentId, SnapshotId, TreeRoot, VolumeId};

use super::op::{Op, Owner, Work};
use super::spans::Spans;
use super::state::Pool;
use crate::core::Catalog;
use crate::log::is_special;
use crate::space::{SegmentState, Shelf};
use crate::store::Store;
use crate::tree::{Miss, capacity, node_index, slot_in};
use crate::{Census, Reply, VolumeCensus, WRITE_SIZES};

/// The cost of counting the blocks of a leaf, in steps of a comparison.
const STEPS_PER_LEAF: usize = 8;

/// A version of a lineage: a snapshot, or its head.
type Version = (LineageId, Option<SnapshotId>);

/// A census in progress.
#[derive(Debug)]
pub(crate) struct CensusWork {
    /// The version being scanned; `None` at the end.
    version: Option<Version>,
    /// The next block to scan.
    next: u64,
    spans: Spans,
    volumes: BTreeMap<VolumeId, VolumeCensus>,
    nodes: u64,
}

/// A version, and the limits of the blocks that are counted in it.
struct Part {
    root: TreeRoot,
    /// Root of the lineage's next version, which counts the blocks that both have.
    after: TreeRoot,
    /// Only blocks born later belong to the lineage.
    bound: Epoch,
    /// Most blocks of a small write of the volume, for blocks on special devices.
    small: u64,
}

impl Pool {
    /// Starts a census; the reply is returned by `pop_reply`.
    pub(crate) fn start_census(&mut self, tag: Tag) {
        let version = self.store.core.catalog.lineages.keys().next().map(|id| (*id, None));
        let work = CensusWork { version, next: 0, spans: Spans::default(), volumes: BTreeMap::new(), nodes: 0 };
        let id = self.new_op(Owner::Command(tag), Work::Census(Box::new(work)), false);
        self.ready.push_back(id);
    }

    /// Continues a census within the remaining steps of this turn.
    pub(crate) fn try_census(&mut self, id: u32) {
        while self.comparisons > 0 {
            self.comparisons = self.comparisons.saturating_sub(STEPS_PER_LEAF);
            let Some(Op { work: Work::Census(work), .. }) = self.ops.get_mut(id) else { return };
            let Some(version) = work.version else { return self.release(id) };
            // taken out of the operation while the trees are read
            let (mut spans, next) = (std::mem::take(&mut work.spans), work.next);
            let looked = match self.store.part(version) {
                Some(part) if part.root.addr.is_some() && next < capacity(part.root.height) => {
                    self.store.look_into(&part, next, &mut spans).map(Some)
                }
                _ => Ok(None),
            };
            let after = self.store.following(version);
            let volume = self.store.core.catalog.lineages.get(&version.0).map(|line| line.volume);
            let Some(Op { work: Work::Census(work), .. }) = self.ops.get_mut(id) else { return };
            match looked {
                Ok(Some(look)) => {
                    work.next = look.stop;
                    work.nodes += look.nodes;
                    if let Some(volume) = volume.filter(|_| look.special > 0) {
                        work.of(volume).special += look.special * 4096;
                    }
                }
                Ok(None) => {
                    let sizes = spans.take();
                    if let Some(volume) = volume {
                        work.of(volume).sizes.iter_mut().zip(sizes).for_each(|(bytes, blocks)| *bytes += blocks * 4096);
                    }
                    (work.version, work.next) = (after, 0);
                }
                Err(miss) => {
                    work.spans = spans;
                    return self.load_node(miss, Some(id));
                }
            }
            work.spans = spans;
        }
        self.ready.push_back(id);
    }
}

impl Store {
    /// Replies to the command.
    pub(crate) fn deliver_census(&mut self, owner: Owner, work: CensusWork, error: Option<DiskError>) {
        let Owner::Command(tag) = owner else { return };
        let reply = match error {
            None => Ok(Reply::Census(self.census(work))),
            Some(_) => Err(self.read_failure()),
        };
        self.replies.push_back((tag, reply));
    }

    /// Returns the version to scan after this one: a lineage's head first, then its snapshots from
    /// the youngest on.
    fn following(&self, (lineage, at): Version) -> Option<Version> {
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
    fn part(&self, (lineage, at): Version) -> Option<Part> {
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
    fn look_into(&mut self, part: &Part, block: u64, spans: &mut Spans) -> Result<Looked, Miss> {
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
            let (counts, small) = (!shared && chunk.epoch > part.bound, is_special(usize::from(chunk.class)));
            spans.add(at, *addr, chunk, counts, if small { part.small } else { u64::MAX });
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

    fn census(&self, work: CensusWork) -> Census {
        let space = &self.core.space;
        let all = |id: &SegmentId| space.segments.get(*id).filter(|segment| segment.state != SegmentState::Absent);
        let bytes = |shelf: Shelf| {
            let ids = space.segments.ids().filter(|id| all(id).is_some_and(|segment| segment.shelf == shelf));
            ids.map(|id| u64::from(space.rows.pages(id)) * 4096).sum()
        };
        let objects: u64 = space.segments.ids().filter_map(|id| all(&id)).map(|segment| u64::from(segment.objects)).sum();
        Census {
            volumes: work.volumes.into_values().collect(),
            nodes: work.nodes * NODE_BYTES as u64,
            objects: objects * 512,
            special: bytes(Shelf::Special),
            special_nodes: bytes(Shelf::Nodes),
        }
    }
}

/// The result of scanning a leaf or skipping a subtree.
struct Looked {
    /// The block after it.
    stop: u64,
    /// Nodes on the path that were counted for the first time.
    nodes: u64,
    /// Counted blocks on special devices.
    special: u64,
}

/// A subtree on the path to a block.
#[derive(Clone, Copy)]
struct Side {
    addr: Addr,
    crc: u32,
    /// Number of levels.
    height: u8,
}

impl CensusWork {
    fn of(&mut self, volume: VolumeId) -> &mut VolumeCensus {
        self.volumes.entry(volume).or_insert(VolumeCensus { volume, sizes: Default::default(), special: 0 })
    }
}
