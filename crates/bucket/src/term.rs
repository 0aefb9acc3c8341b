//! Takes a term: the right of one import to write to a bucket.
//!
//! A term is an object that is created if it is absent, and never deleted. So each term has at most
//! one holder (INV-BUCKET-3), without clocks and leases. An earlier holder may go on writing objects
//! of its own term; none of them counts any more ([`AnchorCommit`](crate::AnchorCommit)).

use millpond_format::{Holder, ObjectFault, ObjectHead, ObjectName, PoolId, Term};

use crate::{Answer, Created, Creation, ErrorKind, Newest, Operation, Planted, Search, Series};

#[cfg(test)]
mod tests;

/// An import that takes a term.
#[derive(Clone, Debug)]
pub struct TermClaim {
    pool: PoolId,
    holder: Holder,
    step: Step,
    planted: Option<Planted>,
}

#[derive(Clone, Debug)]
enum Step {
    Search(Box<Newest>),
    /// The term before one's own was found; the caller decides whether to take its place.
    Found(Term),
    Create(Term, Box<Creation>),
}

/// State of a claim after an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// Carry out the next operation.
    Next,
    /// Carry out the next operation, after a while.
    Later(ErrorKind),
    /// The newest term, which another import may still use; `None` in a bucket without terms. Call
    /// [`take`](TermClaim::take), or give up.
    Found(Option<Box<ObjectHead>>),
    /// This import has the term.
    Held(Term),
    /// Another import took the term first.
    Lost(Box<ObjectHead>),
    /// There is no further term.
    Exhausted,
    /// The store refuses an operation for good.
    Refused(ErrorKind),
    /// An object cannot be read.
    Damaged(ObjectName, ObjectFault),
}

impl TermClaim {
    /// Starts to take a term for an import. The session of the holder is new for each import.
    pub fn new(pool: PoolId, holder: Holder) -> TermClaim {
        TermClaim { pool, holder, step: Step::Search(Box::new(Newest::new(pool, Series::Terms))), planted: None }
    }

    /// Plants a bug.
    #[must_use]
    pub fn planting(mut self, planted: Option<Planted>) -> TermClaim {
        self.step = Step::Search(Box::new(Newest::new(self.pool, Series::Terms).planting(planted)));
        self.planted = planted;
        self
    }

    /// The next operation; `None` while the caller has to decide.
    pub fn operation(&self) -> Option<Operation> {
        match &self.step {
            Step::Search(search) => Some(search.operation()),
            Step::Found(_) => None,
            Step::Create(_, creation) => Some(creation.operation()),
        }
    }

    /// Takes the place of the newest term.
    pub fn take(&mut self) -> Claimed {
        let Step::Found(newest) = self.step else { return Claimed::Next };
        let Some(term) = newest.next() else { return Claimed::Exhausted };
        let name = ObjectName::Term(term);
        match Creation::new(ObjectHead::seal(self.pool, term, self.holder.clone(), name, &[])) {
            Ok(creation) => self.step = Step::Create(term, Box::new(creation.planting(self.planted))),
            Err(fault) => return Claimed::Damaged(name, fault),
        }
        Claimed::Next
    }

    /// Takes the answer to [`operation`](TermClaim::operation).
    pub fn answer(&mut self, answer: &Result<Answer, ErrorKind>) -> Claimed {
        match &mut self.step {
            Step::Search(search) => match search.answer(answer) {
                Search::Next => Claimed::Next,
                Search::Later(kind) => Claimed::Later(kind),
                Search::Refused(kind) => Claimed::Refused(kind),
                Search::Damaged(name, fault) => Claimed::Damaged(name, fault),
                Search::Found(newest) => {
                    self.step = Step::Found(newest.as_ref().map_or(Term::default(), |head| head.term));
                    Claimed::Found(newest)
                }
            },
            Step::Found(_) => Claimed::Next,
            Step::Create(term, creation) => match creation.answer(answer) {
                Created::Next => Claimed::Next,
                Created::Later(kind) => Claimed::Later(kind),
                Created::Own => Claimed::Held(*term),
                Created::Other(head) => Claimed::Lost(head),
                Created::Refused(kind) => Claimed::Refused(kind),
                Created::Damaged(fault) => Claimed::Damaged(ObjectName::Term(*term), fault),
            },
        }
    }
}
