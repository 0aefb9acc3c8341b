//! Segments: which are free, filling, full, resting, and what lives in them.

use std::collections::BTreeSet;

use millpond_format::{ChunkId, Lsn, SegmentId};

use super::rows::Shelf;

/// What a segment is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentState {
    /// To be had.
    Free,
    /// Promised to a stream as its next one.
    Reserved,
    /// A stream fills it.
    Open,
    /// Full, or left by its stream.
    Sealed,
    /// Empty, but checkpoints up to this generation need its bytes: free when a later one is durable.
    Resting(u64),
    /// Empty; its space is being given back to the device.
    Discarding,
    /// Empty; zeros are being written to it, so that the host has bytes for it when the log comes to it.
    Preparing,
    /// Not to be had: a gap in the shape.
    Absent,
}

/// One segment.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) state: SegmentState,
    /// Units of live blocks and nodes in it.
    pub(crate) live: u32,
    /// Units of checkpoint objects in it.
    pub(crate) objects: u32,
    /// Chunks placed here, some of which may have moved away since.
    pub(crate) chunks: Vec<ChunkId>,
    /// How many are really here.
    pub(crate) placed: u32,
    /// Reads in flight.
    pub(crate) pins: u32,
    /// Youngest birth of its chunks on the write clock.
    pub(crate) youngest: u64,
    /// Stream that filled it.
    pub(crate) class: u8,
    /// The last batch in it.
    pub(crate) last: Lsn,
    /// It held nodes or objects, which replay reads where the last checkpoint put them.
    pub(crate) metadata: bool,
    /// The last checkpoint that was fixed when slots here were freed without a record in the log; 0: never.
    pub(crate) unlogged: u64,
    /// When it rests: everything that emptied it is in the log up to here.
    pub(crate) emptied: Lsn,
    /// The host has bytes for it: it was in use, or prepared, since it was given back.
    pub(crate) backed: bool,
    /// What the host has for it is not given back.
    pub(crate) kept: bool,
    /// A device of its is leaving the pool: once it is free it is not to be had.
    pub(crate) leaving: bool,
    /// It is to be wiped: once it is free nothing is written to it before that.
    emptying: bool,
    /// It may hold bytes that nothing refers to: something in it died, or was moved away, since it was wiped or the pool was
    /// made; or that is not known, after an import and where a removal left room.
    pub(crate) unclean: bool,
    /// How often it became free: what was noted of it before is no longer about what it holds.
    pub(crate) uses: u32,
    /// What it is for.
    pub(crate) shelf: Shelf,
    /// The group that it belongs to; none of a group that was lost.
    bank: Option<usize>,
    /// The cleaner leaves it alone until this time (milliseconds), and why.
    pub(crate) left_until: u64,
    left_for: Pause,
}

/// Why the cleaner leaves a segment alone for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// Something in it is right on no copy, although all of its devices were there.
    Unreadable,
    /// Something in it is right on none of the copies that could be read, but devices of it were away or not whole.
    Away,
    /// The next checkpoint had no room for what moving it would change.
    Room,
}

impl Segment {
    /// Why it is left alone now.
    pub(crate) fn pause(&self, now: u64) -> Option<Pause> {
        (self.left_until > now).then_some(self.left_for)
    }

    /// It is left alone until a time.
    pub(crate) fn leave_until(&mut self, until: u64, why: Pause) {
        (self.left_until, self.left_for) = (until, why);
    }

    /// Is there something to wipe?
    pub(crate) fn is_unclean(&self) -> bool {
        self.unclean && self.bank.is_some() && self.state != SegmentState::Absent
    }

    /// Has it to be empty soon, for good or to be wiped?
    pub(crate) fn is_given_up(&self) -> bool {
        self.leaving || self.emptying
    }
}

impl Segment {
    /// The order in which free segments are used.
    fn rank(&self) -> Rank {
        match (self.backed, self.kept) {
            (true, true) => Rank::Kept,
            (true, false) => Rank::Ready,
            (false, _) => Rank::Hole,
        }
    }
}

/// What the host has for a free segment; in this order they are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Bytes, which it does not get back.
    Kept,
    /// Bytes.
    Ready,
    /// Nothing.
    Hole,
}

