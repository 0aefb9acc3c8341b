//! Compares the counts of a [`Space`] with those computed from plain sets of slots.

use std::collections::{BTreeMap, VecDeque};

use millpond_block::MemberId;
use millpond_format::{
    BLOCK_UNITS, ChunkRecord, Class, Coding, Column, DeviceId, Epoch, Layout, Member, MemberState, NODE_UNITS, ObjectRef, Shape,
};

use super::*;
use millpond_testing::Random;

/// Pages of a segment.
const PAGES: u32 = 64;
const SEGMENTS: u32 = 12;
/// Segments of a lost device.
const LOST: std::ops::Range<u32> = 4..7;
/// Generations after which an empty segment is free again.
const KEEP: u64 = 1;

/// A chunk as the twin knows it.
#[derive(Clone, Debug)]
struct Plain {
    grain: u8,
    birth: u64,
    open: bool,
    place: Option<Place>,
    /// Slots handed out.
    slots: u32,
    live: BTreeSet<u32>,
    /// Slots that the last move copied; `None`: all.
    present: Option<BTreeSet<u32>>,
    /// Slots whose blocks are elsewhere: chunk and slot.
    forwards: BTreeMap<u32, (ChunkId, u32)>,
    /// True when forwards lead to it.
    is_target: bool,
}

impl Plain {
    /// Units of its live slots, in whole pages.
    fn footprint(&self) -> u32 {
        (self.live.len() as u32 * u32::from(self.grain)).div_ceil(8) * 8
    }

    fn is_in(&self, id: SegmentId) -> bool {
        self.place.is_some_and(|place| place.segment == id)
    }
}

/// A segment as the twin knows it. Counts are not part of it.
#[derive(Clone, Debug)]
struct Home {
    state: SegmentState,
    /// Chunks that were placed in it since it was free.
    chunks: Vec<ChunkId>,
    youngest: u64,
    metadata: bool,
    unclean: bool,
    unlogged: u64,
    leaving: bool,
}

struct Twin {
    space: Space,
    chunks: BTreeMap<ChunkId, Plain>,
    targets: Vec<Home>,
    /// Checkpoint objects: segment and bytes.
    objects: VecDeque<(SegmentId, u32)>,
    freed: u64,
    next: u64,
    clock: u64,
    random: Random,
}

/// Three groups; the second one is lost.
fn layout() -> SegmentLayout {
    let member = |device| Member {
        device: DeviceId(device),
        extents: 40,
        state: MemberState::Present,
        replacement: None,
        leaving: false,
        down_since: 0,
    };
    let members = (1..4).map(member).collect();
    let extent_bytes = u64::from(PAGES) * 4096;
    let mut shape = Shape { generation: 1, extent_bytes, chunk_units: 128, next: SegmentId(0), members, groups: Vec::new() };
    for (member, extents) in [(0, LOST.start), (1, LOST.end - LOST.start), (2, SEGMENTS - LOST.end)] {
        shape.add(Class::Data, Layout::Linear, vec![Column { member: MemberId(member), first: 0, extents }]);
    }
    shape.groups.remove(1);
    SegmentLayout::new(&shape)
}

impl Twin {
    fn new(seed: u64) -> Twin {
        let mut space = Space::new(layout());
        space.segments.trust_all();
        let home = |id: u32| Home {
            state: if LOST.contains(&id) { SegmentState::Absent } else { SegmentState::Free },
            chunks: Vec::new(),
            youngest: 0,
            metadata: false,
            unclean: false,
            unlogged: 0,
            leaving: false,
        };
        let targets = (0..SEGMENTS).map(home).collect();
        let random = Random::new(seed);
        let mut twin = Twin { space, chunks: BTreeMap::new(), targets, objects: VecDeque::new(), freed: 0, next: 1, clock: 0, random };
        // chunks that an import finds in the lost group
        for segment in LOST.map(SegmentId) {
            (0..2).for_each(|_| twin.new_chunk_in(Some(segment)));
            twin.space.seal(segment);
            (twin.home(segment).state, twin.home(segment).leaving) = (SegmentState::Sealed, true);
        }
        twin
    }

