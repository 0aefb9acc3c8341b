//! The end of waiting for a device that is full or silent: reads go to other copies, and it is given
//! up where the pool can do without it.

use millpond_block::{BufPool, DeviceSlot, MemberId};
use millpond_format::SegmentId;

use super::silence::Line;
use super::{Failing, IoTable, Kind, Replica, Stage};
use crate::DeviceTrouble;
use crate::space::SegmentLayout;

impl<C> IoTable<C> {
    /// Gives up devices that have been full for `patience` milliseconds, if the pool can do without
    /// them and all other full or silent devices.
    pub(crate) fn give_up_full(&mut self, patience: u64) {
        for slot in self.full_for(patience) {
            match self.user(slot) {
                Some((member, Replica::Current)) if self.can_spare_now(member, patience) => {
                    self.spare(Failing { member, replica: Replica::Current, why: DeviceTrouble::Full });
                }
                Some(_) => {}
                None => self.abandon(slot),
            }
        }
    }

    /// Gives up devices that have not answered for too long, as if all of their operations had
    /// failed. A member only if the pool can do without it and all other silent members: when no
    /// device answers, the fault is elsewhere. `spares`: the labels can record it.
    pub(crate) fn give_up_silent(&mut self, least: u64, spares: bool, closing: bool) {
        let clock = self.clock;
        if self.lines.iter().all(|line| line.silent(clock) < least) {
            return;
        }
        for slot in (0..u16::try_from(self.lines.len()).unwrap_or(u16::MAX)).map(DeviceSlot) {
            let due = self.lines.get(slot.index()).is_some_and(|line| line.silent(clock) >= line.patience(least));
            if !due {
                continue;
            }
            match self.user(slot) {
                None => self.abandon(slot),
                Some((member, Replica::Current)) if !self.health.is_up(member) => self.abandon(slot),
                // nothing else is written, and the labels stay as they are
                Some(_) if closing => self.abandon(slot),
                Some((member, replica @ Replica::Replacement)) if spares => {
                    self.spare(Failing { member, replica, why: DeviceTrouble::Silent });
                }
                Some((member, replica @ Replica::Current)) if spares && self.can_spare_now(member, least / 2) => {
                    self.spare(Failing { member, replica, why: DeviceTrouble::Silent });
                }
                Some(_) => {}
            }
        }
    }

    /// Gives up silent devices that are incomplete: the pool does not depend on their data.
    pub(crate) fn give_up_incomplete(&mut self, least: u64) {
        for slot in self.unanswered(least) {
            if let Some((member, replica)) = self.user(slot)
                && (replica == Replica::Replacement || self.health.is_filling(member) || self.health.is_auxiliary(member))
            {
                self.spare(Failing { member, replica, why: DeviceTrouble::Silent });
            }
        }
    }

    /// Slots of devices that have not answered for too long.
    pub(crate) fn unanswered(&self, least: u64) -> Vec<DeviceSlot> {
        let due = |line: &Line| line.silent(self.clock) >= line.patience(least);
        (0u16..).zip(&self.lines).filter(|(_, line)| due(line)).map(|(slot, _)| DeviceSlot(slot)).collect()
    }

    /// True when the pool can do without a member, and without all members that have been silent
    /// for `patience` milliseconds or are full.
    fn can_spare_now(&self, member: MemberId, patience: u64) -> bool {
        let idle = |other: &MemberId| self.silence_of(*other) >= patience.max(1) || self.full_since(*other).is_some();
        let others: Vec<MemberId> = self.members().filter(|other| *other != member).filter(idle).collect();
        self.health.can_spare_beside(member, &others)
    }

    /// Repeats reads that wait for silent devices with other devices that have the same data.
    pub(crate) fn read_elsewhere(&mut self, layout: &SegmentLayout, bufs: &mut BufPool) {
        let mut any = false;
        for group in self.groups.handles() {
            let Some(g) = self.groups.get(group).filter(|g| g.kind == Kind::Read && g.context.is_some() && g.left > 0) else { continue };
            let Some(place) = g.place else { continue };
            let waits = g.parts.iter().any(|part| !part.void && part.stage != Stage::Ended && self.health.is_silent(part.device));
            if !waits || !self.has_others(layout, place.0, place.1) {
                continue;
            }
            if let Some(g) = self.groups.get_mut(group) {
                (g.left, g.error, g.rebuild, g.place) = (0, None, None, None);
                for part in &mut g.parts {
                    part.void = true;
                    part.buf.take().into_iter().for_each(|buf| bufs.give(buf));
                }
            }
            self.read_place(group, layout, place, 0, bufs);
            self.begin(group);
            any = true;
        }
        if any {
            self.drop_void();
        }
    }

    /// True when a place can be read without silent devices.
    fn has_others(&self, layout: &SegmentLayout, segment: SegmentId, page: u32) -> bool {
        if let Some(stripe) = layout.stripe(segment) {
            return self.health.missing_or_silent(&stripe).count_ones() as usize <= stripe.parity;
        }
        let first = self.health.order(layout, segment, page).first().and_then(|copy| layout.copies(segment).nth(*copy));
        first.is_some_and(|member| !self.health.is_silent(member))
    }
}
