//! Removes a device from a group with parity, in a pool whose chunk table fills a good part of the
//! log. Guests write as fast as they are answered, in small pieces and without flushes. No write
//! may be refused while there is space, and the removal ends.

use millpond_block::{ByteRange, Op};
use millpond_engine::{CatalogCommand, DeviceCommand, DeviceInfo, JobKind, PoolState};

use super::World;
use crate::config::Long;
use crate::oracle::{BLOCK, Verdict, Violation, broken};
use crate::system::{System, Target};
use crate::workload::Ask;

/// Milliseconds of simulated time without progress after which this is a finding.
const PATIENCE: u64 = 90_000;
/// Turns without progress after which this is a finding.
const PATIENCE_TURNS: u64 = 100_000;
/// Turns between two checks of the job.
const LOOK: u64 = 32;
/// Maximum number of crashes during a removal.
const CRASHES: u64 = 2;

impl<S: System> World<S> {
    pub(super) fn long_tables(&mut self, long: Long) -> Verdict {
        let Some(volume) = self.oracle.volumes().map(|v| v.id).next() else { return Ok(()) };
        let head = Target::Head(volume);
        self.write_over(head, &long, None)?;
        let name = self.workload.name("snap");
        let targets = vec![(volume, name)];
        self.command_and_wait(CatalogCommand::Snapshot { targets, description: String::new(), expires: None, lock_millis: None })?;
        for _ in 0..long.rounds {
            self.write_over(head, &long, None)?;
        }
        if self.rng.percent(70) {
            self.drain()?;
            let power = self.rng.percent(30);
            self.come_back(power, None)?;
        }
        let listed = self.system.as_ref().and_then(S::pool).map(|pool| pool.devices).unwrap_or_default();
        let leaves = listed.iter().find(|device| device.member == long.member).and_then(|device| self.machine.at(device.slot?));
        if !self.command_and_wait(DeviceCommand::Remove { member: long.member, dry_run: false })? {
            return broken("a device is not removed although the others have room for all of it");
        }
        self.write_over(head, &long, leaves)?;
        self.drain()?;
        self.stats.changes += 1;
        self.settle_down()?;
        let targets = self.oracle.targets();
        self.read_back(targets)?;
        self.audit()?;
        self.come_back(true, leaves)?;
        self.close()?;
        self.collect();
        Ok(())
    }

    /// Kills the daemon or cuts the power, and imports the pool, without the device being removed
    /// if it has left. Then reads the state left by a power cut.
    fn come_back(&mut self, power: bool, leaves: Option<usize>) -> Verdict {
        let known: Vec<usize> = self
            .system
            .as_ref()
            .and_then(S::pool)
            .map_or(Vec::new(), |pool| pool.devices.iter().filter_map(|device| self.machine.at(device.slot?)).collect());
        self.stop(power, false, None);
        let others: Vec<usize> = (0..self.machine.count()).filter(|device| leaves != Some(*device)).collect();
        let left = leaves.is_some_and(|device| !known.contains(&device));
        if left {
            self.machine.plug_these(others.clone());
        }
        self.import(u64::MAX)?;
        let before = self.state();
        let had_left = leaves.is_some() && !left && matches!(before, PoolState::Faulted(_));
        if had_left {
            // Either the device left just before the crash, or the refusal is wrong and the pool
            // misses the device.
            self.trace.note(format!("the device is left out: {before:?}"));
            self.stop(false, false, None);
            self.machine.plug_these(others);
            self.import(u64::MAX)?;
        }
        if self.state() != PoolState::Online {
            return broken(format!("the import ends {:?}, and {before:?} before", self.state()));
        }
        let missing = |device: &DeviceInfo| device.slot.is_none();
        if had_left && self.system.as_ref().and_then(S::pool).is_some_and(|pool| pool.devices.iter().any(missing)) {
            return broken(format!("the import with all devices ends {before:?}, and without the one that leaves the pool misses it"));
        }
        self.found_again()
    }

