//! Compares the maps of a volume and its snapshots with plain maps, and the slots and deadlists
//! with the addresses in them.

use std::collections::{BTreeMap, BTreeSet};

use millpond_block::MemberId;
use millpond_format::{
    Class, Column, DeviceId, Layout, Member, MemberState, NODE_UNITS, Node, Record, SegmentId, Shape, SnapshotId, VolumeRecord,
};

use super::*;
use crate::core::StoredDeadlist;
use crate::space::{NODE_GRAIN, Pieces, SegmentLayout, Space};
use crate::tree::{Mapped, NodeCache};
use millpond_testing::Random;

const LINEAGE: LineageId = LineageId(1);
/// Maximum number of nodes in memory, the least that there is.
const NODES: usize = 64;
/// Units of a chunk.
const CHUNK_UNITS: u32 = 520;

/// Address and checksum of each mapped block.
type Content = BTreeMap<u64, (Addr, u32)>;
/// The blocks that read as the base: true, by block.
type FromBase = Vec<bool>;
/// Slots of chunks.
type SlotSet = BTreeSet<(ChunkId, u32)>;

/// Slots of one version: of blocks and of nodes.
#[derive(Default)]
struct Version {
    data: SlotSet,
    nodes: SlotSet,
}

struct Twin {
    core: Core,
    head: Content,
    from_base: FromBase,
    /// Snapshots, the oldest first.
    snapshots: Vec<(SnapshotId, Content, FromBase)>,
    next_snapshot: u64,
    /// Nodes by address, as checkpoints wrote them.
    stored: BTreeMap<u64, Node>,
    /// Nodes that the running checkpoint has yet to write, as they were when it was fixed.
    unwritten: Vec<(Addr, Node)>,
    /// Open chunks of plain and of packed blocks.
    open: [Option<ChunkId>; 2],
    crc: u32,
    step: u64,
    random: Random,
}

/// Blocks of the base: not whole leaves.
const BASE_BLOCKS: u64 = 520 * 512 + 7;

fn core(is_base: bool) -> Core {
    let member = Member { device: DeviceId(1), extents: 8, state: MemberState::Present, replacement: None, leaving: false, down_since: 0 };
    let (extent_bytes, chunk_units) = (1 << 20, CHUNK_UNITS);
    let mut shape = Shape { generation: 1, extent_bytes, chunk_units, next: SegmentId(0), members: vec![member], groups: Vec::new() };
    shape.add(Class::Data, Layout::Linear, vec![Column { member: MemberId(0), first: 0, extents: 8 }]);
    let pieces = Pieces::new(600, 600, usize::MAX, None);
    let mut core = Core::new(Space::new(SegmentLayout::new(&shape)), NodeCache::new(0), CHUNK_UNITS, pieces, None);
    let volume = VolumeRecord {
        id: VolumeId(1),
        name: "disk".to_owned(),
        size: if is_base { BASE_BLOCKS * 4096 } else { 1 << 50 },
        sector: 1,
        cache: 0,
        compression: 0,
        read_only: false,
        lineage: LINEAGE,
        created: 0,
    };
    core.apply_record(&match is_base {
        false => Record::CreateVolume { volume },
        true => {
            let (source, name) = (String::new(), "s0".to_owned());
            Record::CreateBase { volume, unit: 4096, source, snapshot: SnapshotId(0), name }
        }
    });
    core
}

impl Twin {
    fn new(seed: u64, is_base: bool) -> Twin {
        let random = Random::new(seed);
        let from_base = if is_base { vec![true; BASE_BLOCKS as usize] } else { Vec::new() };
        let snapshots = is_base.then(|| (SnapshotId(0), Content::new(), from_base.clone())).into_iter().collect();
        Twin {
            core: core(is_base),
            head: Content::new(),
            from_base,
            snapshots,
            next_snapshot: 1,
            stored: BTreeMap::new(),
            unwritten: Vec::new(),
            open: [None; 2],
            crc: 0,
            step: 0,
            random,
        }
    }

    /// Does something that needs nodes, and reads those that are not in memory.
    fn with<T>(&mut self, mut work: impl FnMut(&mut Core) -> Result<T, Miss>) -> T {
        loop {
            let miss = match work(&mut self.core) {
                Ok(done) => return done,
                Err(miss) => miss,
            };
            let node = self.stored.get(&miss.addr.identity()).expect("only nodes that a checkpoint wrote leave memory");
            assert_eq!((node.level, node.index), (miss.level, miss.index), "{miss:?}");
            self.core.nodes.insert(miss.addr, node.clone(), 0);
        }
    }

