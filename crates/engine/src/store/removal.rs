//! Removal of a device as far as it is a matter of space (`task/evacuate.rs` describes removals):
//! whether it is possible, the segments that the pool can do without, and its progress.

mod plan;
mod state;

pub(crate) use self::plan::{Removal, count_rows, joinable, runs};
pub(crate) use self::state::{Evacuation, Removals};

use std::collections::{BTreeSet, VecDeque};

use millpond_block::MemberId;
use millpond_format::{Class, Encoder, MemberState, SegmentId};

use self::plan::unused_extents;
use self::state::RemovalState;
use super::{LEAST_LOG, ObjectsIn, Store, Watermark};
use crate::io::Health;
use crate::log::{BatchKind, OpenBatch, Stream};
use crate::space::{AllocClass, Segment, SegmentLayout, SegmentState, usable};
use crate::{Absent, CommandError, Invalid, JobInfo, JobKind, Time};

/// Most steps that a removal may be expected to take: each leaves groups behind.
const MOST_STEPS: u32 = 10;

/// Share (1/N) of the live data that must fit in addition to it.
const CLEANING_PART: u64 = 16;

/// A step empties at least this share (1/N) of the remaining segments.
pub(crate) const STEP_PART: usize = 16;

/// Milliseconds without progress after which a removal stops waiting for space.
pub(crate) const ROOM_MILLIS: u64 = 60_000;

/// Bytes of a unit of live data.
const UNIT_BYTES: u64 = 512;

/// Returns whether `all` is emptied in few steps if `free` is free, each step takes half of the
/// free space, and `lost` of `all` is never freed.
fn few_steps(all: u64, lost: u64, mut free: u64) -> bool {
    let mut left = all;
    (0..MOST_STEPS).any(|_| {
        let step = left.min(free / 2);
        (left, free) = (left - step, free.saturating_sub(step * lost / all.max(1)));
        left == 0
    })
}

impl Store {
    /// Moves streams out of segments that are to be given up, also when such a segment is only
    /// their next one: an empty batch leads replay to the new segment.
    pub(crate) fn hop_over_leaving(&mut self) {
        let meta = [self.checkpoint.nodes_at, self.checkpoint.objects_at];
        if !self.checkpoint.running() && meta.iter().flatten().any(|cursor| self.is_leaving(Some(cursor.segment))) {
            self.leave_open_segments();
        }
        for stream in Stream::all() {
            let state = &self.log.streams[stream];
            let (at, next) = (state.cursor.map(|c| c.segment), state.next);
            if self.is_leaving(at) {
                self.leave_open_segments();
            }
            if !self.is_leaving(next) {
                continue;
            }
            self.seal_all();
            if let Some(cursor) = self.log.streams[stream].cursor.take() {
                self.close_stream_chunk(stream);
                self.core.space.segments.set_state(cursor.segment, SegmentState::Sealed);
                self.core.space.settle(cursor.segment);
            }
            let Ok(cursor) = self.make_room(stream, Watermark::Cleaner, 1, 0) else { return };
            let items = if stream == Stream::Small { Encoder::default() } else { self.log.small_write_index.take() };
            let batch = OpenBatch::new(BatchKind::Exclusive, cursor.page, 1, 0, items);
            let header = self.header(stream, cursor.segment, &batch, 0);
            if stream == Stream::Small {
                // the index must count this batch, which is lost together with the special devices
                self.log.small_write_index.seal(header.lsn);
            }
            self.submit_batch(stream, &header, batch, Vec::new());
            self.leave_open_segments();
        }
    }

    /// Ends an evacuation once nothing needs its segments: drops them from the shape.
    pub(crate) fn end_evacuation(&mut self) {
        let Some(evacuation) = self.evacuation.take() else { return };
        let Removal { members, segments, shape } = evacuation.removal;
        // segments that special devices left behind belong to no device's removal
        let moved = if evacuation.member.is_some() { self.removals.departure.moved + evacuation.total } else { 0 };
        let later = if members.is_empty() { evacuation.later } else { 0 };
        self.removals.departure = RemovalState { moved, later, ..RemovalState::default() };
        let class = |at: &MemberId| (*at, self.config.shape.class_of(*at).unwrap_or(Class::Data));
        self.labels.left.extend(members.iter().map(class));
        (self.config.shape.groups, self.config.shape.next) = (shape.groups, shape.next);
        for (at, known) in self.config.shape.numbered_mut() {
            if members.contains(&at) {
                (known.state, known.replacement, known.leaving) = (MemberState::Gone, None, false);
            }
        }
        for id in segments {
            if let Some(segment) = self.core.space.segments.get_mut(id) {
                segment.leaving = false;
            }
        }
        self.io.health = Health::of(&self.config.shape);
        self.core.space.layout = SegmentLayout::new(&self.config.shape);
        self.relabel(None);
    }

    /// Ends a removal whose rest cannot be done; no command waits for it.
    pub(crate) fn end_hopeless_removal(&mut self, segments: u64) {
        let mib = (segments * self.config.shape.extent_bytes).div_ceil(1 << 20);
        let why = format!("deadlists of {segments} segments ({mib} MiB) cannot be read on any copy; what was moved stays moved");
        self.end_removal_for(why);
    }

