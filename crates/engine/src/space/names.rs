//! Names of bucket segments: which object each of them is, and which objects are to be deleted.
//!
//! Checkpoints store the names in pages of neighbouring segments, as they store the chunk table: a page
//! that changed is fixed when the checkpoint begins, and encoded later, or before it changes again
//! (INV-CKPT-2).

use std::collections::{BTreeMap, BTreeSet};

use millpond_format::{BucketRecord, Doomed, DoomedName, NAMES_PER_PAGE, NameRecord, ObjectRef, SegmentId, SegmentName, Term};

/// The object of a bucket segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) name: SegmentName,
    /// Pages of the object, with its head.
    pub(crate) pages: u16,
}

/// An object of a checkpoint with names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NamePart {
    /// The page with this number.
    Page(u64),
    /// The list of doomed names.
    Doomed,
}

/// All names of a pool with a bucket; empty in other pools.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// The bucket, if the pool has one.
    bucket: Option<BucketRecord>,
    names: BTreeMap<SegmentId, Named>,
    /// The segment of each name.
    segments: BTreeMap<SegmentName, SegmentId>,
    /// Objects that no segment has any more: what is known of them, and the generation of the first
    /// root that lists them.
    doomed: BTreeMap<SegmentName, (Doomed, u64)>,
    /// Segments whose object was doomed by this import, and the generation of the first root without
    /// it.
    ended: BTreeMap<SegmentId, u64>,
    /// Place of each part in the last checkpoint.
    stored: BTreeMap<u64, ObjectRef>,
    stored_doomed: Option<ObjectRef>,
    /// Changed pages, and whether the list has changed.
    dirty: BTreeSet<u64>,
    doomed_changed: bool,
    /// Pages that the running checkpoint has not encoded yet. They are encoded before they change.
    sealing: BTreeSet<u64>,
    /// Parts that are encoded as they were when the running checkpoint was fixed.
    encoded: Vec<(NamePart, Vec<u8>)>,
}

fn page_of(segment: SegmentId) -> u64 {
    u64::from(NameRecord::page_of(segment))
}

impl Names {
    /// Sets the bucket of a pool: of a new one, or as its checkpoint has it.
    pub(crate) fn set_bucket(&mut self, bucket: BucketRecord) {
        self.bucket = Some(bucket);
    }

    /// Returns the bucket, if the pool has one.
    pub(crate) fn bucket(&self) -> Option<&BucketRecord> {
        self.bucket.as_ref()
    }

    /// Returns the object of a segment.
    pub(crate) fn get(&self, segment: SegmentId) -> Option<Named> {
        self.names.get(&segment).copied()
    }

    /// Returns all objects that segments have, in order of the segments.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SegmentId, Named)> + '_ {
        self.names.iter().map(|(segment, named)| (*segment, *named))
    }

    /// Returns the doomed names, in order.
    pub(crate) fn doomed(&self) -> impl Iterator<Item = DoomedName> + '_ {
        self.doomed.iter().map(|(name, (object, generation))| DoomedName { name: *name, object: *object, generation: *generation })
    }

    /// Takes note that an import has taken a term. Returns false for one that is not later than all
    /// before it, and in a pool without a bucket.
    pub(crate) fn raise_term(&mut self, term: Term) -> bool {
        let Some(bucket) = self.bucket.as_mut().filter(|bucket| bucket.term < term) else { return false };
        (bucket.term, bucket.settled) = (term, 0);
        true
    }

    /// Gives a segment its object; several times for one object. Returns false, and changes nothing,
    /// when the segment has another object, or the object is of another segment or doomed, or of a term
    /// that no import has taken.
    pub(crate) fn insert(&mut self, segment: SegmentId, named: Named) -> bool {
        let known = self.bucket.as_ref().is_some_and(|bucket| named.name.term <= bucket.term);
        if self.names.get(&segment) == Some(&named) {
            return true;
        }
        let taken = self.names.contains_key(&segment) || self.segments.contains_key(&named.name) || self.doomed.contains_key(&named.name);
        if taken || !known {
            return false;
        }
        self.mark(segment);
        self.ended.remove(&segment);
        self.names.insert(segment, named);
        self.segments.insert(named.name, segment);
        true
    }

    /// Returns whether a segment may get an object (INV-OBJ-4): it has none, and the checkpoint that first
    /// left out the one that it had is not younger than `durable`.
    pub(crate) fn may_name(&self, segment: SegmentId, durable: u64) -> bool {
        !self.names.contains_key(&segment) && self.ended.get(&segment).is_none_or(|generation| *generation <= durable)
    }

    /// Takes its object from a segment and dooms it; `generation`: of the first root that lists it.
    pub(crate) fn doom_segment(&mut self, segment: SegmentId, generation: u64) {
        let Some(Named { name, pages }) = self.get(segment) else { return };
        self.mark(segment);
        self.names.remove(&segment);
        self.segments.remove(&name);
        self.ended.insert(segment, generation);
        self.doom(Named { name, pages }, generation);
    }

    /// Dooms an object that no segment has; `generation`: of the first root that lists it.
    pub(crate) fn doom(&mut self, named: Named, generation: u64) {
        self.doomed.insert(named.name, (Doomed::There { pages: named.pages }, generation));
        self.doomed_changed = true;
    }

    /// Marks the page of a segment before it changes.
    fn mark(&mut self, segment: SegmentId) {
        let page = page_of(segment);
        if self.sealing.remove(&page) {
            self.encoded.push((NamePart::Page(page), self.encode_page(page)));
        }
        self.dirty.insert(page);
    }

    fn encode_page(&self, page: u64) -> Vec<u8> {
        let first = u32::try_from(page).unwrap_or(u32::MAX).saturating_mul(NAMES_PER_PAGE);
        let range = SegmentId(first)..SegmentId(first.saturating_add(NAMES_PER_PAGE));
        let record = |(segment, named): (&SegmentId, &Named)| NameRecord { segment: *segment, name: named.name, pages: named.pages };
        let records: Vec<NameRecord> = self.names.range(range).map(record).collect();
        NameRecord::encode_page(&records)
    }
}

