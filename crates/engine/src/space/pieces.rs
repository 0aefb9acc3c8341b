//! Pieces of deadlists: immutable runs of entries that lists refer to.
//!
//! INV-DEAD-1: the storage of a piece is given back when no list refers to it any more, neither one in memory nor one that a running checkpoint still
//! writes. Both hold the piece itself, so its end is when the last of them lets go; what it was stored in is then retired, and the next checkpoint,
//! which does not name it, replaces it like any other object.
//!
//! What stays in memory of a piece is where its epochs begin ([`Index`]), so lists are split, merged and counted without its content. That is read
//! again to free what is in it, and to write it elsewhere.
//!
//! INV-DEAD-4: the content of a piece leaves memory only while it can be read again: where a checkpoint put it whose writes of objects have all ended.
//! While a checkpoint moves a piece that is where it was before.

mod index;
mod reader;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};

use millpond_format::{DeadGroup, DeadRecord, Epoch, FormatError, ObjectRef, PieceRef, crc32c};

use self::index::Index;
pub(crate) use self::reader::Reader;
use super::deadlist::{Deadlist, View};
use crate::Planted;

/// Pieces that no checkpoint has after which one is due, at least.
const UNSTORED_PIECES: usize = 32;
/// The tail of a list takes so many times the bytes of a piece at most. This counts what entries may take on devices, three times what single slots do.
const TAIL_PIECES: usize = 2;
/// Tails of lists that grow take this part of what pieces may take in memory, about: they are several times as long there as on devices.
const TAIL_PART: usize = 32;
/// Tails of lists that grow take so many bytes at least, however many these are: a piece takes some 250 bytes of memory as long as it lives, so
/// pieces must not be short.
const SHORTEST_TAIL: usize = 8 << 10;

/// Spans of a view: one for so many bytes of a piece, within bounds. Cutting as many takes some 0.1 ms.
const VIEW_BYTES: usize = 1 << 10;
const VIEW_SPANS: (usize, usize) = (2, 64);

/// A tail takes about so many times as much in memory as in a directory.
const TAIL_MEMORY: usize = 4;
/// Bytes that pieces take besides their entries and their reference, when a tail becomes pieces.
const TAIL_BYTES: usize = 4 * (ObjectRef::STEP + PieceRef::BYTES);

/// Bytes that an object of so many takes at most: it begins at a step, and one that is longer than a `part` has an index of its parts.
pub(crate) fn stored_bytes(bytes: usize, part: usize) -> usize {
    bytes.next_multiple_of(ObjectRef::STEP) + (bytes / part + 1) * ObjectRef::STEP
}

/// Why the content of a piece is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Its entries are being freed.
    Freeing = 1,
    /// A checkpoint writes it elsewhere.
    Writing = 2,
}

/// State shared by all pieces of a pool: bounds, counters, and the pieces that are to be written or given back.
#[derive(Debug)]
pub(crate) struct Pieces {
    /// Bytes of a piece at most.
    most: usize,
    /// Bytes of a part of an object at most.
    part: usize,
    /// Bytes that all pieces may take in memory, as far as their content can be read again.
    limit: usize,
    /// Where pieces were that nothing refers to any more.
    retired: RefCell<Vec<ObjectRef>>,
    /// Pieces that the next checkpoint writes.
    unwritten: RefCell<Vec<Weak<Piece>>>,
    /// Bytes that it writes for these at most.
    unwritten_bytes: Cell<usize>,
    /// Bytes that it writes for directories of lists at most, as far as these are counted ([`Share`]).
    directories: Cell<usize>,
    /// Views of lists that were split and are to be cut.
    uncut: RefCell<VecDeque<Weak<View>>>,
    /// Content that is in memory and can be read again, the oldest first.
    evictable: RefCell<BTreeMap<u64, Weak<Piece>>>,
    /// Number of the next of these.
    next: Cell<u64>,
    /// Bytes in memory: of content that can be read again, of content that no checkpoint has, of other content, of everything else.
    cached: Cell<usize>,
    unstored: Cell<usize>,
    kept: Cell<usize>,
    indexes: Cell<usize>,
    /// Bytes that tails of lists take in memory, as far as these are counted ([`Share`]).
    tails: Cell<usize>,
    /// How often the beginning of an epoch was searched.
    #[cfg(test)]
    pub(super) searches: Cell<u64>,
    planted: Option<Planted>,
}

