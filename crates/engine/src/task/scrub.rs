//! Scrub: reads every copy of all live data and compares it with its checksum; a wrong copy is
//! rewritten from a good one.
//!
//! Blocks are checked by the headers of their batches, which identify them, nodes by their own
//! address and checksum, checkpoint objects by the references to them, labels and the newest root
//! by their expected content. Items without a good copy are recorded with their place. Of segments
//! with parity whole stripes are read, including parity (`rows`). Places are first read in strips,
//! which suffices where everything is right (`strips`).
//!
//! INV-SCRUB-1: only segments that cannot be rewritten during the pass are scrubbed. A scrub reads
//! segments that were full when it began; such a segment is written again only after it was free in
//! between, and then it is skipped (`uses`). Repairs are the only writes to it. Chunks that moved
//! meanwhile were read by the cleaner.

mod items;
mod labels;
mod results;
mod rows;
mod strips;

use std::collections::{BTreeMap, VecDeque};

use labels::Labels;
use millpond_block::{Buf, DeviceError, MemberId};
use millpond_format::{ChunkId, MAX_HEADER_PAGES, ObjectRef, ScrubRecord, SegmentId};

use crate::core::StoredDeadlist;
use crate::pool::Pool;
use crate::space::{NODE_GRAIN, PAGE, SegmentState};
use crate::store::{Context, Store};
use crate::{Absent, Busy, CommandError, JobInfo, JobKind, PoolState, Reply, Time};
pub(crate) use labels::ScrubArea;
pub(crate) use results::Scrubbed;
use rows::Stillness;
use strips::Skim;

/// Most pages of neighbouring objects that are read together.
const GATHER_PAGES: u32 = 256;
/// Bytes of all copies in flight, about: while guests are active, and while not. Hard disks need
/// the next read queued before they have turned past it.
const AT_A_TIME: (usize, usize) = (1 << 20, 4 << 20);
/// Bytes whose reads are begun in a turn, about: while guests are active (one read), and while not.
/// Devices in memory complete them in the same turn, so they are compared while they, and the
/// buffers, are in the CPU cache.
const A_TURN: (usize, usize) = (1, 512 << 10);
/// Bytes whose reads are begun per millisecond while guests are active, about.
const A_MILLI: usize = 1 << 20;
/// Attempts of a read.
const TRIES: u8 = 2;
/// Most times that stripes are read again because of writes meanwhile; after that their parity is
/// left to the next scrub.
const MOST_AGAIN: u8 = 100;

/// A part of a segment that is read from all copies and checked as a whole.
#[derive(Clone, Debug)]
struct Place {
    segment: SegmentId,
    uses: u32,
    page: u32,
    pages: u32,
    chunks: Vec<ChunkId>,
    objects: Vec<ObjectRef>,
    /// Number of times that it was read again because of writes meanwhile.
    again: u8,
}

/// A place that is being read.
#[derive(Debug)]
struct Reading {
    place: Place,
    /// The copies (with parity: the columns), and the bytes that were read of them.
    copies: Vec<(usize, Option<Buf>)>,
    left: usize,
    /// Bytes of all copies.
    bytes: usize,
    /// Write stamp at the start of the read; if it has changed at the end, the result is not used
    /// to repair parity.
    still: Option<Stillness>,
    /// Number of the skim that this strip of a place belongs to.
    skim: Option<u64>,
}

/// Identifies a read of a scrub.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScrubRead {
    run: u64,
    reading: u64,
    copy: usize,
    tries: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Waits for operations that began before.
    Settling,
    Reading,
    Labels,
    /// Waits for a checkpoint after this many.
    Checkpoint(u64),
}

/// A running scrub.
#[derive(Debug)]
struct Run {
    number: u64,
    step: Step,
    mark: u64,
    segments: VecDeque<(SegmentId, u32)>,
    objects: BTreeMap<SegmentId, Vec<ObjectRef>>,
    /// Places left in the first segment.
    places: VecDeque<Place>,
    listed: bool,
    readings: BTreeMap<u64, Reading>,
    /// Places to be read again, one by one, while nothing else is read and no repair is in flight.
    again: VecDeque<Place>,
    /// Places that are being read in strips; the last one may have strips left.
    skims: BTreeMap<u64, Skim>,
    next: u64,
    /// Bytes of all copies whose reads were begun, and their number when the current millisecond
    /// began.
    begun: usize,
    milli: (Time, usize),
    labels: Labels,
    done: u64,
    total: u64,
}

