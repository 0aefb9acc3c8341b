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

use millpond_block::MemberId;
use millpond_format::MemberState;

use self::look::Look;
use super::cleaner::Cleaner;
use super::resilver::Resilver;
use crate::store::{Removal, STUCK_MILLIS, Store};
use crate::{Absent, Busy, CommandError, PoolState, RemovalPlan};

pub(crate) use rejoin::Rejoiner;

/// Milliseconds between checks whether there is space for a step.
const ROOM_LOOK_MILLIS: u64 = 2_000;

/// Milliseconds between scans of all segments that are to be given up.
const LOOK_MILLIS: u64 = 100;
/// Milliseconds after which a removal ends if only deadlists that cannot be read are left; they
/// were retried meanwhile.
const HOPELESS_MILLIS: u64 = 2 * STUCK_MILLIS + 5_000;

/// Other tasks that a removal depends on.
pub(crate) struct Beside<'a> {
    /// Rejoins extents that earlier removals left unused.
    pub(crate) rejoiner: &'a mut Rejoiner,
    /// Copies segments to devices.
    pub(crate) resilver: &'a Resilver,
    /// Moves live data.
    pub(crate) cleaner: &'a Cleaner,
    /// Writes of guests wait for space.
    pub(crate) guests_wait: bool,
}

/// Begins to remove a member that holds segments. The caller must have the labels written.
///
/// # Errors
/// The member does not exist, other devices are changing, or the others have no room for its data.
pub(crate) fn begin_removal(store: &mut Store, rejoiner: &mut Rejoiner, resilver: &Resilver, member: MemberId) -> Result<(), CommandError> {
    let leaving = check_removal(store, resilver, member)?;
    // segments that a rejoin was emptying count as free for the plan
    rejoiner.put_off_rejoin(store);
    let plan = store.plan_removal(member, leaving)?;
    store.removals.ended = None;
    if let Some((removal, later)) = plan {
        store.begin_evacuation(Some(member), removal, later);
    }
    if let Some(known) = store.config.shape.member_mut(member) {
        known.leaving = true;
    }
    Ok(())
}

/// Returns what a removal would take if it began now.
pub(crate) fn rehearse_removal(store: &Store, resilver: &Resilver, member: MemberId) -> Result<RemovalPlan, CommandError> {
    let rate = store.rate_beside_guests();
    // data of auxiliary devices is on other devices, too
    if store.config.shape.is_auxiliary(member) {
        store.check_unchanging()?;
        return Ok(RemovalPlan { moved: 0, others: Vec::new(), in_steps: false, rate });
    }
    let leaving = check_removal(store, resilver, member)?;
    let planned = store.plan_removal(member, leaving)?;
    let in_steps = planned.is_none_or(|(removal, _)| removal.members.is_empty());
    let whole = Removal::plan(&store.config.shape, member);
    let (members, segments) = whole.map(|whole| (whole.members, whole.segments)).unwrap_or_default();
    let others = members.into_iter().filter(|other| *other != member).collect();
    Ok(RemovalPlan { moved: store.live_bytes(segments.into_iter()), others, in_steps, rate })
}

/// Checks whether a removal can begin or continue. Returns true when it has begun.
fn check_removal(store: &Store, resilver: &Resilver, member: MemberId) -> Result<bool, CommandError> {
    let known = store.config.shape.member(member).filter(|m| m.state != MemberState::Gone);
    let Some(known) = known else { return Err(CommandError::NotFound(Absent::Member(member))) };
    let moving = store.evacuation.as_ref().is_some_and(|evacuation| !evacuation.rejoins);
    if known.replacement.is_some() || resilver.jobs().next().is_some() || moving {
        return Err(CommandError::Busy(Busy::DevicesChanging));
    }
    if store.labels.busy() {
        return Err(CommandError::Busy(Busy::Relabeling));
    }
    Ok(known.leaving)
}

/// Gives up segments that lost special devices left behind, until the shape has none any more.
fn give_up_left_behind(store: &mut Store, tasks: &mut Beside<'_>) {
    if tasks.resilver.jobs().next().is_some() || store.labels.busy() || store.now.0 < store.removals.left_behind_looked.0 + LOOK_MILLIS {
        return;
    }
    store.removals.left_behind_looked = store.now;
    match Removal::plan_left_behind(&store.config.shape) {
        Some(removal) => store.begin_evacuation(None, removal, 0),
        None => tasks.rejoiner.rejoin(store, tasks.resilver, tasks.guests_wait),
    }
}

