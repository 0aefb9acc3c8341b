//! The cleaner: moves live blocks out of sparse segments, so that the segments can be reused.
//!
//! The six lifetime classes and their rules are SepBIT's (FAST'22): guests' blocks go to class 1
//! when the blocks that they replace lived shorter than the running average life of class-1
//! segments, else to class 2; blocks moved out of class 1 go to class 3, all others by age to
//! classes 4 to 6. Moving a chunk changes the chunk table alone (I7, I11).

mod moves;

use millpond_block::{Buf, DeviceError};
use millpond_format::{BlockIdentity, ChunkId, SegmentId};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use self::moves::{Gathered, gather_bytes, kept_identities};
use super::uploads::Uploads;
use crate::Planted;
use crate::log::{META_CLASS, Stream};
use crate::space::{AllocClass, NODE_GRAIN, PAGE, SegmentState};
use crate::store::{Context, Moves, Store};

/// Number of class-1 segments whose lives make up one average.
const LIFESPAN_WINDOW: u64 = 16;
/// Chunks read at a time: for jobs while guests are active, and otherwise.
const READS: (usize, usize) = (1, 4);
/// Victims chosen by one scan of all segments.
const CANDIDATES: usize = 8;
/// Turns between scans after one that found no victim.
const LOOK_PAUSE: u32 = 8;
/// Segments in a round, after which the cleaner checks whether it gained anything.
const ROUND: u32 = 64;

/// Milliseconds that a segment is not cleaned after a read of it failed.
const READ_PAUSE: u64 = 1_000;
/// A header that identifies the blocks of moved chunks.
#[derive(Debug)]
enum MoveHeader {
    /// The header is being read; the chunks that wait for it.
    Reading(Vec<ChunkId>),
    Read(Moves),
}

/// The cleaner.
#[derive(Debug, Default)]
pub(crate) struct Cleaner {
    /// The segment being emptied and the chunks in it that are still to be moved.
    victim: Option<SegmentId>,
    todo: Vec<ChunkId>,
    /// The victim is emptied for a job, not for its space.
    for_job: bool,
    /// The victim is emptied into the bucket, except for nodes.
    leaves_log: bool,
    /// Blocks on their way to the bucket.
    pub(crate) uploads: Uploads,
    /// Headers of moves in the victim, by page.
    headers: FxHashMap<u32, MoveHeader>,
    reading: usize,
    gathered: Vec<Gathered>,
    gathered_bytes: u64,
    /// Next victims, the best one last, and turns until the next scan after one that found none.
    candidates: Vec<SegmentId>,
    look_again_in: u32,
    /// The last scan found no victim in the classes that are short of space.
    found_none: bool,
    lives: u64,
    lives_count: u64,
    /// Segments emptied in this round, and their pages.
    round: u32,
    emptied: u64,
    /// A round gained nothing: no cleaning until the pool's count of freed units reaches this.
    no_gain_until: u64,
    /// Free segments when moves last found no room: none are tried again before a checkpoint frees
    /// some, or more are free.
    blocked_at: Option<usize>,
}

impl Cleaner {
    /// Returns the segment whose cleaning gains most: dead space times age over live space
    /// (cost-benefit); `None` when none gains anything. One scan of all segments finds several
    /// victims. `of_jobs` returns the segment that a job wants emptied; it is asked last.
    pub(crate) fn choose_victim(&mut self, store: &mut Store, of_jobs: impl FnOnce(&mut Store) -> Option<SegmentId>) -> Option<SegmentId> {
        if store.moves_wait_for_checkpoint() {
            store.checkpoint.forced |= !store.checkpoint.running();
            return None;
        }
        let mut alloc_classes = self.classes_to_clean(store);
        alloc_classes.retain(|alloc_class| *alloc_class == AllocClass::Log || store.has_room_for_moves(*alloc_class, true, 1));
        let uploads = self.uploads.wants(store);
        self.leaves_log = false;
        // segments that leave the pool free no space: when space is short those that do go first,
        // of the log, and those whose blocks leave it, in turns
        let log_first = self.for_job
            && store.coming_free(AllocClass::Log) < store.wanted_free(AllocClass::Log)
            && !store.tuning.plants(Planted::CrowdTheLog);
        let uploads_first = self.for_job && uploads;
        let others_first =
            uploads_first || alloc_classes.contains(&AllocClass::Data) || (log_first && alloc_classes.contains(&AllocClass::Log));
        let leaving = if others_first { None } else { self.leaving_victim(store) };
        let lacks_room = self.moves_lack_room(store);
        if leaving.is_some() || (lacks_room && !uploads) {
            return leaving;
        }
        if lacks_room {
            // what goes to the bucket needs no room in the log
            alloc_classes.clear();
        }
        let victim = if alloc_classes.is_empty() && !uploads { None } else { self.best_victim(store, &alloc_classes, uploads) };
        self.found_none = victim.is_none();
        if let Some(id) = victim {
            self.for_job = false;
            self.leaves_log = uploads && self.uploads.takes_segment(store, id);
            return victim;
        }
        if lacks_room {
            return None;
        }
        let leaving = self.leaving_victim(store);
        if leaving.is_some() {
            return leaving;
        }
        if checkpoint_lacks_room(store) || self.holds_jobs_up(&alloc_classes) {
            return None;
        }
        let wanted = of_jobs(store);
        // chunks that are gathered from it already would be moved twice; the job asks again
        let wanted = wanted.filter(|id| !self.has_gathered(store, *id));
        self.for_job |= wanted.is_some();
        wanted
    }

