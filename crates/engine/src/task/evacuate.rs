//! Evacuation: removes a device of any layout from the pool while the pool is in use.
//!
//! Segments with a part on the device are not allocated any more, and the cleaner moves live chunks
//! out of those in use; maps never change for it (I7). The next checkpoint rewrites objects of
//! checkpoints elsewhere. When nothing needs these segments the shape drops them: the remaining
//! extents of other devices that shared them become new segments, and only the member's place in
//! the table is left of the device.
//!
//! Where every segment has a part on the device and the others have no room for all of the data
//! yet, the removal goes in steps: as many segments as the pool can do without are emptied into the
//! others, and the new segments made of their remaining extents take the data of the next step. If
//! such a removal is stopped, the extents of the device that earlier steps took out of segments are
//! in no segment; later they are joined again with the segments that the steps made of the others.

mod look;
mod rejoin;
mod removal;

use std::collections::{BTreeSet, VecDeque};

use look::Look;
use millpond_block::MemberId;
use millpond_format::{Class, Encoder, MemberState, SegmentId};

use crate::io::Health;
use crate::log::{BatchKind, OpenBatch, SMALL};
use crate::pool::{Pool, STUCK_MILLIS};
use crate::space::{Rows, Segment, SegmentState, Shelf, usable};
use crate::store::{LEAST_LOG, ObjectsIn, Purse, Store};
use crate::{Absent, Busy, CommandError, Invalid, JobInfo, JobKind, PoolState, RemovalPlan, Time};
pub(crate) use rejoin::Rejoiner;
use removal::Removal;
pub(crate) use removal::runs;

/// Most steps that a removal may be expected to take: each leaves groups behind.
const MOST_STEPS: u32 = 10;
/// Share (1/N) of the live data that must fit in addition to it.
const CLEANING_PART: u64 = 16;
/// A step empties at least this share (1/N) of the remaining segments.
const STEP_PART: usize = 16;
/// Milliseconds without progress after which a removal stops waiting for space.
const ROOM_MILLIS: u64 = 60_000;
/// Milliseconds between checks whether there is space for a step.
const ROOM_LOOK_MILLIS: u64 = 2_000;
/// Bytes of a unit of live data.
const UNIT_BYTES: u64 = 512;
/// Milliseconds between scans of all segments that are to be given up.
const LOOK_MILLIS: u64 = 100;
/// Milliseconds after which a removal ends if only deadlists that cannot be read are left; they
/// were retried meanwhile.
const HOPELESS_MILLIS: u64 = 2 * STUCK_MILLIS + 5_000;

/// A running evacuation.
#[derive(Debug)]
pub(crate) struct Evacuation {
    /// The member to remove; `None` for segments that lost special devices left behind, or that are
    /// to be widened.
    member: Option<u16>,
    /// True if no member is removed: segments are widened by extents that a stopped removal left
    /// unused.
    rejoins: bool,
    removal: Removal,
    /// Live bytes in its segments at the start.
    total: u64,
    /// Bytes in segments that later steps are to empty.
    later: u64,
    /// Segments for the cleaner to empty, as of the last scan.
    todo: VecDeque<SegmentId>,
    /// Time of the last scan.
    looked: Time,
    /// Number of segments left, and since when it has been the same, while the only work left is to
    /// retry unreadable deadlists.
    hopeless: Option<(u64, Time)>,
    /// Live bytes left, and since when they have been the same, while the evacuation waits for
    /// space or devices.
    stalled: Option<(u64, Time)>,
    /// Why it makes no progress, for users.
    waits: Option<String>,
}

/// Removals of devices: the running one, and the last.
#[derive(Debug, Default)]
pub(crate) struct Removals {
    departure: Departure,
    /// Why the last removal ended before the device was removed, unless a command stopped it.
    pub(crate) ended: Option<String>,
    /// Time of the last check for segments that lost special devices left behind.
    left_behind_looked: Time,
}

