//! [`Space`]: chunks and segments together, so that their counts always agree.
//!
//! INV-FORWARD-1: a slot is here, or forwarded to one slot of another chunk, which is live exactly
//! while the forward exists, and which no map and no other forward has.
//!
//! INV-FORWARD-2: a forward leads to a slot that is here. A block that is gathered once more gets a
//! forward in place of the one that it had.
//!
//! INV-FORWARD-4: a chunk that is not open gives up its place when nothing is here.

use std::collections::BTreeSet;

use millpond_format::{Addr, BLOCK_UNITS, ChunkId, SegmentId};
use smallvec::SmallVec;

use super::chunks::{Chunk, ChunkTable, NODE_GRAIN, Place};
use super::layout::{AllocClass, SegmentLayout};
use super::names::Names;
use super::segments::{SegmentState, SegmentTable};
use super::slots::Slots;

/// Segments that the log needs beyond the percentage: an open and a reserved one for each stream,
/// and some as targets of the cleaner.
const RESERVE_SEGMENTS: u64 = 40;
/// Part of the pool that guests cannot fill, in percent: working space of the cleaner.
const RESERVE_PERCENT: u64 = 8;

/// Allocation classes for new data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AllocTargets {
    /// For guests' writes and records: the log class if there is one, from where the cleaner moves
    /// them to data.
    pub(crate) landing: AllocClass,
    /// For nodes and objects, when there are no special devices or these are full. Not a class that
    /// is written whole, see [`Space::needs_log`].
    pub(crate) meta: AllocClass,
    /// For small writes, if there are special devices.
    pub(crate) small: Option<AllocClass>,
    /// For nodes and objects, and for chunks that the cleaner keeps on special devices, if there
    /// are any.
    pub(crate) nodes: Option<AllocClass>,
}

/// The space of a pool.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) layout: SegmentLayout,
    pub(crate) targets: AllocTargets,
    pub(crate) segments: SegmentTable,
    pub(crate) chunks: ChunkTable,
    pub(crate) names: Names,
    /// Generation of the last fixed checkpoint, which needs everything that dies from now on.
    pub(crate) sealed_generation: u64,
    /// Units of all live content: the footprints of the chunks, and the objects.
    live_units: u64,
    usable_units: u64,
    /// Units that were ever freed.
    pub(crate) freed_units: u64,
    /// A planted bug: empty segments are reused at once.
    pub(crate) reuse_at_once: bool,
    /// A planted bug: a wiped segment stays clean when data in it dies.
    pub(crate) wipe_once: bool,
    /// A planted bug: slots that forwards lead to stay live.
    pub(crate) keeps_targets: bool,
}

/// Units that guests can fill of the data segments for which `pick` is true.
pub(crate) fn usable(layout: &SegmentLayout, pick: impl Fn(SegmentId) -> bool) -> u64 {
    let ids = (0..layout.count()).map(SegmentId).filter(|id| layout.alloc_class(*id) == AllocClass::Data && pick(*id));
    let (count, pages) =
        ids.map(|id| u64::from(layout.pages(id))).filter(|pages| *pages > 0).fold((0, 0), |(n, sum), pages| (n + 1, sum + pages));
    without_reserve(count, pages)
}

/// Units that guests can fill of `count` data segments with `pages` pages in total.
pub(crate) fn without_reserve(count: u64, pages: u64) -> u64 {
    let reserve = (pages * RESERVE_PERCENT / 100).max(pages / u64::max(count, 1) * RESERVE_SEGMENTS);
    pages.saturating_sub(reserve) * 8
}

impl Space {
    pub(crate) fn new(layout: SegmentLayout) -> Space {
        let mut space = Space {
            layout,
            targets: AllocTargets { landing: AllocClass::Data, meta: AllocClass::Data, small: None, nodes: None },
            segments: SegmentTable::new(),
            chunks: ChunkTable::default(),
            names: Names::default(),
            sealed_generation: 0,
            live_units: 0,
            usable_units: 0,
            freed_units: 0,
            reuse_at_once: false,
            wipe_once: false,
            keeps_targets: false,
        };
        space.take_rows();
        space
    }

    /// Adds the segments that `layout` has gained.
    pub(crate) fn take_rows(&mut self) {
        let Space { layout, segments, .. } = self;
        segments.extend(layout.count(), |id| layout.home(id));
        for id in segments.ids() {
            if layout.pages(id) > 0 && segments.get(id).is_some_and(|s| s.state == SegmentState::Absent && !s.leaving) {
                segments.set_state(id, SegmentState::Free);
            }
        }
        self.settle_targets();
    }

