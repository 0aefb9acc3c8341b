//! A pool of thousands of segments that runs full, with snapshots of every age between which
//! scattered blocks were overwritten. All operations that free space work, also after restarts
//! (I9). Space of destroyed snapshots comes back, and reserved space is available.

use std::collections::BTreeSet;

use millpond_block::{ByteRange, Op};
use millpond_engine::{CatalogCommand, Command, CommandError, PoolState, SnapshotId, VolumeId, VolumeOptions};

use super::World;
use super::room::FOR_OVERWRITES;
use crate::config::Full;
use crate::oracle::{BLOCK, Verdict, Violation, broken};
use crate::system::{System, Target};
use crate::workload::Ask;

/// Minimum and maximum stride of overwrites between two snapshots, in blocks.
const STRIDES: (u64, u64) = (2, 9);
/// Refused writes after the first, with which a pool counts as full.
const REFUSED: u64 = 16;
/// Turns within which an operation that frees space must be answered.
const TURNS: u64 = 60_000;
/// Percent of a snapshot's unique bytes that must come back when it is destroyed. Nodes and parts
/// of chunks make the difference.
const COMES_BACK: u64 = 95;
/// Blocks overwritten to test whether a pool accepts writes.
const PROBE: u64 = 64;
/// Percent of the pool's size: up to the first, reservations must be granted; from the second on,
/// refused.
const RESERVED: (u64, u64) = (90, 101);

impl<S: System> World<S> {
    pub(super) fn full_pool(&mut self, full: Full) -> Verdict {
        let volumes: Vec<VolumeId> = self.oracle.volumes().map(|volume| volume.id).collect();
        let Some(pool) = self.system.as_ref().and_then(S::pool) else { return Ok(()) };
        let old = pool.size * full.old / 100 / BLOCK / volumes.len().max(1) as u64;
        for volume in &volumes {
            self.write_run(Target::Head(*volume), 0..old, 1, full.most)?;
        }
        let reserved = if self.rng.percent(50) { self.reserve(&volumes)? } else { None };
        for _ in 0..full.snapshots {
            self.grow_older(&volumes, old, full.most)?;
        }
        for volume in &volumes {
            if reserved.is_none_or(|(kept, _)| kept != *volume) {
                self.fill_volume(*volume, old, full.most)?;
            }
        }
        self.trace.note("the pool is full");
        if let Some((volume, bytes)) = reserved {
            self.take_reserved(volume, old, bytes)?;
        }
        if self.rng.percent(60) {
            self.restart()?;
        }
        self.give_back(old)?;
        self.empty_again()?;
        if !self.close()? {
            return broken("a pool that was full is not closed");
        }
        self.machine.plug(true);
        self.import(u64::MAX)?;
        self.expect_online()?;
        self.found_again()?;
        self.settle_down()?;
        self.audit()?;
        self.collect();
        Ok(())
    }

    /// Takes snapshots of some volumes and overwrites some blocks of each.
    fn grow_older(&mut self, volumes: &[VolumeId], old: u64, most: u64) -> Verdict {
        let all = self.rng.percent(50);
        let chosen: Vec<VolumeId> = volumes.iter().copied().filter(|_| all || self.rng.percent(50)).collect();
        if chosen.is_empty() {
            return Ok(());
        }
        let targets = chosen.iter().map(|volume| (*volume, self.workload.name("snap"))).collect();
        self.command_and_wait(CatalogCommand::Snapshot { targets, description: String::new(), expires: None, lock_millis: None })?;
        let stride = self.rng.between(STRIDES.0, STRIDES.1);
        let first = self.rng.below(stride);
        // Each round overwrites a part, so that all rounds together fill about half of a pool.
        let from = self.rng.below(old);
        let to = (from + old / 4).min(old);
        for volume in chosen {
            self.write_run(Target::Head(volume), from + first..to, stride, most)?;
        }
        if self.rng.percent(10) { self.restart() } else { Ok(()) }
    }

    /// Writes every `stride`-th block of a range, in longer pieces if `stride` is 1. Returns
    /// whether no write was refused.
    fn write_run(&mut self, head: Target, blocks: std::ops::Range<u64>, stride: u64, most: u64) -> Result<bool, Violation> {
        let refused = self.stats.no_space;
        let mut at = blocks.start;
        while at < blocks.end {
            let length = if stride > 1 { 1 } else { self.rng.between(1, most).min(blocks.end - at) };
            self.submit(Ask::new(head, Op::Write, ByteRange { offset: at * BLOCK, length: length * BLOCK }));
            at += length.max(stride);
            while self.oracle.flights() >= self.config.depth {
                let before = self.oracle.flights();
                self.turn()?;
                while self.oracle.flights() == before && self.finish_one()? {}
                if self.oracle.flights() == before {
                    self.drain()?;
                }
            }
            if self.stats.no_space > refused + REFUSED {
                break;
            }
        }
        self.drain()?;
        Ok(self.stats.no_space == refused)
    }

