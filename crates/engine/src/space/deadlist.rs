//! Deadlists: the addresses that died between two versions of a volume, by epoch and chunk.
//!
//! A list is a directory of spans, each a window of entries of an immutable piece, and a tail with
//! the newest entries. A write to a volume with snapshots adds to the tail, which costs one look-up
//! in a small tree; a tail that is too long becomes pieces. Lists are split at an epoch and merged
//! by their spans: no piece is written anew for that, however long a list is
//! (`docs/decisions/0020-deadlists-in-pieces.md`).
//!
//! Spans are grouped in views of some dozens ([`views`]). A split narrows the views without cutting
//! their spans, so a split, a merge and a copy take time in proportion to the number of views.

mod views;

use std::collections::BTreeMap;
use std::rc::Rc;

use millpond_format::{Addr, ChunkId, DeadDirectory, DeadRecord, Epoch, ObjectRef, PieceRef};
use smallvec::SmallVec;

pub(crate) use self::views::{Encoding, View};
use self::views::{Span, Views};
use super::pieces::{Need, Piece, Pieces, Reader};
use super::slots::slots_in;
use crate::{Damage, OpenErrorKind};

/// Set of slots, as a window of bitmap words that grows at both ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeadSlots {
    /// Number of the window's first word.
    first: u32,
    words: SmallVec<[u64; 2]>,
}

impl DeadSlots {
    /// Extends the window to the words from `first` up to `end`.
    fn cover(&mut self, first: u32, end: u32) {
        if self.words.is_empty() {
            self.first = first;
        }
        if first < self.first {
            self.words.insert_many(0, (first..self.first).map(|_| 0));
            self.first = first;
        }
        let length = (end - self.first) as usize;
        if length > self.words.len() {
            self.words.resize(length, 0);
        }
    }

    /// Adds `count` slots from `start` on; false when one of them was in the set.
    fn insert(&mut self, start: u32, count: u32) -> bool {
        self.cover(start >> 6, (start + count).div_ceil(64));
        let mut fresh = true;
        for slot in start..start + count {
            let bit = 1u64 << (slot & 63);
            if let Some(word) = self.words.get_mut(((slot >> 6) - self.first) as usize) {
                fresh &= *word & bit == 0;
                *word |= bit;
            }
        }
        fresh
    }

    fn union(&mut self, other: &DeadSlots) {
        self.cover(other.first, other.first + other.words.len() as u32);
        let offset = (other.first - self.first) as usize;
        self.words.iter_mut().skip(offset).zip(&other.words).for_each(|(a, b)| *a |= b);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        slots_in(&self.words, self.first)
    }
}

/// Dead slots of one chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dead {
    pub(crate) slots: DeadSlots,
    /// Units of data blocks among them.
    pub(crate) units: u32,
}

/// Maximum bytes of an entry without its slots (chunk 6, units 5, shape 2, its part of the group's
/// head), and of a group's head.
const ENTRY_BYTES: usize = 14;
const GROUP_BYTES: usize = 11;
/// INV-DEAD-5: maximum bytes of the tail of a snapshot's list (except lists from older versions); a
/// longer tail becomes a piece. There may be 10,000 such lists, and the memory of tails is taken
/// from that of maps.
pub(crate) const FIXED_TAIL: usize = 1 << 10;
/// Cost of freeing a piece, where dropping a reference to a piece that is still used costs 1.
const END: usize = 16;

impl Dead {
    /// Maximum bytes of the encoded entry.
    fn bytes(&self) -> usize {
        let mut before = 0;
        let mut runs = 0;
        for word in &self.slots.words {
            runs += (word & !(word << 1 | before)).count_ones() as usize;
            before = word >> 63;
        }
        ENTRY_BYTES + (4 * runs).min(8 * self.slots.words.len() + 2)
    }

    fn of(record: &DeadRecord<'_>) -> Dead {
        Dead { slots: DeadSlots { first: u32::from(record.first), words: SmallVec::from_slice(&record.slots) }, units: record.units }
    }

    fn record(&self, epoch: Epoch, chunk: ChunkId) -> DeadRecord<'_> {
        DeadRecord { epoch, chunk, units: self.units, first: self.slots.first as u16, slots: self.slots.words.as_slice().into() }
    }
}

/// The newest entries of a list, in order of epochs and chunks.
#[derive(Clone, Debug, Default)]
struct Tail {
    epochs: BTreeMap<Epoch, BTreeMap<ChunkId, Dead>>,
    /// Units of data blocks in it.
    units: u64,
    /// Maximum bytes of its encoding.
    bytes: usize,
}

