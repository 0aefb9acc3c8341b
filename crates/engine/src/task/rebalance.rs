//! Rebalancing: moves data out of groups that hold more than their share, because other groups were
//! added later.
//!
//! It is done by cleaning (I7): segments of groups that are too full are emptied, those with the
//! fewest live blocks first, and while the job runs moved blocks go to the other groups. Maps do
//! not change, and a crash leaves nothing half done: the job scans the segments again. Guests'
//! writes are spread over the groups by their free space anyway (`SegmentTable::reserve`).

use std::collections::VecDeque;

use millpond_block::MemberId;
use millpond_format::SegmentId;

use super::cleaner::Cleaner;
use crate::log::META_CLASS;
use crate::space::{AllocClass, Fill, PAGE, Segment, SegmentState};
use crate::store::Store;
use crate::{Absent, Busy, CommandError, GroupFill, JobInfo, JobKind, PoolState, Reply, Time};

/// Excess over its share that a group may keep: 1/N of its segments, and so many more.
const SLACK: (usize, usize) = (32, 2);
/// Free segments left unused, beyond those that the cleaner aims for.
const SPARE: usize = 2;
/// Milliseconds between scans for remaining work.
const LOOK_MILLIS: u64 = 100;
/// Milliseconds without free space after which a rebalance ends, and between checkpoints that may
/// free some.
const PATIENCE: u64 = 60_000;
const CHECKPOINT_MILLIS: u64 = 1_000;
/// Scans without gain after which the rest cannot be moved.
const SCANS_WITHOUT_GAIN: u32 = 3;

/// A running rebalance.
#[derive(Debug, Default)]
struct Run {
    /// Segments to empty, as of the last scan.
    todo: VecDeque<SegmentId>,
    looked: Time,
    /// Bytes above the groups' shares: now, and at the start.
    left: u64,
    total: u64,
    /// The smallest `left` of all scans, and scans since then.
    least: Option<u64>,
    without_gain: u32,
    /// Since when there is no room for moves.
    short_since: Option<Time>,
}

/// The rebalance task.
#[derive(Debug, Default)]
pub(crate) struct Rebalancer {
    running: Option<Run>,
}

impl Rebalancer {
    /// Returns whether a rebalance runs, and shall continue after an import.
    pub(crate) fn is_on(&self) -> bool {
        self.running.is_some()
    }

    /// Returns whether the cleaner has segments to empty.
    pub(crate) fn has_more(&self) -> bool {
        self.running.as_ref().is_some_and(|run| !run.todo.is_empty())
    }

    /// Returns whether it waits for space; segments are then not retained for a rewind by time
    /// alone.
    pub(crate) fn waits_for_space(&self) -> bool {
        self.running.as_ref().is_some_and(|run| run.short_since.is_some())
    }

    pub(crate) fn begin(&mut self) {
        self.running = Some(Run::default());
    }
}

/// A group and the number of its segments above its share.
struct Surplus {
    fill: Fill,
    above: usize,
}

impl Rebalancer {
    /// Continues a rebalance. Returns true when it wants another turn soon.
    pub(crate) fn step_rebalance(&mut self, store: &mut Store, cleaner: &mut Cleaner) -> bool {
        if store.state != PoolState::Online {
            return false;
        }
        let room = has_room_to_move(store);
        let Some(run) = &mut self.running else { return false };
        if !run.todo.is_empty() && !room {
            self.wait_for_room(store, cleaner);
            return false;
        }
        run.short_since = None;
        if !run.todo.is_empty() {
            return cleaner.cleans_for_jobs(store);
        }
        if store.now.0 < run.looked.0 + LOOK_MILLIS || !cleaner.idle() || store.evacuation.is_some() {
            return false;
        }
        self.look_for_surplus(store);
        true
    }

    /// Waits for free space: moves leave segments behind that only checkpoints free.
    fn wait_for_room(&mut self, store: &mut Store, cleaner: &Cleaner) {
        let (now, idle) = (store.now, cleaner.idle() && !store.checkpoint.running());
        let Some(run) = &mut self.running else { return };
        let since = *run.short_since.get_or_insert(now);
        if now.0 > since.0 + PATIENCE {
            return self.end_rebalance(store);
        }
        if idle && now.0 >= run.looked.0 + CHECKPOINT_MILLIS {
            run.looked = now;
            store.checkpoint.forced |= store.core.space.segments.retained_in(AllocClass::Data) > 0;
        }
    }
}

impl Rebalancer {
    /// Begins to even out groups, or returns what that would move. Does not begin when there is
    /// nothing to do.
    pub(crate) fn rebalance(&mut self, store: &mut Store, dry_run: bool) -> Result<Reply, CommandError> {
        if self.is_on() {
            return Err(CommandError::Busy(Busy::Rebalancing));
        }
        if store.evacuation.is_some() && !dry_run {
            return Err(CommandError::Busy(Busy::RemovingBeforeRebalance));
        }
        let fills: Vec<GroupFill> = surpluses(store).iter().map(|surplus| group_fill(store, surplus)).collect();
        if !dry_run && fills.iter().any(|fill| fill.surplus > 0) {
            self.begin();
        }
        Ok(Reply::Fills(fills))
    }

