//! Memory: the read cache, and pieces of deadlists, which share their memory with map nodes.

use millpond_block::{BufSlice, ByteRange};
use millpond_format::{Addr, VolumeId};

use super::requests::Requests;
use crate::api::Target;
use crate::read_cache::LONGEST;
use crate::store::Store;
use crate::{Planted, ReadCacheSize};

impl Requests {
    /// Sets the size of the read cache and the volumes' shares of it; called after a change of
    /// either.
    pub(crate) fn arrange_read_cache(&mut self, store: &Store, size: ReadCacheSize) {
        let catalog = &store.core.catalog;
        let ahead = self.ahead.arrange(store.tuning.read_ahead, size.shared_bytes());
        self.read_cache.reserve(ahead);
        let own = |(volume, options): (&VolumeId, &crate::VolumeOptions)| Some((*volume, options.read_cache?));
        self.read_cache.arrange(size, catalog.options().iter().filter_map(own));
        self.read_cache.keep_uses(|volume| catalog.volumes.contains_key(&volume));
    }

    /// Returns the volume whose share of the read cache serves a read of `target`; `None` if the
    /// read bypasses the cache.
    pub(super) fn cache_partition(&self, store: &Store, target: Target, length: u64) -> Option<VolumeId> {
        if self.read_cache.size().bytes == 0 || length > LONGEST {
            return None;
        }
        let catalog = &store.core.catalog;
        let volume = match target {
            Target::Head(volume) => volume,
            Target::Snapshot(snapshot) => catalog.snapshots.get(&snapshot)?.volume,
        };
        let caches = catalog.volumes.get(&volume)?.cache.caches_reads();
        (caches && self.read_cache.serves(volume)).then_some(volume)
    }

    /// Prepares for requests of these ranges, which are about to be submitted: looks up their map
    /// entries and cached blocks, all at once, so that the CPU cache has them.
    pub(crate) fn expect(&self, store: &Store, target: Target, ranges: &[ByteRange]) {
        let addrs = store.expect(target, ranges);
        let shortest = ranges.iter().map(|range| range.length).min().unwrap_or(0);
        if let Some(volume) = self.cache_partition(store, target, shortest) {
            self.read_cache.expect(volume, addrs.into_iter().map(|addr| key_of(store, addr)));
        }
    }

    /// Returns a block if the read cache has it.
    pub(super) fn find_in_memory(&self, store: &Store, volume: Option<VolumeId>, addr: Addr) -> Option<BufSlice> {
        self.read_cache.find(volume?, key_of(store, addr))
    }

    /// Offers blocks that were read from devices and verified to the read cache.
    pub(super) fn remember(&mut self, store: &mut Store, volume: VolumeId, addrs: impl Iterator<Item = Addr>, piece: &BufSlice) {
        for (addr, at) in addrs.zip((0..piece.len()).step_by(4096)) {
            let key = key_of(store, addr);
            let block = piece.slice(at..at + 4096);
            self.read_cache.offer(volume, key, &block, &mut store.bufs);
        }
    }
}

/// Returns the key of a block in the read cache: its address, never its place, which another
/// block may get later.
pub(crate) fn key_of(store: &Store, addr: Addr) -> u64 {
    let place = if store.tuning.plants(Planted::ReadCacheByPlace) { store.core.space.locate(addr) } else { None };
    place.map_or(addr.identity(), |(segment, unit)| u64::from(segment.0) << 32 | u64::from(unit))
}
