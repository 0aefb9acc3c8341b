//! The next checkpoint always fits: into the space reserved for it, and into free space.

use millpond_engine::{CatalogCommand, Command, Compression, GroupSpec, Layout, PoolState, SnapshotId, Target, Tuning, VolumeId};

use crate::rig::Rig;
use millpond_testing::Random;

const TURNS: u32 = 60_000;

fn tuning(checkpoint_log_bytes: u64) -> Tuning {
    Tuning { checkpoint_log_bytes, ..Tuning::default() }
}

/// Long-lived chunks are in separate pages of the chunk table, and the checkpoint lists each of
/// these pages.
#[test]
fn a_long_directory_of_chunk_pages() {
    let mut rig = Rig::with(&[64], Layout::Linear, tuning(512 << 10));
    let volume = rig.volume("disk0", 64 << 20, Compression::Off);
    let head = Target::Head(volume);
    for i in 0..3000 {
        rig.write(head, (4096 + i) * 4096, &[i as u8; 4096]);
        rig.write(head, 0, &[7; 60 * 4096]);
        rig.settle();
        while let Some(done) = rig.engine.pop_completion() {
            done.result.unwrap();
        }
    }
    assert_eq!(*rig.engine.state(), PoolState::Online);
}

/// The record of a chunk of compressed blocks has a bit for each unit.
#[test]
fn long_records_of_packed_chunks() {
    const BLOCKS: u64 = 24_000;
    let mut rig = Rig::with_extents(&[256], vec![GroupSpec::data(Layout::Linear)], tuning(16 << 20), Some(2 << 20));
    let volume = rig.volume("disk0", 256 << 20, Compression::Lz4);
    let head = Target::Head(volume);
    let mut scratch = Random::new(1).bytes(60 * 4096);
    scratch.chunks_mut(4096).for_each(|block| block[3000..].fill(0));
    let drain = |rig: &mut Rig| {
        rig.settle();
        while let Some(done) = rig.engine.pop_completion() {
            done.result.unwrap();
        }
    };
    for i in 0..BLOCKS {
        rig.write(head, 0, &scratch);
        rig.write(head, (4096 + i) * 4096, &[i as u8; 4096]);
        drain(&mut rig);
    }
    rig.command(Command::Checkpoint).unwrap();
    for round in 0..4 {
        for i in (round..BLOCKS).step_by(50) {
            rig.write(head, (4096 + i) * 4096, &[round as u8; 4096]);
        }
        drain(&mut rig);
        rig.command(Command::Checkpoint).unwrap();
    }
    assert_eq!(*rig.engine.state(), PoolState::Online);
}

/// A volume of which every block died in each of several snapshots.
fn with_snapshots(rig: &mut Rig, blocks: u64, count: u8, depth: u64) -> (VolumeId, Vec<SnapshotId>) {
    let volume = rig.volume("disk0", 256 << 20, Compression::Off);
    let mut snapshots = Vec::new();
    for version in 0..=count {
        // an odd factor visits all blocks, out of order
        let failed = rig.write_blocks(Target::Head(volume), (0..blocks).map(|i| i * 7919 % blocks), version, depth);
        assert_eq!(failed, 0);
        rig.settle();
        if version < count {
            snapshots.push(rig.snapshot(volume, &format!("s{version}")));
        }
    }
    (volume, snapshots)
}

/// Waits until all destroyed data is freed, in a pool that keeps answering guests.
fn comes_free(rig: &mut Rig) {
    for _ in 0..TURNS {
        rig.step();
        if rig.engine.metrics().reclaim_backlog == 0 {
            break;
        }
    }
    assert_eq!((rig.engine.metrics().reclaim_backlog, rig.engine.state()), (0, &PoolState::Online), "{}", rig.engine.space_report());
    rig.settle();
    while rig.engine.pop_reply().is_some() {}
    rig.audit();
}

/// A completely full pool with a volume of eight snapshots.
fn full() -> (Rig, VolumeId, Vec<SnapshotId>) {
    let mut rig = Rig::with_extents(&[256], vec![GroupSpec::data(Layout::Linear)], tuning(1 << 20), Some(64 << 10));
    let (volume, snapshots) = with_snapshots(&mut rig, 6400, 8, 16);
    let mut last = 6400;
    while last < 60_000 && rig.write_blocks(Target::Head(volume), last..last + 16, 9, 16) == 0 {
        last += 16;
    }
    assert!(last < 60_000, "it was never full");
    (rig, volume, snapshots)
}

/// Destroying snapshots because the pool is full frees space, however long their deadlists are.
#[test]
fn snapshots_of_a_full_pool_can_be_destroyed() {
    for crashes in [false, true] {
        let (mut rig, volume, snapshots) = full();
        rig.start(Command::Catalog(CatalogCommand::DestroySnapshots { snapshots }));
        for _ in 0..2000 {
            rig.step();
        }
        if crashes {
            // an import finds the pool in the same state
            rig.reopen();
        }
        comes_free(&mut rig);
        assert_eq!(rig.write_blocks(Target::Head(volume), 0..6400, 10, 16), 0);
    }
}

/// The same for the whole volume: few chunks remain in the pages that change.
#[test]
fn the_volume_of_a_full_pool_can_be_destroyed() {
    let (mut rig, volume, _) = full();
    rig.start(Command::Catalog(CatalogCommand::DestroyVolume { volume }));
    for _ in 0..20_000 {
        rig.step();
    }
    comes_free(&mut rig);
    let volume = rig.volume("disk1", 128 << 20, Compression::Off);
    assert_eq!(rig.write_blocks(Target::Head(volume), 0..32_000, 10, 16), 0, "{}", rig.engine.space_report());
}

/// The same in a pool with a log, while guests write to it.
#[test]
fn snapshots_of_a_busy_log_can_be_destroyed() {
    let groups = vec![GroupSpec::data(Layout::Parity { width: 16, parity: 2, unit: 4096 })];
    let mut rig = Rig::with_extents(&[96; 6], groups, tuning(16 << 20), Some(64 << 10));
    let (volume, snapshots) = with_snapshots(&mut rig, 8000, 7, 64);
    rig.start(Command::Catalog(CatalogCommand::DestroySnapshots { snapshots }));
    assert_eq!(rig.write_blocks(Target::Head(volume), (0..8000).map(|i| i * 7919 % 8000), 8, 64), 0);
    comes_free(&mut rig);
}
