//! Scrub: every copy of everything that lives is read and compared with its checksum; a wrong copy is written again from a good one.
//!
//! Blocks are checked by the headers of their batches, which say who they are, nodes by their own address and checksum, checkpoint objects by
//! the references to them, labels and the newest root by what they should be. What has no good copy is remembered with its place.
//! Of segments with parity whole rows are read, parity too (`rows`). What is sound is read and found so in strips (`strips`).
//!
//! INV-SCRUB-1: nothing but repairs writes to what is read. A scrub reads segments that were full when it began; such a segment is written again
//! only after it was free in between, and then it does not count (`uses`). Chunks that moved meanwhile were read by the cleaner.

mod items;
mod labels;
mod results;
mod rows;
mod strips;

use std::collections::{BTreeMap, VecDeque};

use millpond_block::Buf;
use millpond_device::{DeviceError, DeviceIndex};
use millpond_format::{ChunkId, MAX_HEADER_PAGES, ObjectRef, ScrubRecord, SegmentId};

use crate::core::StoredDeadlist;
use crate::pool::{Context, Pool};
use crate::space::{NODE_GRAIN, PAGE, SegmentState};
use crate::{CommandError, JobInfo, JobKind, PoolState, Reply, Time};
use labels::Labels;
pub(crate) use labels::ScrubArea;
pub(crate) use results::Scrubbed;
use rows::Stillness;
use strips::Skim;

/// Bytes of objects and of one chunk's neighbours that are read together, about.
const GATHER_PAGES: u32 = 256;
/// Bytes of all copies read at a time while guests are active, and while not, about: hard disks want to be asked for what follows before they
/// have turned past it.
const AT_A_TIME: (usize, usize) = (1 << 20, 4 << 20);
/// Bytes whose reads are begun in a turn, about. Devices in memory have them ready in the same turn: they are compared while they lie in the
/// processor's cache, in buffers that do, too. While guests are active a turn begins one read.
const A_TURN: (usize, usize) = (1, 512 << 10);
/// Bytes whose reads are begun in a millisecond while guests are active, about.
const A_MILLI: usize = 1 << 20;
/// Tries of a read.
const TRIES: u8 = 2;
/// Times that rows are read again because others wrote to them meanwhile; then their parity is left to the next scrub.
const MOST_AGAIN: u8 = 100;

/// A part of a segment that is read from all copies and judged as a whole.
#[derive(Clone, Debug)]
struct Place {
    segment: SegmentId,
    uses: u32,
    page: u32,
    pages: u32,
    chunks: Vec<ChunkId>,
    objects: Vec<ObjectRef>,
    /// How often it was read again because others wrote to it meanwhile.
    again: u8,
}

/// A place on its way.
#[derive(Debug)]
struct Reading {
    place: Place,
    /// Which copies, with parity: which columns, and what was read of them.
    copies: Vec<(usize, Option<Buf>)>,
    left: usize,
    /// Bytes of all copies.
    bytes: usize,
    /// What was so when it began.
    still: Option<Stillness>,
    /// It is a strip of a place.
    skim: Option<u64>,
}

/// Which read of a scrub ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScrubRead {
    run: u64,
    reading: u64,
    copy: usize,
    tries: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Waits for what began before.
    Settling,
    Reading,
    Labels,
    /// Waits for a checkpoint after so many.
    Checkpoint(u64),
}

/// A scrub on its way.
#[derive(Debug)]
struct Run {
    number: u64,
    step: Step,
    mark: u64,
    segments: VecDeque<(SegmentId, u32)>,
    objects: BTreeMap<SegmentId, Vec<ObjectRef>>,
    /// What is left of the first segment.
    places: VecDeque<Place>,
    listed: bool,
    readings: BTreeMap<u64, Reading>,
    /// Places that are read again, one by one, while nothing else is read and no repair is written.
    again: VecDeque<Place>,
    /// Places on their way in strips: of the last one more is to be read.
    skims: BTreeMap<u64, Skim>,
    next: u64,
    /// Bytes of all copies whose reads were begun, and how many had been when this millisecond began.
    begun: usize,
    milli: (Time, usize),
    labels: Labels,
    done: u64,
    total: u64,
}

/// The task.
#[derive(Debug, Default)]
pub(crate) struct Scrubber {
    wanted: bool,
    /// Segments before this one are read, by the import before, and how many bytes that was.
    from: (SegmentId, u64),
    running: Option<Run>,
    runs: u64,
    /// What the last one, or the running one, has found.
    pub(crate) found: Option<Scrubbed>,
}

