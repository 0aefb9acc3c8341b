//! Watermarks: which purposes may take the last free segments, so that a full pool stays alive
//! (I9).
//!
//! Free segments are needed by, from the most to the least important: the next checkpoint, without
//! which no segment ever becomes free; the cleaner, which frees sparse segments; records and
//! clears, which release space; guests. Each purpose leaves free the segments that the more
//! important ones need. The need of a checkpoint grows with the changes since the last one, so
//! nothing is appended while it does not fit (`NoRoom`): a checkpoint is written first.

mod sizes;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use millpond_format::{NO_SEGMENT, SegmentId};

use crate::Planted;
use crate::core::StoredDeadlist;
use crate::log::{Cursor, Stream};
use crate::space::{AllocClass, SegmentState, Space};
use crate::store::{At, META_HEAD_PAGES, OBJECT_WRITE, ObjectsIn, Store};

/// Segments that records and guests leave to the cleaner: it fills one with the live chunks of
/// others, and needs one to go on with.
const KEPT_FOR_CLEANER: usize = 2;
/// Segments that guests leave to records.
const KEPT_FOR_RECORDS: usize = 2;
/// Most segments that guests keep free for further changes by their open batches.
const KEPT_FOR_GUESTS: usize = 4;
/// Share (1/N) of the special class that small writes may not use, so that tree nodes always fit.
const SPECIAL_PART: usize = 4;
/// Fewest segments of the log class that comes with parity: enough for its streams and a
/// checkpoint.
pub(crate) const LEAST_LOG: u32 = 48;
/// Free-space target of a class, as 1/N: 1/6 while a removal waits for space, 1/96 otherwise.
const DEPARTURE_PART: usize = 6;
const USUAL_PART: usize = 96;
/// Turns between two counts of all deadlists while enough space is free.
const TURNS_PER_ESTIMATE: u32 = 64;

/// Allocation priority: the purpose of a segment, the most urgent last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watermark {
    /// Guest writes.
    Guest,
    /// Records and clears. A segment that holds nothing else is soon free at a checkpoint.
    Record,
    /// Moves by the cleaner, which free more segments than they take.
    Cleaner,
}

/// Estimated size of the next checkpoint besides nodes and chunk table pages, as of the last count.
#[derive(Debug, Default)]
pub(crate) struct Estimate {
    /// Bytes of changed deadlists, and of pieces that are in no checkpoint yet.
    pub(crate) lists: usize,
    /// Bytes of the longest changed directory of a deadlist of a head.
    longest_list: usize,
    /// Bytes of the catalog.
    catalog: usize,
    /// Bytes of all objects that must still move out of segments that a removal gives up.
    pub(crate) moving: usize,
    /// Turns until the next full count.
    again_in: u32,
    /// The result of the last [`Pool::needs`], and the changes that it was computed from.
    needs: Cell<Option<(Changes, Needs)>>,
}

/// All inputs of [`Needs`] that change while a pool is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Changes {
    nodes: usize,
    /// Pages left in the segments that the next checkpoint begins with: of nodes, of objects.
    left: [usize; 2],
    /// Counts of the chunk table: changed pages, all pages, chunks, chunks with a slot for each unit,
    /// forwards, and chunks that have any.
    chunks: [usize; 6],
    /// Bytes of changed deadlists, of the longest one, of the catalog, and of objects that must
    /// move.
    bytes: [usize; 4],
}

/// Segments that are reserved for checkpoints. Computed at every allocation, several times in a
/// turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Needs {
    /// Most segments that the next checkpoint takes for the changes so far. A running checkpoint
    /// has reserved its own.
    next: usize,
    /// Most segments that a checkpoint of almost no changes takes.
    least: usize,
    /// Segments for objects that must move out of segments that are given up.
    pub(crate) moving: usize,
    /// Segments that a destroy takes before it frees space: for the directories of its deadlist and
    /// of the following one, which is split.
    destroy: usize,
}