/// The scrub task.
#[derive(Debug, Default)]
pub(crate) struct Scrubber {
    wanted: bool,
    /// First segment that an earlier import has not read, and the bytes before it.
    from: (SegmentId, u64),
    running: Option<Run>,
    runs: u64,
    /// Findings of the running or the last scrub.
    pub(crate) found: Option<Scrubbed>,
}

impl Scrubber {
    /// Returns the progress of the scrub.
    pub(crate) fn job(&self) -> Option<JobInfo> {
        let (done, total) = match &self.running {
            Some(run) => (run.done, run.total),
            None if self.wanted => (self.from.1, 0),
            None => return None,
        };
        let errors = self.found.as_ref().map_or(0, |found| found.lost);
        Some(JobInfo { kind: JobKind::Scrub, member: None, done, total, errors, rate: 0 })
    }

    /// Returns the record by which a later import continues, with the findings.
    pub(crate) fn record(&self) -> Option<ScrubRecord> {
        let found = self.found.as_ref()?;
        let (next, done) = self.running.as_ref().map_or(self.from, Run::reached);
        Some(found.record(next, done))
    }

    /// Continues a scrub of an earlier import.
    pub(crate) fn resume(&mut self, record: Option<ScrubRecord>) {
        self.wanted = record.as_ref().is_some_and(|scrub| scrub.ended.is_none());
        self.from = record.as_ref().map_or((SegmentId(0), 0), |scrub| (SegmentId(scrub.next), scrub.done));
        self.found = record.as_ref().map(Scrubbed::of);
    }

    /// Ends the scrub for this import.
    pub(crate) fn suspend(&mut self) {
        (self.wanted, self.running) = (false, None);
    }

    /// Returns whether no checkpoint may begin, because rings of roots are being compared.
    pub(crate) fn holds_roots(&self) -> bool {
        self.running.as_ref().is_some_and(|run| run.step == Step::Labels)
    }

    fn of(&mut self, number: u64) -> Option<&mut Run> {
        self.running.as_mut().filter(|run| run.number == number)
    }
}

impl Run {
    /// Returns the first segment that is not read yet, and the bytes before it.
    fn reached(&self) -> (SegmentId, u64) {
        let waiting = self.segments.front().map(|(id, _)| *id);
        let reading = self.readings.values().map(|reading| reading.place.segment);
        let skimmed = self.skims.values().map(|skim| skim.place.segment);
        (waiting.into_iter().chain(reading).chain(skimmed).min().unwrap_or(SegmentId(u32::MAX)), self.done)
    }

    /// Returns whether another read may begin with at most `most` bytes in flight. One is always
    /// allowed.
    fn has_room(&self, now: Time, most: usize) -> bool {
        let paced = most == AT_A_TIME.1 || self.milli.0 != now || self.begun - self.milli.1 < A_MILLI;
        let reading: usize = self.readings.values().map(|reading| reading.bytes).sum();
        paced && (self.readings.is_empty() || reading < most)
    }

    /// Returns whether everything is read and checked.
    fn is_over(&self) -> bool {
        self.segments.is_empty() && self.readings.is_empty() && self.again.is_empty() && self.skims.is_empty()
    }
}

impl Pool {
    /// Continues a scrub. Returns true when it wants another turn soon.
    pub(crate) fn step_scrub(&mut self) -> bool {
        if self.store.state != PoolState::Online {
            return false;
        }
        let Some(run) = &mut self.scrubber.running else {
            if self.scrubber.wanted {
                self.scrubber.begin_scrub(&mut self.store);
            }
            return self.scrubber.running.is_some();
        };
        match run.step {
            Step::Settling => {
                let ended = self.store.io.has_ended(run.mark);
                if ended {
                    run.step = Step::Reading;
                }
                ended
            }
            Step::Reading => self.scrubber.scrub_on(&mut self.store),
            Step::Labels => self.scrubber.scrub_labels(&mut self.store),
            Step::Checkpoint(before) => self.end_with_checkpoint(before),
        }
    }
}

