//! Pieces of deadlists: immutable runs of entries that lists refer to.
//!
//! INV-DEAD-1: the storage of a piece is released once, when no list refers to it any more, neither
//! a list in memory nor one that a running checkpoint has yet to write. Both own the piece itself,
//! so it is dropped with its last owner. Its place is then retired, and the next checkpoint, which
//! does not refer to it, replaces it like any other object.
//!
//! Memory always has an [`Index`] of the epochs of a piece, so lists are split, merged and counted
//! without its content. The content is read again to free its entries, or to write it to another
//! place.
//!
//! INV-DEAD-4: the content of a piece leaves memory only while it can be read again: from a place
//! where a checkpoint put it that has finished writing its objects. While a checkpoint moves a
//! piece, that is its old place.

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

/// Minimum size, in pieces of the longest kind, of content that no checkpoint has, after which a
/// checkpoint is wanted.
const UNSTORED_PIECES: usize = 32;
/// Maximum bytes of a list's tail, as a multiple of those of a piece. Counted are the bytes that
/// entries may take on devices, three times as much as single slots take.
const TAIL_PIECES: usize = 2;
/// Part (1/N) of the memory limit of pieces that the tails of growing lists may take on devices,
/// about; in memory they are several times as long.
const TAIL_PART: usize = 32;
/// Minimum for the maximum length of a growing list's tail, however many lists grow: a piece takes
/// some 250 bytes of memory as long as it exists, so pieces must not be short.
const SHORTEST_TAIL: usize = 8 << 10;

/// Spans of a view: one for this many bytes of a piece, within bounds. Cutting as many takes some
/// 0.1 ms.
const VIEW_BYTES: usize = 1 << 10;
const VIEW_SPANS: (usize, usize) = (2, 64);

/// Memory that a tail takes, as a multiple of its bytes in a directory, about.
const TAIL_MEMORY: usize = 4;
/// Bytes that pieces take besides entries and references, when a tail becomes pieces.
const TAIL_BYTES: usize = 4 * (ObjectRef::STEP + PieceRef::BYTES);

/// Maximum stored bytes of an object of `bytes` bytes: it begins at a multiple of
/// [`ObjectRef::STEP`], and an object longer than `part` has an index of its parts.
pub(crate) fn stored_bytes(bytes: usize, part: usize) -> usize {
    bytes.next_multiple_of(ObjectRef::STEP) + (bytes / part + 1) * ObjectRef::STEP
}

/// Reason why the content of a piece is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Its entries are being freed.
    Freeing = 1,
    /// A checkpoint writes it to another place.
    Writing = 2,
}

/// State that all pieces of a pool share: bounds, counters, and the pieces to be written or
/// released.
#[derive(Debug)]
pub(crate) struct Pieces {
    /// Maximum bytes of a piece.
    most: usize,
    /// Maximum bytes of a part of an object.
    part: usize,
    /// Memory in bytes that all pieces may take, as far as their content can be read again.
    limit: usize,
    /// Places of pieces that nothing refers to any more.
    retired: RefCell<Vec<ObjectRef>>,
    /// Pieces that the next checkpoint writes.
    unwritten: RefCell<Vec<Weak<Piece>>>,
    /// Maximum bytes that it writes for these.
    unwritten_bytes: Cell<usize>,
    /// Maximum bytes that it writes for directories of lists, as far as these are counted
    /// ([`Share`]).
    directories: Cell<usize>,
    /// Views of lists that were split and are not cut yet.
    uncut: RefCell<VecDeque<Weak<View>>>,
    /// Pieces with content in memory that can be read again, the oldest first.
    evictable: RefCell<BTreeMap<u64, Weak<Piece>>>,
    /// Number of the next of these.
    next: Cell<u64>,
    /// Bytes in memory: content that can be read again, content that no checkpoint has, other
    /// content, everything else.
    cached: Cell<usize>,
    unstored: Cell<usize>,
    kept: Cell<usize>,
    indexes: Cell<usize>,
    /// Bytes of memory that tails of lists take, as far as these are counted ([`Share`]).
    tails: Cell<usize>,
    /// Number of searches for the beginning of an epoch.
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

