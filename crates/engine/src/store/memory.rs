//! Memory for pieces of deadlists, which they share with map nodes: pieces are dropped under
//! pressure and read again when needed.

use std::rc::Rc;

use millpond_block::{Buf, DeviceError, MemberId};
use millpond_format::ObjectRef;

use super::{Context, PieceRead, Store};
use crate::space::{Need, PAGE, Piece as DeadPiece};

/// Milliseconds after which an unreadable piece of a deadlist is retried.
pub(crate) const STUCK_MILLIS: u64 = 30_000;

/// Returns the place of an object in its segment: first page, bytes before the object in it, number
/// of pages.
pub(crate) fn pages_of(at: ObjectRef) -> (u32, usize, u32) {
    let start = u64::from(at.offset) * ObjectRef::STEP as u64;
    let (page, end) = (start / PAGE, (start + u64::from(at.bytes())).div_ceil(PAGE));
    (page as u32, (start % PAGE) as usize, (end - page) as u32)
}

impl Store {
    /// Evicts least recently used nodes and pieces, to keep memory within its limit.
    pub(crate) fn bound_memory(&mut self) {
        self.core.pieces.evict();
        self.core.nodes.share(self.core.pieces.memory());
        self.core.nodes.evict();
    }

    /// Starts reading a piece of a deadlist, unless it is in memory or being read.
    pub(crate) fn need_piece(&mut self, piece: &Rc<DeadPiece>, need: Need) {
        if let Some(at) = piece.need(need) {
            self.metrics.piece_reads += 1;
            self.read_needed(PieceRead { piece: Rc::downgrade(piece), at, attempt: 0 });
        }
    }

    fn read_needed(&mut self, read: PieceRead) {
        let (at, attempt) = (read.at, read.attempt);
        let (page, _, pages) = pages_of(at);
        self.read_segment(Context::DeadPiece(read), at.segment, page, pages, attempt);
    }

    /// Handles a read of a piece of a deadlist. When the content is wrong, reads the next copy. The
    /// content of a piece that is no longer referenced does not matter.
    pub(crate) fn piece_read(&mut self, read: &PieceRead, result: Result<(), DeviceError>, buf: Option<Buf>, member: Option<MemberId>) {
        let (at, skip) = (read.at, pages_of(read.at).1);
        let Some(piece) = read.piece.upgrade() else { return buf.into_iter().for_each(|buf| self.bufs.give(buf)) };
        let bytes = buf.as_ref().filter(|_| result.is_ok()).and_then(|buf| buf.bytes().get(skip..skip + at.bytes() as usize));
        let right = bytes.is_some_and(|bytes| piece.take_in(bytes, at));
        buf.into_iter().for_each(|buf| self.bufs.give(buf));
        if right {
            return;
        }
        if let (Ok(()), Some(errors)) = (result, member.and_then(|m| self.io.errors.get_mut(m.index()))) {
            *errors += 1;
        }
        let moved = piece.place().filter(|now| *now != at);
        let next = read.attempt + 1;
        if let Some(at) = moved {
            self.read_needed(PieceRead { at, attempt: 0, ..read.clone() });
        } else if next < self.io.attempts(&self.core.space.layout, at.segment) {
            self.read_needed(PieceRead { attempt: next, ..read.clone() });
        } else {
            self.metrics.piece_failures += 1;
            piece.fail();
        }
    }

    /// Returns the units of guest data that cannot be freed because their deadlist is unreadable.
    /// Those of pieces that are being retried count until the retry has succeeded.
    pub(crate) fn unreclaimed_units(&self) -> u64 {
        self.core.catalog.units_left_out()
    }
}
