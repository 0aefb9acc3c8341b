//! What a cell may hold: writes as intervals, states as cuts.
//!
//! The guest sees of every write a beginning (it was submitted) and, perhaps, an end (it was acknowledged, or a read showed it). Somewhere between the
//! two the engine put it into the volume's order. A *state* of a volume (what a read returns, what a snapshot froze, what a crash left) is the order
//! up to some instant. Writes whose interval ends before the instant are in it, those that begin after it are not, and those whose interval contains
//! it may be either. That is exact: intervals that admit an instant are those in which no absent write ends before a present one begins, which is
//! what "a prefix of the volume's order" means (I10). So the judge never searches for an order: it narrows an interval, and when nothing is left the
//! state is impossible.
//!
//! The unit is the *piece*: the part of a request that lies in one 4 KiB block. Pieces are atomic, requests need not be.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::trace::{Moment, NEVER};

/// Names a piece of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PieceId(pub u32);

/// What a cell holds: the number of the operation that wrote it, or [`ZERO`].
pub type Value = u64;

/// Reads as zeroes.
pub const ZERO: Value = 0;

/// The part of a modifying request that lies in one block.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// What it leaves in each of its cells.
    pub value: Value,
    /// It took effect after this moment, if it did.
    pub low: Moment,
    /// It took effect before this moment, surely.
    pub high: Moment,
    /// If it did not take effect before this moment, then never: the request failed then, or a crash interrupted it.
    pub end: Moment,
    /// Survives a power cut by itself (FUA, or a mode in which every write is durable).
    pub durable: bool,
    /// Known never to have taken effect, or to have been lost.
    pub dead: bool,
}

/// All pieces of a world.
#[derive(Clone, Debug, Default)]
pub struct Pieces(Vec<Piece>);

impl Pieces {
    /// A new piece.
    pub fn add(&mut self, value: Value, low: Moment) -> PieceId {
        self.0.push(Piece { value, low, high: NEVER, end: NEVER, durable: false, dead: false });
        PieceId(self.0.len() as u32 - 1)
    }

    /// The piece.
    pub fn get(&self, id: PieceId) -> &Piece {
        &self.0[id.0 as usize]
    }

    /// The piece, to change.
    pub fn get_mut(&mut self, id: PieceId) -> &mut Piece {
        &mut self.0[id.0 as usize]
    }
}

/// A piece in the history of one cell.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    piece: PieceId,
    /// A piece that is known to come later in the order although the intervals do not tell.
    superseded: Option<PieceId>,
}

/// The history of one cell, as far as it can still be seen.
#[derive(Clone, Debug)]
pub struct Cell {
    /// What is below all entries; `None` when it can never be seen again.
    base: Option<Value>,
    entries: SmallVec<[Entry; 1]>,
}

/// A state at an instant that is known within bounds.
#[derive(Clone, Debug)]
pub struct Cut {
    /// The instant is not before.
    pub min: Moment,
    /// The instant is not after.
    pub max: Moment,
    /// The state is one left by a power cut: durable pieces are in it whatever the instant.
    pub power: bool,
    pins: BTreeMap<PieceId, bool>,
}

impl Cut {
    /// A cut somewhere in an interval.
    pub fn between(min: Moment, max: Moment) -> Cut {
        Cut { min, max, power: false, pins: BTreeMap::new() }
    }

    /// What is left by a power cut: everything that took effect before `floor` surely did, everything durable too.
    pub fn power(floor: Moment, now: Moment) -> Cut {
        Cut { min: floor, max: now, power: true, pins: BTreeMap::new() }
    }

    /// Declares a piece present (true) or absent.
    pub fn pin(&mut self, piece: PieceId, present: bool) {
        self.pins.insert(piece, present);
    }

    /// Pieces known to be present (true) or absent.
    pub fn pins(&self) -> impl Iterator<Item = (PieceId, bool)> + '_ {
        self.pins.iter().map(|(id, present)| (*id, *present))
    }

    fn surely_in(&self, id: PieceId, piece: &Piece) -> bool {
        self.pins.get(&id) == Some(&true) || piece.high < self.min || (self.power && piece.durable)
    }
}

/// What makes a value visible: the base or one of the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Top {
    Base,
    Entry(usize),
}

impl Cell {
    /// A cell that surely holds `value`.
    pub fn settled(value: Value) -> Cell {
        Cell { base: Some(value), entries: SmallVec::new() }
    }

    /// The value, when there is no doubt about it.
    pub fn certain(&self) -> Option<Value> {
        if self.entries.is_empty() { self.base } else { None }
    }

    /// What was there before all pieces that may still be seen, when that may still be seen itself.
    pub fn base(&self) -> Option<Value> {
        self.base
    }

    /// The pieces that may still be seen.
    pub fn pieces(&self) -> impl Iterator<Item = PieceId> + '_ {
        self.entries.iter().map(|entry| entry.piece)
    }

    /// A piece that writes this cell begins.
    pub fn push(&mut self, piece: PieceId) {
        self.entries.push(Entry { piece, superseded: None });
    }

    /// True when `later` is known to come after `earlier` in the order.
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

    /// The bounds of the instant if `top` is what is visible, or `None` when it cannot be.
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

    /// The entries that would hide `top` if they were in the state.
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

    /// The values that the cell may hold in a state.
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

    /// Somebody saw `value` in a state: narrows the state's instant and pins what is present and absent. False when it cannot be.
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
            return true; // zeroes of more than one origin: nothing can be concluded
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
            // Whatever is surely in this state and yet not visible came before what is.
            for j in 0..self.entries.len() {
                let other = self.entries[j].piece;
                if j != i && self.entries[j].superseded.is_none() && cut.surely_in(other, pieces.get(other)) {
                    self.entries[j].superseded = Some(visible);
                }
            }
        }
        true
    }

    /// Forgets what no state at or after `stable` can show. `horizon` bounds what durable pieces can hide: the oldest state still being observed.
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

/// Draws the conclusions of a state that was seen in normal running: pieces in it took effect before its instant, the others after.
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