    /// A block: the map grows from one leaf to four levels.
    fn block(&mut self) -> u64 {
        let leaf = match (self.random.below(10), self.step) {
            (_, 0..60) => 0,
            (0..7, _) | (_, 60..300) => self.random.below(80) * 3,
            (7..9, _) | (_, 300..600) => 500 + self.random.below(30),
            _ => 262_142 + self.random.below(5),
        };
        // often at the edges of leaves
        let slot = if self.random.once_in(2) { self.random.below(6) + 509 } else { self.random.below(40) };
        leaf * 512 + slot
    }

    /// Takes slots of a chunk with a grain of 8 units, or 1.
    fn slots(&mut self, packed: bool, count: u32) -> (ChunkId, u32) {
        let (grain, at) = (if packed { 1 } else { 8 }, usize::from(packed));
        let fits = |id: &ChunkId| self.core.space.chunks.get(*id).is_some_and(|c| (c.slots + count) * u32::from(c.grain) <= CHUNK_UNITS);
        let id = match self.open[at].filter(fits) {
            Some(id) => id,
            None => {
                self.open[at].into_iter().for_each(|id| self.core.space.close_chunk(id));
                let id = self.core.new_chunk(1, grain);
                self.open[at] = Some(id);
                id
            }
        };
        let chunk = self.core.space.chunks.get_mut(id).expect("it is open");
        let slot = chunk.slots;
        chunk.slots += count;
        self.core.space.make_live(id, slot, count);
        (id, slot)
    }

    fn set(&mut self) {
        let (block, packed, units) = (self.block(), self.random.once_in(3), 1 + self.random.small(7));
        let (chunk, slot) = self.slots(packed, if packed { units } else { 1 });
        let addr = if packed { Addr::new(chunk, slot, units, Coding::Lz4) } else { Addr::new(chunk, slot, BLOCK_UNITS, Coding::Raw) };
        self.crc += 1;
        let crc = self.crc;
        self.with(|core| core.set_block(LINEAGE, BlockNo(block), addr, crc));
        self.head.insert(block, (addr, crc));
        self.hide_base(block, block + 1);
    }

    /// Maps blocks in one to three leaves.
    fn set_run(&mut self) {
        let (block, count) = (self.block(), if self.random.once_in(8) { 60 } else { 1 + self.random.small(12) });
        let (chunk, slot) = self.slots(false, count);
        let crcs: Vec<u32> = (1..=count).map(|n| self.crc + n).collect();
        self.crc += count;
        for block in [block, block + u64::from(count) - 1] {
            self.with(|core| core.leaf_mut(LINEAGE, block));
        }
        assert_eq!(self.core.set_run(LINEAGE, BlockNo(block), chunk, slot, &crcs), Ok(()), "its leaves are in memory");
        for (at, crc) in (0..).zip(crcs) {
            let addr = Addr::new(chunk, slot + at, BLOCK_UNITS, Coding::Raw);
            self.head.insert(block + u64::from(at), (addr, crc));
        }
        self.hide_base(block, block + u64::from(count));
    }

    /// Notes that blocks do not read as the base any more.
    fn hide_base(&mut self, start: u64, end: u64) {
        let most = self.from_base.len() as u64;
        self.from_base[start.min(most) as usize..end.min(most) as usize].fill(false);
    }

    fn clear(&mut self) {
        let start = self.block();
        let length = match self.random.below(20) {
            0..12 => 1 + self.random.below(20),
            12..18 => self.random.below(6 * 512),
            18 => 40 * 512,
            _ => u64::MAX / 4,
        };
        let end = start + length;
        if self.random.once_in(2) {
            self.with(|core| core.clear(LINEAGE, start, end));
            self.head.retain(|block, _| *block < start || *block >= end);
            self.hide_base(start, end);
            return;
        }
        // in steps, each of which is planned
        let (mut at, leaves) = (start, 1 + self.random.below(4) as usize);
        while at < end {
            let to = self.with(|core| core.plan_clear(LINEAGE, at, end, leaves));
            let passed: BTreeSet<u64> = self.head.range(at..to).map(|(block, _)| block / 512).collect();
            assert!(to > at && to <= end && passed.len() <= leaves, "{at} to {to} of {end}: {} leaves", passed.len());
            assert_eq!(self.core.clear(LINEAGE, at, to), Ok(()), "a planned step needs no other node");
            self.head.retain(|block, _| *block < at || *block >= to);
            self.hide_base(at, to);
            at = to;
        }
    }

    fn snapshot(&mut self) {
        for id in std::mem::take(&mut self.open).into_iter().flatten() {
            self.core.space.close_chunk(id);
        }
        let id = SnapshotId(self.next_snapshot);
        self.next_snapshot += 1;
        let targets = vec![(VolumeId(1), id, format!("s{id}"))];
        self.core.apply_record(&Record::Snapshot { targets, created: 0, description: String::new(), expires: None });
        self.snapshots.push((id, self.head.clone(), self.from_base.clone()));
    }