    pub(crate) fn end_removal_for(&mut self, why: String) {
        if self.stop_removing().is_ok() {
            self.removals.ended = Some(why);
            self.relabel(None);
        }
    }

    /// Returns the progress in bytes. Data that guests free meanwhile need not be moved, and counts
    /// as done.
    pub(crate) fn evacuation_job(&self) -> Option<JobInfo> {
        let (moved, later) = (self.removals.departure.moved, self.removals.departure.later);
        let job = |member, done, left| JobInfo { kind: JobKind::Remove, member, done, total: done + left, errors: 0, rate: 0 };
        if let Some(member) = self.labels.left.keys().next() {
            return Some(job(Some(*member), moved, 0));
        }
        let Some(evacuation) = &self.evacuation else {
            // after an import or between two steps
            return Some(job(Some(self.member_leaving()?), moved, later));
        };
        let (space, mut live, mut errors) = (&self.core.space.segments, 0, 0);
        for segment in evacuation.removal.segments.iter().filter_map(|id| space.get(*id)) {
            live += u64::from(segment.live) * UNIT_BYTES;
            errors += u64::from(segment.left_until > self.now.0);
        }
        let done = moved + evacuation.total.saturating_sub(live);
        let kind = if evacuation.rejoins { JobKind::Rejoin } else { JobKind::Remove };
        Some(JobInfo { kind, errors, ..job(evacuation.member, done, live + evacuation.later) })
    }

    /// Releases the devices of removed members, once the labels say that they are removed.
    pub(crate) fn let_go(&mut self) {
        let left = std::mem::take(&mut self.labels.left);
        if !left.is_empty() {
            self.removals.departure = RemovalState::default();
        }
        for at in left.into_keys() {
            self.io.set_slot(at, None);
            if let Some(size) = self.config.sizes.get_mut(at.index()) {
                *size = 0;
            }
        }
    }

    /// Plans the next part of a removal, and returns the bytes that later steps are to move: all of
    /// it when the others have room, else a step that makes room. `None` while the cleaner has to
    /// free space for a step.
    pub(crate) fn plan_removal(&self, member: MemberId, begun: bool) -> Result<Option<(Removal, u64)>, CommandError> {
        let (shape, space) = (&self.config.shape, &self.core.space);
        let Some(whole) = Removal::plan(shape, member) else {
            return Err(CommandError::Invalid(Invalid::DeviceNeeded));
        };
        let needed = self.needed_units();
        let in_steps = Removal::plan_step(shape, member, |_| true).is_some();
        let objects = self.stored_objects();
        let can_go = |gone: &BTreeSet<SegmentId>| self.can_go(gone, &objects, in_steps);
        if can_go(&whole.segments) {
            return Ok(Some((whole, 0)));
        }
        let layout = SegmentLayout::new(&whole.shape);
        let after = usable(&layout, |_| true);
        if needed > after {
            return Err(CommandError::Invalid(Invalid::NoSpaceElsewhere { lacking_bytes: (needed - after) * 512 }));
        }
        if in_steps && (begun || self.steps_lead_to(&whole, &layout)) {
            let step = Removal::plan_step(shape, member, can_go);
            let step = step.filter(|step| step.segments.len() * STEP_PART >= whole.segments.len());
            return Ok(step.map(|step| {
                let later = self.live_bytes(whole.segments.difference(&step.segments).copied());
                (step, later)
            }));
        }
        // a removal that has begun goes on: it had room then
        if begun && space.live_units() <= space.usable_without(&whole.segments) && !self.misses_log_without(&whole.segments) {
            return Ok(Some((whole, 0)));
        }
        Err(CommandError::Invalid(Invalid::NoRoomToMove))
    }

    /// Returns whether the pool can do without the segments in `gone`, for now or for good. Guests
    /// go on writing, so a step takes at most half of the free space, half of the log, and half of
    /// the free part of the log.
    pub(crate) fn can_go(&self, gone: &BTreeSet<SegmentId>, objects: &ObjectsIn, in_steps: bool) -> bool {
        let space = &self.core.space;
        let least = if in_steps { self.least_of_step() } else { self.needed_units() };
        let (logs, free_logs) = (space.segments.count_in(AllocClass::Log), self.free_in(AllocClass::Log));
        let is_free = |id: &&SegmentId| space.segments.get(**id).is_some_and(|s| s.state == SegmentState::Free);
        let of_log = || gone.iter().filter(|id| space.layout.alloc_class(**id) == AllocClass::Log);
        let spares_log = || {
            let taken = of_log().count();
            !in_steps || taken == logs || (taken * 2 <= logs && of_log().filter(is_free).count() * 2 <= free_logs)
        };
        least <= space.usable_without(gone) && spares_log() && !self.is_short_without(gone, objects)
    }

