//! The read cache: repeated reads of guests come from memory, if the volume's mode allows it.

use millpond_block::{CacheMode, Op};
use millpond_engine::{CatalogCommand, Command, Compression, Layout, ReadCacheSize, Reply, SnapshotId, Target, Tuning, VolumeId};

use crate::cache::{STEP, pattern};
use crate::harness::Harness;

const SIZE: u64 = 4 << 20;

fn write_all(harness: &mut Harness, volume: VolumeId, round: u8) {
    for at in (0..SIZE).step_by(STEP as usize) {
        harness.request(Target::Head(volume), Op::Write, at, STEP, &pattern(at, round)).unwrap();
    }
}

fn pool(read_cache: u64) -> Harness {
    let tuning =
        Tuning { map_memory: 8 << 20, checkpoint_log_bytes: 2 << 20, read_cache: ReadCacheSize::shared(read_cache), ..Tuning::default() };
    Harness::with(&[64], Layout::Linear, tuning)
}

/// Reads everything in requests of `step` bytes. Returns the number of device reads.
fn read_all(harness: &mut Harness, target: Target, round: u8, step: u64) -> u64 {
    read_some(harness, target, round, step, SIZE)
}

/// The same for the first `bytes` bytes.
fn read_some(harness: &mut Harness, target: Target, round: u8, step: u64, bytes: u64) -> u64 {
    let before = harness.reads[0];
    for at in (0..bytes).step_by(step as usize) {
        let read = harness.request(target, Op::Read, at, step, &[]).unwrap();
        let wanted: Vec<u8> = (at / STEP * STEP..at + step).step_by(STEP as usize).flat_map(|at| pattern(at, round)).collect();
        let skip = (at % STEP) as usize;
        assert!(read == wanted[skip..skip + step as usize], "at {at}");
    }
    harness.reads[0] - before
}

fn uses(harness: &Harness, volume: VolumeId) -> (u64, u64) {
    let info = harness.engine.volumes().into_iter().find(|info| info.id == volume).unwrap();
    (info.read_cache.hits, info.read_cache.misses)
}

fn snapshot(harness: &mut Harness, volume: VolumeId) -> SnapshotId {
    let targets = vec![(volume, "s".to_owned())];
    match harness.command(CatalogCommand::Snapshot { targets, description: String::new(), expires: None, lock_millis: None }) {
        Ok(Reply::Snapshots(ids)) => ids[0],
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_read_the_third_time_comes_from_memory_and_is_never_old() {
    for compression in [Compression::Off, Compression::Lz4] {
        let mut harness = pool(16 << 20);
        let volume = harness.volume("disk0", SIZE, compression);
        write_all(&mut harness, volume, 1);
        let first = snapshot(&mut harness, volume);
        for step in [4096, STEP] {
            assert!(read_all(&mut harness, Target::Head(volume), 1, step) > 0 || step == STEP);
            read_all(&mut harness, Target::Head(volume), 1, step);
        }
        let (hits, _) = uses(&harness, volume);
        assert_eq!(read_all(&mut harness, Target::Head(volume), 1, 4096), 0, "{compression:?}");
        // a snapshot has the same blocks
        assert_eq!(read_all(&mut harness, Target::Snapshot(first), 1, STEP), 0, "{compression:?}");
        assert_eq!(uses(&harness, volume).0 - hits, 2 * SIZE / 4096);
        // an overwrite is another block; 112 MiB on a device of 64 MiB reuse places of older blocks
        for round in 2..30 {
            write_all(&mut harness, volume, round);
            (0..3).for_each(|_| _ = read_all(&mut harness, Target::Head(volume), round, STEP));
            read_all(&mut harness, Target::Snapshot(first), 1, STEP);
        }
        harness.command(CatalogCommand::Rollback { snapshot: first, keep_as: "before".to_owned() }).unwrap();
        read_all(&mut harness, Target::Head(volume), 1, STEP);
    }
}

#[test]
fn modes_without_a_read_cache_read_from_devices_from_the_next_request_on() {
    let mut harness = pool(16 << 20);
    let volume = harness.volume("disk0", SIZE, Compression::Off);
    write_all(&mut harness, volume, 1);
    (0..2).for_each(|_| _ = read_all(&mut harness, Target::Head(volume), 1, 4096));
    for mode in CacheMode::ALL {
        harness.command(CatalogCommand::SetProperties { volume, cache: Some(mode), compression: None, read_only: None }).unwrap();
        let reads = read_all(&mut harness, Target::Head(volume), 1, 4096);
        assert_eq!(reads == 0, mode.caches_reads(), "{mode}: {reads} reads");
    }
    // sequential requests bypass it
    assert!(read_all(&mut harness, Target::Head(volume), 1, 1 << 20) > 0);
}

#[test]
fn limits_hold_for_the_pool_and_for_a_volume() {
    let mut harness = pool(1 << 20);
    let volumes = [harness.volume("one", SIZE, Compression::Off), harness.volume("two", SIZE, Compression::Off)];
    let mut options = harness.engine.volumes()[1].options;
    options.read_cache = Some(256 << 10);
    harness.command(CatalogCommand::SetOptions { volume: volumes[1], options }).unwrap();
    for volume in volumes {
        write_all(&mut harness, volume, 1);
        (0..3).for_each(|_| _ = read_some(&mut harness, Target::Head(volume), 1, 4096, 1 << 20));
    }
    let metrics = harness.engine.metrics();
    assert_eq!((metrics.read_cache_limit, metrics.read_cache_bytes), (1 << 20, 1 << 20));
    // the option is stored with the volume
    harness.command(Command::Checkpoint).unwrap();
    harness.reopen();
    assert_eq!(harness.engine.volumes()[1].options.read_cache, Some(256 << 10));
    assert_eq!(harness.engine.metrics().read_cache_bytes, 0);
    (0..3).for_each(|_| _ = read_some(&mut harness, Target::Head(volumes[1]), 1, 4096, 512 << 10));
    assert_eq!(harness.engine.metrics().read_cache_bytes, 256 << 10);
    harness.engine.set_read_cache(ReadCacheSize::shared(128 << 10));
    assert!(harness.engine.metrics().read_cache_bytes <= 128 << 10);
    harness.engine.set_read_cache(ReadCacheSize::shared(0));
    assert!(read_all(&mut harness, Target::Head(volumes[1]), 1, 4096) > 0);
    assert_eq!(harness.engine.metrics().read_cache_bytes, 0);
}
