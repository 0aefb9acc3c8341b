//! The steps of a comparison of two versions (`pool/diff.rs`), and its results so far.

use std::collections::BTreeMap;

use millpond_block::{ByteRange, DiskError, MemberId, Query, Run, Since};
use millpond_format::{Addr, Class, SegmentId, SnapshotId, TreeRoot};

use super::Store;
use crate::space::AllocClass;
use crate::tree::{Miss, capacity, node_index, slot_in};
use crate::{Absent, CommandError, DiffExtent, ExtentPlace, Planted, PoolState, Reply, SegmentPlace, Target};

/// A comparison in progress.
#[derive(Debug)]
pub(crate) struct Comparison {
    /// The older version; `None` is the empty disk.
    pub(crate) older: Option<Target>,
    pub(crate) newer: Target,
    /// The next block to compare.
    pub(crate) next: u64,
    pub(crate) end: u64,
    /// Steps after which the comparison ends with the runs found so far.
    pub(crate) steps: usize,
    pub(crate) found: Found,
}

/// The results so far, in the form that the caller asked for.
#[derive(Debug)]
pub(crate) enum Found {
    Extents(Vec<DiffExtent>),
    Runs {
        range: ByteRange,
        runs: Vec<Run>,
        most: usize,
    },
    /// Units by segment and, for segments that spread over several members, by member.
    Places(BTreeMap<SegmentId, (u64, BTreeMap<MemberId, u64>)>),
    /// Ranges whose segments do not exist any more.
    Lost(Vec<ByteRange>),
}

/// The difference of a block or range.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Same,
    Data,
    Gone,
}

/// A subtree of one version on the path to a block.
#[derive(Clone, Copy)]
pub(super) struct Side {
    addr: Addr,
    crc: u32,
    height: u8,
}

/// Most subtrees compared for one query, 8 GiB of leaves: the answer contains how far it got.
pub(crate) const STEPS_PER_QUERY: usize = 4096;

impl Found {
    /// Adds a range of blocks; ranges must be added in order.
    fn add(&mut self, block: u64, end: u64, change: Change) {
        let (start, stop) = (block * 4096, end * 4096);
        match self {
            Found::Places(_) | Found::Lost(_) => {}
            Found::Extents(_) if change == Change::Same => {}
            Found::Extents(extents) => {
                let data = change == Change::Data;
                match extents.last_mut() {
                    Some(last) if last.data == data && last.offset + last.length == start => last.length += stop - start,
                    _ => extents.push(DiffExtent { offset: start, length: stop - start, data }),
                }
            }
            Found::Runs { range, runs, .. } => {
                let length = stop.min(range.offset + range.length) - start.max(range.offset);
                let set = change != Change::Same;
                match runs.last_mut() {
                    Some(last) if last.set == set => last.length += length,
                    _ => runs.push(Run { length, set }),
                }
            }
        }
    }
}

impl Comparison {
    pub(crate) fn is_done(&self) -> bool {
        let enough = match &self.found {
            Found::Extents(_) | Found::Places(_) | Found::Lost(_) => false,
            // the start of one more run shows where the last wanted one ends
            Found::Runs { runs, most, .. } => runs.len() > *most || (self.steps == 0 && !runs.is_empty()),
        };
        enough || self.next >= self.end
    }
}

/// Returns the difference of blocks with these entries. Blocks that read as a base count as data: what
/// is zero in the base is not known before it was fetched.
fn change_of(was: Addr, is: Addr) -> Change {
    match was.identity() != is.identity() {
        false => Change::Same,
        true if is.is_hole() => Change::Gone,
        true => Change::Data,
    }
}

/// Adds a block; blocks must be added in order.
fn add_block(ranges: &mut Vec<ByteRange>, block: u64) {
    let offset = block * 4096;
    match ranges.last_mut() {
        Some(last) if last.offset + last.length == offset => last.length += 4096,
        _ => ranges.push(ByteRange { offset, length: 4096 }),
    }
}

pub(crate) fn state_of(since: Since) -> Target {
    Target::Snapshot(SnapshotId(since.0))
}

impl Store {
    pub(crate) fn admit_query(&self, target: Target, query: &Query) -> Result<(), DiskError> {
        let (geometry, _) = self.geometry(target).ok_or(DiskError::Shutdown)?;
        query.validate(&geometry)?;
        if query.since.is_some_and(|since| self.geometry(state_of(since)).is_none()) {
            return Err(DiskError::Invalid);
        }
        match self.state {
            PoolState::Online | PoolState::Faulted(_) => Ok(()),
            PoolState::Opening | PoolState::Closing | PoolState::Closed => Err(DiskError::Shutdown),
        }
    }

    /// Returns the error of a command that could not read a map node.
    pub(crate) fn read_failure(&self) -> CommandError {
        match &self.state {
            PoolState::Faulted(why) => CommandError::Faulted(why.clone()),
            _ => CommandError::NodeUnreadable,
        }
    }

    /// Returns the reply to a query about one version.
    pub(crate) fn answer_of(&self, error: Option<DiskError>, reply: Reply) -> Result<Reply, CommandError> {
        match error {
            None => Ok(reply),
            Some(DiskError::Invalid) => Err(CommandError::NotFound(Absent::Target)),
            Some(_) => Err(self.read_failure()),
        }
    }