impl Removals {
    /// Returns whether the cleaner has to free space for the next step.
    pub(crate) fn wants_room(&self) -> bool {
        self.departure.room.is_some()
    }
}

/// State of a removal from step to step.
#[derive(Debug, Default)]
struct Departure {
    /// Bytes that steps have moved, until the labels say that the device is removed; bytes that
    /// later steps are to move.
    moved: u64,
    later: u64,
    /// Time of the last attempt to plan the next step.
    looked: Time,
    /// Since when it has waited for the cleaner to free space, and the most segments that were free
    /// meanwhile.
    room: Option<(Time, usize)>,
}

impl Evacuation {
    /// Returns whether the cleaner has segments to empty.
    pub(crate) fn has_more(&self) -> bool {
        !self.todo.is_empty()
    }
}

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

impl Pool {
    /// Begins to remove a member. The caller must have the labels written.
    pub(crate) fn remove_member(&mut self, member: u16) -> Result<(), CommandError> {
        if self.store.config.shape.is_aside(member) {
            return self.remove_aside(MemberId(member));
        }
        let leaving = self.check_removal(member)?;
        // segments that a rejoin was emptying count as free for the plan
        self.rejoiner.put_off_rejoin(&mut self.store);
        let plan = self.store.plan_removal(member, leaving)?;
        self.store.removals.ended = None;
        if let Some((removal, later)) = plan {
            self.store.begin_evacuation(Some(member), removal, later);
        }
        if let Some(known) = self.store.config.shape.members.get_mut(usize::from(member)) {
            known.leaving = true;
        }
        Ok(())
    }

    /// Returns what a removal would take if it began now.
    pub(crate) fn rehearse_removal(&self, member: u16) -> Result<RemovalPlan, CommandError> {
        let rate = self.store.rate_beside_guests();
        // data of auxiliary devices is on other devices, too
        if self.store.config.shape.is_aside(member) {
            self.store.check_unchanging()?;
            return Ok(RemovalPlan { moved: 0, others: Vec::new(), in_steps: false, rate });
        }
        let leaving = self.check_removal(member)?;
        let planned = self.store.plan_removal(member, leaving)?;
        let in_steps = planned.is_none_or(|(removal, _)| removal.members.is_empty());
        let whole = Removal::plan(&self.store.config.shape, member);
        let (members, segments) = whole.map(|whole| (whole.members, whole.segments)).unwrap_or_default();
        let others = members.into_iter().filter(|other| *other != member).collect();
        Ok(RemovalPlan { moved: self.store.live_bytes(segments.into_iter()), others, in_steps, rate })
    }

    /// Checks whether a removal can begin or continue. Returns true when it has begun.
    fn check_removal(&self, member: u16) -> Result<bool, CommandError> {
        let known = self.store.config.shape.members.get(usize::from(member)).filter(|m| m.state != MemberState::Gone);
        let Some(known) = known else { return Err(CommandError::NotFound(Absent::Member(MemberId(member)))) };
        let moving = self.store.evacuation.as_ref().is_some_and(|evacuation| !evacuation.rejoins);
        if known.successor.is_some() || self.filler.jobs().next().is_some() || moving {
            return Err(CommandError::Busy(Busy::DevicesChanging));
        }
        if self.store.labels.busy() {
            return Err(CommandError::Busy(Busy::Relabeling));
        }
        Ok(known.leaving)
    }

    /// Gives up segments that lost special devices left behind, until the shape has none any more.
    fn give_up_left_behind(&mut self) {
        if self.filler.jobs().next().is_some()
            || self.store.labels.busy()
            || self.store.now.0 < self.store.removals.left_behind_looked.0 + LOOK_MILLIS
        {
            return;
        }
        self.store.removals.left_behind_looked = self.store.now;
        match Removal::plan_left_behind(&self.store.config.shape) {
            Some(removal) => self.store.begin_evacuation(None, removal, 0),
            None => self.rejoin(),
        }
    }

