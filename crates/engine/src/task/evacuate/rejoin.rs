//! Rejoin: extents that a stopped removal took out of segments become parts of segments again.
//!
//! The shape shows which extents these are, so a rejoin begins again after a crash. A plan examines
//! all segments, so it is made only when counts, taken in slices, show that enough of them may go.
//! Segments with content that is right in no copy cannot be emptied: they stay, and plans avoid
//! them until something changes that may help.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use millpond_format::{Group, Member, MemberState, SegmentId};

use super::super::resilver::Resilver;
use super::{Look, ROOM_LOOK_MILLIS};
use crate::space::{AllocClass, SegmentState, without_reserve};
use crate::store::{ROOM_MILLIS, Removal, STEP_PART, Store, Watermark, count_rows, joinable};
use crate::{Planted, Time};

/// Milliseconds before the next try to rejoin extents when the last gained nothing: at first, and
/// at most.
const LOOK_MILLIS: (u64, u64) = (20_000, 200_000);
/// Milliseconds before the next try when guests had no space, or waiting for space or devices was
/// in vain.
const REST_MILLIS: u64 = 60_000;
/// Segments examined in one turn.
const ROWS_PER_TURN: usize = 4096;

/// State of the rejoin of unused extents.
#[derive(Debug, Default)]
pub(crate) struct Rejoiner {
    /// Time of the next try.
    due: Time,
    /// Last pause in milliseconds after a plan that gained nothing.
    rest: u64,
    /// Generation of the labels that the other fields apply to.
    generation: u64,
    /// A plan was made: segments of these extents alone gain nothing.
    planned: bool,
    /// Segments with content that is right in no copy, and their use counts then.
    unreadable: BTreeMap<SegmentId, u32>,
    /// A count in progress.
    prospect: Option<Prospect>,
}

impl Rejoiner {
    /// Forgets which segments were unreadable: they may be readable now.
    pub(crate) fn forget_unreadable(&mut self) {
        self.unreadable.clear();
        self.rest = 0;
    }

    /// Starts anew when the labels have changed: devices were added, removed or became whole.
    fn see(&mut self, generation: u64) {
        if self.generation != generation {
            *self = Rejoiner { due: self.due, generation, ..Rejoiner::default() };
        }
    }
}

/// A count, in slices, whether enough segments may go to rejoin extents.
#[derive(Debug)]
struct Prospect {
    /// Unused extents may become segments of their own.
    alone: bool,
    /// For each kind of group the first segments, which every plan needs: runs of segments.
    kinds: VecDeque<Vec<Range<u32>>>,
    /// Counts of the examined segments of the first kind.
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

/// Limits of the segments that may go.
struct Bounds {
    /// Data segments, and their pages.
    data: (u64, u64),
    /// Units that must stay usable for guests.
    least: u64,
    /// Free segments that must stay, of data and of the log.
    floors: (usize, usize),
}

impl Prospect {
    /// Lists of each kind the fewest segments that a plan takes; `count` returns the segments of a
    /// group.
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

