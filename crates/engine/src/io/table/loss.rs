//! Operations whose device is given up: tried elsewhere, or abandoned.

use millpond_block::{DeviceError, DeviceSlot, Io, IoId, IoKind, MemberId};
use millpond_format::MemberState;

use super::part::Part;
use super::{Failing, IoTable, Kind, Replica, Stage, names};
use crate::DeviceTrouble;

impl<C> IoTable<C> {
    /// Passes a write to the caller again.
    pub(super) fn resubmit(&mut self, group: u32, part: u16) -> bool {
        let Some(g) = self.groups.get(group) else { return false };
        let Some(p) = g.parts.get(usize::from(part)).filter(|p| !p.void) else { return false };
        let Some(device) = p.slot else { return false };
        let io = IoKind::Write { offset: p.range.offset, pieces: p.pieces.clone() };
        let urgent = g.urgent;
        if let Some(p) = self.groups.get_mut(group).and_then(|g| g.parts.get_mut(usize::from(part))) {
            p.stage = Stage::Waiting;
        }
        let id = IoId(u64::from(group) | u64::from(part) << 32 | u64::from(self.epoch) << 48);
        self.outbox.push_back(Io { id, device, kind: io, urgent });
        true
    }

    /// Ends all waiting for operations of the device in a slot. Operations that were not passed to
    /// the caller are dropped.
    pub(crate) fn abandon(&mut self, slot: DeviceSlot) {
        if !self.lasting {
            return;
        }
        self.full.remove(&slot);
        self.is_over(slot);
        for group in self.groups.handles() {
            self.abandon_parts(group, |part| part.slot == Some(slot));
        }
        self.drop_void();
    }

    /// Ends the waiting for some parts of a group.
    fn abandon_parts(&mut self, group: u32, which: impl Fn(&Part) -> bool) {
        let Some(g) = self.groups.get_mut(group).filter(|g| g.context.is_some() && g.left > 0) else { return };
        let mut voided = 0;
        for part in g.parts.iter_mut().filter(|part| part.stage != Stage::Ended && !part.void && which(part)) {
            part.void = true;
            voided += 1;
        }
        if voided == 0 {
            return;
        }
        if !matches!(g.kind, Kind::Write | Kind::Flush) {
            g.error.get_or_insert(DeviceError::Gone);
        }
        g.left -= voided;
        if g.left == 0 {
            self.idle.push_back(group);
        }
    }

    /// Stops using a device that failed and can be spared.
    pub(super) fn spare(&mut self, failing: Failing) {
        if failing.replica == Replica::Replacement {
            let Some(slot) = self.replacements.get_mut(failing.member.index()).and_then(Option::take) else { return };
            self.abandon(slot);
        } else {
            if !self.health.is_up(failing.member) {
                return;
            }
            self.lose(failing.member, failing.why);
        }
        self.failing.push(failing);
    }

    /// Stops using the device in `slot` of a member, which its host no longer has, if the pool can do
    /// without it. Without this, a pool that writes nothing would keep the device until it writes.
    pub(crate) fn leave_out_gone(&mut self, member: MemberId, slot: DeviceSlot) {
        if self.slot_of(member) == Some(slot) && self.health.can_spare(member) {
            let why = DeviceTrouble::Failed(DeviceError::Gone);
            self.spare(Failing { member, replica: Replica::Current, why });
        }
    }

    /// Stops using a member.
    pub(crate) fn lose(&mut self, member: MemberId, why: DeviceTrouble) {
        self.health.set(member, MemberState::Down);
        self.trouble.get_mut(member.index()).into_iter().for_each(|trouble| *trouble = Some(why));
        if let Some(slot) = self.slot_of(member) {
            self.abandon(slot);
        }
    }

    /// Drops operations from the queue whose completions do not matter any more.
    pub(super) fn drop_void(&mut self) {
        let groups = &mut self.groups;
        self.outbox.retain(|io| {
            let (group, part) = names(io.id);
            let part = groups.get_mut(group).and_then(|g| g.parts.get_mut(usize::from(part)));
            let void = part.as_ref().is_some_and(|part| part.void);
            part.into_iter().filter(|part| part.void).for_each(|part| part.stage = Stage::Ended);
            !void
        });
    }

    /// Removes a group that only waited for late completions, after the last of them.
    pub(super) fn bury(&mut self, group: u32) {
        if self.groups.get(group).is_some_and(|g| g.context.is_none() && g.out == 0) {
            self.groups.remove(group);
            self.ghosts -= 1;
        }
    }
}