impl Scrubber {
    /// Leaves the open segments, and lists those that hold data.
    fn begin_scrub(&mut self, store: &mut Store) {
        // a running checkpoint has assigned places that are not written yet
        if store.checkpoint.running() || store.labels.busy() {
            return;
        }
        self.wanted = false;
        store.leave_open_segments();
        let mut objects: BTreeMap<SegmentId, Vec<ObjectRef>> = BTreeMap::new();
        store.all_objects().for_each(|at| objects.entry(at.segment).or_default().push(at));
        let space = &store.core.space;
        let there = |id: SegmentId| space.segments.get(id).filter(|s| s.state == SegmentState::Sealed && !space.rows.is_gap(id));
        let full = |id: SegmentId| there(id).map(|s| (id, s.uses));
        let (from, done) = self.from;
        let segments: VecDeque<_> = space.segments.ids().filter(|id| *id >= from).filter_map(full).collect();
        let total = done + segments.iter().map(|(id, _)| store.scrub_bytes(*id)).sum::<u64>();
        self.runs += 1;
        let (number, mark) = (self.runs, store.io.mark());
        self.running = Some(Run {
            number,
            step: Step::Settling,
            mark,
            segments,
            objects,
            places: VecDeque::new(),
            listed: false,
            readings: BTreeMap::new(),
            again: VecDeque::new(),
            skims: BTreeMap::new(),
            next: 0,
            begun: 0,
            milli: (store.now, 0),
            labels: Labels::default(),
            done,
            total,
        });
    }

    /// Starts as many reads as guests leave room for.
    fn scrub_on(&mut self, store: &mut Store) -> bool {
        let (most, turn) = (store.job_depth(AT_A_TIME), store.job_depth(A_TURN));
        let before = self.running.as_ref().map_or(0, |run| run.begun);
        loop {
            let Some(run) = &mut self.running else { return false };
            if !run.again.is_empty() {
                let still = run.readings.is_empty() && store.repairs.under_way == 0;
                let next = run.again.pop_front_if(|_| still);
                next.into_iter().for_each(|place| self.read_place(store, place));
                return false;
            }
            if run.begun - before >= turn || !run.has_room(store.now, most) || !store.jobs_may_go_on() {
                return false;
            }
            if self.read_strip(store) {
                continue;
            }
            match self.next_place(store) {
                Some(place) => self.begin_place(store, place),
                None => break,
            }
        }
        let Some(run) = &mut self.running else { return false };
        if run.is_over() {
            run.step = Step::Labels;
            return true;
        }
        false
    }

    /// Begins to read a place: in strips where those can show whether it is right, else as a whole.
    fn begin_place(&mut self, store: &mut Store, place: Place) {
        match (store.skim(place), &mut self.running) {
            (Ok(skim), Some(run)) => {
                run.next += 1;
                run.skims.insert(run.next, skim);
            }
            (Err(place), _) => self.read_place(store, place),
            (Ok(_), None) => {}
        }
    }

    /// Reads a place as a whole.
    fn read_place(&mut self, store: &mut Store, place: Place) {
        let copies = store.copies_to_scrub(place.segment);
        self.read_parts(store, place, copies, None);
    }

    fn read_parts(&mut self, store: &mut Store, place: Place, copies: Vec<usize>, skim: Option<u64>) {
        let share = store.core.space.rows.stripe(place.segment).map_or(1, |stripe| stripe.data());
        let (now, still) = (store.now, Some(store.stillness()).filter(|_| store.repairs.under_way == 0));
        let Some(run) = &mut self.running else { return };
        if copies.is_empty() || place.pages == 0 {
            return;
        }
        let left = copies.len();
        let (segment, page, pages) = (place.segment, place.page, place.pages);
        let bytes = pages as usize * PAGE as usize * left / share;
        if run.milli.0 != now {
            run.milli = (now, run.begun);
        }
        (run.next, run.begun) = (run.next + 1, run.begun + bytes);
        let (number, reading) = (run.number, run.next);
        let empty = copies.iter().map(|copy| (*copy, None)).collect();
        run.readings.insert(reading, Reading { place, copies: empty, left, bytes, still, skim });
        store.charge_jobs(bytes as u64);
        for copy in copies {
            store.read_copy(ScrubRead { run: number, reading, copy, tries: 1 }, segment, page, pages);
        }
    }