impl Scrubber {
    /// What is done and to be done.
    pub(crate) fn job(&self) -> Option<JobInfo> {
        let (done, total) = match &self.running {
            Some(run) => (run.done, run.total),
            None if self.wanted => (self.from.1, 0),
            None => return None,
        };
        let errors = self.found.as_ref().map_or(0, |found| found.lost);
        Some(JobInfo { kind: JobKind::Scrub, member: None, done, total, errors, rate: 0 })
    }

    /// What an import needs to go on, and to know what was found.
    pub(crate) fn record(&self) -> Option<ScrubRecord> {
        let found = self.found.as_ref()?;
        let (next, done) = self.running.as_ref().map_or(self.from, Run::reached);
        Some(found.record(next, done))
    }

    /// Goes on with what an import before this one began.
    pub(crate) fn resume(&mut self, record: Option<ScrubRecord>) {
        self.wanted = record.as_ref().is_some_and(|scrub| scrub.ended.is_none());
        self.from = record.as_ref().map_or((SegmentId(0), 0), |scrub| (SegmentId(scrub.next), scrub.done));
        self.found = record.as_ref().map(Scrubbed::of);
    }

    /// Ends it for this import.
    pub(crate) fn suspend(&mut self) {
        (self.wanted, self.running) = (false, None);
    }

    /// No checkpoint may begin now: rings are being compared.
    pub(crate) fn holds_roots(&self) -> bool {
        self.running.as_ref().is_some_and(|run| run.step == Step::Labels)
    }

    fn of(&mut self, number: u64) -> Option<&mut Run> {
        self.running.as_mut().filter(|run| run.number == number)
    }
}

impl Run {
    /// The first segment that is not read yet, and the bytes of those before.
    fn reached(&self) -> (SegmentId, u64) {
        let waiting = self.segments.front().map(|(id, _)| *id);
        let reading = self.readings.values().map(|reading| reading.place.segment);
        let skimmed = self.skims.values().map(|skim| skim.place.segment);
        (waiting.into_iter().chain(reading).chain(skimmed).min().unwrap_or(SegmentId(u32::MAX)), self.done)
    }

    /// May it begin another read, when so many bytes may be read at a time? One is always under way.
    fn has_room(&self, now: Time, most: usize) -> bool {
        let paced = most == AT_A_TIME.1 || self.milli.0 != now || self.begun - self.milli.1 < A_MILLI;
        let reading: usize = self.readings.values().map(|reading| reading.bytes).sum();
        paced && (self.readings.is_empty() || reading < most)
    }

    /// Is everything read, and looked at?
    fn is_over(&self) -> bool {
        self.segments.is_empty() && self.readings.is_empty() && self.again.is_empty() && self.skims.is_empty()
    }
}

impl Pool {
    /// Begins to read everything.
    pub(crate) fn scrub(&mut self) -> Result<Reply, CommandError> {
        if self.scrubber.job().is_some() {
            return Err(CommandError::Busy("a scrub is running; see 'pool jobs', or stop it with 'pool scrub --stop'".into()));
        }
        (self.scrubber.wanted, self.scrubber.from) = (true, (SegmentId(0), 0));
        self.scrubber.found = Some(Scrubbed::begin(self.now));
        Ok(Reply::Done)
    }

    /// Ends a scrub where it is. What it has found stays known.
    pub(crate) fn stop_scrub(&mut self) -> Result<Reply, CommandError> {
        if self.scrubber.job().is_none() {
            return Err(CommandError::NotFound("a scrub".into()));
        }
        self.scrubber.suspend();
        let now = self.now;
        self.scrubber.found.iter_mut().for_each(|found| found.end(now, false));
        Ok(Reply::Done)
    }

    /// Goes on with a scrub. True when it wants another turn soon.
    pub(crate) fn step_scrub(&mut self) -> bool {
        if self.state != PoolState::Online {
            return false;
        }
        let Some(run) = &mut self.scrubber.running else {
            if self.scrubber.wanted {
                self.begin_scrub();
            }
            return self.scrubber.running.is_some();
        };
        match run.step {
            Step::Settling => {
                let ended = self.io.has_ended(run.mark);
                if ended {
                    run.step = Step::Reading;
                }
                ended
            }
            Step::Reading => self.scrub_on(),
            Step::Labels => self.scrub_labels(),
            Step::Checkpoint(before) => self.end_with_checkpoint(before),
        }
    }