    fn home(&mut self, id: SegmentId) -> &mut Home {
        &mut self.targets[id.0 as usize]
    }

    fn any(&mut self) -> Option<ChunkId> {
        self.random.pick(self.chunks.keys()).copied()
    }

    /// Segments in a state.
    fn with(&self, state: SegmentState) -> Vec<SegmentId> {
        (0..SEGMENTS).map(SegmentId).filter(|id| self.targets[id.0 as usize].state == state).collect()
    }

    /// Returns a segment that is being filled, and opens one if there is none.
    fn open_segment(&mut self) -> Option<SegmentId> {
        if let Some(id) = self.random.pick(self.with(SegmentState::Open).into_iter()) {
            return Some(id);
        }
        let id = self.space.segments.reserve(AllocClass::Data, false)?;
        assert_eq!(self.home(id).state, SegmentState::Free);
        self.space.segments.set_state(id, SegmentState::Open);
        self.home(id).state = SegmentState::Open;
        Some(id)
    }

    /// Puts a segment without content into retention.
    fn settle(&mut self, id: SegmentId) {
        let empty = !self.chunks.values().any(|chunk| chunk.is_in(id)) && !self.objects.iter().any(|(segment, _)| *segment == id);
        let generation = self.space.sealed_generation;
        let gone = LOST.contains(&id.0);
        let home = self.home(id);
        if empty && home.state == SegmentState::Sealed {
            home.state = if gone { SegmentState::Absent } else { SegmentState::Retained(generation) };
        }
    }

    /// Begins a chunk, in `segment` if one is given.
    fn new_chunk_in(&mut self, segment: Option<SegmentId>) {
        let (id, grain) = (ChunkId(self.next), self.random.pick([1, 8, NODE_GRAIN].into_iter()).expect("one of three"));
        self.next += 1;
        self.clock += self.random.below(9);
        self.space.chunks.insert(id, Chunk::new(Epoch(1), self.clock, 1, grain));
        let plain = Plain {
            grain,
            birth: self.clock,
            open: true,
            place: None,
            slots: 0,
            live: BTreeSet::new(),
            present: None,
            forwards: BTreeMap::new(),
            is_target: false,
        };
        self.chunks.insert(id, plain);
        if let Some(segment) = segment.or_else(|| self.open_segment().filter(|_| grain != NODE_GRAIN)) {
            self.place_in(segment, id, None);
        }
    }

    /// Gives a chunk a place; `present`: only these slots were copied.
    fn place(&mut self, id: ChunkId, present: Option<BTreeSet<u32>>) {
        if let Some(segment) = self.open_segment() {
            self.place_in(segment, id, present);
        }
    }

    fn place_in(&mut self, segment: SegmentId, id: ChunkId, present: Option<BTreeSet<u32>>) {
        let place = Place { segment, page: self.random.small(PAGES / 2) };
        let mut slots = Slots::default();
        present.iter().flatten().for_each(|slot| assert_eq!(slots.insert_range(*slot, 1), 1));
        self.space.place_chunk(id, place, 2, Some(7), present.as_ref().map(|_| slots));
        let plain = self.chunks.get_mut(&id).expect("it was inserted");
        let old = plain.place.replace(place);
        if let Some(present) = present {
            plain.live.retain(|slot| present.contains(slot));
            plain.present = Some(present);
        }
        let (birth, metadata) = (plain.birth, plain.grain == NODE_GRAIN);
        let home = self.home(segment);
        home.chunks.push(id);
        home.youngest = home.youngest.max(birth);
        home.metadata |= metadata;
        if let Some(old) = old {
            self.home(old.segment).unclean = true;
            self.settle(old.segment);
        }
        self.drop_if_dead(id);
    }

    fn drop_if_dead(&mut self, id: ChunkId) {
        let Some(plain) = self.chunks.get_mut(&id).filter(|plain| plain.live.is_empty() && !plain.open) else { return };
        let place = plain.place.take();
        plain.present = None;
        if plain.forwards.is_empty() {
            self.chunks.remove(&id);
        }
        place.into_iter().for_each(|place| self.settle(place.segment));
    }

