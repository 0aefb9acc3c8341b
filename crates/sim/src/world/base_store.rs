//! The store that bases are fetched from: answers come late and in any order, chunks are missing or
//! damaged for a while, the store goes away, and some answers are repeated or come after the end of
//! the pool's service.

use std::collections::{BTreeMap, BTreeSet};

use millpond_block::Buf;
use millpond_engine::{Fetch, FetchError, VolumeId};

use crate::base::Publication;
use crate::config::Bases;
use crate::grid::Grid;
use crate::oracle::{Oracle, Violation, broken};
use crate::rng::Rng;

/// Maximum fetches at a time.
const MOST: usize = 16;
/// Maximum answers kept to be repeated.
const KEPT: usize = 32;
/// Percent of the fetches ahead of guests that are given up.
const GIVEN_UP: u64 = 20;
/// Longest absence of the store, in nanoseconds.
const ABSENCE: u64 = 4_000_000_000;

/// An answer to a fetch.
pub(super) type Answer = (Fetch, Result<Option<Buf>, FetchError>);

/// A fetch that the store has to answer.
#[derive(Clone, Debug)]
struct Pending {
    fetch: Fetch,
    publication: Publication,
    /// Time of the answer, in nanoseconds.
    due: u64,
}

/// The store.
pub(super) struct BaseStore {
    pub(super) rng: Rng,
    manners: Bases,
    out: Vec<Pending>,
    /// Answered fetches, and those of engines that have ended.
    old: Vec<Pending>,
    /// Publications of all bases that were ever fetched from.
    known: BTreeMap<VolumeId, Publication>,
    /// Chunks that the present engine was given.
    given: BTreeSet<(VolumeId, u64)>,
    /// Chunks that are missing or damaged, and for how many answers.
    bad: BTreeMap<(VolumeId, u64), u64>,
    /// Time at which the store is back, in nanoseconds; `u64::MAX` until it is called back.
    away: u64,
    /// All chunks are good, and the store is present.
    good: bool,
}

