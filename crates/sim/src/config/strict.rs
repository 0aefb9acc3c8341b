//! Worlds with cache modes that become stricter while requests are in flight.

use millpond_block::{CacheMode, SectorProfile};

use super::{Config, Kind};
use crate::rng::Rng;

/// Modes that may answer a write before it is durable.
pub const LOOSE: [CacheMode; 3] = [CacheMode::None, CacheMode::Writeback, CacheMode::Unsafe];
/// Modes that may not.
pub const STRICT: [CacheMode; 2] = [CacheMode::Directsync, CacheMode::Writethrough];

impl Config {
    /// Turns this world into one of them, drawing only from `rng`. Requests that wait are submitted
    /// before the mode changes and logged after it: requests that cover blocks in part wait for the
    /// old content, and all others of the same blocks wait for those.
    pub(super) fn tighten(&mut self, rng: &mut Rng) {
        (self.fault, self.second_hand, self.tight, self.mirrored, self.cached) = (None, false, false, None, None);
        self.volumes.truncate(2);
        for volume in &mut self.volumes {
            volume.sector = *rng.pick(&[SectorProfile::S512n, SectorProfile::S512e]);
            volume.cache = *rng.pick(&LOOSE);
        }
        self.mix.requests = [10, 60, 10, 12, 2, 0, 0];
        (self.mix.commands, self.mix.fua) = (0, 0);
        (self.mix.unaligned, self.mix.hot, self.mix.blocks) = (rng.between(40, 90), rng.between(50, 95), *rng.pick(&[1, 4]));
        self.depth = rng.between(8, 32) as usize;
        self.latency.tail = rng.between(5, 30);
        self.kind = Kind::Strict(rng.between(4, 10));
    }
}
