//! Compares lists in pieces with plain sets, over checkpoints and reloads.

use std::collections::BTreeSet;

use millpond_format::{Coding, SegmentId, crc32c};
use proptest::prelude::*;

use super::*;

/// Chunks of an epoch in these tests; some chunks have another epoch.
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
/// Objects by their numbers.
type Stored = BTreeMap<u32, Vec<u8>>;

/// Returns the entries of a list; content that is not in memory is taken from `stored`.
fn content(list: &Deadlist, stored: &Stored) -> Set {
    let mut all = Set::new();
    let read = |piece: &Piece| piece.content().or_else(|| Some(stored[&piece.place()?.offset].as_slice().into()));
    list.for_each(read, |chunk, dead| {
        dead.slots.iter().for_each(|slot| assert!(all.insert((chunk.0, slot)), "{chunk}: {slot} is there twice"))
    });
    all
}

/// Returns the same list, with views that are cut separately.
fn apart(list: &Deadlist) -> Deadlist {
    Deadlist { spans: list.spans.apart(), ..list.clone() }
}

/// Encodes its whole directory.
fn encode(list: &Deadlist) -> Vec<u8> {
    let mut encoding = Encoding::default();
    while list.encode_some(&mut encoding).is_some() {}
    list.encode(encoding)
}

fn is_true(list: &Deadlist, set: &Set, stored: &Stored) {
    assert_eq!(content(list, stored), *set);
    assert_eq!(list.units(), set.len() as u64 * 8);
    assert!(list.is_cut(), "whoever looks at it cuts it");
    assert_eq!(list.is_empty(), set.is_empty());
    for epoch in 0..EPOCHS {
        let after = set.iter().filter(|(chunk, _)| epoch_of(*chunk) > Epoch(epoch)).count() as u64 * 8;
        assert_eq!(list.units_after(Epoch(epoch)), after, "after {epoch}");
    }
}

/// Stored objects, and lists with the sets that they should equal. An object's place is its number.
struct Twin {
    /// Maximum bytes of a piece.
    most: usize,
    pieces: Rc<Pieces>,
    stored: Stored,
    next: u32,
    lists: Vec<(Deadlist, Set)>,
    /// Blocks that died.
    dead: Set,
    /// Bytes that pieces may take in memory.
    limit: usize,
    /// True when some pieces cannot be read.
    unreadable: bool,
}

impl Twin {
    fn new(most: usize, limit: usize) -> Twin {
        Twin {
            most,
            pieces: Pieces::new(most, most, limit, None),
            stored: BTreeMap::new(),
            next: 0,
            lists: vec![Default::default()],
            dead: Set::new(),
            limit,
            unreadable: false,
        }
    }

    fn put(&mut self, bytes: Vec<u8>) -> ObjectRef {
        self.next += 1;
        let at = ObjectRef { segment: SegmentId(0), offset: self.next, length: bytes.len() as u32, crc: crc32c(&bytes) };
        self.stored.insert(self.next, bytes);
        at
    }

    /// Runs a checkpoint: objects that no list referred to when it was fixed are dropped when it is
    /// committed.
    fn checkpoint(&mut self) -> Vec<ObjectRef> {
        let mut replaced = self.pieces.take_retired();
        let sealed = self.pieces.seal();
        for piece in &sealed {
            self.fetch(piece, Need::Writing);
            let at = self.put(piece.content().expect("it was read").to_vec());
            replaced.extend(piece.set_stored(at));
            piece.release(Need::Writing);
            // until all of it is written, pieces are read at their old places
            self.pieces.evict();
        }
        sealed.iter().for_each(Piece::settle);
        drop(sealed);
        self.pieces.evict();
        let lists: Vec<Vec<u8>> = self.lists.iter().map(|(list, _)| encode(list)).collect();
        for ((list, _), bytes) in self.lists.iter().zip(&lists) {
            assert!(bytes.len() <= list.directory_bytes(), "{} bytes where {} were promised", bytes.len(), list.directory_bytes());
        }
        for old in replaced {
            assert!(self.stored.remove(&old.offset).is_some(), "INV-DEAD-1: a piece is given back once");
        }
        let at = lists.into_iter().map(|bytes| if bytes.is_empty() { ObjectRef::default() } else { self.put(bytes) });
        at.collect()
    }

    /// Reads the content of a piece if it is not in memory.
    fn fetch(&self, piece: &Rc<Piece>, need: Need) {
        if let Some(at) = piece.need(need) {
            assert!(piece.take_in(&self.stored[&at.offset], at), "INV-DEAD-4: a piece is not where it can be read");
        }
    }

