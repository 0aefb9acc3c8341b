//! All segments: the free ones of each class and group, and counts of their states.

mod segment;

use std::collections::BTreeSet;

use millpond_format::{Lsn, SegmentId};

use self::segment::{NOT_LOGGED, Rank};
pub(crate) use self::segment::{Pause, Segment, SegmentState};
use super::layout::AllocClass;

/// The segments of one group.
#[derive(Debug)]
struct GroupAllocator {
    /// First segment of the group, which identifies it.
    first: SegmentId,
    alloc_class: AllocClass,
    /// Pages on devices of each of its segments; the last segments of a stripe may have fewer. 0 in a
    /// bucket, so that no sum of pages counts its segments.
    pages: u32,
    /// Free segments; those with space on the host come first.
    free: BTreeSet<(Rank, SegmentId)>,
    /// Number of free segments with space on the host, and of those whose space can be discarded.
    ready: usize,
    surplus: usize,
    /// Number of segments that exist, and among them the number that are empty: free, or free soon.
    there: usize,
    empty: usize,
    /// Allocations that the group still has to provide, for the weighted round robin of
    /// [`SegmentTable::reserve`].
    credit: i64,
    /// True when the group holds more than its share: moved chunks go to other groups.
    spared: bool,
}

impl GroupAllocator {
    fn free_pages(&self) -> u64 {
        self.free.len() as u64 * u64::from(self.pages)
    }

    fn ready_pages(&self) -> u64 {
        self.ready as u64 * u64::from(self.pages)
    }

    /// Share of `pages` in proportion to this group's part of all free pages.
    fn share(&self, pages: u64, all_free: u64) -> u64 {
        let share = (u128::from(pages) * u128::from(self.free_pages())).checked_div(u128::from(all_free)).unwrap_or(0);
        u64::try_from(share).unwrap_or(u64::MAX)
    }
}

/// Fill level of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fill {
    /// First segment of the group.
    pub(crate) first: SegmentId,
    /// Segments that hold data or are being filled.
    pub(crate) used: usize,
    /// All segments.
    pub(crate) there: usize,
    /// Pages of each segment.
    pub(crate) pages: u32,
}

/// Pages of free segments that shall have space on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) pages: u64,
    /// A class that comes first: it gets all of `pages`, up to its free segments, and the others
    /// share the rest. `None`: all classes share `pages`.
    pub(crate) first: Option<AllocClass>,
}

/// Pages of empty segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pages {
    /// Pages of free segments with space that discarding would not free.
    pub(crate) kept: u64,
    /// Pages of other free segments with space on the host.
    pub(crate) ready: u64,
    /// Pages of free segments without space on the host.
    pub(crate) holes: u64,
    /// Pages of segments in retention.
    pub(crate) retained: u64,
}

impl Pages {
    fn of(&mut self, rank: Rank) -> &mut u64 {
        match rank {
            Rank::Kept => &mut self.kept,
            Rank::Ready => &mut self.ready,
            Rank::Hole => &mut self.holes,
        }
    }
}

/// All segments of a pool.
#[derive(Debug)]
pub(crate) struct SegmentTable {
    segments: Vec<Segment>,
    /// Groups, in order of their segments.
    allocators: Vec<GroupAllocator>,
    /// Free segments of each class.
    free: [usize; AllocClass::ALL.len()],
    /// Pages of empty segments.
    pages: Pages,
    /// Existing segments of each class.
    there: [usize; AllocClass::ALL.len()],
    /// Segments of each class in retention.
    rest: [usize; AllocClass::ALL.len()],
    discarding: usize,
    preparing: usize,
    retained: BTreeSet<(u64, SegmentId)>,
    /// Highest generation of a segment whose retention has ended: roots up to this one may need it.
    outlived: u64,
    /// Segments that became empty in this turn.
    emptied: Vec<SegmentId>,
    /// Bucket segments that became free since the last call of [`take_freed`](SegmentTable::take_freed).
    freed: Vec<SegmentId>,
}