    /// Returns the most bytes of a part of an object, which a piece is at most.
    pub(crate) fn part_bytes(&self) -> usize {
        self.part
    }

    /// Maximum bytes of a list's tail when `lists` lists grow.
    pub(crate) fn longest_tail(&self, lists: usize) -> usize {
        (self.limit / (TAIL_PART * lists.max(1))).max(SHORTEST_TAIL).min(TAIL_PIECES * self.most)
    }

    /// Maximum spans of a view of a list.
    pub(super) fn view_spans(&self) -> usize {
        (self.most / VIEW_BYTES).clamp(VIEW_SPANS.0, VIEW_SPANS.1)
    }

    /// Registers a view that a split narrowed and that is not cut yet.
    pub(super) fn cut_later(&self, view: &Rc<View>) {
        self.uncut.borrow_mut().push_back(Rc::downgrade(view));
    }

    /// Cuts at most `views` views that splits narrowed, the oldest first. Views without an owner
    /// are skipped.
    pub(crate) fn cut_some(&self, mut views: usize) {
        while views > 0 {
            let Some(next) = self.uncut.borrow_mut().pop_front() else { return };
            if let Some(view) = next.upgrade().filter(|view| !view.is_cut()) {
                view.cut();
                views -= 1;
            }
        }
    }

    /// True when there are views to be cut.
    pub(crate) fn has_uncut(&self) -> bool {
        !self.uncut.borrow().is_empty()
    }

    /// Makes pieces of records that are in order of (epoch, chunk): as few as their size allows.
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

    /// Returns a piece that a checkpoint stored. `ends` are the first and last entries of windows.
    /// An object of an older version may be as long as the list was; if it is in parts, its content
    /// stays in memory.
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

    /// Returns the pieces that the checkpoint which is being fixed has to write.
    pub(crate) fn seal(&self) -> VecDeque<Rc<Piece>> {
        let sealed: VecDeque<Rc<Piece>> = self.unwritten.take().iter().filter_map(Weak::upgrade).collect();
        sealed.iter().for_each(|piece| piece.waits.set(false));
        self.unwritten_bytes.set(0);
        sealed
    }

    /// Maximum bytes that the next checkpoint writes for pieces and for directories of lists.
    pub(crate) fn to_write(&self) -> usize {
        debug_assert_eq!(
            self.unwritten_bytes.get(),
            self.unwritten.borrow().iter().filter_map(Weak::upgrade).map(|piece| piece.stored_bytes()).sum::<usize>(),
            "pieces that wait are counted as they come and go"
        );
        self.unwritten_bytes.get() + self.directories.get()
    }

    /// Maximum bytes that the next checkpoint writes for directories of lists.
    pub(crate) fn lists_to_write(&self) -> usize {
        self.directories.get()
    }

    /// Maximum bytes of a list's directory as an object. The tail may become pieces before the
    /// checkpoint, which takes as many bytes and a step for each piece.
    pub(crate) fn directory_bytes(&self, list: &Deadlist) -> usize {
        stored_bytes(list.directory_bytes() + TAIL_BYTES, self.part)
    }

    /// True when there are retired places.
    pub(crate) fn has_retired(&self) -> bool {
        !self.retired.borrow().is_empty()
    }

    /// Takes the places that no list needs any more.
    pub(crate) fn take_retired(&self) -> Vec<ObjectRef> {
        self.retired.take()
    }

    /// Bytes of memory that pieces and tails of lists take.
    pub(crate) fn memory(&self) -> usize {
        self.tails.get() + self.cached.get() + self.unstored.get() + self.kept.get() + self.indexes.get()
    }