    /// Leaves the segments that are being filled, and lists those that hold something.
    fn begin_scrub(&mut self) {
        // a running checkpoint has places that are not written yet
        if self.checkpointer.running() || self.relabeler.busy() {
            return;
        }
        self.scrubber.wanted = false;
        self.leave_open_segments();
        let mut objects: BTreeMap<SegmentId, Vec<ObjectRef>> = BTreeMap::new();
        self.all_objects().for_each(|at| objects.entry(at.segment).or_default().push(at));
        let space = &self.core.space;
        let there = |id: SegmentId| space.segments.get(id).filter(|s| s.state == SegmentState::Sealed && !space.rows.is_gap(id));
        let full = |id: SegmentId| there(id).map(|s| (id, s.uses));
        let (from, done) = self.scrubber.from;
        let segments: VecDeque<_> = space.segments.ids().filter(|id| *id >= from).filter_map(full).collect();
        let total = done + segments.iter().map(|(id, _)| self.scrub_bytes(*id)).sum::<u64>();
        self.scrubber.runs += 1;
        let (number, mark) = (self.scrubber.runs, self.io.mark());
        self.scrubber.running = Some(Run {
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
            milli: (self.now, 0),
            labels: Labels::default(),
            done,
            total,
        });
    }

    /// Bytes of all copies of a segment, and of its parity.
    fn scrub_bytes(&self, id: SegmentId) -> u64 {
        self.core.space.rows.extents(id).map(|(_, range)| range.length).sum()
    }