    /// Continues a removal that an import found in the labels. If it no longer fits, it ends and
    /// the device stays.
    fn go_on_removing(&mut self) {
        let Some(member) = self.store.member_leaving() else { return self.give_up_left_behind() };
        if self.filler.jobs().next().is_some() || self.store.labels.busy() {
            return;
        }
        // scanning all segments takes time, and free space comes even slower
        let pause = if self.store.removals.wants_room() { ROOM_LOOK_MILLIS } else { LOOK_MILLIS };
        if self.store.evacuation.is_some() || self.store.now.0 < self.store.removals.departure.looked.0 + pause {
            return;
        }
        self.store.removals.departure.looked = self.store.now;
        match self.remove_member(member) {
            Ok(()) if self.store.evacuation.is_some() => self.store.removals.departure.room = None,
            Ok(()) if self.store.waits_for_step() => {}
            Ok(()) => self.store.end_removal_for("there was no room for its next step for a minute; what was moved stays moved".to_owned()),
            Err(error) => self.store.end_removal_for(error.to_string()),
        }
    }

    /// Advances an evacuation. Returns true when it wants another turn soon.
    pub(crate) fn step_evacuation(&mut self) -> bool {
        if self.store.state != PoolState::Online {
            return false;
        }
        if self.store.evacuation.is_none() {
            self.go_on_removing();
            return false;
        }
        self.leave_rejoin_without_devices();
        self.store.hop_over_leaving();
        let blocked = self.cleaner.is_blocked(&self.store);
        let Some(evacuation) = &mut self.store.evacuation else { return false };
        if blocked {
            // nothing can be moved now: the segments are scanned again later
            evacuation.todo.clear();
        }
        if evacuation.has_more() {
            return !self.cleaner.is_reading() && self.store.jobs_may_go_on();
        }
        if self.store.now.0 < evacuation.looked.0 + LOOK_MILLIS || !self.cleaner.idle() {
            return false;
        }
        evacuation.looked = self.store.now;
        let Look { left, waits, .. } = match self.look_at_leaving() {
            Ok(look) => look,
            Err(lists) => {
                lists.into_iter().for_each(|lists| self.store.end_hopeless_removal(lists));
                return false;
            }
        };
        let Some(evacuation) = &mut self.store.evacuation else { return false };
        if left > 0 {
            self.store.checkpoint.forced |= waits && (blocked || !evacuation.has_more()) && !self.store.checkpoint.running();
            return true;
        }
        // streams of an older root may begin in segments that are given up
        let segments = &evacuation.removal.segments;
        let begins =
            self.store.legs.iter().any(|leg| leg.streams.iter().any(|s| segments.contains(&s.segment) || segments.contains(&s.next)));
        if begins || self.store.checkpoint.running() {
            self.store.checkpoint.forced |= begins && !self.store.checkpoint.running();
            return false;
        }
        self.store.end_evacuation();
        false
    }

    /// Scans all segments that are to be given up. Returns an error when the evacuation has ended,
    /// or has to end because of the given number of segments with deadlists that are right in no
    /// copy.
    fn look_at_leaving(&mut self) -> Result<Look, Option<u64>> {
        let Some(evacuation) = &self.store.evacuation else { return Err(None) };
        let (space, health, now) = (&self.store.core.space, &self.store.io.health, self.store.now.0);
        let mut look = Look::default();
        for id in &evacuation.removal.segments {
            space.segments.get(*id).into_iter().for_each(|segment| look.add(*id, segment, now, health, &space.rows));
        }
        if evacuation.rejoins && self.rejoiner.gives_rejoin_up(&mut self.store, &look) {
            return Err(None);
        }
        let Some(evacuation) = &mut self.store.evacuation else { return Err(None) };
        // while the cleaner has work the last reason may hold again
        if look.todo.is_empty() {
            evacuation.waits = look.reason();
        }
        if look.away > 0 {
            // absent devices may have the deadlists that the others do not
            evacuation.hopeless = None;
        } else if look.lists > 0 && look.todo.is_empty() {
            let known = evacuation.hopeless.filter(|(then, _)| *then == look.left);
            let (_, since) = *evacuation.hopeless.insert(known.unwrap_or((look.left, self.store.now)));
            if now >= since.0 + HOPELESS_MILLIS {
                return Err(Some(look.lists));
            }
        }
        evacuation.todo = std::mem::take(&mut look.todo);
        Ok(look)
    }