    /// Loads all lists as an import does.
    fn reload(&mut self) {
        // pieces that only uncut views refer to are released by the checkpoint after the one that
        // cuts the views
        self.pieces.cut_some(usize::MAX);
        assert!(self.lists.iter().all(|(list, _)| list.is_cut()) && !self.pieces.has_uncut());
        let directories = self.checkpoint();
        let home = Pieces::new(self.most, self.most, self.limit, None);
        let mut known = BTreeMap::new();
        for (at, ends) in directories.iter().filter_map(|at| self.stored.get(&at.offset)).flat_map(|bytes| Deadlist::named(bytes).unwrap())
        {
            known.entry(at.offset).or_insert((at, Vec::new())).1.extend(ends);
        }
        let load = |(offset, (at, ends)): (u32, (ObjectRef, Vec<u32>))| {
            let bytes = self.stored.get(&offset).expect("INV-DEAD-1: a list refers to a piece that is gone");
            (offset, home.load(bytes, at, &ends).expect("its own"))
        };
        let mut known: BTreeMap<u32, Rc<Piece>> = known.into_iter().map(load).collect();
        for (at, (list, _)) in directories.iter().zip(&mut self.lists) {
            let Some(bytes) = self.stored.remove(&at.offset) else {
                *list = Deadlist::default();
                continue;
            };
            *list = Deadlist::load(&bytes, *at, |at| Ok(Rc::clone(&known[&at.offset]))).expect("its own");
        }
        assert_eq!(self.stored.len(), known.len(), "pieces are stored that no list refers to");
        known.clear();
        self.pieces = home;
    }

    fn pop(&mut self, from: usize, most: usize) {
        let (mut list, mut set) = std::mem::take(&mut self.lists[from]);
        for _ in 0..most {
            if let Some(piece) = list.lacks() {
                if self.damaged(&piece) {
                    list.set_aside();
                    continue;
                }
                self.fetch(&piece, Need::Freeing);
            }
            let Some((chunk, dead)) = list.pop() else { break };
            dead.slots.iter().for_each(|slot| assert!(set.remove(&(chunk.0, slot)), "{chunk}: {slot} was not there"));
            self.pieces.evict();
        }
        self.lists[from] = (list, set);
    }

    /// True for pieces that cannot be read.
    fn damaged(&self, piece: &Piece) -> bool {
        self.unreadable && piece.place().is_some_and(|at| at.offset % 3 == 0)
    }