    /// Reads more of the segment that is being emptied; `short` says that requests wait for space.
    pub(crate) fn read_victim(&mut self, store: &mut Store, short: bool) {
        // a victim that is needed for its space is not throttled as a job
        let wanted = store.closing.is_some() || short || (!self.found_none && !self.classes_to_clean(store).is_empty());
        if self.leaves_log && !self.uploads.takes(store) {
            // the rest stays where it is until uploads have ended, and other segments may be emptied
            self.todo.clear();
        }
        let held = self.for_job && !wanted;
        let most = if held { store.job_depth(READS) } else { READS.1 };
        while self.reading < most && (!held || store.jobs_may_go_on()) {
            let Some(chunk) = self.todo.pop() else { break };
            self.read_chunk(store, chunk);
        }
        if self.todo.is_empty() && self.reading == 0 {
            self.end_victim(store);
        }
    }

    /// Returns whether a segment is being emptied.
    pub(crate) fn has_victim(&self) -> bool {
        self.victim.is_some()
    }

    /// Returns whether chunks of a segment were read and wait to be written, or to be in an object.
    fn has_gathered(&self, store: &Store, id: SegmentId) -> bool {
        self.gathered.iter().any(|gathered| gathered.from == id) || self.uploads.holds(store, id)
    }

    /// Returns whether a segment is to be emptied for its space: for other blocks, or into the bucket.
    pub(crate) fn needs_victims(&self, store: &Store) -> bool {
        !self.classes_to_clean(store).is_empty() || self.uploads.wants(store)
    }

    /// Continues uploads; `short` says that requests wait for space.
    pub(crate) fn step_uploads(&mut self, store: &mut Store, short: bool) {
        let has_no_more = self.idle() && (self.found_none || !self.uploads.wants(store));
        self.uploads.step(store, has_no_more && (short || store.is_below_target()));
    }

    /// Returns whether the next turn goes on to empty segments into the bucket, without waiting for a read.
    pub(crate) fn goes_on_with_uploads(&self, store: &Store) -> bool {
        let is_throttled = self.for_job && self.victim.is_some();
        !self.is_reading() && !self.found_none && !is_throttled && self.uploads.wants(store)
    }

    /// Allows moves again after a checkpoint released segments.
    pub(crate) fn unblock(&mut self) {
        self.blocked_at = None;
    }

    /// Returns the state as one line for debugging.
    pub(crate) fn report(&self, store: &Store) -> String {
        format!(
            "cleaner: victim {:?}, round {} emptied {} spent {}, exhausted until {}, blocked {:?}, uploads {}",
            self.victim,
            self.round,
            self.emptied,
            store.spent,
            self.no_gain_until,
            self.blocked_at,
            self.uploads.segments().count()
        )
    }

    /// Returns whether a read is in flight; cleaning goes on when it ends.
    pub(super) fn is_reading(&self) -> bool {
        self.reading > 0
    }

    pub(crate) fn idle(&self) -> bool {
        self.victim.is_none() && self.reading == 0 && self.gathered.is_empty()
    }
}

