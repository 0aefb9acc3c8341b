//! The end of an era: crash or shutdown, import (sometimes interrupted), and reading everything
//! back.

use millpond_block::{ByteRange, Op};
use millpond_engine::{Aim, Command, PoolState, Tuning};

use super::{World, listing};
use crate::config::End;
use crate::fault::{Armed, FaultKind};
use crate::oracle::{BLOCK, Verdict, Violation, broken};
use crate::shard::Shard;
use crate::system::{System, Target};
use crate::workload::Ask;

/// Turns within which an import must end.
const IMPORT_TURNS: u64 = 200_000;

impl<S: System> World<S> {
    /// Ends the era, imports the pool and reads back what must be there.
    pub(super) fn recover(&mut self, end: End) -> Verdict {
        let closed = end == End::Close && self.close()?;
        self.observe();
        self.judge_losses()?;
        let struck = self.machine.armed.kind();
        self.stats.faults += u64::from(struck.is_some());
        let loses_cache = matches!(struck, Some(FaultKind::FlushDrop | FaultKind::Gone));
        let gone = self.machine.armed.fault().filter(|_| struck == Some(FaultKind::Gone)).map(|f| f.device);
        self.note_end(closed, struck.is_none());
        if !closed {
            if end != End::Power && struck.is_none() {
                self.keep_ghost();
            }
            self.stop(end == End::Power, loses_cache, gone);
        }
        // A persistent error also hits the first import, which may be refused for it.
        let lingering = struck.is_some() && !loses_cache && self.rng.percent(40);
        if lingering {
            self.note_interrupted();
            self.import(u64::MAX)?;
            self.collect();
            self.stop(false, false, None);
        }
        self.machine.armed = Armed::default();
        self.oracle.errors_allowed = self.damaged;
        self.come_and_go();
        self.caches_come_and_go();
        self.import_and_verify()?;
        if self.rng_of_trials(40) {
            self.trial()?;
        }
        self.lose_special()
    }

    /// Imports with interruptions, compares the catalog and reads back.
    pub(crate) fn import_and_verify(&mut self) -> Verdict {
        if self.fate.is_none() && self.config.needed() > 1 && self.rng.percent(5) {
            self.import_without_one()?;
        }
        while self.rng.percent(20) {
            let operations = self.rng.below(60);
            self.stats.interrupted += 1;
            self.note_interrupted();
            self.import(operations)?;
            let power = self.rng.percent(50);
            self.stop(power, false, None);
        }
        self.import_elsewhere()?;
        if self.fate.is_some() {
            self.open_what_is_there()?;
        } else {
            self.machine.plug(true);
            self.import(u64::MAX)?;
        }
        match self.state() {
            PoolState::Online => self.note_held(),
            PoolState::Faulted(reason) if self.damaged => {
                self.trace.note(format!("import refused, rightly: {reason}"));
                self.stats.detected += 1;
                self.over = true;
                return self.find_a_way_back(&reason.to_string());
            }
            state => return broken(format!("the import ends {state:?}")),
        }
        if let Some(system) = &self.system {
            let listing = listing(system);
            let now = self.trace.note("imported");
            self.oracle.reconcile(&listing, now)?;
        }
        let unsettled = self.oracle.unsettled();
        if !unsettled.is_empty() {
            self.read_back(unsettled)?;
            if self.damaged {
                return Ok(()); // what could not be read stays unknown
            }
            let now = self.trace.note("settled");
            for (sum, count) in self.stats.modes.iter_mut().zip(self.oracle.losses(now)) {
                sum.add(&count);
            }
            self.oracle.settle(now)?;
            self.verify(30)
        } else {
            self.verify(60)
        }
    }

    /// Reads everything back with this probability in percent, else a part.
    fn verify(&mut self, percent: u64) -> Verdict {
        let mut targets = self.oracle.targets();
        if !self.rng.percent(percent) {
            self.rng.shuffle(&mut targets);
            targets.truncate(self.rng.index(4));
        }
        self.read_back(targets)
    }

