//! Creates one object, and finds out by its head who did.
//!
//! A create that ended with [`ErrorKind::Exists`] or whose answer was lost says nothing about the
//! winner: an earlier request of the same import may have been carried out. The head of the object
//! says it: the own head: done; absent: create again; another head: lost (INV-BUCKET-1). The head has
//! length and checksum of the content: a request that the session gave up, and that is carried out
//! later, is not taken for this one.

use millpond_format::{OBJECT_HEAD_BYTES, ObjectFault, ObjectHead, ObjectName};

use crate::{Answer, ErrorKind, Operation, Part, Planted};

#[cfg(test)]
mod tests;

/// Looks at a damaged head before it is believed: a store may return other bytes once.
const LOOKS: u8 = 3;

/// A create under way.
#[derive(Clone, Debug)]
pub struct Creation {
    head: ObjectHead,
    object: Vec<u8>,
    step: Step,
    damaged: u8,
    /// An answer was in doubt, so the object may appear later.
    in_doubt: bool,
    planted: Option<Planted>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Put,
    Look,
}

/// State of a create after an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Created {
    /// Carry out the next operation.
    Next,
    /// Carry out the next operation, after a while.
    Later(ErrorKind),
    /// The object is the one of this import.
    Own,
    /// Another import has the object; or another object of this one, which it gave up, was written
    /// later.
    Other(Box<ObjectHead>),
    /// The store refuses the operation for good.
    Refused(ErrorKind),
    /// There is an object, and its head cannot be read.
    Damaged(ObjectFault),
}

impl Creation {
    /// Starts to create `object`, which has its head.
    ///
    /// # Errors
    /// [`ObjectFault`] when the object does not begin with its head.
    pub fn new(object: Vec<u8>) -> Result<Creation, ObjectFault> {
        let head = ObjectHead::decode(&object)?;
        Ok(Creation { head, object, step: Step::Put, damaged: 0, in_doubt: false, planted: None })
    }

    /// Plants a bug.
    #[must_use]
    pub fn planting(mut self, planted: Option<Planted>) -> Creation {
        self.planted = planted;
        self
    }

    /// The name of the object.
    pub fn name(&self) -> ObjectName {
        self.head.name
    }

    /// The next operation.
    pub fn operation(&self) -> Operation {
        match self.step {
            Step::Put => {
                let create = !Planted::CounterRestarts.is(self.planted) || !matches!(self.name(), ObjectName::Root(..));
                Operation::Put { name: self.name(), create, object: self.object.clone() }
            }
            Step::Look => Operation::Get { name: self.name(), part: Part::Range { offset: 0, length: OBJECT_HEAD_BYTES as u64 } },
        }
    }

    /// Takes the answer to [`operation`](Creation::operation).
    pub fn answer(&mut self, answer: &Result<Answer, ErrorKind>) -> Created {
        self.in_doubt |= self.step == Step::Put && answer.as_ref().is_err_and(|kind| kind.may_be_done());
        match (self.step, answer) {
            (Step::Put, Ok(_)) => Created::Own,
            (Step::Put, Err(ErrorKind::Exists)) if Planted::ExistsIsSuccess.is(self.planted) => Created::Own,
            (Step::Put, Err(ErrorKind::Exists | ErrorKind::Unknown)) => {
                self.step = Step::Look;
                Created::Next
            }
            (Step::Look, Ok(Answer::Read { bytes, length })) => self.settle(bytes, *length),
            (Step::Look, Err(ErrorKind::Missing)) => {
                self.step = Step::Put;
                // a store that hides an object for a while answers the next create with "exists"
                Created::Later(ErrorKind::Missing)
            }
            (_, Err(kind)) if kind.may_pass() => Created::Later(*kind),
            // an earlier request may have been carried out
            (Step::Put, Err(_)) if std::mem::take(&mut self.in_doubt) => {
                self.step = Step::Look;
                Created::Next
            }
            (_, Err(kind)) => Created::Refused(*kind),
            (Step::Look, Ok(_)) => Created::Refused(ErrorKind::Refused),
        }
    }

    fn settle(&mut self, bytes: &[u8], length: u64) -> Created {
        match ObjectHead::expect(bytes, self.head.pool, self.name(), Some(length)) {
            Ok(head) if head == self.head => Created::Own,
            Ok(head) => Created::Other(Box::new(head)),
            Err(fault) => {
                self.damaged += 1;
                if self.damaged < LOOKS { Created::Later(ErrorKind::Unknown) } else { Created::Damaged(fault) }
            }
        }
    }
}
