//! Wiping: makes data that nothing refers to any more unreadable on the devices.
//!
//! INV-WIPE-1: when a wipe has ended, no segment holds a block that was unreferenced when its round
//! began: destroyed, overwritten or discarded blocks, and the old copies of blocks that the cleaner
//! moved. Blocks that are still referenced stay.
//!
//! A round begins when all that was destroyed before it is freed. Then every segment in which
//! something has died since it was last wiped is emptied (the cleaner moves live chunks,
//! checkpoints rewrite their objects, streams continue elsewhere), waits as long as a checkpoint
//! needs it (I1), and is overwritten or discarded before it counts as free. Blocks moved meanwhile
//! were live when the round began. At the end a checkpoint makes all of it durable. The list of
//! clean segments is only in memory: after an import none is clean, and a round starts over.

use std::collections::{BTreeSet, VecDeque};

use millpond_block::{BufSlice, ByteRange, DeviceError, MemberId};
use millpond_format::{Class, MemberState, SegmentId};

use super::cleaner::Cleaner;
use super::resilver::Resilver;
use crate::log::META_CLASS;
use crate::space::{AllocClass, PAGE, Segment, SegmentState};
use crate::store::{Context, JobIo, Store, ZEROES};
use crate::{Absent, Busy, CommandError, JobInfo, JobKind, PoolState, Reply, Time, Wipe, WipePlan};

/// Bytes overwritten at a time on each device, and the number of such writes in flight: while
/// guests are active, and otherwise.
const STEP: u64 = 1 << 20;
const WRITES: (usize, usize) = (1, 4);
/// Most segments that are emptied together: each such batch takes some checkpoints.
const MOST_TOGETHER: usize = 256;
/// Most segments of a class that are emptied together, as 1/N.
const PART_TOGETHER: usize = 8;
/// Free segments left unused, beyond those that the cleaner aims for.
const SPARE: usize = 2;
/// Milliseconds between checks of the remaining work, between requested checkpoints, and before a
/// device that refused is asked again.
const LOOK_MILLIS: u64 = 50;
const CHECKPOINT_MILLIS: u64 = 100;
const REFUSED_MILLIS: u64 = 1_000;
/// Most times that the pause between requested checkpoints doubles while they bring nothing.
const MOST_DOUBLED: u32 = 7;

/// The remaining work of a round.
#[derive(Debug)]
struct Round {
    /// Segments that are not clean yet, including the batch.
    todo: BTreeSet<SegmentId>,
    /// Segments of the current batch, which are being emptied.
    batch: BTreeSet<SegmentId>,
    /// Segments of the batch for the cleaner to empty, as of the last check.
    victims: VecDeque<SegmentId>,
    /// Extents of devices that belong to no segment any more.
    loose: Vec<(MemberId, ByteRange)>,
    /// Set once everything is overwritten: the number of checkpoints at that time.
    over: Option<u64>,
}

/// An overwrite or discard in progress.
#[derive(Debug)]
struct Erasure {
    /// The segment that is erased; `None` for an extent in no segment.
    segment: Option<SegmentId>,
    /// Ranges of devices, all of one length.
    extents: Vec<(MemberId, ByteRange)>,
    /// Overwrite instead of discard.
    zero: bool,
    next: u64,
    in_flight: usize,
    failed: bool,
}

impl Erasure {
    fn length(&self) -> u64 {
        self.extents.iter().map(|(_, range)| range.length).max().unwrap_or(0)
    }
}

/// A running wipe.
#[derive(Debug)]
struct Run {
    how: Wipe,
    /// `None` while destroyed versions are being freed.
    round: Option<Round>,
    done: u64,
    total: u64,
    errors: u64,
    looked: Time,
    /// Time of the last requested checkpoint, and how many were requested since something was last
    /// wiped.
    forced: Time,
    without_gain: u32,
}

/// The wipe task.
#[derive(Debug, Default)]
pub(crate) struct Wiper {
    running: Option<Run>,
    erasure: Option<Erasure>,
}

impl Wiper {
    /// Returns the way of the wipe, if one runs or continues after an import.
    pub(crate) fn how(&self) -> Option<Wipe> {
        self.running.as_ref().map(|run| run.how)
    }

