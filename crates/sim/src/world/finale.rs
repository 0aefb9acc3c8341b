//! The end of a world that survived: everything is read, the accounting is checked, and space comes
//! back when everything is deleted.

use millpond_block::{ByteRange, CacheMode, Op, SectorProfile};
use millpond_engine::{CatalogCommand, Command, Compression, PoolState};

use super::World;
use crate::oracle::{BLOCK, Verdict, broken};
use crate::system::{System, Target};
use crate::workload::Ask;

/// Maximum size of a pool that is filled again at the end, in bytes.
const REFILL_LIMIT: u64 = 12 << 20;
/// Maximum number of promotions until all volumes can be destroyed.
pub(crate) const MOST_PROMOTIONS: u32 = 64;

impl<S: System> World<S> {
    pub(super) fn finale(&mut self) -> Verdict {
        self.trace.note("finale");
        self.heal_store(true);
        self.settle_down()?;
        let targets = self.oracle.targets();
        self.read_back(targets)?;
        self.settle_down()?;
        self.audit()?;
        self.lose_objects()?;
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
        if !self.command_and_wait(CatalogCommand::CreateVolume { name, size, sector, cache, compression })? {
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
}