    /// Examines up to `most` more segments. Returns true when the first ones of a kind `may` all
    /// go, false when those of no kind may, and `None` when more are to be examined.
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

/// Returns the live bytes and since when they have been the same, while some segments cannot be
/// emptied. Skipped segments are retried every second, so there are checks at which none is paused:
/// only a move counts as progress.
fn stalled(known: Option<(u64, Time)>, live: u64, paused: bool, now: Time) -> Option<(u64, Time)> {
    known.filter(|(then, _)| *then == live).or_else(|| paused.then_some((live, now)))
}

impl Rejoiner {
    /// Rejoins unused extents when something is gained by it. `guests_wait`: writes wait for space.
    pub(super) fn rejoin(&mut self, store: &mut Store, resilver: &Resilver, guests_wait: bool) {
        let none = store.given_up_bytes() == 0 || store.tuning.plants(Planted::LeaveGivenUp);
        if none || store.now < self.due || guests_wait || !all_with_rows_are_there(store, resilver) {
            return;
        }
        self.see(store.config.shape.generation);
        let mut prospect = self.prospect.take().unwrap_or_else(|| begin_prospect(store));
        let bounds = bounds(store);
        let found = if prospect.alone && !self.planned {
            Some(true)
        } else {
            prospect.step(ROWS_PER_TURN, |counts, id| self.may_go_too(store, &bounds, counts, id))
        };
        let Some(promising) = found else {
            self.prospect = Some(prospect);
            return;
        };
        let plan = if promising { self.plan_rejoin(store) } else { None };
        let Some(removal) = plan else {
            self.planned |= promising;
            // a plan is work for one turn: where it gains nothing it becomes rare
            let longer = if promising { self.rest + self.rest / 2 } else { 0 };
            self.rest = longer.clamp(LOOK_MILLIS.0, LOOK_MILLIS.1);
            self.due = Time(store.now.0 + self.rest);
            return;
        };
        self.rest = 0;
        self.due = Time(store.now.0 + ROOM_LOOK_MILLIS);
        store.begin_evacuation(None, removal, 0);
        store.evacuation.iter_mut().for_each(|evacuation| evacuation.rejoins = true);
    }

    /// Ends a running rejoin when devices are missing.
    pub(super) fn leave_rejoin_without_devices(&mut self, store: &mut Store, resilver: &Resilver) {
        if store.evacuation.as_ref().is_some_and(|evacuation| evacuation.rejoins) && !all_with_rows_are_there(store, resilver) {
            self.end_rejoin(store, REST_MILLIS);
        }
    }
}

impl Rejoiner {
    /// Counts a segment that would go. Returns false when it may not, or too little would be left
    /// according to the counts.
    fn may_go_too(&self, store: &Store, bounds: &Bounds, counts: &mut Counts, id: SegmentId) -> bool {
        let segments = &store.core.space.segments;
        let Some(segment) = segments.get(id) else { return true };
        let log = segment.alloc_class == AllocClass::Log;
        let (own, floor) = if log { (&mut counts.log, bounds.floors.1) } else { (&mut counts.data, bounds.floors.0) };
        own.count += 1;
        own.free += usize::from(segment.state == SegmentState::Free);
        own.pages += u64::from(store.core.space.layout.pages(id));
        let (there, free) = (segments.count_in(segment.alloc_class), segments.free_in(segment.alloc_class));
        let some_stay = own.count < there && free.saturating_sub(own.free) > floor;
        let log_stays = !log || (own.count * 2 <= there && own.free * 2 <= free);
        let (count, pages) = (bounds.data.0.saturating_sub(counts.data.count as u64), bounds.data.1.saturating_sub(counts.data.pages));
        some_stay && log_stays && bounds.least <= without_reserve(count, pages) && !self.is_known_unreadable(store, id)
    }

    /// Returns whether a segment is known to have unreadable content, and has not been freed since.
    fn is_known_unreadable(&self, store: &Store, id: SegmentId) -> bool {
        let known = self.unreadable.get(&id);
        known.is_some_and(|uses| store.core.space.segments.get(id).is_some_and(|s| s.uses == *uses && s.state == SegmentState::Sealed))
    }

    fn plan_rejoin(&self, store: &Store) -> Option<Removal> {
        let objects = store.stored_objects();
        let segments = &store.core.space.segments;
        let some_stay = |gone: &BTreeSet<SegmentId>| {
            AllocClass::ALL.into_iter().all(|alloc_class| {
                let taken = gone.iter().filter(|id| segments.get(**id).is_some_and(|s| s.alloc_class == alloc_class)).count();
                taken == 0 || taken < segments.count_in(alloc_class)
            })
        };
        let readable = |gone: &BTreeSet<SegmentId>| {
            let mut known = self.unreadable.keys();
            !known.any(|id| gone.contains(id) && self.is_known_unreadable(store, *id))
        };
        Removal::plan_rejoin(&store.config.shape, |gone| readable(gone) && some_stay(gone) && store.can_go(gone, &objects, true))
    }