/// Pages of objects in one write; the last write is padded.
const WRITE_PAGES: usize = OBJECT_WRITE / 4096;
/// Most bytes of job records in the catalog.
const JOBS_BYTES: usize = 1024;
/// Nodes and chunk table pages in a checkpoint of almost no changes.
const LEAST_CHANGES: (usize, usize) = (8, 4);

impl Store {
    /// Returns the number of segments of a class that are free, or will be soon without more
    /// cleaning.
    pub(crate) fn coming_free(&self, alloc_class: AllocClass) -> usize {
        let retained = self.core.space.segments.retained_in(alloc_class);
        let coming = if self.checkpoint.running() { retained } else { self.waiting_for_flush.in_alloc_class(alloc_class) };
        self.free_in(alloc_class) + coming
    }

    /// Returns the number of free segments that a purpose must leave to others.
    pub(crate) fn floor(&self, watermark: Watermark) -> usize {
        self.floor_on(self.alloc_class(watermark), watermark)
    }

    pub(crate) fn floor_on(&self, alloc_class: AllocClass, watermark: Watermark) -> usize {
        let meta = |segments: usize| {
            if alloc_class == self.core.space.targets.meta { segments.saturating_sub(self.free_for_nodes()) } else { 0 }
        };
        let cleaner = if alloc_class == AllocClass::Data { KEPT_FOR_CLEANER } else { 0 };
        let needs = self.needs();
        let checkpoints = needs.next + needs.least + needs.moving;
        let kept = cleaner + KEPT_FOR_RECORDS;
        match watermark {
            Watermark::Cleaner => meta(needs.next) + 1,
            Watermark::Record => meta(checkpoints) + cleaner,
            Watermark::Guest => meta(checkpoints) + kept + kept.max(meta(needs.destroy)),
        }
    }

    /// Returns the current needs of checkpoints.
    fn needs(&self) -> Needs {
        let changes = self.changes();
        let known = self.checkpoint.estimate.needs.get();
        if let Some((_, needs)) = known.filter(|(known, _)| *known == changes) {
            debug_assert_eq!(needs, self.count_needs(&changes), "what they follow from has not changed");
            return needs;
        }
        let needs = self.count_needs(&changes);
        self.checkpoint.estimate.needs.set(Some((changes, needs)));
        needs
    }

    /// Returns the needs and their inputs as one line for debugging.
    pub(crate) fn needs_report(&self) -> String {
        format!("{:?} for {:?}", self.needs(), self.changes())
    }

    fn count_needs(&self, changes: &Changes) -> Needs {
        let [_, longest, _, moving] = changes.bytes;
        let nodes = self.segments_for(self.node_pages(LEAST_CHANGES.0), self.chunk_pages(), None);
        Needs {
            next: self.checkpoint_segments_with(0),
            least: nodes + self.object_segments(self.object_bytes(LEAST_CHANGES.1)),
            moving: self.object_segments(moving),
            destroy: self.object_segments(3 * longest),
        }
    }

    fn changes(&self) -> Changes {
        let (at, chunks) = (&self.checkpoint, &self.core.space.chunks);
        let left = |cursor: Option<Cursor>| cursor.map_or(0, |cursor| (cursor.pages - cursor.page) as usize);
        let estimate = &at.estimate;
        let gives_up = self.evacuation.is_some() && !self.tuning.plants(Planted::CrowdTheLog);
        Changes {
            nodes: self.core.nodes.dirty() - at.unwritten,
            left: [left(at.nodes_at), left(at.objects_at.filter(|_| !at.running()))],
            chunks: [chunks.dirty_pages(), chunks.pages(), chunks.len(), chunks.packed(), chunks.forwards(), chunks.forward_sources()],
            bytes: [estimate.lists, estimate.longest_list, estimate.catalog, if gives_up { estimate.moving } else { 0 }],
        }
    }