    /// Writes the unwritten part of a volume, until writes are refused.
    fn fill_volume(&mut self, volume: VolumeId, old: u64, most: u64) -> Verdict {
        let blocks = self.oracle.geometry(Target::Head(volume)).map_or(0, |(size, _)| size / BLOCK);
        self.write_run(Target::Head(volume), old..blocks, 1, most.max(8)).map(|_| ())
    }

    /// Reserves space for a volume. A reservation that does not fit must be refused, one that fits
    /// must not.
    fn reserve(&mut self, volumes: &[VolumeId]) -> Result<Option<(VolumeId, u64)>, Violation> {
        let volume = *self.rng.pick(volumes);
        let Some(pool) = self.system.as_ref().and_then(S::pool) else { return Ok(None) };
        let of = |reservation| {
            Command::Catalog(CatalogCommand::SetOptions { volume, options: VolumeOptions { reservation, ..VolumeOptions::default() } })
        };
        // The volume's own data counts towards its reservation. With a single volume, no other
        // holds anything.
        let own = self.oracle.held_bytes() / volumes.len().max(1) as u64;
        let others = self.oracle.held_bytes() - own;
        let most = (pool.size * RESERVED.1 / 100).saturating_sub(others);
        if !matches!(self.ask_plainly(of(most))?, Err(CommandError::NoSpace)) {
            return broken(format!("{most} of {} bytes are kept for a volume, although {others} are held by others", pool.size));
        }
        let fits = (pool.size * RESERVED.0 / 100).saturating_sub(others + FOR_OVERWRITES);
        let bytes = self.rng.between(fits / 2, fits);
        if let Err(error) = self.ask_plainly(of(bytes))? {
            return broken(format!(
                "{bytes} of {} bytes are not kept for a volume, although others hold {others} alone: {error}",
                pool.size
            ));
        }
        Ok(Some((volume, bytes)))
    }

    /// Submits a command and returns its result for the caller to judge.
    fn ask_plainly(&mut self, command: Command) -> Result<Result<(), CommandError>, Violation> {
        self.command(command, vec![], vec![]);
        self.drain()?;
        Ok(self.last_reply.take().unwrap_or(Ok(())))
    }

    /// Writes to a volume with a reservation in a full pool. The space it and its snapshots hold
    /// counts towards the reservation.
    fn take_reserved(&mut self, volume: VolumeId, old: u64, bytes: u64) -> Verdict {
        let held = self.oracle.held_bytes_of(volume);
        let blocks = bytes.saturating_sub(held) / BLOCK * 9 / 10;
        let size = self.oracle.geometry(Target::Head(volume)).map_or(0, |(size, _)| size / BLOCK);
        let end = (old + blocks).min(size);
        self.trace.note(format!("of {bytes} bytes that are kept for vol{volume} {held} are taken"));
        if self.write_run(Target::Head(volume), old..end, 1, 16)? {
            return Ok(());
        }
        let space = self.system.as_ref().map(System::space_report).unwrap_or_default();
        broken(format!("a volume holds {held} of {bytes} bytes that are kept for it, and {blocks} blocks more are refused; {space}"))
    }

    /// Closes the pool, kills the daemon or cuts the power, and imports the pool again.
    fn restart(&mut self) -> Verdict {
        if self.rng.percent(30) {
            self.close()?;
        } else {
            let power = self.rng.percent(60);
            self.stop(power, false, None);
        }
        self.machine.plug(true);
        self.import(u64::MAX)?;
        self.expect_online()?;
        self.found_again()
    }

    fn expect_online(&self) -> Verdict {
        match self.state() {
            PoolState::Online => Ok(()),
            state => broken(format!("the import ends {state:?}")),
        }
    }

    /// Frees space in every way, in random order, in a full pool.
    fn give_back(&mut self, old: u64) -> Verdict {
        let mut probed = 0;
        // Volumes that were rolled back. When the target snapshot is destroyed it may stay hidden,
        // with the blocks that other snapshots share with it.
        let mut went_back = BTreeSet::new();
        while self.oracle.snapshots().next().is_some() {
            let snapshots: Vec<(SnapshotId, VolumeId)> = self.oracle.snapshots().map(|s| (s.id, s.volume)).collect();
            let (snapshot, volume) = *self.rng.pick(&snapshots);
            match self.rng.weighted(&[70, 8, 5, 5, 6]) {
                0 => self.destroy_and_see(snapshot, went_back.contains(&volume))?,
                1 => {
                    let blocks = self.oracle.geometry(Target::Head(volume)).map_or(0, |(size, _)| size / BLOCK);
                    let first = self.rng.below(blocks);
                    let count = self.rng.between(1, (blocks - first).min(4096));
                    self.submit(Ask::new(Target::Head(volume), Op::Discard, ByteRange { offset: first * BLOCK, length: count * BLOCK }));
                    self.in_time("a discard")?;
                }
                2 => {
                    let decided = self.oracle.snapshot(snapshot).is_some_and(|s| s.undecided().is_empty());
                    if decided {
                        went_back.insert(volume);
                        let keep_as = self.workload.name("kept");
                        self.command(CatalogCommand::Rollback { snapshot, keep_as }, vec![], vec![]);
                        self.in_time("a rollback")?;
                    }
                }
                3 if self.oracle.volumes().count() > 1 => {
                    self.command(CatalogCommand::DestroyVolume { volume }, vec![], vec![]);
                    self.in_time("destroying a volume")?;
                }
                4 => self.restart()?,
                _ => {}
            }
            // Blocks that die in the head are free again: a full pool accepts overwrites.
            let volume = self.oracle.volumes().map(|v| v.id).next();
            if let Some(volume) = volume.filter(|_| self.rng.percent(20)) {
                probed += 1;
                let first = self.rng.below(old.saturating_sub(PROBE).max(1));
                self.write_run(Target::Head(volume), first..first + PROBE, 1, 4)?;
            }
        }
        self.trace.note(format!("{probed} times something was overwritten"));
        Ok(())
    }

