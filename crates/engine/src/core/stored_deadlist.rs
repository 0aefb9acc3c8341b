//! Deadlists of the catalog, with what checkpoints need to know of them.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use millpond_format::ObjectRef;

use crate::space::{Deadlist, Pieces, Share};

/// Place where the last checkpoint put an object. Shared, because the running checkpoint may set it
/// after the object's owner was dropped.
pub(crate) type Stored = Rc<Cell<Option<ObjectRef>>>;

/// A deadlist, and the place where the last checkpoint put it.
#[derive(Debug, Default)]
pub(crate) struct StoredDeadlist {
    /// Shared with the running checkpoint until the checkpoint has encoded it.
    list: Rc<Deadlist>,
    stored: Stored,
    changed: bool,
    /// Bytes that the next checkpoint writes for it, and bytes of memory of its tail.
    share: Share,
}

/// Mutable access to a list. When it ends, the bytes of the list's directory are counted again.
pub(crate) struct ListMut<'a> {
    list: &'a mut StoredDeadlist,
    pieces: &'a Rc<Pieces>,
}

impl Deref for ListMut<'_> {
    type Target = Deadlist;

    fn deref(&self) -> &Deadlist {
        &self.list.list
    }
}

impl DerefMut for ListMut<'_> {
    fn deref_mut(&mut self) -> &mut Deadlist {
        Rc::make_mut(&mut self.list.list)
    }
}

impl Drop for ListMut<'_> {
    fn drop(&mut self) {
        self.list.count(self.pieces);
    }
}

impl StoredDeadlist {
    /// Creates a list that is in no checkpoint yet.
    pub(crate) fn new(list: Rc<Deadlist>, pieces: &Rc<Pieces>) -> StoredDeadlist {
        let mut new = StoredDeadlist { list, changed: true, ..StoredDeadlist::default() };
        new.count(pieces);
        new
    }

    /// Creates a list that an import has read. A list of an older version has no directory; the
    /// next checkpoint writes one.
    pub(crate) fn loaded(list: Deadlist, stored: Option<ObjectRef>, pieces: &Rc<Pieces>) -> StoredDeadlist {
        let stored = Rc::new(Cell::new(stored));
        let mut loaded = StoredDeadlist { changed: stored.get().is_none(), list: Rc::new(list), stored, share: Share::default() };
        loaded.count(pieces);
        loaded
    }

    /// Takes the content out and keeps the stored place.
    pub(crate) fn take(&mut self, pieces: &Rc<Pieces>) -> Rc<Deadlist> {
        self.changed = true;
        let list = std::mem::take(&mut self.list);
        self.count(pieces);
        list
    }

    /// Counts the bytes that the next checkpoint writes for it, and the memory of its tail.
    pub(crate) fn count(&mut self, pieces: &Rc<Pieces>) {
        let bytes = if self.changed { pieces.directory_bytes(&self.list) } else { 0 };
        self.share.set(pieces, bytes, self.list.tail_bytes());
    }

    /// Bytes that the next checkpoint writes for it, as counted.
    pub(crate) fn share(&self) -> usize {
        self.share.bytes()
    }

    pub(crate) fn list(&self) -> &Deadlist {
        &self.list
    }

    /// Mutable access to the list. While the running checkpoint has not encoded it, a copy is
    /// changed.
    pub(crate) fn list_mut<'a>(&'a mut self, pieces: &'a Rc<Pieces>) -> ListMut<'a> {
        self.changed = true;
        ListMut { list: self, pieces }
    }

    /// Changes state of the list that is not stored, if no running checkpoint shares it.
    pub(crate) fn change_order(&mut self, change: impl FnOnce(&mut Deadlist)) {
        if let Some(list) = Rc::get_mut(&mut self.list) {
            change(list);
        }
    }

    /// True when the next checkpoint has to write it.
    pub(crate) fn needs_write(&self) -> bool {
        self.changed
    }

    /// True while the running checkpoint has not encoded it, so that a change would copy it.
    pub(crate) fn is_shared(&self) -> bool {
        Rc::strong_count(&self.list) > 1
    }

    pub(crate) fn stored(&self) -> Option<ObjectRef> {
        self.stored.get()
    }

    /// The cell that will have the place where the next checkpoint puts it.
    pub(crate) fn place(&self) -> Stored {
        Rc::clone(&self.stored)
    }

    /// Place where the last checkpoint put it; `None` when a running one may still change it.
    pub(crate) fn settled(&self) -> Option<Option<ObjectRef>> {
        (Rc::strong_count(&self.stored) == 1).then(|| self.stored.get())
    }

    /// Returns the content for a checkpoint to write, if it changed since the checkpoint before.
    pub(crate) fn seal(&mut self) -> Option<(Rc<Deadlist>, Stored)> {
        self.share.clear();
        std::mem::take(&mut self.changed).then(|| (Rc::clone(&self.list), self.place()))
    }

    /// Makes the next checkpoint write the directory if `moves` is true for its place, or pieces
    /// and the directory if it is true for theirs. Returns true if the directory is to be written.
    pub(crate) fn rewrite(&mut self, pieces: &Rc<Pieces>, moves: impl Fn(ObjectRef) -> bool) -> bool {
        let mut found = self.stored().is_some_and(&moves);
        for piece in self.list.pieces().filter(|piece| piece.stored().is_some_and(&moves)) {
            piece.touch();
            found = true;
        }
        if found {
            self.changed = true;
            self.count(pieces);
        }
        found
    }
}