impl Cleaner {
    /// Handles a read of a chunk.
    pub(crate) fn chunk_read(
        &mut self,
        store: &mut Store,
        id: ChunkId,
        identities: Vec<(u32, BlockIdentity)>,
        attempt: u8,
        result: Result<(), DeviceError>,
        buf: Option<Buf>,
    ) {
        let victim = self.victim;
        let (Ok(()), Some(buf)) = (result, buf) else {
            let again = victim.is_some_and(|victim| attempt + 1 < store.io.attempts(&store.core.space.layout, victim));
            return if again { self.read_body(store, id, identities, attempt + 1) } else { self.clean_read_failed(store) };
        };
        self.reading -= 1;
        let (Some(from), Some(chunk)) = (victim, store.core.space.chunks.get(id)) else { return store.bufs.give(buf) };
        let footprint = u64::from(chunk.footprint()) * 512;
        let live = chunk.live.clone();
        let gathered = Gathered { chunk: id, from, leaves_log: self.leaves_log, identities, buf };
        // where there are several copies, a wrong one is noticed here, and the next one read
        let others = attempt + 1 < store.io.attempts(&store.core.space.layout, from) && store.core.space.layout.spare(from) > 0;
        if others && kept_identities(store, &gathered, &live).is_none() {
            self.reading += 1;
            store.bufs.give(gathered.buf);
            return self.read_body(store, id, gathered.identities, attempt + 1);
        }
        self.gathered_bytes += footprint;
        self.gathered.push(gathered);
        if self.gathered_bytes >= gather_bytes(store) {
            self.write_gathered(store);
        }
    }
}

impl Cleaner {
    /// Returns the classes to clean: those short of free segments, and the log also when part of it
    /// should move to data.
    pub(crate) fn classes_to_clean(&self, store: &Store) -> SmallVec<[AllocClass; 2]> {
        let mut alloc_classes = SmallVec::new();
        let few = |alloc_class| store.coming_free(alloc_class) < store.wanted_free(alloc_class);
        if few(AllocClass::Data) && !self.cleaning_gained_nothing(store) {
            alloc_classes.push(AllocClass::Data);
        }
        if store.is_split() && (store.destages() || few(AllocClass::Log)) {
            alloc_classes.push(AllocClass::Log);
        }
        for alloc_class in [AllocClass::Special, AllocClass::Nodes] {
            let count = store.core.space.segments.count_in(alloc_class);
            if count > 0 && store.coming_free(alloc_class) < (count / 8).max(4) && !self.cleaning_gained_nothing(store) {
                alloc_classes.push(alloc_class);
            }
        }
        alloc_classes
    }

    /// Returns whether the next turn would begin moves for a job.
    pub(super) fn cleans_for_jobs(&mut self, store: &mut Store) -> bool {
        !self.is_reading() && !self.is_blocked(store) && !self.holds_jobs_up(&self.classes_to_clean(store)) && store.jobs_may_go_on()
    }
}

impl Cleaner {
    /// Returns whether jobs wait because nothing can be gained in the `alloc_classes` that are short.
    /// Jobs move data to the data class; other classes do not delay them.
    fn holds_jobs_up(&self, alloc_classes: &[AllocClass]) -> bool {
        self.found_none && alloc_classes.contains(&AllocClass::Data)
    }

    /// Returns the next segment that a removal gives up.
    fn leaving_victim(&mut self, store: &mut Store) -> Option<SegmentId> {
        // nodes are not moved while a checkpoint writes them
        let leaving = store.next_leaving().filter(|id| {
            let nodes = store.core.space.segments.get(*id).is_some_and(|s| s.class == META_CLASS);
            let written = nodes && store.checkpoint.running();
            !(written || self.is_blocked(store) || self.has_gathered(store, *id))
        });
        self.for_job |= leaving.is_some();
        leaving
    }

    /// Returns the segment of one of the `alloc_classes`, or to be emptied into the bucket if `uploads` is
    /// true, whose cleaning gains most.
    fn best_victim(&mut self, store: &mut Store, alloc_classes: &[AllocClass], uploads: bool) -> Option<SegmentId> {
        while let Some(id) = self.candidates.pop() {
            if self.victim_score(store, id, alloc_classes, uploads).is_some() {
                return Some(id);
            }
        }
        if self.look_again_in > 0 {
            self.look_again_in -= 1;
            return None;
        }
        let segments = store.core.space.segments.ids();
        let mut scored: Vec<(f64, SegmentId)> =
            segments.filter_map(|id| self.victim_score(store, id, alloc_classes, uploads).map(|score| (score, id))).collect();
        scored.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        self.candidates.extend(scored.iter().take(CANDIDATES).rev().map(|(_, id)| *id));
        let best = self.candidates.pop();
        if best.is_none() {
            self.look_again_in = LOOK_PAUSE;
            self.uploads.found_none(store);
        }
        best
    }