/// The segments of one group.
#[derive(Debug)]
struct Bank {
    /// The first of the group, which is its name.
    first: SegmentId,
    shelf: Shelf,
    /// Pages of each of its segments; the last ones of a stripe may have fewer.
    pages: u32,
    /// Free ones; in front those that the host has bytes for.
    free: BTreeSet<(Rank, SegmentId)>,
    /// How many of them the host has bytes for, and of these those that it may get back.
    ready: usize,
    surplus: usize,
    /// Those that are there, and of these the ones that hold nothing: free, or soon to be.
    there: usize,
    empty: usize,
    /// What the group is still owed of what was handed out.
    credit: i64,
    /// It holds more than its share: what is moved goes to others.
    spared: bool,
}

impl Bank {
    fn free_pages(&self) -> u64 {
        self.free.len() as u64 * u64::from(self.pages)
    }

    /// Its share of so many pages, as its free ones are to those of all groups.
    fn share(&self, pages: u64, all_free: u64) -> u64 {
        let share = (u128::from(pages) * u128::from(self.free_pages())).checked_div(u128::from(all_free)).unwrap_or(0);
        u64::try_from(share).unwrap_or(u64::MAX)
    }
}

/// How full a group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fill {
    /// Its first segment.
    pub(crate) first: SegmentId,
    /// Segments that hold something, or are just being filled.
    pub(crate) used: usize,
    /// All of them.
    pub(crate) there: usize,
    /// Pages of each.
    pub(crate) pages: u32,
}

/// Pages of segments that hold nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pages {
    /// Of free ones that the host has bytes for and does not get back.
    pub(crate) kept: u64,
    /// Of other free ones that it has bytes for.
    pub(crate) ready: u64,
    /// Of free ones that it has none for.
    pub(crate) holes: u64,
    /// Of those that rest.
    pub(crate) resting: u64,
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
    /// Groups in the order of their segments.
    banks: Vec<Bank>,
    /// Free ones of each shelf.
    free: [usize; Shelf::ALL.len()],
    /// Pages of those that hold nothing.
    pages: Pages,
    /// Segments of each shelf that are there.
    there: [usize; Shelf::ALL.len()],
    /// Resting ones of each.
    rest: [usize; Shelf::ALL.len()],
    discarding: usize,
    preparing: usize,
    resting: BTreeSet<(u64, SegmentId)>,
    /// Segments that began to rest in this turn.
    emptied: Vec<SegmentId>,
}

impl SegmentTable {
    pub(crate) fn new() -> SegmentTable {
        SegmentTable {
            segments: Vec::new(),
            banks: Vec::new(),
            free: [0; Shelf::ALL.len()],
            pages: Pages::default(),
            there: [0; Shelf::ALL.len()],
            rest: [0; Shelf::ALL.len()],
            discarding: 0,
            preparing: 0,
            resting: BTreeSet::new(),
            emptied: Vec::new(),
        }
    }

    /// Adds segments up to `count`: free ones of their shelf and group, but for those that are not there.
    pub(crate) fn extend(&mut self, count: u32, home: impl Fn(SegmentId) -> Option<(Shelf, SegmentId, u32)>) {
        let fresh = Segment {
            state: SegmentState::Free,
            live: 0,
            objects: 0,
            chunks: Vec::new(),
            placed: 0,
            pins: 0,
            youngest: 0,
            class: 0,
            last: Lsn(0),
            metadata: false,
            unlogged: 0,
            emptied: Lsn(u64::MAX),
            backed: false,
            kept: false,
            uses: 0,
            left_until: 0,
            left_for: Pause::Room,
            leaving: false,
            emptying: false,
            unclean: true,
            shelf: Shelf::Data,
            bank: None,
        };
        let first = self.ids().len() as u32;
        for id in (first..count).map(SegmentId) {
            let Some((shelf, group, pages)) = home(id) else {
                self.segments.push(Segment { state: SegmentState::Absent, ..fresh.clone() });
                continue;
            };
            if self.banks.last().is_none_or(|bank| bank.first != group) {
                let free = BTreeSet::new();
                let counts = Bank { first: group, shelf, pages, free, ready: 0, surplus: 0, there: 0, empty: 0, credit: 0, spared: false };
                self.banks.push(counts);
            }
            let bank = self.banks.len() - 1;
            self.segments.push(Segment { shelf, bank: Some(bank), ..fresh.clone() });
            self.banks[bank].there += 1;
            self.there[shelf as usize] += 1;
            self.enter(id, SegmentState::Free);
        }
    }