    /// Compares the catalog after an import, and reads the state that a power cut left undecided.
    pub(super) fn found_again(&mut self) -> Verdict {
        if let Some(system) = &self.system {
            let listing = super::listing(system);
            let now = self.trace.note("imported");
            self.oracle.reconcile(&listing, now)?;
        }
        let unsettled = self.oracle.unsettled();
        if !unsettled.is_empty() {
            self.read_back(unsettled)?;
            self.read_the_rest()?;
            let now = self.trace.note("settled");
            self.oracle.settle(now)?;
        }
        Ok(())
    }

    /// Writes every block once, in pieces in random order; during a removal, runs until the removal
    /// has ended.
    fn write_over(&mut self, head: Target, long: &Long, leaves: Option<usize>) -> Verdict {
        let removing = leaves.is_some();
        let blocks = self.oracle.geometry(head).map_or(0, |(size, _)| size / BLOCK);
        let mut written = vec![false; blocks as usize];
        let refused = self.stats.no_space;
        let (mut left, mut last, mut since, mut turns) = (blocks, (0, 0), (self.machine.now().0, 0), 0u64);
        let mut crashes = if removing { self.rng.below(CRASHES + 1) } else { 0 };
        loop {
            while left > 0 && self.oracle.flights() < self.config.depth {
                let mut first = self.rng.below(blocks);
                while written.get(first as usize).is_some_and(|written| *written) {
                    first = (first + 1) % blocks;
                }
                let most = self.rng.between(1, long.most).min(blocks - first);
                let free = written.iter().skip(first as usize).take(most as usize).take_while(|written| !**written).count() as u64;
                written.iter_mut().skip(first as usize).take(free as usize).for_each(|written| *written = true);
                left -= free;
                self.submit(Ask::new(head, Op::Write, ByteRange { offset: first * BLOCK, length: free * BLOCK }));
            }
            self.step_of(long.turn)?;
            turns += 1;
            let job = if turns.is_multiple_of(LOOK) || left == 0 { self.removal()? } else { Some(last.0) };
            if self.stats.no_space > refused {
                let pool = self.system.as_ref().and_then(S::pool);
                let space = self.system.as_ref().map(System::space_report).unwrap_or_default();
                let (free, size) = pool.map_or((0, 0), |pool| (pool.free >> 20, pool.size >> 20));
                return broken(format!("a write is refused with {free} of {size} MiB free, {left} blocks left, removal {job:?}; {space}"));
            }
            if left == 0 && self.oracle.flights() == 0 && (!removing || job.is_none()) {
                return Ok(());
            }
            let progress = (job.unwrap_or(0), left);
            if progress != last {
                (last, since) = (progress, (self.machine.now().0, turns));
            } else if self.machine.now().0 > since.0 + PATIENCE || turns > since.1 + PATIENCE_TURNS {
                let space = self.system.as_ref().map(System::space_report).unwrap_or_default();
                return broken(format!("no progress with {left} blocks left to write, removal at {job:?}; {space}"));
            }
            if crashes > 0 && left < blocks / 2 && self.rng.below(400) == 0 {
                crashes -= 1;
                // Requests in flight are not repeated.
                let power = self.rng.percent(50);
                self.come_back(power, leaves)?;
                since = (self.machine.now().0, turns);
            }
        }
    }

    /// Returns the bytes that a removal has done; `None` if none runs.
    fn removal(&self) -> Result<Option<u64>, Violation> {
        let Some(pool) = self.system.as_ref().and_then(S::pool) else { return Ok(None) };
        if pool.state != PoolState::Online {
            return broken(format!("the pool is {:?}", pool.state));
        }
        Ok(pool.jobs.iter().find(|job| job.kind == JobKind::Remove).map(|job| job.done))
    }

    /// Runs a turn, lets its duration pass, and ends the device operations that completed
    /// meanwhile.
    fn step_of(&mut self, micros: u64) -> Verdict {
        let again = self.turn()?;
        self.machine.pass(micros);
        let mut ended = false;
        while self.machine.is_due() {
            ended |= self.finish_one()?;
        }
        if !again && !ended && !self.finish_one()? {
            self.machine.pass(super::IDLE_STEP);
        }
        Ok(())
    }
}