    /// Stops a rebalance; moved data stays where it is.
    pub(crate) fn stop_rebalance(&mut self, store: &mut Store) -> Result<Reply, CommandError> {
        if !self.is_on() {
            return Err(CommandError::NotFound(Absent::Rebalance));
        }
        self.end_rebalance(store);
        Ok(Reply::Done)
    }

    pub(crate) fn end_rebalance(&mut self, store: &mut Store) {
        self.running = None;
        store.core.space.segments.spare_groups(&[]);
        store.pace.record_soon();
    }

    /// Returns the progress of the rebalance.
    pub(crate) fn rebalance_job(&self) -> Option<JobInfo> {
        let run = self.running.as_ref()?;
        let done = run.total.saturating_sub(run.left);
        Some(JobInfo { kind: JobKind::Rebalance, member: None, done, total: run.total, errors: 0, rate: 0 })
    }

    fn look_for_surplus(&mut self, store: &mut Store) {
        let surpluses = surpluses(store);
        let left: u64 = surpluses.iter().map(|surplus| group_fill(store, surplus).surplus).sum();
        let now = store.now;
        let Some(run) = &mut self.running else { return };
        run.looked = now;
        (run.left, run.total) = (left, run.total.max(left));
        run.without_gain = if run.least.is_none_or(|least| left < least) { 0 } else { run.without_gain + 1 };
        run.least = Some(run.least.map_or(left, |least| least.min(left)));
        if left == 0 || run.without_gain == SCANS_WITHOUT_GAIN {
            return self.end_rebalance(store);
        }
        let full: Vec<&Surplus> = surpluses.iter().filter(|surplus| surplus.above > 0).collect();
        let spared: Vec<SegmentId> = full.iter().map(|surplus| surplus.fill.first).collect();
        let segments = &mut store.core.space.segments;
        segments.spare_groups(&spared);
        let mut todo = VecDeque::new();
        for surplus in full {
            let of_group = segments.ids().filter(|id| segments.group_of(*id) == Some(surplus.fill.first));
            let mut found: Vec<(u32, SegmentId)> = of_group.filter_map(|id| Some((movable(segments.get(id)?)?, id))).collect();
            found.sort_unstable();
            todo.extend(found.iter().take(surplus.above).map(|(_, id)| *id));
        }
        if let Some(run) = &mut self.running {
            run.todo = todo;
        }
    }

    /// Returns the next segment that a rebalance wants emptied.
    pub(crate) fn next_surplus(&mut self, store: &mut Store) -> Option<SegmentId> {
        if !self.has_more() || !has_room_to_move(store) {
            return None;
        }
        let written = store.checkpoint.running();
        let run = self.running.as_mut()?;
        while let Some(id) = run.todo.pop_front() {
            run.left = run.left.saturating_sub(u64::from(store.core.space.layout.pages(id)) * PAGE);
            let ready = store.core.space.segments.get(id).is_some_and(|s| {
                movable(s).is_some()
                    && s.left_until <= store.now.0
                    // nodes are not moved while a checkpoint writes them
                    && !(written && s.class == META_CLASS)
                    && !store.log.is_in_flight(id)
            });
            if ready {
                return Some(id);
            }
        }
        None
    }
}

/// Returns the live units of a segment if the cleaner can empty it. Checkpoints rewrite objects
/// themselves.
fn movable(segment: &Segment) -> Option<u32> {
    (segment.state == SegmentState::Sealed && segment.objects == 0 && segment.placed > 0).then_some(segment.live)
}

/// Returns whether so much is free that moving takes nothing from guests.
fn has_room_to_move(store: &Store) -> bool {
    store.free_in(AllocClass::Data) > store.wanted_free(AllocClass::Data) + SPARE
}

/// Returns the excess of each data group over its share: the fraction of its segments that is
/// in use in all groups together.
fn surpluses(store: &Store) -> Vec<Surplus> {
    let fills: Vec<Fill> = store.core.space.segments.fills(AllocClass::Data).collect();
    let pages = |of: &dyn Fn(&Fill) -> usize| fills.iter().map(|fill| of(fill) as u128 * u128::from(fill.pages)).sum::<u128>();
    let (used, there) = (pages(&|fill| fill.used), pages(&|fill| fill.there).max(1));
    let surplus = |fill: &Fill| {
        let fair = usize::try_from((fill.there as u128 * used).div_ceil(there)).unwrap_or(usize::MAX);
        let above = fill.used.saturating_sub(fair);
        let slack = fill.there / SLACK.0 + SLACK.1;
        Surplus { fill: *fill, above: if above > slack { above } else { 0 } }
    };
    fills.iter().map(surplus).collect()
}

fn group_fill(store: &Store, surplus: &Surplus) -> GroupFill {
    let Surplus { fill, above } = surplus;
    let bytes = |segments: usize| segments as u64 * u64::from(fill.pages) * PAGE;
    // the first segments of a group may be gone while a device is removed from it
    let group = store.config.shape.groups.iter().filter(|group| group.first >= fill.first).min_by_key(|group| group.first);
    let mut members: Vec<MemberId> = group.map(|group| group.columns.iter().map(|column| column.member).collect()).unwrap_or_default();
    members.sort_unstable();
    members.dedup();
    GroupFill { members, size: bytes(fill.there), allocated: bytes(fill.used), surplus: bytes(*above) }
}