    /// How full the groups of a shelf are.
    pub(crate) fn fills(&self, shelf: Shelf) -> impl Iterator<Item = Fill> + '_ {
        let banks = self.banks.iter().filter(move |bank| bank.shelf == shelf && bank.there > 0);
        banks.map(|bank| Fill { first: bank.first, used: bank.there - bank.empty, there: bank.there, pages: bank.pages })
    }

    /// The first segment of the group of one.
    pub(crate) fn group_of(&self, id: SegmentId) -> Option<SegmentId> {
        self.get(id).and_then(|segment| self.banks.get(segment.bank?)).map(|bank| bank.first)
    }

    /// What is moved goes to other groups than these while one of them has room; none: to all.
    pub(crate) fn spare_groups(&mut self, spared: &[SegmentId]) {
        self.banks.iter_mut().for_each(|bank| bank.spared = spared.contains(&bank.first));
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

    /// Free ones of a shelf.
    pub(crate) fn free_in(&self, shelf: Shelf) -> usize {
        self.free[shelf as usize]
    }

    /// Segments of a shelf that are there.
    pub(crate) fn count_in(&self, shelf: Shelf) -> usize {
        self.there[shelf as usize]
    }

    /// Resting ones of a shelf.
    pub(crate) fn resting_in(&self, shelf: Shelf) -> usize {
        self.rest[shelf as usize]
    }

    pub(crate) fn resting_count(&self) -> usize {
        self.resting.len()
    }

    /// The resting segments with their generations.
    pub(crate) fn resting(&self) -> impl Iterator<Item = (SegmentId, u64)> + '_ {
        self.resting.iter().map(|(generation, id)| (*id, *generation))
    }

    /// Pages of segments that hold nothing, by what the host has for them.
    pub(crate) fn pages(&self) -> Pages {
        self.pages
    }

    /// Pages of segments that hold something.
    pub(crate) fn used_pages(&self) -> u64 {
        self.banks.iter().map(|bank| (bank.there - bank.empty) as u64 * u64::from(bank.pages)).sum()
    }

    /// Pages of all segments that are there.
    pub(crate) fn all_pages(&self) -> u64 {
        self.banks.iter().map(|bank| bank.there as u64 * u64::from(bank.pages)).sum()
    }

    /// Pages of free segments.
    fn free_pages(&self) -> u64 {
        self.banks.iter().map(Bank::free_pages).sum()
    }

    /// The hole that is to be prepared next when so many pages are to be ready, shared out to the groups as their free segments are: the lowest of the
    /// group that has least of its share, for the log comes to that first. Without `fills` none while every group has half of its share.
    pub(crate) fn next_hole(&self, wanted: u64, fills: bool) -> Option<SegmentId> {
        let all = self.free_pages();
        let holes = self.banks.iter().filter(|bank| bank.free.len() > bank.ready);
        let shares = holes.filter_map(|bank| {
            let share = bank.share(wanted, all);
            let ready = bank.ready as u64 * u64::from(bank.pages);
            let least = if fills { share } else { share / 2 };
            (ready < least).then(|| (u128::from(ready) * 1024 / u128::from(share.max(1)), bank))
        });
        let (_, bank) = shares.min_by_key(|(part, bank)| (*part, bank.first))?;
        bank.free.range((Rank::Hole, SegmentId(0))..).next().map(|(_, id)| *id)
    }

    /// Free segments whose bytes the host gets back first when so many are wanted, at most `pages` of them but one at least: neighbours, and the last
    /// of the group that has most of them, for the log comes to those last. Each group keeps its share of what is wanted, up to which
    /// [`next_hole`](Self::next_hole) fills it: were some of that given back, the two would go on for ever.
    pub(crate) fn last_ready(&self, pages: u64, wanted: u64) -> Vec<SegmentId> {
        let all = self.free_pages();
        let spare = |bank: &Bank| {
            let least = bank.share(wanted, all).div_ceil(u64::from(bank.pages.max(1)));
            bank.surplus.min(bank.ready.saturating_sub(usize::try_from(least).unwrap_or(usize::MAX)))
        };
        let most = self.banks.iter().map(|bank| (spare(bank), bank)).filter(|(spare, _)| *spare > 0);
        let Some((spare, bank)) = most.max_by_key(|(spare, bank)| *spare as u64 * u64::from(bank.pages)) else { return Vec::new() };
        let count = usize::try_from(pages / u64::from(bank.pages.max(1))).unwrap_or(usize::MAX).clamp(1, spare);
        let mut found: Vec<SegmentId> = Vec::new();
        for (_, id) in bank.free.range((Rank::Ready, SegmentId(0))..(Rank::Hole, SegmentId(0))).rev().take(count) {
            if found.last().is_some_and(|last| last.0 != id.0 + 1) {
                break;
            }
            found.push(*id);
        }
        found
    }

    /// Segments whose space is being given back.
    pub(crate) fn discarding(&self) -> usize {
        self.discarding
    }

    /// Segments that are being prepared.
    pub(crate) fn preparing(&self) -> usize {
        self.preparing
    }

    /// Takes a free segment of a shelf, of each group in turn as often as it has free ones (smooth weighted round robin): so groups fill up
    /// together, whatever their size, and all devices take part all the time. In the group: the lowest of those that the host has bytes for,
    /// else the lowest. `moved`: it is for what is moved.
    pub(crate) fn reserve(&mut self, shelf: Shelf, moved: bool) -> Option<SegmentId> {
        let has = |bank: &Bank| bank.shelf == shelf && !bank.free.is_empty();
        let sparing = moved && self.banks.iter().any(|bank| has(bank) && !bank.spared);
        let picked = |bank: &Bank| has(bank) && !(sparing && bank.spared);
        let mut all = 0;
        for bank in self.banks.iter_mut().filter(|bank| picked(bank)) {
            bank.credit += bank.free.len() as i64;
            all += bank.free.len() as i64;
        }
        let next = self.banks.iter_mut().filter(|bank| picked(bank)).max_by_key(|bank| (bank.credit, std::cmp::Reverse(bank.first)))?;
        next.credit -= all;
        let (_, id) = next.free.first().copied()?;
        self.set_state(id, SegmentState::Reserved);
        Some(id)
    }

    /// Changes a segment's state and keeps the indexes true.
    pub(crate) fn set_state(&mut self, id: SegmentId, state: SegmentState) {
        let Some(segment) = self.segments.get(id.0 as usize) else { return };
        let state = match state {
            SegmentState::Free if segment.leaving => SegmentState::Absent,
            SegmentState::Free if segment.emptying => SegmentState::Discarding,
            // nothing can be written where no group is
            SegmentState::Free | SegmentState::Resting(_) | SegmentState::Discarding | SegmentState::Preparing
                if segment.bank.is_none() =>
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
        let Some(bank) = segment.bank.and_then(|bank| self.banks.get_mut(bank)) else { return };
        let (shelf, rank, pages) = (segment.shelf as usize, segment.rank(), u64::from(bank.pages));
        bank.empty -= usize::from(is_empty(segment.state));
        match segment.state {
            SegmentState::Absent => {
                self.there[shelf] += 1;
                bank.there += 1;
            }
            SegmentState::Free => {
                bank.free.remove(&(rank, id));
                bank.ready -= usize::from(rank != Rank::Hole);
                bank.surplus -= usize::from(rank == Rank::Ready);
                self.free[shelf] -= 1;
                *self.pages.of(rank) -= pages;
            }
            SegmentState::Resting(generation) => {
                self.resting.remove(&(generation, id));
                self.rest[shelf] -= 1;
                self.pages.resting -= pages;
            }
            SegmentState::Discarding => self.discarding -= 1,
            SegmentState::Preparing => self.preparing -= 1,
            _ => {}
        }
    }

    fn enter(&mut self, id: SegmentId, state: SegmentState) {
        let Some(segment) = self.segments.get_mut(id.0 as usize) else { return };
        segment.state = state;
        let Some(bank) = segment.bank.and_then(|bank| self.banks.get_mut(bank)) else { return };
        let (shelf, pages) = (segment.shelf as usize, u64::from(bank.pages));
        bank.empty += usize::from(is_empty(state));
        match state {
            SegmentState::Free => {
                segment.chunks.clear();
                segment.youngest = 0;
                segment.left_until = 0;
                segment.uses = segment.uses.wrapping_add(1);
                (segment.last, segment.metadata, segment.unlogged) = (Lsn(0), false, 0);
                let rank = segment.rank();
                bank.free.insert((rank, id));
                bank.ready += usize::from(rank != Rank::Hole);
                bank.surplus += usize::from(rank == Rank::Ready);
                self.free[shelf] += 1;
                *self.pages.of(rank) += pages;
            }
            SegmentState::Resting(generation) => {
                segment.backed = true;
                segment.emptied = Lsn(u64::MAX);
                self.resting.insert((generation, id));
                self.rest[shelf] += 1;
                self.pages.resting += pages;
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
                self.there[shelf] -= 1;
                bank.there -= 1;
            }
            SegmentState::Open | SegmentState::Sealed => segment.backed = true,
        }
    }

    /// The host has bytes for a segment or not, and gets them back or not.
    pub(crate) fn set_backed(&mut self, id: SegmentId, backed: bool, kept: bool) {
        let Some(segment) = self.get_mut(id).filter(|segment| (segment.backed, segment.kept) != (backed, kept)) else { return };
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

    /// A segment was prepared, or could not be: it is free again.
    pub(crate) fn prepared(&mut self, id: SegmentId, backed: bool) {
        if let Some(segment) = self.get_mut(id).filter(|segment| segment.state == SegmentState::Preparing) {
            segment.backed |= backed;
            self.set_state(id, SegmentState::Free);
        }
    }

    /// The pool is new: there is nothing of it anywhere.
    pub(crate) fn trust_all(&mut self) {
        self.segments.iter_mut().for_each(|segment| segment.unclean = false);
    }

    /// A segment is to be empty: it is not free before it was wiped.
    pub(crate) fn empty_out(&mut self, id: SegmentId) {
        let Some(segment) = self.get_mut(id) else { return };
        segment.emptying = true;
        if segment.state == SegmentState::Free {
            self.set_state(id, SegmentState::Discarding);
        }
    }

    /// It is not to be wiped after all.
    pub(crate) fn keep(&mut self, id: SegmentId) {
        let Some(segment) = self.get_mut(id) else { return };
        segment.emptying = false;
        if segment.state == SegmentState::Discarding {
            segment.backed = true;
            self.set_state(id, SegmentState::Free);
        }
    }

    /// It was wiped; with `backed` the host has bytes for it.
    pub(crate) fn cleaned(&mut self, id: SegmentId, backed: bool) {
        let Some(segment) = self.get_mut(id) else { return };
        (segment.emptying, segment.unclean, segment.backed) = (false, false, backed);
        self.set_state(id, SegmentState::Free);
    }

    /// What emptied the segments that began to rest since the last call is in the log up to `lsn`.
    pub(crate) fn stamp_emptied(&mut self, lsn: Lsn) {
        for id in std::mem::take(&mut self.emptied) {
            if let Some(segment) = self.get_mut(id) {
                segment.emptied = lsn;
            }
        }
    }

    /// The first resting segment that no checkpoint from `durable` on needs and nobody reads, and its generation.
    pub(crate) fn rested(&self, durable: u64, keep: u64) -> Option<(SegmentId, u64)> {
        let ripe = self.resting.iter().take_while(|(generation, _)| generation + keep < durable);
        ripe.map(|(generation, id)| (*id, *generation)).find(|(id, _)| self.get(*id).is_some_and(|s| s.pins == 0))
    }

    /// Generation of the one that began to rest last.
    pub(crate) fn resting_since(&self) -> Option<u64> {
        self.resting.last().map(|(generation, _)| *generation)
    }
}

/// Does a segment in this state hold nothing that stays?
fn is_empty(state: SegmentState) -> bool {
    matches!(state, SegmentState::Free | SegmentState::Resting(_) | SegmentState::Discarding | SegmentState::Preparing)
}

#[cfg(test)]
mod tests;
