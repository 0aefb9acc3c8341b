//! The end of operations: completions, groups that end with their last part, and devices that are
//! given up.
//!
//! INV-SPARE-1: a completion counts for the device that the operation was passed to. When that
//! device is no longer used or no longer part of the pool, it counts for no device: it is not an
//! error of the device that now has its place, and is not retried there. Groups do not wait for it
//! either. The caller owns the buffers of such an operation until it reports the completion; until
//! then the handle of its group is not reused.

use millpond_block::{Buf, BufPool, DeviceError, DeviceSlot, IoDone, MemberId};
use smallvec::SmallVec;

use super::columns::compute;
use super::part::Part;
use super::{Ended, Failing, IoTable, Kind, Replica, Stage, epoch_of, names};
use crate::DeviceTrouble;

/// Attempts of a failing write before it counts as failed.
const WRITE_TRIES: u8 = 3;

impl<C> IoTable<C> {
    /// Removes the next group that ended without a completion: no device could do it, or its
    /// devices were given up.
    pub(crate) fn pop_idle(&mut self, bufs: &mut BufPool) -> Option<Ended<C>> {
        while let Some(group) = self.idle.pop_front() {
            if let Some(ended) = self.end(group, bufs) {
                return Some(ended);
            }
        }
        None
    }

    fn role(&self, part: &Part) -> Option<Replica> {
        self.role_of(part.device, part.slot)
    }

    /// Returns which device of a member is in a slot; `None` when it is not the member's any more.
    fn role_of(&self, member: MemberId, slot: Option<DeviceSlot>) -> Option<Replica> {
        // a replacement that has meanwhile become the member counts as the member; what was for a
        // member without a device counts for the member
        if self.slot_of(member) == slot {
            Some(Replica::Current)
        } else if slot.is_some() && self.replacement(member) == slot {
            Some(Replica::Replacement)
        } else {
            None
        }
    }

    /// Handles a completion. Returns the group if this was the last part that it waited for.
    pub(crate) fn done(&mut self, done: IoDone, bufs: &mut BufPool) -> Option<Ended<C>> {
        if epoch_of(done.id) != self.epoch {
            done.buf.into_iter().for_each(|buf| bufs.give(buf));
            return None;
        }
        let (group, part) = names(done.id);
        let g = self.groups.get_mut(group)?;
        let p = g.parts.get_mut(usize::from(part)).filter(|p| p.stage == Stage::Out)?;
        let (slot, void, member) = (p.slot?, p.void, p.device);
        (p.stage, g.out) = (Stage::Ended, g.out - 1);
        self.answers(slot);
        let probe = self.probed(slot, (group, part));
        if void {
            done.buf.into_iter().for_each(|buf| bufs.give(buf));
            self.bury(group);
            if let (true, Err(error)) = (self.late_answers_count && self.health.can_spare(member), done.result) {
                self.spare(Failing { member, replica: Replica::Current, why: DeviceTrouble::Failed(error) });
            }
            return None;
        }
        let ends = match done.result {
            Ok(()) => {
                self.count(group, part);
                true
            }
            Err(error) => self.failed(group, part, error, probe),
        };
        if !ends {
            return None;
        }
        if probe {
            self.try_all_again(slot);
        }
        let g = self.groups.get_mut(group)?;
        if let Some(p) = g.parts.get_mut(usize::from(part)) {
            p.buf = done.buf;
        }
        g.left -= 1;
        if g.left > 0 { None } else { self.end(group, bufs) }
    }

    /// Counts a part that succeeded.
    fn count(&mut self, group: u32, part: u16) {
        let Some(g) = self.groups.get(group) else { return };
        let Some(p) = g.parts.get(usize::from(part)) else { return };
        if self.role(p).is_none() {
            return;
        }
        let (member, kind, offset) = (p.device, g.kind, p.range.offset);
        let at = member.index();
        if kind == Kind::Write || (kind == Kind::Loose && !self.health.is_auxiliary(member)) {
            self.written.get_mut(at).into_iter().for_each(|written| *written += 1);
        } else if kind == Kind::Flush
            && let Some(flushed) = self.flushed.get_mut(at)
        {
            *flushed = (*flushed).max(offset);
        }
    }

    /// Ends a part at once, as of a device that is gone, because its member has no device.
    pub(super) fn fail_without_device(&mut self, group: u32, part: Part) {
        let Some(g) = self.groups.get_mut(group) else { return };
        let at = g.parts.len();
        g.parts.push(Part { stage: Stage::Ended, ..part });
        self.failed(group, u16::try_from(at).unwrap_or(u16::MAX), DeviceError::Gone, false);
    }