impl Pieces {
    pub(crate) fn new(most: usize, part: usize, limit: usize, planted: Option<Planted>) -> Rc<Pieces> {
        let planted = planted.filter(|_| cfg!(feature = "planted"));
        Rc::new(Pieces {
            most,
            part,
            limit,
            retired: RefCell::default(),
            unwritten: RefCell::default(),
            unwritten_bytes: Cell::default(),
            directories: Cell::default(),
            uncut: RefCell::default(),
            evictable: RefCell::default(),
            next: Cell::default(),
            cached: Cell::default(),
            unstored: Cell::default(),
            kept: Cell::default(),
            indexes: Cell::default(),
            tails: Cell::default(),
            #[cfg(test)]
            searches: Cell::default(),
            planted,
        })
    }

    /// Bytes of the tail of a list at most, when so many lists grow.
    pub(crate) fn longest_tail(&self, lists: usize) -> usize {
        (self.limit / (TAIL_PART * lists.max(1))).max(SHORTEST_TAIL).min(TAIL_PIECES * self.most)
    }

    /// Spans of a view of a list at most.
    pub(super) fn view_spans(&self) -> usize {
        (self.most / VIEW_BYTES).clamp(VIEW_SPANS.0, VIEW_SPANS.1)
    }

    /// A view was narrowed by a split and not cut.
    pub(super) fn cut_later(&self, view: &Rc<View>) {
        self.uncut.borrow_mut().push_back(Rc::downgrade(view));
    }

    /// Cuts views that splits narrowed, so many at most, the oldest first. What nobody has any more needs no cutting.
    pub(crate) fn cut_some(&self, mut views: usize) {
        while views > 0 {
            let Some(next) = self.uncut.borrow_mut().pop_front() else { return };
            if let Some(view) = next.upgrade().filter(|view| !view.is_cut()) {
                view.cut();
                views -= 1;
            }
        }
    }

    /// Are there views to be cut?
    pub(crate) fn has_uncut(&self) -> bool {
        !self.uncut.borrow().is_empty()
    }

