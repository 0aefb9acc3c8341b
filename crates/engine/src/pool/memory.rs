//! Memory: the read cache, and pieces of deadlists, which share their memory with map nodes.

use std::rc::Rc;

use millpond_block::{Buf, DeviceError, MemberId, Piece};
use millpond_format::{Addr, ObjectRef, VolumeId};

use super::op::Target;
use super::state::Pool;
use crate::Planted;
use crate::read_cache::LONGEST;
use crate::space::{Need, PAGE, Piece as DeadPiece};
use crate::store::{Context, PieceRead, Store};

/// Milliseconds after which an unreadable piece of a deadlist is retried.
pub(crate) const STUCK_MILLIS: u64 = 30_000;

impl Pool {
    /// Sets the size of the read cache and the volumes' shares of it; called after a change of
    /// either.
    pub(crate) fn arrange_read_cache(&mut self, limit: u64) {
        let catalog = &self.store.core.catalog;
        let own = |(volume, options): (&VolumeId, &crate::VolumeOptions)| Some((*volume, options.read_cache?));
        self.read_cache.arrange(limit, catalog.options().iter().filter_map(own));
        self.read_cache.keep_uses(|volume| catalog.volumes.contains_key(&volume));
    }

    /// Returns the volume whose share of the read cache serves a read of `target`; `None` if the
    /// read bypasses the cache.
    pub(super) fn share_of(&self, target: Target, length: u64) -> Option<VolumeId> {
        if self.read_cache.limit() == 0 || length > LONGEST {
            return None;
        }
        let catalog = &self.store.core.catalog;
        let volume = match target {
            Target::Head(volume) => volume,
            Target::Snapshot(snapshot) => catalog.snapshots.get(&snapshot)?.volume,
        };
        let caches = catalog.volumes.get(&volume)?.cache.caches_reads();
        (caches && self.read_cache.serves(volume)).then_some(volume)
    }

    /// Returns a block if the read cache has it.
    pub(super) fn find_in_memory(&self, volume: Option<VolumeId>, addr: Addr) -> Option<Piece> {
        self.read_cache.find(volume?, self.store.key_of(addr))
    }

    /// Offers blocks that were read from devices and verified to the read cache.
    pub(super) fn remember(&mut self, volume: VolumeId, addrs: impl Iterator<Item = Addr>, piece: &Piece) {
        for (addr, at) in addrs.zip((0..piece.len()).step_by(4096)) {
            let key = self.store.key_of(addr);
            let block = piece.slice(at..at + 4096);
            self.read_cache.offer(volume, key, &block, &mut self.store.bufs);
        }
    }
}

impl Store {
    /// Evicts least recently used nodes and pieces, to keep memory within its limit.
    pub(super) fn bound_memory(&mut self) {
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
    pub(super) fn piece_read(&mut self, read: &PieceRead, result: Result<(), DeviceError>, buf: Option<Buf>, member: Option<MemberId>) {
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
        } else if next < self.io.attempts(&self.core.space.rows, at.segment) {
            self.read_needed(PieceRead { attempt: next, ..read.clone() });
        } else {
            self.metrics.piece_failures += 1;
            piece.fail();
        }
    }

    /// Returns the units of guest data that cannot be freed because their deadlist is unreadable.
    /// Those of pieces that are being retried count until the retry has succeeded.
    pub(super) fn unreclaimed_units(&self) -> u64 {
        self.core.catalog.units_left_out()
    }

    /// Returns the key of a block in the read cache: its address, never its place, which another
    /// block may get later.
    fn key_of(&self, addr: Addr) -> u64 {
        let place = if self.tuning.plants(Planted::ReadCacheByPlace) { self.core.space.locate(addr) } else { None };
        place.map_or(addr.identity(), |(segment, unit)| u64::from(segment.0) << 32 | u64::from(unit))
    }
}

/// Returns the place of an object in its segment: first page, bytes before the object in it, number
/// of pages.
fn pages_of(at: ObjectRef) -> (u32, usize, u32) {
    let start = u64::from(at.offset) * ObjectRef::STEP as u64;
    let (page, end) = (start / PAGE, (start + u64::from(at.bytes())).div_ceil(PAGE));
    (page as u32, (start % PAGE) as usize, (end - page) as u32)
}
