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
    /// The host has bytes for it: it was in use since it was given back.
    pub(crate) backed: bool,
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
    /// The cleaner leaves it alone until this time (milliseconds): it could not be read.
    pub(crate) left_until: u64,
}

impl Segment {
    /// Is there something to wipe?
    pub(crate) fn is_unclean(&self) -> bool {
        self.unclean && self.bank.is_some() && self.state != SegmentState::Absent
    }

    /// Has it to be empty soon, for good or to be wiped?
    pub(crate) fn is_given_up(&self) -> bool {
        self.leaving || self.emptying
    }
}

/// The host has no bytes for a segment.
type Fresh = bool;

/// The segments of one group.
#[derive(Debug)]
struct Bank {
    /// The first of the group, which is its name.
    first: SegmentId,
    shelf: Shelf,
    /// Pages of each of its segments; the last ones of a stripe may have fewer.
    pages: u32,
    /// Free ones; in front those that the host has bytes for.
    free: BTreeSet<(Fresh, SegmentId)>,
    /// Those that are there, and of these the ones that hold nothing: free, or soon to be.
    there: usize,
    empty: usize,
    /// What the group is still owed of what was handed out.
    credit: i64,
    /// It holds more than its share: what is moved goes to others.
    spared: bool,
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

/// All segments of a pool.
#[derive(Debug)]
pub(crate) struct SegmentTable {
    segments: Vec<Segment>,
    /// Groups in the order of their segments.
    banks: Vec<Bank>,
    /// Free ones of each shelf.
    free: [usize; Shelf::ALL.len()],
    backed_free: usize,
    /// Segments of each shelf that are there.
    there: [usize; Shelf::ALL.len()],
    /// Resting ones of each.
    rest: [usize; Shelf::ALL.len()],
    discarding: usize,
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
            backed_free: 0,
            there: [0; Shelf::ALL.len()],
            rest: [0; Shelf::ALL.len()],
            discarding: 0,
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
            uses: 0,
            left_until: 0,
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
                self.banks.push(Bank { first: group, shelf, pages, free, there: 0, empty: 0, credit: 0, spared: false });
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

    /// Free segments that the host has bytes for.
    pub(crate) fn backed_free(&self) -> usize {
        self.backed_free
    }

    /// The first of them.
    pub(crate) fn first_backed_free(&self) -> Option<SegmentId> {
        self.banks.iter().filter_map(|bank| bank.free.first()).find(|(fresh, _)| !fresh).map(|(_, id)| *id)
    }

    /// Segments whose space is being given back.
    pub(crate) fn discarding(&self) -> usize {
        self.discarding
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
            SegmentState::Free | SegmentState::Resting(_) | SegmentState::Discarding if segment.bank.is_none() => SegmentState::Absent,
            _ => state,
        };
        self.leave(id);
        self.enter(id, state);
    }

    fn leave(&mut self, id: SegmentId) {
        let Some(segment) = self.segments.get(id.0 as usize) else { return };
        let Some(bank) = segment.bank.and_then(|bank| self.banks.get_mut(bank)) else { return };
        let (shelf, backed) = (segment.shelf as usize, segment.backed);
        bank.empty -= usize::from(is_empty(segment.state));
        match segment.state {
            SegmentState::Absent => {
                self.there[shelf] += 1;
                bank.there += 1;
            }
            SegmentState::Free => {
                bank.free.remove(&(!backed, id));
                self.free[shelf] -= 1;
                self.backed_free -= usize::from(backed);
            }
            SegmentState::Resting(generation) => {
                self.resting.remove(&(generation, id));
                self.rest[shelf] -= 1;
            }
            SegmentState::Discarding => self.discarding -= 1,
            _ => {}
        }
    }

    fn enter(&mut self, id: SegmentId, state: SegmentState) {
        let Some(segment) = self.segments.get_mut(id.0 as usize) else { return };
        segment.state = state;
        let Some(bank) = segment.bank.and_then(|bank| self.banks.get_mut(bank)) else { return };
        let shelf = segment.shelf as usize;
        bank.empty += usize::from(is_empty(state));
        match state {
            SegmentState::Free => {
                segment.chunks.clear();
                segment.youngest = 0;
                segment.left_until = 0;
                segment.uses = segment.uses.wrapping_add(1);
                (segment.last, segment.metadata, segment.unlogged) = (Lsn(0), false, 0);
                bank.free.insert((!segment.backed, id));
                self.free[shelf] += 1;
                self.backed_free += usize::from(segment.backed);
            }
            SegmentState::Resting(generation) => {
                segment.backed = true;
                segment.emptied = Lsn(u64::MAX);
                self.resting.insert((generation, id));
                self.rest[shelf] += 1;
                self.emptied.push(id);
            }
            SegmentState::Discarding => {
                segment.backed = false;
                self.discarding += 1;
            }
            SegmentState::Reserved => {}
            SegmentState::Absent => {
                segment.chunks.clear();
                self.there[shelf] -= 1;
                bank.there -= 1;
            }
            SegmentState::Open | SegmentState::Sealed => segment.backed = true,
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
    matches!(state, SegmentState::Free | SegmentState::Resting(_) | SegmentState::Discarding)
}