    /// Derives the targets of new data from the segments that are not being removed.
    fn settle_targets(&mut self) {
        let stays = |id: &SegmentId| self.segments.get(*id).is_some_and(|s| s.state != SegmentState::Absent && !s.leaving);
        let (mut log, mut special, mut nodes) = (false, false, false);
        for id in self.segments.ids().filter(stays) {
            log |= self.layout.alloc_class(id) == AllocClass::Log;
            special |= self.layout.alloc_class(id) == AllocClass::Special;
            nodes |= self.layout.alloc_class(id) == AllocClass::Nodes;
        }
        let landing = if log { AllocClass::Log } else { AllocClass::Data };
        let small = special.then_some(AllocClass::Special);
        let nodes = if nodes { Some(AllocClass::Nodes) } else { small };
        let meta = if self.needs_log(|id| stays(&id)) { landing } else { AllocClass::Data };
        self.targets = AllocTargets { landing, meta, small, nodes };
        self.usable_units = self.usable_without(&BTreeSet::new());
    }

    /// Returns whether the segments for which `pick` is true need a log beside them: some of them
    /// are written whole.
    pub(crate) fn needs_log(&self, pick: impl Fn(SegmentId) -> bool) -> bool {
        self.segments.ids().any(|id| self.layout.is_written_whole(id) && pick(id))
    }

    /// Units that guests could fill without the segments in `gone`.
    pub(crate) fn usable_without(&self, gone: &BTreeSet<SegmentId>) -> u64 {
        usable(&self.layout, |id| !gone.contains(&id) && self.segments.get(id).is_some_and(|s| !s.leaving))
    }

    /// Marks segments as being removed: they cannot be allocated any more once they are free.
    pub(crate) fn leave_segments(&mut self, leaving: &BTreeSet<SegmentId>) {
        for id in leaving {
            let Some(segment) = self.segments.get_mut(*id) else { continue };
            segment.leaving = true;
            if segment.state == SegmentState::Free {
                self.segments.set_state(*id, SegmentState::Absent);
            }
        }
        self.settle_targets();
    }

    /// Cancels a removal: the segments can be allocated again.
    pub(crate) fn stay(&mut self, leaving: &BTreeSet<SegmentId>) {
        for id in leaving {
            let Some(segment) = self.segments.get_mut(*id) else { continue };
            segment.leaving = false;
            if segment.state == SegmentState::Absent {
                self.segments.set_state(*id, SegmentState::Free);
            }
        }
        self.settle_targets();
    }

    /// Units that guests can fill.
    pub(crate) fn usable_units(&self) -> u64 {
        self.usable_units
    }

    /// Units of all live content.
    pub(crate) fn live_units(&self) -> u64 {
        self.live_units
    }

    /// Makes `slots` slots from `slot` on live.
    pub(crate) fn make_live(&mut self, id: ChunkId, slot: u32, slots: u32) {
        let chunk = self.chunks.get_mut(id).expect("INV-SPACE-2: live slots belong to a chunk");
        let fresh = chunk.live.insert_range(slot, slots);
        assert_eq!(fresh, slots, "INV-SPACE-2: a slot of {slots} from {slot} of chunk {id} used twice");
        let before = chunk.footprint();
        chunk.live_count += slots;
        let units = chunk.footprint() - before;
        let place = chunk.place;
        self.live_units += u64::from(units);
        if let Some(segment) = place.and_then(|p| self.segments.get_mut(p.segment)) {
            segment.live += units;
        }
    }

    /// Frees the slots that `addr` covers. A slot that a move left behind before replay reached its
    /// free is gone already.
    pub(crate) fn free(&mut self, addr: Addr) {
        let Some(chunk) = self.chunks.get(addr.chunk()) else { return };
        let slots = chunk.slots_of(addr);
        self.free_slots(addr.chunk(), addr.slot()..addr.slot() + slots);
    }

    /// Frees slots of one chunk as [`free_slots`](Self::free_slots) does, without a record in the
    /// log. After a crash they are freed again, so a checkpoint must include this before their
    /// segment is reused.
    pub(crate) fn free_unlogged(&mut self, id: ChunkId, slots: impl IntoIterator<Item = u32>) {
        self.mark_unlogged(id);
        let targets = self.take_slots(id, slots).1;
        if self.keeps_targets {
            return;
        }
        for target in targets {
            self.mark_unlogged(target.chunk());
            self.take_slots(target.chunk(), [target.slot()]);
        }
    }

    /// Marks the segment of a chunk: what empties it is not in the log.
    fn mark_unlogged(&mut self, id: ChunkId) {
        let place = self.chunks.get(id).and_then(|chunk| chunk.place);
        if let Some(segment) = place.and_then(|place| self.segments.get_mut(place.segment)) {
            segment.unlogged = self.sealed_generation;
        }
    }

