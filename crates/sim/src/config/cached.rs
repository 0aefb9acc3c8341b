//! Devices of the cache, and the read cache in memory, in worlds of every kind.

use millpond_engine::{Class, GroupSpec, Layout};

use super::{Config, Options, device};
use crate::rng::Rng;

/// What a world with a cache has.
#[derive(Clone, Copy, Debug)]
pub struct Cached {
    /// Its devices; they come after all others.
    pub devices: usize,
    /// Per mille of steps at which something befalls one.
    pub fate: u64,
}

impl Config {
    /// Has the world of this seed a cache? No seed that found something before there were any.
    pub fn has_cache(seed: u64, options: &Options) -> bool {
        let usual = !(options.append_only || options.mirrors || options.parity || options.removals || options.spares || options.laps);
        let kind = seed % 16 == 9 || (seed / 16 % 4 == 3 && matches!(seed % 16, 6 | 10));
        options.caches || (usual && kind)
    }

    /// Is what guests of this seed's world read kept in memory? In no world that found something before it was.
    pub(super) fn remembers(seed: u64, options: &Options) -> bool {
        let usual = !(options.append_only || options.mirrors || options.parity || options.removals || options.spares || options.jobs);
        if options.caches { seed % 2 == 1 } else { usual && matches!(seed % 16, 1 | 8) }
    }

    /// Gives the world a read cache in memory, often too small.
    pub(super) fn remember(&mut self, rng: &mut Rng) {
        self.mix.requests[0] = self.mix.requests[0].max(60);
        self.mix.hot = self.mix.hot.max(40);
        self.tuning.read_cache = (64 << 10) << rng.below(7);
    }

    /// Gives the world a cache; all chance is from `rng`, so that other worlds stay as they are.
    pub(super) fn cache(&mut self, rng: &mut Rng) {
        self.usable = self.pool_bytes();
        // the former pool would have changed its devices
        self.second_hand = false;
        let count = rng.between(1, 2) as usize;
        let extent = self.extent;
        let devices = (0..count).map(|_| device((rng.between(1, 24) * (64 << 10)).next_multiple_of(extent), rng));
        self.devices.extend(devices.collect::<Vec<_>>());
        // what is read twice is what a cache is about
        self.mix.requests[0] = self.mix.requests[0].max(60);
        self.mix.hot = self.mix.hot.max(40);
        if rng.percent(30) {
            self.tuning.cache_memory = 0;
        }
        self.cached = Some(Cached { devices: count, fate: *rng.pick(&[0, 3, 10, 30]) });
    }

    /// The group of the cache.
    pub(super) fn cache_group(&self) -> Option<GroupSpec> {
        self.cached.map(|cached| GroupSpec { class: Class::Cache, layout: Layout::Linear, devices: Some(cached.devices) })
    }

    /// Devices that the pool needs.
    pub fn needed(&self) -> usize {
        self.devices.len() - self.cached.map_or(0, |cached| cached.devices)
    }
}