    /// Returns whether guests would have no free segment if the segments in `gone` were not
    /// available. `objects` lists the [`stored_objects`](Self::stored_objects) by segment. Those in
    /// `gone` are rewritten into other segments, and no space comes back before all segments of
    /// `gone` are empty.
    pub(super) fn is_short_without(&self, gone: &BTreeSet<SegmentId>, objects: &ObjectsIn) -> bool {
        let space = &self.core.space;
        if self.misses_log_without(gone) {
            return true;
        }
        let moving: BTreeMap<At, usize> = gone.iter().filter_map(|id| objects.get(id)).flatten().copied().collect();
        let all: usize = moving.values().sum();
        let moving =
            self.object_segments(if self.tuning.plants(Planted::CrowdTheLog) { moving.values().copied().max().unwrap_or(0) } else { all });
        [AllocClass::Data, AllocClass::Log].into_iter().any(|alloc_class| {
            let in_alloc_class = |id: &&SegmentId| space.segments.get(**id).is_some_and(|s| s.alloc_class == alloc_class);
            let is_free = |id: &&SegmentId| space.segments.get(**id).is_some_and(|s| s.state == SegmentState::Free);
            let taken = gone.iter().filter(in_alloc_class).count();
            let free = self.free_in(alloc_class) - gone.iter().filter(in_alloc_class).filter(is_free).count();
            // a class that is removed as a whole needs no free segments
            let floor = self.floor_on(alloc_class, Watermark::Guest) + if alloc_class == space.targets.meta { moving } else { 0 };
            (1..space.segments.count_in(alloc_class)).contains(&taken) && free <= floor
        })
    }

    /// Returns whether a segment is free besides those reserved for others.
    pub(crate) fn has_room(&self, watermark: Watermark) -> bool {
        self.room_beyond(watermark, 0)
    }

    /// Returns whether `more` segments are free besides those reserved for others and the next one.
    pub(super) fn room_beyond(&self, watermark: Watermark, more: usize) -> bool {
        self.free_in(self.alloc_class(watermark)) > self.floor(watermark) + more
    }

    /// Reserves the next segment of a stream.
    pub(super) fn reserve_for(&mut self, stream: Stream, watermark: Watermark) -> Option<SegmentId> {
        let alloc_class = self.alloc_class_of(stream);
        assert_ne!(alloc_class, AllocClass::Bucket, "INV-OBJ-6: no stream of the log is in a bucket");
        let room = self.free_in(alloc_class) > self.floor_on(alloc_class, watermark);
        room.then(|| self.core.space.segments.reserve(alloc_class, watermark == Watermark::Cleaner)).flatten()
    }

    /// Returns how many bytes of deadlists may change while the next checkpoint and the one after
    /// it still fit.
    pub(crate) fn room_for_lists(&self) -> usize {
        self.object_room(self.free_meta().saturating_sub(self.checkpoint_segments() + self.least_segments()))
    }

    /// Returns whether the next checkpoint and the one after it fit. If not, nothing but moves by
    /// the cleaner may change before the next one.
    pub(crate) fn checkpoint_is_safe(&self) -> bool {
        self.free_meta() >= self.checkpoint_segments() + self.least_segments()
    }

    /// Returns whether the next checkpoint would fit if `pages` more pages of the chunk table
    /// changed.
    pub(crate) fn checkpoint_fits_with(&self, pages: usize) -> bool {
        self.free_meta() >= self.checkpoint_segments_with(pages)
    }

    /// Returns whether a batch may begin.
    pub(super) fn may_change(&self, watermark: Watermark) -> bool {
        match watermark {
            Watermark::Cleaner => self.free_in(AllocClass::Data) >= self.floor(watermark),
            Watermark::Record => self.checkpoint_is_safe(),
            // each guest stream goes on with segments that it has begun
            Watermark::Guest => {
                let Needs { next, least, moving, .. } = self.needs();
                self.free_meta() >= next + least + moving + least.min(KEPT_FOR_GUESTS)
            }
        }
    }

