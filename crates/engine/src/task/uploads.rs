//! Uploads: live blocks of the log are copied to objects, which the caller creates in the bucket, and then
//! get their places there (`docs/decisions/0043-bucket-capacity.md`).
//!
//! An upload is *open* while the cleaner adds chunks, *under way* while the caller creates its object, and
//! *created* until the log has all places in it. Until then its chunks are where they were, and are read
//! there. No batch waits for an upload, and nothing that ends before the places are logged loses anything:
//! crash, close, a bucket that is away.
//!
//! INV-OBJ-1: an object is written whole, once, under a name that nothing else ever had. Counts only grow
//! under a term, and an import takes a term that no other import had.
//!
//! INV-OBJ-9: an import writes names of its own term only, once the record of that term is durable.

mod counts;
mod placing;
mod upload;

use std::collections::{BTreeMap, VecDeque};

use millpond_format::{Holder, Lsn, OBJECT_HEAD_BYTES, ObjectHead, ObjectName, SegmentId, SegmentName, Term};

use self::counts::Counts;
use self::placing::Sent;
use self::upload::Upload;
use crate::log::{Lifetime, META_CLASS};
use crate::space::{NODE_GRAIN, SegmentState};
use crate::store::Store;
use crate::{BucketError, BucketState, CommandError, Fault, Invalid, Planted, PoolState, Time};

pub(crate) use self::upload::{Copied, CopiedGroup};

/// Milliseconds until an upload is tried again that found no free segment of the bucket, and places that
/// found no room in the log or in the next checkpoint.
const RETRY_MILLIS: u64 = 1_000;
/// Share (1/N) of an object that may stay empty: with less than that left it is full.
const FULL_PART: u32 = 16;
/// Share (1/N) of `UploadLimits::after_millis` between two scans for blocks of that age.
const LOOK_PART: u64 = 16;

/// The term of this import.
#[derive(Debug)]
struct OwnTerm {
    term: Term,
    holder: Holder,
    /// The batch with its record, once there is one.
    logged: Option<Lsn>,
}

/// The uploads of a pool with a bucket. In other pools nothing is ever uploaded.
#[derive(Debug, Default)]
pub(crate) struct Uploads {
    /// The bucket answers and takes objects, and the pool does not close.
    is_ready: bool,
    own: Option<OwnTerm>,
    counts: Counts,
    /// Objects that are being filled, by the class of their chunks.
    open: BTreeMap<Lifetime, Upload>,
    /// Objects that the caller creates, by the number of the work.
    under_way: BTreeMap<u32, Sent>,
    /// Objects that exist and are not placed as a whole, the oldest first.
    created: VecDeque<Sent>,
    /// Segments that chunks of all these came from, and how many from each.
    from: BTreeMap<SegmentId, usize>,
    /// Time before which nothing is uploaded, because no segment of the bucket was free.
    next_segment: Time,
    /// Time before which no places are logged, because there was no room.
    next_places: Time,
    /// Time at which the bucket became ready, from when blocks age whose age is not known, and time of the
    /// next scan for old blocks.
    since: Time,
    next_look: Time,
}

impl Uploads {
    /// Takes what the caller knows of the bucket. When it is not ready, open uploads are given up: their
    /// chunks can be moved within the log.
    ///
    /// # Errors
    /// `Invalid` for a pool without a bucket, and for a term that is not later than all before (INV-OBJ-9).
    pub(crate) fn set_bucket(&mut self, store: &mut Store, state: BucketState) -> Result<(), CommandError> {
        let Some(recorded) = store.core.space.names.bucket().map(|bucket| bucket.term) else {
            return Err(CommandError::Invalid(Invalid::NoBucket));
        };
        let BucketState::Ready { term, holder } = state else {
            self.is_ready = false;
            self.give_up_open(store);
            return Ok(());
        };
        let recorded = self.own.as_ref().map_or(recorded, |own| own.term);
        if self.own.is_none() && term > recorded {
            self.own = Some(OwnTerm { term, holder, logged: None });
            (self.since, self.next_look) = (store.now, store.now);
        } else if self.own.is_none() || term != recorded {
            return Err(CommandError::Invalid(Invalid::BucketTerm { term, recorded }));
        }
        self.is_ready = true;
        Ok(())
    }

    /// Returns the term of this import, while it has no record in the log.
    pub(crate) fn unlogged_term(&self) -> Option<Term> {
        self.own.as_ref().filter(|own| own.logged.is_none()).map(|own| own.term)
    }

    /// Takes note of the batch that has the record of the term.
    pub(crate) fn term_logged(&mut self, lsn: Lsn) {
        self.own.iter_mut().for_each(|own| own.logged = Some(lsn));
    }