    /// Returns whether moves found no room, and no more is free since.
    fn moves_lack_room(&self, store: &Store) -> bool {
        self.blocked_at.is_some_and(|free| store.core.space.segments.free_in(AllocClass::Data) <= free)
    }

    /// Returns whether nothing can be moved for jobs.
    pub(super) fn is_blocked(&self, store: &Store) -> bool {
        self.moves_lack_room(store) || checkpoint_lacks_room(store)
    }

    /// Returns whether the last round of cleaning gained nothing.
    fn cleaning_gained_nothing(&self, store: &Store) -> bool {
        store.core.space.freed_units < self.no_gain_until
    }

    /// Returns the gain of cleaning a segment of one of the `alloc_classes`, or of emptying it into the
    /// bucket if `uploads` is true; `None` when it cannot be cleaned or gains nothing.
    fn victim_score(&self, store: &Store, id: SegmentId, alloc_classes: &[AllocClass], uploads: bool) -> Option<f64> {
        let space = &store.core.space;
        let s = space.segments.get(id)?;
        let (units, used) = (space.layout.pages(id) * 8, s.live);
        // blocks in the log move to data or to the bucket, however many of them are live
        let leaves_log = uploads && self.uploads.takes_segment(store, id);
        let destage = s.alloc_class == AllocClass::Log || leaves_log;
        // checkpoints empty segments of objects, and most segments of nodes; nodes are not moved
        // while a checkpoint writes them
        if !(alloc_classes.contains(&s.alloc_class) || leaves_log)
            || s.state != SegmentState::Sealed
            || s.leaving
            || s.objects > 0
            || s.left_until > store.now.0
            || (!destage && used + (units / 16).max(16) > units)
            || (s.class == META_CLASS && (store.checkpoint.running() || (used * 4 > units && !(destage && store.records_lack_room()))))
            || self.has_gathered(store, id)
            || store.log.is_in_flight(id)
        {
            return None;
        }
        let live = f64::from(used) / f64::from(units);
        if store.records_lack_room() {
            return Some(1.0 - live);
        }
        let age = store.core.clock.saturating_sub(s.youngest) as f64 + 1.0;
        let gain = if destage { 1.25 - live } else { 1.0 - live };
        Some(gain * age.sqrt() / (live + 0.001))
    }

    /// Returns whether a segment is left whose cleaning would free space.
    pub(crate) fn victim_left(&self, store: &Store) -> bool {
        let may_clean = |alloc_class: AllocClass| {
            store.has_room_for_moves(alloc_class, true, 1) && !(alloc_class == AllocClass::Data && self.cleaning_gained_nothing(store))
        };
        let may = |alloc_class: &AllocClass| *alloc_class == AllocClass::Log || may_clean(*alloc_class);
        let alloc_classes: SmallVec<[AllocClass; 3]> = AllocClass::LOCAL.into_iter().filter(may).collect();
        let uploads = self.uploads.wants(store);
        let alloc_classes = if self.moves_lack_room(store) { SmallVec::new() } else { alloc_classes };
        (uploads || !alloc_classes.is_empty())
            && store.core.space.segments.ids().any(|id| self.victim_score(store, id, &alloc_classes, uploads).is_some())
    }

    pub(crate) fn begin_victim(&mut self, store: &mut Store, victim: SegmentId) {
        let Some(s) = store.core.space.segments.get(victim) else { return };
        let (class, youngest) = (s.class, s.youngest);
        let mut chunks = s.chunks.clone();
        chunks.sort_unstable();
        chunks.dedup();
        chunks.retain(|id| store.core.space.chunks.get(*id).and_then(|c| c.place).is_some_and(|place| place.segment == victim));
        chunks.reverse();
        if Stream::from_number(class) == Some(Stream::Short) {
            self.lives += store.core.clock.saturating_sub(youngest);
            self.lives_count += 1;
            if self.lives_count == LIFESPAN_WINDOW {
                store.lifespan = self.lives / LIFESPAN_WINDOW;
                (self.lives, self.lives_count) = (0, 0);
            }
        }
        self.victim = Some(victim);
        self.todo = chunks;
    }