    /// Gathers a block of a chunk into another one, which is open.
    fn forward(&mut self, id: ChunkId) {
        let is_home = |(other, plain): &(&ChunkId, &Plain)| **other != id && plain.open && plain.grain == 8 && plain.place.is_some();
        let homes: Vec<ChunkId> = self.chunks.iter().filter(is_home).map(|(id, _)| *id).collect();
        let Some(to) = self.random.pick(homes.into_iter()).filter(|_| self.chunks[&id].grain == 8) else { return };
        let (at, plain) = (self.chunks[&to].slots, &self.chunks[&id]);
        // a chunk of blocks has a place until all of them are elsewhere
        let was_written = plain.place.is_some() || !plain.forwards.is_empty();
        if at >= 32 || plain.is_target || !was_written || !self.chunks[&to].forwards.is_empty() {
            return;
        }
        let (slot, plain) = (self.random.small(40), self.chunks.get_mut(&id).expect("it was inserted"));
        self.space.chunks.get_mut(to).expect("it was inserted").slots += 1;
        let was_here = plain.live.remove(&slot);
        let old = plain.forwards.get(&slot).copied();
        let is_used = was_here || old.is_some();
        let addr = |id, slot| Addr::new(id, slot, BLOCK_UNITS, Coding::Raw);
        assert_eq!(self.space.forward(addr(id, slot), addr(to, at)), is_used);
        if is_used {
            plain.forwards.insert(slot, (to, at));
        }
        let place = plain.place;
        let home = self.chunks.get_mut(&to).expect("it was inserted");
        home.slots += 1;
        if is_used {
            home.live.insert(at);
            home.is_target = true;
        }
        if let Some(place) = place.filter(|_| was_here) {
            self.home(place.segment).unclean = true;
        }
        old.into_iter().for_each(|(id, slot)| self.free_target(id, slot, false));
        self.drop_if_dead(id);
    }

    /// Frees a slot that a forward led to.
    fn free_target(&mut self, id: ChunkId, slot: u32, unlogged: bool) {
        let generation = self.space.sealed_generation;
        let plain = self.chunks.get_mut(&id).expect("a forward leads to it");
        assert!(plain.live.remove(&slot), "slot {slot} of chunk {id}");
        self.freed += u64::from(BLOCK_UNITS);
        let home = plain.place.expect("it is not forwarded").segment;
        self.home(home).unclean = true;
        if unlogged {
            self.home(home).unlogged = generation;
        }
        self.drop_if_dead(id);
    }

    fn grow(&mut self, id: ChunkId) {
        let more = 1 + self.random.small(9);
        let plain = self.chunks.get_mut(&id).expect("it was inserted");
        if !plain.open || (plain.slots + more) * u32::from(plain.grain) > 256 {
            return;
        }
        self.space.chunks.get_mut(id).expect("it was inserted").slots += more;
        self.space.make_live(id, plain.slots, more);
        plain.live.extend(plain.slots..plain.slots + more);
        plain.slots += more;
    }

    /// Frees slots of a chunk in one of three ways, live or not.
    fn free(&mut self, id: ChunkId) {
        let way = self.random.below(3);
        let plain = self.chunks.get_mut(&id).expect("it was inserted");
        if plain.is_target {
            // its slots are freed through forwards
            return;
        }
        let first = self.random.small(plain.slots + 1);
        let most = if way == 0 { if plain.grain == 1 { BLOCK_UNITS } else { 1 } } else { 40 };
        let slots = first..(first + self.random.small(most + 1)).min(plain.slots);
        if slots.is_empty() {
            return;
        }
        let freed = slots.clone().filter(|slot| plain.live.remove(slot)).count() as u32;
        let elsewhere: Vec<(ChunkId, u32)> = slots.clone().filter_map(|slot| plain.forwards.remove(&slot)).collect();
        self.freed += u64::from(freed * u32::from(plain.grain));
        match way {
            0 => {
                let units = slots.len() as u32 * u32::from(plain.grain);
                self.space.free(Addr::new(id, first, units, Coding::Raw));
            }
            1 => self.space.free_unlogged(id, slots),
            _ => assert_eq!(self.space.free_slots(id, slots), freed + elsewhere.len() as u32),
        }
        let generation = self.space.sealed_generation;
        if let Some(place) = plain.place {
            let home = self.home(place.segment);
            home.unclean |= freed > 0;
            if way == 1 {
                home.unlogged = generation;
            }
        }
        self.drop_if_dead(id);
        elsewhere.into_iter().for_each(|(id, slot)| self.free_target(id, slot, way == 1));
    }