impl BaseStore {
    /// Makes a store.
    pub(super) fn new(manners: Bases, rng: Rng) -> BaseStore {
        let (out, old, known, given, bad) = (Vec::new(), Vec::new(), BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        BaseStore { rng, manners, out, old, known, given, bad, away: 0, good: false }
    }

    /// The same store for another future.
    pub(super) fn fork(&self, label: u64) -> BaseStore {
        let (known, bad) = (self.known.clone(), self.bad.clone());
        BaseStore { known, bad, away: self.away, good: self.good, ..BaseStore::new(self.manners, Rng::new(label)) }
    }

    /// Takes a fetch; returns whether the engine was given the chunk before.
    ///
    /// # Errors
    /// If there is no such chunk, it is being fetched already, or too many are.
    pub(super) fn take(&mut self, fetch: Fetch, oracle: &Oracle, now: u64) -> Result<bool, Violation> {
        if let Some(publication) = oracle.publication(fetch.base) {
            self.known.insert(fetch.base, publication.clone());
        }
        let publication = self.known.get(&fetch.base).filter(|publication| fetch.chunk < publication.chunks());
        let Some(publication) = publication.cloned() else { return broken(format!("{fetch:?} is for a chunk that does not exist")) };
        if let Some(other) = self.out.iter().find(|other| other.fetch.id == fetch.id || is_same(&other.fetch, &fetch)) {
            return broken(format!("{fetch:?} is made while {:?} is not answered", other.fetch));
        }
        if self.out.len() >= MOST {
            return broken(format!("{fetch:?} is made while {} others are not answered", self.out.len()));
        }
        let place = (fetch.base, fetch.chunk);
        if self.rng.below(1000) < self.manners.bad && !self.bad.contains_key(&place) {
            self.bad.insert(place, self.rng.between(1, 3));
        }
        let longest = self.manners.latency * if self.rng.percent(5) { 10 } else { 1 };
        self.out.push(Pending { fetch, publication, due: now + self.rng.below(longest) * 1000 });
        Ok(self.given.contains(&place))
    }

    /// Answers any of the fetches whose time has come, sometimes; always when nothing else happens.
    pub(super) fn answer(&mut self, grid: Grid, now: u64, surely: bool) -> Option<Answer> {
        if now < self.away || self.out.is_empty() || !(surely || self.rng.percent(50)) {
            return None;
        }
        let due: Vec<usize> = (0..self.out.len()).filter(|index| self.out.get(*index).is_some_and(|one| one.due <= now)).collect();
        let index = (!due.is_empty()).then(|| *self.rng.pick(&due))?;
        let pending = self.out.swap_remove(index);
        self.keep(pending.clone());
        if pending.fetch.ahead && self.rng.percent(GIVEN_UP) {
            return Some((pending.fetch, Err(FetchError::NotNow)));
        }
        let place = (pending.fetch.base, pending.fetch.chunk);
        match self.bad.get_mut(&place).filter(|_| !self.good) {
            Some(left) if *left > 0 => {
                *left -= 1;
                Some((pending.fetch, Err(self.error())))
            }
            // Good for this answer, and perhaps bad again for a later one.
            _ => {
                self.bad.remove(&place);
                self.given.insert(place);
                Some(self.content(&pending, grid))
            }
        }
    }

    /// Repeats an old answer or gives one that comes too late, perhaps another one than is due.
    /// None of them is for a fetch that is out.
    pub(super) fn stray(&mut self, grid: Grid) -> Option<Answer> {
        if self.old.is_empty() || !self.rng.percent(self.manners.late) {
            return None;
        }
        let pending = self.old.swap_remove(self.rng.index(self.old.len()));
        let out = self.out.iter().any(|one| one.fetch == pending.fetch);
        let failed = self.rng.percent(30).then(|| (pending.fetch, Err(self.error())));
        (!out).then(|| failed.unwrap_or_else(|| self.content(&pending, grid)))
    }

    fn error(&mut self) -> FetchError {
        if self.rng.percent(50) { FetchError::Missing } else { FetchError::Damaged }
    }

    fn content(&mut self, pending: &Pending, grid: Grid) -> Answer {
        let spare = if self.rng.percent(20) { 4096 } else { 0 };
        let (buf, zero) = pending.publication.chunk(grid, pending.fetch.chunk, spare);
        let named = zero && self.rng.percent(70);
        (pending.fetch, Ok((!named).then_some(buf)))
    }

    fn keep(&mut self, pending: Pending) {
        if self.old.len() >= KEPT {
            self.old.swap_remove(self.rng.index(self.old.len()));
        }
        self.old.push(pending);
    }

    /// Ends all fetches: the engine that made them has ended. Their answers may come nevertheless.
    pub(super) fn forget(&mut self) {
        for pending in std::mem::take(&mut self.out) {
            self.keep(pending);
        }
        self.given.clear();
        if self.away == u64::MAX {
            self.come_back();
        }
    }

    /// Makes the store go away for a while, sometimes.
    pub(super) fn befall(&mut self, now: u64) {
        if !self.good && now >= self.away && self.rng.below(1000) < self.manners.away {
            self.away = now + self.rng.below(ABSENCE);
        }
    }

    /// Makes the store go away until it is called back.
    pub(super) fn leave(&mut self) {
        self.away = u64::MAX;
    }

    /// Calls the store back.
    pub(super) fn come_back(&mut self) {
        self.away = 0;
    }

    /// Makes all chunks good, or lets them be missing or damaged again.
    pub(super) fn heal(&mut self, good: bool) {
        self.good = good;
        if good {
            self.come_back();
        }
    }

    /// Returns whether no fetch is out.
    pub(super) fn is_idle(&self) -> bool {
        self.out.is_empty()
    }

    /// Returns the time of the next answer, in nanoseconds.
    pub(super) fn next(&self) -> Option<u64> {
        self.out.iter().map(|pending| pending.due.max(self.away)).min()
    }
}

fn is_same(one: &Fetch, other: &Fetch) -> bool {
    (one.base, one.chunk) == (other.base, other.chunk)
}
