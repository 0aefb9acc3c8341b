//! Extents that steps of a removal took out of their rows become rows again when the removal was stopped.
//!
//! The shape says which extents these are, so this begins again after a crash. A plan looks at all rows, so it is made only when enough of
//! them may go as far as counts tell, which is looked at in slices. Rows with something that no copy has right cannot be emptied: they stay
//! as they are, and are planned around until something changes that may help.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use millpond_format::{Group, Member, MemberState, SegmentId};

use super::removal::{Removal, count_rows, joinable, unused_extents};
use super::{Look, ROOM_LOOK_MILLIS, ROOM_MILLIS, STEP_PART};
use crate::pool::Pool;
use crate::space::{SegmentState, Shelf, without_reserve};
use crate::task::reserve::Purse;
use crate::{Planted, Time};

/// Milliseconds until it is looked again whether extents can be joined to rows, when nothing was gained by it: at first, and at most.
const LOOK_MILLIS: (u64, u64) = (20_000, 200_000);
/// Milliseconds after which extents are joined to rows again, when guests had no room, or room or devices were waited for in vain.
const REST_MILLIS: u64 = 60_000;
/// Rows looked at in one turn.
const ROWS_PER_TURN: usize = 4096;

/// Knowledge about extents that are in no row since a removal was stopped.
#[derive(Debug, Default)]
pub(crate) struct Rejoiner {
    /// When they may become rows again.
    due: Time,
    /// Milliseconds of the last rest after a plan that gained nothing.
    rest: u64,
    /// Generation of the labels that all else is about.
    generation: u64,
    /// A plan was made: rows of these extents alone gain nothing.
    planned: bool,
    /// Segments with something that no copy has right, and how often each had been free then.
    unreadable: BTreeMap<SegmentId, u32>,
    /// A look at rows that is under way.
    prospect: Option<Prospect>,
}

impl Rejoiner {
    /// Rows that could not be read may be readable now.
    pub(crate) fn forget_unreadable(&mut self) {
        self.unreadable.clear();
        self.rest = 0;
    }

    /// Other labels are in force: devices came, left, or are whole again.
    fn see(&mut self, generation: u64) {
        if self.generation != generation {
            *self = Rejoiner { due: self.due, generation, ..Rejoiner::default() };
        }
    }
}

/// A look, in slices, whether so many rows may go that extents in none can join them.
#[derive(Debug)]
struct Prospect {
    /// Extents in no row may become rows by themselves.
    alone: bool,
    /// For each kind of rows the first ones, without which there is no plan: runs of segments.
    kinds: VecDeque<Vec<Range<u32>>>,
    /// The rows of the first kind that were looked at.
    counts: Counts,
}

/// Segments that would go.
#[derive(Debug, Default)]
struct Counts {
    data: Taken,
    log: Taken,
}

#[derive(Debug, Default)]
struct Taken {
    count: usize,
    free: usize,
    pages: u64,
}

/// The segments that have to be left.
struct Bounds {
    /// Segments for data, and their pages.
    data: (u64, u64),
    /// Units that guests can fill.
    least: u64,
    /// Free segments for data, and of the log.
    floors: (usize, usize),
}

impl Prospect {
    /// Of each kind, of which `count` gives the segments of a group, as many rows as a plan takes at least.
    fn new(alone: bool, kinds: &[Vec<&Group>], count: impl Fn(&Group) -> u32) -> Prospect {
        let first = |partners: &Vec<&Group>| {
            let all: u64 = partners.iter().map(|group| u64::from(count(group))).sum();
            let mut left = u32::try_from(all.div_ceil(STEP_PART as u64)).unwrap_or(u32::MAX);
            let mut runs = Vec::new();
            for group in partners {
                let rows = count(group).min(left);
                runs.push(group.first.0..group.first.0.saturating_add(rows));
                left -= rows;
            }
            runs
        };
        let kinds = kinds.iter().map(first).filter(|runs: &Vec<Range<u32>>| runs.iter().any(|run| !run.is_empty())).collect();
        Prospect { alone, kinds, counts: Counts::default() }
    }

    /// Looks at so many rows more. True when the first ones of a kind `may` all go, false when those of none may; nothing when there are
    /// more to look at.
    fn step(&mut self, mut most: usize, mut may: impl FnMut(&mut Counts, SegmentId) -> bool) -> Option<bool> {
        while let Some(kind) = self.kinds.front_mut() {
            let Some(run) = kind.last_mut() else { return Some(true) };
            if run.start >= run.end {
                kind.pop();
                continue;
            }
            if most == 0 {
                return None;
            }
            most -= 1;
            let id = SegmentId(run.start);
            run.start += 1;
            if !may(&mut self.counts, id) {
                self.kinds.pop_front();
                self.counts = Counts::default();
            }
        }
        Some(false)
    }
}