    fn close(&mut self, id: ChunkId) {
        self.space.close_chunk(id);
        self.chunks.get_mut(&id).expect("it was inserted").open = false;
        self.drop_if_dead(id);
    }

    /// Moves a closed chunk; some of its slots died before the move was replayed.
    fn move_chunk(&mut self, id: ChunkId) {
        let plain = &self.chunks[&id];
        if plain.open || plain.place.is_none() {
            return;
        }
        let mut present: BTreeSet<u32> = plain.present.clone().unwrap_or_else(|| (0..plain.slots).collect());
        let all = self.random.once_in(3);
        let mut kept = plain.live.clone();
        if !plain.is_target {
            kept.retain(|_| !self.random.once_in(10));
        }
        present.retain(|slot| kept.contains(slot) || (!plain.live.contains(slot) && self.random.once_in(5)));
        self.place(id, Some(present).filter(|_| !all));
    }

    fn object(&mut self) {
        if self.random.once_in(2) {
            let Some(segment) = self.open_segment() else { return };
            let bytes = 1 + self.random.small(5000);
            self.space.add_object(segment, bytes);
            self.home(segment).metadata = true;
            self.objects.push_back((segment, bytes));
        } else if let Some((segment, bytes)) = self.objects.pop_front() {
            self.space.drop_object(segment, bytes);
            self.settle(segment);
        }
    }

    /// Fixes a checkpoint, and frees a segment that no checkpoint needs.
    fn checkpoint(&mut self) {
        self.space.sealed_generation += 1;
        let generation = self.space.sealed_generation;
        let ripe = |home: &Home| matches!(home.state, SegmentState::Retained(since) if since + KEEP < generation);
        if let Some((id, _)) = self.space.segments.retention_over(generation, KEEP) {
            assert!(ripe(&self.targets[id.0 as usize]));
            self.space.segments.set_state(id, SegmentState::Free);
            self.make_free(id);
        } else {
            assert!(!self.targets.iter().any(ripe));
        }
    }

    fn make_free(&mut self, id: SegmentId) {
        let home = self.home(id);
        home.state = if home.leaving { SegmentState::Absent } else { SegmentState::Free };
        home.chunks.clear();
        if home.state == SegmentState::Free {
            (home.youngest, home.metadata, home.unlogged) = (0, false, 0);
        }
    }

    fn seal(&mut self) {
        let Some(id) = self.random.pick(self.with(SegmentState::Open).into_iter()) else { return };
        self.space.seal(id);
        self.home(id).state = SegmentState::Sealed;
        if self.random.once_in(2) {
            self.space.settle(id);
            self.settle(id);
        }
    }

    /// Begins a removal of some segments, or cancels all removals.
    fn leave(&mut self) {
        let all: BTreeSet<SegmentId> = (0..SEGMENTS).map(SegmentId).filter(|id| !LOST.contains(&id.0)).collect();
        if self.random.once_in(2) {
            self.space.stay(&all);
            for id in all {
                self.home(id).leaving = false;
                if self.home(id).state == SegmentState::Absent {
                    self.make_free(id);
                }
            }
            return;
        }
        let leaving: BTreeSet<SegmentId> = all.into_iter().filter(|_| self.random.once_in(9)).collect();
        self.space.leave_segments(&leaving);
        for id in leaving {
            self.home(id).leaving = true;
            if self.home(id).state == SegmentState::Free {
                self.home(id).state = SegmentState::Absent;
                self.home(id).chunks.clear();
            }
        }
    }