    /// Returns whether the cleaner has segments to empty.
    pub(crate) fn has_more(&self) -> bool {
        self.running.as_ref().and_then(|run| run.round.as_ref()).is_some_and(|round| !round.victims.is_empty())
    }

    /// Returns whether a wipe runs; segments are then not retained for a rewind by time alone.
    pub(crate) fn is_on(&self) -> bool {
        self.running.is_some()
    }

    /// Returns whether it holds segments that could be free.
    pub(crate) fn holds_space(&self) -> bool {
        self.erasure.is_some() || self.running.as_ref().and_then(|run| run.round.as_ref()).is_some_and(|round| !round.batch.is_empty())
    }

    /// Begins a wipe; a running one begins anew, in the more thorough way of both.
    pub(crate) fn begin(&mut self, how: Wipe) {
        let how = self.how().map_or(how, |before| before.max(how));
        self.running = Some(Run { how, round: None, done: 0, total: 0, errors: 0, looked: Time(0), forced: Time(0), without_gain: 0 });
    }
}

impl Wiper {
    /// Begins a wipe, or returns what it would move and overwrite.
    pub(crate) fn wipe(&mut self, store: &mut Store, resilver: &Resilver, how: Wipe, dry_run: bool) -> Result<Reply, CommandError> {
        if store.config.shape.groups.iter().any(|group| group.class == Class::Cache) {
            return Err(CommandError::Busy(Busy::HasCache));
        }
        if !all_are_there(store, resilver) {
            return Err(CommandError::Busy(Busy::DeviceMissing));
        }
        let space = &store.core.space;
        let mut plan = WipePlan::default();
        for (id, s) in space.segments.ids().filter_map(|id| space.segments.get(id).filter(|s| s.is_unclean()).map(|s| (id, s))) {
            plan.moved += if holds(s.state) { u64::from(s.live) * 512 } else { 0 };
            plan.erased += u64::from(space.layout.pages(id)) * PAGE;
        }
        if !dry_run {
            self.leave_batch(store);
            self.begin(how);
        }
        Ok(Reply::Wipe(plan))
    }

    /// Continues a wipe. Returns true when it wants another turn soon.
    pub(crate) fn step_wipe(&mut self, store: &mut Store, resilver: &Resilver, cleaner: &mut Cleaner, destroys: bool) -> bool {
        if store.state != PoolState::Online || !self.is_on() {
            self.leave_batch(store);
            return false;
        }
        if store.evacuation.is_some() || store.labels.busy() || !all_are_there(store, resilver) {
            // the shape is about to change: the next round uses the new one
            self.leave_batch(store);
            if let Some(run) = &mut self.running {
                run.round = None;
            }
            return false;
        }
        if store.is_below_target() {
            // space that guests wait for is not held
            self.leave_batch(store);
            return false;
        }
        if self.erasure.is_some() {
            self.erase_on(store);
            return false;
        }
        let catalog = &store.core.catalog;
        let removed = !catalog.removed.is_empty() || destroys;
        let freeing = catalog.has_frees() || store.core.is_fading() || !catalog.walks.is_empty() || removed;
        let Some(run) = &mut self.running else { return false };
        if run.round.is_none() && freeing {
            return false;
        }
        if run.round.is_none() {
            self.begin_round(store);
        }
        store.hop_over_leaving();
        if let Some(erasure) = self.next_erasure(store) {
            self.erasure = Some(erasure);
            self.erase_on(store);
            return false;
        }
        if self.has_more() {
            return has_room_to_wipe(store, AllocClass::Data) && cleaner.cleans_for_jobs(store);
        }
        let (now, checkpoints) = (store.now, store.metrics.checkpoints);
        let Some(run) = self.running.as_mut() else { return false };
        // gathered chunks are still in their old places: they would be moved twice
        if now.0 < run.looked.0 + LOOK_MILLIS || !cleaner.idle() {
            return false;
        }
        run.looked = now;
        let Some(round) = run.round.as_mut() else { return false };
        match round.over {
            Some(before) if checkpoints > before + 1 => self.end_wipe(store),
            Some(_) => self.force_checkpoint(store),
            None if round.todo.is_empty() && round.loose.is_empty() => round.over = Some(checkpoints),
            None if round.batch.is_empty() => self.choose_batch(store, cleaner),
            None => self.look_at_batch(store, cleaner),
        }
        true
    }