    /// Frees slots of one chunk and skips those that are not used. Returns how many were used.
    pub(crate) fn free_slots(&mut self, id: ChunkId, slots: impl IntoIterator<Item = u32>) -> u32 {
        let (freed, targets) = self.take_slots(id, slots);
        // neighbours in their volume have neighbours as targets
        for group in targets.chunk_by(|a, b| a.chunk() == b.chunk()) {
            if let Some(first) = group.first().filter(|_| !self.keeps_targets) {
                self.take_slots(first.chunk(), group.iter().map(|target| target.slot()));
            }
        }
        freed + targets.len() as u32
    }

    /// Frees slots of one chunk. Returns how many were here, and the targets of the others, which are
    /// to be freed, too (INV-FORWARD-1).
    fn take_slots(&mut self, id: ChunkId, slots: impl IntoIterator<Item = u32>) -> (u32, SmallVec<[Addr; 4]>) {
        let mut targets: SmallVec<[Addr; 4]> = SmallVec::new();
        let Some(chunk) = self.chunks.get_mut(id) else { return (0, targets) };
        let (before, forwards) = (chunk.footprint(), chunk.forward_count());
        let mut freed = 0;
        for slot in slots {
            if chunk.live.remove(slot) {
                freed += 1;
            } else {
                targets.extend(chunk.take_forward(slot));
            }
        }
        chunk.live_count -= freed;
        let units = before - chunk.footprint();
        let (place, grain, is_empty) = (chunk.place, chunk.grain, chunk.live_count == 0);
        self.chunks.count_forwards(forwards, forwards - targets.len());
        self.live_units -= u64::from(units);
        self.freed_units += u64::from(freed * u32::from(grain));
        if let Some(segment) = place.and_then(|p| self.segments.get_mut(p.segment)) {
            segment.live -= units;
            segment.unclean |= freed > 0 && !self.wipe_once;
        }
        if is_empty {
            self.settle_chunk(id);
        }
        (freed, targets)
    }

    /// Forwards a slot, whose block was written to `target`, a slot of another chunk that was never
    /// used. Returns false, and changes nothing, when the slot is not used any more.
    pub(crate) fn forward(&mut self, source: Addr, target: Addr) -> bool {
        let (id, slot) = (source.chunk(), source.slot());
        let Some(chunk) = self.chunks.get_mut(id).filter(|chunk| chunk.uses(slot)) else { return false };
        let is_plain = u32::from(chunk.grain) == BLOCK_UNITS && source.units() == BLOCK_UNITS;
        assert!(is_plain && target.chunk() != id, "INV-FORWARD-2: {source:?} cannot be forwarded to {target:?}");
        let (before, forwards) = (chunk.footprint(), chunk.forward_count());
        let was_here = chunk.live.remove(slot);
        chunk.live_count -= u32::from(was_here);
        let old = chunk.set_forward(slot, target);
        let (units, place, now) = (before - chunk.footprint(), chunk.place, chunk.forward_count());
        self.chunks.count_forwards(forwards, now);
        self.live_units -= u64::from(units);
        if let Some(segment) = place.and_then(|p| self.segments.get_mut(p.segment)) {
            segment.live -= units;
            segment.unclean |= was_here && !self.wipe_once;
        }
        self.make_live(target.chunk(), target.slot(), 1);
        if let Some(old) = old {
            self.take_slots(old.chunk(), [old.slot()]);
        }
        self.settle_chunk(id);
        true
    }

    /// Closes a chunk: it gets no more slots.
    pub(crate) fn close_chunk(&mut self, id: ChunkId) {
        if let Some(chunk) = self.chunks.get_mut(id) {
            chunk.open = false;
            self.settle_chunk(id);
        }
    }

    /// Drops a chunk that nothing needs, and gives up the place of one where nothing is.
    fn settle_chunk(&mut self, id: ChunkId) {
        let Some(chunk) = self.chunks.get(id).filter(|chunk| chunk.live_count == 0 && !chunk.open) else { return };
        if !chunk.is_used() {
            self.drop_chunk(id);
        } else if chunk.place.is_some()
            && let Some(place) = self.chunks.get_mut(id).and_then(Chunk::vacate)
        {
            self.leave(place.segment);
        }
    }

    fn drop_chunk(&mut self, id: ChunkId) {
        if let Some(Chunk { place: Some(place), .. }) = self.chunks.remove(id) {
            self.leave(place.segment);
        }
    }

    fn leave(&mut self, segment: SegmentId) {
        if let Some(s) = self.segments.get_mut(segment) {
            s.placed -= 1;
        }
        self.settle(segment);
    }

