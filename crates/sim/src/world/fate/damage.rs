//! The end of a world: a device rots, scrubs find and repair all of the damage, and then any copy
//! is good enough.

use std::collections::BTreeSet;

use millpond_block::DeviceSlot;
use millpond_engine::{Class, Command, Layout, MemberState, OpenErrorKind, PoolState};
use millpond_format::{Label, SECTOR_BYTES, second_area};

use crate::machine::Ill;
use crate::oracle::{Verdict, Violation, broken};
use crate::system::System;
use crate::world::World;
use crate::world::fate::{Fate, Known};

/// Number of checks, ten seconds apart, until extents given up by a removal must belong to stripes
/// again.
const REJOIN_PATIENCE: u32 = 40;
/// Minimum free share of the pool, as 1/N, with which stripes can be emptied: a step uses half of
/// the free space, and at least a sixteenth of the stripes.
const FREE_PART: u64 = 4;
/// Minimum share of the stripes in a step, as 1/N.
const STEP_PART: u64 = 16;
/// Share of the smallest device, as 1/N, that may stay outside of stripes: devices differ in size,
/// and a log must keep its length.
const GIVEN_UP_PART: u64 = 4;

impl<S: System> World<S> {
    /// Ends a world whose devices fail.
    pub(in crate::world) fn last_trial(&mut self) -> Verdict {
        if self.fate.is_none() || self.state() != PoolState::Online {
            return Ok(());
        }
        self.finish_jobs()?;
        self.wait_for_spares()?;
        self.judge_given_up()?;
        self.audit()?;
        self.rot_at_last();
        let broken = !self.machine.bad().is_empty();
        if self.fate.as_ref().is_some_and(|fate| fate.is_mendable() && (fate.mirrors || !broken)) {
            self.mend_damage()?;
        }
        self.lose_special()?;
        self.trial()
    }

    /// Extents that a stopped removal took out of stripes must be used again, as long as there is
    /// space to move data.
    fn judge_given_up(&mut self) -> Verdict {
        let mut left = 0;
        for _ in 0..REJOIN_PATIENCE {
            let Some(pool) = self.system.as_ref().and_then(S::pool) else { return Ok(()) };
            let lasting = || pool.devices.iter().filter(|device| !device.class.is_aside());
            let whole = pool.state == PoolState::Online && lasting().all(|d| d.state == MemberState::Present && d.successor.is_none());
            let mut sizes: Vec<u64> = lasting().map(|device| device.size).collect();
            sizes.sort_unstable();
            let least = sizes.first().copied().unwrap_or(0);
            let copies = if let Layout::Mirror { copies } = pool.layout { u64::from(copies) } else { 1 };
            let alone = beside_nothing(&sizes, copies);
            left = pool.given_up;
            // Stripes of a mirror, of which a small pool reserves most: a step takes a sixteenth of
            // them, and half of the free space.
            let rows = sizes.iter().sum::<u64>().saturating_sub(left) / copies;
            let few = copies > 1 && pool.free * STEP_PART < 2 * rows;
            // Devices that left the pool may be in any condition.
            let bad = lasting().filter_map(|device| self.machine.at(device.slot?)).any(|device| self.machine.is_bad(device));
            // Free space on special devices is not for data.
            let special = lasting().any(|device| device.class == Class::Special);
            let crowded = few || pool.free * FREE_PART < pool.size;
            if left.saturating_sub(alone) * GIVEN_UP_PART <= least || !whole || bad || special || crowded {
                return Ok(());
            }
            self.machine.pass(10_000_000);
            self.finish_jobs()?;
        }
        let space = self.system.as_ref().map(System::space_report).unwrap_or_default();
        broken(format!("{left} bytes of devices are in no segment although nobody leaves and there is room; {space}"))
    }