    fn destroy(&mut self) {
        if self.snapshots.is_empty() {
            return;
        }
        let at = self.random.below(self.snapshots.len() as u64) as usize;
        let (id, ..) = self.snapshots.remove(at);
        self.core.apply_record(&Record::DestroySnapshots { snapshots: vec![id] });
        self.core.pieces.cut_some(usize::MAX);
        self.core.catalog.count_frees();
        while self.core.catalog.has_frees() {
            assert!(self.core.free_some(10).next.is_none(), "all pieces are in memory");
        }
        assert_eq!(self.core.catalog.backlog, 0);
    }

    /// Writes some nodes of the running checkpoint, or fixes the next one.
    fn checkpoint(&mut self) {
        if self.unwritten.is_empty() {
            for flush in self.core.take_unplaced() {
                for slot in flush.live.iter() {
                    let addr = Addr::new(flush.chunk, slot, NODE_UNITS, Coding::Raw);
                    let at = self.core.nodes.find(addr).expect("a changed node is in memory");
                    self.unwritten.push((addr, self.core.nodes.get(at).node.clone()));
                }
            }
            self.core.generation += 1;
            assert_eq!(self.core.nodes.dirty(), self.unwritten.len());
            return;
        }
        for _ in 0..1 + self.random.below(30) {
            let Some((addr, node)) = self.unwritten.pop() else { break };
            let at = self.core.nodes.find(addr).expect("it is in memory until it is written");
            assert!(self.core.nodes.get(at).node == node, "a node changed while a checkpoint wrote it");
            self.core.nodes.written(at);
            self.stored.insert(addr.identity(), node);
        }
    }

    fn step(&mut self) {
        match self.random.below(40) {
            0..15 => self.set(),
            15..22 => self.set_run(),
            22..28 => self.clear(),
            28 if self.snapshots.len() < 4 => self.snapshot(),
            29 => self.destroy(),
            30..36 => self.checkpoint(),
            _ => {
                self.core.nodes.evict();
                let most = NODES.max(self.core.nodes.dirty());
                assert!(self.core.nodes.len() <= most, "{} nodes, at most {most}", self.core.nodes.len());
            }
        }
        self.step += 1;
    }

    /// Looks up some blocks.
    fn compare(&mut self) {
        let head = self.core.head(LINEAGE);
        assert_eq!(head.mapped, self.head.len() as u64);
        let known = self.random.pick(self.head.keys()).copied();
        for block in [Some(self.block()), known, known.map(|block| block + 1)].into_iter().flatten() {
            let found = self.with(|core| core.nodes.look_up(&head.root, block, &mut 0));
            let leaf = if let Mapped::Leaf(leaf) = found { Some(leaf) } else { None };
            assert_eq!(self.core.nodes.peek(&head.root, block), leaf);
            let entry = leaf.map(|leaf| &self.core.nodes.get(leaf).node).map(|node| {
                let slot = slot_in(block, 0);
                (node.entries[slot], node.crcs[slot])
            });
            let reads_as = entry.map_or(matches!(found, Mapped::Base(_)), |(addr, _)| addr.base().is_some());
            let from_base = |block: u64| self.from_base.get(block as usize).copied().unwrap_or(false);
            assert_eq!(reads_as && block < BASE_BLOCKS, from_base(block), "block {block} of the base");
            let entry = entry.filter(|(addr, _)| addr.is_some());
            assert_eq!(entry, self.head.get(&block).copied(), "block {block}");
            if !self.from_base.is_empty() {
                continue;
            }
            let next = self.with(|core| core.nodes.next_mapped(&head.root, block));
            let first = self.head.range(block / 512 * 512..).next().map(|(first, _)| block.max(first / 512 * 512));
            assert_eq!(next.map(|(first, _)| first), first, "the first leaf from block {block} on");
        }
    }

