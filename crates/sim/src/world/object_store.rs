//! The bucket of a pool, together with the caller who asks it until a request has an end: objects are
//! created late and in any order, and reads are wrong for a while. The store goes away, takes no objects,
//! and repeats answers or gives them after the end of the pool's service.
//!
//! A plain map of names to bytes, without [`SimBucket`](crate::bucket::SimBucket): the engine sees neither
//! doubts nor retries, so all that is left of them is *when* a create takes effect and when it is reported.
//! The map is shared between forks of a world, which a sweep of power cuts makes at every event.
//!
//! Rules of the engine, each a finding:
//! - INV-OBJ-1: a name is created once, and its object is whole, of this pool and of the term of the import.
//! - INV-OBJ-2: an object that is read has been reported as created, to any import.
//! - INV-OBJ-9: a term under which an import created objects is not accepted again.

mod content;
mod terms;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use millpond_block::Buf;
use millpond_engine::{BucketError, BucketOp, BucketWork, PoolId};
use millpond_format::{ChunkId, Holder, ObjectHead, ObjectName, Term};

use crate::config::Capacity;
use crate::oracle::{Verdict, Violation, broken};
use crate::rng::Rng;
use content::chunks_of;
use terms::Terms;

/// Maximum works at a time.
const MOST: usize = 16;
/// Maximum works kept so that their answers are repeated.
const KEPT: usize = 32;
/// Longest absence of the store, in nanoseconds.
const ABSENCE: u64 = 4_000_000_000;
/// Longest time from the end of an engine until its last creates take effect, in nanoseconds.
const LATE: u64 = 3_000_000_000;
/// Outcomes without a fault.
pub(super) const CREATED: &str = "created";
pub(super) const RIGHT: &str = "data";

/// Content of an object.
pub(super) type Object = Rc<[u8]>;

/// An answer to a work.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) id: u64,
    pub(super) result: Result<Option<Buf>, BucketError>,
    /// The object, if the work created it.
    pub(super) created: Option<ObjectName>,
    /// Outcome, for the trace.
    pub(super) word: &'static str,
}

#[derive(Clone, Debug)]
enum Asked {
    /// The time of its effect, in nanoseconds, until it has taken effect.
    Create {
        object: Object,
        at: Option<u64>,
    },
    Read {
        offset: u64,
        length: usize,
    },
}

/// A work that the store has to answer.
#[derive(Clone, Debug)]
struct Pending {
    id: u64,
    name: ObjectName,
    asked: Asked,
    /// Time of the answer, in nanoseconds.
    due: u64,
}

/// The store.
#[derive(Clone, Debug)]
pub(super) struct ObjectStore {
    pub(super) rng: Rng,
    manners: Capacity,
    pool: PoolId,
    objects: BTreeMap<ObjectName, Object>,
    /// Names for which an engine asked to create an object.
    used: BTreeSet<ObjectName>,
    /// Names that were reported as created, to any engine.
    confirmed: BTreeSet<ObjectName>,
    /// Objects that are lost for good.
    lost: BTreeSet<ObjectName>,
    out: Vec<Pending>,
    /// Answered works, and those of engines that have ended.
    old: Vec<Pending>,
    /// Creates of engines that have ended, with the time of their effect.
    late: Vec<(u64, ObjectName, Object)>,
    /// Objects that got wrong, and for how many answers they still are.
    wrong: BTreeMap<ObjectName, u64>,
    /// Chunks in objects that the engine asked for and has not placed, as far as that is known.
    uploading: BTreeMap<ChunkId, ObjectName>,
    /// Time at which the store is back, in nanoseconds; `u64::MAX` until it is called back.
    away: u64,
    /// It takes no objects until the engine ends.
    full: bool,
    /// All objects are right, and the store is present.
    good: bool,
    terms: Terms,
    /// Number of creates that engines asked for.
    pub(super) asked: u64,
    /// Number of creates that were reported to them.
    pub(super) created: u64,
    /// Number of answers.
    pub(super) answered: u64,
}

impl ObjectStore {
    /// Makes a store for pools that are not known yet.
    pub(super) fn new(manners: Capacity, rng: Rng) -> ObjectStore {
        ObjectStore {
            rng,
            manners,
            pool: PoolId([0; 16]),
            objects: BTreeMap::new(),
            used: BTreeSet::new(),
            confirmed: BTreeSet::new(),
            lost: BTreeSet::new(),
            out: Vec::new(),
            old: Vec::new(),
            late: Vec::new(),
            wrong: BTreeMap::new(),
            uploading: BTreeMap::new(),
            away: 0,
            full: false,
            good: false,
            terms: Terms::default(),
            asked: 0,
            created: 0,
            answered: 0,
        }
    }

    /// Empties the store for another pool.
    pub(super) fn begin(&mut self, pool: PoolId) {
        *self = ObjectStore { pool, ..ObjectStore::new(self.manners, self.rng.clone()) };
    }