    /// Chooses the next segments to empty: of each class as many as there is room for, those that
    /// are empty or nearly so first.
    fn choose_batch(&mut self, store: &mut Store, cleaner: &Cleaner) {
        let segments = &store.core.space.segments;
        let Some(round) = self.running.as_ref().and_then(|run| run.round.as_ref()) else { return };
        let data_room = room_to_wipe(store, AllocClass::Data);
        let mut chosen = Vec::new();
        for alloc_class in AllocClass::LOCAL {
            let most = room_to_wipe(store, alloc_class).min(segments.count_in(alloc_class) / PART_TOGETHER).clamp(1, MOST_TOGETHER);
            // segments that are being discarded or prepared are chosen later
            let busy = |s: &Segment| matches!(s.state, SegmentState::Discarding | SegmentState::Preparing);
            let ready = |s: &&Segment| s.alloc_class == alloc_class && !busy(s);
            let of_alloc_class = round.todo.iter().filter_map(|id| segments.get(*id).filter(ready).map(|s| (s, *id)));
            let mut found: Vec<(u32, SegmentId)> = of_alloc_class.map(|(s, id)| (s.live + s.objects, id)).collect();
            found.sort_unstable();
            if has_room_to_wipe(store, alloc_class) && data_room > 0 {
                chosen.extend(found.iter().take(most).map(|(_, id)| *id));
            }
        }
        if chosen.is_empty() {
            return;
        }
        chosen.iter().for_each(|id| store.core.space.segments.empty_out(*id));
        if let Some(round) = self.running.as_mut().and_then(|run| run.round.as_mut()) {
            round.batch.extend(chosen);
        }
        self.look_at_batch(store, cleaner);
    }

    /// Finds the segments of the batch that the cleaner can empty, and requests a checkpoint if the
    /// rest needs one.
    fn look_at_batch(&mut self, store: &mut Store, cleaner: &Cleaner) {
        let segments = &store.core.space.segments;
        let Some(round) = self.running.as_mut().and_then(|run| run.round.as_mut()) else { return };
        let mut waits = false;
        for id in &round.batch {
            match segments.get(*id) {
                Some(s) if s.state == SegmentState::Sealed && s.objects == 0 && s.placed > 0 => round.victims.push_back(*id),
                Some(s) => waits |= matches!(s.state, SegmentState::Sealed | SegmentState::Retained(_)),
                None => {}
            }
        }
        if waits && !self.has_more() && cleaner.idle() {
            self.force_checkpoint(store);
        }
    }
}

impl Wiper {
    /// Stops a wipe; segments that were wiped stay wiped.
    pub(crate) fn stop_wipe(&mut self, store: &mut Store) -> Result<Reply, CommandError> {
        if !self.is_on() {
            return Err(CommandError::NotFound(Absent::Wipe));
        }
        self.end_wipe(store);
        Ok(Reply::Done)
    }

    pub(crate) fn end_wipe(&mut self, store: &mut Store) {
        self.leave_batch(store);
        self.running = None;
        store.pace.record_soon();
    }

    /// Returns segments that are being emptied to normal use.
    fn leave_batch(&mut self, store: &mut Store) {
        // an erasure in flight ends first
        let idle = self.erasure.take_if(|erasure| erasure.in_flight == 0);
        idle.and_then(|erasure| erasure.segment).into_iter().for_each(|id| store.core.space.segments.keep(id));
        let busy = self.erasure.as_ref().and_then(|erasure| erasure.segment);
        let Some(round) = self.running.as_mut().and_then(|run| run.round.as_mut()) else { return };
        round.victims.clear();
        for id in std::mem::take(&mut round.batch).into_iter().filter(|id| busy != Some(*id)) {
            store.core.space.segments.keep(id);
        }
    }

