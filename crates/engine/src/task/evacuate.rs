//! Evacuation: a device leaves the pool, of whatever layout, while it is in use.
//!
//! Segments with a part on it are not handed out any more, and the cleaner moves what lives in the others; maps never change for it (I7).
//! Objects of checkpoints are written anew by the next one. When nothing needs those segments, the shape does without them: what is
//! left of the devices that shared them becomes new segments, and nothing remembers the device but its place in the table.
//!
//! When the others have no room for all of it now, but will have, because every segment has a part on the device, it goes in steps: as many
//! segments as can be done without are emptied into the others, and what comes of them takes in the next ones. When that is stopped half-
//! way the extents
//! of the device that steps took out of their rows are in no segment; they become rows again, with what the steps made of the others.

mod look;
mod rejoin;
mod removal;

use std::collections::{BTreeSet, VecDeque};

use millpond_block::Tag;
use millpond_format::{Class, Encoder, MemberState, SegmentId};

use super::checkpoint::ObjectsIn;
use super::reserve::{LEAST_LOG, Purse};
use crate::io::Health;
use crate::log::{BatchKind, OpenBatch, SMALL};
use crate::pool::{Pool, STUCK_MILLIS};
use crate::space::{Rows, Segment, SegmentState, Shelf, usable};
use crate::{CommandError, JobInfo, JobKind, PoolState, RemovalPlan, Time};
use look::Look;
pub(crate) use rejoin::Rejoiner;
use removal::Removal;
pub(crate) use removal::runs;

/// Steps of a removal that may be foreseen: each leaves groups behind.
const MOST_STEPS: u32 = 10;
/// Such a part of what lives has to fit besides.
const CLEANING_PART: u64 = 16;
/// A step empties such a part of what is left at least.
const STEP_PART: usize = 16;
/// Milliseconds without gain after which a removal does not wait for room any longer.
const ROOM_MILLIS: u64 = 60_000;
/// Milliseconds between looks whether there is room for a step.
const ROOM_LOOK_MILLIS: u64 = 2_000;
/// Bytes of a unit of what lives.
const UNIT_BYTES: u64 = 512;
/// Milliseconds between looks at all segments that are to be given up.
const LOOK_MILLIS: u64 = 100;
/// Milliseconds after which a removal ends of which nothing is left but deadlists that cannot be read: they were tried again meanwhile.
const HOPELESS_MILLIS: u64 = 2 * STUCK_MILLIS + 5_000;

/// An evacuation on its way.
#[derive(Debug)]
pub(crate) struct Evacuation {
    /// Who leaves; nobody when it is rows that special devices left behind, or that are to be wider ones.
    member: Option<u16>,
    /// Nobody leaves: rows become wider ones with extents that a removal left in none.
    rejoins: bool,
    removal: Removal,
    /// Bytes that lived in its segments when it began.
    total: u64,
    /// Bytes in segments that the steps after this one are to empty.
    later: u64,
    /// Segments that the cleaner is to empty, as of the last look at all of them.
    todo: VecDeque<SegmentId>,
    /// When that look was.
    looked: Time,
    /// Since when there are so many segments left, and nothing to do but to try again what cannot be read.
    hopeless: Option<(u64, Time)>,
    /// Since when so many bytes live in them, while there is nothing to do but to wait for room or for devices.
    stalled: Option<(u64, Time)>,
    /// Why it does not go on.
    waits: Option<String>,
}

/// What is known of a removal from step to step.
#[derive(Debug, Default)]
pub(crate) struct Departure {
    /// Bytes that steps have moved, until the labels say that the device has left; and bytes that the next steps are to move.
    moved: u64,
    later: u64,
    /// When the next step was looked for.
    looked: Time,
    /// Since when it waits for the cleaner to make room, and how many segments were free at most meanwhile.
    room: Option<(Time, usize)>,
}

impl Departure {
    /// Has the cleaner to make room for a step?
    pub(crate) fn wants_room(&self) -> bool {
        self.room.is_some()
    }
}

impl Evacuation {
    /// Is there something for the cleaner to do?
    pub(crate) fn has_more(&self) -> bool {
        !self.todo.is_empty()
    }
}

/// Is `all` emptied in few steps, when so much is `free`, each takes half of that, and of all of it `lost` does not come back?
fn few_steps(all: u64, lost: u64, mut free: u64) -> bool {
    let mut left = all;
    (0..MOST_STEPS).any(|_| {
        let step = left.min(free / 2);
        (left, free) = (left - step, free.saturating_sub(step * lost / all.max(1)));
        left == 0
    })
}