    /// Makes pieces of records, which are in order of (epoch, chunk): as few as their size allows.
    pub(super) fn make(self: &Rc<Self>, records: &[DeadRecord<'_>], made: &mut impl FnMut(Rc<Piece>)) {
        if records.is_empty() {
            return;
        }
        let (bytes, groups) = DeadRecord::encode_groups(records);
        if bytes.len() > self.most && records.len() > 1 {
            let (older, younger) = records.split_at(records.len() / 2);
            self.make(older, made);
            self.make(younger, made);
            return;
        }
        let piece = self.piece(bytes.len(), Index::new(&groups), None, Box::default());
        piece.hold(bytes.into());
        piece.touch();
        made(piece);
    }

    /// A piece as a checkpoint stored it; `ends` are the entries that windows begin and end with. An object of an older version is as long as the list was:
    /// one in parts stays in memory.
    pub(crate) fn load(self: &Rc<Self>, bytes: &[u8], at: ObjectRef, ends: &[u32]) -> Result<Rc<Piece>, FormatError> {
        let reader = Reader::new(as_piece(bytes)?)?;
        let known: BTreeMap<u32, u64> = ends.iter().map(|end| (*end, reader.units_before(*end))).collect();
        let index = Index::new(reader.groups());
        let known: Vec<(u32, u64)> = known.into_iter().filter(|(end, _)| index.at(*end).is_none()).collect();
        let content = reader.bytes();
        let piece = self.piece(content.len(), index, Some(at), known.into());
        if at.is_index() {
            piece.hold(content);
        }
        Ok(piece)
    }

    fn piece(self: &Rc<Self>, length: usize, index: Index, at: Option<ObjectRef>, known: Box<[(u32, u64)]>) -> Rc<Piece> {
        let piece = Rc::new(Piece {
            index,
            known,
            length: u32::try_from(length).unwrap_or(u32::MAX),
            content: RefCell::default(),
            place: Cell::new(at.filter(|at| !at.is_index())),
            evictable: Cell::default(),
            needs: Cell::default(),
            failed: Cell::default(),
            reading: Cell::default(),
            stored: Cell::new(at),
            waits: Cell::default(),
            given_back: Cell::default(),
            home: Rc::clone(self),
        });
        add(&self.indexes, piece.own_bytes());
        piece
    }

    /// The pieces that a checkpoint has to write, which is being fixed.
    pub(crate) fn seal(&self) -> VecDeque<Rc<Piece>> {
        let sealed: VecDeque<Rc<Piece>> = self.unwritten.take().iter().filter_map(Weak::upgrade).collect();
        sealed.iter().for_each(|piece| piece.waits.set(false));
        self.unwritten_bytes.set(0);
        sealed
    }

    /// Bytes that the next checkpoint writes at most for pieces and for directories of lists.
    pub(crate) fn to_write(&self) -> usize {
        debug_assert_eq!(
            self.unwritten_bytes.get(),
            self.unwritten.borrow().iter().filter_map(Weak::upgrade).map(|piece| piece.stored_bytes()).sum::<usize>(),
            "pieces that wait are counted as they come and go"
        );
        self.unwritten_bytes.get() + self.directories.get()
    }

    /// The same for directories of lists alone.
    pub(crate) fn lists_to_write(&self) -> usize {
        self.directories.get()
    }

    /// Bytes that the directory of a list takes at most, as an object. Its tail may become pieces before the checkpoint, in as many bytes and a step
    /// for each.
    pub(crate) fn directory_bytes(&self, list: &Deadlist) -> usize {
        stored_bytes(list.directory_bytes() + TAIL_BYTES, self.part)
    }

    /// Are there places that no list needs any more?
    pub(crate) fn has_retired(&self) -> bool {
        !self.retired.borrow().is_empty()
    }

    /// The places that no list needs any more.
    pub(crate) fn take_retired(&self) -> Vec<ObjectRef> {
        self.retired.take()
    }

    /// Bytes of memory that pieces and tails of lists take.
    pub(crate) fn memory(&self) -> usize {
        self.tails.get() + self.cached.get() + self.unstored.get() + self.kept.get() + self.indexes.get()
    }

    /// Is so much content in memory that no checkpoint has that one is due?
    pub(crate) fn wants_checkpoint(&self) -> bool {
        self.unstored.get() > (self.limit / 2).max(UNSTORED_PIECES * self.most)
    }

    /// Lets content go that can be read again, the oldest first, until what is left is no more than it may be.
    pub(crate) fn evict(&self) {
        let room = self.limit.saturating_sub(self.indexes.get());
        let (mut needed, mut stays) = (Vec::new(), 0);
        while self.cached.get() > room + stays {
            let Some((_, oldest)) = self.evictable.borrow_mut().pop_first() else { break };
            let Some(piece) = oldest.upgrade() else { continue };
            piece.evictable.set(None);
            if piece.needs.get() == 0 {
                sub(&self.cached, piece.here());
                piece.content.take();
            } else {
                stays += piece.here();
                needed.push(piece);
            }
        }
        needed.iter().for_each(Piece::may_go);
    }
}

/// The share of a list in the bytes that the next checkpoint writes for directories ([`Pieces::to_write`]), and of the memory that tails take
/// ([`Pieces::memory`]).
#[derive(Debug, Default)]
pub(crate) struct Share {
    home: Option<Rc<Pieces>>,
    bytes: usize,
    tail: usize,
}

impl Share {
    /// It is so many bytes from now on, and its tail takes at most so many of a directory.
    pub(crate) fn set(&mut self, home: &Rc<Pieces>, bytes: usize, tail: usize) {
        self.clear();
        self.bytes = bytes;
        add(&home.directories, bytes);
        sub(&home.tails, std::mem::replace(&mut self.tail, tail * TAIL_MEMORY));
        add(&home.tails, self.tail);
        self.home.get_or_insert_with(|| Rc::clone(home));
    }