impl Tail {
    /// Adds slots of a chunk with their units; false when one of them was in it already.
    fn add(&mut self, epoch: Epoch, chunk: ChunkId, units: u32, add: impl FnOnce(&mut DeadSlots) -> bool) -> bool {
        let of_epoch = self.epochs.entry(epoch).or_insert_with(|| {
            self.bytes += GROUP_BYTES;
            BTreeMap::new()
        });
        let mut before = 0;
        let dead = of_epoch.entry(chunk).and_modify(|dead| before = dead.bytes()).or_default();
        dead.units += units;
        let fresh = add(&mut dead.slots);
        self.bytes += dead.bytes();
        self.bytes -= before;
        self.units += u64::from(units);
        fresh
    }

    fn split_after(&mut self, epoch: Epoch) -> Tail {
        let young = self.epochs.split_off(&Epoch(epoch.0.saturating_add(1)));
        let dead = young.values().flat_map(BTreeMap::values);
        let (units, bytes) = dead.fold((0, 0), |(units, bytes), dead| (units + u64::from(dead.units), bytes + dead.bytes()));
        let young = Tail { bytes: bytes + young.len() * GROUP_BYTES, epochs: young, units };
        self.units -= young.units;
        self.bytes -= young.bytes;
        young
    }

    fn merge(&mut self, mut other: Tail) {
        if other.bytes > self.bytes {
            std::mem::swap(self, &mut other);
        }
        for (epoch, chunks) in other.epochs {
            for (chunk, dead) in chunks {
                self.add(epoch, chunk, dead.units, |slots| {
                    slots.union(&dead.slots);
                    true
                });
            }
        }
    }

    fn pop(&mut self) -> Option<(ChunkId, Dead)> {
        let mut of_epoch = self.epochs.first_entry()?;
        let popped = of_epoch.get_mut().pop_first();
        if of_epoch.get().is_empty() {
            of_epoch.remove();
            self.bytes -= GROUP_BYTES;
        }
        let (chunk, dead) = popped?;
        self.units -= u64::from(dead.units);
        self.bytes -= dead.bytes();
        Some((chunk, dead))
    }

    fn units_after(&self, epoch: Epoch) -> u64 {
        let young = self.epochs.range(Epoch(epoch.0.saturating_add(1))..);
        young.flat_map(|(_, chunks)| chunks.values()).map(|dead| u64::from(dead.units)).sum()
    }

    fn records(&self) -> Vec<DeadRecord<'_>> {
        let all = self.epochs.iter().flat_map(|(epoch, chunks)| chunks.iter().map(|(chunk, dead)| dead.record(*epoch, *chunk)));
        all.collect()
    }
}

/// A set of dead addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deadlist {
    /// Unordered; the last span is freed first.
    spans: Views,
    /// Spans whose content could not be read.
    aside: Vec<Span>,
    tail: Tail,
    /// True when some spans are set aside or are tried again.
    misses: bool,
    /// Content of the last span while it is freed.
    reader: Option<Reader>,
    /// Next entries of that span, in reverse order.
    next: Vec<(ChunkId, Dead)>,
}

impl Deadlist {
    /// Adds an address, which covers `slots` slots of its chunk. `data`: it counts as guest data. A
    /// tail of more than `longest` bytes becomes pieces.
    pub(crate) fn insert(&mut self, epoch: Epoch, addr: Addr, slots: u32, data: bool, pieces: &Rc<Pieces>, longest: usize) {
        let units = if data { addr.units() } else { 0 };
        let fresh = self.tail.add(epoch, addr.chunk(), units, |dead| dead.insert(addr.slot(), slots));
        assert!(fresh, "INV-SPACE-1: {addr:?} died twice");
        self.bound_tail(pieces, longest);
    }

    /// Turns a tail of more than `longest` bytes into pieces.
    pub(crate) fn bound_tail(&mut self, pieces: &Rc<Pieces>, longest: usize) {
        if self.tail.bytes <= longest {
            return;
        }
        let tail = std::mem::take(&mut self.tail);
        let spans = &mut self.spans;
        pieces.make(&tail.records(), &mut |piece| spans.push(Span::whole(piece), pieces.view_spans()));
        self.close();
    }

    /// Removes everything that was born after `epoch`, and returns it as a list. Both lists share
    /// the spans, and each view only records the births that it shows; [`Pieces::cut_some`] or the
    /// next use of a view cuts its spans.
    pub(crate) fn split_after(&mut self, epoch: Epoch, pieces: &Rc<Pieces>) -> Deadlist {
        self.retry();
        let tail = self.tail.split_after(epoch);
        Deadlist { spans: self.spans.split_after(epoch, pieces), tail, misses: self.misses, ..Deadlist::default() }
    }

    /// Drops the reading position of the span that is being freed.
    fn close(&mut self) {
        self.next.clear();
        self.reader = None;
    }