impl SegmentTable {
    pub(crate) fn new() -> SegmentTable {
        SegmentTable {
            segments: Vec::new(),
            allocators: Vec::new(),
            free: [0; AllocClass::ALL.len()],
            pages: Pages::default(),
            there: [0; AllocClass::ALL.len()],
            rest: [0; AllocClass::ALL.len()],
            discarding: 0,
            preparing: 0,
            retained: BTreeSet::new(),
            outlived: 0,
            emptied: Vec::new(),
            freed: Vec::new(),
        }
    }

    /// Adds free segments up to id `count`; ids without `home` become absent.
    pub(crate) fn extend(&mut self, count: u32, home: impl Fn(SegmentId) -> Option<(AllocClass, SegmentId, u32)>) {
        let fresh = Segment {
            state: SegmentState::Free,
            live: 0,
            objects: 0,
            chunks: Vec::new(),
            placed: 0,
            pins: 0,
            youngest: 0,
            filled: 0,
            class: 0,
            last: Lsn(0),
            metadata: false,
            unlogged: 0,
            emptied: NOT_LOGGED,
            backed: false,
            kept: false,
            uses: 0,
            left_until: 0,
            left_for: Pause::Room,
            leaving: false,
            emptying: false,
            unclean: true,
            alloc_class: AllocClass::Data,
            allocator: None,
        };
        let first = self.ids().len() as u32;
        for id in (first..count).map(SegmentId) {
            let Some((alloc_class, group, pages)) = home(id) else {
                self.segments.push(Segment { state: SegmentState::Absent, ..fresh.clone() });
                continue;
            };
            if self.allocators.last().is_none_or(|allocator| allocator.first != group) {
                let free = BTreeSet::new();
                let pages = if alloc_class == AllocClass::Bucket { 0 } else { pages };
                let counts = GroupAllocator {
                    first: group,
                    alloc_class,
                    pages,
                    free,
                    ready: 0,
                    surplus: 0,
                    there: 0,
                    empty: 0,
                    credit: 0,
                    spared: false,
                };
                self.allocators.push(counts);
            }
            let allocator = self.allocators.len() - 1;
            self.segments.push(Segment { alloc_class, allocator: Some(allocator), ..fresh.clone() });
            self.allocators[allocator].there += 1;
            self.there[alloc_class as usize] += 1;
            self.enter(id, SegmentState::Free);
        }
    }