impl Pool {
    /// Begins to do without a member. The labels are still to say so.
    pub(crate) fn remove_member(&mut self, member: u16) -> Result<(), CommandError> {
        if self.config.shape.is_aside(member) {
            return self.remove_aside(member);
        }
        let leaving = self.check_removal(member)?;
        // what it was emptying is free for the plan, too
        self.put_off_rejoin();
        let plan = self.plan_removal(member, leaving)?;
        self.removal_ended = None;
        if let Some((removal, later)) = plan {
            self.begin_evacuation(Some(member), removal, later);
        }
        if let Some(known) = self.config.shape.members.get_mut(usize::from(member)) {
            known.leaving = true;
        }
        Ok(())
    }

    /// What a removal would take, when it could begin now.
    pub(crate) fn rehearse_removal(&self, member: u16) -> Result<RemovalPlan, CommandError> {
        let rate = self.rate_beside_guests();
        // what is on it is elsewhere, too
        if self.config.shape.is_aside(member) {
            self.check_unchanging()?;
            return Ok(RemovalPlan { moved: 0, others: Vec::new(), in_steps: false, rate });
        }
        let leaving = self.check_removal(member)?;
        let planned = self.plan_removal(member, leaving)?;
        let in_steps = planned.is_none_or(|(removal, _)| removal.members.is_empty());
        let whole = Removal::plan(&self.config.shape, member);
        let (members, segments) = whole.map(|whole| (whole.members, whole.segments)).unwrap_or_default();
        let others = members.into_iter().filter(|other| *other != member).collect();
        Ok(RemovalPlan { moved: self.live_bytes(segments.into_iter()), others, in_steps, rate })
    }

    /// Can a removal begin, or go on? True when it has begun.
    fn check_removal(&self, member: u16) -> Result<bool, CommandError> {
        let known = self.config.shape.members.get(usize::from(member)).filter(|m| m.state != MemberState::Gone);
        let Some(known) = known else { return Err(CommandError::NotFound(format!("member {member}"))) };
        let changing = self.evacuation.as_ref().is_some_and(|evacuation| !evacuation.rejoins) || self.relabeler.busy();
        if known.successor.is_some() || self.filler.jobs().next().is_some() || changing {
            return Err(CommandError::Busy("devices are just being changed; try again when 'pool jobs' is empty".into()));
        }
        Ok(known.leaving)
    }

    /// How to go on doing without a member: with all of it when the others have room for it, else with a step that makes some, and how many
    /// bytes later steps are to move. Nothing as long as the cleaner has to make room for a step.
    fn plan_removal(&self, member: u16, begun: bool) -> Result<Option<(Removal, u64)>, CommandError> {
        let (shape, space) = (&self.config.shape, &self.core.space);
        let Some(whole) = Removal::plan(shape, member) else {
            return Err(CommandError::Invalid(
                "the pool needs this device: nothing would be left, or it could not be told in a label".into(),
            ));
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
            return Err(CommandError::Invalid(format!(
                "what is on this device does not fit on the others: {} MiB more are needed; add a device or destroy something first",
                ((needed - after) * 512).div_ceil(1 << 20)
            )));
        }
        if in_steps && (begun || self.steps_lead_to(&whole, &rows)) {
            let step = Removal::plan_step(shape, member, can_go);
            let step = step.filter(|step| step.segments.len() * STEP_PART >= whole.segments.len());
            return Ok(step.map(|step| {
                let later = self.live_bytes(whole.segments.difference(&step.segments).copied());
                (step, later)
            }));
        }
        // what was begun goes on: it had room then
        if begun && space.live_units() <= space.usable_without(&whole.segments) && !self.misses_log_without(&whole.segments) {
            return Ok(Some((whole, 0)));
        }
        Err(CommandError::Invalid("too little is free, so there is no room to move to; add a device or destroy something first".into()))
    }

    /// Can these be done without for now, or for good? Guests go on writing: a step takes half of what is free at most, and half of the
    /// log and of what is
    /// free of it.
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

    /// Units that guests can fill in what a step leaves: it takes half of what is free at most.
    fn least_of_step(&self) -> u64 {
        let needed = self.needed_units();
        needed.max(needed.midpoint(self.core.space.usable_units()))
    }

    /// What lives, and some more: a removal is cleaning, which makes no room where all is full.
    fn needed_units(&self) -> u64 {
        let live = self.core.space.live_units();
        live + live / CLEANING_PART
    }

    /// Do few steps lead to the end? `after`: rows at the end.
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

