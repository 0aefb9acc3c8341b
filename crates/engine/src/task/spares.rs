//! Spares: devices that take the place of members that are lost, by themselves.
//!
//! A spare holds nothing. It takes a place as if the user had replaced the missing device (`task/fill.rs` does the rest), with one
//! difference: it keeps its device id. So its label, written before, tells an import where it belongs, and it makes no difference which of
//! the labels a crash leaves behind. It does not give the place back: a device that returns is a stranger by then.

use std::collections::BTreeMap;

use millpond_device::DeviceIndex;
use millpond_format::{Class, Member, MemberState};

use crate::open::extent_space;
use crate::pool::Pool;
use crate::{PoolState, Time};

/// Members that are lost, and when each is given up for good.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    lost: BTreeMap<u16, Lost>,
}

/// What a spare waits for.
#[derive(Clone, Copy, Debug)]
struct Lost {
    /// One that is missing may only be unplugged.
    due: Time,
    /// What began before a device failed has ended before another is the member.
    mark: u64,
}

impl Spares {
    /// A member failed: nothing more is to be expected of it.
    pub(crate) fn lost(&mut self, member: u16, now: Time, mark: u64) {
        self.lost.insert(member, Lost { due: now, mark });
    }
}

impl Pool {
    /// Lets spares take the places of members that are given up, one change of the shape at a time.
    pub(crate) fn step_spares(&mut self) {
        let shape = &self.config.shape;
        if self.state != PoolState::Online || !shape.has(Class::Spare) {
            return;
        }
        let wanting = |at: u16, m: &Member| m.state == MemberState::Down && m.successor.is_none() && !m.leaving && !shape.is_aside(at);
        let wanting: Vec<u16> = (0u16..).zip(&shape.members).filter(|(at, m)| wanting(*at, m)).map(|(at, _)| at).collect();
        let later = Lost { due: Time(self.now.0 + self.tuning.spare_millis), mark: self.io.mark() };
        self.spares.lost.retain(|member, _| wanting.contains(member));
        for member in wanting {
            self.spares.lost.entry(member).or_insert(later);
        }
        if self.check_unchanging().is_err() {
            return;
        }
        let mut due = self.spares.lost.iter().filter(|(_, lost)| lost.due <= self.now && self.io.has_ended(lost.mark)).map(|(at, _)| *at);
        if let Some((member, spare)) = due.find_map(|member| Some((member, self.spare_for(member)?))) {
            self.take_place(member, spare);
        }
    }

    /// The smallest spare that has room for what a member holds.
    fn spare_for(&self, member: u16) -> Option<u16> {
        let shape = &self.config.shape;
        let needed = shape.members.get(usize::from(member))?.extents;
        let room = |at: u16| extent_space(self.config.sizes.get(usize::from(at)).copied().unwrap_or(0)) / shape.extent_bytes;
        let fits = |(at, m): &(u16, &Member)| {
            let there = m.state == MemberState::Present && self.io.health.is_up(DeviceIndex(*at)) && shape.is_spare(*at);
            there && room(*at) >= u64::from(needed)
        };
        (0u16..).zip(&shape.members).filter(fits).map(|(at, _)| at).min_by_key(|at| room(*at))
    }

    /// A spare is the member from now on. Nobody reads from it before it is filled.
    fn take_place(&mut self, member: u16, spare: u16) {
        let (at, from) = (usize::from(member), usize::from(spare));
        let known = self.config.shape.members.get(from).map(|m| m.device);
        let position = self.io.positions().get(from).and_then(|at| u16::try_from(*at).ok());
        let (Some(device), Some(position), Some(size)) = (known, position, self.config.sizes.get(from).copied()) else { return };
        self.config.shape.drop_aside(spare);
        self.io.health.set(spare, MemberState::Gone);
        self.io.set_position(spare, u16::MAX);
        if let Some(left) = self.config.sizes.get_mut(from) {
            *left = 0;
        }
        if let (Some(m), Some(own)) = (self.config.shape.members.get_mut(at), self.config.sizes.get_mut(at)) {
            (m.device, m.state) = (device, MemberState::Filling);
            *own = size;
        }
        self.io.set_position(member, position);
        self.judge_member(member);
        self.io.health.set(member, MemberState::Filling);
        self.spares.lost.remove(&member);
        self.fill(member, false);
        self.relabel(None);
    }
}
