//! Worlds with pools of thousands of segments that run full, with snapshots of every age that are
//! then destroyed.

use millpond_block::{CacheMode, SectorProfile};
use millpond_engine::{Compression, Layout};

use super::{AREA_BYTES, Config, CrashInterval, End, KIB, Kind, LABELS, MIB, VolumeSpec, device};
use crate::machine::Latency;
use crate::rng::Rng;

/// Minimum and maximum segments of such a pool.
const SEGMENTS: (u64, u64) = (1000, 4000);
const MOST_BYTES: u64 = 136 * MIB;

/// Settings of a world that runs full.
#[derive(Clone, Copy, Debug)]
pub struct Full {
    /// Number of snapshots taken while the volumes are overwritten.
    pub snapshots: u64,
    /// Percent of the pool written before the first snapshot.
    pub old: u64,
    /// Maximum blocks of a request.
    pub most: u64,
}

impl Config {
    /// Turns this world into one that runs full, drawing only from `rng`.
    pub(super) fn fill_up(&mut self, rng: &mut Rng) {
        (self.fault, self.second_hand, self.tight, self.mirrored, self.cached) = (None, false, false, None, None);
        let count = rng.between(1, 3);
        // A pool keeps its extent size however much is added: large pools may have small extents.
        self.extent = (64 * KIB) << rng.weighted(&[6, 3]);
        let wide = count > 1 && rng.percent(40);
        self.layout = if wide { Layout::Stripe { width: count as u16, unit: 64 * KIB as u32 } } else { Layout::Linear };
        let parts = if wide { count } else { 1 };
        let most = (MOST_BYTES / self.extent / parts).clamp(SEGMENTS.0, SEGMENTS.1);
        let segments = rng.between(SEGMENTS.0.min(most), most);
        let own = (segments * parts).div_ceil(count) * self.extent;
        self.devices = (0..count).map(|_| device(own, rng)).collect();
        self.usable = self.devices.iter().map(|(geometry, _)| (geometry.size - LABELS) / AREA_BYTES * AREA_BYTES).sum();
        let volumes = rng.between(1, 3);
        let size = (self.usable * rng.between(110, 140) / 100 / volumes).next_multiple_of(MIB);
        let cache = *rng.pick(&[CacheMode::Writeback, CacheMode::Writeback, CacheMode::None, CacheMode::Unsafe]);
        let spec = VolumeSpec { size, sector: SectorProfile::S4kn, cache, compression: Compression::Off };
        self.volumes = vec![spec; volumes as usize];
        self.eras = vec![CrashInterval { requests: 0, end: End::Power }];
        (self.depth, self.eager) = (1 << rng.between(3, 6), 100);
        self.latency = Latency { base: rng.between(5, 100), spread: rng.between(0, 500), tail: rng.between(0, 3), read_part: 1 };
        self.tuning.map_memory = *rng.pick(&[MIB, 64 * MIB]);
        self.tuning.checkpoint_log_bytes = *rng.pick(&[1 << 30, 16 * MIB, 2 * MIB]);
        self.tuning.piece_bytes = *rng.pick(&[64 * KIB as u32, 4 * KIB as u32]);
        self.kind = Kind::Full(Full { snapshots: rng.between(3, 16), old: rng.between(25, 60), most: *rng.pick(&[2, 8, 32]) });
    }
}