    fn step(&mut self) {
        let Some(id) = self.any() else { return self.new_chunk_in(None) };
        match self.random.below(20) {
            0 | 1 => self.new_chunk_in(None),
            2..6 => self.grow(id),
            6..11 => self.free(id),
            11 | 12 => self.close(id),
            13 | 14 => self.move_chunk(id),
            // a checkpoint places a chunk of nodes
            15 if self.chunks[&id].place.is_none() => self.place(id, None),
            15 | 16 => self.object(),
            17 => self.checkpoint(),
            18 if self.random.once_in(2) => (0..8).for_each(|_| self.forward(id)),
            18 => self.seal(),
            _ if self.random.once_in(10) => self.leave(),
            _ => self.seal(),
        }
    }

    /// Compares the counts of all segments, which follow from the chunks and objects in them.
    fn compare_counts(&self, space: &Space) {
        for id in (0..SEGMENTS).map(SegmentId) {
            let segment = space.segments.get(id).expect("it is one of the table");
            let here: Vec<&Plain> = self.chunks.values().filter(|chunk| chunk.is_in(id)).collect();
            let live: u32 = here.iter().map(|chunk| chunk.footprint()).sum();
            let objects: u32 = self.objects.iter().filter(|(of, _)| *of == id).map(|(_, bytes)| bytes.div_ceil(512)).sum();
            assert_eq!((segment.live, segment.placed as usize, segment.objects), (live, here.len(), objects), "{id}");
        }
        let live: u64 = self.chunks.values().map(|chunk| u64::from(chunk.footprint())).sum();
        let objects: u64 = self.objects.iter().map(|(_, bytes)| u64::from(bytes.div_ceil(512))).sum();
        assert_eq!(space.live_units(), live + objects);
    }

    fn compare(&mut self) {
        self.compare_counts(&self.space);
        assert_eq!((self.space.chunks.len(), self.space.freed_units), (self.chunks.len(), self.freed));
        for (id, home) in (0u32..).map(SegmentId).zip(&self.targets) {
            let segment = self.space.segments.get(id).expect("it is one of the table");
            let facts = (segment.state, segment.youngest, segment.metadata, segment.unclean, segment.unlogged, segment.leaving);
            let twin = (home.state, home.youngest, home.metadata, home.unclean, home.unlogged, home.leaving);
            assert_eq!(facts, twin, "{id}");
            assert_eq!(segment.chunks, home.chunks, "{id}");
        }
        let Some(id) = self.any() else { return };
        let (plain, slot) = (&self.chunks[&id], self.random.small(40));
        let index = match &plain.present {
            None => Some(slot),
            Some(present) => present.contains(&slot).then(|| present.range(..slot).count() as u32),
        };
        let here = plain.place.zip(index).filter(|(place, _)| !LOST.contains(&place.segment.0));
        let place = here.map(|(place, index)| (place.segment, place.page * 8 + index * u32::from(plain.grain)));
        let units = if plain.grain == NODE_GRAIN { NODE_UNITS } else { u32::from(plain.grain) };
        let place = plain.forwards.get(&slot).map_or(place, |(id, slot)| {
            let home = &self.chunks[id];
            let index = home.present.as_ref().map_or(*slot, |present| present.range(..*slot).count() as u32);
            home.place.map(|place| (place.segment, (place.page + index) * 8))
        });
        assert_eq!(self.space.locate(Addr::new(id, slot, units, Coding::Raw)), place);
        let forwards: usize = self.chunks.values().map(|plain| plain.forwards.len()).sum();
        assert_eq!(self.space.chunks.forwards(), forwards);
    }

