//! Devices that are full: their writes wait, and are tried again.

use std::collections::VecDeque;

use super::{Failing, IoTable, Stage};
use crate::{DeviceTrouble, Time};

/// A device that has no room for writes.
#[derive(Debug)]
pub(super) struct Full {
    /// Writes that wait, the oldest first.
    waiting: VecDeque<(u32, u16)>,
    /// One of them that is being tried again: the others follow when it gets through.
    probe: Option<(u32, u16)>,
    /// Since when, as the caller's time was then.
    since: u64,
}

impl<C> IoTable<C> {
    /// A write found its device full: it waits.
    pub(super) fn stall(&mut self, position: u16, part: (u32, u16), first: bool) {
        if let Some(p) = self.groups.get_mut(part.0).and_then(|g| g.parts.get_mut(usize::from(part.1))) {
            p.stage = Stage::Waiting;
        }
        let since = self.now;
        let full = self.full.entry(position).or_insert_with(|| Full { waiting: VecDeque::new(), probe: None, since });
        let at = if first { 0 } else { full.waiting.len() };
        full.waiting.insert(at, part);
    }

    /// Was a part the one that is tried for all of its device?
    pub(super) fn probed(&mut self, position: u16, part: (u32, u16)) -> bool {
        self.full.get_mut(&position).is_some_and(|full| full.probe.take_if(|probe| *probe == part).is_some())
    }

    /// There is room again.
    pub(super) fn try_all_again(&mut self, position: u16) {
        for (group, part) in self.full.remove(&position).into_iter().flat_map(|full| full.waiting) {
            self.resubmit(group, part);
        }
    }

    /// Starts the oldest write of each full device again.
    pub(crate) fn retry_stalled(&mut self) {
        let positions: Vec<u16> = self.full.iter().filter(|(_, full)| full.probe.is_none()).map(|(position, _)| *position).collect();
        for position in positions {
            while let Some((group, part)) = self.full.get_mut(&position).and_then(|full| full.waiting.pop_front()) {
                if self.resubmit(group, part) {
                    self.full.get_mut(&position).into_iter().for_each(|full| full.probe = Some((group, part)));
                    break;
                }
            }
        }
        self.full.retain(|_, full| full.probe.is_some() || !full.waiting.is_empty());
    }

    /// Since when a member has no room for writes.
    pub(crate) fn full_since(&self, member: u16) -> Option<Time> {
        let position = self.positions.get(usize::from(member))?;
        self.full.get(position).map(|full| Time(full.since))
    }

    /// Since when the device that is full longest is.
    pub(crate) fn longest_full(&self) -> Option<Time> {
        self.full.values().map(|full| Time(full.since)).min()
    }

    /// Positions of devices that have had no room for so many milliseconds.
    pub(crate) fn full_for(&self, patience: u64) -> Vec<u16> {
        self.full.iter().filter(|(_, full)| self.now >= full.since + patience).map(|(position, _)| *position).collect()
    }

    /// Who asked for writes that wait for room.
    pub(crate) fn stalled(&self) -> impl Iterator<Item = &C> {
        let parts = self.full.values().flat_map(|full| full.waiting.iter().chain(&full.probe));
        parts.filter_map(|(group, _)| self.groups.get(*group)?.context.as_ref())
    }

    /// Gives devices up that have been full for so many milliseconds, where the pool can do without them and all others that are full, or silent.
    pub(crate) fn give_up_full(&mut self, patience: u64) {
        for position in self.full_for(patience) {
            match self.user(position) {
                Some((member, false)) if self.can_spare_now(member, patience) => {
                    self.spare(Failing { member, twin: false, why: DeviceTrouble::Full });
                }
                Some(_) => {}
                None => self.abandon(position),
            }
        }
    }

    /// True when writes wait for room on a device.
    pub(crate) fn is_stalled(&self) -> bool {
        !self.full.is_empty()
    }
}
