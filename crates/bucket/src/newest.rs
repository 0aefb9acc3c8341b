//! Finds the newest object of a series whose numbers have no gaps.
//!
//! A list is a hint: it may lack what was written lately, and it may be refused. So the next names are
//! asked for by key until one is absent (INV-BUCKET-2).

use millpond_format::{OBJECT_HEAD_BYTES, ObjectFault, ObjectFolder, ObjectHead, ObjectName, PoolId, Term};

use crate::operation::MOST_NAMES;
use crate::{Answer, ErrorKind, Operation, Part, Planted};

#[cfg(test)]
mod tests;

/// Looks at a damaged head before it is believed: a store may return other bytes once.
const LOOKS: u8 = 3;

/// Objects with consecutive numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Series {
    /// Terms, from 1 on.
    Terms,
    /// Anchors of a term, from 0 on.
    Anchors(Term),
}

impl Series {
    fn first(self) -> u64 {
        match self {
            Series::Terms => 1,
            Series::Anchors(_) => 0,
        }
    }

    fn folder(self) -> ObjectFolder {
        match self {
            Series::Terms => ObjectFolder::Terms,
            Series::Anchors(term) => ObjectFolder::Roots(term),
        }
    }

    /// Name of an object; `None` beyond the last number.
    fn name(self, number: u64) -> Option<ObjectName> {
        match self {
            Series::Terms => u32::try_from(number).ok().map(|number| ObjectName::Term(Term(number))),
            Series::Anchors(term) => Some(ObjectName::Root(term, number)),
        }
    }

    fn number(self, name: ObjectName) -> Option<u64> {
        match (self, name) {
            (Series::Terms, ObjectName::Term(term)) => Some(u64::from(term.0)),
            (Series::Anchors(own), ObjectName::Root(term, number)) if own == term => Some(number),
            _ => None,
        }
    }
}

/// A search for the newest object of a series.
#[derive(Clone, Debug)]
pub struct Newest {
    pool: PoolId,
    series: Series,
    step: Step,
    /// The last number in the list.
    listed: Option<u64>,
    found: Option<ObjectHead>,
    damaged: u8,
    planted: Option<Planted>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    List(Option<ObjectName>),
    Look(u64),
}

/// State of a search after an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Search {
    /// Carry out the next operation.
    Next,
    /// Carry out the next operation, after a while.
    Later(ErrorKind),
    /// The newest object, or `None` when there is no object.
    Found(Option<Box<ObjectHead>>),
    /// The store refuses the operation for good.
    Refused(ErrorKind),
    /// An object cannot be read.
    Damaged(ObjectName, ObjectFault),
}

impl Newest {
    /// Starts a search.
    pub fn new(pool: PoolId, series: Series) -> Newest {
        Newest { pool, series, step: Step::List(None), listed: None, found: None, damaged: 0, planted: None }
    }

    /// Plants a bug.
    #[must_use]
    pub fn planting(mut self, planted: Option<Planted>) -> Newest {
        self.planted = planted;
        self
    }

    /// The next operation.
    pub fn operation(&self) -> Operation {
        let look = |name| Operation::Get { name, part: Part::Range { offset: 0, length: OBJECT_HEAD_BYTES as u64 } };
        let list = |after| Operation::List { folder: self.series.folder(), after, most: MOST_NAMES };
        match self.step {
            Step::List(after) => list(after),
            Step::Look(number) => self.series.name(number).map_or_else(|| list(None), look),
        }
    }

    /// Takes the answer to [`operation`](Newest::operation).
    pub fn answer(&mut self, answer: &Result<Answer, ErrorKind>) -> Search {
        match (self.step, answer) {
            (Step::List(_), Ok(Answer::Names { names, more })) => self.hint(names, *more),
            // without a list the search starts with the first number
            (Step::List(_), Err(ErrorKind::Refused)) => self.look(self.series.first()),
            (Step::Look(number), Ok(Answer::Read { bytes, length })) => self.see(number, bytes, *length),
            (Step::Look(number), Err(ErrorKind::Missing)) => match self.listed {
                // the store contradicts itself: the object was listed
                Some(listed) if listed >= number => Search::Later(ErrorKind::Missing),
                _ => Search::Found(self.found.take().map(Box::new)),
            },
            (_, Err(kind)) if kind.may_pass() => Search::Later(*kind),
            (_, Err(kind)) => Search::Refused(*kind),
            (_, Ok(_)) => Search::Refused(ErrorKind::Refused),
        }
    }

    fn hint(&mut self, names: &[ObjectName], more: bool) -> Search {
        let numbers = names.iter().filter_map(|name| self.series.number(*name));
        self.listed = numbers.max().max(self.listed);
        match names.last() {
            Some(last) if more => {
                self.step = Step::List(Some(*last));
                Search::Next
            }
            _ if Planted::ListBelieved.is(self.planted) && self.listed.is_none() => Search::Found(None),
            _ => self.look(self.listed.unwrap_or(self.series.first())),
        }
    }

    fn look(&mut self, number: u64) -> Search {
        if self.series.name(number).is_none() {
            return Search::Found(self.found.take().map(Box::new));
        }
        self.step = Step::Look(number);
        self.damaged = 0;
        Search::Next
    }

    fn see(&mut self, number: u64, bytes: &[u8], length: u64) -> Search {
        let Some(name) = self.series.name(number) else { return Search::Refused(ErrorKind::Refused) };
        match ObjectHead::expect(bytes, self.pool, name, Some(length)) {
            Ok(head) if Planted::ListBelieved.is(self.planted) => Search::Found(Some(Box::new(head))),
            Ok(head) => {
                self.found = Some(head);
                self.look(number.saturating_add(1))
            }
            Err(fault) => {
                self.damaged += 1;
                if self.damaged < LOOKS { Search::Later(ErrorKind::Unknown) } else { Search::Damaged(name, fault) }
            }
        }
    }
}