    /// Returns whether the checkpoint records of `moves` moves out of a segment fit. The segment is
    /// of class `alloc_class`; it stays in the pool (`stays`) or is given up. Where nodes and objects are
    /// not in the data class, only moves that empty a segment of their own class gain space for
    /// them. All other moves leave free the segments that checkpoints and moving objects need,
    /// because every checkpoint scatters the objects that it replaces and would use up the rest.
    pub(crate) fn has_room_for_moves(&self, alloc_class: AllocClass, stays: bool, moves: usize) -> bool {
        let targets = self.core.space.targets;
        // the log can be emptied only into data segments that are free
        let for_log = || alloc_class == AllocClass::Data && !self.room_beyond(Watermark::Cleaner, KEPT_FOR_CLEANER);
        let makes_room =
            !self.keeps_meta_apart() || (stays && (alloc_class == targets.meta || targets.nodes == Some(alloc_class) || for_log()));
        let Needs { least, moving, .. } = self.needs();
        let kept = if makes_room || self.tuning.plants(Planted::CrowdTheLog) { 0 } else { least + moving };
        self.free_meta() >= self.checkpoint_segments_with(moves) + kept
    }

    /// Returns whether no further move fits before the next checkpoint, which frees segments of the
    /// log.
    pub(crate) fn moves_wait_for_checkpoint(&self) -> bool {
        let comes = || self.checkpoint.running() || (self.core.space.chunks.dirty_pages() > 0 && self.checkpoint_fits_with(0));
        self.keeps_meta_apart() && !self.checkpoint_fits_with(1) && comes() && !self.tuning.plants(Planted::CrowdTheLog)
    }

    /// Returns whether so little is free that records wait.
    pub(crate) fn records_lack_room(&self) -> bool {
        !self.has_room(Watermark::Record) || (self.is_split() && !self.room_beyond(Watermark::Cleaner, KEPT_FOR_CLEANER))
    }

    /// Returns the number of free segments that cleaner and checkpoints aim for.
    pub(crate) fn wanted_free(&self, alloc_class: AllocClass) -> usize {
        let total = self.core.space.segments.count_in(alloc_class);
        let watermark = if alloc_class == self.core.space.targets.landing { Watermark::Guest } else { Watermark::Cleaner };
        // a device that is being removed takes free segments with it
        let part = if self.removals.wants_room() { DEPARTURE_PART } else { USUAL_PART };
        (total / part).max(12).max(self.floor_on(alloc_class, watermark) + 4)
    }

    /// Returns whether fewer segments are free than cleaner and checkpoints aim for.
    pub(crate) fn is_below_target(&self) -> bool {
        self.cleaned_classes().any(|alloc_class| self.free_in(alloc_class) < self.wanted_free(alloc_class))
    }

    /// Returns whether the next checkpoint fits although the quick estimate says that it does not.
    /// Counts pages of the chunk table by their content, since most of their old content may be
    /// dead. Takes as long as encoding the pages.
    pub(crate) fn checkpoint_fits_after_all(&self) -> bool {
        let chunks = &self.core.space.chunks;
        let pages: usize = chunks.dirty_lengths().map(|bytes| self.stored_bytes(bytes)).sum();
        self.free_meta() >= self.segments_with_objects(pages + self.catalog_bytes(chunks.dirty_pages()))
    }

    /// Returns the most segments that the next checkpoint takes for the changes so far. A running
    /// checkpoint has reserved its own.
    pub(crate) fn checkpoint_segments(&self) -> usize {
        self.needs().next
    }

    /// As [`Self::checkpoint_segments`], if `pages` more pages of the chunk table changed.
    fn checkpoint_segments_with(&self, pages: usize) -> usize {
        self.segments_with_objects(self.object_bytes(self.core.space.chunks.dirty_pages() + pages))
    }

    /// As [`Self::checkpoint_segments`], with `objects` bytes of objects besides deadlists.
    fn segments_with_objects(&self, objects: usize) -> usize {
        let at = &self.checkpoint;
        let objects_at = at.objects_at.filter(|_| !at.running());
        let objects = objects + at.estimate.lists;
        self.node_segments() + self.segments_for(self.written_pages(objects), self.core.pieces.part_bytes() / 4096, objects_at)
    }