    /// Every object that the last checkpoint consists of.
    pub(crate) fn all_objects(&self) -> impl Iterator<Item = ObjectRef> + '_ {
        let catalog = &self.core.catalog;
        let lists = catalog.deadlists().filter_map(StoredDeadlist::stored);
        // several lists may refer to one piece
        let pieces = catalog.deadlists().flat_map(|list| list.list().pieces()).filter_map(|piece| piece.stored());
        let pieces: BTreeMap<(SegmentId, u32), ObjectRef> = pieces.map(|at| ((at.segment, at.offset), at)).collect();
        let tables = self.core.space.chunks.stored().chain(catalog.snapshots.stored()).map(|(_, at)| at);
        let whole = tables.chain(lists).chain(pieces.into_values()).chain([self.checkpoint_at]);
        let parts = |at: ObjectRef| self.checkpointer.parts.get(&(at.segment, at.offset)).into_iter().flatten().copied().chain([at]);
        whole.filter(|at| at.bytes() > 0).flat_map(parts)
    }

    /// Starts reads, as many as guests leave room for.
    fn scrub_on(&mut self) -> bool {
        let (most, turn) = (self.job_depth(AT_A_TIME), self.job_depth(A_TURN));
        let before = self.scrubber.running.as_ref().map_or(0, |run| run.begun);
        loop {
            let Some(run) = &mut self.scrubber.running else { return false };
            if !run.again.is_empty() {
                let still = run.readings.is_empty() && self.repairs.under_way == 0;
                let next = run.again.pop_front_if(|_| still);
                next.into_iter().for_each(|place| self.read_place(place));
                return false;
            }
            if run.begun - before >= turn || !run.has_room(self.now, most) || !self.jobs_may_go_on() {
                return false;
            }
            if self.read_strip() {
                continue;
            }
            match self.next_place() {
                Some(place) => self.begin_place(place),
                None => break,
            }
        }
        let Some(run) = &mut self.scrubber.running else { return false };
        if run.is_over() {
            run.step = Step::Labels;
            return true;
        }
        false
    }

    /// The next place to read. Segments that were reused meanwhile hold nothing that was there when the scrub began.
    fn next_place(&mut self) -> Option<Place> {
        loop {
            let run = self.scrubber.running.as_mut()?;
            let (id, uses) = *run.segments.front()?;
            if let Some(place) = run.places.pop_front() {
                return Some(place);
            }
            if run.listed {
                run.segments.pop_front();
                run.listed = false;
                let bytes = self.scrub_bytes(id);
                self.scrubber.running.iter_mut().for_each(|run| run.done += bytes);
                continue;
            }
            run.listed = true;
            let objects = run.objects.remove(&id).unwrap_or_default();
            let held = self.core.space.segments.get(id).is_some_and(|s| s.uses == uses && s.state == SegmentState::Sealed);
            let places = if held { self.places_of(id, uses, objects) } else { VecDeque::new() };
            self.scrubber.running.iter_mut().for_each(|run| run.places = places.clone());
        }
    }

    /// What there is to read in a segment. Places share no page: what is written to one takes nothing back from another.
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
            // moved ones have a header in common that says what they hold
            let first = if moved { chunk.identities } else { at.page };
            let end = at.page + chunk.extent_units().div_ceil(8);
            let head = (first + MAX_HEADER_PAGES as u32).min(space.rows.pages(segment));
            // rows share nothing with those of another batch
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

    /// The copies of a segment, with parity its columns, that are to be right.
    fn copies_to_scrub(&self, segment: SegmentId) -> Vec<usize> {
        let rows = &self.core.space.rows;
        match rows.copies(segment).len() {
            0 => rows.stripe(segment).map_or(vec![0], |stripe| self.io.health.whole_columns(&stripe)),
            _ => self.io.health.whole_copies(rows, segment).to_vec(),
        }
    }

    /// Begins to read a place in strips, where that can tell whether it is right.
    fn begin_place(&mut self, place: Place) {
        match (self.skim(place), &mut self.scrubber.running) {
            (Ok(skim), Some(run)) => {
                run.next += 1;
                run.skims.insert(run.next, skim);
            }
            (Err(place), _) => self.read_place(place),
            (Ok(_), None) => {}
        }
    }

    /// Reads a place as a whole.
    fn read_place(&mut self, place: Place) {
        let copies = self.copies_to_scrub(place.segment);
        self.read_parts(place, copies, None);
    }

    fn read_parts(&mut self, place: Place, copies: Vec<usize>, skim: Option<u64>) {
        let share = self.core.space.rows.stripe(place.segment).map_or(1, |stripe| stripe.data());
        let (now, still) = (self.now, Some(self.stillness()).filter(|_| self.repairs.under_way == 0));
        let Some(run) = &mut self.scrubber.running else { return };
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
        self.charge_jobs(bytes as u64);
        for copy in copies {
            self.read_copy(ScrubRead { run: number, reading, copy, tries: 1 }, segment, page, pages);
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

    /// A copy of a place was read.
    pub(crate) fn scrub_read(&mut self, read: ScrubRead, result: Result<(), DeviceError>, buf: Option<Buf>) {
        let found = self.scrubber.of(read.run).and_then(|run| run.readings.get_mut(&read.reading));
        let Some(reading) = found else { return buf.into_iter().for_each(|buf| self.bufs.give(buf)) };
        let Place { segment, page, pages, .. } = reading.place;
        if result.is_err() && read.tries < TRIES && reading.skim.is_none() {
            return self.read_copy(ScrubRead { tries: read.tries + 1, ..read }, segment, page, pages);
        }
        if let (Ok(()), Some(place)) = (result, reading.copies.iter_mut().find(|(copy, _)| *copy == read.copy)) {
            place.1 = buf;
        }
        reading.left -= 1;
        if reading.left > 0 {
            return;
        }
        let reading = self.scrubber.of(read.run).and_then(|run| run.readings.remove(&read.reading));
        let Some(reading) = reading else { return };
        if let Some(skim) = reading.skim {
            return self.strip_read(read.run, skim, reading);
        }
        let Reading { place, copies, still, .. } = reading;
        let again = if !self.lies_still(&place) {
            false
        } else if self.core.space.rows.stripe(place.segment).is_some() {
            !self.judge_rows(&place, &copies, still)
        } else {
            self.judge(&place, &copies);
            false
        };
        self.give_copies(copies);
        if again && place.again < MOST_AGAIN {
            let place = Place { again: place.again + 1, ..place };
            self.scrubber.of(read.run).into_iter().for_each(|run| run.again.push_back(place.clone()));
        }
    }

    /// Is a place still what it was when the scrub began?
    fn lies_still(&self, place: &Place) -> bool {
        self.core.space.segments.get(place.segment).is_some_and(|s| s.uses == place.uses && s.state == SegmentState::Sealed)
    }

    /// An error of what a scrub read belongs to the device at a page of a copy.
    fn count_scrub_error(&mut self, segment: SegmentId, page: u32, copy: usize) {
        let device = self.core.space.rows.map(segment, page, 1, copy).first().map(|(device, _)| *device);
        self.count_error(device);
    }

    fn count_error(&mut self, device: Option<DeviceIndex>) {
        if let Some(errors) = device.and_then(|device| self.io.errors.get_mut(usize::from(device.0))) {
            *errors += 1;
        }
        self.scrubber.found.iter_mut().for_each(|found| found.errors += 1);
    }
}