    /// True when so much content in memory is in no checkpoint that one is wanted.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        self.unstored.get() > (self.limit / 2).max(UNSTORED_PIECES * self.most)
    }

    /// Drops content that can be read again, the oldest first, until the rest is within the limit.
    /// Content that is needed now stays.
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

/// A list's part of the bytes that the next checkpoint writes for directories
/// ([`Pieces::to_write`]), and of the memory of tails ([`Pieces::memory`]).
#[derive(Debug, Default)]
pub(crate) struct Share {
    home: Option<Rc<Pieces>>,
    bytes: usize,
    tail: usize,
}

impl Share {
    /// Sets the bytes that the checkpoint writes for the list, and the maximum bytes of its tail in
    /// a directory.
    pub(crate) fn set(&mut self, home: &Rc<Pieces>, bytes: usize, tail: usize) {
        self.clear();
        self.bytes = bytes;
        add(&home.directories, bytes);
        sub(&home.tails, std::mem::replace(&mut self.tail, tail * TAIL_MEMORY));
        add(&home.tails, self.tail);
        self.home.get_or_insert_with(|| Rc::clone(home));
    }

    /// Sets that the next checkpoint writes nothing for the list.
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

/// Returns an object as a piece of this version; a list of an older version is encoded anew.
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

/// A piece: entries in order of (epoch, chunk), as they are stored.
#[derive(Debug)]
pub(crate) struct Piece {
    index: Index,
    /// Units of data before entries that were first or last of a window at an import, except at the
    /// beginning of an epoch.
    known: Box<[(u32, u64)]>,
    /// Bytes of its content.
    length: u32,
    content: RefCell<Option<Rc<[u8]>>>,
    /// Place where it can be read.
    place: Cell<Option<ObjectRef>>,
    /// Its number among those whose content may leave memory.
    evictable: Cell<Option<u64>>,
    /// Bits of [`Need`]: what the content is needed for, and for what reading it has failed.
    needs: Cell<u8>,
    failed: Cell<u8>,
    /// True while it is being read.
    reading: Cell<bool>,
    /// Place where the last checkpoint that wrote it put it.
    stored: Cell<Option<ObjectRef>>,
    /// True when the next checkpoint writes it.
    waits: Cell<bool>,
    /// True when it was released too early
    /// ([`Planted::FreePieceInUse`](crate::Planted::FreePieceInUse)).
    given_back: Cell<bool>,
    home: Rc<Pieces>,
}

impl Piece {
    /// Bytes that a checkpoint writes for it.
    pub(crate) fn length(&self) -> usize {
        self.length as usize
    }

    pub(crate) fn stored(&self) -> Option<ObjectRef> {
        self.stored.get()
    }

    /// Sets the place where the running checkpoint puts it, and returns the old place.
    pub(crate) fn set_stored(&self, at: ObjectRef) -> Option<ObjectRef> {
        let before = self.stored.get();
        self.recount(|| self.stored.set(Some(at)));
        before
    }

    /// Marks it as readable at its new place: the checkpoint has finished writing its objects.
    pub(crate) fn settle(self: &Rc<Self>) {
        let at = self.stored.get().filter(|at| !at.is_index());
        assert!(at.is_some() || self.place.get().is_none(), "INV-DEAD-4: one piece of a new version is in parts");
        if self.place.get().is_some() && self.home.planted == Some(Planted::StalePiece) {
            return;
        }
        self.recount(|| self.place.set(at));
        self.may_go();
    }

    /// Marks its stored place as unreadable. Returns true when its content is in memory, where it
    /// stays until a checkpoint has written it.
    pub(crate) fn spoil(&self) -> bool {
        let here = self.here() > 0;
        if here {
            self.stays();
            self.recount(|| self.place.set(None));
        }
        here
    }

    /// True when its content is in memory.
    pub(crate) fn is_here(&self) -> bool {
        self.content.borrow().is_some()
    }

