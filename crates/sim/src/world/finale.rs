//! The end of a world that survived: everything is read, the accounting is checked, and space comes
//! back when everything is deleted.

use millpond_block::{ByteRange, CacheMode, Op, SectorProfile};
use millpond_engine::{Command, Compression, PoolState};

use super::World;
use super::fate::Fate;
use crate::oracle::{BLOCK, Snapshot, Verdict, broken};
use crate::system::{System, Target};
use crate::workload::Ask;

/// Maximum size of a pool that is filled again at the end, in bytes.
const REFILL_LIMIT: u64 = 12 << 20;
/// Maximum number of promotions until all volumes can be destroyed.
const MOST_PROMOTIONS: u32 = 64;

impl<S: System> World<S> {
    pub(super) fn finale(&mut self) -> Verdict {
        self.trace.note("finale");
        self.settle_down()?;
        let targets = self.oracle.targets();
        self.read_back(targets)?;
        self.settle_down()?;
        self.audit()?;
        self.last_trial()?;
        self.last_wipe()?;
        if self.config.pool_bytes() <= REFILL_LIMIT && !self.config.append_only && self.rng.percent(30) {
            self.refill()?;
        }
        if self.close()? && self.rng.percent(30) {
            self.import_and_verify()?;
            self.settle_down()?;
            self.audit()?;
        }
        self.collect();
        Ok(())
    }

    /// Runs the engine's own recount (I12).
    pub(crate) fn audit(&mut self) -> Verdict {
        if self.fate.as_ref().is_some_and(Fate::has_damage) {
            return Ok(()); // an audit trusts every copy
        }
        let World { system, machine, .. } = self;
        let Some(system) = system else { return Ok(()) };
        let problems = system.audit(&mut |slot, offset, out| machine.peek(slot, offset, out));
        if problems.is_empty() { Ok(()) } else { broken(format!("the accounting is wrong: {}", problems.join("; "))) }
    }

    /// Deletes everything. Then the space must be free and take new data.
    fn refill(&mut self) -> Verdict {
        self.destroy_all()?;
        for _ in 0..self.config.tuning.rewind_checkpoints + 3 {
            self.settle_down()?;
            self.machine.pass(600_000_000);
            self.command_and_wait(Command::Checkpoint)?;
        }
        self.settle_down()?;
        self.audit()?;
        let Some(pool) = self.system.as_ref().and_then(S::pool) else { return Ok(()) };
        self.trace.note(format!("empty: {} of {} bytes allocated, {} free", pool.allocated, pool.size, pool.free));
        if pool.state != PoolState::Online || pool.allocated > pool.size / 4 {
            return broken(format!("an empty pool of {} bytes has {} allocated and is {:?}", pool.size, pool.allocated, pool.state));
        }
        let size = (pool.free * 6 / 10 / BLOCK).max(1) * BLOCK;
        let name = self.workload.name("refill");
        let (sector, cache, compression) = (SectorProfile::S512e, CacheMode::Writeback, Compression::Off);
        if !self.command_and_wait(Command::CreateVolume { name, size, sector, cache, compression })? {
            return broken("an empty pool has no space for a volume");
        }
        let Some(volume) = self.oracle.volumes().map(|v| v.id).next() else { return Ok(()) };
        let refused = self.stats.no_space;
        let mut offset = 0;
        while offset < size {
            let length = (size - offset).min(16 * BLOCK);
            self.submit(Ask::new(Target::Head(volume), Op::Write, ByteRange { offset, length }));
            offset += length;
            if self.oracle.flights() >= 8 {
                self.drain()?;
            }
        }
        self.drain()?;
        if self.stats.no_space > refused {
            return broken(format!("of {} bytes that were free, {size} cannot be written: ENOSPC", pool.free));
        }
        self.read_back(vec![Target::Head(volume)])
    }

    /// Destroys all volumes and snapshots.
    pub(super) fn destroy_all(&mut self) -> Verdict {
        self.trace.note("everything is deleted");
        let holds = |s: &Snapshot| {
            let plain = (0..s.holds).map(|_| None);
            plain.chain(s.tags.iter().cloned().map(Some)).map(|tag| Command::Release { snapshot: s.id, tag }).collect::<Vec<_>>()
        };
        let releases: Vec<Command> = self.oracle.snapshots().flat_map(holds).collect();
        for release in releases {
            self.command_and_wait(release)?;
        }
        let mut promotions = 0;
        while self.oracle.volumes().next().is_some() {
            let free = self.oracle.volumes().map(|v| v.id).find(|id| !self.oracle.is_needed_by_others(*id));
            let command = match free {
                Some(volume) => Command::DestroyVolume { volume },
                None => match self.break_circle() {
                    Some(command) if promotions < MOST_PROMOTIONS => command,
                    _ => return broken("clones in a circle"),
                },
            };
            promotions += u32::from(matches!(command, Command::Promote { .. }));
            let what = format!("{command:?} is refused although nothing needs what it takes");
            if !self.command_and_wait(command)? {
                return broken(what);
            }
        }
        Ok(())
    }

    /// Breaks a circle that promotions left, in which each volume starts from a snapshot of the
    /// other: destroys a snapshot without clones, or promotes a volume if only destroyed snapshots
    /// are between them.
    fn break_circle(&self) -> Option<Command> {
        let last = self.oracle.snapshots().map(|s| s.id).find(|id| self.oracle.clones(*id) == 0);
        let destroy = last.map(|id| Command::DestroySnapshots { snapshots: vec![id] });
        destroy.or_else(|| {
            let clone = self.oracle.volumes().map(|v| v.id).find(|id| self.oracle.may_promote(*id));
            clone.map(|volume| Command::Promote { volume, dry_run: false })
        })
    }
}
