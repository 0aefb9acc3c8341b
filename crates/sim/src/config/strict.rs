//! Worlds of their own for cache modes that become stricter while requests are under way.

use millpond_block::{CacheMode, SectorProfile};

use super::{Config, Kind};
use crate::rng::Rng;

/// Modes in which a write may be answered before it is durable.
pub const LOOSE: [CacheMode; 3] = [CacheMode::None, CacheMode::Writeback, CacheMode::Unsafe];
/// Modes in which it may not.
pub const STRICT: [CacheMode; 2] = [CacheMode::Directsync, CacheMode::Writethrough];

impl Config {
    /// Turns a world into one of these; all chance is from `rng`. Requests are begun before a change and go into the log after it when they have to
    /// wait for something: those that cover blocks in part for what the blocks held, and all others of the same blocks for them.
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