    /// Fill levels of the groups of a class.
    pub(crate) fn fills(&self, alloc_class: AllocClass) -> impl Iterator<Item = Fill> + '_ {
        let allocators = self.allocators.iter().filter(move |allocator| allocator.alloc_class == alloc_class && allocator.there > 0);
        allocators.map(|allocator| Fill {
            first: allocator.first,
            used: allocator.there - allocator.empty,
            there: allocator.there,
            pages: allocator.pages,
        })
    }

    /// Returns the first segment of the group that `id` belongs to.
    pub(crate) fn group_of(&self, id: SegmentId) -> Option<SegmentId> {
        self.get(id).and_then(|segment| self.allocators.get(segment.allocator?)).map(|allocator| allocator.first)
    }

    /// Makes moved chunks go to groups not in `spared`, while one of those has free segments.
    pub(crate) fn spare_groups(&mut self, spared: &[SegmentId]) {
        self.allocators.iter_mut().for_each(|allocator| allocator.spared = spared.contains(&allocator.first));
    }

    pub(crate) fn get(&self, id: SegmentId) -> Option<&Segment> {
        self.segments.get(id.0 as usize)
    }

    pub(crate) fn get_mut(&mut self, id: SegmentId) -> Option<&mut Segment> {
        self.segments.get_mut(id.0 as usize)
    }

    pub(crate) fn ids(&self) -> impl ExactSizeIterator<Item = SegmentId> + use<> {
        (0..self.segments.len()).map(|at| SegmentId(u32::try_from(at).unwrap_or(u32::MAX)))
    }

    /// Number of free segments of a class.
    pub(crate) fn free_in(&self, alloc_class: AllocClass) -> usize {
        self.free[alloc_class as usize]
    }

    /// Number of existing segments of a class.
    pub(crate) fn count_in(&self, alloc_class: AllocClass) -> usize {
        self.there[alloc_class as usize]
    }

    /// Number of segments of a class in retention.
    pub(crate) fn retained_in(&self, alloc_class: AllocClass) -> usize {
        self.rest[alloc_class as usize]
    }

    pub(crate) fn retained_count(&self) -> usize {
        self.retained.len()
    }

    /// Segments in retention, with their generations.
    pub(crate) fn retained(&self) -> impl Iterator<Item = (SegmentId, u64)> + '_ {
        self.retained.iter().map(|(generation, id)| (*id, *generation))
    }

    /// Pages of empty segments, by the space that the host has for them.
    pub(crate) fn pages(&self) -> Pages {
        self.pages
    }

    /// Pages of segments that are not empty.
    pub(crate) fn used_pages(&self) -> u64 {
        self.allocators.iter().map(|allocator| (allocator.there - allocator.empty) as u64 * u64::from(allocator.pages)).sum()
    }

    /// Pages of all existing segments.
    pub(crate) fn all_pages(&self) -> u64 {
        self.allocators.iter().map(|allocator| allocator.there as u64 * u64::from(allocator.pages)).sum()
    }

    /// Pages of all existing segments of a class.
    pub(crate) fn pages_in(&self, alloc_class: AllocClass) -> u64 {
        let of_class = self.allocators.iter().filter(|allocator| allocator.alloc_class == alloc_class);
        of_class.map(|allocator| allocator.there as u64 * u64::from(allocator.pages)).sum()
    }

    /// Pages of free segments with space on the host, of the class that comes first or, without one,
    /// of all.
    pub(crate) fn ready_pages(&self, first: Option<AllocClass>) -> u64 {
        let counted = self.allocators.iter().filter(|allocator| first.is_none_or(|first| allocator.alloc_class == first));
        counted.map(GroupAllocator::ready_pages).sum()
    }

    /// Returns whether free segments without space on the host are left, of the class that comes first or,
    /// without one, of any.
    pub(crate) fn has_holes(&self, first: Option<AllocClass>) -> bool {
        let mut counted = self.allocators.iter().filter(|allocator| first.is_none_or(|first| allocator.alloc_class == first));
        counted.any(|allocator| allocator.free.len() > allocator.ready)
    }

    /// Returns the pages of each group that shall be ready: its share of the free pages of the class
    /// that comes first, or of the other classes.
    fn shares(&self, wanted: Wanted) -> impl Fn(&GroupAllocator) -> u64 + use<> {
        let comes_first = move |allocator: &GroupAllocator| wanted.first == Some(allocator.alloc_class);
        let free = |first: bool| -> u64 {
            self.allocators.iter().filter(|allocator| comes_first(allocator) == first).map(GroupAllocator::free_pages).sum()
        };
        let (free_first, free_others) = (free(true), free(false));
        let of_first = wanted.pages.min(free_first);
        move |allocator| {
            let (pages, free) = if comes_first(allocator) { (of_first, free_first) } else { (wanted.pages - of_first, free_others) };
            allocator.share(pages, free)
        }
    }

    /// Returns the next hole to prepare. The groups of the class that comes first are prepared
    /// first. Each group's share of `wanted` is in proportion to its free segments. The hole is the
    /// lowest of the group that has the smallest part of its share, because the log uses the lowest
    /// first. With `fills` false, returns `None` while every group has half of its share.
    pub(crate) fn next_hole(&self, wanted: Wanted, fills: bool) -> Option<SegmentId> {
        let share_of = self.shares(wanted);
        let holes = self.allocators.iter().filter(|allocator| allocator.free.len() > allocator.ready);
        let shares = holes.filter_map(|allocator| {
            let share = share_of(allocator);
            let ready = allocator.ready_pages();
            let least = if fills { share } else { share / 2 };
            (ready < least).then(|| (u128::from(ready) * 1024 / u128::from(share.max(1)), allocator))
        });
        let later = |allocator: &GroupAllocator| wanted.first != Some(allocator.alloc_class);
        let (_, allocator) = shares.min_by_key(|(part, allocator)| (later(allocator), *part, allocator.first))?;
        allocator.free.range((Rank::Hole, SegmentId(0))..).next().map(|(_, id)| *id)
    }

    /// Returns the next free segments whose space should be discarded: consecutive segments of the
    /// group with the most surplus, the highest ones, because the log uses these last; at most
    /// `pages` pages, but at least one segment. Each group keeps its share of `wanted`, up to which
    /// [`next_hole`](Self::next_hole) prepares: otherwise preparing and discarding would alternate
    /// for ever.
    pub(crate) fn last_ready(&self, pages: u64, wanted: Wanted) -> Vec<SegmentId> {
        let share_of = self.shares(wanted);
        let spare = |allocator: &GroupAllocator| {
            let least = share_of(allocator).div_ceil(u64::from(allocator.pages.max(1)));
            allocator.surplus.min(allocator.ready.saturating_sub(usize::try_from(least).unwrap_or(usize::MAX)))
        };
        let most = self.allocators.iter().map(|allocator| (spare(allocator), allocator)).filter(|(spare, _)| *spare > 0);
        let Some((spare, allocator)) = most.max_by_key(|(spare, allocator)| *spare as u64 * u64::from(allocator.pages)) else {
            return Vec::new();
        };
        let count = usize::try_from(pages / u64::from(allocator.pages.max(1))).unwrap_or(usize::MAX).clamp(1, spare);
        let mut found: Vec<SegmentId> = Vec::new();
        for (_, id) in allocator.free.range((Rank::Ready, SegmentId(0))..(Rank::Hole, SegmentId(0))).rev().take(count) {
            if found.last().is_some_and(|last| last.0 != id.0 + 1) {
                break;
            }
            found.push(*id);
        }
        found
    }

    /// Number of segments whose space is being discarded.
    pub(crate) fn discarding(&self) -> usize {
        self.discarding
    }

    /// Number of segments that are being prepared.
    pub(crate) fn preparing(&self) -> usize {
        self.preparing
    }

    /// Allocates a free segment of a class. Groups take turns in proportion to their free segments
    /// (smooth weighted round robin), so groups of any size fill up together and all devices take
    /// part all the time. Within the group: the lowest segment with space on the host, else the
    /// lowest. `moved`: for chunks that are moved.
    pub(crate) fn reserve(&mut self, alloc_class: AllocClass, moved: bool) -> Option<SegmentId> {
        self.reserve_where(alloc_class, moved, |_| true)
    }

    /// Allocates a free segment as [`reserve`](Self::reserve) does, one for which `pick` is true.
    pub(crate) fn reserve_where(&mut self, alloc_class: AllocClass, moved: bool, pick: impl Fn(SegmentId) -> bool) -> Option<SegmentId> {
        let picks = |allocator: &GroupAllocator| allocator.free.iter().any(|(_, id)| pick(*id));
        let has = |allocator: &GroupAllocator| allocator.alloc_class == alloc_class && picks(allocator);
        let sparing = moved && self.allocators.iter().any(|allocator| has(allocator) && !allocator.spared);
        let picked = |allocator: &GroupAllocator| has(allocator) && !(sparing && allocator.spared);
        let mut all = 0;
        for allocator in self.allocators.iter_mut().filter(|allocator| picked(allocator)) {
            allocator.credit += allocator.free.len() as i64;
            all += allocator.free.len() as i64;
        }
        let next = self
            .allocators
            .iter_mut()
            .filter(|allocator| picked(allocator))
            .max_by_key(|allocator| (allocator.credit, std::cmp::Reverse(allocator.first)))?;
        next.credit -= all;
        let id = next.free.iter().map(|(_, id)| *id).find(|id| pick(*id))?;
        self.set_state(id, SegmentState::Reserved);
        Some(id)
    }

    /// Changes a segment's state and updates all counts and indexes.
    pub(crate) fn set_state(&mut self, id: SegmentId, state: SegmentState) {
        let Some(segment) = self.segments.get(id.0 as usize) else { return };
        let state = match state {
            SegmentState::Free if segment.leaving => SegmentState::Absent,
            SegmentState::Free if segment.emptying => SegmentState::Discarding,
            // segments of a lost group cannot be written
            SegmentState::Free | SegmentState::Retained(_) | SegmentState::Discarding | SegmentState::Preparing
                if segment.allocator.is_none() =>
            {
                SegmentState::Absent
            }
            _ => state,
        };
        self.leave(id);
        self.enter(id, state);
    }

    fn leave(&mut self, id: SegmentId) {
        let Some(segment) = self.segments.get(id.0 as usize) else { return };
        let Some(allocator) = segment.allocator.and_then(|allocator| self.allocators.get_mut(allocator)) else { return };
        let (alloc_class, rank, pages) = (segment.alloc_class as usize, segment.rank(), u64::from(allocator.pages));
        allocator.empty -= usize::from(is_empty(segment.state));
        match segment.state {
            SegmentState::Absent => {
                self.there[alloc_class] += 1;
                allocator.there += 1;
            }
            SegmentState::Free => {
                allocator.free.remove(&(rank, id));
                allocator.ready -= usize::from(rank != Rank::Hole);
                allocator.surplus -= usize::from(rank == Rank::Ready);
                self.free[alloc_class] -= 1;
                *self.pages.of(rank) -= pages;
            }
            SegmentState::Retained(generation) => {
                self.retained.remove(&(generation, id));
                self.outlived = self.outlived.max(generation);
                self.rest[alloc_class] -= 1;
                self.pages.retained -= pages;
            }
            SegmentState::Discarding => self.discarding -= 1,
            SegmentState::Preparing => self.preparing -= 1,
            _ => {}
        }
    }

    fn enter(&mut self, id: SegmentId, state: SegmentState) {
        let Some(segment) = self.segments.get_mut(id.0 as usize) else { return };
        segment.state = state;
        let Some(allocator) = segment.allocator.and_then(|allocator| self.allocators.get_mut(allocator)) else { return };
        let (alloc_class, pages) = (segment.alloc_class as usize, u64::from(allocator.pages));
        allocator.empty += usize::from(is_empty(state));
        match state {
            SegmentState::Free => {
                segment.chunks.clear();
                (segment.youngest, segment.filled) = (0, 0);
                segment.left_until = 0;
                segment.uses = segment.uses.wrapping_add(1);
                (segment.last, segment.metadata, segment.unlogged) = (Lsn(0), false, 0);
                // not those that were never used
                if !segment.is_on_devices() && segment.uses > 1 {
                    self.freed.push(id);
                }
                let rank = segment.rank();
                allocator.free.insert((rank, id));
                allocator.ready += usize::from(rank != Rank::Hole);
                allocator.surplus += usize::from(rank == Rank::Ready);
                self.free[alloc_class] += 1;
                *self.pages.of(rank) += pages;
            }
            SegmentState::Retained(generation) => {
                segment.backed = segment.is_on_devices();
                segment.emptied = NOT_LOGGED;
                self.retained.insert((generation, id));
                self.rest[alloc_class] += 1;
                self.pages.retained += pages;
                self.emptied.push(id);
            }
            SegmentState::Discarding => {
                segment.backed = false;
                self.discarding += 1;
            }
            SegmentState::Preparing => self.preparing += 1,
            SegmentState::Reserved => {}
            SegmentState::Absent => {
                segment.chunks.clear();
                self.there[alloc_class] -= 1;
                allocator.there -= 1;
            }
            SegmentState::Open | SegmentState::Sealed => segment.backed = segment.is_on_devices(),
        }
    }

    /// Sets whether the host has space for a segment, and whether discarding would free it.
    pub(crate) fn set_backed(&mut self, id: SegmentId, backed: bool, kept: bool) {
        let changes = |segment: &&mut Segment| segment.is_on_devices() && (segment.backed, segment.kept) != (backed, kept);
        let Some(segment) = self.get_mut(id).filter(changes) else { return };
        let (state, uses) = (segment.state, segment.uses);
        if state != SegmentState::Free {
            return (segment.backed, segment.kept) = (backed, kept);
        }
        self.leave(id);
        if let Some(segment) = self.get_mut(id) {
            (segment.backed, segment.kept, segment.uses) = (backed, kept, uses.wrapping_sub(1));
        }
        self.enter(id, state);
    }

    /// Makes a segment free again whose preparation has ended; `backed`: it succeeded.
    pub(crate) fn prepared(&mut self, id: SegmentId, backed: bool) {
        if let Some(segment) = self.get_mut(id).filter(|segment| segment.state == SegmentState::Preparing) {
            segment.backed |= backed;
            self.set_state(id, SegmentState::Free);
        }
    }

    /// Marks all segments as clean: the pool is new.
    pub(crate) fn trust_all(&mut self) {
        self.segments.iter_mut().for_each(|segment| segment.unclean = false);
    }

    /// Marks a segment for wiping: it is not free before it was wiped.
    pub(crate) fn empty_out(&mut self, id: SegmentId) {
        let Some(segment) = self.get_mut(id) else { return };
        segment.emptying = true;
        if segment.state == SegmentState::Free {
            self.set_state(id, SegmentState::Discarding);
        }
    }

    /// Cancels the wipe of a segment.
    pub(crate) fn keep(&mut self, id: SegmentId) {
        let Some(segment) = self.get_mut(id) else { return };
        segment.emptying = false;
        if segment.state == SegmentState::Discarding {
            segment.backed = true;
            self.set_state(id, SegmentState::Free);
        }
    }

    /// Marks a segment as wiped and free; `backed`: the host has space for it.
    pub(crate) fn cleaned(&mut self, id: SegmentId, backed: bool) {
        let Some(segment) = self.get_mut(id) else { return };
        (segment.emptying, segment.unclean, segment.backed) = (false, false, backed);
        self.set_state(id, SegmentState::Free);
    }

    /// Returns the bucket segments that became free since the last call; some may be in use again.
    pub(super) fn take_freed(&mut self) -> Vec<SegmentId> {
        std::mem::take(&mut self.freed)
    }

    /// Returns the number of names that the next checkpoint may doom: of bucket segments that became
    /// free, and of those in retention, which may become free until then.
    pub(crate) fn ending_names(&self) -> usize {
        self.freed.len() + self.retained_in(AllocClass::Bucket)
    }

    /// Records that the log up to `lsn` has what emptied segments since the last call.
    pub(crate) fn stamp_emptied(&mut self, lsn: Lsn) {
        for id in std::mem::take(&mut self.emptied) {
            if let Some(segment) = self.get_mut(id) {
                segment.emptied = lsn;
            }
        }
    }

    /// Returns the oldest segment in retention, with its generation, that has no reads in flight
    /// and that neither checkpoint `durable` nor the `keep` checkpoints before it need.
    pub(crate) fn retention_over(&self, durable: u64, keep: u64) -> Option<(SegmentId, u64)> {
        let ripe = self.retained.iter().take_while(|(generation, _)| generation + keep < durable);
        ripe.map(|(generation, id)| (*id, *generation)).find(|(id, _)| self.get(*id).is_some_and(|s| s.pins == 0))
    }

    /// Returns the generation up to which checkpoints may lack segments whose retention has ended;
    /// later ones are whole.
    pub(crate) fn outlived(&self) -> u64 {
        self.outlived
    }

    /// Marks checkpoints up to a generation as possibly incomplete: those of earlier imports, since
    /// it is unknown which segments were used again.
    pub(crate) fn outlive(&mut self, generation: u64) {
        self.outlived = self.outlived.max(generation);
    }

    /// Generation of the segment that entered retention last.
    pub(crate) fn retained_since(&self) -> Option<u64> {
        self.retained.last().map(|(generation, _)| *generation)
    }
}

/// True when a segment in this state holds no data.
fn is_empty(state: SegmentState) -> bool {
    matches!(state, SegmentState::Free | SegmentState::Retained(_) | SegmentState::Discarding | SegmentState::Preparing)
}

#[cfg(test)]
mod tests;
