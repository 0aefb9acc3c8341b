//! The cleaner: gives live blocks of sparse segments new places, so that the segments can be reused.
//!
//! Six lifetime classes and their rules are SepBIT's (FAST'22): blocks that guests write go to class 1 when what they replace lived
//! shorter than the running average life of class-1 segments, else to class 2; what is moved out of class 1 goes to class 3, the rest
//! by age to classes 4 to 6. Moving a chunk changes the chunk table alone (I7, I11).

mod identities;

use millpond_block::{Buf, Piece};
use millpond_device::DeviceError;
use millpond_format::{
    Addr, BATCH_FIXED, BlockIdentity, BlockNo, ChunkId, Coding, Encoder, HEADER_PAGE, Item, Lsn, MAX_HEADER_PAGES, Move, NODE_BYTES,
    NODE_UNITS, Node, SegmentId, UNIT, VolumeId, crc32c,
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::rc::Rc;

pub(super) use self::identities::Moves;
use self::identities::original_identities;
use super::evacuate::Evacuation;
use super::reserve::Purse;
use crate::log::{BatchKind, CLEANED, KEPT, META_CLASS, OpenBatch, SHORT, is_special};
use crate::pool::{Context, Pool};
use crate::space::{Chunk, NODE_GRAIN, PAGE, Place, SegmentState, Shelf, Slots};
use crate::{Planted, PoolState};

/// Class-1 segments whose lives make one average.
const LIFESPAN_WINDOW: u64 = 16;
/// Chunks read at a time: for jobs while guests are active, and else.
const READS: (usize, usize) = (1, 4);
/// Live bytes gathered before they are written, at most: one header then serves many chunks.
const GATHER_BYTES: u64 = 1 << 20;

/// Turns of all devices with parity that are written together.
const QUANTA: u64 = 16;
/// Victims chosen at one look at all segments.
const CANDIDATES: usize = 8;
/// Turns between looks that find none.
const LOOK_PAUSE: u32 = 8;
/// Segments after which the cleaner looks whether it gained anything.
const ROUND: u32 = 64;

/// Milliseconds that a segment is left alone after a read of it failed.
const READ_PAUSE: u64 = 1_000;
/// A chunk that was read and waits to be written elsewhere.
#[derive(Debug)]
struct Gathered {
    chunk: ChunkId,
    from: SegmentId,
    identities: Vec<(u32, BlockIdentity)>,
    buf: Buf,
}

/// A header that says what the blocks of moved chunks are.
#[derive(Debug)]
enum MoveHeader {
    /// On its way; who waits for it.
    Reading(Vec<ChunkId>),
    Read(Moves),
}

/// The cleaner.
#[derive(Debug, Default)]
pub(crate) struct Cleaner {
    /// The segment being emptied and the chunks in it that are still to be moved.
    victim: Option<SegmentId>,
    todo: Vec<ChunkId>,
    /// It is emptied for a job, not for its space.
    for_job: bool,
    /// Headers of moves in it, by their page.
    headers: FxHashMap<u32, MoveHeader>,
    reading: usize,
    gathered: Vec<Gathered>,
    gathered_bytes: u64,
    /// Segments to be emptied next, the best one last, and turns until the next look for some after one that found none.
    candidates: Vec<SegmentId>,
    look_again_in: u32,
    /// Average life of class-1 segments in blocks written.
    pub(crate) lifespan: u64,
    lives: u64,
    lives_count: u64,
    /// Segments emptied in this round, their pages, and the pages that their blocks took elsewhere.
    round: u32,
    emptied: u64,
    pub(crate) spent: u64,
    /// A round gained nothing: no more until this many units were freed over the pool's life.
    exhausted_until: u64,
    /// There was no room to move to with so many segments free: not again before a checkpoint made some, or there are more.
    blocked_at: Option<usize>,
}

impl Cleaner {
    /// A checkpoint let segments go.
    pub(crate) fn unblock(&mut self) {
        self.blocked_at = None;
    }

    /// One line for debugging.
    pub(crate) fn report(&self) -> String {
        format!(
            "cleaner: victim {:?}, round {} emptied {} spent {}, exhausted until {}, blocked {:?}",
            self.victim, self.round, self.emptied, self.spent, self.exhausted_until, self.blocked_at
        )
    }

    /// It goes on when a device has answered.
    pub(crate) fn is_reading(&self) -> bool {
        self.reading > 0
    }

    pub(crate) fn idle(&self) -> bool {
        self.victim.is_none() && self.reading == 0 && self.gathered.is_empty()
    }
}

impl Pool {
    /// Goes on with cleaning when space is needed.
    pub(crate) fn step_cleaner(&mut self) {
        if self.state != PoolState::Online && self.state != PoolState::Closing {
            return;
        }
        if self.cleaner.victim.is_none() {
            let wanted = self.closing.is_none() || self.waits_for_space();
            let victim = if wanted && self.cleaning_needed() { self.choose_victim() } else { None };
            match victim {
                Some(victim) => self.begin_victim(victim),
                None => return self.write_gathered(),
            }
        }
        // what is wanted for its space waits for no job
        let wanted = || self.closing.is_some() || self.waits_for_space() || !self.shelves_to_clean().is_empty();
        let held = self.cleaner.for_job && !wanted();
        let most = if held { self.job_depth(READS) } else { READS.1 };
        while self.cleaner.reading < most && (!held || self.jobs_may_go_on()) {
            let Some(chunk) = self.cleaner.todo.pop() else { break };
            self.read_chunk(chunk);
        }
        if self.cleaner.todo.is_empty() && self.cleaner.reading == 0 {
            self.end_victim();
        }
    }

    /// Which shelves are to be cleaned: the log, too, when some of it should go where data stays.
    fn shelves_to_clean(&self) -> SmallVec<[Shelf; 2]> {
        let mut shelves = SmallVec::new();
        let few = |shelf| self.coming_free(shelf) < self.wanted_free(shelf);
        if few(Shelf::Data) && !self.cleaning_is_vain() {
            shelves.push(Shelf::Data);
        }
        if self.is_split() && (self.destages() || few(Shelf::Log)) {
            shelves.push(Shelf::Log);
        }
        for shelf in [Shelf::Special, Shelf::Nodes] {
            let count = self.core.space.segments.count_in(shelf);
            if count > 0 && self.coming_free(shelf) < (count / 8).max(4) && !self.cleaning_is_vain() {
                shelves.push(shelf);
            }
        }
        shelves
    }

    fn cleaning_needed(&self) -> bool {
        !self.shelves_to_clean().is_empty() || self.evacuation.as_ref().is_some_and(Evacuation::has_more) || self.rebalancer.has_more()
    }

    /// The segment whose cleaning gains most: dead space times age over live space (cost-benefit); nothing when none gains anything. The best
    /// of one look at all segments last for several victims.
    fn choose_victim(&mut self) -> Option<SegmentId> {
        // nodes are not moved while a checkpoint writes them
        let leaving = self.next_leaving();
        let leaving = leaving.filter(|id| {
            let nodes = self.core.space.segments.get(*id).is_some_and(|s| s.class == META_CLASS);
            let written = nodes && self.checkpointer.running();
            !(written || self.is_blocked() || self.cleaner.gathered.iter().any(|g| g.from == *id))
        });
        if leaving.is_some() {
            self.cleaner.for_job = true;
            return leaving;
        }
        let shelves = self.shelves_to_clean();
        if self.is_blocked() {
            return None;
        }
        if shelves.is_empty() {
            let surplus = self.next_surplus();
            self.cleaner.for_job |= surplus.is_some();
            return surplus;
        }
        self.cleaner.for_job = false;
        while let Some(id) = self.cleaner.candidates.pop() {
            if self.victim_score(id, &shelves).is_some() {
                return Some(id);
            }
        }
        if self.cleaner.look_again_in > 0 {
            self.cleaner.look_again_in -= 1;
            return None;
        }
        let segments = self.core.space.segments.ids();
        let mut scored: Vec<(f64, SegmentId)> =
            segments.filter_map(|id| self.victim_score(id, &shelves).map(|score| (score, id))).collect();
        scored.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        self.cleaner.candidates.extend(scored.iter().take(CANDIDATES).rev().map(|(_, id)| *id));
        let best = self.cleaner.candidates.pop();
        if best.is_none() {
            self.cleaner.look_again_in = LOOK_PAUSE;
        }
        best
    }

    /// Was there no room to move to?
    fn is_blocked(&self) -> bool {
        self.cleaner.blocked_at.is_some_and(|free| self.core.space.segments.free_in(Shelf::Data) <= free)
    }

    /// Did cleaning gain nothing lately?
    fn cleaning_is_vain(&self) -> bool {
        self.core.space.freed_units < self.cleaner.exhausted_until
    }

    /// What cleaning a segment of one of the `shelves` gains, the more the better; nothing when it cannot be cleaned or gains nothing.
    fn victim_score(&self, id: SegmentId, shelves: &[Shelf]) -> Option<f64> {
        let space = &self.core.space;
        let s = space.segments.get(id)?;
        let (units, used) = (space.rows.pages(id) * 8, s.live);
        // what is in the log goes where data stays, however much of it lives
        let destage = s.shelf == Shelf::Log;
        // segments of objects are emptied by checkpoints, most of those of nodes too; nodes are not moved while one writes them
        if !shelves.contains(&s.shelf)
            || s.state != SegmentState::Sealed
            || s.objects > 0
            || s.left_until > self.now.0
            || (!destage && used + (units / 16).max(16) > units)
            || (s.class == META_CLASS && (self.checkpointer.running() || (used * 4 > units && !(destage && self.short_of_space()))))
            || self.cleaner.gathered.iter().any(|g| g.from == id)
            || self.log.is_in_flight(id)
        {
            return None;
        }
        let live = f64::from(used) / f64::from(units);
        if self.short_of_space() {
            return Some(1.0 - live);
        }
        let age = self.core.clock.saturating_sub(s.youngest) as f64 + 1.0;
        let gain = if destage { 1.25 - live } else { 1.0 - live };
        Some(gain * age.sqrt() / (live + 0.001))
    }

    /// Is there a segment whose cleaning would make room?
    pub(crate) fn victim_left(&self) -> bool {
        let shelves: SmallVec<[Shelf; 3]> =
            Shelf::ALL.into_iter().filter(|shelf| *shelf != Shelf::Data || !self.cleaning_is_vain()).collect();
        !self.is_blocked() && self.core.space.segments.ids().any(|id| self.victim_score(id, &shelves).is_some())
    }

    fn begin_victim(&mut self, victim: SegmentId) {
        let Some(s) = self.core.space.segments.get(victim) else { return };
        let (class, youngest) = (s.class, s.youngest);
        let mut chunks = s.chunks.clone();
        chunks.sort_unstable();
        chunks.dedup();
        chunks.retain(|id| self.core.space.chunks.get(*id).and_then(|c| c.place).is_some_and(|place| place.segment == victim));
        chunks.reverse();
        if usize::from(class) == SHORT {
            self.cleaner.lives += self.core.clock.saturating_sub(youngest);
            self.cleaner.lives_count += 1;
            if self.cleaner.lives_count == LIFESPAN_WINDOW {
                self.cleaner.lifespan = self.cleaner.lives / LIFESPAN_WINDOW;
                (self.cleaner.lives, self.cleaner.lives_count) = (0, 0);
            }
        }
        self.cleaner.victim = Some(victim);
        self.cleaner.todo = chunks;
    }

    fn end_victim(&mut self) {
        let Some(victim) = self.cleaner.victim.take() else { return };
        self.cleaner.headers.clear();
        self.metrics.segments_cleaned += 1;
        self.core.space.settle(victim);
        if self.core.space.rows.shelf(victim) == Shelf::Log || self.cleaner.for_job {
            return;
        }
        self.cleaner.round += 1;
        self.cleaner.emptied += u64::from(self.core.space.rows.pages(victim));
        if self.cleaner.round == ROUND {
            if self.cleaner.spent + self.cleaner.emptied / 32 >= self.cleaner.emptied {
                let segment_units = u64::from(self.smallest_segment()) * 8;
                self.cleaner.exhausted_until = self.core.space.freed_units + segment_units / 2;
            }
            (self.cleaner.round, self.cleaner.emptied, self.cleaner.spent) = (0, 0, 0);
        }
    }

    /// Starts reading a chunk that is to be moved, with the headers that say what its blocks are.
    fn read_chunk(&mut self, id: ChunkId) {
        let Some(victim) = self.cleaner.victim else { return };
        let Some(chunk) = self.core.space.chunks.get(id) else { return };
        let Some(place) = chunk.place.filter(|place| place.segment == victim) else { return };
        if chunk.live_count == 0 {
            return;
        }
        self.cleaner.reading += 1;
        if chunk.grain == NODE_GRAIN || chunk.identities == u32::MAX {
            return self.read_body(id, Vec::new(), 0);
        }
        // a moved chunk: its header is elsewhere in the same segment, with those of others
        let at = chunk.identities;
        match self.cleaner.headers.get_mut(&at) {
            Some(MoveHeader::Reading(waiting)) => return waiting.push(id),
            Some(MoveHeader::Read(moves)) => {
                if let Some(identities) = moves.identities(id, chunk) {
                    return self.read_body(id, identities, 0);
                }
            }
            None => {}
        }
        self.cleaner.headers.insert(at, MoveHeader::Reading(vec![id]));
        self.read_move_header(place.segment, at, 0);
    }

    fn read_move_header(&mut self, segment: SegmentId, at: u32, attempt: u8) {
        let room = self.core.space.rows.pages(segment) - at;
        self.read_segment(Context::CleanHeader(at, attempt), segment, at, room.min(MAX_HEADER_PAGES as u32), attempt);
    }

    /// Starts reading the blocks of a chunk, when it is where it was.
    fn read_body(&mut self, id: ChunkId, identities: Vec<(u32, BlockIdentity)>, attempt: u8) {
        match self.core.space.chunks.get(id).and_then(|chunk| Some((chunk.place?, chunk.extent_units().div_ceil(8)))) {
            Some((place, pages)) => {
                if self.cleaner.for_job {
                    self.charge_jobs(u64::from(pages) * PAGE);
                }
                self.read_segment(Context::Clean(id, identities, attempt), place.segment, place.page, pages, attempt);
            }
            None => self.cleaner.reading -= 1,
        }
    }

    /// A header of moved chunks was read.
    pub(crate) fn move_header_read(&mut self, at: u32, attempt: u8, result: Result<(), DeviceError>, buf: Option<Buf>) {
        let Some(MoveHeader::Reading(waiting)) = self.cleaner.headers.remove(&at) else { return };
        let victim = self.cleaner.victim;
        let moves = victim.zip(buf.as_ref().filter(|_| result.is_ok())).and_then(|(segment, buf)| {
            let (moves, _) = Moves::decode(buf.bytes(), self.config.id, segment, at)?;
            // a chunk that died meanwhile needs nothing
            let told = waiting.iter().map(|id| {
                let chunk = self.core.space.chunks.get(*id);
                Some((*id, chunk.map_or(Some(Vec::new()), |chunk| moves.identities(*id, chunk))?))
            });
            Some((told.collect::<Option<Vec<_>>>()?, moves))
        });
        if let Some(buf) = buf {
            self.bufs.give(buf);
        }
        let Some((told, moves)) = moves else {
            let segment = victim.filter(|victim| attempt + 1 < self.io.attempts(&self.core.space.rows, *victim));
            let Some(segment) = segment else { return waiting.iter().for_each(|_| self.clean_read_failed()) };
            self.cleaner.headers.insert(at, MoveHeader::Reading(waiting));
            return self.read_move_header(segment, at, attempt + 1);
        };
        self.cleaner.headers.insert(at, MoveHeader::Read(moves));
        for (id, identities) in told {
            self.read_body(id, identities, 0);
        }
    }

    fn clean_read_failed(&mut self) {
        self.cleaner.reading -= 1;
        if let Some(s) = self.cleaner.victim.and_then(|v| self.core.space.segments.get_mut(v)) {
            s.left_until = self.now.0 + READ_PAUSE;
        }
    }

    /// A chunk was read.
    pub(crate) fn chunk_read(
        &mut self,
        id: ChunkId,
        identities: Vec<(u32, BlockIdentity)>,
        attempt: u8,
        result: Result<(), DeviceError>,
        buf: Option<Buf>,
    ) {
        let victim = self.cleaner.victim;
        let (Ok(()), Some(buf)) = (result, buf) else {
            let again = victim.is_some_and(|victim| attempt + 1 < self.io.attempts(&self.core.space.rows, victim));
            return if again { self.read_body(id, identities, attempt + 1) } else { self.clean_read_failed() };
        };
        self.cleaner.reading -= 1;
        let (Some(from), Some(chunk)) = (victim, self.core.space.chunks.get(id)) else { return self.bufs.give(buf) };
        let footprint = u64::from(chunk.footprint()) * 512;
        let live = chunk.live.clone();
        let gathered = Gathered { chunk: id, from, identities, buf };
        // where there are several copies a bad one is noticed while the segment is at hand
        let others = attempt + 1 < self.io.attempts(&self.core.space.rows, from) && self.core.space.rows.spare(from) > 0;
        if others && self.kept_identities(&gathered, &live).is_none() {
            self.cleaner.reading += 1;
            self.bufs.give(gathered.buf);
            return self.read_body(id, gathered.identities, attempt + 1);
        }
        self.cleaner.gathered_bytes += footprint;
        self.cleaner.gathered.push(gathered);
        if self.cleaner.gathered_bytes >= self.gather_bytes() {
            self.write_gathered();
        }
    }

    /// Live bytes that are written together: of rows with parity many, for the last one is filled up with nothing.
    fn gather_bytes(&self) -> u64 {
        let next = self.log.streams.get(CLEANED).and_then(|s| s.cursor.map(|c| c.segment).or(s.next));
        let rows = &self.core.space.rows;
        let (quantum, pages) = next.map_or((1, 0), |id| (rows.quantum(id), rows.pages(id)));
        if quantum > 1 {
            return (u64::from(quantum) * PAGE * QUANTA).min(u64::from(pages) * PAGE / 2);
        }
        GATHER_BYTES.min(self.config.shape.extent_bytes * 2)
    }

    /// Writes what was gathered and gives the chunks their new places.
    fn write_gathered(&mut self) {
        if self.cleaner.gathered.is_empty() {
            return;
        }
        // what guests freed in this turn has to be in the log before the move that leaves it behind
        self.seal_all();
        self.cleaner.gathered_bytes = 0;
        let mut waiting = std::mem::take(&mut self.cleaner.gathered);
        waiting.sort_by_key(|g| {
            let chunk = self.core.space.chunks.get(g.chunk);
            (chunk.map_or(0, |c| self.stream_of(c)), g.chunk)
        });
        let mut batch: Option<MoveBatch> = None;
        for g in waiting {
            self.add_move(&mut batch, &g);
            self.bufs.give(g.buf);
        }
        if let Some(batch) = batch {
            self.write_moves(batch);
        }
    }

    /// Adds what lives in a chunk to the batch of moves, or to another one when it does not fit there.
    fn add_move(&mut self, batch: &mut Option<MoveBatch>, g: &Gathered) {
        let Some(chunk) = self.core.space.chunks.get(g.chunk) else { return };
        let here = chunk.place.is_some_and(|place| place.segment == g.from);
        if chunk.live_count == 0 || !here || matches!(self.state, PoolState::Faulted(_)) {
            return;
        }
        let stream = self.stream_of(chunk);
        let live = chunk.live.clone();
        let unit_bytes = usize::from(chunk.grain) * 512;
        let pages = (live.count() as usize * unit_bytes).div_ceil(4096) as u32;
        let Some(identities) = self.kept_identities(g, &live) else {
            // as with what cannot be read: it stays where it is
            if let Some(s) = self.core.space.segments.get_mut(g.from) {
                s.left_until = self.now.0 + READ_PAUSE;
            }
            return;
        };
        let Some(chunk) = self.core.space.chunks.get(g.chunk) else { return };
        let moved = Move {
            chunk: g.chunk,
            epoch: chunk.epoch,
            birth: chunk.birth,
            grain: chunk.grain,
            at: batch.as_ref().filter(|b| b.stream == stream).map_or(0, |b| b.pages),
            present: live.words().to_vec(),
            identities,
        };
        let mut item = Encoder::default();
        Item::Move(moved.clone()).encode(&mut item);
        let first_header = (BATCH_FIXED + item.len()).div_ceil(HEADER_PAGE) as u32;
        let fits = batch.as_ref().is_some_and(|b| {
            let header = (BATCH_FIXED + b.items.len() + item.len()).div_ceil(HEADER_PAGE);
            b.stream == stream && header <= MAX_HEADER_PAGES / 2 && header as u32 + b.pages + pages <= b.room
        });
        if !fits && let Some(full) = batch.take() {
            self.write_moves(full);
        }
        let moved = if fits { moved } else { Move { at: 0, ..moved } };
        let mut buf = self.bufs.take(pages as usize * 4096);
        let Some(chunk) = self.core.space.chunks.get(g.chunk) else { return };
        let (source, target) = (g.buf.bytes(), buf.bytes_mut());
        let mut to = 0;
        for unit in live.iter().filter_map(|slot| chunk.unit_of(slot)) {
            let from = unit as usize * 512;
            if let (Some(from), Some(into)) = (source.get(from..from + unit_bytes), target.get_mut(to..to + unit_bytes)) {
                into.copy_from_slice(from);
            }
            to += unit_bytes;
        }
        if let Some(rest) = target.get_mut(to..pages as usize * 4096) {
            rest.fill(0);
        }
        let identified = chunk.grain != NODE_GRAIN;
        let left = self.log.streams[stream].left();
        // the header may get a page more, for a note
        let note = u32::from(self.tells_of_small());
        let room = if left >= first_header + pages + note { left } else { self.smallest_segment() } - note;
        let b = batch.get_or_insert_with(|| MoveBatch {
            stream,
            items: Encoder::default(),
            pages: 0,
            room,
            pieces: Vec::new(),
            chunks: Vec::new(),
        });
        b.chunks.push((g.chunk, moved.at, identified, live));
        Item::Move(moved).encode(&mut b.items);
        b.pages += pages;
        b.pieces.push(Piece::new(Rc::new(buf), 0..pages as usize * 4096));
        self.metrics.cleaner_bytes += to as u64;
    }

    /// What the live slots of a chunk hold. Nodes say their address. Nothing when a block does not match its own, or a header
    /// that says what blocks are is damaged: a batch with such a block looks like one that was torn, and replay would end the log before it
    /// and lose what came after.
    fn kept_identities(&self, g: &Gathered, live: &Slots) -> Option<Vec<BlockIdentity>> {
        let chunk = self.core.space.chunks.get(g.chunk)?;
        if chunk.grain == NODE_GRAIN {
            let nodes = live.iter().filter_map(|slot| Some((slot, chunk.unit_of(slot)?))).map(|(slot, unit)| {
                let from = unit as usize * 512;
                let addr = Addr::new(g.chunk, slot, NODE_UNITS, Coding::Raw);
                let crc = Node::checksum_at(g.buf.bytes().get(from..from + NODE_BYTES)?, addr)?;
                let (volume, block) = (VolumeId(0), BlockNo(0));
                Some(BlockIdentity { volume, block, lsn: Lsn(0), crc, units: NODE_GRAIN, coding: Coding::Raw })
            });
            return nodes.collect();
        }
        let all = if g.identities.is_empty() && chunk.has_all() {
            original_identities(g.buf.bytes(), self.config.id, g.chunk)
        } else {
            g.identities.clone()
        };
        let mut kept = Vec::with_capacity(all.len());
        for (slot, identity) in all.into_iter().filter(|(slot, _)| live.get(*slot)) {
            let from = chunk.unit_of(slot)? as usize * UNIT;
            if crc32c(g.buf.bytes().get(from..from + usize::from(identity.units) * UNIT)?) != identity.crc {
                return None;
            }
            kept.push(identity);
        }
        let slots: u32 = kept.iter().map(|identity| u32::from(identity.units) / u32::from(chunk.grain)).sum();
        if slots != live.count() {
            return None;
        }
        if self.planted(Planted::CleanerNewSequence) {
            let now = self.log.next;
            kept.iter_mut().for_each(|identity| identity.lsn = now);
        }
        Some(kept)
    }

    fn write_moves(&mut self, moves: MoveBatch) {
        let noted = BATCH_FIXED + self.log.notes.bytes() + moves.items.len();
        let header_pages = u32::try_from(noted.div_ceil(HEADER_PAGE)).unwrap_or(u32::MAX);
        let Ok(cursor) = self.make_room(moves.stream, Purse::Cleaner, header_pages, moves.pages) else {
            // the chunks stay where they are
            self.cleaner.blocked_at = Some(self.core.space.segments.free_in(Shelf::Data));
            return;
        };
        let mut items = self.log.notes.take();
        items.raw(moves.items.bytes());
        let batch = OpenBatch::new(BatchKind::Exclusive, cursor.page, header_pages, 0, items);
        let header = self.header(moves.stream, cursor.segment, &batch, moves.pages);
        for (chunk, at, identified, live) in moves.chunks {
            let place = Place { segment: cursor.segment, page: cursor.page + header_pages + at };
            let identities = if identified { cursor.page } else { u32::MAX };
            self.core.space.place_chunk(chunk, place, moves.stream as u8, identities, Some(live));
        }
        if !self.cleaner.for_job && self.cleaner.victim.is_none_or(|victim| self.core.space.rows.shelf(victim) != Shelf::Log) {
            self.cleaner.spent += u64::from(header_pages + moves.pages);
        }
        self.submit_batch(moves.stream, &header, batch, moves.pieces);
    }

    /// The stream for a chunk of its class and age; the one with most room left when space is short. What is on special devices stays there.
    fn stream_of(&self, chunk: &Chunk) -> usize {
        if (chunk.grain == NODE_GRAIN || is_special(usize::from(chunk.class))) && self.special_room(KEPT) {
            return KEPT;
        }
        if self.short_of_space() {
            let left = |stream: &usize| self.log.streams[*stream].left();
            return (CLEANED..KEPT).max_by_key(left).unwrap_or(CLEANED);
        }
        let age = self.core.clock.saturating_sub(chunk.birth);
        let life = self.cleaner.lifespan.max(1);
        match usize::from(chunk.class) {
            SHORT => CLEANED,
            _ if age < 4 * life => CLEANED + 1,
            _ if age < 16 * life => CLEANED + 2,
            _ => CLEANED + 3,
        }
    }
}

/// A batch of moves being put together.
struct MoveBatch {
    stream: usize,
    items: Encoder,
    /// Pages of payload so far.
    pages: u32,
    /// Pages that it may grow to: what is left of the segment, or another one.
    room: u32,
    pieces: Vec<Piece>,
    /// Chunk, page of its payload, whether the header has its identities, what of it came along.
    chunks: Vec<(ChunkId, u32, bool, Slots)>,
}
