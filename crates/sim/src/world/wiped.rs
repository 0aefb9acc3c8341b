//! Checks of a wipe (INV-WIPE-1) on the media: no device of the pool holds a sector of destroyed
//! data.

use millpond_block::ByteRange;
use millpond_engine::{JobCommand, JobKind, MemberState, PoolState, Wipe};

use super::World;
use super::caches::Caches;
use super::fate::DeviceFaults;
use crate::content::{Content, identify};
use crate::disk::PAGE;
use crate::oracle::{Verdict, Violation, broken};
use crate::system::System;

/// Guest requests between two wipes: blocks die in segments that are clean, and are moved there.
const REQUESTS: u64 = 80;
/// Seconds of simulated time that a wipe may take without progress, and in all.
const PATIENCE: u32 = 200;
const MOST_PATIENCE: u32 = 20 * PATIENCE;

impl<S: System> World<S> {
    /// In a fork of the world: everything is wiped, guests continue, everything is destroyed and
    /// wiped again, and the power fails.
    pub(super) fn last_wipe(&mut self) -> Verdict {
        let spoilt = self.damaged || self.fate.as_ref().is_some_and(DeviceFaults::has_damage);
        // A wipe does not cover sectors of the former pool.
        if !self.config.wiped || spoilt || self.config.second_hand || self.state() != PoolState::Online {
            return Ok(());
        }
        let mut fork = self.fork(0);
        fork.trace.print = self.trace.print;
        let verdict = fork.wipe_and_look();
        self.stats.add(&Self::without_operations(&fork));
        verdict.map_err(|Violation(what)| {
            std::mem::swap(&mut self.trace, &mut fork.trace);
            Violation(format!("{what} (in a world that is wiped)"))
        })
    }

    fn wipe_and_look(&mut self) -> Verdict {
        self.trace.note("a world that is wiped");
        self.machine.discard_for_good();
        if let Some(fate) = &mut self.fate {
            fate.chance = 0;
        }
        // A wipe is refused in a pool with a cache, so none is added.
        self.caches.iter_mut().for_each(Caches::rest);
        let [power, before, after] = [50; 3].map(|percent| self.rng.percent(percent));
        let how = |zero: bool| if zero { Wipe::Zero } else { Wipe::Discard };
        self.stop(power, false, None);
        self.import_and_verify()?;
        self.finish_jobs()?;
        if !self.command_and_wait(JobCommand::Wipe { how: how(before), dry_run: false })? {
            return Ok(()); // devices are missing, or there is a cache
        }
        if !self.wipe_ends()? {
            // The pool is too full.
            self.command_and_wait(JobCommand::StopWipe)?;
        }
        self.guests(REQUESTS)?;
        self.drain()?;
        let targets = self.oracle.targets();
        self.read_back(targets)?;
        self.destroy_all()?;
        if !self.command_and_wait(JobCommand::Wipe { how: how(after), dry_run: false })? {
            return broken("a wipe is refused although there was one before");
        }
        if !self.wipe_ends()? {
            return broken("a wipe of an empty pool does not come to an end");
        }
        self.audit()?;
        let pool = self.system.as_ref().and_then(S::pool);
        let members = pool.iter().flat_map(|pool| &pool.devices).filter(|device| device.state == MemberState::Present);
        let devices: Vec<usize> = members.filter_map(|device| self.machine.at(device.slot?)).collect();
        self.stop(true, false, None);
        self.stats.wipes += 1;
        devices.into_iter().try_for_each(|device| self.holds_nothing(device))
    }

    /// Waits for the end of a wipe; returns false if it does not end.
    fn wipe_ends(&mut self) -> Result<bool, Violation> {
        let (mut before, mut left) = (None, PATIENCE);
        for _ in 0..MOST_PATIENCE {
            self.settle_down()?;
            let jobs = self.system.as_ref().and_then(S::pool).map(|pool| pool.jobs).unwrap_or_default();
            let Some(wipe) = jobs.iter().find(|job| job.kind == JobKind::Wipe) else { return Ok(true) };
            left = if before == Some(wipe.done) { left - 1 } else { PATIENCE };
            before = Some(wipe.done);
            if left == 0 {
                break;
            }
            self.machine.pass(1_000_000);
        }
        Ok(false)
    }

    /// Checks that no sector of a device has the stamp of a guest's write.
    fn holds_nothing(&self, device: usize) -> Verdict {
        let grid = self.oracle.grid();
        let pages = self.machine.geometry(device).map_or(0, |geometry| geometry.size / PAGE as u64);
        let mut page = [0; PAGE];
        for at in (0..pages).map(|page| page * PAGE as u64) {
            self.machine.peek_device(device, at, &mut page);
            for (_, place) in grid.places(ByteRange { offset: 0, length: PAGE as u64 }) {
                let (byte, found) = (at + place.start as u64, page.get(place).map(identify));
                if let Some(Content::Stamp { op, volume, cell }) = found {
                    return broken(format!(
                        "after a wipe device {device} still holds, at byte {byte:#x}, what op {op} wrote to cell {cell} of volume {volume}"
                    ));
                }
            }
        }
        Ok(())
    }
}