    /// Handles a read of a copy of a place.
    pub(crate) fn scrub_read(&mut self, store: &mut Store, read: ScrubRead, result: Result<(), DeviceError>, buf: Option<Buf>) {
        let found = self.of(read.run).and_then(|run| run.readings.get_mut(&read.reading));
        let Some(reading) = found else { return buf.into_iter().for_each(|buf| store.bufs.give(buf)) };
        let Place { segment, page, pages, .. } = reading.place;
        if result.is_err() && read.tries < TRIES && reading.skim.is_none() {
            return store.read_copy(ScrubRead { tries: read.tries + 1, ..read }, segment, page, pages);
        }
        if let (Ok(()), Some(place)) = (result, reading.copies.iter_mut().find(|(copy, _)| *copy == read.copy)) {
            place.1 = buf;
        }
        reading.left -= 1;
        if reading.left > 0 {
            return;
        }
        let reading = self.of(read.run).and_then(|run| run.readings.remove(&read.reading));
        let Some(reading) = reading else { return };
        if let Some(skim) = reading.skim {
            return self.strip_read(store, read.run, skim, reading);
        }
        let Reading { place, copies, still, .. } = reading;
        let again = if !store.lies_still(&place) {
            false
        } else if store.core.space.rows.stripe(place.segment).is_some() {
            !self.judge_rows(store, &place, &copies, still)
        } else {
            self.judge(store, &place, &copies);
            false
        };
        store.give_copies(copies);
        if again && place.again < MOST_AGAIN {
            let place = Place { again: place.again + 1, ..place };
            self.of(read.run).into_iter().for_each(|run| run.again.push_back(place.clone()));
        }
    }
}

impl Scrubber {
    /// Begins a scrub.
    pub(crate) fn scrub(&mut self, store: &mut Store) -> Result<Reply, CommandError> {
        if self.job().is_some() {
            return Err(CommandError::Busy(Busy::Scrubbing));
        }
        (self.wanted, self.from) = (true, (SegmentId(0), 0));
        self.found = Some(Scrubbed::begin(store.now));
        Ok(Reply::Done)
    }

    /// Stops a scrub; its findings stay available.
    pub(crate) fn stop_scrub(&mut self, store: &mut Store) -> Result<Reply, CommandError> {
        if self.job().is_none() {
            return Err(CommandError::NotFound(Absent::Scrub));
        }
        self.suspend();
        let now = store.now;
        self.found.iter_mut().for_each(|found| found.end(now, false));
        Ok(Reply::Done)
    }

    /// Returns the next place to read. Segments that were reused meanwhile hold nothing from before
    /// the scrub.
    fn next_place(&mut self, store: &mut Store) -> Option<Place> {
        loop {
            let run = self.running.as_mut()?;
            let (id, uses) = *run.segments.front()?;
            if let Some(place) = run.places.pop_front() {
                return Some(place);
            }
            if run.listed {
                run.segments.pop_front();
                run.listed = false;
                let bytes = store.scrub_bytes(id);
                self.running.iter_mut().for_each(|run| run.done += bytes);
                continue;
            }
            run.listed = true;
            let objects = run.objects.remove(&id).unwrap_or_default();
            let held = store.core.space.segments.get(id).is_some_and(|s| s.uses == uses && s.state == SegmentState::Sealed);
            let places = if held { store.places_of(id, uses, objects) } else { VecDeque::new() };
            self.running.iter_mut().for_each(|run| run.places = places.clone());
        }
    }

    /// Counts an error of the device that holds a page of a copy.
    fn count_scrub_error(&mut self, store: &mut Store, segment: SegmentId, page: u32, copy: usize) {
        let device = store.core.space.rows.map(segment, page, 1, copy).first().map(|(device, _)| *device);
        self.count_error(store, device);
    }

    fn count_error(&mut self, store: &mut Store, device: Option<MemberId>) {
        if let Some(errors) = device.and_then(|device| store.io.errors.get_mut(device.index())) {
            *errors += 1;
        }
        self.found.iter_mut().for_each(|found| found.errors += 1);
    }
}