    /// Marks a segment as full. A segment of lost devices counts as used until its content is
    /// overwritten, and cannot be allocated afterwards.
    pub(crate) fn seal(&mut self, segment: SegmentId) {
        if self.layout.is_gap(segment)
            && let Some(gap) = self.segments.get_mut(segment)
        {
            gap.leaving = true;
        }
        self.segments.set_state(segment, SegmentState::Sealed);
    }

    /// Puts a sealed segment without content into retention, until no checkpoint needs it.
    pub(crate) fn settle(&mut self, segment: SegmentId) {
        let empty = self.segments.get(segment).is_some_and(|s| s.state == SegmentState::Sealed && s.placed == 0 && s.objects == 0);
        if empty {
            let state = if self.reuse_at_once { SegmentState::Free } else { SegmentState::Retained(self.sealed_generation) };
            self.segments.set_state(segment, state);
        }
    }

    /// Gives a chunk a place, or a new one. `identities`: see [`Chunk::identities`]. `present`: the
    /// slots that were copied; `None`: all.
    pub(crate) fn place_chunk(&mut self, id: ChunkId, place: Place, class: u8, identities: Option<u32>, present: Option<Slots>) {
        let Some(chunk) = self.chunks.get_mut(id) else { return };
        let old = chunk.place.replace(place);
        let before = chunk.footprint();
        chunk.identities = identities;
        chunk.class = class;
        if let Some(present) = present {
            chunk.set_present(present);
        }
        let (after, birth) = (chunk.footprint(), chunk.birth);
        self.live_units -= u64::from(before - after);
        let metadata = self.chunks.get(id).is_some_and(|chunk| chunk.grain == NODE_GRAIN);
        if let Some(segment) = self.segments.get_mut(place.segment) {
            segment.metadata |= metadata;
            segment.live += after;
            segment.placed += 1;
            segment.chunks.push(id);
            segment.youngest = segment.youngest.max(birth);
        }
        if let Some(old) = old {
            if let Some(segment) = self.segments.get_mut(old.segment) {
                segment.live -= before;
                segment.unclean = true;
            }
            self.leave(old.segment);
        }
        self.settle_chunk(id);
    }

    /// Adds the bytes of a checkpoint object to the counts.
    pub(crate) fn add_object(&mut self, segment: SegmentId, bytes: u32) {
        let units = bytes.div_ceil(512);
        self.live_units += u64::from(units);
        if let Some(s) = self.segments.get_mut(segment) {
            s.objects += units;
            s.metadata = true;
        }
    }

    /// Removes the bytes of a checkpoint object from the counts.
    pub(crate) fn drop_object(&mut self, segment: SegmentId, bytes: u32) {
        let units = bytes.div_ceil(512);
        self.live_units -= u64::from(units);
        if let Some(s) = self.segments.get_mut(segment) {
            s.objects -= units;
        }
        self.settle(segment);
    }

    /// Returns the place of `addr`: segment, and unit in it. `None` when it was on lost devices.
    pub(crate) fn locate(&self, addr: Addr) -> Option<(SegmentId, u32)> {
        let (mut chunk, mut slot) = (self.chunks.get(addr.chunk())?, addr.slot());
        if let Some(target) = chunk.forward_of(slot) {
            (chunk, slot) = (self.chunks.get(target.chunk())?, target.slot());
        }
        let place = chunk.place.filter(|place| !self.layout.is_gap(place.segment))?;
        Some((place.segment, place.page * 8 + chunk.unit_of(slot)?))
    }

    /// Returns the address where the block of `addr` is: that of its forward, or its own.
    pub(crate) fn resolve(&self, addr: Addr) -> Addr {
        let forward = self.chunks.get(addr.chunk()).and_then(|chunk| chunk.forward_of(addr.slot()));
        forward.unwrap_or(addr)
    }

    /// Computes the counts of segments after a chunk table was loaded from a checkpoint.
    pub(crate) fn recount(&mut self) {
        self.live_units = 0;
        for id in self.chunks.ids() {
            let Some(chunk) = self.chunks.get(id) else { continue };
            let (units, birth, class, metadata) = (chunk.footprint(), chunk.birth, chunk.class, chunk.grain == NODE_GRAIN);
            self.live_units += u64::from(units);
            if let Some(place) = chunk.place
                && let Some(segment) = self.segments.get_mut(place.segment)
            {
                segment.live += units;
                segment.placed += 1;
                segment.chunks.push(id);
                segment.youngest = segment.youngest.max(birth);
                segment.class = class;
                segment.metadata |= metadata;
            }
        }
    }
}

#[cfg(test)]
mod tests;
