//! [`ReadCache`]: keeps blocks in memory that guests read more than once, for volumes whose cache
//! mode allows it.
//!
//! INV-READ-CACHE-1: a block is found by its address in the map, which always means the same bytes
//! (I11), and only bytes that matched the map's checksum (I5) are kept. So nothing is ever
//! invalidated, and volumes that share blocks share their cached copies.
//!
//! Blocks that are read once, by a backup or a scan, leave only a mark; `quick_cache` decides which
//! of the other blocks stay (S3-FIFO, after Yang et al., "FIFO queues are all you need for cache
//! eviction", SOSP 2023).

use std::collections::BTreeMap;
use std::hint::black_box;

use crate::cache::Ghosts;
use crate::tuning::ReadCacheSize;
use millpond_block::{BufPool, BufSlice};
use millpond_format::VolumeId;
use quick_cache::unsync::Cache;
use quick_cache::{Lifecycle, OptionsBuilder, UnitWeighter};
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

/// Bytes of a block.
const BLOCK: u64 = 4096;
/// Longest request in bytes that uses the cache: longer ones are sequential, which devices are good
/// at.
pub(crate) const LONGEST: u64 = 128 << 10;
/// Marks of blocks that were read once, per block of capacity.
const MARKS: usize = 4;

/// Blocks that are looked up together without an allocation.
const EXPECTED: usize = 32;

/// Collects evicted blocks, for reuse of their buffers.
#[derive(Debug)]
struct Evict;

impl Lifecycle<u64, BufSlice> for Evict {
    type RequestState = Vec<BufSlice>;

    fn on_evict(&self, evicted: &mut Vec<BufSlice>, _: u64, piece: BufSlice) {
        evicted.push(piece);
    }
}

/// The cached blocks of one volume with a size of its own, or of all other volumes.
struct Share {
    blocks: Cache<u64, BufSlice, UnitWeighter, FxBuildHasher, Evict>,
    ghosts: Ghosts,
}

impl Share {
    fn new(bytes: u64) -> Share {
        let most = bytes / BLOCK;
        let items = usize::try_from(most).unwrap_or(usize::MAX);
        let options = OptionsBuilder::new().shards(1).estimated_items_capacity(items).weight_capacity(most).build();
        let options = options.expect("both capacities are given");
        let mut ghosts = Ghosts::default();
        ghosts.resize(items.saturating_mul(MARKS));
        Share { blocks: Cache::with_options(options, UnitWeighter, FxBuildHasher, Evict), ghosts }
    }

    /// Changes the size; keeps the blocks that still fit.
    fn resized(mut self, bytes: u64) -> Share {
        let before = self.bytes();
        if before == bytes {
            return self;
        }
        if before == 0 || bytes == 0 {
            return Share::new(bytes);
        }
        self.blocks.set_capacity(bytes / BLOCK);
        self.ghosts.resize(usize::try_from(bytes / BLOCK).unwrap_or(usize::MAX).saturating_mul(MARKS));
        self
    }

    fn bytes(&self) -> u64 {
        self.blocks.capacity() * BLOCK
    }
}

/// Hits and misses of a volume's reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCacheUse {
    /// Blocks of 4 KiB that were in memory.
    pub hits: u64,
    /// Blocks that were not, in requests that used the cache.
    pub misses: u64,
}

/// The read cache of a pool.
pub(crate) struct ReadCache {
    size: ReadCacheSize,
    /// Bytes of `size` that are for other blocks: those that are read ahead.
    reserved: u64,
    common: Share,
    own: BTreeMap<VolumeId, Share>,
    /// Counters since the import, by volume.
    uses: BTreeMap<VolumeId, ReadCacheUse>,
    all: ReadCacheUse,
}

impl ReadCache {
    /// Creates an empty cache.
    pub(crate) fn new(size: ReadCacheSize) -> ReadCache {
        let (own, uses, all) = (BTreeMap::new(), BTreeMap::new(), ReadCacheUse::default());
        ReadCache { size, reserved: 0, common: Share::new(size.shared_bytes()), own, uses, all }
    }

    /// Returns the size.
    pub(crate) fn size(&self) -> ReadCacheSize {
        self.size
    }

    /// Returns the bytes of cached blocks.
    pub(crate) fn used(&self) -> u64 {
        let shares = std::iter::once(&self.common).chain(self.own.values());
        shares.map(|share| share.blocks.weight() * BLOCK).sum()
    }