    /// Compares a space that an import builds from the stored chunk table.
    fn compare_loaded(&mut self) {
        let mut loaded = Space::new(layout());
        self.space.chunks.seal();
        while let Some((page, bytes)) = self.space.chunks.next_sealed() {
            loaded.chunks.load(page, ObjectRef::default(), ChunkRecord::decode_page(&bytes).expect("its own"));
        }
        loaded.recount();
        self.objects.iter().for_each(|(segment, bytes)| loaded.add_object(*segment, *bytes));
        assert_eq!(loaded.chunks.forwards(), self.space.chunks.forwards());
        for (id, slot, target) in self.chunks.iter().flat_map(|(id, plain)| plain.forwards.iter().map(|(s, t)| (*id, *s, *t))) {
            assert_eq!(
                loaded.resolve(Addr::new(id, slot, BLOCK_UNITS, Coding::Raw)),
                Addr::new(target.0, target.1, BLOCK_UNITS, Coding::Raw)
            );
        }
        let is_unwritten = |plain: &Plain| plain.place.is_none() && plain.forwards.is_empty();
        let unplaced: Vec<ChunkId> = self.chunks.iter().filter(|(_, plain)| is_unwritten(plain)).map(|(id, _)| *id).collect();
        let rest: Vec<(ChunkId, Plain)> = unplaced.into_iter().filter_map(|id| self.chunks.remove_entry(&id)).collect();
        self.compare_counts(&loaded);
        self.chunks.extend(rest);
        self.chunks.keys().for_each(|id| _ = self.space.chunks.get_mut(*id));
    }
}

/// Compares all counts after each step.
#[test]
fn counts_are_those_of_the_slots() {
    for seed in 0..4 {
        let mut twin = Twin::new(seed);
        for step in 0..1500 {
            twin.step();
            twin.compare();
            if step % 200 == 199 {
                twin.compare_loaded();
            }
        }
        while let Some(id) = twin.any() {
            twin.close(id);
            let slots = twin.chunks.get(&id).map_or(0, |plain| plain.slots);
            twin.space.free_slots(id, 0..slots);
            if let Some(plain) = twin.chunks.get_mut(&id) {
                plain.forwards.clear();
            }
            twin.freed = twin.space.freed_units;
            let place = twin.chunks.remove(&id).and_then(|plain| plain.place);
            place.into_iter().for_each(|place| twin.settle(place.segment));
        }
        twin.compare_counts(&twin.space);
        assert_eq!(twin.space.chunks.len(), 0);
    }
}

/// Segments of class data over three members, and a log beside them.
fn space_with_log(data: Layout) -> Space {
    let mut shape =
        Shape { generation: 1, extent_bytes: 1 << 20, chunk_units: 128, next: SegmentId(0), members: Vec::new(), groups: Vec::new() };
    let column = |member, extents| Column { member: MemberId(member), first: 0, extents };
    shape.add(Class::Data, data, (0..3).map(|member| column(member, 8)).collect());
    shape.add(Class::Log, Layout::Linear, vec![column(3, 4)]);
    Space::new(SegmentLayout::new(&shape))
}

/// Nodes and checkpoint objects go to the log for as long as segments stay that are written whole.
#[test]
fn nodes_are_never_in_segments_that_are_written_whole() {
    let targets = |space: &Space| (space.targets.landing, space.targets.meta);
    let space = space_with_log(Layout::Mirror { copies: 3 });
    assert_eq!(targets(&space), (AllocClass::Log, AllocClass::Data));
    assert!(!space.needs_log(|_| true));
    let mut space = space_with_log(Layout::Parity { width: 3, parity: 1, unit: 65536 });
    let data: BTreeSet<SegmentId> = space.segments.ids().filter(|id| space.layout.alloc_class(*id) == AllocClass::Data).collect();
    assert_eq!(data.len(), 8);
    assert_eq!(targets(&space), (AllocClass::Log, AllocClass::Log));
    assert!(space.needs_log(|id| id == SegmentId(7)) && !space.needs_log(|id| !data.contains(&id)));
    space.leave_segments(&data);
    assert_eq!(targets(&space), (AllocClass::Log, AllocClass::Data));
    space.stay(&data);
    assert_eq!(targets(&space), (AllocClass::Log, AllocClass::Log));
}
