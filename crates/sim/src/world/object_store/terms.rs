//! Terms of imports, and reports of the state of the bucket.

use millpond_engine::BucketState;
use millpond_format::{Holder, ObjectName, Term};

use super::ObjectStore;
use crate::oracle::{Verdict, broken};

/// Percent of imports for which the caller first tries a term that an earlier import had.
const STALE: u64 = 30;
/// Percent of turns in which the engine hears that the store has gone away or is back.
const TOLD: u64 = 10;

/// State of a store, as it was reported to an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Told {
    #[default]
    Nothing,
    Ready,
    Away,
    Full,
}

/// The terms of a pool.
#[derive(Clone, Debug, Default)]
pub(super) struct Terms {
    /// The newest term that any import was offered.
    last: u32,
    /// Term and session of this import.
    own: Option<(Term, Holder)>,
    /// Time at which this import gets a term, in nanoseconds; none if it never does.
    due: Option<u64>,
    /// A term of an earlier import is offered first.
    stale: bool,
    told: Told,
    /// This import heard that the bucket takes nothing.
    was_away: bool,
}

impl Terms {
    /// Returns term and session of this import.
    pub(super) fn own(&self) -> Option<&(Term, Holder)> {
        self.own.as_ref()
    }

    /// Returns whether this import heard that the bucket takes nothing.
    pub(super) fn was_away(&self) -> bool {
        self.was_away
    }
}

impl ObjectStore {
    /// Decides when the next import gets a term.
    pub(super) fn forget_term(&mut self, now: u64) {
        let never = !self.good && self.rng.percent(self.manners.termless);
        let wait = self.rng.below(self.manners.term + 1) * 1000;
        let stale = self.rng.percent(STALE);
        self.terms = Terms { due: (!never).then_some(now + wait), stale, last: self.terms.last, ..Terms::default() };
    }

    /// Returns the report that the engine gets now, if any. `older`: the pool may have gone back to an
    /// older state, in which it knows older terms alone.
    pub(in crate::world) fn news(&mut self, now: u64, older: bool) -> Option<BucketState> {
        let state = match () {
            () if now < self.away => Told::Away,
            () if self.full => Told::Full,
            () => Told::Ready,
        };
        if state == Told::Ready && self.terms.own.is_none() && self.terms.due.is_some_and(|due| due <= now) {
            let stale = std::mem::take(&mut self.terms.stale) && !older && self.terms.last > 0;
            let term = if stale { Term(self.terms.last) } else { Term(self.terms.last + self.rng.between(1, 3) as u32) };
            return Some(BucketState::Ready { term, holder: self.holder() });
        }
        if state == self.terms.told || self.terms.own.is_none() || !self.rng.percent(TOLD) {
            return None;
        }
        self.terms.told = state;
        self.terms.was_away |= state != Told::Ready;
        match (state, &self.terms.own) {
            (Told::Away, _) => Some(BucketState::Away),
            (Told::Full, _) => Some(BucketState::Full),
            (_, Some((term, holder))) => Some(BucketState::Ready { term: *term, holder: holder.clone() }),
            (_, None) => None,
        }
    }

    fn holder(&mut self) -> Holder {
        let mut session = [0; 16];
        session.iter_mut().for_each(|byte| *byte = self.rng.next() as u8);
        Holder { host: [7; 16], name: "host".to_owned(), session }
    }

    /// Judges whether the engine takes this state.
    ///
    /// # Errors
    /// If it accepts a term of an earlier import under which objects were created, or refuses a later one
    /// or the one that it has.
    pub(in crate::world) fn heard(&mut self, state: &BucketState, accepted: bool) -> Verdict {
        let BucketState::Ready { term, holder } = state else {
            return if accepted { Ok(()) } else { broken(format!("the engine refuses that its bucket is {state:?}")) };
        };
        let fresh = term.0 > self.terms.last || self.terms.own.is_some();
        self.terms.last = self.terms.last.max(term.0);
        if !accepted {
            return if fresh { broken(format!("the engine refuses term {term}")) } else { Ok(()) };
        }
        if !fresh && self.used.iter().any(|name| matches!(name, ObjectName::Segment { term: of, .. } if of == term)) {
            return broken(format!("INV-OBJ-9: the engine takes term {term} again, under which objects were created"));
        }
        self.terms.own = Some((*term, holder.clone()));
        self.terms.told = Told::Ready;
        Ok(())
    }

    /// Gives the import its term now, if it gets one and has none.
    pub(in crate::world) fn hurry_term(&mut self) {
        self.terms.due = self.terms.due.map(|_| 0);
    }
}