    /// Bytes of blocks and nodes that live in segments, each copy once.
    fn live_bytes(&self, segments: impl Iterator<Item = SegmentId>) -> u64 {
        let live = |id| self.core.space.segments.get(id).map_or(0, |segment| u64::from(segment.live) * UNIT_BYTES);
        segments.map(live).sum()
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

    /// Gives up rows that special devices left behind: the shape says that there are some, until it does without them.
    fn give_up_left_behind(&mut self) {
        if self.filler.jobs().next().is_some() || self.relabeler.busy() || self.now.0 < self.left_behind_looked.0 + LOOK_MILLIS {
            return;
        }
        self.left_behind_looked = self.now;
        match Removal::plan_left_behind(&self.config.shape) {
            Some(removal) => self.begin_evacuation(None, removal, 0),
            None => self.rejoin(),
        }
    }

    /// The member that the labels say is to leave.
    pub(crate) fn member_leaving(&self) -> Option<u16> {
        (0u16..).zip(&self.config.shape.members).find(|(_, known)| known.leaving).map(|(at, _)| at)
    }

    /// Goes on with what an import found begun. What does not fit any more stays.
    fn go_on_removing(&mut self) {
        let Some(member) = self.member_leaving() else { return self.give_up_left_behind() };
        if self.filler.jobs().next().is_some() || self.relabeler.busy() {
            return;
        }
        // a look at all segments takes time, and room takes longer
        let pause = if self.departure.wants_room() { ROOM_LOOK_MILLIS } else { LOOK_MILLIS };
        if self.evacuation.is_some() || self.now.0 < self.departure.looked.0 + pause {
            return;
        }
        self.departure.looked = self.now;
        match self.remove_member(member) {
            Ok(()) if self.evacuation.is_some() => self.departure.room = None,
            Ok(()) if self.waits_for_step() => {}
            Ok(()) => self.end_removal_for("there was no room for its next step for a minute; what was moved stays moved".to_owned()),
            Err(error) => self.end_removal_for(error.to_string()),
        }
    }

    /// The next step has to wait for the cleaner. False when that gained nothing for long.
    fn waits_for_step(&mut self) -> bool {
        let free = self.free_in(Shelf::Data) + self.free_in(Shelf::Log);
        let (since, most) = *self.departure.room.get_or_insert((self.now, free));
        if free > most {
            self.departure.room = Some((self.now, free));
        }
        free > most || self.now.0 < since.0 + ROOM_MILLIS
    }

    /// Nobody leaves any more, once the labels say so.
    fn keep_leaving(&mut self) {
        self.config.shape.members.iter_mut().for_each(|known| known.leaving = false);
        self.departure = Departure::default();
    }

    /// Ends an evacuation: what was moved stays where it is, and the device can be filled again. The labels are still to say so.
    pub(crate) fn stop_removing(&mut self) -> Result<(), CommandError> {
        if self.member_leaving().is_none() {
            return Err(CommandError::NotFound("a removal".into()));
        }
        let evacuation = self.evacuation.take();
        if let Some(evacuation) = evacuation {
            self.core.space.stay(&evacuation.removal.segments);
        }
        self.keep_leaving();
        Ok(())
    }

    /// Bytes moved and to be moved. What guests free meanwhile needs no move, and counts as done.
    pub(crate) fn evacuation_job(&self) -> Option<JobInfo> {
        let (moved, later) = (self.departure.moved, self.departure.later);
        let job = |member, done, left| JobInfo { kind: JobKind::Remove, member, done, total: done + left, errors: 0, rate: 0 };
        if let Some(member) = self.relabeler.left.keys().next() {
            return Some(job(Some(*member), moved, 0));
        }
        let Some(evacuation) = &self.evacuation else {
            // after an import or a step, until it is its turn
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

    /// Goes on with an evacuation. True when it wants another turn soon.
    pub(crate) fn step_evacuation(&mut self) -> bool {
        if self.state != PoolState::Online {
            return false;
        }
        if self.evacuation.is_none() {
            self.go_on_removing();
            return false;
        }
        self.leave_rejoin_without_devices();
        self.hop_over_leaving();
        let blocked = self.is_blocked();
        let Some(evacuation) = &mut self.evacuation else { return false };
        if blocked {
            // nothing can be moved now: they are looked for again
            evacuation.todo.clear();
        }
        if evacuation.has_more() {
            return !self.cleaner.is_reading() && self.jobs_may_go_on();
        }
        if self.now.0 < evacuation.looked.0 + LOOK_MILLIS || !self.cleaner.idle() {
            return false;
        }
        evacuation.looked = self.now;
        let Look { left, waits, .. } = match self.look_at_leaving() {
            Ok(look) => look,
            Err(lists) => {
                lists.into_iter().for_each(|lists| self.end_hopeless_removal(lists));
                return false;
            }
        };
        let Some(evacuation) = &mut self.evacuation else { return false };
        if left > 0 {
            self.checkpointer.forced |= waits && (blocked || !evacuation.has_more()) && !self.checkpointer.running();
            return true;
        }
        // streams of an older root may begin in what is given up
        let segments = &evacuation.removal.segments;
        let begins = self.legs.iter().any(|leg| leg.streams.iter().any(|s| segments.contains(&s.segment) || segments.contains(&s.next)));
        if begins || self.checkpointer.running() {
            self.checkpointer.forced |= begins && !self.checkpointer.running();
            return false;
        }
        self.end_evacuation();
        false
    }

    /// Looks at all segments that are to be given up. An error when the evacuation has ended, or has to: because of so many segments with
    /// deadlists that no copy has right.
    fn look_at_leaving(&mut self) -> Result<Look, Option<u64>> {
        let Some(evacuation) = &self.evacuation else { return Err(None) };
        let (space, health, now) = (&self.core.space, &self.io.health, self.now.0);
        let mut look = Look::default();
        for id in &evacuation.removal.segments {
            space.segments.get(*id).into_iter().for_each(|segment| look.add(*id, segment, now, health, &space.rows));
        }
        if evacuation.rejoins && self.gives_rejoin_up(&look) {
            return Err(None);
        }
        let Some(evacuation) = &mut self.evacuation else { return Err(None) };
        // as long as the cleaner has something to do the last reason may hold again
        if look.todo.is_empty() {
            evacuation.waits = look.reason();
        }
        if look.away > 0 {
            // they may have what the others do not
            evacuation.hopeless = None;
        } else if look.lists > 0 && look.todo.is_empty() {
            let known = evacuation.hopeless.filter(|(then, _)| *then == look.left);
            let (_, since) = *evacuation.hopeless.insert(known.unwrap_or((look.left, self.now)));
            if now >= since.0 + HOPELESS_MILLIS {
                return Err(Some(look.lists));
            }
        }
        evacuation.todo = std::mem::take(&mut look.todo);
        Ok(look)
    }

    /// Why a removal does not go on, or rows that one gave up do not come back.
    pub(crate) fn removal_waits(&self) -> Option<String> {
        let waits = self.evacuation.as_ref().and_then(|evacuation| evacuation.waits.clone());
        waits.or_else(|| self.rejoin_waits())
    }

    /// Streams leave segments that are to be given up, those that they have been promised too: a batch of nothing leads replay on.
    pub(super) fn hop_over_leaving(&mut self) {
        let meta = [self.checkpointer.nodes_at, self.checkpointer.objects_at];
        if !self.checkpointer.running() && meta.iter().flatten().any(|cursor| self.is_leaving(Some(cursor.segment))) {
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
                // nobody else knows of it when special devices are lost
                self.log.notes.seal(header.lsn);
            }
            self.submit_batch(stream, &header, batch, Vec::new());
            self.leave_open_segments();
        }
    }

    fn is_leaving(&self, id: Option<SegmentId>) -> bool {
        id.is_some_and(|id| self.core.space.segments.get(id).is_some_and(Segment::is_given_up))
    }

    /// Nothing needs the segments any more: the shape does without them.
    fn end_evacuation(&mut self) {
        let Some(evacuation) = self.evacuation.take() else { return };
        let Removal { members, segments, shape } = evacuation.removal;
        // what special devices left behind is no device's
        let moved = if evacuation.member.is_some() { self.departure.moved + evacuation.total } else { 0 };
        let later = if members.is_empty() { evacuation.later } else { 0 };
        self.departure = Departure { moved, later, ..Departure::default() };
        let class = |at: &u16| (*at, self.config.shape.class_of(*at).unwrap_or(Class::Data));
        self.relabeler.left.extend(members.iter().map(class));
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

    /// The labels say who has left: their devices are nobody's from now on.
    pub(crate) fn let_go(&mut self) {
        let left = std::mem::take(&mut self.relabeler.left);
        if !left.is_empty() {
            self.departure = Departure::default();
        }
        for at in left.into_keys() {
            self.io.set_position(at, u16::MAX);
            if let Some(size) = self.config.sizes.get_mut(usize::from(at)) {
                *size = 0;
            }
        }
    }

    /// The rest of a removal cannot be done: nobody waits for it.
    fn end_hopeless_removal(&mut self, segments: u64) {
        let mib = (segments * self.config.shape.extent_bytes).div_ceil(1 << 20);
        let why = format!("deadlists of {segments} segments ({mib} MiB) cannot be read on any copy; what was moved stays moved");
        self.end_removal_for(why);
    }

    fn end_removal_for(&mut self, why: String) {
        if self.stop_removing().is_ok() {
            self.removal_ended = Some(why);
            self.relabel(None);
        }
    }

    /// The next segment that an evacuation wants emptied.
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
}
