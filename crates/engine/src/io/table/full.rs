//! Full devices: their writes wait and are tried again.

use std::collections::VecDeque;

use millpond_block::{DeviceSlot, MemberId};

use super::{IoTable, Stage};
use crate::Time;

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
    pub(super) fn stall(&mut self, slot: DeviceSlot, part: (u32, u16), first: bool) {
        if let Some(p) = self.groups.get_mut(part.0).and_then(|g| g.parts.get_mut(usize::from(part.1))) {
            p.stage = Stage::Waiting;
        }
        let since = self.now;
        let full = self.full.entry(slot).or_insert_with(|| Full { waiting: VecDeque::new(), probe: None, since });
        let at = if first { 0 } else { full.waiting.len() };
        full.waiting.insert(at, part);
    }

    /// True when a part is the write that is tried for all others of its device; it is no longer
    /// the probe then.
    pub(super) fn probed(&mut self, slot: DeviceSlot, part: (u32, u16)) -> bool {
        self.full.get_mut(&slot).is_some_and(|full| full.probe.take_if(|probe| *probe == part).is_some())
    }

    /// Submits all waiting writes of a device, because it has space again.
    pub(super) fn try_all_again(&mut self, slot: DeviceSlot) {
        for (group, part) in self.full.remove(&slot).into_iter().flat_map(|full| full.waiting) {
            self.resubmit(group, part);
        }
    }

    /// Tries the oldest write of each full device again.
    pub(crate) fn retry_stalled(&mut self) {
        let slots: Vec<DeviceSlot> = self.full.iter().filter(|(_, full)| full.probe.is_none()).map(|(slot, _)| *slot).collect();
        for slot in slots {
            while let Some((group, part)) = self.full.get_mut(&slot).and_then(|full| full.waiting.pop_front()) {
                if self.resubmit(group, part) {
                    self.full.get_mut(&slot).into_iter().for_each(|full| full.probe = Some((group, part)));
                    break;
                }
            }
        }
        self.full.retain(|_, full| full.probe.is_some() || !full.waiting.is_empty());
    }

    /// Time since when a member has no space for writes.
    pub(crate) fn full_since(&self, member: MemberId) -> Option<Time> {
        self.full.get(&self.slot_of(member)?).map(|full| Time(full.since))
    }

    /// Time since when the device that is full longest has been full.
    pub(crate) fn longest_full(&self) -> Option<Time> {
        self.full.values().map(|full| Time(full.since)).min()
    }

    /// Slots of devices that have been full for `patience` milliseconds.
    pub(crate) fn full_for(&self, patience: u64) -> Vec<DeviceSlot> {
        self.full.iter().filter(|(_, full)| self.now >= full.since + patience).map(|(slot, _)| *slot).collect()
    }

    /// Contexts of writes that wait for space.
    pub(crate) fn stalled(&self) -> impl Iterator<Item = &C> {
        let parts = self.full.values().flat_map(|full| full.waiting.iter().chain(&full.probe));
        parts.filter_map(|(group, _)| self.groups.get(*group)?.context.as_ref())
    }

    /// True when writes wait for space on a device.
    pub(crate) fn is_stalled(&self) -> bool {
        !self.full.is_empty()
    }
}