impl Names {
    /// Fixes all that has changed since the last call. The checkpoint fetches it with
    /// [`next_sealed`](Names::next_sealed).
    pub(crate) fn seal(&mut self) {
        assert!(self.sealing.is_empty() && self.encoded.is_empty(), "INV-CKPT-1: one checkpoint at a time");
        self.sealing = std::mem::take(&mut self.dirty);
        if std::mem::take(&mut self.doomed_changed) {
            let list: Vec<DoomedName> = self.doomed().collect();
            self.encoded.push((NamePart::Doomed, DoomedName::encode_list(&list)));
        }
    }

    /// Returns the next fixed part, encoded as it was then; no bytes when it is empty.
    pub(crate) fn next_sealed(&mut self) -> Option<(NamePart, Vec<u8>)> {
        let early = self.encoded.pop();
        early.or_else(|| self.sealing.pop_first().map(|page| (NamePart::Page(page), self.encode_page(page))))
    }

    /// Sets the place of a part, and returns the old one.
    pub(crate) fn set_stored(&mut self, part: NamePart, at: Option<ObjectRef>) -> Option<ObjectRef> {
        match (part, at) {
            (NamePart::Doomed, at) => std::mem::replace(&mut self.stored_doomed, at),
            (NamePart::Page(page), Some(at)) => self.stored.insert(page, at),
            (NamePart::Page(page), None) => self.stored.remove(&page),
        }
    }

    /// The directory of stored pages.
    pub(crate) fn stored(&self) -> impl Iterator<Item = (u64, ObjectRef)> + '_ {
        self.stored.iter().map(|(page, at)| (*page, *at))
    }

    /// Place of the stored list of doomed names.
    pub(crate) fn stored_doomed(&self) -> Option<ObjectRef> {
        self.stored_doomed
    }

    /// Returns the stored parts that the next checkpoint does not write again.
    pub(crate) fn unchanged(&self) -> impl Iterator<Item = ObjectRef> + '_ {
        let pages = self.stored.iter().filter(move |(page, _)| !self.dirty.contains(page)).map(|(_, at)| *at);
        pages.chain(self.stored_doomed.filter(|_| !self.doomed_changed))
    }

    /// Makes the next checkpoint write the stored parts for which `moves` holds.
    pub(crate) fn rewrite(&mut self, moves: impl Fn(ObjectRef) -> bool) {
        self.dirty.extend(self.stored.iter().filter(|(_, at)| moves(**at)).map(|(page, _)| *page));
        self.doomed_changed |= self.stored_doomed.is_some_and(&moves);
    }

    /// Returns the most bytes that the next checkpoint takes for names: changed pages, the list, and
    /// their places in the checkpoint object. It dooms `ending` names more at most, each of which may
    /// change a page.
    pub(crate) fn bytes_to_write(&self, ending: usize) -> usize {
        let Some(bucket) = &self.bucket else { return 0 };
        let page = (NAMES_PER_PAGE as usize * NameRecord::BYTES).next_multiple_of(ObjectRef::STEP) + 24;
        let list = (self.doomed.len() + ending) * DoomedName::BYTES + ObjectRef::STEP;
        let unchanged = self.stored.len() + self.sealing.len();
        (self.dirty.len() + ending.min(unchanged)) * page + self.stored.len() * 24 + list + bucket.source.len() + 64
    }

    /// Loads a page of a checkpoint. Returns false when a name is there twice.
    pub(crate) fn load_page(&mut self, page: u64, at: ObjectRef, records: Vec<NameRecord>) -> bool {
        self.stored.insert(page, at);
        records.into_iter().all(|record| {
            let named = Named { name: record.name, pages: record.pages };
            let fresh = page_of(record.segment) == page && self.names.insert(record.segment, named).is_none();
            fresh && self.segments.insert(record.name, record.segment).is_none()
        })
    }

    /// Loads the list of doomed names of a checkpoint. Returns false when a segment has one of them.
    pub(crate) fn load_doomed(&mut self, at: ObjectRef, list: Vec<DoomedName>) -> bool {
        self.stored_doomed = Some(at);
        list.into_iter().all(|doomed| {
            self.doomed.insert(doomed.name, (doomed.object, doomed.generation));
            !self.segments.contains_key(&doomed.name)
        })
    }
}

#[cfg(test)]
mod tests;