    /// Returns the progress of the wipe.
    pub(crate) fn wipe_job(&self, store: &Store) -> Option<JobInfo> {
        let run = self.running.as_ref()?;
        let unreadable = |id: &&SegmentId| store.core.space.segments.get(**id).is_some_and(|s| s.left_until > store.now.0);
        let unreadable = run.round.as_ref().map_or(0, |round| round.batch.iter().filter(unreadable).count() as u64);
        let (done, total, errors) = (run.done.min(run.total), run.total, run.errors + unreadable);
        Some(JobInfo { kind: JobKind::Wipe, member: None, done, total, errors, rate: 0 })
    }

    /// Lists all segments and extents that are not clean.
    fn begin_round(&mut self, store: &mut Store) {
        let space = &store.core.space;
        let todo: BTreeSet<SegmentId> =
            space.segments.ids().filter(|id| space.segments.get(*id).is_some_and(Segment::is_unclean)).collect();
        let loose = loose_extents(store);
        let pages: u64 = todo.iter().map(|id| u64::from(space.layout.pages(*id))).sum();
        let bytes = pages * PAGE + loose.iter().map(|(_, range)| range.length).sum::<u64>();
        let Some(run) = &mut self.running else { return };
        (run.done, run.total) = (0, bytes);
        run.round = Some(Round { todo, batch: BTreeSet::new(), victims: VecDeque::new(), loose, over: None });
    }

    fn force_checkpoint(&mut self, store: &mut Store) {
        let (now, running) = (store.now, store.checkpoint.running());
        let Some(run) = &mut self.running else { return };
        if !running && now.0 >= run.forced.0 + (CHECKPOINT_MILLIS << run.without_gain.min(MOST_DOUBLED)) {
            (run.forced, run.without_gain) = (now, run.without_gain + 1);
            store.checkpoint.forced = true;
        }
    }

    /// Returns the next segment that a wipe wants emptied.
    pub(crate) fn next_unclean(&mut self, store: &mut Store) -> Option<SegmentId> {
        if !self.has_more() || !has_room_to_wipe(store, AllocClass::Data) {
            return None;
        }
        let written = store.checkpoint.running();
        let round = self.running.as_mut()?.round.as_mut()?;
        while let Some(id) = round.victims.pop_front() {
            let ready = store.core.space.segments.get(id).is_some_and(|s| {
                let there = s.state == SegmentState::Sealed && s.objects == 0 && s.placed > 0 && s.left_until <= store.now.0;
                // nodes are not moved while a checkpoint writes them
                there && !(written && s.class == META_CLASS) && !store.log.is_in_flight(id)
            });
            if ready {
                return Some(id);
            }
        }
        None
    }

    /// Returns the next segment of the batch that is empty and unneeded, or the next extent in no
    /// segment.
    fn next_erasure(&mut self, store: &mut Store) -> Option<Erasure> {
        let run = self.running.as_mut()?;
        let (zero, looked) = (run.how == Wipe::Zero, run.looked);
        let round = run.round.as_mut()?;
        if looked.0 > store.now.0 {
            return None;
        }
        let segments = &store.core.space.segments;
        let empty = |id: &&SegmentId| segments.get(**id).is_some_and(|s| s.state == SegmentState::Discarding);
        let (segment, extents) = match round.batch.iter().find(empty) {
            Some(id) => (Some(*id), store.core.space.layout.extents(*id).collect()),
            None => (None, vec![round.loose.pop()?]),
        };
        Some(Erasure { segment, extents, zero, next: 0, in_flight: 0, failed: false })
    }

    /// Overwrites or discards more of a segment.
    fn erase_on(&mut self, store: &mut Store) {
        let most = store.job_depth(WRITES);
        while store.jobs_may_go_on() {
            let Some(erasure) = &mut self.erasure else { return };
            let (at, length) = (erasure.next, erasure.length());
            if at >= length || erasure.in_flight >= most {
                return;
            }
            erasure.in_flight += 1;
            if !erasure.zero {
                erasure.next = length;
                let extents = erasure.extents.clone();
                return store.io.discard(Context::Job(JobIo::Wipe), extents.into_iter());
            }
            let bytes = STEP.min(length - at);
            erasure.next += bytes;
            let part = |(device, range): &(MemberId, ByteRange)| (*device, ByteRange { offset: range.offset + at, length: bytes });
            let ranges: Vec<(MemberId, ByteRange)> = erasure.extents.iter().map(part).collect();
            let zeroes = |bytes: u64| BufSlice::zeroes(store.zeroes.clone(), 0..usize::try_from(bytes).unwrap_or(ZEROES).min(ZEROES));
            let steps = (0..bytes).step_by(ZEROES).map(|from| bytes - from);
            let pieces: Vec<BufSlice> = steps.map(zeroes).collect();
            store.charge_jobs(bytes * ranges.len() as u64);
            store.io.overwrite(Context::Job(JobIo::Wipe), &ranges, &pieces);
        }
    }

