//! The next checkpoint always fits: into the space reserved for it, and into free space.

use millpond_engine::{CatalogCommand, Command, Compression, GroupSpec, Layout, PoolState, SnapshotId, Target, Tuning, VolumeId};

use crate::harness::Harness;
use millpond_testing::Random;

const TURNS: u32 = 60_000;

fn tuning(checkpoint_log_bytes: u64) -> Tuning {
    Tuning { checkpoint_log_bytes, ..Tuning::default() }
}

/// Long-lived chunks are in separate pages of the chunk table, and the checkpoint lists each of
/// these pages.
#[test]
fn a_long_directory_of_chunk_pages() {
    let mut harness = Harness::with(&[64], Layout::Linear, tuning(512 << 10));
    let volume = harness.volume("disk0", 64 << 20, Compression::Off);
    let head = Target::Head(volume);
    for i in 0..3000 {
        harness.write(head, (4096 + i) * 4096, &[i as u8; 4096]);
        harness.write(head, 0, &[7; 60 * 4096]);
        harness.settle();
        while let Some(done) = harness.engine.pop_completion() {
            done.result.unwrap();
        }
    }
    assert_eq!(*harness.engine.state(), PoolState::Online);
}

/// The record of a chunk of compressed blocks has a bit for each unit.
#[test]
fn long_records_of_packed_chunks() {
    const BLOCKS: u64 = 24_000;
    let mut harness = Harness::with_extents(&[256], vec![GroupSpec::data(Layout::Linear)], tuning(16 << 20), Some(2 << 20));
    let volume = harness.volume("disk0", 256 << 20, Compression::Lz4);
    let head = Target::Head(volume);
    let mut scratch = Random::new(1).bytes(60 * 4096);
    scratch.chunks_mut(4096).for_each(|block| block[3000..].fill(0));
    let drain = |harness: &mut Harness| {
        harness.settle();
        while let Some(done) = harness.engine.pop_completion() {
            done.result.unwrap();
        }
    };
    for i in 0..BLOCKS {
        harness.write(head, 0, &scratch);
        harness.write(head, (4096 + i) * 4096, &[i as u8; 4096]);
        drain(&mut harness);
    }
    harness.command(Command::Checkpoint).unwrap();
    for round in 0..4 {
        for i in (round..BLOCKS).step_by(50) {
            harness.write(head, (4096 + i) * 4096, &[round as u8; 4096]);
        }
        drain(&mut harness);
        harness.command(Command::Checkpoint).unwrap();
    }
    assert_eq!(*harness.engine.state(), PoolState::Online);
}

/// A volume of which every block died in each of several snapshots.
fn with_snapshots(harness: &mut Harness, blocks: u64, count: u8, depth: u64) -> (VolumeId, Vec<SnapshotId>) {
    let volume = harness.volume("disk0", 256 << 20, Compression::Off);
    let mut snapshots = Vec::new();
    for version in 0..=count {
        // an odd factor visits all blocks, out of order
        let failed = harness.write_blocks(Target::Head(volume), (0..blocks).map(|i| i * 7919 % blocks), version, depth);
        assert_eq!(failed, 0);
        harness.settle();
        if version < count {
            snapshots.push(harness.snapshot(volume, &format!("s{version}")));
        }
    }
    (volume, snapshots)
}

/// Waits until all destroyed data is freed, in a pool that keeps answering guests.
fn comes_free(harness: &mut Harness) {
    for _ in 0..TURNS {
        harness.step();
        if harness.engine.metrics().reclaim_backlog == 0 {
            break;
        }
    }
    assert_eq!(
        (harness.engine.metrics().reclaim_backlog, harness.engine.state()),
        (0, &PoolState::Online),
        "{}",
        harness.engine.space_report()
    );
    harness.settle();
    while harness.engine.pop_reply().is_some() {}
    harness.audit();
}

/// A completely full pool with a volume of eight snapshots.
fn full() -> (Harness, VolumeId, Vec<SnapshotId>) {
    let mut harness = Harness::with_extents(&[256], vec![GroupSpec::data(Layout::Linear)], tuning(1 << 20), Some(64 << 10));
    let (volume, snapshots) = with_snapshots(&mut harness, 6400, 8, 16);
    let mut last = 6400;
    while last < 60_000 && harness.write_blocks(Target::Head(volume), last..last + 16, 9, 16) == 0 {
        last += 16;
    }
    assert!(last < 60_000, "it was never full");
    (harness, volume, snapshots)
}

/// Destroying snapshots because the pool is full frees space, however long their deadlists are.
#[test]
fn snapshots_of_a_full_pool_can_be_destroyed() {
    for crashes in [false, true] {
        let (mut harness, volume, snapshots) = full();
        harness.start(Command::Catalog(CatalogCommand::DestroySnapshots { snapshots }));
        for _ in 0..2000 {
            harness.step();
        }
        if crashes {
            // an import finds the pool in the same state
            harness.reopen();
        }
        comes_free(&mut harness);
        assert_eq!(harness.write_blocks(Target::Head(volume), 0..6400, 10, 16), 0);
    }
}

/// The same for the whole volume: few chunks remain in the pages that change.
#[test]
fn the_volume_of_a_full_pool_can_be_destroyed() {
    let (mut harness, volume, _) = full();
    harness.start(Command::Catalog(CatalogCommand::DestroyVolume { volume }));
    for _ in 0..20_000 {
        harness.step();
    }
    comes_free(&mut harness);
    let volume = harness.volume("disk1", 128 << 20, Compression::Off);
    assert_eq!(harness.write_blocks(Target::Head(volume), 0..32_000, 10, 16), 0, "{}", harness.engine.space_report());
}

/// The same in a pool with a log, while guests write to it.
#[test]
fn snapshots_of_a_busy_log_can_be_destroyed() {
    let groups = vec![GroupSpec::data(Layout::Parity { width: 16, parity: 2, unit: 4096 })];
    let mut harness = Harness::with_extents(&[96; 6], groups, tuning(16 << 20), Some(64 << 10));
    let (volume, snapshots) = with_snapshots(&mut harness, 8000, 7, 64);
    harness.start(Command::Catalog(CatalogCommand::DestroySnapshots { snapshots }));
    assert_eq!(harness.write_blocks(Target::Head(volume), (0..8000).map(|i| i * 7919 % 8000), 8, 64), 0);
    comes_free(&mut harness);
}
