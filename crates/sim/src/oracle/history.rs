//! The possible content of a cell: writes are intervals, states are cuts.
//!
//! The guest knows of every write its beginning (submission) and perhaps its end (it was
//! acknowledged, or a read returned it). Somewhere between the two the engine put the write into
//! the volume's order. A *state* of a volume (returned by a read, frozen by a snapshot, left by a
//! crash) is this order up to some instant. Writes that end before the instant are in the state,
//! writes that begin after it are not, and a write whose interval contains the instant may or may
//! not be. This is exact: intervals admit an instant if and only if no absent write ends before a
//! present one begins, which is the meaning of "a prefix of the volume's order" (I10). So the
//! oracle never searches for an order. It narrows an interval, and a state is impossible when the
//! interval is empty.
//!
//! The unit is the *piece*, the part of a request in one 4 KiB block. Pieces are atomic, requests
//! need not be.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::trace::{Moment, NEVER};

/// Identifies a piece of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PieceId(pub u32);

/// Content of a cell: the number of the operation that wrote it, or [`ZERO`].
pub type Value = u64;

/// Content of a cell that reads as zeroes.
pub const ZERO: Value = 0;

/// The part of a modifying request that lies in one block.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Content that it leaves in each of its cells.
    pub value: Value,
    /// If it took effect, then after this moment.
    pub low: Moment,
    /// It took effect before this moment; [`NEVER`] if that is not certain.
    pub high: Moment,
    /// If it did not take effect before this moment, then it never does: the request failed, or a
    /// crash interrupted it.
    pub end: Moment,
    /// It survives a power cut by itself (FUA, or a mode in which every write is durable).
    pub durable: bool,
    /// It is known never to have taken effect, or to be lost.
    pub dead: bool,
}

/// All pieces of a world.
#[derive(Clone, Debug, Default)]
pub struct Pieces(Vec<Piece>);

impl Pieces {
    /// Adds a piece.
    pub fn add(&mut self, value: Value, low: Moment) -> PieceId {
        self.0.push(Piece { value, low, high: NEVER, end: NEVER, durable: false, dead: false });
        PieceId(self.0.len() as u32 - 1)
    }

    /// Returns a piece.
    pub fn get(&self, id: PieceId) -> &Piece {
        &self.0[id.0 as usize]
    }

    /// Returns a piece, mutably.
    pub fn get_mut(&mut self, id: PieceId) -> &mut Piece {
        &mut self.0[id.0 as usize]
    }
}

/// A piece in the history of one cell.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    piece: PieceId,
    /// A piece known to come later in the order, although the intervals do not show it.
    superseded: Option<PieceId>,
}

/// The history of one cell, as far as it can still be seen.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Value below all entries; `None` if it can never be seen again.
    base: Option<Value>,
    entries: SmallVec<[Entry; 1]>,
}

/// A state at an instant that is known within bounds.
#[derive(Clone, Debug)]
pub struct Cut {
    /// The instant is not before this moment.
    pub min: Moment,
    /// The instant is not after this moment.
    pub max: Moment,
    /// A power cut left this state: it includes durable pieces, whatever the instant.
    pub power: bool,
    pins: BTreeMap<PieceId, bool>,
}

impl Cut {
    /// A state at some instant of an interval.
    pub fn between(min: Moment, max: Moment) -> Cut {
        Cut { min, max, power: false, pins: BTreeMap::new() }
    }

    /// A state that a power cut left: it includes everything that took effect before `floor`, and
    /// everything durable.
    pub fn power(floor: Moment, now: Moment) -> Cut {
        Cut { min: floor, max: now, power: true, pins: BTreeMap::new() }
    }

    /// Records whether a piece is present in the state.
    pub fn pin(&mut self, piece: PieceId, present: bool) {
        self.pins.insert(piece, present);
    }

    /// Returns the pieces known to be present (true) or absent.
    pub fn pins(&self) -> impl Iterator<Item = (PieceId, bool)> + '_ {
        self.pins.iter().map(|(id, present)| (*id, *present))
    }

    fn surely_in(&self, id: PieceId, piece: &Piece) -> bool {
        self.pins.get(&id) == Some(&true) || piece.high < self.min || (self.power && piece.durable)
    }
}

/// Source of the visible value: the base or one of the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Top {
    Base,
    Entry(usize),
}

impl Cell {
    /// Makes a cell that certainly holds `value`.
    pub fn settled(value: Value) -> Cell {
        Cell { base: Some(value), entries: SmallVec::new() }
    }

    /// Returns the value, if it is certain.
    pub fn certain(&self) -> Option<Value> {
        if self.entries.is_empty() { self.base } else { None }
    }

    /// Returns the value below all entries, if it can still be seen.
    pub fn base(&self) -> Option<Value> {
        self.base
    }