/// Since when so many bytes live in rows that cannot all be emptied. What is left alone is tried again every second, so there are looks at
/// which nothing is paused: only a move is progress.
fn stalled(known: Option<(u64, Time)>, live: u64, paused: bool, now: Time) -> Option<(u64, Time)> {
    known.filter(|(then, _)| *then == live).or_else(|| paused.then_some((live, now)))
}

impl Pool {
    /// Makes rows of extents that are in none since a removal was stopped, when something is gained by it.
    pub(super) fn rejoin(&mut self) {
        let none = self.given_up_bytes() == 0 || self.planted(Planted::LeaveGivenUp);
        if none || self.now < self.rejoiner.due || self.starved.is_some() || !self.all_with_rows_are_there() {
            return;
        }
        self.rejoiner.see(self.config.shape.generation);
        let mut prospect = self.rejoiner.prospect.take().unwrap_or_else(|| self.begin_prospect());
        let bounds = self.bounds();
        let found = if prospect.alone && !self.rejoiner.planned {
            Some(true)
        } else {
            prospect.step(ROWS_PER_TURN, |counts, id| self.may_go_too(&bounds, counts, id))
        };
        let Some(promising) = found else {
            self.rejoiner.prospect = Some(prospect);
            return;
        };
        let plan = if promising { self.plan_rejoin() } else { None };
        let rejoiner = &mut self.rejoiner;
        let Some(removal) = plan else {
            rejoiner.planned |= promising;
            // a plan is work for one turn: where it gains nothing it becomes rare
            let longer = if promising { rejoiner.rest + rejoiner.rest / 2 } else { 0 };
            rejoiner.rest = longer.clamp(LOOK_MILLIS.0, LOOK_MILLIS.1);
            rejoiner.due = Time(self.now.0 + rejoiner.rest);
            return;
        };
        rejoiner.rest = 0;
        rejoiner.due = Time(self.now.0 + ROOM_LOOK_MILLIS);
        self.begin_evacuation(None, removal, 0);
        self.evacuation.iter_mut().for_each(|evacuation| evacuation.rejoins = true);
    }

    /// Is every device whole that has segments? A cache or spare that is away has none.
    fn all_with_rows_are_there(&self) -> bool {
        let shape = &self.config.shape;
        let there = |member: &Member| matches!(member.state, MemberState::Present | MemberState::Gone) && member.successor.is_none();
        let whole = (0u16..).zip(&shape.members).all(|(at, member)| shape.is_aside(at) || there(member));
        whole && self.filler.jobs().next().is_none()
    }

    fn begin_prospect(&self) -> Prospect {
        let (alone, kinds) = joinable(&self.config.shape);
        Prospect::new(alone, &kinds, count_rows)
    }

    fn bounds(&self) -> Bounds {
        let data = self.core.space.segments.fills(Shelf::Data);
        let data = data.map(|fill| (fill.there as u64, fill.there as u64 * u64::from(fill.pages)));
        let data = data.fold((0, 0), |(count, pages), fill| (count + fill.0, pages + fill.1));
        let floors = (self.floor_on(Shelf::Data, Purse::Guest), self.floor_on(Shelf::Log, Purse::Guest));
        Bounds { data, least: self.least_of_step(), floors }
    }

    /// Counts a row that would go. False when it may not, or too little would be left as far as counts tell.
    fn may_go_too(&self, bounds: &Bounds, counts: &mut Counts, id: SegmentId) -> bool {
        let segments = &self.core.space.segments;
        let Some(segment) = segments.get(id) else { return true };
        let log = segment.shelf == Shelf::Log;
        let (own, floor) = if log { (&mut counts.log, bounds.floors.1) } else { (&mut counts.data, bounds.floors.0) };
        own.count += 1;
        own.free += usize::from(segment.state == SegmentState::Free);
        own.pages += u64::from(self.core.space.rows.pages(id));
        let (there, free) = (segments.count_in(segment.shelf), segments.free_in(segment.shelf));
        let some_stay = own.count < there && free.saturating_sub(own.free) > floor;
        let log_stays = !log || (own.count * 2 <= there && own.free * 2 <= free);
        let (count, pages) = (bounds.data.0.saturating_sub(counts.data.count as u64), bounds.data.1.saturating_sub(counts.data.pages));
        some_stay && log_stays && bounds.least <= without_reserve(count, pages) && !self.is_known_unreadable(id)
    }