    /// Returns why a removal, or a rejoin of extents that a removal gave up, makes no progress.
    pub(crate) fn removal_waits(&self) -> Option<String> {
        let waits = self.store.evacuation.as_ref().and_then(|evacuation| evacuation.waits.clone());
        waits.or_else(|| self.rejoiner.rejoin_waits(&self.store))
    }
}

impl Store {
    /// Moves streams out of segments that are to be given up, also when such a segment is only
    /// their next one: an empty batch leads replay to the new segment.
    pub(super) fn hop_over_leaving(&mut self) {
        let meta = [self.checkpoint.nodes_at, self.checkpoint.objects_at];
        if !self.checkpoint.running() && meta.iter().flatten().any(|cursor| self.is_leaving(Some(cursor.segment))) {
            self.leave_open_segments();
        }
        for stream in 0..self.log.streams.len() {
            let (at, next) = self.log.streams.get(stream).map_or((None, None), |s| (s.cursor.map(|c| c.segment), s.next));
            if self.is_leaving(at) {
                self.leave_open_segments();
            }
            if !self.is_leaving(next) {
                continue;
            }
            self.seal_all();
            if let Some(cursor) = self.log.streams.get_mut(stream).and_then(|s| s.cursor.take()) {
                self.close_stream_chunk(stream);
                self.core.space.segments.set_state(cursor.segment, SegmentState::Sealed);
                self.core.space.settle(cursor.segment);
            }
            let Ok(cursor) = self.make_room(stream, Purse::Cleaner, 1, 0) else { return };
            let items = if stream == SMALL { Encoder::default() } else { self.log.notes.take() };
            let batch = OpenBatch::new(BatchKind::Exclusive, cursor.page, 1, 0, items);
            let header = self.header(stream, cursor.segment, &batch, 0);
            if stream == SMALL {
                // the index must count this batch, which is lost together with the special devices
                self.log.notes.seal(header.lsn);
            }
            self.submit_batch(stream, &header, batch, Vec::new());
            self.leave_open_segments();
        }
    }

    /// Ends an evacuation once nothing needs its segments: drops them from the shape.
    fn end_evacuation(&mut self) {
        let Some(evacuation) = self.evacuation.take() else { return };
        let Removal { members, segments, shape } = evacuation.removal;
        // segments that special devices left behind belong to no device's removal
        let moved = if evacuation.member.is_some() { self.removals.departure.moved + evacuation.total } else { 0 };
        let later = if members.is_empty() { evacuation.later } else { 0 };
        self.removals.departure = Departure { moved, later, ..Departure::default() };
        let class = |at: &u16| (MemberId(*at), self.config.shape.class_of(*at).unwrap_or(Class::Data));
        self.labels.left.extend(members.iter().map(class));
        (self.config.shape.groups, self.config.shape.next) = (shape.groups, shape.next);
        for (at, known) in (0u16..).zip(&mut self.config.shape.members) {
            if members.contains(&at) {
                (known.state, known.successor, known.leaving) = (MemberState::Gone, None, false);
            }
        }
        for id in segments {
            if let Some(segment) = self.core.space.segments.get_mut(id) {
                segment.leaving = false;
            }
        }
        self.io.health = Health::of(&self.config.shape);
        self.core.space.rows = Rows::new(&self.config.shape);
        self.relabel(None);
    }

    /// Ends a removal whose rest cannot be done; no command waits for it.
    fn end_hopeless_removal(&mut self, segments: u64) {
        let mib = (segments * self.config.shape.extent_bytes).div_ceil(1 << 20);
        let why = format!("deadlists of {segments} segments ({mib} MiB) cannot be read on any copy; what was moved stays moved");
        self.end_removal_for(why);
    }

