//! Compares the cache with a map, and look-ups in trees that are partly in memory with a search from
//! leaf to leaf.

use std::collections::{BTreeMap, BTreeSet};

use millpond_format::{ChunkId, Coding, Epoch, LineageId, NODE_UNITS};

use super::*;
use millpond_testing::Random;

/// The least number of nodes that a cache keeps.
const NODES: usize = 64;

fn addr(n: u64) -> Addr {
    Addr::new(ChunkId(1 + n / 40), (n % 40) as u32, NODE_UNITS, Coding::Raw)
}

fn node(level: u8, index: u64) -> Node {
    Node::empty(level, LineageId(1), index, Epoch(1))
}

/// A node in the cache as the twin knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plain {
    /// Stands for the content.
    index: u64,
    dirty: u64,
    doomed: bool,
}

/// A cache, and its nodes by the number of their address.
struct Twin {
    cache: NodeCache,
    plain: BTreeMap<u64, Plain>,
    /// Current dirty generation.
    generation: u64,
    /// Number of the next address.
    next: u64,
    random: Random,
}

impl Twin {
    fn any(&mut self, pick: impl Fn(&Plain) -> bool) -> Option<(u64, u32)> {
        let found: Vec<u64> = self.plain.iter().filter(|(_, plain)| pick(plain)).map(|(n, _)| *n).collect();
        let n = self.random.pick(found.into_iter())?;
        Some((n, self.cache.find(addr(n)).expect("it was inserted")))
    }

    fn insert(&mut self, dirty: u64) {
        let n = self.next;
        self.next += 1;
        self.cache.insert(addr(n).pending(), node(0, n), dirty);
        self.plain.insert(n, Plain { index: n, dirty, doomed: false });
    }

    fn step(&mut self) {
        let generation = self.generation;
        match self.random.below(20) {
            0..5 => self.insert(0),
            5..7 => self.insert(generation),
            7..10 => {
                // a clean node changes, under a new address
                let Some((n, at)) = self.any(|plain| plain.dirty == 0) else { return };
                self.cache.rekey(at, addr(self.next), generation);
                let plain = self.plain.remove(&n).expect("it was found");
                self.plain.insert(self.next, Plain { dirty: generation, ..plain });
                self.next += 1;
            }
            10..13 => {
                let found = self.any(|plain| !plain.doomed);
                // some addresses are not in memory
                let Some((n, _)) = found.filter(|_| !self.random.once_in(5)) else { return self.cache.forget(addr(self.next), generation) };
                self.cache.forget(addr(n), generation);
                let plain = self.plain.get_mut(&n).expect("it was found");
                if plain.dirty != 0 && plain.dirty < generation {
                    plain.doomed = true;
                } else {
                    self.plain.remove(&n);
                }
            }
            13..17 => {
                // only a fixed generation is written
                if !self.plain.values().any(|plain| plain.dirty != 0 && plain.dirty < generation) {
                    self.generation += 1;
                }
                for _ in 0..3 {
                    let Some((n, at)) = self.any(|plain| plain.dirty != 0 && plain.dirty < generation) else { break };
                    self.cache.written(at);
                    let plain = self.plain.get_mut(&n).expect("it was found");
                    plain.dirty = 0;
                    if plain.doomed {
                        self.plain.remove(&n);
                    }
                }
            }
            17 | 18 => {
                if let Some((_, at)) = self.any(|_| true) {
                    self.cache.touch(at);
                }
            }
            _ => self.evict(),
        }
    }

    /// Nodes that were used lately, by number.
    fn used(&self) -> BTreeSet<u64> {
        let used = |n: &&u64| self.cache.get(self.cache.find(addr(**n)).expect("it was inserted")).used_lately;
        self.plain.keys().filter(used).copied().collect()
    }

    fn evict(&mut self) {
        let used = self.used();
        self.cache.evict();
        let (kept, gone): (BTreeMap<u64, Plain>, _) =
            std::mem::take(&mut self.plain).into_iter().partition(|(n, _)| self.cache.find(addr(*n)).is_some());
        let dirty = kept.values().filter(|plain| plain.dirty != 0).count();
        assert!(gone.values().all(|plain| plain.dirty == 0), "a changed node is gone");
        assert_eq!(kept.len(), NODES.max(dirty).min(kept.len() + gone.len()), "no more and no fewer than necessary go");
        // nodes used lately go when no others are left
        let late = gone.keys().any(|n| used.contains(n));
        assert!(!late || kept.iter().all(|(n, plain)| plain.dirty != 0 || used.contains(n)));
        self.plain = kept;
    }

    fn compare(&self) {
        assert_eq!(self.cache.len(), self.plain.len());
        assert_eq!(self.cache.dirty(), self.plain.values().filter(|plain| plain.dirty != 0).count());
        assert_eq!(self.cache.find(addr(self.next)), None);
        for (n, plain) in &self.plain {
            let cached = self.cache.get(self.cache.find(addr(*n)).expect("it was inserted"));
            let found = Plain { index: cached.node.index, dirty: cached.dirty, doomed: cached.doomed };
            assert_eq!((cached.addr, found), (addr(*n), *plain));
        }
        assert_eq!(self.cache.by_addr.len() + self.cache.vacant.len(), self.cache.slab.len());
    }
}

/// Nodes are found by address, changed ones stay, and others go when there are too many.
#[test]
fn a_cache_is_a_map() {
    let mut twin = Twin { cache: NodeCache::new(0), plain: BTreeMap::new(), generation: 1, next: 0, random: Random::new(1) };
    assert_eq!(twin.cache.limit(), NODES);
    let mut full = 0;
    for _ in 0..6000 {
        twin.step();
        twin.compare();
        full += usize::from(twin.cache.len() > NODES);
    }
    assert!(full > 100, "more nodes than fit at {full} times");
}

