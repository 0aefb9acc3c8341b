//! Cache devices, the read cache in memory, and reading ahead, in worlds of every kind.

use millpond_engine::{Class, GroupSpec, Layout, Planted, ReadCacheSize};

use super::{Config, Options, device};
use crate::rng::{Rng, mix as hash};

/// Cache settings of a world.
#[derive(Clone, Copy, Debug)]
pub struct Cached {
    /// Number of cache devices; they come after all others.
    pub devices: usize,
    /// Faults of cache devices, per mille of steps.
    pub fate: u64,
}

impl Config {
    /// Returns whether this seed gives a world with a cache. The chosen seeds had found nothing
    /// before caches existed.
    pub fn has_cache(seed: u64, options: &Options) -> bool {
        let usual = !(options.append_only || options.mirrors || options.parity || options.removals || options.spares || options.laps);
        let kind = seed % 16 == 9 || (seed / 16 % 4 == 3 && matches!(seed % 16, 6 | 10));
        options.caches || (usual && kind)
    }

    /// Returns whether this seed gives a world with a read cache in memory. The chosen seeds had
    /// found nothing before it existed.
    pub(super) fn remembers(seed: u64, options: &Options) -> bool {
        let usual = !(options.append_only || options.mirrors || options.parity || options.removals || options.spares || options.jobs);
        if options.caches { seed % 2 == 1 } else { usual && matches!(seed % 16, 1 | 8) }
    }

    /// Gives the world a read cache in memory, often one that is too small.
    pub(super) fn remember(&mut self, rng: &mut Rng) {
        self.mix.requests[0] = self.mix.requests[0].max(60);
        self.mix.hot = self.mix.hot.max(40);
        self.tuning.read_cache = ReadCacheSize::shared((64 << 10) << rng.below(7));
    }

    /// Returns whether blocks are read ahead of guests. The other seeds keep the worlds that they
    /// had before.
    pub(super) fn reads_ahead(seed: u64, options: &Options) -> bool {
        hash(seed ^ 0x6168_6561).is_multiple_of(8) || options.planted == Some(Planted::ReadAheadStale)
    }

    /// Lets the engine read ahead of guests, which often read in order here, with small windows and
    /// a read cache of which that takes little.
    pub(super) fn read_ahead(&mut self, seed: u64) {
        let drawn = hash(seed ^ 0x6f72_6465);
        self.mix.requests[0] = self.mix.requests[0].max(60);
        self.mix.sequential = self.mix.sequential.max(75);
        self.tuning.read_cache = ReadCacheSize::shared((512 << 10) << (drawn % 3));
        self.tuning.read_ahead = (16 << 10) << (drawn / 4 % 4);
    }

    /// Adds a cache, drawing only from `rng`, so that other worlds stay unchanged.
    pub(super) fn cache(&mut self, rng: &mut Rng) {
        self.usable = self.pool_bytes();
        // A former pool would have used the cache devices as well.
        self.second_hand = false;
        let count = rng.between(1, 2) as usize;
        let extent = self.extent;
        let devices = (0..count).map(|_| device((rng.between(1, 24) * (64 << 10)).next_multiple_of(extent), rng));
        self.devices.extend(devices.collect::<Vec<_>>());
        // More reads, and more of them repeated: a cache serves those.
        self.mix.requests[0] = self.mix.requests[0].max(60);
        self.mix.hot = self.mix.hot.max(40);
        if rng.percent(30) {
            self.tuning.cache_memory = 0;
        }
        self.cached = Some(Cached { devices: count, fate: *rng.pick(&[0, 3, 10, 30]) });
    }

    /// The group of the cache devices.
    pub(super) fn cache_group(&self) -> Option<GroupSpec> {
        self.cached.map(|cached| GroupSpec { class: Class::Cache, layout: Layout::Linear, devices: Some(cached.devices) })
    }

    /// Number of devices without the cache.
    pub fn needed(&self) -> usize {
        self.devices.len() - self.cached.map_or(0, |cached| cached.devices)
    }
}