    pub(crate) fn begin_evacuation(&mut self, member: Option<MemberId>, removal: Removal, later: u64) {
        let total = self.live_bytes(removal.segments.iter().copied());
        self.core.space.leave_segments(&removal.segments);
        self.leave_open_segments();
        let (todo, looked) = (VecDeque::new(), Time(0));
        let evacuation =
            Evacuation { member, rejoins: false, removal, total, later, todo, looked, hopeless: None, stalled: None, waits: None };
        self.evacuation = Some(evacuation);
        self.count_moving();
    }

    /// Returns whether the next step shall wait for the cleaner; false after a long time without
    /// gain.
    pub(crate) fn waits_for_step(&mut self) -> bool {
        let free = self.free_in(AllocClass::Data) + self.free_in(AllocClass::Log);
        let (since, most) = *self.removals.departure.room.get_or_insert((self.now, free));
        if free > most {
            self.removals.departure.room = Some((self.now, free));
        }
        free > most || self.now.0 < since.0 + ROOM_MILLIS
    }

    /// Clears the removal flag of all members; the labels are still to be written.
    fn keep_leaving(&mut self) {
        self.config.shape.members.iter_mut().for_each(|known| known.leaving = false);
        self.removals.departure = RemovalState::default();
    }

    /// Cancels a removal: moved data stays where it is, and the device can be filled again. The
    /// caller must have the labels written.
    pub(crate) fn stop_removing(&mut self) -> Result<(), CommandError> {
        if self.member_leaving().is_none() {
            return Err(CommandError::NotFound(Absent::Removal));
        }
        let evacuation = self.evacuation.take();
        if let Some(evacuation) = evacuation {
            self.core.space.stay(&evacuation.removal.segments);
        }
        self.keep_leaving();
        Ok(())
    }

    /// Returns the next segment that an evacuation wants emptied.
    pub(crate) fn next_leaving(&mut self) -> Option<SegmentId> {
        let evacuation = self.evacuation.as_mut()?;
        while let Some(id) = evacuation.todo.pop_front() {
            let ready = self.core.space.segments.get(id).is_some_and(|s| {
                s.state == SegmentState::Sealed
                    && s.placed > 0
                    && s.objects == 0
                    && s.left_until <= self.now.0
                    && !self.log.is_in_flight(id)
            });
            if ready {
                return Some(id);
            }
        }
        None
    }

    /// Returns the units that must stay usable after a step, which takes at most half of the free
    /// space.
    pub(crate) fn least_of_step(&self) -> u64 {
        let needed = self.needed_units();
        needed.max(needed.midpoint(self.core.space.usable_units()))
    }

    /// Returns the live units and some more: removal is cleaning, which gains no space where
    /// everything is full.
    fn needed_units(&self) -> u64 {
        let live = self.core.space.live_units();
        live + live / CLEANING_PART
    }

    /// Returns whether few steps lead to the end; `after` is the layout at the end.
    fn steps_lead_to(&self, whole: &Removal, after: &SegmentLayout) -> bool {
        let (space, guests_after) = (&self.core.space, usable(after, |_| true));
        let on = |alloc_class: AllocClass| whole.segments.iter().filter(move |id| space.layout.alloc_class(**id) == alloc_class);
        let data: u64 = on(AllocClass::Data).map(|id| u64::from(space.layout.pages(*id)) * 8).sum();
        let free = space.usable_units().saturating_sub(self.needed_units());
        let guests = few_steps(data, space.usable_units().saturating_sub(guests_after), free);
        let (log, logs) = (on(AllocClass::Log).count() as u64, space.segments.count_in(AllocClass::Log) as u64);
        let logs_after = (0..after.count()).filter(|id| after.alloc_class(SegmentId(*id)) == AllocClass::Log).count() as u64;
        guests && few_steps(log, logs.saturating_sub(logs_after), logs.saturating_sub(u64::from(LEAST_LOG)))
    }

    /// Returns the live bytes of blocks and nodes in segments; replicas count once.
    pub(crate) fn live_bytes(&self, segments: impl Iterator<Item = SegmentId>) -> u64 {
        let live = |id| self.core.space.segments.get(id).map_or(0, |segment| u64::from(segment.live) * UNIT_BYTES);
        segments.map(live).sum()
    }

    /// Returns the member that the labels mark for removal.
    pub(crate) fn member_leaving(&self) -> Option<MemberId> {
        self.config.shape.numbered().find(|(_, known)| known.leaving).map(|(at, _)| at)
    }

    fn is_leaving(&self, id: Option<SegmentId>) -> bool {
        id.is_some_and(|id| self.core.space.segments.get(id).is_some_and(Segment::is_given_up))
    }

    /// Returns whether a rejoin runs; it can be postponed.
    pub(super) fn is_rejoining(&self) -> bool {
        self.evacuation.as_ref().is_some_and(|evacuation| evacuation.rejoins)
    }

    /// Returns the bytes of extents that a stopped removal left in no segment.
    pub(crate) fn given_up_bytes(&self) -> u64 {
        let shape = &self.config.shape;
        if self.member_leaving().is_some() {
            return 0;
        }
        let runs = unused_extents(shape).into_values().flatten();
        runs.map(|run| u64::from(run.extents) * shape.extent_bytes).sum()
    }
}
