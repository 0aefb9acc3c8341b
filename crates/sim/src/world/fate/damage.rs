//! The end of a world: a device rots, scrubs find and repair all of the damage, and then any copy
//! is good enough.

use std::collections::BTreeSet;

use millpond_engine::{Class, JobCommand, Layout, MemberState, PoolState};

use crate::machine::FaultyDevice;
use crate::oracle::{Verdict, Violation, broken};
use crate::system::System;
use crate::world::World;

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
            let lasting = || pool.devices.iter().filter(|device| !device.class.is_auxiliary());
            let whole = pool.state == PoolState::Online && lasting().all(|d| d.state == MemberState::Present && d.replacement.is_none());
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
        self.machine.faulty.retain(|_, ill| !matches!(ill, FaultyDevice::FlakyDevice(_)));
        if !self.command_and_wait(JobCommand::Scrub)? {
            return broken("a scrub is refused although none runs");
        }
        self.finish_jobs()?;
        let found = self.system.as_ref().and_then(S::pool).and_then(|pool| pool.scrub);
        self.trace.note(format!("{found:?}"));
        if found.as_ref().is_none_or(|found| !found.complete || found.lost_blocks + found.lost_nodes > 0) {
            return broken(format!("a scrub of a pool with good copies of everything ends with {found:?}"));
        }
        if !self.command_and_wait(JobCommand::Scrub)? {
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
