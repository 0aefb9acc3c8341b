//! The end and the beginning of a pool's service: stop, close, import, and reading everything back.

use millpond_block::{ByteRange, Op};
use millpond_engine::{Aim, Command, PoolState, Tuning};

use super::World;
use super::base_store::BaseStore;
use super::object_store::ObjectStore;
use crate::oracle::{BLOCK, Verdict, Violation, broken};
use crate::shard::Shard;
use crate::workload::Ask;
use crate::{System, Target};

/// Turns within which an import must end.
const IMPORT_TURNS: u64 = 200_000;

impl<S: System> World<S> {
    /// Kills the daemon or cuts the power.
    pub(crate) fn stop(&mut self, power: bool, loses_cache: bool, gone: Option<usize>) {
        self.collect();
        self.observe();
        self.observe_caches();
        self.end_uploads();
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
        verdict.and_then(|()| self.note_import())
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

    /// Imports with one device missing, which must be refused and must harm nothing.
    pub(super) fn import_without_one(&mut self) -> Verdict {
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

    /// Reads whole targets, in pieces of a random size and in random order.
    pub(super) fn read_back(&mut self, targets: Vec<Target>) -> Verdict {
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
        // A store that refuses a chunk is no damage.
        self.stats.detected += u64::from(self.stats.failed > failed && !self.has_store());
        Ok(())
    }

    /// Closes the pool; returns false if the pool could not close.
    pub(super) fn close(&mut self) -> Result<bool, Violation> {
        self.shard.iter_mut().for_each(Shard::lift);
        self.call_store_back()?;
        self.drain()?;
        self.read_without_store();
        let closed = self.command_and_wait(Command::Close)?;
        self.store.iter_mut().for_each(BaseStore::come_back);
        self.bucket.iter_mut().for_each(ObjectStore::come_back);
        if !closed {
            return Ok(false);
        }
        self.answer_after_close();
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
        self.end_uploads();
        self.start_system(None);
        self.machine.let_go.clear();
        if self.rng.percent(30) {
            // A clean shutdown leaves nothing in device caches only.
            self.trace.note("POWER CUT after the close");
            self.machine.random_power_cut();
        }
        Ok(true)
    }
}
