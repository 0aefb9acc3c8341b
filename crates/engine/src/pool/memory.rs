//! What guests read again, from memory.

use millpond_block::Piece;
use millpond_format::{Addr, VolumeId};

use super::op::Target;
use super::state::Pool;
use crate::Planted;
use crate::read_cache::LONGEST;

impl Pool {
    /// Bytes of the read cache, and what of it is whose, after a change of either.
    pub(crate) fn arrange_read_cache(&mut self, limit: u64) {
        let catalog = &self.core.catalog;
        let own = |(volume, options): (&VolumeId, &crate::VolumeOptions)| Some((*volume, options.read_cache?));
        self.read_cache.arrange(limit, catalog.options().iter().filter_map(own));
        self.read_cache.keep_uses(|volume| catalog.volumes.contains_key(&volume));
    }

    /// The volume in whose share of the read cache a request looks, when it does.
    pub(super) fn share_of(&self, target: Target, length: u64) -> Option<VolumeId> {
        if self.read_cache.limit() == 0 || length > LONGEST {
            return None;
        }
        let catalog = &self.core.catalog;
        let volume = match target {
            Target::Head(volume) => volume,
            Target::Snapshot(snapshot) => catalog.snapshots.get(&snapshot)?.volume,
        };
        let caches = catalog.volumes.get(&volume)?.cache.caches_reads();
        (caches && self.read_cache.serves(volume)).then_some(volume)
    }

    /// What stands for a block: its address, never its place, which another block may have later.
    fn key_of(&self, addr: Addr) -> u64 {
        let place = if self.planted(Planted::ReadCacheByPlace) { self.core.space.locate(addr) } else { None };
        place.map_or(addr.identity(), |(segment, unit)| u64::from(segment.0) << 32 | u64::from(unit))
    }

    /// A block that is kept in memory.
    pub(super) fn find_in_memory(&self, volume: Option<VolumeId>, addr: Addr) -> Option<Piece> {
        self.read_cache.find(volume?, self.key_of(addr))
    }

    /// Blocks were read from devices, and are what the map says.
    pub(super) fn remember(&mut self, volume: VolumeId, addrs: impl Iterator<Item = Addr>, piece: &Piece) {
        for (addr, at) in addrs.zip((0..piece.len()).step_by(4096)) {
            let key = self.key_of(addr);
            let block = piece.slice(at..at + 4096);
            self.read_cache.offer(volume, key, &block, &mut self.bufs);
        }
    }
}