    /// Walks a map and compares it. Returns its slots.
    fn walk(&self, root: TreeRoot, content: &Content, from_base: &FromBase) -> Version {
        let mut version = Version::default();
        let mut found = Content::new();
        let mut based = vec![false; from_base.len()];
        let mut todo = vec![(root.addr, root.height, 0u64)];
        while let Some((addr, height, index)) = todo.pop() {
            if addr.base().is_some() {
                let (first, most) = (index * capacity(height), based.len() as u64);
                assert!(first < most, "an entry reads as the base beyond its end");
                based[first as usize..most.min(first + capacity(height)) as usize].fill(true);
            }
            let Some(level) = height.checked_sub(1).filter(|_| addr.is_some()) else { continue };
            let here = self.core.nodes.find(addr).map(|at| self.core.nodes.get(at));
            let stored = self.stored.get(&addr.identity());
            let node = here.map(|cached| &cached.node).or(stored).expect("a node is in memory or stored");
            if here.is_some_and(|cached| cached.dirty == 0) {
                assert!(stored == Some(node), "a clean node differs from the stored one");
            }
            assert_eq!((node.level, node.index), (level, index), "{addr:?}");
            assert!(node.entries.iter().any(|entry| !entry.is_hole()), "{addr:?} is empty");
            assert!(version.nodes.insert((addr.chunk(), addr.slot())), "{addr:?} is there twice");
            for (at, (entry, crc)) in (0..).zip(node.entries.iter().zip(node.crcs.iter())) {
                if level > 0 || entry.base().is_some() {
                    todo.push((*entry, level, index * 512 + at));
                } else if entry.is_some() {
                    found.insert(index * 512 + at, (*entry, *crc));
                }
            }
        }
        assert!(based == *from_base, "other blocks read as the base");
        assert!(found == *content, "a map of {} blocks has {} others", content.len(), found.len());
        for (addr, _) in content.values() {
            let slots = if addr.coding() == Coding::Raw { 1 } else { addr.units() };
            version.data.extend((addr.slot()..addr.slot() + slots).map(|slot| (addr.chunk(), slot)));
        }
        version
    }

    fn compare_list(&self, list: &StoredDeadlist, before: &Version, after: &Version) {
        let mut found = SlotSet::new();
        list.list().for_each(
            |piece| piece.content(),
            |chunk, dead| {
                dead.slots.iter().for_each(|slot| assert!(found.insert((chunk, slot)), "{chunk}: {slot} died twice"));
            },
        );
        let data: SlotSet = before.data.difference(&after.data).copied().collect();
        let nodes: SlotSet = before.nodes.difference(&after.nodes).copied().collect();
        assert_eq!(list.list().units(), self.units(&data));
        assert!(found == &data | &nodes, "{} of {} blocks and {} nodes are in a deadlist", found.len(), data.len(), nodes.len());
    }

    fn units(&self, data: &SlotSet) -> u64 {
        data.iter().map(|(chunk, _)| self.core.space.chunks.get(*chunk).map_or(0, |chunk| u64::from(chunk.grain))).sum()
    }

    /// Compares all maps, the deadlists, and the slots that are live.
    fn compare_all(&self) {
        let catalog = &self.core.catalog;
        let line = &catalog.lineages[&LINEAGE];
        let (mut before, mut data, mut nodes) = (Version::default(), SlotSet::new(), SlotSet::new());
        assert!(line.snapshots.iter().eq(self.snapshots.iter().map(|(id, ..)| id)));
        for (id, content, from_base) in &self.snapshots {
            let snapshot = catalog.snapshots.get(id).expect("it was taken");
            let version = self.walk(snapshot.root, content, from_base);
            self.compare_list(&snapshot.deadlist, &before, &version);
            data.extend(&version.data);
            nodes.extend(&version.nodes);
            before = version;
        }
        let head = self.walk(self.core.head(LINEAGE).root, &self.head, &self.from_base);
        self.compare_list(&line.deadlist, &before, &head);
        data.extend(&head.data);
        nodes.extend(&head.nodes);
        assert_eq!(line.owned_units, self.units(&data));
        let (mut live_data, mut live_nodes) = (SlotSet::new(), SlotSet::new());
        for id in self.core.space.chunks.ids() {
            let chunk = self.core.space.chunks.get(id).expect("it is listed");
            let live = if chunk.grain == NODE_GRAIN { &mut live_nodes } else { &mut live_data };
            live.extend(chunk.live.iter().map(|slot| (id, slot)));
        }
        assert!(live_data == data, "{} slots of blocks are live, {} are mapped", live_data.len(), data.len());
        assert!(live_nodes == nodes, "{} nodes are live, {} are in maps", live_nodes.len(), nodes.len());
    }
}

/// Compares a volume with a plain map while blocks are written and cleared, snapshots come and go,
/// checkpoints run, and few nodes fit into memory. The map of a base reads as the base itself where it
/// was neither written nor cleared.
#[test]
fn a_map_is_a_plain_map() {
    for (seed, is_base) in [(0, false), (1, false), (2, false), (3, true), (4, true), (5, true)] {
        let mut twin = Twin::new(seed, is_base);
        for step in 0..1500 {
            twin.step();
            twin.compare();
            if step % 50 == 0 {
                twin.compare_all();
            }
        }
        assert!(twin.stored.len() > 4 * NODES, "{} nodes were written", twin.stored.len());
        twin.with(|core| core.clear(LINEAGE, 0, u64::MAX));
        twin.head.clear();
        twin.from_base.fill(false);
        while !twin.snapshots.is_empty() {
            twin.destroy();
        }
        twin.compare_all();
        assert!(twin.core.head(LINEAGE).root.addr.is_hole(), "an empty map has no node");
    }
}