    /// Imports with one device missing, which must be refused and must harm nothing.
    fn import_without_one(&mut self) -> Verdict {
        self.trace.note("import with a device missing");
        let needed = (0..self.config.needed()).collect();
        let devices = self.machine.plug_without_one(needed);
        let tuning = self.tuning();
        self.start_system(Some(S::import(devices, tuning, self.machine.now())));
        let before = std::mem::replace(&mut self.oracle.errors_allowed, true);
        let verdict = self.wait_open(u64::MAX);
        self.oracle.errors_allowed = before;
        verdict?;
        let state = self.state();
        self.stop(false, false, None);
        self.machine.plug_all();
        if state == PoolState::Online { broken("a pool without redundancy comes online although a device is missing") } else { Ok(()) }
    }

    /// Imports, and stops after this number of device operations.
    pub(super) fn import(&mut self, operations: u64) -> Verdict {
        self.trace.note("import");
        let devices = self.devices_there();
        let mut tuning = self.tuning();
        tuning.degraded |= self.fate.is_some();
        self.start_system(Some(S::import(devices.clone(), tuning.clone(), self.machine.now())));
        self.wait_open(operations)?;
        if self.gives_up_special() {
            self.trace.note("rebuild without special devices");
            let tuning = Tuning { aim: Aim::Rebuild, ..tuning };
            self.start_system(Some(S::import(devices, tuning, self.machine.now())));
            self.wait_open(operations)?;
        }
        Ok(())
    }

    /// Runs until the pool is open or faulted, or until this number of device operations has ended.
    pub(super) fn wait_open(&mut self, operations: u64) -> Verdict {
        let mut left = operations;
        let lenient = self.damaged || self.machine.armed.kind().is_some();
        let before = std::mem::replace(&mut self.oracle.errors_allowed, true);
        let mut verdict = broken(format!("the pool does not open in {IMPORT_TURNS} turns"));
        for _ in 0..IMPORT_TURNS {
            if self.state() != PoolState::Opening || left == 0 {
                verdict = Ok(());
                break;
            }
            self.live_on()?;
            let again = self.turn()?;
            if self.finish_one()? {
                left -= 1;
            } else {
                self.machine.pass(if again { super::BUSY_STEP } else { super::IDLE_STEP });
            }
        }
        self.oracle.errors_allowed = before || lenient;
        verdict
    }

    /// Kills the daemon or cuts the power.
    pub(crate) fn stop(&mut self, power: bool, loses_cache: bool, gone: Option<usize>) {
        self.collect();
        self.observe();
        self.observe_caches();
        self.start_system(None);
        self.machine.let_go.clear();
        self.waiting.clear();
        self.running.clear();
        match gone {
            Some(device) => {
                self.trace.note(format!("daemon killed, device {device} comes back without its cache"));
                self.machine.reset_device(device);
            }
            None if power => {
                self.trace.note("POWER CUT");
                self.machine.random_power_cut();
                // A suspended host would believe that its writes are still in the device caches.
                self.end_ghost();
            }
            None => {
                self.trace.note("KILL");
                self.machine.kill();
            }
        }
        if self.config.buffered {
            self.trace.note(format!("{} pages are shown that no device has", self.machine.only_shown()));
        }
        self.machine.settle();
        let power = power || loses_cache || gone.is_some();
        self.stats.cuts += u64::from(power);
        self.stats.kills += u64::from(!power);
        let now = self.trace.now() + 1;
        self.trace.note("crashed");
        self.oracle.crash(power, now);
    }

    /// Adds the engine's counters to the statistics, before the engine is dropped.
    pub(super) fn collect(&mut self) {
        if let Some(system) = &self.system {
            let metrics = system.metrics();
            self.stats.checkpoints += metrics.checkpoints;
            self.stats.cleaned += metrics.segments_cleaned;
            self.stats.prepared += metrics.prepared_bytes;
            self.stats.given_back += metrics.given_back_bytes;
            self.stats.cached += metrics.cache_hits;
        }
    }