    /// The same store for another future, at the end of the engine.
    pub(super) fn fork(&self, label: u64, now: u64) -> ObjectStore {
        let mut fork = ObjectStore { rng: Rng::new(label), ..self.clone() };
        fork.forget(now);
        fork
    }

    /// Takes a work of an engine that has a term.
    ///
    /// # Errors
    /// If the work breaks a rule, or there are too many.
    pub(super) fn take(&mut self, work: BucketWork, now: u64) -> Verdict {
        if self.out.len() >= MOST || self.out.iter().any(|one| one.id == work.id) {
            return broken(format!("work {} is made while {} others are not answered", work.id, self.out.len()));
        }
        let holder = self.terms.own().cloned();
        let (name, asked) = self.asked(work.op, holder)?;
        let longest = self.manners.latency * if self.rng.percent(5) { 10 } else { 1 };
        let effect = now + self.rng.below(longest) * 1000;
        let doubted = matches!(asked, Asked::Create { .. }) && self.rng.percent(self.manners.doubts);
        let settling = if doubted { self.rng.between(1, 5) * longest } else { 0 };
        let due = effect + (self.rng.below(longest) + settling) * 1000;
        let asked = match asked {
            Asked::Create { object, .. } => Asked::Create { object, at: Some(effect) },
            read => read,
        };
        self.asked += u64::from(matches!(asked, Asked::Create { .. }));
        self.out.push(Pending { id: work.id, name, asked, due });
        Ok(())
    }