    fn step(&mut self, (what, which, number): (u8, u16, u16)) {
        let at = usize::from(which) % self.lists.len();
        match what {
            0..6 => {
                let longest = if number % 4 == 0 { 0 } else { 2 * self.most };
                for n in 0..u64::from(number % 60) {
                    let mixed = (u64::from(which) << 16 | u64::from(number)).wrapping_add(n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
                    let (chunk, slot) = (mixed % (EPOCHS * CHUNKS_PER_EPOCH), (mixed >> 10) as u32 % 1024);
                    if self.dead.insert((chunk, slot)) {
                        self.lists[at].0.insert(epoch_of(chunk), addr(chunk, slot), 1, true, &self.pieces, longest);
                        self.lists[at].1.insert((chunk, slot));
                    }
                }
            }
            6 | 7 => {
                let epoch = Epoch(u64::from(number) % EPOCHS);
                let (list, set) = &mut self.lists[at];
                let young = list.split_after(epoch, &self.pieces);
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
                self.lists[to].0.merge(list, &self.pieces, usize::from(number % 3) * self.most);
                self.lists[to].1.extend(set);
            }
            9 => self.pop(at, usize::from(number % 100)),
            10 => {
                let directories = self.checkpoint();
                directories.iter().for_each(|at| _ = self.stored.remove(&at.offset));
            }
            11 => self.reload(),
            12 => {
                // the places of some of its pieces are given up
                let pieces = self.lists[at].0.pieces().filter(|piece| piece.stored().is_some());
                pieces.step_by(1 + usize::from(number % 3)).for_each(|piece| piece.touch());
            }
            13 => {
                // a running checkpoint keeps the list that it was fixed with
                let (list, set) = (self.lists[at].0.clone(), self.lists[at].1.clone());
                self.pop(at, usize::from(number % 300));
                is_true(&list, &set, &self.stored);
            }
            14 => {
                // some pieces cannot be read for a while
                self.unreadable = true;
                self.pop(at, usize::from(number % 300));
                self.unreadable = false;
                if self.lists[at].0.has_only_unreadable() {
                    assert!(!self.lists[at].0.is_empty() && self.lists[at].0.pop().is_none());
                }
                self.lists[at].0.retry();
            }
            15 => self.pieces.cut_some(usize::from(number % 4)),
            _ => {
                let (mut list, _) = self.lists.swap_remove(at);
                while !list.drop_pieces(&mut (1 + usize::from(number % 50))) {}
                drop(list);
                if self.lists.is_empty() {
                    self.lists.push(Default::default());
                }
            }
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<(u8, u16, u16)>> {
    prop::collection::vec((0..17u8, any::<u16>(), any::<u16>()), 0..60)
}

/// Runs the steps with `limit` bytes of memory for content.
fn lists_are_sets(most: usize, limit: usize, steps: Vec<(u8, u16, u16)>) {
    let mut twin = Twin::new(most, limit);
    let check = |twin: &Twin| twin.lists.iter().for_each(|(list, set)| is_true(&apart(list), set, &twin.stored));
    for step in steps {
        twin.step(step);
        check(&twin);
    }
    twin.reload();
    check(&twin);
    (0..twin.lists.len()).for_each(|at| twin.pop(at, usize::MAX));
    twin.reload();
    assert!(twin.stored.is_empty(), "INV-DEAD-1: a piece that nothing refers to is kept");
    assert_eq!(twin.pieces.memory(), 0);
}

proptest! {
    #[test]
    fn lists_are_sets_in_memory(most in 64..700usize, steps in steps()) {
        lists_are_sets(most, usize::MAX, steps);
    }

    #[test]
    fn lists_are_sets_with_little_memory(most in 64..700usize, limit in 0..4000usize, steps in steps()) {
        lists_are_sets(most, limit, steps);
    }

    #[test]
    fn lists_are_sets_without_memory(most in 64..700usize, steps in steps()) {
        lists_are_sets(most, 0, steps);
    }
}

/// A list of an older version, in order of chunks, is one piece; its storage is released with its
/// last entry.
#[test]
fn a_list_of_an_older_version_is_a_piece() {
    let all: Set = (0..300).map(|n| (n, (n * 37 % 1024) as u32)).collect();
    let mut e = millpond_format::Encoder::default();
    for (chunk, slot) in &all {
        let slots = vec![1u64 << (slot % 64)].into();
        DeadRecord { epoch: epoch_of(*chunk), chunk: ChunkId(*chunk), units: 8, first: (slot / 64) as u16, slots }.encode(&mut e);
    }
    let home = Pieces::new(512, 512, 0, None);
    let at = ObjectRef { segment: SegmentId(3), offset: 5, length: e.len() as u32, crc: crc32c(e.bytes()) };
    let mut old =
        Deadlist::load(e.bytes(), at, |at| home.load(e.bytes(), at, &[]).map_err(|error| Damage::DeadlistPiece(error).into())).unwrap();
    let fetch = |list: &Deadlist| {
        if let Some((piece, at)) = list.lacks().and_then(|piece| Some((piece.need(Need::Freeing)?, piece))).map(|(at, piece)| (piece, at)) {
            assert!(piece.take_in(e.bytes(), at), "it is read as it was stored");
        }
    };
    fetch(&old);
    is_true(&old, &all, &Stored::new());
    assert!(home.seal().is_empty() && encode(&old).len() < 64, "it is written as it is");
    let mut young = old.split_after(Epoch(4), &home);
    let (after, before): (Set, Set) = all.iter().partition(|(chunk, _)| epoch_of(*chunk) > Epoch(4));
    is_true(&young, &after, &Stored::new());
    is_true(&old, &before, &Stored::new());
    while old.pop().is_some() {}
    assert!(!home.has_retired());
    home.evict();
    fetch(&young);
    while young.pop().is_some() {}
    assert_eq!(home.take_retired(), [at]);
}

/// A span that is tried again counts once, in each list of a split, and counts as left out until
/// its content is read.
#[test]
fn units_that_are_tried_again_are_counted_once() {
    let pieces = Pieces::new(512, 512, 0, None);
    let mut list = Deadlist::default();
    for n in 0..200 {
        list.insert(epoch_of(n), addr(n, 1), 1, true, &pieces, usize::MAX);
    }
    list.bound_tail(&pieces, 0);
    let mut stored = Stored::new();
    for (piece, n) in pieces.seal().iter().zip(0..) {
        let bytes = piece.content().expect("no checkpoint has it");
        piece.set_stored(ObjectRef { segment: SegmentId(0), offset: n, length: bytes.len() as u32, crc: crc32c(&bytes) });
        stored.insert(n, bytes.to_vec());
        piece.settle();
    }
    pieces.evict();
    let all = list.units();
    while list.lacks().is_some() {
        list.set_aside();
    }
    assert!(list.has_only_unreadable());
    assert_eq!((list.units(), list.units_left_out()), (all, all));
    list.retry();
    assert_eq!((list.units(), list.units_left_out()), (all, all));
    let mut young = list.split_after(Epoch(3), &pieces);
    assert_eq!((list.units_left_out(), young.units_left_out()), (list.units(), young.units()));
    assert_eq!(list.units() + young.units(), all);
    list.merge(std::mem::take(&mut young), &pieces, usize::MAX);
    assert_eq!((list.units(), list.units_left_out()), (all, all));
    let mut freed = 0;
    loop {
        if let Some((piece, at)) = list.lacks().map(|piece| (Rc::clone(&piece), piece.need(Need::Freeing))) {
            assert!(at.is_none_or(|at| piece.take_in(&stored[&at.offset], at)), "it is read as it was stored");
        }
        let Some((_, dead)) = list.pop() else { break };
        freed += u64::from(dead.units);
        assert_eq!(list.units(), all - freed);
        assert!(list.units_left_out() <= list.units());
    }
    assert_eq!((freed, list.units_left_out()), (all, 0));
}

/// A split of a long list, a merge and a copy take time in proportion to the views, and search no
/// epoch. Views are cut one by one, in turns or when a checkpoint writes the list. Counted, not
/// timed.
#[test]
fn long_lists_are_split_in_slices() {
    const PIECES: u64 = 2000;
    let pieces = Pieces::new(64 << 10, 64 << 10, usize::MAX, None);
    let full = pieces.view_spans() as u64;
    let (mut list, mut set) = (Deadlist::default(), Set::new());
    for n in 0..PIECES {
        for (chunk, slot) in [(n * 13 % 320, n as u32 % 1024), (n * 29 % 320, 1023 - n as u32 % 1024)] {
            if set.insert((chunk, slot)) {
                list.insert(epoch_of(chunk), addr(chunk, slot), 1, true, &pieces, usize::MAX);
            }
        }
        list.bound_tail(&pieces, 0);
    }
    assert!(list.spans.views() as u64 <= PIECES / full + 1, "{} views", list.spans.views());
    let most_in = |step: &mut dyn FnMut() -> bool| {
        let mut most = 0;
        loop {
            let before = pieces.searches.get();
            let more = step();
            most = most.max(pieces.searches.get() - before);
            if !more {
                return most;
            }
        }
    };
    // three destroys, one after the other, of which none waits for the cutting of the one before
    let (mut lists, mut copies) = (Vec::new(), Vec::new());
    let most = most_in(&mut || {
        let epoch = 5 - lists.len() as u64;
        copies.push(list.clone());
        let young = list.split_after(Epoch(epoch), &pieces);
        lists.push(young);
        list.merge(Deadlist::default(), &pieces, usize::MAX);
        lists.len() < 3
    });
    assert_eq!(most, 0, "searches of a split");
    assert!(pieces.has_uncut() && !list.is_cut());
    // some of it in turns, the rest by a checkpoint
    let mut turns = 0;
    let most = most_in(&mut || {
        pieces.cut_some(1);
        turns += 1;
        turns < 20
    });
    assert!((1..=2 * full).contains(&most), "{most} searches in a turn");
    for (n, sealed) in pieces.seal().iter().enumerate() {
        sealed.set_stored(ObjectRef { segment: SegmentId(0), offset: n as u32, length: 1, crc: 0 });
    }
    lists.push(list);
    for list in &lists {
        let mut encoding = Encoding::default();
        let most = most_in(&mut || list.encode_some(&mut encoding).is_some());
        assert!(most <= 2 * full, "{most} searches of a slice of a checkpoint");
        assert!(list.is_cut());
        assert_eq!(list.encode(encoding), encode(list));
    }
    // compared with a look at each entry
    for (list, births) in lists.iter().zip([6..EPOCHS, 5..6, 4..5, 0..4]) {
        is_true(list, &set.iter().filter(|(chunk, _)| births.contains(&epoch_of(*chunk).0)).copied().collect(), &Stored::new());
    }
    // the copy that a running checkpoint has is complete
    is_true(copies.first().expect("three"), &set, &Stored::new());
}

/// Prints the costs of lists of an aged TiB: `MILLPOND_BENCH=1 cargo test --release -p
/// millpond-engine aged -- --nocapture`.
#[test]
#[allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::disallowed_macros, reason = "a bench measures time and prints it")]
fn lists_of_an_aged_tib() {
    use std::time::Instant;
    if std::env::var_os("MILLPOND_BENCH").is_none() {
        return;
    }
    // chunks with dead slots, runs of slots in each, slots in a run, epochs, in order of chunks or at random
    for (chunks, runs, run, epochs, random) in [
        (262_144u64, 1u32, 1024u32, 2, false),
        (262_144, 64, 1, 2, false),
        (262_144, 64, 1, 2, true),
        (262_144, 64, 1, 5_000, true),
        (2_900_000, 16, 1, 2, false),
        (2_900_000, 1, 1, 2, false),
    ] {
        let pieces = Pieces::new(64 << 10, 64 << 10, 0, None);
        let mut list = Deadlist::default();
        let mut sheds = vec![std::time::Duration::ZERO];
        for n in 0..chunks * u64::from(runs) {
            // each pair once: an odd factor permutes a power of two
            let at = if random { (n.wrapping_mul(0x9e37_79b9)) % (chunks * u64::from(runs)) } else { n };
            let (chunk, r) = if random { (at % chunks, at / chunks) } else { (at / u64::from(runs), at % u64::from(runs)) };
            let begun = Instant::now();
            list.insert(Epoch(1 + chunk % epochs), addr(chunk, r as u32 * (1024 / runs)), run, true, &pieces, pieces.longest_tail(1));
            if list.tail.bytes == 0 {
                sheds.push(begun.elapsed());
            }
        }
        sheds.sort_unstable();
        let shed = (sheds[sheds.len() / 2], sheds[sheds.len() * 9 / 10]);
        let sealed = pieces.seal();
        let mut stored = Vec::new();
        for piece in &sealed {
            let bytes = piece.content().expect("no checkpoint has it");
            let (offset, crc) = (stored.len() as u32, crc32c(&bytes));
            piece.set_stored(ObjectRef { segment: SegmentId(0), offset, length: bytes.len() as u32, crc });
            stored.push(bytes);
        }
        sealed.iter().for_each(Piece::settle);
        drop(sealed);
        pieces.evict();
        let bytes: usize = stored.iter().map(|bytes| bytes.len()).sum();
        let timed = |what: &mut dyn FnMut()| {
            let begun = Instant::now();
            what();
            begun.elapsed()
        };
        let (mut directory, mut copy, mut after) = (Vec::new(), Deadlist::default(), Deadlist::default());
        let encode = timed(&mut || directory = encode(&list));
        let clone = timed(&mut || copy = list.clone());
        drop(std::mem::take(&mut list));
        let split = timed(&mut || after = copy.split_after(Epoch(epochs / 2), &pieces));
        let mut cuts = vec![std::time::Duration::ZERO];
        while pieces.has_uncut() {
            cuts.push(timed(&mut || pieces.cut_some(1)));
        }
        let cut = (cuts.iter().sum::<std::time::Duration>(), cuts.iter().max().copied().unwrap_or_default(), cuts.len());
        let merge = timed(&mut || copy.merge(std::mem::take(&mut after), &pieces, pieces.longest_tail(1)));
        let resident = pieces.memory();
        let mut read = std::time::Duration::ZERO;
        let pop = timed(&mut || {
            for _ in 0..12 {
                if let Some((piece, at)) =
                    copy.lacks().and_then(|piece| Some((piece.need(Need::Freeing)?, piece))).map(|(at, piece)| (piece, at))
                {
                    read += timed(&mut || assert!(piece.take_in(&stored[at.offset as usize], at)));
                }
                copy.pop();
            }
        });
        let mut slices = 0;
        let drop = timed(&mut || {
            while !copy.drop_pieces(&mut 256) {
                slices += 1;
            }
        });
        println!(
            "{chunks} chunks x {runs} runs of {run}, {epochs} epochs{}: {} pieces, {} KiB stored, {} KiB in memory; a tail into pieces {:?} (9 of 10: {:?}); per checkpoint {} KiB in {encode:?}; copy {clone:?}, split {split:?}, cut {cut:?} (all, longest, views), merge {merge:?}, 12 freed {pop:?}, {read:?} of it taking a piece in, let go of in {slices} slices {drop:?}",
            if random { " at random" } else { "" },
            stored.len(),
            bytes >> 10,
            resident >> 10,
            shed.0,
            shed.1,
            directory.len() >> 10,
        );
    }
}