    /// Closes the pool; returns false if the pool could not close.
    pub(super) fn close(&mut self) -> Result<bool, Violation> {
        self.shard.iter_mut().for_each(Shard::lift);
        self.drain()?;
        if !self.command_and_wait(Command::Close)? {
            return Ok(false);
        }
        if self.state() != PoolState::Closed {
            return broken(format!("after the answer to a close the pool is {:?}", self.state()));
        }
        self.observe();
        if self.uses_devices() {
            return broken("after the answer to a close device operations are under way");
        }
        if self.fate.is_none() && self.shard.as_ref().is_some_and(|shard| !shard.is_idle()) {
            return broken("after the answer to a close device operations are held");
        }
        // Devices that were given up may still have operations in flight.
        self.machine.kill();
        self.machine.settle();
        self.trace.note("closed");
        self.stats.closes += 1;
        self.note_end(true, true);
        self.collect();
        self.observe();
        self.observe_caches();
        self.start_system(None);
        self.machine.let_go.clear();
        if self.rng.percent(30) {
            // A clean shutdown leaves nothing in device caches only.
            self.trace.note("POWER CUT after the close");
            self.machine.random_power_cut();
        }
        Ok(true)
    }

    /// Ends an era with damage: a checkpoint covers everything that can be judged, then everything
    /// is read, with errors allowed.
    pub(super) fn damaged_end(&mut self, end: End) -> Verdict {
        self.stats.faults += 1;
        self.oracle.errors_allowed |= self.machine.armed.kind().is_some();
        self.settle_down()?;
        let covered = self.state() == PoolState::Online && self.command_and_wait(Command::Checkpoint)?;
        if !covered {
            self.trace.note("the pool noticed the damage and stopped");
            self.stats.detected += 1;
            return self.after_a_stop(end);
        }
        self.settle_down()?;
        let device = self.machine.armed.fault().map_or(0, |f| f.device);
        if self.machine.armed.fault().is_some_and(|f| f.kind == FaultKind::Rot)
            && let Some(what) = self.machine.rot(device)
        {
            self.trace.note(format!("device {device} rots: {what}"));
        }
        self.damaged = true;
        self.oracle.errors_allowed = true;
        self.machine.armed = Armed::default();
        if self.rng.percent(70) {
            self.stop(end == End::Power, false, None);
            self.import_and_verify()?;
        }
        if !self.over {
            let targets = self.oracle.targets();
            self.read_back(targets)?;
        }
        self.collect();
        self.over = true;
        Ok(())
    }

    /// Handles a pool that stopped when it met damage: the next import succeeds, or older states
    /// are tried.
    fn after_a_stop(&mut self, end: End) -> Verdict {
        self.over = true;
        if self.config.append_only || self.fate.is_some() {
            return Ok(());
        }
        (self.damaged, self.oracle.errors_allowed, self.oracle.rewound) = (true, true, true);
        self.machine.armed = Armed::default();
        self.stop(end == End::Power, false, None);
        self.machine.plug(true);
        self.import(u64::MAX)?;
        match self.state() {
            PoolState::Faulted(reason) => self.find_a_way_back(&reason.to_string()),
            _ => Ok(()),
        }
    }

    /// Reads whole targets, in pieces of a random size and in random order.
    pub(crate) fn read_back(&mut self, targets: Vec<Target>) -> Verdict {
        let mut ranges = Vec::new();
        for target in targets {
            let Some((size, _)) = self.oracle.geometry(target) else { continue };
            let step = BLOCK << self.rng.below(6);
            let mut offset = 0;
            while offset < size {
                let length = step.min(size - offset);
                ranges.push((target, ByteRange { offset, length }));
                offset += length;
            }
        }
        if self.rng.percent(50) {
            self.rng.shuffle(&mut ranges);
        }
        let failed = self.stats.failed;
        for (target, range) in ranges {
            self.submit(Ask::new(target, Op::Read, range));
            if self.oracle.flights() >= self.config.depth.max(4) {
                self.turn()?;
                while self.oracle.flights() >= self.config.depth.max(4) && self.finish_one()? {}
                if self.oracle.flights() >= self.config.depth.max(4) {
                    self.drain()?;
                }
            }
        }
        self.drain()?;
        self.stats.detected += u64::from(self.stats.failed > failed);
        Ok(())
    }
}