    /// Returns its content if it is in memory.
    pub(crate) fn content(&self) -> Option<Rc<[u8]>> {
        self.content.borrow().clone()
    }

    /// Place where its content can be read.
    pub(crate) fn place(&self) -> Option<ObjectRef> {
        self.place.get()
    }

    /// Marks its content as needed. Returns the place to read when the content is neither in memory
    /// nor being read, and has not failed for this need.
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

    /// Marks its content as no longer needed.
    pub(crate) fn release(&self, need: Need) {
        self.needs.set(self.needs.get() & !(need as u8));
    }

    /// True when reading it has failed for this need; resets that.
    pub(crate) fn take_failure(&self, need: Need) -> bool {
        let failed = self.failed.get();
        self.failed.set(failed & !(need as u8));
        failed & need as u8 != 0
    }

    /// Records that it could not be read, or had a wrong checksum.
    pub(crate) fn fail(&self) {
        self.reading.set(false);
        self.failed.set(self.failed.get() | self.needs.take());
    }

    /// Takes content that was read. False when its checksum is wrong or it cannot be decoded.
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

    /// Allows its content to leave memory if it can be read again.
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

    /// Maximum bytes that a checkpoint writes for it.
    fn stored_bytes(&self) -> usize {
        stored_bytes(self.length(), self.home.part)
    }

    /// Bytes of its content in memory.
    fn here(&self) -> usize {
        self.content.borrow().as_ref().map_or(0, |content| content.len())
    }

    /// Bytes of memory that it takes without its content.
    fn own_bytes(&self) -> usize {
        size_of::<Piece>() + self.index.bytes() + size_of_val(&*self.known)
    }

    /// The counter that its content is counted in.
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

    /// True when the next checkpoint writes it.
    pub(crate) fn needs_write(&self) -> bool {
        self.waits.get()
    }

    /// Makes the next checkpoint write it (again). Every list that refers to it must be written
    /// then, too.
    pub(crate) fn touch(self: &Rc<Self>) {
        if !self.waits.replace(true) {
            add(&self.home.unwritten_bytes, self.stored_bytes());
            self.home.unwritten.borrow_mut().push(Rc::downgrade(self));
        }
    }

    /// Maximum spans of a view of a list.
    pub(super) fn view_spans(&self) -> usize {
        self.home.view_spans()
    }

    pub(super) fn planted(&self, bug: Planted) -> bool {
        self.home.planted == Some(bug)
    }

    /// Number of entries.
    pub(super) fn len(&self) -> u32 {
        self.index.end().first
    }

    /// Units of data in all entries.
    pub(super) fn units(&self) -> u64 {
        self.index.end().units
    }

    /// Returns the number of the first entry born after `epoch`, and the units of data before it.
    pub(super) fn first_after(&self, epoch: Epoch) -> (u32, u64) {
        #[cfg(test)]
        self.home.searches.set(self.home.searches.get() + 1);
        let boundary = self.index.after(epoch);
        (boundary.first, boundary.units)
    }

    /// Returns the units of data before an entry that is the first of an epoch, or an end of a
    /// window that an import found.
    pub(super) fn units_before(&self, entry: u32) -> Option<u64> {
        let known = || self.known.iter().find(|(known, _)| *known == entry).map(|(_, units)| *units);
        self.index.at(entry).map(|boundary| boundary.units).or_else(known)
    }

    /// A list has freed its last entry of this piece; other lists may still refer to it.
    pub(super) fn is_left(self: Rc<Self>) {
        self.release(Need::Freeing);
        if self.home.planted == Some(Planted::FreePieceInUse) && Rc::strong_count(&self) > 1 {
            let again = self.given_back.replace(true);
            self.home.retired.borrow_mut().extend(self.stored.get().filter(|_| !again));
        }
    }
}

impl Drop for Piece {
    /// Retires its place: nothing refers to the piece any more (INV-DEAD-1).
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