    /// The next checkpoint writes nothing of it.
    pub(crate) fn clear(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.home.iter().for_each(|home| sub(&home.directories, bytes));
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.clear();
        self.home.iter().for_each(|home| sub(&home.tails, self.tail));
    }
}

/// Decodes an object and encodes it as a piece of this version.
pub(crate) fn as_piece(bytes: &[u8]) -> Result<Rc<[u8]>, FormatError> {
    match DeadGroup::is_piece(bytes) {
        true => Ok(bytes.into()),
        false => Ok(DeadRecord::encode_piece(&DeadRecord::decode_piece(bytes)?).into()),
    }
}

fn add(to: &Cell<usize>, bytes: usize) {
    to.set(to.get() + bytes);
}

fn sub(from: &Cell<usize>, bytes: usize) {
    from.set(from.get() - bytes);
}

/// Entries in order of (epoch, chunk), as they are stored.
#[derive(Debug)]
pub(crate) struct Piece {
    index: Index,
    /// Units of data before entries that windows began or ended with at an import, where that is not the beginning of an epoch.
    known: Box<[(u32, u64)]>,
    /// Bytes of its content.
    length: u32,
    content: RefCell<Option<Rc<[u8]>>>,
    /// Where it can be read.
    place: Cell<Option<ObjectRef>>,
    /// Its number among those whose content may leave memory.
    evictable: Cell<Option<u64>>,
    /// For what the content is needed, and for what it could not be had.
    needs: Cell<u8>,
    failed: Cell<u8>,
    /// It is being read.
    reading: Cell<bool>,
    /// Where the last checkpoint that wrote it put it.
    stored: Cell<Option<ObjectRef>>,
    /// The next checkpoint writes it.
    waits: Cell<bool>,
    /// Given back too early ([`Planted::FreePieceInUse`](crate::Planted::FreePieceInUse)).
    given_back: Cell<bool>,
    home: Rc<Pieces>,
}

impl Piece {
    /// Bytes that a checkpoint writes of it.
    pub(crate) fn length(&self) -> usize {
        self.length as usize
    }

    pub(crate) fn stored(&self) -> Option<ObjectRef> {
        self.stored.get()
    }

    /// The running checkpoint puts it there. Gives back where it was.
    pub(crate) fn set_stored(&self, at: ObjectRef) -> Option<ObjectRef> {
        let before = self.stored.get();
        self.recount(|| self.stored.set(Some(at)));
        before
    }

    /// The checkpoint that stored it has finished writing its objects, so it can be read there.
    pub(crate) fn settle(self: &Rc<Self>) {
        let at = self.stored.get().filter(|at| !at.is_index());
        assert!(at.is_some() || self.place.get().is_none(), "INV-DEAD-4: one piece of a new version is in parts");
        if self.place.get().is_some() && self.home.planted == Some(Planted::StalePiece) {
            return;
        }
        self.recount(|| self.place.set(at));
        self.may_go();
    }

    /// Where it is stored it cannot be read. True when its content is in memory, where it stays until a checkpoint has written it.
    pub(crate) fn spoil(&self) -> bool {
        let here = self.here() > 0;
        if here {
            self.stays();
            self.recount(|| self.place.set(None));
        }
        here
    }

    /// Is its content in memory?
    pub(crate) fn is_here(&self) -> bool {
        self.content.borrow().is_some()
    }

    /// Its content, when it is in memory.
    pub(crate) fn content(&self) -> Option<Rc<[u8]>> {
        self.content.borrow().clone()
    }

    /// Where its content can be read.
    pub(crate) fn place(&self) -> Option<ObjectRef> {
        self.place.get()
    }

    /// Its content is needed. Where it has to be read, when it is neither in memory nor on its way, and it was not found out that it cannot be had.
    pub(crate) fn need(&self, need: Need) -> Option<ObjectRef> {
        if self.failed.get() & need as u8 != 0 {
            return None;
        }
        self.needs.set(self.needs.get() | need as u8);
        if self.is_here() || self.reading.replace(true) {
            return None;
        }
        Some(self.place.get().expect("INV-DEAD-4: content that is not in memory can be read"))
    }

    /// Its content is not needed any more.
    pub(crate) fn release(&self, need: Need) {
        self.needs.set(self.needs.get() & !(need as u8));
    }

    /// Could its content not be had? It is told once.
    pub(crate) fn take_failure(&self, need: Need) -> bool {
        let failed = self.failed.get();
        self.failed.set(failed & !(need as u8));
        failed & need as u8 != 0
    }

    /// It could not be read, or its checksum was wrong.
    pub(crate) fn fail(&self) {
        self.reading.set(false);
        self.failed.set(self.failed.get() | self.needs.take());
    }

    /// Its content was read. False when that is not the one.
    pub(crate) fn take_in(self: &Rc<Self>, bytes: &[u8], at: ObjectRef) -> bool {
        let believed = self.home.planted == Some(Planted::StalePiece);
        let right = believed || crc32c(bytes) == at.crc;
        let Some(content) = Some(bytes).filter(|_| right).and_then(|bytes| as_piece(bytes).ok()) else { return false };
        self.reading.set(false);
        self.failed.set(0);
        if !self.is_here() {
            self.hold(content);
            self.may_go();
        }
        true
    }

