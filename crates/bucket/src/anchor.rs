//! Commits an anchor: writes it, then looks for a later term (INV-BUCKET-4).
//!
//! Whoever takes the next term creates its object first and reads the anchors afterwards. So either
//! the import sees the anchor, or this holder sees the term: no order of events misses both. The store
//! has to show an object to every reader once it was written; all of this rests on that.

use millpond_format::{OBJECT_HEAD_BYTES, ObjectFault, ObjectFolder, ObjectHead, ObjectName, Term};

use crate::{Answer, Created, Creation, ErrorKind, Operation, Part, Planted};

#[cfg(test)]
mod tests;

/// An anchor that is being committed.
#[derive(Clone, Debug)]
pub struct AnchorCommit {
    term: Term,
    host: [u8; 16],
    creation: Creation,
    is_written: bool,
    planted: Option<Planted>,
}

/// State of a commit after an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Committed {
    /// Carry out the next operation.
    Next,
    /// Carry out the next operation, after a while.
    Later(ErrorKind),
    /// The anchor counts.
    Done,
    /// There is a later term, or another host has this one, because its object was deleted or this host
    /// was copied. The anchor does not count, unless the import that has the later term read it; nothing
    /// more may be written.
    Fenced,
    /// An earlier session of this host used the number, or a request that this one gave up was carried
    /// out: take the next number. The caller has to know that the earlier session is over.
    Taken(Box<ObjectHead>),
    /// The store refuses an operation for good.
    Refused(ErrorKind),
    /// There is an object under the anchor's name, and it cannot be read.
    Damaged(ObjectFault),
}

impl AnchorCommit {
    /// Starts to commit an anchor; `object` has its head.
    ///
    /// # Errors
    /// [`ObjectFault`] when the object does not begin with its head.
    pub fn new(object: Vec<u8>) -> Result<AnchorCommit, ObjectFault> {
        let head = ObjectHead::decode(&object)?;
        let (term, host) = (head.term, head.holder.host);
        Ok(AnchorCommit { term, host, creation: Creation::new(object)?, is_written: false, planted: None })
    }

    /// Plants a bug.
    #[must_use]
    pub fn planting(mut self, planted: Option<Planted>) -> AnchorCommit {
        self.creation = self.creation.planting(planted);
        self.planted = planted;
        self
    }

    /// The next operation; `None` for the last term, which no later one can follow.
    pub fn operation(&self) -> Option<Operation> {
        if !self.is_written {
            return Some(self.creation.operation());
        }
        if Planted::ListBelieved.is(self.planted) {
            return Some(Operation::List { folder: ObjectFolder::Terms, after: Some(ObjectName::Term(self.term)), most: 1 });
        }
        let name = ObjectName::Term(self.term.next()?);
        Some(Operation::Get { name, part: Part::Range { offset: 0, length: OBJECT_HEAD_BYTES as u64 } })
    }

    /// Takes the answer to [`operation`](AnchorCommit::operation).
    pub fn answer(&mut self, answer: &Result<Answer, ErrorKind>) -> Committed {
        if self.is_written {
            return match answer {
                Err(ErrorKind::Missing) => Committed::Done,
                Ok(Answer::Names { names, .. }) if names.is_empty() => Committed::Done,
                // whatever its content: that there is an object is the answer
                Ok(_) => Committed::Fenced,
                Err(kind) if kind.may_pass() => Committed::Later(*kind),
                Err(kind) => Committed::Refused(*kind),
            };
        }
        match self.creation.answer(answer) {
            Created::Next => Committed::Next,
            Created::Later(kind) => Committed::Later(kind),
            Created::Own => {
                self.is_written = true;
                if self.term.next().is_some() { Committed::Next } else { Committed::Done }
            }
            Created::Other(head) if head.holder.host != self.host => Committed::Fenced,
            Created::Other(head) => Committed::Taken(head),
            Created::Refused(kind) => Committed::Refused(kind),
            Created::Damaged(fault) => Committed::Damaged(fault),
        }
    }
}
