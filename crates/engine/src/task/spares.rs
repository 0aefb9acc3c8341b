//! Spares: devices that replace lost members automatically.
//!
//! A spare holds no data. It replaces a member as if the user had replaced the lost device
//! (`task/resilver.rs` does the rest), with one difference: it keeps its device id. Its label, written
//! before, identifies it at an import, so it does not matter which of the labels a crash leaves
//! behind. The replacement is final: a device that returns later is no member any more.

use std::collections::BTreeMap;

use millpond_block::MemberId;
use millpond_format::{Class, Member, MemberState};

use super::resilver::Resilver;
use crate::io::Replica;
use crate::store::Store;
use crate::{PoolState, Time};

/// Lost members, and when each of them is replaced.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    lost: BTreeMap<MemberId, Lost>,
}

/// Conditions for replacing a lost member.
#[derive(Clone, Copy, Debug)]
struct Lost {
    /// Earliest time: a missing device may only be unplugged.
    due: Time,
    /// Mark of operations that must have ended before another device becomes the member.
    mark: u64,
}

impl Spares {
    /// Records that a member failed, so it need not be waited for.
    pub(crate) fn lost(&mut self, member: MemberId, now: Time, mark: u64) {
        self.lost.insert(member, Lost { due: now, mark });
    }
}

impl Spares {
    /// Replaces lost members by spares, one change of the shape at a time.
    pub(crate) fn step_spares(&mut self, store: &mut Store, resilver: &mut Resilver) {
        let shape = &store.config.shape;
        if store.state != PoolState::Online || !shape.has(Class::Spare) {
            return;
        }
        let wanting =
            |at: MemberId, m: &Member| m.state == MemberState::Down && m.replacement.is_none() && !m.leaving && !shape.is_auxiliary(at);
        let wanting: Vec<MemberId> = shape.numbered().filter(|(at, m)| wanting(*at, m)).map(|(at, _)| at).collect();
        let later = Lost { due: Time(store.now.0 + store.tuning.spare_millis), mark: store.io.mark() };
        self.lost.retain(|member, _| wanting.contains(member));
        for member in wanting {
            self.lost.entry(member).or_insert(later);
        }
        if store.check_unchanging().is_err() {
            return;
        }
        let mut due = self.lost.iter().filter(|(_, lost)| lost.due <= store.now && store.io.has_ended(lost.mark)).map(|(at, _)| *at);
        if let Some((member, spare)) = due.find_map(|member| Some((member, store.spare_for(member)?))) {
            self.take_place(store, resilver, member, spare);
        }
    }

    /// Makes a spare the device of a member. It is not read before it is filled.
    fn take_place(&mut self, store: &mut Store, resilver: &mut Resilver, member: MemberId, spare: MemberId) {
        let (at, from) = (member.index(), spare.index());
        let known = store.config.shape.members.get(from).map(|m| m.device);
        let (Some(device), Some(slot), Some(size)) = (known, store.io.slot_of(spare), store.config.sizes.get(from).copied()) else {
            return;
        };
        store.config.shape.drop_auxiliary(spare);
        store.io.health.set(spare, MemberState::Gone);
        store.io.set_slot(spare, None);
        if let Some(left) = store.config.sizes.get_mut(from) {
            *left = 0;
        }
        if let (Some(m), Some(own)) = (store.config.shape.members.get_mut(at), store.config.sizes.get_mut(at)) {
            (m.device, m.state) = (device, MemberState::Filling);
            *own = size;
        }
        store.io.set_slot(member, Some(slot));
        store.judge_member(member);
        store.io.health.set(member, MemberState::Filling);
        self.lost.remove(&member);
        resilver.fill(member, Replica::Current);
        store.relabel(None);
    }
}
