//! Contents of the read cache, its size, and its use by volumes.

use millpond_block::{Buf, BufPool, BufSlice};
use millpond_format::VolumeId;

use super::*;

const ONE: VolumeId = VolumeId(1);
const TWO: VolumeId = VolumeId(2);

fn key(n: u64) -> u64 {
    n << 13
}

fn block(n: u64) -> BufSlice {
    let mut buf = Buf::zeroed(4096);
    buf.bytes_mut()[..8].copy_from_slice(&n.to_le_bytes());
    BufSlice::new(buf, 0..4096)
}

/// Reads blocks as guests do: looks, and offers what was not there. How many were there.
fn read(cache: &mut ReadCache, volume: VolumeId, blocks: impl Iterator<Item = u64>) -> usize {
    let mut bufs = BufPool::default();
    let mut hits = 0;
    for n in blocks {
        match cache.find(volume, key(n)) {
            Some(piece) => {
                assert_eq!(piece.bytes()[..8], n.to_le_bytes());
                hits += 1;
            }
            None => cache.offer(volume, key(n), &block(n), &mut bufs),
        }
    }
    hits
}

#[test]
fn a_scan_pushes_nothing_out() {
    let mut cache = ReadCache::new(ReadCacheSize::shared(100 * BLOCK));
    (0..3).for_each(|_| _ = read(&mut cache, ONE, 0..80));
    assert!(read(&mut cache, ONE, 0..80) > 75);
    assert_eq!(read(&mut cache, ONE, 1000..100_000), 0);
    assert!(read(&mut cache, ONE, 0..80) > 75);
    assert!(cache.used() <= 100 * BLOCK);
}

#[test]
fn a_part_of_a_buffer_is_kept_without_the_rest() {
    let (mut cache, mut bufs) = (ReadCache::new(ReadCacheSize::shared(100 * BLOCK)), BufPool::default());
    let whole = BufSlice::new(Buf::zeroed(1 << 20), 0..1 << 20);
    for _ in 0..2 {
        cache.offer(ONE, key(7), &whole.slice(4096..8192), &mut bufs);
    }
    assert!(cache.find(ONE, key(7)).is_some());
    assert!(whole.into_buf().is_some(), "a block holds a buffer of 1 MiB");
}

#[test]
fn volumes_with_a_limit_of_their_own_have_that_and_no_more() {
    let mut cache = ReadCache::new(ReadCacheSize::shared(100 * BLOCK));
    cache.arrange(ReadCacheSize::shared(100 * BLOCK), [(ONE, 30 * BLOCK), (TWO, 0)].into_iter());
    // blocks of each of them
    for volume in [ONE, TWO, VolumeId(3)] {
        for _ in 0..4 {
            read(&mut cache, volume, 0..80);
        }
    }
    assert!(!cache.serves(TWO) && cache.serves(ONE) && cache.serves(VolumeId(3)));
    assert_eq!((cache.own[&ONE].blocks.weight(), cache.own[&TWO].blocks.weight()), (30, 0));
    assert_eq!(cache.common.blocks.weight(), 70);
    // more than there is, in order; what does not change is kept
    cache.arrange(ReadCacheSize::shared(100 * BLOCK), [(ONE, 30 * BLOCK), (TWO, 200 * BLOCK)].into_iter());
    assert_eq!((cache.own[&ONE].blocks.weight(), cache.own[&TWO].bytes()), (30, 70 * BLOCK));
    assert!(!cache.serves(VolumeId(3)));
    cache.arrange(ReadCacheSize::default(), std::iter::empty());
    assert_eq!(cache.used(), 0);
}

#[test]
fn a_cache_that_is_not_shared_is_for_volumes_with_a_limit_of_their_own() {
    let size = ReadCacheSize { bytes: 100 * BLOCK, shared: false };
    let mut cache = ReadCache::new(size);
    assert!(!cache.serves(ONE));
    cache.arrange(size, [(ONE, 30 * BLOCK)].into_iter());
    assert!(cache.serves(ONE) && !cache.serves(TWO));
    (0..2).for_each(|_| _ = read(&mut cache, ONE, 0..20));
    assert_eq!((read(&mut cache, ONE, 0..20), cache.used()), (20, 20 * BLOCK));
}

#[test]
fn a_lookup_before_a_read_is_not_a_use() {
    let hits = |expects: bool| {
        let mut cache = ReadCache::new(ReadCacheSize::shared(100 * BLOCK));
        // more blocks than the cache holds, some of them more often than others
        let blocks = (0..20_000u64).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56 >> (at % 3));
        let found = blocks.map(|n| {
            if expects {
                cache.expect(ONE, (0..50).map(key));
            }
            read(&mut cache, ONE, std::iter::once(n))
        });
        found.collect::<Vec<_>>()
    };
    assert!(hits(true) == hits(false), "it changed what the cache keeps");
}