    /// Adds all of `other`, moving the smaller list into the larger. A tail of more than `longest`
    /// bytes becomes pieces.
    pub(crate) fn merge(&mut self, mut other: Deadlist, pieces: &Rc<Pieces>, longest: usize) {
        self.retry();
        other.retry();
        self.spans.append(other.spans, pieces.view_spans());
        self.tail.merge(other.tail);
        self.misses |= other.misses;
        self.bound_tail(pieces, longest);
    }

    /// Returns the piece whose content the next [`pop`](Self::pop) needs, if it is not in memory.
    pub(crate) fn lacks(&self) -> Option<Rc<Piece>> {
        let piece = self.spans.last_first().next()?.piece;
        let ready = self.reader.is_some() || piece.is_here();
        Some(piece).filter(|_| !ready)
    }

    /// Returns the piece after the one that is being freed.
    pub(crate) fn next_piece(&self) -> Option<Rc<Piece>> {
        self.spans.last_first().nth(1).map(|span| span.piece)
    }

    /// Sets the last span aside, because its content cannot be read, until [`retry`](Self::retry).
    pub(crate) fn set_aside(&mut self) {
        self.close();
        if let Some(span) = self.spans.pop() {
            self.aside.push(Span { missed: true, ..span });
            self.misses = true;
        }
    }

    /// Puts spans that were set aside back, to be tried after all others.
    pub(crate) fn retry(&mut self) {
        self.close();
        if !self.aside.is_empty() {
            self.spans.add_last(std::mem::take(&mut self.aside));
        }
    }

    /// True when spans are set aside.
    pub(crate) fn has_unreadable(&self) -> bool {
        !self.aside.is_empty()
    }

    /// Units of guest data in spans that are set aside, or were and are tried again, until their
    /// content is read.
    pub(crate) fn units_left_out(&self) -> u64 {
        let again: u64 = if self.misses { self.spans.last_first().filter(|span| span.missed).map(|span| span.units()).sum() } else { 0 };
        self.aside.iter().map(Span::units).sum::<u64>() + again
    }

    /// True when all that is left are spans that were set aside.
    pub(crate) fn has_only_unreadable(&self) -> bool {
        self.has_unreadable() && self.spans.is_empty() && self.tail.epochs.is_empty()
    }

    /// Removes one chunk's part of the list; other parts of the same chunk may follow. The caller
    /// has read the content that it [`lacks`](Self::lacks).
    pub(crate) fn pop(&mut self) -> Option<(ChunkId, Dead)> {
        let Some(span) = self.spans.last_mut() else { return self.tail.pop() };
        if self.next.is_empty() {
            if self.reader.is_none() {
                let content = span.piece.content().expect("INV-DEAD-4: the content was read before");
                span.piece.release(Need::Freeing);
                span.missed = false;
                self.reader = Some(Reader::new(content).expect("INV-DEAD-2: a piece reads as what it was made of"));
            }
            let left = (span.to - span.from) as usize;
            let group = self.reader.iter().flat_map(|reader| reader.group_from(span.from)).take(left);
            self.next.extend(group.map(|record| (record.chunk, Dead::of(&record))));
            self.next.reverse();
        }
        let popped = self.next.pop().expect("INV-DEAD-2: a span has the entries that it says");
        span.from += 1;
        span.units_from += u64::from(popped.1.units);
        if span.from >= span.to {
            self.close();
            self.spans.pop().into_iter().for_each(|span| span.piece.is_left());
        }
        Some(popped)
    }

    /// True when the list is known to have no entry. After a split, a list may turn out to be empty
    /// later.
    pub(crate) fn is_empty(&self) -> bool {
        self.aside.is_empty() && self.spans.is_empty() && self.tail.epochs.is_empty()
    }

    /// True when all views that splits narrowed are cut.
    pub(crate) fn is_cut(&self) -> bool {
        self.spans.is_cut()
    }

    /// Drops references to pieces while there is `room`: freeing a piece costs [`END`], dropping a
    /// reference to a piece that is still used costs 1. True when none is left.
    pub(crate) fn drop_pieces(&mut self, room: &mut usize) -> bool {
        self.retry();
        while *room > 0 {
            let Some(last) = self.spans.drop_last() else { return true };
            *room = room.saturating_sub(if last { END } else { 1 });
        }
        self.spans.is_empty()
    }

    /// Maximum bytes of its tail in its directory.
    pub(crate) fn tail_bytes(&self) -> usize {
        self.tail.bytes
    }