    /// Returns the most segments that the nodes of the next checkpoint take.
    fn node_segments(&self) -> usize {
        let changed = self.core.nodes.dirty() - self.checkpoint.unwritten;
        self.segments_for(self.node_pages(changed + 4), self.chunk_pages(), self.checkpoint.nodes_at)
    }

    /// Returns the most segments that a checkpoint of almost no changes takes.
    pub(crate) fn least_segments(&self) -> usize {
        self.needs().least
    }

    /// Returns the bytes of objects that the next checkpoint may take besides the changes so far,
    /// so that `kept` segments stay free. The unused rest of its first and last segment counts.
    pub(super) fn object_room_beside(&self, kept: usize) -> usize {
        let at = &self.checkpoint;
        let changed = self.object_bytes(self.core.space.chunks.dirty_pages()) + at.estimate.lists;
        let nodes = self.node_segments();
        let most = self.free_meta().saturating_sub(kept + nodes);
        let waste = self.core.pieces.part_bytes() / 4096;
        let left = at.objects_at.filter(|_| !at.running()).map_or(0, |cursor| (cursor.pages - cursor.page) as usize);
        let segment = self.core.space.layout.smallest().saturating_sub(META_HEAD_PAGES) as usize;
        let pages = left.saturating_sub(waste) + most * segment.saturating_sub(waste);
        // one in so many pages is lost to padding of writes
        let pages = pages - pages.div_ceil(WRITE_PAGES + 1);
        (pages * 4096).saturating_sub(changed.next_multiple_of(4096))
    }

    /// Returns the bytes of `pages` chunk table pages and of the catalog.
    fn object_bytes(&self, pages: usize) -> usize {
        let chunks = &self.core.space.chunks;
        self.record_bytes((pages * 64).min(chunks.len())) + self.forward_bytes() + self.catalog_bytes(pages)
    }

    /// Returns the bytes of the catalog, with a directory of `pages` changed chunk table pages and
    /// of all existing ones.
    fn catalog_bytes(&self, pages: usize) -> usize {
        (self.core.space.chunks.pages() + pages) * 24 + self.checkpoint.estimate.catalog + 2 * 4096
    }

    /// Requests a full count of deadlists and catalog in the next turn.
    pub(crate) fn estimate_soon(&mut self) {
        self.checkpoint.estimate.again_in = 0;
    }

    /// Counts deadlists and catalog in full now.
    pub(crate) fn estimate_again(&mut self) {
        self.checkpoint.estimate.again_in = 0;
        self.estimate_checkpoint();
    }

    /// Updates the estimate of deadlists and catalog: in full now and then; while space is short
    /// the changes since then in each turn.
    pub(crate) fn estimate_checkpoint(&mut self) {
        if self.checkpoint.estimate.again_in > 0 {
            self.checkpoint.estimate.again_in -= 1;
            if self.is_below_target() || self.free_meta() <= self.wanted_free(self.core.space.targets.meta) {
                self.count_estimate();
            }
            return;
        }
        self.count_lists_again();
        self.count_estimate();
        let catalog = &self.core.catalog;
        self.checkpoint.estimate.again_in = TURNS_PER_ESTIMATE.max((catalog.snapshots.dirty_pages() * 16 + catalog.frees.len() / 4) as u32);
    }

    /// Updates the estimate from sums that each change keeps up to date.
    fn count_estimate(&mut self) {
        self.checkpoint.estimate.longest_list = self.core.longest_list();
        let catalog = &mut self.core.catalog;
        let snapshots = catalog.snapshots.changed_bytes();
        debug_assert_eq!(snapshots, catalog.snapshots.count_changed_bytes(), "INV-CKPT-5: records of snapshots are counted as they change");
        let volumes = catalog.volumes.len() * 96 + catalog.names();
        debug_assert_eq!(catalog.names(), catalog.volumes.values().map(|v| v.name.len()).sum::<usize>(), "INV-CKPT-5: so are volumes");
        let bases: usize = catalog.bases.values().map(|base| base.source.len() + 16).sum();
        let options = catalog.options().len() * 160 + JOBS_BYTES + bases;
        let others = (catalog.lineages.len() + catalog.walks.len() + catalog.frees.len()) * 96 + catalog.snapshots.pages() * 24;
        let retained = self.core.space.segments.retained_count() * 16;
        let names = self.core.space.names.bytes_to_write(self.core.space.segments.ending_names());
        let estimate = &mut self.checkpoint.estimate;
        estimate.lists = self.core.pieces.to_write();
        estimate.catalog = snapshots + volumes + others + retained + options + names;
        debug_assert!(self.lists_are_counted(), "INV-CKPT-5: directories of deadlists are counted as they change");
    }

