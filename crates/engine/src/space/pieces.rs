//! Pieces of deadlists: immutable runs of entries that lists refer to.
//!
//! INV-DEAD-1: the storage of a piece is given back when no list refers to it any more, neither one in memory nor one that a running checkpoint still
//! writes. Both hold the piece itself, so its end is when the last of them lets go; what it was stored in is then retired, and the next checkpoint,
//! which does not name it, replaces it like any other object.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use millpond_format::{DeadGroup, DeadRecord, Epoch, FormatError, ObjectRef};

/// What all pieces of a pool have in common.
#[derive(Debug)]
pub(crate) struct Pieces {
    /// Bytes of a piece at most.
    most: usize,
    /// Where pieces were that nothing refers to any more.
    retired: RefCell<Vec<ObjectRef>>,
    /// Pieces that the next checkpoint writes.
    unwritten: RefCell<Vec<Weak<Piece>>>,
    /// [`Planted::FreePieceInUse`](crate::Planted::FreePieceInUse).
    forgets_others: bool,
}

impl Pieces {
    pub(crate) fn new(most: usize, forgets_others: bool) -> Rc<Pieces> {
        Rc::new(Pieces { most, retired: RefCell::default(), unwritten: RefCell::default(), forgets_others })
    }

    /// Bytes of a piece at most.
    pub(super) fn most(&self) -> usize {
        self.most
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
        let piece = Rc::new(self.piece(bytes, groups, None));
        piece.touch();
        made(piece);
    }

    /// A piece as a checkpoint stored it. An object of an older version is as long as the list was.
    pub(crate) fn load(self: &Rc<Self>, bytes: Vec<u8>, at: ObjectRef) -> Result<Rc<Piece>, FormatError> {
        let (bytes, groups) = match DeadGroup::all(&bytes) {
            Err(FormatError::Magic) => {
                let bytes = DeadRecord::encode_piece(&DeadRecord::decode_piece(&bytes)?);
                let groups = DeadGroup::all(&bytes)?;
                (bytes, groups)
            }
            groups => (bytes, groups?),
        };
        Ok(Rc::new(self.piece(bytes, groups, Some(at))))
    }

    fn piece(self: &Rc<Self>, bytes: Vec<u8>, groups: Vec<DeadGroup>, at: Option<ObjectRef>) -> Piece {
        Piece {
            bytes: bytes.into(),
            groups: groups.into(),
            stored: Cell::new(at),
            waits: Cell::default(),
            given_back: Cell::default(),
            home: Rc::clone(self),
        }
    }

    /// The pieces that a checkpoint has to write, which is being fixed.
    pub(crate) fn seal(&self) -> VecDeque<Rc<Piece>> {
        let sealed: VecDeque<Rc<Piece>> = self.unwritten.take().iter().filter_map(Weak::upgrade).collect();
        sealed.iter().for_each(|piece| piece.waits.set(false));
        sealed
    }

    /// The lengths of pieces that the next checkpoint writes, each as `cost` says.
    pub(crate) fn unwritten(&self, cost: impl Fn(usize) -> usize) -> usize {
        self.unwritten.borrow().iter().filter_map(Weak::upgrade).map(|piece| cost(piece.bytes.len())).sum()
    }

    /// Are there places that no list needs any more?
    pub(crate) fn has_retired(&self) -> bool {
        !self.retired.borrow().is_empty()
    }

    /// The places that no list needs any more.
    pub(crate) fn take_retired(&self) -> Vec<ObjectRef> {
        self.retired.take()
    }
}

/// Entries in order of (epoch, chunk), as they are stored.
#[derive(Debug)]
pub(crate) struct Piece {
    bytes: Box<[u8]>,
    groups: Box<[DeadGroup]>,
    /// Where the last checkpoint that wrote it put it.
    stored: Cell<Option<ObjectRef>>,
    /// The next checkpoint writes it.
    waits: Cell<bool>,
    /// Given back too early ([`Planted::FreePieceInUse`](crate::Planted::FreePieceInUse)).
    given_back: Cell<bool>,
    home: Rc<Pieces>,
}

impl Piece {
    /// What a checkpoint writes of it.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn stored(&self) -> Option<ObjectRef> {
        self.stored.get()
    }

    /// The running checkpoint put it there. Gives back where it was.
    pub(crate) fn set_stored(&self, at: ObjectRef) -> Option<ObjectRef> {
        self.stored.replace(Some(at))
    }

    /// Does the next checkpoint write it?
    pub(crate) fn needs_write(&self) -> bool {
        self.waits.get()
    }

    /// The next checkpoint writes it (again). Every list that refers to it has to be written then, too.
    pub(crate) fn touch(self: &Rc<Self>) {
        if !self.waits.replace(true) {
            self.home.unwritten.borrow_mut().push(Rc::downgrade(self));
        }
    }

    /// Entries.
    pub(super) fn len(&self) -> u32 {
        self.groups.last().map_or(0, |group| group.first + group.count)
    }

    /// The number of the first entry born after `epoch`.
    pub(super) fn first_after(&self, epoch: Epoch) -> u32 {
        let at = self.groups.partition_point(|group| group.epoch <= epoch);
        self.groups.get(at).map_or(self.len(), |group| group.first)
    }

    /// The group that an entry is in.
    fn group_of(&self, entry: u32) -> Option<&DeadGroup> {
        let at = self.groups.partition_point(|group| group.first <= entry).checked_sub(1)?;
        self.groups.get(at).filter(|group| entry - group.first < group.count)
    }

    /// Units of data in all entries before this one.
    pub(super) fn units_before(&self, entry: u32) -> u64 {
        let Some(group) = self.group_of(entry) else {
            return self.groups.last().map_or(0, |group| group.units_before + group.units);
        };
        let count = (entry - group.first) as usize;
        let within = || self.records(group).iter().take(count).map(|record| u64::from(record.units)).sum::<u64>();
        group.units_before + if count == 0 { 0 } else { within() }
    }

    /// The entries of its group from this one on.
    pub(super) fn group_from(&self, entry: u32) -> impl Iterator<Item = DeadRecord<'static>> + use<> {
        let found = self.group_of(entry).map(|group| (self.records(group), (entry - group.first) as usize));
        let (records, skip) = found.unwrap_or_default();
        records.into_iter().skip(skip)
    }

    fn records(&self, group: &DeadGroup) -> Vec<DeadRecord<'static>> {
        group.records(&self.bytes).expect("INV-DEAD-2: a piece reads as what it was made of")
    }

    /// A list has no entry of it any more, though others may.
    pub(super) fn is_left(self: Rc<Self>) {
        if self.home.forgets_others && cfg!(feature = "planted") && Rc::strong_count(&self) > 1 {
            let again = self.given_back.replace(true);
            self.home.retired.borrow_mut().extend(self.stored.get().filter(|_| !again));
        }
    }
}

impl Drop for Piece {
    /// Nothing refers to it (INV-DEAD-1).
    fn drop(&mut self) {
        self.home.retired.borrow_mut().extend(self.stored.get().filter(|_| !self.given_back.get()));
    }
}