/// A tree of which some nodes are in memory.
struct Tree {
    cache: NodeCache,
    root: TreeRoot,
    /// Numbers of the leaves that exist.
    leaves: BTreeSet<u64>,
    /// Level and index of all nodes, and whether each is in memory.
    nodes: BTreeMap<(u8, u64), bool>,
}

/// Number of the address of a node, which is its checksum, too.
fn number_of(level: u8, index: u64) -> u64 {
    (u64::from(level) << 30) + index
}

impl Tree {
    fn new(height: u8, leaves: BTreeSet<u64>, random: &mut Random) -> Tree {
        let mut nodes = BTreeMap::new();
        for leaf in &leaves {
            (0..height).for_each(|level| _ = nodes.insert((level, leaf >> (9 * level)), true));
        }
        let mut cache = NodeCache::new(1 << 30);
        let most = random.below(4);
        for ((level, index), here) in &mut nodes {
            *here = random.below(10) >= most;
            if *here {
                cache.insert(addr(number_of(*level, *index)), node(*level, *index), 0);
            }
        }
        for (level, index) in nodes.keys() {
            let Some(parent) = cache.find(addr(number_of(level + 1, index >> 9))) else { continue };
            let (number, slot) = (number_of(*level, *index), (index % FANOUT as u64) as usize);
            let parent = &mut cache.get_mut(parent).node;
            (parent.entries[slot], parent.crcs[slot]) = (addr(number), number as u32);
        }
        let top = number_of(height.saturating_sub(1), 0);
        let root = if leaves.is_empty() {
            TreeRoot { height, ..TreeRoot::default() }
        } else {
            TreeRoot { addr: addr(top), crc: top as u32, height }
        };
        Tree { cache, root, leaves, nodes }
    }

    /// Returns the node, or the miss of it.
    fn need(&self, level: u8, index: u64) -> Result<(), Miss> {
        let number = number_of(level, index);
        if self.nodes[&(level, index)] { Ok(()) } else { Err(Miss { addr: addr(number), crc: number as u32, level, index }) }
    }

    fn leaf(&self, block: u64) -> Result<Option<u64>, Miss> {
        for level in (0..self.root.height).rev() {
            let index = (block / 512) >> (9 * level);
            if !self.nodes.contains_key(&(level, index)) {
                return Ok(None);
            }
            self.need(level, index)?;
        }
        Ok(Some(block / 512).filter(|_| self.root.height > 0))
    }

    /// The first leaf of a node at or after a block.
    fn first_leaf(&self, level: u8, index: u64, block: u64) -> Result<Option<u64>, Miss> {
        let end = ((index + 1) << (9 * level)) * 512;
        if !self.nodes.contains_key(&(level, index)) || end <= block {
            return Ok(None);
        }
        self.need(level, index)?;
        let Some(below) = level.checked_sub(1) else { return Ok(Some(block.max(index * 512))) };
        for ((_, child), _) in self.nodes.range((below, index * 512)..(below, (index + 1) * 512)) {
            if let Some(found) = self.first_leaf(below, *child, block)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn compare(&mut self, block: u64) {
        let leaf_of = |cache: &NodeCache, at: u32| {
            let node = &cache.get(at).node;
            assert_eq!(node.level, 0);
            node.index
        };
        let (root, height) = (self.root, self.root.height);
        let (leaf, mut touched) = (self.leaf(block), 0);
        let found = self.cache.leaf(&root, block, &mut touched);
        assert_eq!(found.map(|at| at.map(|at| leaf_of(&self.cache, at))), leaf, "block {block} of {height} levels");
        assert!(leaf != Ok(Some(block / 512)) || touched == u64::from(height), "{touched} nodes touched");
        let peeked = self.cache.peek(&root, block).map(|at| leaf_of(&self.cache, at));
        assert_eq!(peeked, leaf.ok().flatten(), "block {block} of {height} levels");
        let first = match height {
            0 => Ok(None),
            _ => self.first_leaf(height - 1, 0, block),
        };
        let found = self.cache.next_mapped(&root, block);
        let leaf = |region| if let Region::Leaf(at) = region { leaf_of(&self.cache, at) } else { panic!("{region:?}") };
        let found = found.map(|found| found.map(|(first, region)| (first, leaf(region))));
        assert_eq!(found, first.map(|first| first.map(|block| (block, block / 512))), "from block {block} of {height} levels on");
    }
}

/// Look-ups in trees of no level to four levels find the leaf, or name the first node on the way
/// that is not in memory.
#[test]
fn look_ups_are_searches_from_leaf_to_leaf() {
    let random = &mut Random::new(1);
    for round in 0..120u8 {
        let height = round % 5;
        let most = (1u64 << (9 * height)) / 512;
        let mut leaves = BTreeSet::new();
        for _ in 0..random.below(30) {
            // at the edges of nodes, and neighbours
            let near = random.below(most);
            leaves.extend([0, 511, 512, near, near + 1, most.saturating_sub(1)].iter().filter(|leaf| **leaf < most && random.once_in(3)));
        }
        let mut tree = Tree::new(height, leaves, random);
        let known: Vec<u64> = tree.leaves.iter().copied().collect();
        for _ in 0..12 {
            let leaf = random.pick(known.iter()).copied().filter(|_| !random.once_in(3)).unwrap_or(random.below(most + 3));
            let block = (leaf * 512 + random.below(512)).saturating_sub(random.below(3));
            tree.compare(block);
        }
        tree.compare(u64::MAX);
    }
}