    /// Returns the pieces that can still be seen.
    pub fn pieces(&self) -> impl Iterator<Item = PieceId> + '_ {
        self.entries.iter().map(|entry| entry.piece)
    }

    /// Adds a piece that writes this cell.
    pub fn push(&mut self, piece: PieceId) {
        self.entries.push(Entry { piece, superseded: None });
    }

    /// Returns whether `later` is known to come after `earlier` in the order.
    fn follows(&self, later: &Entry, earlier: &Entry, pieces: &Pieces) -> bool {
        if pieces.get(earlier.piece).high < pieces.get(later.piece).low {
            return true;
        }
        let mut next = earlier.superseded;
        for _ in 0..self.entries.len() {
            let Some(id) = next else { return false };
            if id == later.piece {
                return true;
            }
            next = self.entries.iter().find(|e| e.piece == id).and_then(|e| e.superseded);
        }
        false
    }

    /// Returns the bounds of the instant if `top` is visible, or `None` if it cannot be.
    fn bounds(&self, top: Top, cut: &Cut, pieces: &Pieces) -> Option<(Moment, Moment)> {
        let (mut min, mut max) = (cut.min, cut.max);
        if let Top::Entry(i) = top {
            let entry = self.entries.get(i)?;
            let piece = pieces.get(entry.piece);
            if piece.dead || cut.pins.get(&entry.piece) == Some(&false) {
                return None;
            }
            min = min.max(piece.low);
        }
        for other in self.above(top, pieces) {
            let piece = pieces.get(other.piece);
            if cut.surely_in(other.piece, piece) {
                return None;
            }
            max = max.min(piece.high);
        }
        (min <= max).then_some((min, max))
    }

    /// Returns the entries that would hide `top` if they were in the state.
    fn above<'a>(&'a self, top: Top, pieces: &'a Pieces) -> impl Iterator<Item = &'a Entry> + 'a {
        self.entries.iter().enumerate().filter_map(move |(j, other)| {
            let hides = match top {
                Top::Base => true,
                Top::Entry(i) => j != i && self.entries.get(i).is_some_and(|e| self.follows(other, e, pieces)),
            };
            (hides && !pieces.get(other.piece).dead).then_some(other)
        })
    }

    fn tops(&self) -> impl Iterator<Item = (Top, Value, Option<PieceId>)> + '_ {
        self.base
            .map(|value| (Top::Base, value, None))
            .into_iter()
            .chain(self.entries.iter().enumerate().map(|(i, e)| (Top::Entry(i), 0, Some(e.piece))))
    }

    /// Returns the values that the cell may hold in a state.
    pub fn possible(&self, cut: &Cut, pieces: &Pieces) -> SmallVec<[Value; 2]> {
        let mut values: SmallVec<[Value; 2]> = SmallVec::new();
        for (top, base, piece) in self.tops() {
            let value = piece.map_or(base, |id| pieces.get(id).value);
            if !values.contains(&value) && self.bounds(top, cut, pieces).is_some() {
                values.push(value);
            }
        }
        values
    }

    /// Records that a state shows `value`: narrows the instant of the state, and pins pieces as
    /// present and absent. Returns false if that is impossible.
    #[must_use]
    pub fn observe(&mut self, value: Value, cut: &mut Cut, pieces: &Pieces) -> bool {
        let mut found = None;
        let mut several = false;
        for (top, base, piece) in self.tops() {
            if piece.map_or(base, |id| pieces.get(id).value) != value {
                continue;
            }
            if let Some(bounds) = self.bounds(top, cut, pieces) {
                several |= found.is_some();
                found = Some((top, bounds));
            }
        }
        let Some((top, (min, max))) = found else { return false };
        if several {
            return true; // several sources have this value: nothing can be concluded
        }
        (cut.min, cut.max) = (min, max);
        let absent: SmallVec<[PieceId; 4]> = self.above(top, pieces).map(|e| e.piece).collect();
        for id in absent {
            cut.pins.insert(id, false);
        }
        if let Top::Entry(i) = top
            && let Some(visible) = self.entries.get(i).map(|e| e.piece)
        {
            cut.pins.insert(visible, true);
            // Pieces that are certainly in this state and not visible come before the visible one.
            for j in 0..self.entries.len() {
                let other = self.entries[j].piece;
                if j != i && self.entries[j].superseded.is_none() && cut.surely_in(other, pieces.get(other)) {
                    self.entries[j].superseded = Some(visible);
                }
            }
        }
        true
    }

    /// Drops entries that no state at or after `stable` can show. Durable pieces hide older entries
    /// from `horizon` on, the oldest instant still being observed.
    pub fn prune(&mut self, stable: Moment, horizon: Moment, pieces: &Pieces) {
        if self.entries.is_empty() {
            return;
        }
        let sure = |id: PieceId| {
            let piece = pieces.get(id);
            !piece.dead && (piece.high < stable || (piece.durable && piece.high < horizon))
        };
        let keep: SmallVec<[bool; 8]> = (0..self.entries.len())
            .map(|i| {
                let hidden = self.above(Top::Entry(i), pieces).any(|other| sure(other.piece));
                !hidden && !pieces.get(self.entries[i].piece).dead
            })
            .collect();
        if self.above(Top::Base, pieces).any(|other| sure(other.piece)) {
            self.base = None;
        }
        let mut kept = keep.iter();
        self.entries.retain(|_| kept.next().copied().unwrap_or(true));
        if let [only] = self.entries.as_slice()
            && self.base.is_none()
            && sure(only.piece)
        {
            *self = Cell::settled(pieces.get(only.piece).value);
        }
    }
}

/// Applies the conclusions of a state seen in normal operation: its pieces took effect before its
/// instant, absent ones after it.
pub fn sharpen(cut: &Cut, pieces: &mut Pieces) {
    for (id, present) in &cut.pins {
        let piece = pieces.get_mut(*id);
        if *present {
            piece.high = piece.high.min(cut.max).min(piece.end);
        } else {
            piece.low = piece.low.max(cut.min);
            piece.dead |= piece.end <= cut.min;
        }
    }
}

#[cfg(test)]
mod tests;