    /// INV-CKPT-5: compares the sums for deadlists with a count of all lists. The sum may be too
    /// high: cutting a list that a split narrowed makes it shorter, which is noticed later.
    fn lists_are_counted(&self) -> bool {
        let lists = || self.core.catalog.deadlists().filter(|list| list.needs_write());
        let is_enough = lists().all(|list| list.share() >= self.list_bytes(list));
        let longest =
            self.core.catalog.lineages.values().filter(|line| line.deadlist.needs_write()).map(|line| self.list_bytes(&line.deadlist));
        is_enough
            && longest.max().unwrap_or(0) <= self.checkpoint.estimate.longest_list
            && self.core.pieces.lists_to_write() == lists().map(StoredDeadlist::share).sum()
    }

    /// Returns the class that a purpose takes segments from.
    fn alloc_class(&self, watermark: Watermark) -> AllocClass {
        match watermark {
            Watermark::Guest | Watermark::Record => self.core.space.targets.landing,
            Watermark::Cleaner => AllocClass::Data,
        }
    }

    /// Returns the class that a stream continues in.
    pub(super) fn alloc_class_of(&self, stream: Stream) -> AllocClass {
        match stream {
            special if special.is_special() && self.special_home(special).is_some() => {
                self.special_home(special).unwrap_or(AllocClass::Special)
            }
            stream if stream.is_guests() => self.core.space.targets.landing,
            _ => AllocClass::Data,
        }
    }

    /// Returns whether a stream may be written to. A new one may not before a root says where it
    /// begins, because replay would not find it.
    fn is_ready(&self, stream: Stream) -> bool {
        let start = self.log_tails.last().map(|log_tail| stream.start_in(log_tail));
        start.is_some_and(|start| start.segment != NO_SEGMENT || start.next != NO_SEGMENT)
    }

    /// Returns whether a stream on special devices has room there. A share of them is reserved for
    /// nodes.
    pub(crate) fn special_room(&self, stream: Stream) -> bool {
        self.is_ready(stream) && self.special_home(stream).is_some_and(|alloc_class| self.has_special_room(alloc_class))
    }

    /// Returns the special class of a stream, if the pool has one.
    pub(super) fn special_home(&self, stream: Stream) -> Option<AllocClass> {
        let targets = &self.core.space.targets;
        if stream == Stream::Kept { targets.nodes } else { targets.small }
    }

    /// Returns whether more is free on special devices than the share reserved for nodes.
    pub(super) fn has_special_room(&self, alloc_class: AllocClass) -> bool {
        let segments = &self.core.space.segments;
        let nodes = if self.core.space.targets.nodes == Some(alloc_class) { segments.count_in(alloc_class) / SPECIAL_PART } else { 0 };
        segments.free_in(alloc_class) > nodes + KEPT_FOR_CLEANER
    }

    /// Returns the number of free segments for nodes and objects on special devices.
    fn free_for_nodes(&self) -> usize {
        self.core.space.targets.nodes.map_or(0, |alloc_class| self.free_in(alloc_class))
    }

    pub(crate) fn free_in(&self, alloc_class: AllocClass) -> usize {
        self.core.space.segments.free_in(alloc_class)
    }