    fn end_victim(&mut self, store: &mut Store) {
        let Some(victim) = self.victim.take() else { return };
        self.headers.clear();
        store.metrics.segments_cleaned += 1;
        store.core.space.settle(victim);
        if store.core.space.layout.alloc_class(victim) == AllocClass::Log || self.for_job || self.leaves_log {
            return;
        }
        self.round += 1;
        self.emptied += u64::from(store.core.space.layout.pages(victim));
        if self.round == ROUND {
            if store.spent + self.emptied / 32 >= self.emptied {
                let segment_units = u64::from(store.core.space.layout.smallest()) * 8;
                self.no_gain_until = store.core.space.freed_units + segment_units / 2;
            }
            (self.round, self.emptied, store.spent) = (0, 0, 0);
        }
    }

    /// Starts reading a chunk to move, after the header that identifies its blocks.
    fn read_chunk(&mut self, store: &mut Store, id: ChunkId) {
        let Some(victim) = self.victim else { return };
        let Some(chunk) = store.core.space.chunks.get(id) else { return };
        let Some(place) = chunk.place.filter(|place| place.segment == victim) else { return };
        if chunk.live_count == 0 {
            return;
        }
        self.reading += 1;
        let Some(at) = chunk.identities.filter(|_| chunk.grain != NODE_GRAIN) else {
            return self.read_body(store, id, Vec::new(), 0);
        };
        // the header of a moved chunk is elsewhere in the same segment, shared with other chunks
        match self.headers.get_mut(&at) {
            Some(MoveHeader::Reading(waiting)) => return waiting.push(id),
            Some(MoveHeader::Read(moves)) => {
                if let Some(identities) = moves.identities(id, chunk) {
                    return self.read_body(store, id, identities, 0);
                }
            }
            None => {}
        }
        self.headers.insert(at, MoveHeader::Reading(vec![id]));
        store.read_move_header(place.segment, at, 0);
    }

    /// Starts reading the blocks of a chunk, if it is still in its place.
    fn read_body(&mut self, store: &mut Store, id: ChunkId, identities: Vec<(u32, BlockIdentity)>, attempt: u8) {
        match store.core.space.chunks.get(id).and_then(|chunk| Some((chunk.place?, chunk.extent_units().div_ceil(8)))) {
            Some((place, pages)) => {
                if self.for_job {
                    store.charge_jobs(u64::from(pages) * PAGE);
                }
                store.read_segment(Context::Clean(id, identities, attempt), place.segment, place.page, pages, attempt);
            }
            None => self.reading -= 1,
        }
    }

    /// Handles a read of a header of moved chunks.
    pub(crate) fn move_header_read(&mut self, store: &mut Store, at: u32, attempt: u8, result: Result<(), DeviceError>, buf: Option<Buf>) {
        let Some(MoveHeader::Reading(waiting)) = self.headers.remove(&at) else { return };
        let victim = self.victim;
        let moves = victim.zip(buf.as_ref().filter(|_| result.is_ok())).and_then(|(segment, buf)| {
            let (moves, _) = Moves::decode(buf.bytes(), store.config.id, segment, at)?;
            // a chunk that died meanwhile, or whose blocks were gathered, needs nothing
            let known = waiting.iter().map(|id| {
                let chunk = store.core.space.chunks.get(*id).filter(|chunk| chunk.live_count > 0);
                Some((*id, chunk.map_or(Some(Vec::new()), |chunk| moves.identities(*id, chunk))?))
            });
            Some((known.collect::<Option<Vec<_>>>()?, moves))
        });
        if let Some(buf) = buf {
            store.bufs.give(buf);
        }
        let Some((identified, moves)) = moves else {
            let segment = victim.filter(|victim| attempt + 1 < store.io.attempts(&store.core.space.layout, *victim));
            let Some(segment) = segment else { return waiting.iter().for_each(|_| self.clean_read_failed(store)) };
            self.headers.insert(at, MoveHeader::Reading(waiting));
            return store.read_move_header(segment, at, attempt + 1);
        };
        self.headers.insert(at, MoveHeader::Read(moves));
        for (id, identities) in identified {
            self.read_body(store, id, identities, 0);
        }
    }

    fn clean_read_failed(&mut self, store: &mut Store) {
        self.reading -= 1;
        if let Some(victim) = self.victim {
            store.leave_unreadable(victim, READ_PAUSE);
        }
    }
}

/// Returns whether the next checkpoint has no room for the records of one more move for a job.
fn checkpoint_lacks_room(store: &Store) -> bool {
    !store.has_room_for_moves(AllocClass::Data, false, 1)
}
