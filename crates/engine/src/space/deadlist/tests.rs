//! Lists in pieces against plain sets of what they should hold, over checkpoints and reloads.

use std::collections::BTreeSet;

use millpond_format::{Coding, SegmentId};
use proptest::prelude::*;

use super::*;

/// Chunks of an epoch in these tests; some are of another.
const CHUNKS_PER_EPOCH: u64 = 40;
const EPOCHS: u64 = 8;

/// Mostly in order of chunks.
fn epoch_of(chunk: u64) -> Epoch {
    Epoch(if chunk.is_multiple_of(7) { chunk % EPOCHS } else { chunk / CHUNKS_PER_EPOCH })
}

fn addr(chunk: u64, slot: u32) -> Addr {
    Addr::new(ChunkId(chunk), slot, 8, Coding::Raw)
}

type Set = BTreeSet<(u64, u32)>;

fn content(list: &Deadlist) -> Set {
    let mut all = Set::new();
    list.for_each(|chunk, dead| dead.slots.iter().for_each(|slot| assert!(all.insert((chunk.0, slot)), "{chunk}: {slot} is there twice")));
    all
}

fn is_true(list: &Deadlist, set: &Set) {
    assert_eq!(content(list), *set);
    assert_eq!(list.is_empty(), set.is_empty());
    assert_eq!(list.units(), set.len() as u64 * 8);
    for epoch in 0..EPOCHS {
        let after = set.iter().filter(|(chunk, _)| epoch_of(*chunk) > Epoch(epoch)).count() as u64 * 8;
        assert_eq!(list.units_after(Epoch(epoch)), after, "after {epoch}");
    }
}

/// What is stored, and lists with what they should be. An object's place is its number.
struct Twin {
    pieces: Rc<Pieces>,
    stored: BTreeMap<u32, Vec<u8>>,
    next: u32,
    lists: Vec<(Deadlist, Set)>,
    /// Blocks that died.
    dead: Set,
}

impl Twin {
    fn new(most: usize) -> Twin {
        Twin { pieces: Pieces::new(most, false), stored: BTreeMap::new(), next: 0, lists: vec![Default::default()], dead: Set::new() }
    }

    fn put(&mut self, bytes: Vec<u8>) -> ObjectRef {
        self.next += 1;
        let at = ObjectRef { segment: SegmentId(0), offset: self.next, length: bytes.len() as u32, crc: 0 };
        self.stored.insert(self.next, bytes);
        at
    }

    /// What a checkpoint does: what no list referred to when it was fixed goes when it holds.
    fn checkpoint(&mut self) -> Vec<ObjectRef> {
        let replaced = self.pieces.take_retired();
        for piece in self.pieces.seal() {
            let at = self.put(piece.bytes().to_vec());
            if let Some(old) = piece.set_stored(at) {
                self.stored.remove(&old.offset);
            }
        }
        let lists: Vec<Vec<u8>> = self.lists.iter().map(|(list, _)| list.encode()).collect();
        for ((list, _), bytes) in self.lists.iter().zip(&lists) {
            assert!(bytes.len() <= list.directory_bytes(), "{} bytes where {} were promised", bytes.len(), list.directory_bytes());
        }
        for old in replaced {
            assert!(self.stored.remove(&old.offset).is_some(), "INV-DEAD-1: a piece is given back once");
        }
        let at = lists.into_iter().map(|bytes| if bytes.is_empty() { ObjectRef::default() } else { self.put(bytes) });
        at.collect()
    }

    /// All lists as an import finds them.
    fn reload(&mut self) {
        let directories = self.checkpoint();
        let home = Pieces::new(self.pieces.most(), false);
        let mut known = BTreeMap::new();
        for (at, (list, _)) in directories.iter().zip(&mut self.lists) {
            let Some(bytes) = self.stored.remove(&at.offset) else {
                *list = Deadlist::default();
                continue;
            };
            let piece = |at: ObjectRef| {
                let bytes = self.stored.get(&at.offset).ok_or("INV-DEAD-1: a list refers to a piece that is gone")?;
                let piece = known.entry(at.offset).or_insert_with(|| home.load(bytes.clone(), at).expect("its own"));
                Ok(Rc::clone(piece))
            };
            *list = Deadlist::load(&bytes, *at, piece).expect("its own");
        }
        assert_eq!(self.stored.len(), known.len(), "pieces are stored that no list refers to");
        self.pieces = home;
    }

