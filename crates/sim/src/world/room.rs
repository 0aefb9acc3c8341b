//! Required space of a pool: its listed size is checked against its devices, and refused writes
//! against the writes of guests.

use millpond_engine::{JobKind, Layout, MemberState, PoolInfo, PoolState};
use millpond_format::AREA_BYTES;

use super::World;
use crate::oracle::{Verdict, broken};
use crate::system::System;

/// Maximum reserve of a pool, as a percentage of its segments and as a number of segments. 8 and 40
/// are documented.
const RESERVE: (u64, u64) = (9, 41);
/// Minimum content of the pool, in percent of its size, when a write is refused, counted as the
/// maximum possible content. Partly filled segments and the reserve of each stream make the
/// difference.
const REFUSED_AT: u64 = 75;
/// One refused write in N is judged, because counting takes longer than a turn.
const JUDGED: u64 = 4;

/// Bytes kept for a volume besides its reservation, so that a block can be overwritten before its
/// old version is free.
pub(super) const FOR_OVERWRITES: u64 = 4 << 20;

impl<S: System> World<S> {
    /// Returns the minimum bytes that guests can use, from the devices alone; `None` for pools that
    /// are not so simple.
    fn promised(&self) -> Option<u64> {
        let segments = |bytes: u64, segment: u64| {
            let count = bytes / segment;
            count.saturating_sub((count * RESERVE.0).div_ceil(100).max(RESERVE.1)) * segment
        };
        let extent = self.config.extent;
        if self.config.cached.is_some() {
            return None;
        }
        if let Some(mirrored) = &self.config.mirrored {
            let [group] = mirrored.groups.as_slice() else { return None };
            let Layout::Mirror { .. } = group.layout else { return None };
            return Some(segments(self.config.usable, extent));
        }
        let extents: Vec<u64> =
            self.config.devices.iter().map(|(geometry, _)| (geometry.size / AREA_BYTES - 2) * AREA_BYTES / extent).collect();
        let width = match self.config.layout {
            Layout::Stripe { width, .. } => u64::from(width),
            Layout::Mirror { .. } => return Some(segments(self.config.usable, extent)),
            _ => 1,
        };
        // Stripes over any of the devices, with at most one extent of a device in each.
        let fits = |rows: u64| extents.iter().map(|own| (*own).min(rows)).sum::<u64>() >= rows * width;
        let rows = (0..=extents.iter().sum::<u64>() / width).rev().find(|rows| fits(*rows)).unwrap_or(0);
        Some(segments(rows * width * extent, width * extent))
    }

    /// Checks that a new pool has at least the size that its devices give.
    pub(super) fn judge_size(&self) -> Verdict {
        let (Some(promised), Some(pool)) = (self.promised(), self.system.as_ref().and_then(S::pool)) else { return Ok(()) };
        if pool.size < promised && !self.config.append_only {
            return broken(format!("a new pool says that {} bytes fit, and its devices have {promised} at least", pool.size));
        }
        Ok(())
    }

    /// Checks that the pool was full enough when it refused a write.
    pub(super) fn judge_refusal(&mut self, system: &S) -> Verdict {
        self.refusals += 1;
        if self.refusals % JUDGED != 1 || self.oracle.errors_allowed || self.config.append_only {
            return Ok(());
        }
        // A snapshot in progress may hold blocks that are not counted for it yet.
        if !self.running.is_empty() {
            return Ok(());
        }
        let Some(pool) = system.pool().filter(|pool| self.should_have_room(pool)) else { return Ok(()) };
        let held = self.oracle.held_bytes_and_hidden() + self.kept(system);
        let fill = held * 1000 / pool.size.max(1);
        self.stats.least_fill = Some(self.stats.least_fill.map_or(fill, |least| least.min(fill)));
        if fill < REFUSED_AT * 10 {
            return broken(format!(
                "a write is refused for want of space: {held} bytes are held at most, of {}, and {} say to be free; {}",
                pool.size,
                pool.free,
                system.space_report()
            ));
        }
        Ok(())
    }

    /// Returns the reserved bytes that volumes do not use yet.
    fn kept(&self, system: &S) -> u64 {
        let volumes = system.volumes();
        let reserved = volumes.iter().filter(|volume| volume.options.reservation > 0);
        let missing = |id, reservation: u64| reservation.saturating_sub(self.oracle.held_bytes_of(id)) + FOR_OVERWRITES;
        reserved.map(|volume| missing(volume.id, volume.options.reservation)).sum()
    }

    /// Returns whether free space must be usable: all devices are well, none is being removed or
    /// rejoined, and no wipe runs.
    fn should_have_room(&self, pool: &PoolInfo) -> bool {
        let whole = pool.devices.iter().all(|device| device.class.is_auxiliary() || device.state == MemberState::Present);
        let held = pool.jobs.iter().any(|job| matches!(job.kind, JobKind::Wipe | JobKind::Remove | JobKind::Rejoin));
        pool.state == PoolState::Online && !pool.refuses_writes && whole && !held && self.machine.bad().is_empty()
    }
}