    /// Returns whether too little of the log would be left without these segments, and others that
    /// stay need it ([`Space::needs_log`](crate::space::Space::needs_log)).
    pub(super) fn misses_log_without(&self, gone: &BTreeSet<SegmentId>) -> bool {
        let space = &self.core.space;
        let log = space.targets.landing;
        let taken = gone.iter().filter(|id| space.segments.get(**id).is_some_and(|s| s.alloc_class == log)).count();
        let stays = |id: SegmentId| !gone.contains(&id) && space.segments.get(id).is_some_and(|s| !s.leaving);
        taken > 0 && space.segments.count_in(log) < taken + LEAST_LOG as usize && space.needs_log(stays)
    }

    /// Reserves the next segment for nodes or objects.
    pub(crate) fn reserve_meta(&mut self) -> Option<SegmentId> {
        let (segments, targets) = (&mut self.core.space.segments, self.core.space.targets);
        assert_ne!(targets.meta, AllocClass::Bucket, "INV-OBJ-6: nodes and objects of checkpoints are never in a bucket");
        targets.nodes.and_then(|alloc_class| segments.reserve(alloc_class, false)).or_else(|| segments.reserve(targets.meta, false))
    }

    /// Returns the number of free segments for nodes and objects.
    fn free_meta(&self) -> usize {
        self.free_for_nodes() + self.free_in(self.core.space.targets.meta)
    }

    /// Returns whether nodes and objects are in another class than data. Then space that the
    /// cleaner gains in data is of no use to them.
    pub(super) fn keeps_meta_apart(&self) -> bool {
        self.core.space.targets.meta != AllocClass::Data
    }

    /// Returns whether guests write to another class than data.
    pub(crate) fn is_split(&self) -> bool {
        self.core.space.targets.landing != AllocClass::Data
    }

    /// Returns the classes in which the cleaner keeps segments free.
    pub(crate) fn cleaned_classes(&self) -> impl Iterator<Item = AllocClass> + use<> {
        let landing = self.core.space.targets.landing;
        [AllocClass::Data, AllocClass::Log]
            .into_iter()
            .filter(move |alloc_class| *alloc_class == AllocClass::Data || *alloc_class == landing)
    }

    /// Returns whether the log is so full that part of it should move to data.
    pub(crate) fn destages(&self) -> bool {
        self.is_split() && self.is_log_full()
    }

    /// Returns whether more segments of the class that guests write to are used than
    /// `Tuning::log_percent`.
    pub(crate) fn is_log_full(&self) -> bool {
        let (segments, landing) = (&self.core.space.segments, self.core.space.targets.landing);
        let count = segments.count_in(landing);
        let used = count.saturating_sub(segments.free_in(landing) + segments.retained_in(landing));
        used * 100 > count * usize::from(self.tuning.log_percent)
    }

    /// Reserves a segment for an object of the bucket: one whose last object is in no checkpoint that an
    /// import may begin with (INV-OBJ-4).
    pub(crate) fn reserve_bucket_segment(&mut self) -> Option<SegmentId> {
        let durable = self.checkpoint_generation;
        let Space { segments, names, .. } = &mut self.core.space;
        segments.reserve_where(AllocClass::Bucket, false, |id| names.may_name(id, durable))
    }

    /// Counts all deadlists again: those that a split narrowed may have become shorter since they
    /// were cut.
    fn count_lists_again(&mut self) {
        let (catalog, pieces) = (&mut self.core.catalog, &self.core.pieces);
        let lines = catalog.lineages.values_mut().map(|line| &mut line.deadlist);
        lines.chain(catalog.frees.iter_mut().map(|(_, list)| list)).for_each(|list| list.count(pieces));
        catalog.snapshots.count_lists(pieces);
        self.core.look_for_longest();
    }
}

/// Number of segments of each class that become free when the log is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting([usize; AllocClass::ALL.len()]);

impl Waiting {
    /// Adds a segment.
    pub(super) fn count(&mut self, alloc_class: AllocClass) {
        self.0[alloc_class as usize] += 1;
    }

    pub(crate) fn in_alloc_class(&self, alloc_class: AllocClass) -> usize {
        self.0[alloc_class as usize]
    }

    /// Returns the number over all classes.
    pub(super) fn total(&self) -> usize {
        self.0.iter().sum()
    }
}