    /// Returns whether objects may be written (INV-OBJ-9).
    fn may_write(&self, store: &Store) -> bool {
        let is_recorded = self.own.as_ref().is_some_and(|own| own.logged.is_some_and(|lsn| lsn <= store.log.durable));
        self.is_ready && is_recorded && store.state == PoolState::Online
    }

    /// Returns whether no further object may be created before another one is placed, or its name known.
    fn is_full(&self, store: &Store) -> bool {
        self.under_way.len() + self.created.len() >= store.tuning.uploads.under_way.max(1) || self.counts.are_exhausted()
    }

    /// Returns whether chunks can be added.
    pub(crate) fn takes(&self, store: &Store) -> bool {
        self.may_write(store) && !self.is_full(store) && store.now >= self.next_segment
    }

    /// Returns whether segments are to be emptied into the bucket now: the log is fuller than it should be,
    /// or may have blocks of the age at which they go there.
    pub(crate) fn wants(&self, store: &Store) -> bool {
        self.takes(store) && (store.is_log_full() || store.now >= self.next_look)
    }

    /// Takes note that no segment was found to empty.
    pub(crate) fn found_none(&mut self, store: &Store) {
        if store.now >= self.next_look {
            self.next_look = Time(store.now.0 + (store.tuning.uploads.after_millis / LOOK_PART).max(RETRY_MILLIS));
        }
    }

    /// Returns whether a segment is one to be emptied into the bucket. Nodes stay in the log (INV-OBJ-6).
    pub(crate) fn takes_segment(&self, store: &Store, id: SegmentId) -> bool {
        let space = &store.core.space;
        let Some(s) = space.segments.get(id).filter(|s| s.alloc_class == space.targets.landing && s.class != META_CLASS) else {
            return false;
        };
        let is_old = store.now.0 >= s.filled.max(self.since.0) + store.tuning.uploads.after_millis;
        let of_blocks = |id| space.chunks.get(id).is_some_and(|chunk| chunk.grain != NODE_GRAIN);
        (is_old || store.is_log_full())
            && (!s.metadata || store.tuning.plants(Planted::MetaInBucket) || s.chunks.iter().any(|id| of_blocks(*id)))
    }

    /// Returns whether chunks of a segment are in uploads: those of a bucket that is away may be moved.
    pub(crate) fn holds(&self, store: &Store, id: SegmentId) -> bool {
        self.is_ready && self.from.contains_key(&id) && !store.tuning.plants(Planted::GatheredTwice)
    }

    /// Returns whether uploads may soon make room in the log.
    pub(crate) fn are_busy(&self) -> bool {
        !(self.open.is_empty() && self.under_way.is_empty() && self.created.is_empty())
    }

    /// Bucket segments that are reserved for uploads.
    pub(crate) fn segments(&self) -> impl Iterator<Item = SegmentId> + '_ {
        let sent = self.under_way.values().chain(&self.created).filter(|sent| !sent.is_placed);
        self.open.values().map(|open| open.segment).chain(sent.map(|sent| sent.segment))
    }
}

impl Uploads {
    /// Returns the most pages of a group for this class, of which it has `needed` at least: as many as are left
    /// in the open upload, or in a new one.
    pub(crate) fn room(&self, store: &Store, class: Lifetime, needed: u32) -> u32 {
        let left = self.open.get(&class).map_or(0, Upload::left);
        if left >= needed { left } else { upload::room_of(store) }
    }

    /// Adds copied chunks to the open upload of their class, or to a new one. Where none can be had, they
    /// stay where they are.
    pub(crate) fn add(&mut self, store: &mut Store, class: Lifetime, group: CopiedGroup) {
        if self.open.get(&class).is_some_and(|open| open.left() < group.pages()) {
            self.send(store, class);
        }
        if !self.takes(store) || (!self.open.contains_key(&class) && !self.begin(store, class)) {
            return store.bufs.give_data(group.pieces);
        }
        let Some(open) = self.open.get_mut(&class) else { return };
        group.chunks.iter().for_each(|copied| *self.from.entry(copied.from).or_default() += 1);
        open.add(store, group);
        if open.left() < upload::room_of(store) / FULL_PART {
            self.send(store, class);
        }
    }

    /// Opens an upload; false when no segment of the bucket is free.
    fn begin(&mut self, store: &mut Store, class: Lifetime) -> bool {
        if self.open.len() >= store.tuning.uploads.open.max(1)
            && let Some(fullest) = self.open.iter().min_by_key(|(_, open)| open.left()).map(|(class, _)| *class)
        {
            self.send(store, fullest);
            if self.open.contains_key(&fullest) || !self.takes(store) {
                return false;
            }
        }
        let Some(segment) = store.reserve_bucket_segment() else {
            self.next_segment = Time(store.now.0 + RETRY_MILLIS);
            return false;
        };
        self.open.insert(class, Upload::new(store, segment));
        true
    }