    fn end_removal_for(&mut self, why: String) {
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
            return Some(job(Some(member.0), moved, 0));
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
            self.removals.departure = Departure::default();
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
    fn plan_removal(&self, member: u16, begun: bool) -> Result<Option<(Removal, u64)>, CommandError> {
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
        let rows = Rows::new(&whole.shape);
        let after = usable(&rows, |_| true);
        if needed > after {
            return Err(CommandError::Invalid(Invalid::NoSpaceElsewhere { lacking_bytes: (needed - after) * 512 }));
        }
        if in_steps && (begun || self.steps_lead_to(&whole, &rows)) {
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
    fn can_go(&self, gone: &BTreeSet<SegmentId>, objects: &ObjectsIn, in_steps: bool) -> bool {
        let space = &self.core.space;
        let least = if in_steps { self.least_of_step() } else { self.needed_units() };
        let (logs, free_logs) = (space.segments.count_in(Shelf::Log), self.free_in(Shelf::Log));
        let is_free = |id: &&SegmentId| space.segments.get(**id).is_some_and(|s| s.state == SegmentState::Free);
        let of_log = || gone.iter().filter(|id| space.rows.shelf(**id) == Shelf::Log);
        let spares_log = || {
            let taken = of_log().count();
            !in_steps || taken == logs || (taken * 2 <= logs && of_log().filter(is_free).count() * 2 <= free_logs)
        };
        least <= space.usable_without(gone) && spares_log() && !self.is_short_without(gone, objects)
    }

    fn begin_evacuation(&mut self, member: Option<u16>, removal: Removal, later: u64) {
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
    fn waits_for_step(&mut self) -> bool {
        let free = self.free_in(Shelf::Data) + self.free_in(Shelf::Log);
        let (since, most) = *self.removals.departure.room.get_or_insert((self.now, free));
        if free > most {
            self.removals.departure.room = Some((self.now, free));
        }
        free > most || self.now.0 < since.0 + ROOM_MILLIS
    }

    /// Clears the removal flag of all members; the labels are still to be written.
    fn keep_leaving(&mut self) {
        self.config.shape.members.iter_mut().for_each(|known| known.leaving = false);
        self.removals.departure = Departure::default();
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
    fn least_of_step(&self) -> u64 {
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
    fn steps_lead_to(&self, whole: &Removal, after: &Rows) -> bool {
        let (space, guests_after) = (&self.core.space, usable(after, |_| true));
        let on = |shelf: Shelf| whole.segments.iter().filter(move |id| space.rows.shelf(**id) == shelf);
        let data: u64 = on(Shelf::Data).map(|id| u64::from(space.rows.pages(*id)) * 8).sum();
        let free = space.usable_units().saturating_sub(self.needed_units());
        let guests = few_steps(data, space.usable_units().saturating_sub(guests_after), free);
        let (log, logs) = (on(Shelf::Log).count() as u64, space.segments.count_in(Shelf::Log) as u64);
        let logs_after = (0..after.count()).filter(|id| after.shelf(SegmentId(*id)) == Shelf::Log).count() as u64;
        guests && few_steps(log, logs.saturating_sub(logs_after), logs.saturating_sub(u64::from(LEAST_LOG)))
    }

    /// Returns the live bytes of blocks and nodes in segments; replicas count once.
    fn live_bytes(&self, segments: impl Iterator<Item = SegmentId>) -> u64 {
        let live = |id| self.core.space.segments.get(id).map_or(0, |segment| u64::from(segment.live) * UNIT_BYTES);
        segments.map(live).sum()
    }

    /// Returns the member that the labels mark for removal.
    pub(crate) fn member_leaving(&self) -> Option<u16> {
        (0u16..).zip(&self.config.shape.members).find(|(_, known)| known.leaving).map(|(at, _)| at)
    }

    fn is_leaving(&self, id: Option<SegmentId>) -> bool {
        id.is_some_and(|id| self.core.space.segments.get(id).is_some_and(Segment::is_given_up))
    }
}