    fn pop(&mut self, from: usize, most: usize) {
        let (list, set) = &mut self.lists[from];
        for _ in 0..most {
            let Some((chunk, dead)) = list.pop() else { break };
            dead.slots.iter().for_each(|slot| assert!(set.remove(&(chunk.0, slot)), "{chunk}: {slot} was not there"));
        }
    }

    fn step(&mut self, (what, which, number): (u8, u16, u16)) {
        let at = usize::from(which) % self.lists.len();
        match what {
            0..6 => {
                for n in 0..u64::from(number % 60) {
                    let mixed = (u64::from(which) << 16 | u64::from(number)).wrapping_add(n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
                    let (chunk, slot) = (mixed % (EPOCHS * CHUNKS_PER_EPOCH), (mixed >> 10) as u32 % 1024);
                    if self.dead.insert((chunk, slot)) {
                        self.lists[at].0.insert(epoch_of(chunk), addr(chunk, slot), 1, true, &self.pieces);
                        self.lists[at].1.insert((chunk, slot));
                    }
                }
            }
            6 | 7 => {
                let epoch = Epoch(u64::from(number) % EPOCHS);
                let (list, set) = &mut self.lists[at];
                let young = list.split_after(epoch);
                let after: Set = set.iter().filter(|(chunk, _)| epoch_of(*chunk) > epoch).copied().collect();
                set.retain(|entry| !after.contains(entry));
                self.lists.push((young, after));
            }
            8 => {
                let (list, set) = self.lists.swap_remove(at);
                if self.lists.is_empty() {
                    self.lists.push((list, set));
                    return;
                }
                let to = usize::from(number) % self.lists.len();
                self.lists[to].0.merge(list, &self.pieces);
                self.lists[to].1.extend(set);
            }
            9 => self.pop(at, usize::from(number % 100)),
            10 => {
                let directories = self.checkpoint();
                directories.iter().for_each(|at| _ = self.stored.remove(&at.offset));
            }
            11 => self.reload(),
            12 => {
                // where some of its pieces are is given up
                let pieces = self.lists[at].0.pieces().filter(|piece| piece.stored().is_some());
                pieces.step_by(1 + usize::from(number % 3)).for_each(Piece::touch);
            }
            _ => {
                // a checkpoint that runs holds what it was fixed with
                let (list, set) = (self.lists[at].0.clone(), self.lists[at].1.clone());
                self.pop(at, usize::from(number % 300));
                is_true(&list, &set);
            }
        }
    }
}

proptest! {
    #[test]
    fn lists_are_sets(most in 64..700usize, steps in prop::collection::vec((0..14u8, any::<u16>(), any::<u16>()), 0..60)) {
        let mut twin = Twin::new(most);
        for step in steps {
            twin.step(step);
            twin.lists.iter().for_each(|(list, set)| is_true(list, set));
        }
        twin.reload();
        twin.lists.iter().for_each(|(list, set)| is_true(list, set));
        (0..twin.lists.len()).for_each(|at| twin.pop(at, usize::MAX));
        twin.reload();
        prop_assert!(twin.stored.is_empty(), "INV-DEAD-1: a piece that nothing refers to is kept");
    }
}

/// An object of an older version, in order of chunks, is one piece; what it was stored in goes with its last entry.
#[test]
fn a_list_of_an_older_version_is_a_piece() {
    let all: Set = (0..300).map(|n| (n, (n * 37 % 1024) as u32)).collect();
    let mut e = millpond_format::Encoder::default();
    for (chunk, slot) in &all {
        let slots = vec![1u64 << (slot % 64)].into();
        DeadRecord { epoch: epoch_of(*chunk), chunk: ChunkId(*chunk), units: 8, first: (slot / 64) as u16, slots }.encode(&mut e);
    }
    let home = Pieces::new(512, false);
    let at = ObjectRef { segment: SegmentId(3), offset: 5, length: e.len() as u32, crc: 1 };
    let mut old = Deadlist::load(e.bytes(), at, |at| home.load(e.bytes().to_vec(), at).map_err(|error| error.to_string())).unwrap();
    is_true(&old, &all);
    assert!(home.seal().is_empty() && old.encode().len() < 64, "it is written as it is");
    let mut young = old.split_after(Epoch(4));
    let (after, before): (Set, Set) = all.iter().partition(|(chunk, _)| epoch_of(*chunk) > Epoch(4));
    is_true(&young, &after);
    is_true(&old, &before);
    while old.pop().is_some() {}
    assert!(!home.has_retired());
    while young.pop().is_some() {}
    assert_eq!(home.take_retired(), [at]);
}

/// Prints what lists of an aged TiB cost: `MILLPOND_BENCH=1 cargo test --release -p millpond-engine aged -- --nocapture`.
#[test]
#[allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::disallowed_macros, reason = "a bench measures time and prints it")]
fn lists_of_an_aged_tib() {
    use std::time::Instant;
    if std::env::var_os("MILLPOND_BENCH").is_none() {
        return;
    }
    // chunks with dead slots, runs of slots in each, slots in a run, in order of chunks or at random
    for (chunks, runs, run, random) in [
        (262_144u64, 1u32, 1024u32, false),
        (262_144, 64, 1, false),
        (262_144, 64, 1, true),
        (2_900_000, 16, 1, false),
        (2_900_000, 1, 1, false),
    ] {
        let pieces = Pieces::new(64 << 10, false);
        let mut list = Deadlist::default();
        let (mut sheds, mut number) = (vec![std::time::Duration::ZERO], 1u64);
        for n in 0..chunks * u64::from(runs) {
            // each pair once: an odd factor permutes a power of two
            let at = if random { (n.wrapping_mul(0x9e37_79b9)) % (chunks * u64::from(runs)) } else { n };
            let (chunk, r) = if random { (at % chunks, at / chunks) } else { (at / u64::from(runs), at % u64::from(runs)) };
            let begun = Instant::now();
            list.insert(Epoch(1 + chunk % 2), addr(chunk, r as u32 * (1024 / runs)), run, true, &pieces);
            if list.tail.bytes == 0 {
                sheds.push(begun.elapsed());
            }
        }
        sheds.sort_unstable();
        let shed = (sheds[sheds.len() / 2], sheds[sheds.len() * 9 / 10]);
        let begun = Instant::now();
        let sealed = pieces.seal();
        let bytes: usize = sealed.iter().map(|piece| piece.bytes().len()).sum();
        for piece in &sealed {
            piece.set_stored(ObjectRef { segment: SegmentId(0), offset: number as u32, length: 1, crc: 0 });
            number += 1;
        }
        let seal = begun.elapsed();
        let count = sealed.len();
        drop(sealed);
        let begun = Instant::now();
        let directory = list.encode();
        let encode = begun.elapsed();
        let begun = Instant::now();
        let mut copy = list.clone();
        let clone = begun.elapsed();
        let begun = Instant::now();
        let after = copy.split_after(Epoch(1));
        let split = begun.elapsed();
        let begun = Instant::now();
        copy.merge(after, &pieces);
        let merge = begun.elapsed();
        let begun = Instant::now();
        for _ in 0..12 {
            copy.pop();
        }
        let pop = begun.elapsed();
        drop(list);
        let begun = Instant::now();
        drop(copy);
        println!(
            "{chunks} chunks x {runs} runs of {run}{}: {count} pieces, {} MiB; a tail into pieces {:?} (9 of 10: {:?}), seal {seal:?}; per checkpoint {} KiB in {encode:?}; copy {clone:?}, split {split:?}, merge {merge:?}, 12 freed {pop:?}, dropped {:?}",
            if random { " at random" } else { "" },
            bytes >> 20,
            shed.0,
            shed.1,
            directory.len() >> 10,
            begun.elapsed(),
        );
    }
}