    /// Handles the end of an overwrite or discard.
    pub(crate) fn wiped(&mut self, store: &mut Store, result: Result<(), DeviceError>) {
        let Some(erasure) = &mut self.erasure else { return };
        erasure.in_flight -= 1;
        if result.is_err() {
            erasure.failed |= erasure.zero;
            if !erasure.zero {
                // a device that cannot discard can be overwritten
                (erasure.zero, erasure.next) = (true, 0);
            }
        }
        let over = erasure.failed || erasure.next >= erasure.length();
        if erasure.in_flight > 0 || !over {
            return;
        }
        let Some(Erasure { segment, extents, zero, failed, .. }) = self.erasure.take() else { return };
        let bytes =
            segment.map_or_else(|| extents.iter().map(|(_, r)| r.length).sum(), |id| u64::from(store.core.space.layout.pages(id)) * PAGE);
        let now = store.now;
        let Some(Run { round: Some(round), done, errors, looked, without_gain, .. }) = &mut self.running else {
            // it was stopped, or begins anew
            segment.into_iter().for_each(|id| store.core.space.segments.keep(id));
            return;
        };
        if failed {
            *errors += 1;
            // the device is asked again after a while
            *looked = Time(now.0 + REFUSED_MILLIS);
            if segment.is_none() {
                round.loose.extend(extents);
            }
            return;
        }
        *done += bytes;
        *without_gain = 0;
        if let Some(id) = segment {
            round.batch.remove(&id);
            round.todo.remove(&id);
            store.core.space.segments.cleaned(id, zero);
        }
    }
}

/// Returns whether a segment in this state may hold live data.
fn holds(state: SegmentState) -> bool {
    matches!(state, SegmentState::Sealed | SegmentState::Open | SegmentState::Reserved)
}

/// Returns whether so much is free that emptying takes nothing from guests and cleaner. Data
/// without room on special devices goes elsewhere.
fn has_room_to_wipe(store: &Store, alloc_class: AllocClass) -> bool {
    room_to_wipe(store, alloc_class) > 0
}

fn room_to_wipe(store: &Store, alloc_class: AllocClass) -> usize {
    match alloc_class {
        AllocClass::Data | AllocClass::Log => store.free_in(alloc_class).saturating_sub(store.wanted_free(alloc_class) + SPARE),
        AllocClass::Special | AllocClass::Nodes => 1,
        // only segments on devices are wiped
        AllocClass::Bucket => 0,
    }
}

/// Returns the extents of devices that are in no segment, left over by removals.
fn loose_extents(store: &Store) -> Vec<(MemberId, ByteRange)> {
    let shape = &store.config.shape;
    let layout = &store.core.space.layout;
    let used: BTreeSet<(MemberId, u64)> =
        store.core.space.segments.ids().flat_map(|id| layout.extents(id)).map(|(device, range)| (device, range.offset)).collect();
    let members = shape.numbered().filter(|(_, member)| member.state == MemberState::Present);
    let extents = members.flat_map(|(at, member)| (0..member.extents).map(move |extent| (at, extent)));
    let ranges = extents.map(|(at, extent)| (at, layout.range_of(extent)));
    ranges.filter(|(device, range)| !used.contains(&(*device, range.offset))).collect()
}

/// Returns whether all devices are present and whole; a device that is away keeps its data.
fn all_are_there(store: &Store, resilver: &Resilver) -> bool {
    let there = |state| matches!(state, MemberState::Present | MemberState::Gone);
    let shape = &store.config.shape;
    shape.members.iter().all(|m| there(m.state) && m.replacement.is_none()) && resilver.jobs().next().is_none()
}