impl Store {
    /// Returns every object of the last checkpoint.
    pub(crate) fn all_objects(&self) -> impl Iterator<Item = ObjectRef> + '_ {
        let catalog = &self.core.catalog;
        let lists = catalog.deadlists().filter_map(StoredDeadlist::stored);
        // several lists may refer to one piece
        let pieces = catalog.deadlists().flat_map(|list| list.list().pieces()).filter_map(|piece| piece.stored());
        let pieces: BTreeMap<(SegmentId, u32), ObjectRef> = pieces.map(|at| ((at.segment, at.offset), at)).collect();
        let tables = self.core.space.chunks.stored().chain(catalog.snapshots.stored()).map(|(_, at)| at);
        let whole = tables.chain(lists).chain(pieces.into_values()).chain([self.checkpoint_at]);
        let parts = |at: ObjectRef| self.checkpoint.parts.get(&(at.segment, at.offset)).into_iter().flatten().copied().chain([at]);
        whole.filter(|at| at.bytes() > 0).flat_map(parts)
    }

    /// Returns the bytes of all copies of a segment, including parity.
    fn scrub_bytes(&self, id: SegmentId) -> u64 {
        self.core.space.rows.extents(id).map(|(_, range)| range.length).sum()
    }

    /// Returns the places to read in a segment. Places share no page, so a repair of one does not
    /// overwrite another.
    fn places_of(&self, segment: SegmentId, uses: u32, mut objects: Vec<ObjectRef>) -> VecDeque<Place> {
        let place = |page, pages| Place { segment, uses, page, pages, chunks: Vec::new(), objects: Vec::new(), again: 0 };
        let space = &self.core.space;
        let mut chunks = space.segments.get(segment).map(|s| s.chunks.clone()).unwrap_or_default();
        chunks.sort_unstable();
        chunks.dedup();
        let mut places: BTreeMap<u32, Place> = BTreeMap::new();
        for id in chunks {
            let Some(chunk) = space.chunks.get(id) else { continue };
            let Some(at) = chunk.place.filter(|at| at.segment == segment) else { continue };
            let moved = chunk.grain != NODE_GRAIN && chunk.identities != u32::MAX;
            // chunks that were moved together share a header that identifies their blocks
            let first = if moved { chunk.identities } else { at.page };
            let end = at.page + chunk.extent_units().div_ceil(8);
            let head = (first + MAX_HEADER_PAGES as u32).min(space.rows.pages(segment));
            // with parity, stripes are not shared with another batch
            let end = if moved && space.rows.stripe(segment).is_none() { end.max(head) } else { end };
            let known = places.entry(first).or_insert_with(|| place(first, 0));
            known.pages = known.pages.max(end - first);
            known.chunks.push(id);
        }
        objects.sort_unstable_by_key(|at| at.offset);
        objects.dedup();
        let mut found: VecDeque<Place> = places.into_values().collect();
        let mut open: Option<Place> = None;
        for at in objects {
            let start = u64::from(at.offset) * ObjectRef::STEP as u64;
            let (page, end) = ((start / 4096) as u32, (start + u64::from(at.bytes())).div_ceil(4096) as u32);
            if let Some(full) = open.take_if(|p| page >= p.page + p.pages && end - p.page > GATHER_PAGES) {
                found.push_back(full);
            }
            let known = open.get_or_insert_with(|| place(page, 0));
            known.pages = known.pages.max(end - known.page);
            known.objects.push(at);
        }
        found.extend(open);
        self.whole_rows(found)
    }

    /// Returns the copies of a segment (with parity: the columns) that should be right.
    fn copies_to_scrub(&self, segment: SegmentId) -> Vec<usize> {
        let rows = &self.core.space.rows;
        match rows.copies(segment).len() {
            0 => rows.stripe(segment).map_or(vec![0], |stripe| self.io.health.whole_columns(&stripe)),
            _ => self.io.health.whole_copies(rows, segment).to_vec(),
        }
    }

    fn read_copy(&mut self, read: ScrubRead, segment: SegmentId, page: u32, pages: u32) {
        self.pin(segment);
        let (context, rows) = (Context::Scrub(read), &self.core.space.rows);
        match rows.stripe(segment).and_then(|stripe| stripe.column(read.copy, page, pages)) {
            Some((device, range)) => self.io.read_pinned(context, segment, device, range, &mut self.bufs),
            None => self.io.read_copy(context, rows, segment, page, pages, read.copy, &mut self.bufs),
        }
    }

    /// Returns whether a place has not been freed since the scrub began.
    fn lies_still(&self, place: &Place) -> bool {
        self.core.space.segments.get(place.segment).is_some_and(|s| s.uses == place.uses && s.state == SegmentState::Sealed)
    }
}