    /// Calls `each` with each chunk's parts. `content` returns the content of a piece; pieces
    /// without content are skipped.
    pub(crate) fn for_each(&self, mut content: impl FnMut(&Piece) -> Option<Rc<[u8]>>, mut each: impl FnMut(ChunkId, &Dead)) {
        for span in self.all_spans() {
            let Some(reader) = content(&span.piece).and_then(|bytes| Reader::new(bytes).ok()) else { continue };
            let mut at = span.from;
            while at < span.to {
                for record in reader.group_from(at).take((span.to - at) as usize) {
                    each(record.chunk, &Dead::of(&record));
                    at += 1;
                }
            }
        }
        self.tail.epochs.values().flatten().for_each(|(chunk, dead)| each(*chunk, dead));
    }

    /// Spans that are set aside, then all others.
    fn all_spans(&self) -> impl Iterator<Item = Span> {
        self.aside.iter().cloned().chain(self.spans.last_first())
    }

    /// Units of guest data in the list.
    pub(crate) fn units(&self) -> u64 {
        // not `units_left_out`: that counts some of the other spans, too
        self.aside.iter().map(Span::units).sum::<u64>() + self.spans.units() + self.tail.units
    }

    /// Units of guest data born after `epoch`.
    pub(crate) fn units_after(&self, epoch: Epoch) -> u64 {
        let aside: u64 = self.aside.iter().map(|span| span.units_after(epoch)).sum();
        aside + self.spans.units_after(epoch) + self.tail.units_after(epoch)
    }

    /// Pieces that it refers to; a piece that was split may come twice. Until all views are cut,
    /// some may turn out to belong to another list.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Rc<Piece>> {
        self.aside.iter().map(|span| Rc::clone(&span.piece)).chain(self.spans.pieces())
    }

    /// Maximum bytes of its directory, 0 for an empty list.
    pub(crate) fn directory_bytes(&self) -> usize {
        let spans = self.aside.len() + self.spans.most();
        if self.is_empty() { 0 } else { DeadDirectory::FIXED + spans * PieceRef::BYTES + self.tail.bytes }
    }

    /// Adds the references of one view to `encoding`; all of the list's pieces must be stored.
    /// Returns the cost, as the bytes that could be encoded in that time; `None` when all
    /// references are in it.
    pub(crate) fn encode_some(&self, encoding: &mut Encoding) -> Option<usize> {
        self.spans.encode_some(encoding)
    }

    /// Encodes its directory, after [`encode_some`](Self::encode_some) has added all references; no
    /// bytes for an empty list.
    pub(crate) fn encode(&self, encoding: Encoding) -> Vec<u8> {
        let mut pieces = encoding.pieces;
        pieces.extend(self.aside.iter().map(Span::reference));
        let tail = self.tail.records();
        if pieces.is_empty() && tail.is_empty() {
            return Vec::new();
        }
        let tail = if tail.is_empty() { Vec::new() } else { DeadRecord::encode_piece(&tail) };
        DeadDirectory { pieces, tail }.encode()
    }

    /// The pieces that a directory refers to, each with first and last entry of its window; none
    /// for a list of an older version.
    pub(crate) fn named(bytes: &[u8]) -> Result<Vec<(ObjectRef, [u32; 2])>, Damage> {
        if !DeadDirectory::is_one(bytes) {
            return Ok(Vec::new());
        }
        let directory = DeadDirectory::decode(bytes).map_err(Damage::Deadlist)?;
        Ok(directory.pieces.iter().map(|piece| (piece.at, [piece.from, piece.to])).collect())
    }

    /// Loads a list that a checkpoint stored at `at`; `piece` returns its pieces. A list of an
    /// older version becomes one piece.
    pub(crate) fn load(
        bytes: &[u8],
        at: ObjectRef,
        mut piece: impl FnMut(ObjectRef) -> Result<Rc<Piece>, OpenErrorKind>,
    ) -> Result<Deadlist, OpenErrorKind> {
        if !DeadDirectory::is_one(bytes) {
            let mut list = Deadlist::default();
            list.spans.push(Span::whole(piece(at)?), 1);
            return Ok(list);
        }
        let directory = DeadDirectory::decode(bytes).map_err(Damage::Deadlist)?;
        let mut list = Deadlist::default();
        for PieceRef { at, from, to } in directory.pieces {
            let piece = piece(at)?;
            let units = |entry| piece.units_before(entry).filter(|_| entry <= piece.len());
            let (Some(units_from), Some(units_to)) = (units(from), units(to)) else {
                return Err(Damage::DeadlistWindow.into());
            };
            let most = piece.view_spans();
            list.spans.push(Span { piece, from, to, units_from, units_to, missed: false }, most);
        }
        if !directory.tail.is_empty() {
            for record in DeadRecord::decode_piece(&directory.tail).map_err(Damage::Deadlist)? {
                let slots = Dead::of(&record).slots;
                list.tail.add(record.epoch, record.chunk, record.units, |dead| {
                    dead.union(&slots);
                    true
                });
            }
        }
        Ok(list)
    }
}

#[cfg(test)]
mod tests;
