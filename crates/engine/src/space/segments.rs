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
    /// How often it became free: what was noted of it before is no longer about what it holds.
    pub(crate) uses: u32,
    /// What it is for.
    pub(crate) shelf: Shelf,
    /// The cleaner leaves it alone until this time (milliseconds): it could not be read.
    pub(crate) left_until: u64,
}

/// The host has no bytes for a segment.
type Fresh = bool;

/// All segments of a pool.
#[derive(Debug)]
pub(crate) struct SegmentTable {
    segments: Vec<Segment>,
    /// Free ones of each shelf; in front those that the host has bytes for.
    free: [BTreeSet<(Fresh, SegmentId)>; Shelf::ALL.len()],
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
            free: Default::default(),
            backed_free: 0,
            there: [0; Shelf::ALL.len()],
            rest: [0; Shelf::ALL.len()],
            discarding: 0,
            resting: BTreeSet::new(),
            emptied: Vec::new(),
        }
    }

    /// Adds segments up to `count`: free ones of their shelf, but for those that are not there.
    pub(crate) fn extend(&mut self, count: u32, shelf: impl Fn(SegmentId) -> Option<Shelf>) {
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
            shelf: Shelf::Data,
        };
        let first = self.ids().len() as u32;
        for id in (first..count).map(SegmentId) {
            let state = if shelf(id).is_some() { SegmentState::Free } else { SegmentState::Absent };
            let shelf = shelf(id).unwrap_or(Shelf::Data);
            self.segments.push(Segment { state, shelf, ..fresh.clone() });
            if state == SegmentState::Free {
                self.free[shelf as usize].insert((true, id));
                self.there[shelf as usize] += 1;
            }
        }
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
        self.free[shelf as usize].len()
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
        self.free.iter().filter_map(|free| free.first()).find(|(fresh, _)| !fresh).map(|(_, id)| *id)
    }

    /// Segments whose space is being given back.
    pub(crate) fn discarding(&self) -> usize {
        self.discarding
    }

    /// Takes a free segment of a shelf: the lowest of those that the host has bytes for, else the lowest.
    pub(crate) fn reserve(&mut self, shelf: Shelf) -> Option<SegmentId> {
        let (_, id) = self.free[shelf as usize].first().copied()?;
        self.set_state(id, SegmentState::Reserved);
        Some(id)
    }

    /// Changes a segment's state and keeps the indexes true.
    pub(crate) fn set_state(&mut self, id: SegmentId, state: SegmentState) {
        let Some(segment) = self.segments.get_mut(id.0 as usize) else { return };
        let shelf = segment.shelf as usize;
        match segment.state {
            SegmentState::Absent => self.there[shelf] += 1,
            SegmentState::Free => {
                self.free[shelf].remove(&(!segment.backed, id));
                self.backed_free -= usize::from(segment.backed);
            }
            SegmentState::Resting(generation) => {
                self.resting.remove(&(generation, id));
                self.rest[shelf] -= 1;
            }
            SegmentState::Discarding => self.discarding -= 1,
            _ => {}
        }
        let state = if state == SegmentState::Free && segment.leaving { SegmentState::Absent } else { state };
        segment.state = state;
        match state {
            SegmentState::Free => {
                segment.chunks.clear();
                segment.youngest = 0;
                segment.left_until = 0;
                segment.uses = segment.uses.wrapping_add(1);
                (segment.last, segment.metadata, segment.unlogged) = (Lsn(0), false, 0);
                self.free[shelf].insert((!segment.backed, id));
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
            }
            SegmentState::Open | SegmentState::Sealed => segment.backed = true,
        }
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