    /// Destroys a snapshot. Its unique bytes must be listed and come back, unless its volume was
    /// rolled back (`went_back`).
    fn destroy_and_see(&mut self, snapshot: SnapshotId, went_back: bool) -> Verdict {
        let looks = self.rng.percent(40);
        if looks {
            self.settle_down()?;
        }
        let before = self.system.as_ref().and_then(S::pool).map_or(0, |pool| pool.allocated);
        let own = if looks && !went_back { self.oracle.unique_bytes(snapshot) } else { None };
        let said =
            self.system.as_ref().and_then(|s| s.snapshots().into_iter().find(|info| info.id == snapshot)).map_or(0, |s| s.unique_bytes);
        if let Some(own) = own
            && said * 100 < own * COMES_BACK
        {
            return broken(format!("snapshot {snapshot} is said to hold {said} bytes alone, and holds {own}"));
        }
        self.command(CatalogCommand::DestroySnapshots { snapshots: vec![snapshot] }, vec![], vec![]);
        self.in_time("destroying a snapshot")?;
        let Some(own) = own else { return Ok(()) };
        self.settle_down()?;
        let after = self.system.as_ref().and_then(S::pool).map_or(0, |pool| pool.allocated);
        if before.saturating_sub(after) * 100 < own * COMES_BACK {
            return broken(format!("snapshot {snapshot} held {own} bytes alone; {before} were allocated with it, and {after} are without"));
        }
        Ok(())
    }

    /// Runs until all requests and commands are answered, within a limit of turns.
    fn in_time(&mut self, what: &str) -> Verdict {
        for _ in 0..TURNS {
            if self.oracle.flights() == 0 && self.running.is_empty() {
                return Ok(());
            }
            let again = self.turn()?;
            if !self.finish_one()? {
                self.machine.pass(if again { super::BUSY_STEP } else { super::IDLE_STEP });
            }
        }
        let space = self.system.as_ref().map(System::space_report).unwrap_or_default();
        broken(format!("{what} on a full pool is not answered in {TURNS} turns; {space}"))
    }

    /// Without snapshots, allocated space must be close to the content of the heads, and free space
    /// must be writable.
    fn empty_again(&mut self) -> Verdict {
        self.settle_down()?;
        for _ in 0..self.config.tuning.rewind_checkpoints + 2 {
            self.command_and_wait(Command::Checkpoint)?;
            self.settle_down()?;
        }
        self.audit()?;
        let held = self.oracle.held_bytes();
        let Some(pool) = self.system.as_ref().and_then(S::pool) else { return Ok(()) };
        self.trace.note(format!("without snapshots: {held} bytes are held at most, {} of {} allocated", pool.allocated, pool.size));
        let most = held + pool.size / 20;
        if pool.allocated > most {
            return broken(format!("{held} bytes are held at most, and {} of {} are allocated", pool.allocated, pool.size));
        }
        let Some(volume) = self.oracle.volumes().map(|v| v.id).next() else { return Ok(()) };
        let blocks = self.oracle.geometry(Target::Head(volume)).map_or(0, |(size, _)| size / BLOCK);
        let count = (pool.free / BLOCK * 8 / 10).min(blocks);
        // Overwritten blocks take no more space than before.
        if self.reservation_of_others(volume) == 0 && !self.write_run(Target::Head(volume), blocks - count..blocks, 1, 32)? {
            let space = self.system.as_ref().map(System::space_report).unwrap_or_default();
            return broken(format!("{} bytes are free, and {count} blocks cannot be written; {space}", pool.free));
        }
        Ok(())
    }

    /// Returns the bytes reserved for other volumes.
    fn reservation_of_others(&self, volume: VolumeId) -> u64 {
        let volumes = self.system.as_ref().map(S::volumes).unwrap_or_default();
        volumes.iter().filter(|other| other.id != volume).map(|other| other.options.reservation).sum()
    }
}