    /// Handles a failed part. False when it is tried again, at once or when there is space.
    fn failed(&mut self, group: u32, part: u16, error: DeviceError, probe: bool) -> bool {
        let Some(g) = self.groups.get(group) else { return true };
        let Some(p) = g.parts.get(usize::from(part)) else { return true };
        let (role, kind, quiet, member, slot, tries) = (self.role(p), g.kind, g.quiet, p.device, p.slot, p.tries + 1);
        // no space on the host for optional zeros does not count as an error of the device
        let counts = role.is_some() && !quiet && !(kind == Kind::Zero && error == DeviceError::Full);
        if counts && let (Some(errors), Some(failures)) = (self.errors.get_mut(member.index()), self.failures.get_mut(member.index())) {
            *errors += 1;
            *failures += 1;
        }
        let replacement = role == Some(Replica::Replacement);
        if matches!(kind, Kind::Write | Kind::Loose) && role.is_some() {
            let waits = error == DeviceError::Full && !replacement && kind == Kind::Write && !self.health.is_auxiliary(member);
            if let Some(slot) = slot.filter(|_| waits) {
                self.stall(slot, (group, part), probe);
                return false;
            }
            if let Some(p) = self.groups.get_mut(group).and_then(|g| g.parts.get_mut(usize::from(part))) {
                p.tries = tries;
            }
            let over = error == DeviceError::Gone || (error == DeviceError::Full && !replacement);
            if !over && tries < WRITE_TRIES {
                return !self.resubmit(group, part);
            }
        }
        // work that is no longer waited for need not be done; for other operations the requester
        // decides
        let needless = matches!(kind, Kind::Write | Kind::Flush);
        let spared = needless
            && match role {
                None | Some(Replica::Replacement) => true,
                Some(Replica::Current) => !self.health.is_up(member) || self.health.can_spare(member),
            };
        if let Some(replica) = role.filter(|_| spared) {
            let why = if error == DeviceError::Full { DeviceTrouble::Full } else { DeviceTrouble::Failed(error) };
            self.spare(Failing { member, replica, why });
        } else if !spared && let Some(g) = self.groups.get_mut(group) {
            g.error.get_or_insert(error);
        }
        true
    }

    /// Returns why a member was given up since import.
    pub(crate) fn trouble(&self, member: MemberId) -> Option<DeviceTrouble> {
        self.trouble.get(member.index()).copied().flatten()
    }

    /// Ends a group. Its handle stays reserved while the caller has operations of it.
    fn end(&mut self, group: u32, bufs: &mut BufPool) -> Option<Ended<C>> {
        let g = self.groups.get_mut(group)?;
        let context = g.context.take()?;
        let (kind, error, pin, rebuild) = (g.kind, g.error, g.pin, g.rebuild.take());
        if let ([only], 0, None) = (g.parts.as_mut_slice(), g.out, &rebuild)
            && !only.void
        {
            // nearly all groups have one part, which need not be moved
            let (buf, device, slot) = (only.buf.take(), only.device, only.slot);
            bufs.give_data(only.pieces.drain(..));
            self.groups.clear(group);
            let member = self.role_of(device, slot).map(|_| device);
            return Some(Ended { context, result: error.map_or(Ok(()), Err), buf, pin, member });
        }
        let mut parts = std::mem::take(&mut g.parts);
        if g.out > 0 {
            g.parts = parts.iter().map(Part::late).collect();
            self.ghosts += 1;
        } else {
            self.groups.remove(group);
        }
        // pieces that the log or a read still uses are returned from there
        bufs.give_data(parts.iter_mut().flat_map(|part| part.pieces.drain(..)));
        parts.retain(|part| !part.void);
        let member = parts.first().map(|part| part.device).filter(|device| parts.iter().all(|part| part.device == *device));
        let counts = parts.iter().all(|part| self.role(part).is_some());
        let mut result = error.map_or(Ok(()), Err);
        if kind == Kind::Read && parts.is_empty() {
            result = result.and(Err(DeviceError::Gone));
        }
        let (buf, member) = match &rebuild {
            Some(rebuild) => (compute(rebuild, parts, &mut self.coders, bufs), None),
            None if parts.len() == 1 => (parts.first_mut().and_then(|part| part.buf.take()), member.filter(|_| counts)),
            None => (join(parts, bufs), member.filter(|_| counts)),
        };
        if rebuild.is_some() && buf.is_none() {
            result = result.and(Err(DeviceError::Gone));
        }
        Some(Ended { context, result, buf, pin, member })
    }
}

impl Part {
    /// State that a late completion of this part needs.
    fn late(&self) -> Part {
        Part { slot: self.slot, stage: self.stage, void: true, ..Part::new(self.device, self.range) }
    }
}

/// Joins the parts of a read in one buffer.
fn join(parts: SmallVec<[Part; 1]>, bufs: &mut BufPool) -> Option<Buf> {
    let total: u64 = parts.iter().filter(|p| p.buf.is_some()).map(|p| p.range.length).sum();
    if total == 0 {
        return None;
    }
    let mut joined = bufs.take(usize::try_from(total).ok()?);
    let mut at = 0;
    for part in parts {
        let length = usize::try_from(part.range.length).ok()?;
        if let Some(buf) = part.buf {
            joined.bytes_mut().get_mut(at..at + length)?.copy_from_slice(buf.bytes().get(..length)?);
            at += length;
            bufs.give(buf);
        }
    }
    Some(joined)
}
