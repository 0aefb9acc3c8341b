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
mod keys;
mod labels;
mod reads;
mod results;
mod rows;
mod strips;

use std::collections::{BTreeMap, VecDeque};

use millpond_block::{Buf, DeviceError};
use millpond_format::{ObjectRef, ScrubRecord, SegmentId};

use self::labels::Labels;
use self::reads::read_copy;
use super::evacuate::Rejoiner;
use crate::space::SegmentState;
use crate::store::{Place, ScrubRead, Store, StripScan, WriteStamp};
use crate::{Absent, Busy, CommandError, JobInfo, JobKind, PoolState, Reply, Time};

pub(crate) use results::Scrubbed;

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
/// In place of the first segment that is not read yet: all are read.
const ALL_READ: SegmentId = SegmentId(u32::MAX);

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
    still: Option<WriteStamp>,
    /// Number of the skim that this strip of a place belongs to.
    skim: Option<u64>,
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
    skims: BTreeMap<u64, StripScan>,
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
}

impl Run {
    /// Returns the first segment that is not read yet, and the bytes before it.
    fn reached(&self) -> (SegmentId, u64) {
        let waiting = self.segments.front().map(|(id, _)| *id);
        let reading = self.readings.values().map(|reading| reading.place.segment);
        let skimmed = self.skims.values().map(|skim| skim.place.segment);
        (waiting.into_iter().chain(reading).chain(skimmed).min().unwrap_or(ALL_READ), self.done)
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

impl Scrubber {
    /// Continues a scrub. Returns true when it wants another turn soon.
    pub(crate) fn step_scrub(&mut self, store: &mut Store, rejoiner: &mut Rejoiner) -> bool {
        if store.state != PoolState::Online {
            return false;
        }
        let Some(run) = &mut self.running else {
            if self.wanted {
                self.begin_scrub(store);
            }
            return self.running.is_some();
        };
        match run.step {
            Step::Settling => {
                let ended = store.io.has_ended(run.mark);
                if ended {
                    run.step = Step::Reading;
                }
                ended
            }
            Step::Reading => self.scrub_on(store),
            Step::Labels => self.scrub_labels(store),
            Step::Checkpoint(before) => self.end_with_checkpoint(store, rejoiner, before),
        }
    }

    /// Ends the scrub when everything that it has written is durable.
    fn end_with_checkpoint(&mut self, store: &mut Store, rejoiner: &mut Rejoiner, before: u64) -> bool {
        if store.metrics.checkpoints == before || store.labels.busy() {
            return false;
        }
        self.suspend();
        let now = store.now;
        self.found.iter_mut().for_each(|found| found.end(now, true));
        // the scrub may have repaired some of them
        rejoiner.forget_unreadable();
        store.pace.record_soon();
        true
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
        let on_devices = |id: SegmentId| !(space.layout.is_gap(id) || space.layout.is_in_bucket(id));
        let there = |id: SegmentId| space.segments.get(id).filter(|s| s.state == SegmentState::Sealed && on_devices(id));
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

    /// Handles a read of a copy of a place.
    pub(crate) fn scrub_read(&mut self, store: &mut Store, read: ScrubRead, result: Result<(), DeviceError>, buf: Option<Buf>) {
        let found = self.of(read.run).and_then(|run| run.readings.get_mut(&read.reading));
        let Some(reading) = found else { return buf.into_iter().for_each(|buf| store.bufs.give(buf)) };
        let Place { segment, page, pages, .. } = reading.place;
        if result.is_err() && read.tries < TRIES && reading.skim.is_none() {
            return read_copy(store, ScrubRead { tries: read.tries + 1, ..read }, segment, page, pages);
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
        } else if store.core.space.layout.stripe(place.segment).is_some() {
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
}