    /// Is a segment one of those with something that no copy had right, and still holds it?
    fn is_known_unreadable(&self, id: SegmentId) -> bool {
        let known = self.rejoiner.unreadable.get(&id);
        known.is_some_and(|uses| self.core.space.segments.get(id).is_some_and(|s| s.uses == *uses && s.state == SegmentState::Sealed))
    }

    fn plan_rejoin(&self) -> Option<Removal> {
        let objects = self.stored_objects();
        let segments = &self.core.space.segments;
        let some_stay = |gone: &BTreeSet<SegmentId>| {
            Shelf::ALL.into_iter().all(|shelf| {
                let taken = gone.iter().filter(|id| segments.get(**id).is_some_and(|s| s.shelf == shelf)).count();
                taken == 0 || taken < segments.count_in(shelf)
            })
        };
        let readable = |gone: &BTreeSet<SegmentId>| {
            let mut known = self.rejoiner.unreadable.keys();
            !known.any(|id| gone.contains(id) && self.is_known_unreadable(*id))
        };
        Removal::plan_rejoin(&self.config.shape, |gone| readable(gone) && some_stay(gone) && self.can_go(gone, &objects, true))
    }

    /// Ends it where it runs: what was moved stays where it is, and it begins again after so many milliseconds at the earliest.
    fn end_rejoin(&mut self, pause: u64) -> bool {
        let ended = self.evacuation.take_if(|evacuation| evacuation.rejoins);
        if let Some(evacuation) = &ended {
            self.core.space.stay(&evacuation.removal.segments);
            self.rejoiner.due = Time(self.now.0 + pause);
        }
        ended.is_some()
    }

    /// The segments that are being emptied are to be joined again, which can wait.
    pub(crate) fn is_rejoining(&self) -> bool {
        self.evacuation.as_ref().is_some_and(|evacuation| evacuation.rejoins)
    }

    /// Devices are to be changed: that goes before.
    pub(crate) fn put_off_rejoin(&mut self) {
        self.end_rejoin(0);
    }

    /// Guests would be refused: the segments that were to be emptied are theirs again. False when there are none of that kind.
    pub(crate) fn leave_rejoin_to_guests(&mut self) -> bool {
        self.end_rejoin(REST_MILLIS)
    }

    /// Devices are missing now: that has to be over first.
    pub(super) fn leave_rejoin_without_devices(&mut self) {
        if self.evacuation.as_ref().is_some_and(|evacuation| evacuation.rejoins) && !self.all_with_rows_are_there() {
            self.end_rejoin(REST_MILLIS);
        }
    }

    /// Ends it when rows cannot be emptied: at once where no copy has what is in them, and it is planned without those rows; after a while
    /// where room or devices are waited for in vain.
    pub(super) fn gives_rejoin_up(&mut self, look: &Look) -> bool {
        let paused = look.away + look.crowded > 0;
        if !look.unreadable.is_empty() {
            let segments = &self.core.space.segments;
            let found = look.unreadable.iter().filter_map(|id| Some((*id, segments.get(*id)?.uses)));
            self.rejoiner.unreadable.extend(found);
            return self.end_rejoin(0);
        }
        let Some(evacuation) = &self.evacuation else { return false };
        let live = self.live_bytes(evacuation.removal.segments.iter().copied());
        let stalled = stalled(evacuation.stalled, live, paused, self.now);
        self.evacuation.iter_mut().for_each(|evacuation| evacuation.stalled = stalled);
        paused && stalled.is_some_and(|(_, since)| self.now.0 >= since.0 + ROOM_MILLIS) && self.end_rejoin(REST_MILLIS)
    }

    /// Why rows do not come back; nothing while that is not known, or where none are given up.
    pub(super) fn rejoin_waits(&self) -> Option<String> {
        let unreadable = self.rejoiner.unreadable.keys().filter(|id| self.is_known_unreadable(**id)).count();
        (unreadable > 0 && self.given_up_bytes() > 0).then(|| {
            "what a stopped removal gave up is not used again: no copy of something beside it can be read; a scrub tells what is lost"
                .to_owned()
        })
    }

    /// Bytes of extents that are in no segment because a removal that does not go on took them out of their rows.
    pub(crate) fn given_up_bytes(&self) -> u64 {
        let shape = &self.config.shape;
        if self.member_leaving().is_some() {
            return 0;
        }
        let runs = unused_extents(shape).into_values().flatten();
        runs.map(|run| u64::from(run.extents) * shape.extent_bytes).sum()
    }
}

#[cfg(test)]
mod tests;