    /// Ends a running rejoin: moved data stays where it is, and the next try begins after `pause`
    /// milliseconds at the earliest.
    fn end_rejoin(&mut self, store: &mut Store, pause: u64) -> bool {
        let ended = store.evacuation.take_if(|evacuation| evacuation.rejoins);
        if let Some(evacuation) = &ended {
            store.core.space.stay(&evacuation.removal.segments);
            self.due = Time(store.now.0 + pause);
        }
        ended.is_some()
    }

    /// Ends a running rejoin before a change of devices, which has precedence.
    pub(crate) fn put_off_rejoin(&mut self, store: &mut Store) {
        self.end_rejoin(store, 0);
    }

    /// Ends a running rejoin before guests would be refused, so that they can use its segments.
    /// Returns false when none runs.
    pub(crate) fn leave_rejoin_to_guests(&mut self, store: &mut Store) -> bool {
        self.end_rejoin(store, REST_MILLIS)
    }

    /// Ends a rejoin whose segments cannot be emptied: at once where no copy has their content, so
    /// that the next plan avoids them; after a while where it waits for space or devices in vain.
    pub(super) fn gives_rejoin_up(&mut self, store: &mut Store, look: &Look) -> bool {
        let paused = look.away + look.lacks_room > 0;
        if !look.unreadable.is_empty() {
            let segments = &store.core.space.segments;
            let found = look.unreadable.iter().filter_map(|id| Some((*id, segments.get(*id)?.uses)));
            self.unreadable.extend(found);
            return self.end_rejoin(store, 0);
        }
        let Some(evacuation) = &store.evacuation else { return false };
        let live = store.live_bytes(evacuation.removal.segments.iter().copied());
        let stalled = stalled(evacuation.stalled, live, paused, store.now);
        store.evacuation.iter_mut().for_each(|evacuation| evacuation.stalled = stalled);
        paused && stalled.is_some_and(|(_, since)| store.now.0 >= since.0 + ROOM_MILLIS) && self.end_rejoin(store, REST_MILLIS)
    }

    /// Returns why extents are not rejoined; `None` while that is not known, or no extents are
    /// unused.
    pub(super) fn rejoin_waits(&self, store: &Store) -> Option<String> {
        let unreadable = self.unreadable.keys().filter(|id| self.is_known_unreadable(store, **id)).count();
        (unreadable > 0 && store.given_up_bytes() > 0).then(|| {
            "what a stopped removal gave up is not used again: no copy of something beside it can be read; a scrub tells what is lost"
                .to_owned()
        })
    }
}

fn bounds(store: &Store) -> Bounds {
    let data = store.core.space.segments.fills(AllocClass::Data);
    let data = data.map(|fill| (fill.there as u64, fill.there as u64 * u64::from(fill.pages)));
    let data = data.fold((0, 0), |(count, pages), fill| (count + fill.0, pages + fill.1));
    let floors = (store.floor_on(AllocClass::Data, Watermark::Guest), store.floor_on(AllocClass::Log, Watermark::Guest));
    Bounds { data, least: store.least_of_step(), floors }
}

fn begin_prospect(store: &Store) -> Prospect {
    let (alone, kinds) = joinable(&store.config.shape);
    Prospect::new(alone, &kinds, count_rows)
}

#[cfg(test)]
mod tests;

/// Returns whether every device that has segments is present and whole. A missing cache device
/// or spare has none.
fn all_with_rows_are_there(store: &Store, resilver: &Resilver) -> bool {
    let shape = &store.config.shape;
    let there = |member: &Member| matches!(member.state, MemberState::Present | MemberState::Gone) && member.replacement.is_none();
    let whole = shape.numbered().all(|(at, member)| shape.is_auxiliary(at) || there(member));
    whole && resilver.jobs().next().is_none()
}