    /// Judges an operation. `own`: the term of the import that asks.
    fn asked(&mut self, op: BucketOp, own: Option<(Term, Holder)>) -> Result<(ObjectName, Asked), Violation> {
        match op {
            BucketOp::Create { name, pieces } => {
                let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.bytes().iter().copied()).collect();
                let head = match ObjectHead::expect_whole(&bytes, self.pool, name) {
                    Ok((head, _)) => head,
                    Err(fault) => return broken(format!("INV-OBJ-1: an object is created as {name}, and {fault}")),
                };
                if own != Some((head.term, head.holder)) {
                    return broken(format!("INV-OBJ-9: {name} is created, and the import has {own:?}"));
                }
                if !self.used.insert(name) {
                    return broken(format!("INV-OBJ-1: {name} is created again"));
                }
                let chunks = chunks_of(&bytes, self.pool).or_else(|what| broken(format!("{name} is no object of chunks: {what}")))?;
                // after the bucket was away its chunks may have been moved within the log, and come again
                let again = chunks.iter().find(|chunk| self.uploading.contains_key(chunk)).filter(|_| !self.terms.was_away());
                if let Some(chunk) = again {
                    return broken(format!("chunk {chunk} is in {name}, and in {:?}, which is not placed", self.uploading.get(chunk)));
                }
                self.uploading.extend(chunks.into_iter().map(|chunk| (chunk, name)));
                Ok((name, Asked::Create { object: bytes.into(), at: None }))
            }
            BucketOp::Read { name, offset, length } => {
                if !self.confirmed.contains(&name) {
                    return broken(format!("INV-OBJ-2: {name} is read, and no import was told that it exists"));
                }
                let size = self.objects.get(&name).map_or(0, |object| object.len() as u64);
                if length == 0 || offset + length as u64 > size {
                    return broken(format!("{offset}+{length} of {name} is read, which has {size} bytes"));
                }
                Ok((name, Asked::Read { offset, length }))
            }
        }
    }

    /// Lets creates take effect whose time has come.
    fn advance(&mut self, now: u64) {
        if now < self.away {
            return;
        }
        for pending in &mut self.out {
            if let Asked::Create { object, at } = &mut pending.asked
                && !self.full
                && at.is_some_and(|at| at <= now)
            {
                *at = None;
                self.objects.insert(pending.name, object.clone());
            }
        }
        let (due, later) = std::mem::take(&mut self.late).into_iter().partition(|(at, ..)| *at <= now);
        self.late = later;
        let due: Vec<(u64, ObjectName, Object)> = due;
        self.objects.extend(due.into_iter().map(|(_, name, object)| (name, object)));
    }

    /// Answers any of the works whose time has come, sometimes; always when nothing else happens.
    pub(super) fn answer(&mut self, now: u64, surely: bool) -> Option<Answer> {
        self.advance(now);
        if now < self.away || self.out.is_empty() || !(surely || self.rng.percent(50)) {
            return None;
        }
        let may = |pending: &Pending| pending.due <= now && !matches!(pending.asked, Asked::Create { at: Some(_), .. });
        let due: Vec<usize> = (0..self.out.len()).filter(|index| self.out.get(*index).is_some_and(may)).collect();
        let index = (!due.is_empty()).then(|| *self.rng.pick(&due))?;
        let pending = self.out.swap_remove(index);
        self.keep(pending.clone());
        self.answered += 1;
        let Asked::Read { offset, length } = pending.asked else {
            self.confirmed.insert(pending.name);
            self.created += 1;
            return Some(Answer { id: pending.id, result: Ok(None), created: Some(pending.name), word: CREATED });
        };
        let (result, word) = self.read(pending.name, offset, length);
        Some(Answer { id: pending.id, result: result.map(Some), created: None, word })
    }

    /// Repeats an old answer or gives one that comes too late, perhaps another one than is due. None
    /// of them is for a work that is out.
    pub(super) fn stray(&mut self) -> Option<Answer> {
        if self.old.is_empty() || !self.rng.percent(self.manners.late) {
            return None;
        }
        let pending = self.old.swap_remove(self.rng.index(self.old.len()));
        if self.out.iter().any(|one| one.id == pending.id) {
            return None;
        }
        let result = match pending.asked {
            _ if self.rng.percent(30) => Err(*self.rng.pick(&[BucketError::Missing, BucketError::Damaged, BucketError::Taken])),
            Asked::Create { .. } => Ok(None),
            Asked::Read { offset, length } => self.right(pending.name, offset, length).map(Some),
        };
        Some(Answer { id: pending.id, result, created: None, word: "too late" })
    }

    fn keep(&mut self, pending: Pending) {
        if self.old.len() >= KEPT {
            self.old.swap_remove(self.rng.index(self.old.len()));
        }
        self.old.push(pending);
    }

    /// Ends all works: the engine that asked has ended. Their answers may come nevertheless, and
    /// creates take effect, never do, or do later.
    pub(super) fn forget(&mut self, now: u64) {
        for mut pending in std::mem::take(&mut self.out) {
            if let Asked::Create { object, at: at @ Some(_) } = &mut pending.asked {
                *at = None;
                match self.rng.below(3) {
                    0 => drop(self.objects.insert(pending.name, object.clone())),
                    1 => self.late.push((now + self.rng.below(LATE), pending.name, object.clone())),
                    _ => {}
                }
            }
            self.keep(pending);
        }
        self.uploading.clear();
        self.wrong.retain(|_, left| *left > 0);
        self.full = !self.good && self.rng.percent(self.manners.full);
        if self.away == u64::MAX {
            self.come_back();
        }
        self.forget_term(now);
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

    /// Makes all objects right that are not lost, or lets them be wrong again.
    pub(super) fn heal(&mut self, good: bool) {
        self.good = good;
        if good {
            self.full = false;
            self.come_back();
        }
    }

    /// Returns whether no work is out that can be answered before the store is called back.
    pub(super) fn is_idle(&self) -> bool {
        self.next().is_none_or(|next| next == u64::MAX)
    }

    /// Returns the time of the next answer, in nanoseconds; `u64::MAX` if none will come.
    pub(super) fn next(&self) -> Option<u64> {
        let end = |pending: &Pending| match pending.asked {
            Asked::Create { at: Some(_), .. } if self.full => u64::MAX,
            Asked::Create { at, .. } => pending.due.max(at.unwrap_or(0)).max(self.away),
            Asked::Read { .. } => pending.due.max(self.away),
        };
        self.out.iter().map(end).min()
    }

    /// Takes note that objects are placed, or will never be.
    pub(super) fn settle(&mut self, is_settled: impl Fn(ObjectName) -> bool) {
        self.uploading.retain(|_, name| !is_settled(*name));
    }

    /// Takes a work of a suspended host, which may have lost the pool. Its create takes effect now, later
    /// or never. Returns its result, if the host gets one.
    ///
    /// # Errors
    /// If an object is created after the lease, or again.
    pub(super) fn serve_suspended(&mut self, work: BucketWork, now: u64, leased: bool) -> Result<Option<Answer>, Violation> {
        let BucketWork { id, op } = work;
        match op {
            BucketOp::Create { name, .. } if !leased => broken(format!("{name} is created although the lease is over")),
            BucketOp::Create { name, pieces } => {
                let object: Object = pieces.iter().flat_map(|piece| piece.bytes().iter().copied()).collect();
                if !self.used.insert(name) {
                    return broken(format!("INV-OBJ-1: {name} is created again, by a host that was suspended"));
                }
                let done = self.rng.below(3);
                match done {
                    0 => {
                        self.objects.insert(name, object);
                        self.confirmed.insert(name);
                    }
                    1 => self.late.push((now + self.rng.below(LATE), name, object)),
                    _ => {}
                }
                Ok((done == 0).then_some(Answer { id, result: Ok(None), created: None, word: CREATED }))
            }
            BucketOp::Read { name, offset, length } => {
                let result = self.right(name, offset, length).map(Some);
                Ok(self.rng.percent(70).then_some(Answer { id, result, created: None, word: RIGHT }))
            }
        }
    }

    /// Returns whether a create is out.
    pub(super) fn creates(&self) -> bool {
        self.out.iter().any(|pending| matches!(pending.asked, Asked::Create { .. }))
    }
}