    /// Returns the hits and misses of a volume.
    pub(crate) fn uses(&self, volume: VolumeId) -> ReadCacheUse {
        self.uses.get(&volume).copied().unwrap_or_default()
    }

    /// Sets how many bytes of the size are for blocks that are read ahead, which are kept elsewhere.
    pub(crate) fn reserve(&mut self, bytes: u64) {
        self.reserved = bytes;
    }

    /// Sets the size, and the sizes in bytes for volumes that have their own, which are subtracted
    /// from it: in order, as far as there is room.
    pub(crate) fn arrange(&mut self, size: ReadCacheSize, limits: impl Iterator<Item = (VolumeId, u64)>) {
        self.size = size;
        let mut left = size.bytes.saturating_sub(self.reserved) / BLOCK * BLOCK;
        let mut before = std::mem::take(&mut self.own);
        for (volume, wanted) in limits {
            let bytes = (wanted / BLOCK * BLOCK).min(left);
            left -= bytes;
            let share = before.remove(&volume).unwrap_or_else(|| Share::new(0));
            self.own.insert(volume, share.resized(bytes));
        }
        let common = std::mem::replace(&mut self.common, Share::new(0));
        self.common = common.resized(if size.shared { left } else { 0 });
    }

    /// Returns the hits and misses of all volumes.
    pub(crate) fn all_uses(&self) -> ReadCacheUse {
        self.all
    }

    /// Drops the counters of all volumes for which `is_there` is false.
    pub(crate) fn keep_uses(&mut self, is_there: impl Fn(VolumeId) -> bool) {
        self.uses.retain(|volume, _| is_there(*volume));
    }

    /// Returns whether reads of a volume use the cache.
    pub(crate) fn serves(&self, volume: VolumeId) -> bool {
        self.own.get(&volume).unwrap_or(&self.common).blocks.capacity() > 0
    }

    fn share(&mut self, volume: VolumeId) -> &mut Share {
        self.own.get_mut(&volume).unwrap_or(&mut self.common)
    }

    /// Returns a block if it is cached.
    pub(crate) fn find(&self, volume: VolumeId, key: u64) -> Option<BufSlice> {
        self.own.get(&volume).unwrap_or(&self.common).blocks.get(&key).cloned()
    }

    /// Looks up blocks that are about to be read, which does not count as use: first their entries,
    /// then their bytes. The results are discarded: the loads warm the CPU cache.
    pub(crate) fn expect(&self, volume: VolumeId, keys: impl Iterator<Item = u64>) {
        let blocks = &self.own.get(&volume).unwrap_or(&self.common).blocks;
        let found: SmallVec<[&BufSlice; EXPECTED]> = keys.filter_map(|key| blocks.peek(&key)).collect();
        for piece in found {
            black_box(piece.bytes().first().copied());
        }
    }

    /// Returns whether a block is cached. Does not count as a use of it.
    pub(crate) fn holds(&self, volume: VolumeId, key: u64) -> bool {
        self.own.get(&volume).unwrap_or(&self.common).blocks.contains_key(&key)
    }

    /// Counts the hits and misses of a request.
    pub(crate) fn count(&mut self, volume: VolumeId, hits: u64, misses: u64) {
        for uses in [&mut self.all, self.uses.entry(volume).or_default()] {
            uses.hits += hits;
            uses.misses += misses;
        }
    }

    /// Offers a block that was read from a device: it is cached if it was read before.
    pub(crate) fn offer(&mut self, volume: VolumeId, key: u64, piece: &BufSlice, bufs: &mut BufPool) {
        let share = self.share(volume);
        if !share.ghosts.meet(key) {
            return;
        }
        let kept = if piece.is_whole() {
            piece.clone()
        } else {
            // a part would keep the rest of its buffer in memory
            let mut buf = bufs.take(piece.len());
            if let Some(to) = buf.bytes_mut().get_mut(..piece.len()) {
                to.copy_from_slice(piece.bytes());
            }
            BufSlice::new(buf, 0..piece.len())
        };
        let mut evicted = Vec::new();
        share.blocks.insert_with_lifecycle(key, kept, &mut evicted);
        bufs.give_data(evicted);
    }
}

#[cfg(test)]
mod tests;