    fn hold(&self, content: Rc<[u8]>) {
        add(self.counter(), content.len());
        self.content.replace(Some(content));
    }

    /// Its content may leave memory when it can be read again.
    fn may_go(self: &Rc<Self>) {
        if self.place.get().is_some() && self.is_here() && self.evictable.get().is_none() {
            let number = self.home.next.get();
            self.home.next.set(number + 1);
            self.evictable.set(Some(number));
            self.home.evictable.borrow_mut().insert(number, Rc::downgrade(self));
        }
    }

    fn stays(&self) {
        if let Some(number) = self.evictable.take() {
            self.home.evictable.borrow_mut().remove(&number);
        }
    }

    /// Bytes that a checkpoint writes for it at most.
    fn stored_bytes(&self) -> usize {
        stored_bytes(self.length(), self.home.part)
    }

    /// Bytes of its content in memory.
    fn here(&self) -> usize {
        self.content.borrow().as_ref().map_or(0, |content| content.len())
    }

    /// Bytes that it takes besides.
    fn own_bytes(&self) -> usize {
        size_of::<Piece>() + self.index.bytes() + size_of_val(&*self.known)
    }

    /// Where its content is counted.
    fn counter(&self) -> &Cell<usize> {
        match (self.place.get(), self.stored.get()) {
            (Some(_), _) => &self.home.cached,
            (None, Some(at)) if at.is_index() => &self.home.kept,
            (None, _) => &self.home.unstored,
        }
    }

    fn recount(&self, change: impl FnOnce()) {
        sub(self.counter(), self.here());
        change();
        add(self.counter(), self.here());
    }

    /// Does the next checkpoint write it?
    pub(crate) fn needs_write(&self) -> bool {
        self.waits.get()
    }

    /// The next checkpoint writes it (again). Every list that refers to it has to be written then, too.
    pub(crate) fn touch(self: &Rc<Self>) {
        if !self.waits.replace(true) {
            add(&self.home.unwritten_bytes, self.stored_bytes());
            self.home.unwritten.borrow_mut().push(Rc::downgrade(self));
        }
    }

    /// Spans of a view of a list at most.
    pub(super) fn view_spans(&self) -> usize {
        self.home.view_spans()
    }

    pub(super) fn planted(&self, bug: Planted) -> bool {
        self.home.planted == Some(bug)
    }

    /// Entries.
    pub(super) fn len(&self) -> u32 {
        self.index.end().first
    }

    /// Units of data in all of them.
    pub(super) fn units(&self) -> u64 {
        self.index.end().units
    }

    /// The number of the first entry born after `epoch`, and the units of data before it.
    pub(super) fn first_after(&self, epoch: Epoch) -> (u32, u64) {
        #[cfg(test)]
        self.home.searches.set(self.home.searches.get() + 1);
        let boundary = self.index.after(epoch);
        (boundary.first, boundary.units)
    }

    /// Units of data before an entry that an epoch begins with, or a window that an import found.
    pub(super) fn units_before(&self, entry: u32) -> Option<u64> {
        let known = || self.known.iter().find(|(known, _)| *known == entry).map(|(_, units)| *units);
        self.index.at(entry).map(|boundary| boundary.units).or_else(known)
    }

    /// A list has no entry of it any more, though others may.
    pub(super) fn is_left(self: Rc<Self>) {
        self.release(Need::Freeing);
        if self.home.planted == Some(Planted::FreePieceInUse) && Rc::strong_count(&self) > 1 {
            let again = self.given_back.replace(true);
            self.home.retired.borrow_mut().extend(self.stored.get().filter(|_| !again));
        }
    }
}

impl Drop for Piece {
    /// Nothing refers to it (INV-DEAD-1).
    fn drop(&mut self) {
        self.stays();
        sub(self.counter(), self.here());
        sub(&self.home.indexes, self.own_bytes());
        if self.waits.get() {
            sub(&self.home.unwritten_bytes, self.stored_bytes());
        }
        self.home.retired.borrow_mut().extend(self.stored.get().filter(|_| !self.given_back.get()));
    }
}