    /// Counts a block at its segment; in a striped segment also on the member where it begins.
    fn count_place(&self, block: Addr, places: &mut BTreeMap<SegmentId, (u64, BTreeMap<MemberId, u64>)>) {
        let space = &self.core.space;
        let Some((segment, unit)) = Some(block).filter(|block| block.is_some()).and_then(|block| space.locate(block)) else { return };
        let (all, members) = places.entry(segment).or_default();
        *all += u64::from(block.units());
        if space.layout.copies(segment).len() == 0
            && let Some((member, _)) = space.layout.map(segment, unit / 8, 1, 0).first()
        {
            *members.entry(*member).or_default() += u64::from(block.units());
        }
    }

    pub(crate) fn places(&self, found: BTreeMap<SegmentId, (u64, BTreeMap<MemberId, u64>)>) -> Vec<SegmentPlace> {
        let layout = &self.core.space.layout;
        let place = |(segment, (all, members)): (SegmentId, (u64, BTreeMap<MemberId, u64>))| {
            let class = match layout.alloc_class(segment) {
                AllocClass::Data => self.config.shape.local_class(),
                AllocClass::Bucket => Class::Data,
                AllocClass::Log => Class::Log,
                AllocClass::Special | AllocClass::Nodes => Class::Special,
            };
            let copies = layout.copies(segment).len() > 0;
            let extent = |(member, range): (MemberId, ByteRange)| {
                let units = if copies { all } else { members.get(&member).copied().unwrap_or(0) };
                ExtentPlace { member, range, live_bytes: units * 512 }
            };
            SegmentPlace { segment: segment.0, class, live_bytes: all * 512, extents: layout.extents(segment).map(extent).collect() }
        };
        found.into_iter().map(place).collect()
    }

    /// Returns an entry as comparisons see it.
    fn compared(&self, addr: Addr) -> Addr {
        if addr.base().is_some() && self.tuning.plants(Planted::BaseCompareHides) { Addr::HOLE } else { addr }
    }

    /// Returns how far a side is the same that has no node from `block` on: to `end`, or to the end of
    /// a base. Beyond the end of a base the side is a hole.
    fn end_of_flat(&self, side: &mut Side, block: u64, end: u64) -> u64 {
        side.addr = self.compared(side.addr);
        let blocks = side.addr.base().map(|base| self.core.catalog.base_blocks(base));
        match blocks {
            Some(blocks) if block < blocks => end.min(blocks),
            Some(_) => {
                side.addr = Addr::HOLE;
                end
            }
            None => end,
        }
    }

    /// Compares the largest aligned subtree at `block` that is equal in both, or the leaves there.
    /// Returns the next block.
    pub(crate) fn compare(&mut self, older: TreeRoot, newer: TreeRoot, block: u64, end: u64, found: &mut Found) -> Result<u64, Miss> {
        // a lower tree waits until the other one is at the same level; beyond its end it has only
        // holes
        let side = |root: TreeRoot| match block < capacity(root.height) {
            true => Side { addr: root.addr, crc: root.crc, height: root.height },
            false => Side { addr: Addr::HOLE, crc: 0, height: 0 },
        };
        let mut sides = [side(older), side(newer)];
        if sides.iter().all(|side| side.addr.is_hole()) {
            found.add(block, end, Change::Same);
            return Ok(end);
        }
        let mut end = end;
        for level in (0..older.height.max(newer.height)).rev() {
            let span = capacity(level + 1);
            for side in &mut sides {
                end = self.end_of_flat(side, block, end);
            }
            let stop = ((block / span + 1) * span).min(end);
            let [old, new] = sides;
            let flat = [old, new].map(|side| !side.addr.is_some());
            let same_level = old.height == new.height || flat.contains(&true);
            if flat == [true; 2] || (same_level && old.addr.identity() == new.addr.identity()) {
                found.add(block, stop, change_of(old.addr, new.addr));
                return Ok(stop);
            }
            let mut leaves = [None, None];
            for (side, leaf) in sides.iter_mut().zip(&mut leaves) {
                if side.height <= level || !side.addr.is_some() {
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
                let flat = [old, new].map(|side| if side.addr.is_some() { Addr::HOLE } else { side.addr });
                for at in block..stop {
                    let entry =
                        |side: usize| leaves[side].map_or(flat[side], |leaf| self.core.nodes.get(leaf).node.entries[slot_in(at, 0)]);
                    let [was, is] = [entry(0), entry(1)].map(|addr| self.compared(addr));
                    match found {
                        Found::Places(places) => {
                            self.count_place(is, places);
                            continue;
                        }
                        Found::Lost(lost) => {
                            if is.is_some() && self.core.space.locate(is).is_none() {
                                add_block(lost, at);
                            }
                            continue;
                        }
                        Found::Extents(_) | Found::Runs { .. } => {}
                    }
                    found.add(at, at + 1, change_of(was, is));
                }
                return Ok(stop);
            }
        }
        found.add(block, end, Change::Same);
        Ok(end)
    }
}
