//! Full devices: their writes wait and are tried again.

use std::collections::VecDeque;

use super::{Failing, IoTable, Stage};
use crate::{DeviceTrouble, Time};

/// A device without space for writes.
#[derive(Debug)]
pub(super) struct Full {
    /// Waiting writes, the oldest first.
    waiting: VecDeque<(u32, u16)>,
    /// One of them that is being tried; when it succeeds, the others follow.
    probe: Option<(u32, u16)>,
    /// Time, of the caller's clock, since when it is full.
    since: u64,
}

impl<C> IoTable<C> {
    /// Makes a write wait because its device is full.
    pub(super) fn stall(&mut self, position: u16, part: (u32, u16), first: bool) {
        if let Some(p) = self.groups.get_mut(part.0).and_then(|g| g.parts.get_mut(usize::from(part.1))) {
            p.stage = Stage::Waiting;
        }
        let since = self.now;
        let full = self.full.entry(position).or_insert_with(|| Full { waiting: VecDeque::new(), probe: None, since });
        let at = if first { 0 } else { full.waiting.len() };
        full.waiting.insert(at, part);
    }

    /// True when a part is the write that is tried for all others of its device; it is no longer
    /// the probe then.
    pub(super) fn probed(&mut self, position: u16, part: (u32, u16)) -> bool {
        self.full.get_mut(&position).is_some_and(|full| full.probe.take_if(|probe| *probe == part).is_some())
    }

    /// Submits all waiting writes of a device, because it has space again.
    pub(super) fn try_all_again(&mut self, position: u16) {
        for (group, part) in self.full.remove(&position).into_iter().flat_map(|full| full.waiting) {
            self.resubmit(group, part);
        }
    }

    /// Tries the oldest write of each full device again.
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

    /// Time since when a member has no space for writes.
    pub(crate) fn full_since(&self, member: u16) -> Option<Time> {
        let position = self.positions.get(usize::from(member))?;
        self.full.get(position).map(|full| Time(full.since))
    }

    /// Time since when the device that is full longest has been full.
    pub(crate) fn longest_full(&self) -> Option<Time> {
        self.full.values().map(|full| Time(full.since)).min()
    }

    /// Positions of devices that have been full for `patience` milliseconds.
    pub(crate) fn full_for(&self, patience: u64) -> Vec<u16> {
        self.full.iter().filter(|(_, full)| self.now >= full.since + patience).map(|(position, _)| *position).collect()
    }

    /// Contexts of writes that wait for space.
    pub(crate) fn stalled(&self) -> impl Iterator<Item = &C> {
        let parts = self.full.values().flat_map(|full| full.waiting.iter().chain(&full.probe));
        parts.filter_map(|(group, _)| self.groups.get(*group)?.context.as_ref())
    }

    /// Gives up devices that have been full for `patience` milliseconds, if the pool can do without
    /// them and all other full or silent devices.
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

    /// True when writes wait for space on a device.
    pub(crate) fn is_stalled(&self) -> bool {
        !self.full.is_empty()
    }
}