    /// Handles an import that asks to leave out a device without a readable label. If both labels
    /// have rotted, and the device is a cache device or the damaged device, takes it away. If a
    /// label of the damaged device is sound, the import is repeated. Returns false if the import
    /// was wrong.
    pub(super) fn leaves_rotten_out(&mut self, slot: DeviceSlot) -> bool {
        let Some(device) = self.machine.at(slot) else { return false };
        let size = self.machine.geometry(device).map_or(0, |geometry| geometry.size);
        let sound = |offset: u64| {
            let mut sector = [0; SECTOR_BYTES];
            self.machine.peek(slot, offset, &mut sector);
            Label::decode(&sector).is_ok()
        };
        if sound(0) || sound(second_area(size)) {
            // The damaged device fails reads now and then.
            return self.fate.as_ref().is_some_and(|fate| fate.spoilt == Some(device));
        }
        let spoilt = self.fate.as_mut().is_some_and(|fate| fate.spoilt == Some(device) && fate.away.insert(device));
        let taken = spoilt || self.take_cache_away(device);
        if taken {
            self.trace.note(format!("device {device} is left out: its labels have rotted"));
        }
        taken
    }

    /// Returns whether an import may refuse a device as written to apart from the others: the pool
    /// went on without it, and its label says that a member was given up which the others never
    /// gave up. A crash while such labels are written can leave them on one device, and the next
    /// import can be without that device.
    pub(super) fn is_apart(&self, device: usize, plugged: &[usize]) -> bool {
        let Some(fate) = &self.fate else { return false };
        let down = |k: &Known| k.state == MemberState::Down && fate.homes.get(&k.member) == Some(&device);
        let label = |device: usize| self.look_at(device).map(|looked| looked.label);
        let others = plugged.iter().filter(|other| **other != device).filter_map(|other| label(*other));
        let newest = others.filter(|label| !label.shape.is_cache(label.member)).max_by_key(|label| label.shape.generation);
        let (Some(own), Some(newest)) = (label(device), newest) else { return false };
        let mut both = own.shape.members.iter().zip(&newest.shape.members);
        fate.known.iter().any(down) && both.any(|(then, now)| then.state == MemberState::Down && then.down_since > now.down_since)
    }

    /// Returns whether a device fails reads now and then, so that both of its labels may have been
    /// unreadable at once.
    pub(super) fn fails_to_read(&self, slot: DeviceSlot) -> bool {
        let (device, sick) = (self.machine.at(slot), self.machine.sick.as_ref());
        sick.is_some_and(|sick| Some(sick.device) == device && sick.chances[0] > 0)
    }

    /// Corrupts one device of a pool with parity while everything is whole, so that both data and
    /// parity of stripes are hit. Before the end everything is seldom whole.
    fn rot_at_last(&mut self) {
        self.observe();
        let World { fate: Some(fate), machine, .. } = self else { return };
        let (whole, spare) = fate.spare(|d| machine.is_bad(d));
        let all = whole.len() == fate.known.len() && machine.bad().is_empty();
        if fate.mirrors || fate.spoilt.is_some() || spare == 0 || !all {
            return;
        }
        fate.spoilt = fate.rng.pick(&whole).device;
        let Some(device) = fate.spoilt else { return };
        for _ in 0..fate.rng.between(20, 200) {
            if let Some(what) = machine.rot(device) {
                self.trace.note(format!("device {device} rots: {what}"));
            }
        }
    }

