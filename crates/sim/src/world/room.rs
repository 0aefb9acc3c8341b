//! Room that a pool must have: what it says of its size is compared with its devices, and who is told that it is full with what guests
//! wrote.

use millpond_engine::{JobKind, Layout, MemberState, PoolInfo, PoolState};
use millpond_format::AREA_BYTES;

use super::World;
use crate::oracle::{Verdict, broken};
use crate::system::System;

/// Percent of the segments that a pool may keep for itself, and segments at least: documented are 8 and 40.
const RESERVE: (u64, u64) = (9, 41);
/// Percent of the size that must hold data when a write is refused, as counted here: what is there at most. Segments that are filled in
/// part, and
/// what every stream keeps, are the rest.
const REFUSED_AT: u64 = 75;
/// Of refused writes one in so many is judged: counting takes longer than a turn.
const JUDGED: u64 = 4;

/// Bytes that are kept for a volume besides its reservation, so that a block can be overwritten before it dies.
pub(super) const FOR_OVERWRITES: u64 = 4 << 20;

impl<S: System> World<S> {
    /// Bytes that guests can fill at least, from the devices alone; nothing where that is not as simple.
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
        // rows over any of the devices, no two extents of one on the same
        let fits = |rows: u64| extents.iter().map(|own| (*own).min(rows)).sum::<u64>() >= rows * width;
        let rows = (0..=extents.iter().sum::<u64>() / width).rev().find(|rows| fits(*rows)).unwrap_or(0);
        Some(segments(rows * width * extent, width * extent))
    }

    /// A new pool has the size that its devices give.
    pub(super) fn judge_size(&self) -> Verdict {
        let (Some(promised), Some(pool)) = (self.promised(), self.system.as_ref().and_then(S::pool)) else { return Ok(()) };
        if pool.size < promised && !self.config.append_only {
            return broken(format!("a new pool says that {} bytes fit, and its devices have {promised} at least", pool.size));
        }
        Ok(())
    }

    /// A write was answered that there is no room. Is the pool as full as that?
    pub(super) fn judge_refusal(&mut self, system: &S) -> Verdict {
        self.refusals += 1;
        if self.refusals % JUDGED != 1 || self.oracle.errors_allowed || self.config.append_only {
            return Ok(());
        }
        // a snapshot that is being taken may hold blocks already that nobody counts for it
        if !self.running.is_empty() {
            return Ok(());
        }
        let Some(pool) = system.pool().filter(|pool| self.should_have_room(pool)) else { return Ok(()) };
        let held = self.oracle.held_bytes() + self.kept(system);
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

    /// Bytes that are kept for volumes and not taken yet, by what they hold.
    fn kept(&self, system: &S) -> u64 {
        let volumes = system.volumes();
        let reserved = volumes.iter().filter(|volume| volume.options.reservation > 0);
        let missing = |id, reservation: u64| reservation.saturating_sub(self.oracle.held_bytes_of(id)) + FOR_OVERWRITES;
        reserved.map(|volume| missing(volume.id, volume.options.reservation)).sum()
    }

    /// Nothing is wrong with a device, and none is to leave or to come: what is free is there for guests.
    fn should_have_room(&self, pool: &PoolInfo) -> bool {
        let whole = pool.devices.iter().all(|device| device.class.is_aside() || device.state == MemberState::Present);
        let held = pool.jobs.iter().any(|job| matches!(job.kind, JobKind::Wipe | JobKind::Remove | JobKind::Rejoin));
        pool.state == PoolState::Online && !pool.refuses_writes && whole && !held && self.machine.bad().is_empty()
    }
}