    /// Ends an open upload and has its object created, unless too many are.
    fn send(&mut self, store: &mut Store, class: Lifetime) {
        if self.is_full(store) || !self.may_write(store) {
            return;
        }
        let (Some(own), Some(open)) = (&self.own, self.open.remove(&class)) else { return };
        let name = SegmentName { term: own.term, import: 0, count: self.counts.give() };
        let head = |length: u64, payload_checksum: u32| ObjectHead {
            pool: store.config.id,
            term: own.term,
            holder: own.holder.clone(),
            name: name.into(),
            length,
            payload_checksum,
        };
        let (head, mut content, sent) = open.finish(name, class, head);
        let mut page = store.bufs.take(OBJECT_HEAD_BYTES);
        page.bytes_mut().iter_mut().zip(head.encode()).for_each(|(to, byte)| *to = byte);
        content.insert(0, millpond_block::BufSlice::new(page, 0..OBJECT_HEAD_BYTES));
        let number = store.bucket.create(ObjectName::from(name), content);
        if store.tuning.plants(Planted::PlacedEarly) {
            return self.created.push_back(sent);
        }
        self.under_way.insert(number, sent);
    }

    /// Takes the result of a create. An object that cannot be created stops the pool: another import writes
    /// names of this term.
    pub(crate) fn created(&mut self, store: &mut Store, number: u32, result: Result<(), BucketError>) {
        let Some(sent) = self.under_way.remove(&number) else { return };
        match result {
            Ok(()) => self.created.push_back(sent),
            Err(_) => {
                store.core.space.segments.set_state(sent.segment, SegmentState::Free);
                store.fault(Fault::ObjectTaken(sent.name.into()));
            }
        }
    }

    /// Logs the places of objects that exist, and has those created that are as full as they get: the log
    /// is `short` of space and nothing else is left to be uploaded, or they are open for long, or a removal
    /// needs them.
    pub(crate) fn step(&mut self, store: &mut Store, short: bool) {
        if self.own.is_none() || store.state != PoolState::Online {
            return;
        }
        self.counts.settle(store.log.durable, store.checkpoint_generation);
        self.place(store);
        if self.counts.are_exhausted() {
            store.flusher.wants.names |= self.counts.wait_for_log();
            store.checkpoint.forced |= self.counts.wait_for_checkpoint() && !store.checkpoint.running();
        }
        let short = short && self.under_way.is_empty() && self.created.is_empty();
        let after = store.tuning.uploads.after_millis;
        // a removal waits until their chunks have left the segments that it gives up
        let leaves = |open: &Upload| store.evacuation.is_some() && open.chunks().any(|copied| is_leaving(store, copied.from));
        let is_due = |open: &Upload| short || store.now.0 >= open.begun.0 + after || leaves(open);
        let due: Vec<Lifetime> = self.open.iter().filter(|(_, open)| is_due(open)).map(|(class, _)| *class).collect();
        due.into_iter().for_each(|class| self.send(store, class));
    }
}

impl Uploads {
    /// Gives up all uploads, because the pool closes or has stopped: all their chunks are in the log. Objects
    /// that the caller still creates are not waited for.
    pub(crate) fn give_up(&mut self, store: &mut Store) {
        self.is_ready = false;
        store.bucket.give_up_creates();
        self.give_up_open(store);
        for (_, sent) in std::mem::take(&mut self.under_way) {
            store.core.space.segments.set_state(sent.segment, SegmentState::Free);
        }
        for sent in std::mem::take(&mut self.created) {
            self.end_object(store, &sent);
        }
        self.from.clear();
    }

    fn give_up_open(&mut self, store: &mut Store) {
        for (_, open) in std::mem::take(&mut self.open) {
            store.core.space.segments.set_state(open.segment, SegmentState::Free);
            open.chunks().for_each(|copied| leave(&mut self.from, copied.from));
            store.bufs.give_data(open.into_pieces());
        }
    }
}

fn is_leaving(store: &Store, id: SegmentId) -> bool {
    store.core.space.segments.get(id).is_some_and(|segment| segment.leaving)
}

/// Takes a chunk of a segment out of the count of those in uploads.
fn leave(from: &mut BTreeMap<SegmentId, usize>, id: SegmentId) {
    if let Some(count) = from.get_mut(&id) {
        *count -= 1;
        if *count == 0 {
            from.remove(&id);
        }
    }
}