    /// Devices stop damaging data, those of a cache as well. A scrub must find and repair all of
    /// the damage; after that any copy is good enough.
    fn mend_damage(&mut self) -> Verdict {
        self.trace.note("scrub");
        self.machine.sick = None;
        self.machine.ills.retain(|_, ill| !matches!(ill, Ill::Sick(_)));
        if !self.command_and_wait(Command::Scrub)? {
            return broken("a scrub is refused although none runs");
        }
        self.finish_jobs()?;
        let found = self.system.as_ref().and_then(S::pool).and_then(|pool| pool.scrub);
        self.trace.note(format!("{found:?}"));
        if found.as_ref().is_none_or(|found| !found.complete || found.lost_blocks + found.lost_nodes > 0) {
            return broken(format!("a scrub of a pool with good copies of everything ends with {found:?}"));
        }
        if !self.command_and_wait(Command::Scrub)? {
            return broken("a second scrub is refused although none runs");
        }
        self.finish_jobs()?;
        let found = self.system.as_ref().and_then(S::pool).and_then(|pool| pool.scrub);
        if found.as_ref().is_none_or(|found| !found.complete || found.errors > 0) {
            return broken(format!("a second scrub finds {found:?}"));
        }
        let good = self.fate.as_ref().and_then(|fate| fate.spoilt);
        if let Some(fate) = &mut self.fate {
            fate.spoilt = None;
        }
        self.audit()?;
        // Takes away as many other devices as possible, so that the repaired one is needed.
        let World { fate: Some(fate), machine, .. } = self else { return Ok(()) };
        let (mut whole, spare) = fate.spare(|d| machine.is_bad(d));
        whole.retain(|k| k.device != good);
        let mut taken: BTreeSet<usize> = whole.iter().take(spare).filter_map(|k| k.device).collect();
        taken.extend(machine.bad());
        let (label, power) = (fate.rng.next(), fate.rng.percent(50));
        let mut fork = self.fork(label & 0xff);
        fork.trace.print = self.trace.print;
        let verdict = fork.do_without(taken, power);
        verdict.map_err(|Violation(what)| {
            std::mem::swap(&mut self.trace, &mut fork.trace);
            Violation(format!("{what} (after a scrub, without other copies)"))
        })
    }
}

/// Returns the bytes outside of stripes for lack of partners on other devices: the excess of the
/// largest device over all others, or the part that stripes of `copies` copies cannot use. `sizes`
/// is in ascending order.
fn beside_nothing(sizes: &[u64], copies: u64) -> u64 {
    let more = match sizes {
        [.., second, largest] => largest - second,
        _ => 0,
    };
    // A device with more extents than there are stripes is part of every stripe.
    let (mut longer, mut rest) = (Vec::new(), sizes.to_vec());
    while let Some(largest) = rest.last().copied() {
        let width = copies.saturating_sub(longer.len() as u64).max(1);
        let rows = rest.iter().sum::<u64>() / width;
        if largest <= rows {
            return longer.iter().map(|size| size - rows).sum::<u64>().max(more);
        }
        longer.extend(rest.pop());
    }
    more
}

impl Fate {
    /// Returns the devices that the user leaves out of an import that refused `device`. Where its
    /// label contradicts the others and the device held everything when the pool was last in
    /// service, these are the others: the user keeps the side that was in service last.
    pub(super) fn side_to_leave_out(&self, device: usize, plugged: &[usize], reason: Option<&OpenErrorKind>) -> Vec<usize> {
        let is_current = |d: usize| self.known.iter().any(|k| k.device == Some(d) && k.state == MemberState::Present && !k.filling);
        let others: Vec<usize> = plugged.iter().copied().filter(|other| !is_current(*other)).collect();
        let contradicts = matches!(reason, Some(OpenErrorKind::Contradicts { .. }));
        if contradicts && is_current(device) && !others.is_empty() { others } else { vec![device] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_rows_can_take_in_is_beside_nothing() {
        assert_eq!(beside_nothing(&[4, 4], 2), 0);
        assert_eq!(beside_nothing(&[4, 6], 2), 2);
        // Three copies on three devices: the smallest device limits the stripes.
        assert_eq!(beside_nothing(&[64, 112, 128], 3), 64 + 48);
        // Each stripe uses two of the other three devices as well.
        assert_eq!(beside_nothing(&[10, 10, 10, 40], 3), 30);
        assert_eq!(beside_nothing(&[44, 72, 88, 108], 3), 20);
        assert_eq!(beside_nothing(&[7, 9], 1), 2);
        assert_eq!(beside_nothing(&[], 3), 0);
    }
}