/// Continues a removal that an import found in the labels. If it no longer fits, it ends and
/// the device stays.
fn go_on_removing(store: &mut Store, tasks: &mut Beside<'_>) {
    let Some(member) = store.member_leaving() else { return give_up_left_behind(store, tasks) };
    if tasks.resilver.jobs().next().is_some() || store.labels.busy() {
        return;
    }
    // scanning all segments takes time, and free space comes even slower
    let pause = if store.removals.wants_room() { ROOM_LOOK_MILLIS } else { LOOK_MILLIS };
    if store.evacuation.is_some() || !store.removals.is_due(store.now, pause) {
        return;
    }
    match begin_removal(store, tasks.rejoiner, tasks.resilver, member) {
        Ok(()) if store.evacuation.is_some() => store.removals.step_begins(),
        Ok(()) if store.waits_for_step() => {}
        Ok(()) => store.end_removal_for("there was no room for its next step for a minute; what was moved stays moved".to_owned()),
        Err(error) => store.end_removal_for(error.to_string()),
    }
}

/// Advances an evacuation. Returns true when it wants another turn soon.
pub(crate) fn step_evacuation(store: &mut Store, tasks: &mut Beside<'_>) -> bool {
    if store.state != PoolState::Online {
        return false;
    }
    if store.evacuation.is_none() {
        go_on_removing(store, tasks);
        return false;
    }
    tasks.rejoiner.leave_rejoin_without_devices(store, tasks.resilver);
    store.hop_over_leaving();
    let blocked = tasks.cleaner.is_blocked(store);
    let Some(evacuation) = &mut store.evacuation else { return false };
    if blocked {
        // nothing can be moved now: the segments are scanned again later
        evacuation.todo.clear();
    }
    if evacuation.has_more() {
        return !tasks.cleaner.is_reading() && store.jobs_may_go_on();
    }
    if store.now.0 < evacuation.looked.0 + LOOK_MILLIS || !tasks.cleaner.idle() {
        return false;
    }
    evacuation.looked = store.now;
    let Look { left, waits, .. } = match look_at_leaving(store, tasks.rejoiner) {
        Ok(look) => look,
        Err(lists) => {
            lists.into_iter().for_each(|lists| store.end_hopeless_removal(lists));
            return false;
        }
    };
    let Some(evacuation) = &mut store.evacuation else { return false };
    if left > 0 {
        store.checkpoint.forced |= waits && (blocked || !evacuation.has_more()) && !store.checkpoint.running();
        return true;
    }
    // streams of an older root may begin in segments that are given up
    let segments = &evacuation.removal.segments;
    let begins =
        store.log_tails.iter().any(|log_tail| log_tail.streams.iter().any(|s| segments.contains(&s.segment) || segments.contains(&s.next)));
    if begins || store.checkpoint.running() {
        store.checkpoint.forced |= begins && !store.checkpoint.running();
        return false;
    }
    store.end_evacuation();
    false
}

/// Scans all segments that are to be given up. Returns an error when the evacuation has ended,
/// or has to end because of the given number of segments with deadlists that are right in no
/// copy.
fn look_at_leaving(store: &mut Store, rejoiner: &mut Rejoiner) -> Result<Look, Option<u64>> {
    let Some(evacuation) = &store.evacuation else { return Err(None) };
    let (space, health, now) = (&store.core.space, &store.io.health, store.now.0);
    let mut look = Look::default();
    for id in &evacuation.removal.segments {
        space.segments.get(*id).into_iter().for_each(|segment| look.add(*id, segment, now, health, &space.layout));
    }
    if evacuation.rejoins && rejoiner.gives_rejoin_up(store, &look) {
        return Err(None);
    }
    let Some(evacuation) = &mut store.evacuation else { return Err(None) };
    // while the cleaner has work the last reason may hold again
    if look.todo.is_empty() {
        evacuation.waits = look.reason();
    }
    if look.away > 0 {
        // absent devices may have the deadlists that the others do not
        evacuation.hopeless = None;
    } else if look.lists > 0 && look.todo.is_empty() {
        let known = evacuation.hopeless.filter(|(then, _)| *then == look.left);
        let (_, since) = *evacuation.hopeless.insert(known.unwrap_or((look.left, store.now)));
        if now >= since.0 + HOPELESS_MILLIS {
            return Err(Some(look.lists));
        }
    }
    evacuation.todo = std::mem::take(&mut look.todo);
    Ok(look)
}

/// Returns why a removal, or a rejoin of extents that a removal gave up, makes no progress.
pub(crate) fn removal_waits(store: &Store, rejoiner: &Rejoiner) -> Option<String> {
    let waits = store.evacuation.as_ref().and_then(|evacuation| evacuation.waits.clone());
    waits.or_else(|| rejoiner.rejoin_waits(store))
}
