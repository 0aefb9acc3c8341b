//! Deadlists that are longer than the memory for them: their pieces are read again to be freed.

use millpond_block::MemberId;
use millpond_engine::{
    CatalogCommand, Class, Command, Compression, DeviceCommand, GroupSpec, Layout, PoolState, Reply, SnapshotId, Target, Tuning, VolumeId,
};

use crate::harness::Harness;

const BLOCKS: u64 = 16_384;
const VERSIONS: u8 = 15;
/// Bytes of memory for content that can be read again, and indexes.
const LIMIT: u64 = 32 << 10;
/// The same with content that is not written yet, two pieces for freeing, and eight for a
/// checkpoint.
const MOST: u64 = 72 << 10;

fn tuning(piece_memory: u64) -> Tuning {
    Tuning { map_memory: 8 << 20, checkpoint_log_bytes: 1 << 20, piece_bytes: 2 << 10, piece_memory, ..Tuning::default() }
}

fn check(harness: &Harness) {
    let memory = harness.engine.metrics().piece_memory;
    assert!(memory < MOST, "{memory} bytes are in memory");
}

/// Half of all blocks, at random.
fn half(version: u8) -> impl Iterator<Item = u64> {
    let mixed = move |i: u64| ((i << 8 | u64::from(version)).wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 40;
    (0..BLOCKS).map(|i| i * 2503 % BLOCKS).filter(move |i| mixed(*i) % 2 == 0)
}

/// A volume of which half of the blocks died in each of several snapshots.
fn aged(piece_memory: u64) -> (Harness, VolumeId, Vec<SnapshotId>) {
    aged_on(&[640], Layout::Linear, piece_memory, VERSIONS)
}

/// The same on several devices, with `versions` snapshots.
fn aged_on(sizes_mib: &[usize], layout: Layout, piece_memory: u64, versions: u8) -> (Harness, VolumeId, Vec<SnapshotId>) {
    let mut harness = Harness::with(sizes_mib, layout, tuning(piece_memory));
    let volume = harness.volume("disk0", BLOCKS * 4096, Compression::Off);
    assert_eq!(harness.write_blocks(Target::Head(volume), 0..BLOCKS, 0, 8), 0);
    let mut snapshots = Vec::new();
    for version in 1..=versions {
        snapshots.push(harness.snapshot(volume, &format!("s{version}")));
        let mut blocks = half(version).peekable();
        while blocks.peek().is_some() {
            assert_eq!(harness.write_blocks(Target::Head(volume), blocks.by_ref().take(500), version, 8), 0);
            if piece_memory == LIMIT {
                check(&harness);
            }
        }
    }
    harness.command(Command::Checkpoint).unwrap();
    harness.settle();
    (harness, volume, snapshots)
}

/// Runs turns until all destroyed data is freed.
fn free(harness: &mut Harness) {
    for _ in 0..100_000 {
        harness.step();
        check(harness);
        if harness.engine.metrics().reclaim_backlog == 0 {
            harness.settle();
            while harness.engine.pop_reply().is_some() {}
            return harness.audit();
        }
    }
    panic!("{}", harness.engine.space_report());
}

#[test]
fn lists_are_longer_than_memory() {
    let all = aged(u64::MAX).0.engine.metrics().piece_memory;
    assert!(all > 3 * MOST, "only {all} bytes are all there is");
    let (mut harness, volume, mut snapshots) = aged(LIMIT);
    harness.audit();
    // destroy every second one: the list after it is split and merged with its own
    let every_second: Vec<SnapshotId> = snapshots.iter().skip(1).step_by(2).copied().collect();
    snapshots.retain(|id| !every_second.contains(id));
    harness.start(Command::Catalog(CatalogCommand::DestroySnapshots { snapshots: every_second }));
    free(&mut harness);
    harness.command(Command::Checkpoint).unwrap();
    let reads = harness.engine.metrics().piece_reads;
    assert!(reads > 20, "{reads} pieces were read");
    // sizes in pieces are known without reading them
    let unique = |harness: &Harness| harness.engine.snapshots().iter().map(|s| s.unique_bytes).collect::<Vec<_>>();
    let before = unique(&harness);
    harness.reopen();
    check(&harness);
    assert_eq!((unique(&harness), harness.engine.metrics().piece_reads), (before, 0));
    harness.audit();
    // a crash while they are freed
    let last = snapshots.pop().unwrap();
    harness.start(Command::Catalog(CatalogCommand::DestroySnapshots { snapshots }));
    for _ in 0..40 {
        harness.step();
        check(&harness);
    }
    harness.reopen();
    free(&mut harness);
    // the head's list is dropped with the volume, without being read
    assert_eq!(harness.write_blocks(Target::Head(volume), half(99), 99, 8), 0);
    harness.command(Command::Checkpoint).unwrap();
    let reads = harness.engine.metrics().piece_reads;
    harness.command(CatalogCommand::DestroyVolume { volume }).unwrap();
    assert_eq!(harness.engine.snapshots().iter().filter(|s| s.id == last).count(), 0);
    harness.settle();
    assert_eq!((harness.engine.metrics().piece_reads, harness.engine.metrics().piece_memory), (reads, 0));
    (0..3).for_each(|_| assert_eq!(harness.command(Command::Checkpoint), Ok(Reply::Done)));
    harness.audit();
    assert!(harness.engine.pool().unwrap().allocated < 1 << 20, "{:?}", harness.engine.pool());
}

/// Blocks in a piece that cannot be read are not freed, and no other work waits for it. The piece
/// is tried again after a while.
#[test]
fn pieces_that_cannot_be_read_hold_nobody_up() {
    let (mut harness, volume, snapshots) = aged(LIMIT);
    harness.reopen();
    harness.unreadable = true;
    let all: Vec<SnapshotId> = snapshots.iter().skip(1).copied().collect();
    harness.command(CatalogCommand::DestroySnapshots { snapshots: all }).unwrap();
    let metrics = harness.engine.metrics();
    // blocks that cannot be freed do not count as backlog
    assert!(metrics.piece_failures > 20 && metrics.unreclaimed > BLOCKS * 4096 && metrics.reclaim_backlog == 0, "{metrics:?}");
    harness.command(Command::Checkpoint).unwrap();
    harness.unreadable = false;
    harness.audit();
    assert_eq!(harness.write_blocks(Target::Head(volume), 0..100, 77, 8), 0);
    let unreclaimed = harness.engine.metrics().unreclaimed;
    assert!(unreclaimed > BLOCKS * 4096, "it is not tried again at once");
    harness.now += 40_000;
    harness.settle();
    assert_eq!((harness.engine.metrics().reclaim_backlog, harness.engine.metrics().unreclaimed), (0, 0));
    harness.audit();
}

/// Pieces that can be read again are no longer counted as unreadable, although other lists are
/// still being freed.
#[test]
fn what_is_readable_again_is_not_counted_as_unreadable() {
    let (mut harness, _, snapshots) = aged(LIMIT);
    harness.reopen();
    harness.unreadable = true;
    let (first, rest) = snapshots.split_at(4);
    harness.command(CatalogCommand::DestroySnapshots { snapshots: first[1..].to_vec() }).unwrap();
    let unreclaimed = harness.engine.metrics().unreclaimed;
    assert!(unreclaimed > 0 && harness.engine.metrics().reclaim_backlog == 0, "{:?}", harness.engine.metrics());
    harness.unreadable = false;
    harness.start(Command::Catalog(CatalogCommand::DestroySnapshots { snapshots: rest.to_vec() }));
    harness.now += 40_000;
    let mut seen = Vec::new();
    for _ in 0..100_000 {
        harness.step();
        let metrics = harness.engine.metrics();
        seen.push((metrics.unreclaimed, metrics.reclaim_backlog));
        if metrics.unreclaimed + metrics.reclaim_backlog == 0 {
            break;
        }
    }
    assert_eq!(seen.last(), Some(&(0, 0)));
    assert!(seen.iter().any(|(unreclaimed, backlog)| *unreclaimed == 0 && *backlog > 0), "{unreclaimed} bytes before: {seen:?}");
    harness.settle();
    harness.audit();
}

/// Flips a bit in each of the first pieces of deadlists on a device, at most `most`. Returns the
/// places, and their new content.
fn flip_in_pieces(media: &mut [u8], most: usize) -> Vec<(usize, [u8; 64])> {
    let places: Vec<usize> =
        (1 << 20..media.len() - (1 << 20)).step_by(64).filter(|at| media[*at..].starts_with(b"MPDpiece")).take(most).collect();
    let mut flip = |at: usize| {
        media[at + 40] ^= 1;
        (at, media[at..at + 64].try_into().unwrap())
    };
    places.into_iter().map(&mut flip).collect()
}

/// Flips the bits back, except where something else was written since.
fn flip_back(media: &mut [u8], flipped: &[(usize, [u8; 64])]) {
    for (at, bytes) in flipped.iter().filter(|(at, bytes)| media[*at..*at + 64] == *bytes).copied().collect::<Vec<_>>() {
        media[at + 40] = bytes[40] ^ 1;
    }
}

/// Blocks in damaged pieces are not freed, but all others are: the former are reported as bytes,
/// and no job runs for ever.
#[test]
fn damaged_pieces_leave_bytes_that_are_reported() {
    let (mut harness, volume, snapshots) = aged(LIMIT);
    harness.reopen();
    let flipped = flip_in_pieces(&mut harness.media[0], 30);
    assert_eq!(flipped.len(), 30);
    harness.command(CatalogCommand::DestroySnapshots { snapshots }).unwrap();
    harness.command(CatalogCommand::DestroyVolume { volume }).unwrap();
    for _ in 0..5 {
        harness.now += 40_000;
        harness.settle();
    }
    harness.command(Command::Checkpoint).unwrap();
    let metrics = harness.engine.metrics();
    assert!(metrics.reclaim_backlog == 0 && metrics.unreclaimed > 0, "{metrics:?}");
    let pool = harness.engine.pool().unwrap();
    assert!(pool.state == PoolState::Online && pool.allocated >= metrics.unreclaimed && pool.free > pool.size / 2, "{pool:?}");
    let other = harness.volume("disk1", BLOCKS * 4096, Compression::Off);
    assert_eq!(harness.write_blocks(Target::Head(other), 0..BLOCKS, 5, 8), 0);
    // the damage is repaired by hand
    flip_back(&mut harness.media[0], &flipped);
    harness.now += 40_000;
    harness.settle();
    assert_eq!((harness.engine.metrics().reclaim_backlog, harness.engine.metrics().unreclaimed), (0, 0));
    harness.audit();
}

/// A removal moves everything else, and ends with the reason.
#[test]
fn a_removal_ends_where_deadlists_cannot_be_read() {
    let (mut harness, volume, _) = aged(LIMIT);
    let device = harness.new_device(900);
    let groups = vec![GroupSpec { class: Class::Data, layout: Layout::Linear, devices: None }];
    harness.command(DeviceCommand::AddDevices { groups, devices: vec![device] }).unwrap();
    harness.reopen();
    let flipped = flip_in_pieces(&mut harness.media[0], 30);
    assert_eq!(flipped.len(), 30);
    harness.command(DeviceCommand::Remove { member: MemberId(0), dry_run: false }).unwrap();
    let mut seconds = 0;
    while !harness.engine.pool().unwrap().jobs.is_empty() {
        harness.now += 1_000;
        harness.settle();
        seconds += 1;
        assert!(seconds < 300, "{:?}", harness.engine.pool());
    }
    let pool = harness.engine.pool().unwrap();
    assert!(pool.removal_ended.as_ref().is_some_and(|why| why.contains("deadlists")) && pool.devices.len() == 2, "{pool:?}");
    assert!(pool.state == PoolState::Online && pool.devices[0].allocated < pool.devices[1].allocated / 4, "{pool:?}");
    assert_eq!(harness.write_blocks(Target::Head(volume), half(77), 77, 8), 0);
    // with the pieces intact the device is removed, and nothing is reported any more
    flip_back(&mut harness.media[0], &flipped);
    harness.command(DeviceCommand::Remove { member: MemberId(0), dry_run: false }).unwrap();
    harness.finish_jobs();
    let pool = harness.engine.pool().unwrap();
    assert!(pool.removal_ended.is_none() && pool.devices.len() == 1, "{pool:?}");
    harness.audit();
}

/// Tails of lists count as memory of maps, over snapshots, restarts and destroys.
#[test]
fn what_is_in_no_piece_yet_is_counted() {
    let mut harness = Harness::with(&[64], Layout::Linear, tuning(u64::MAX));
    let memory = |harness: &Harness| harness.engine.metrics().piece_memory;
    let volumes: Vec<VolumeId> = (0..20).map(|n| harness.volume(&format!("disk{n}"), 4 << 20, Compression::Off)).collect();
    for volume in &volumes {
        assert_eq!(harness.write_blocks(Target::Head(*volume), 0..100, 1, 8), 0);
        harness.snapshot(*volume, "s");
    }
    assert_eq!(memory(&harness), 0, "nothing died that a snapshot needs");
    for volume in &volumes {
        assert_eq!(harness.write_blocks(Target::Head(*volume), (0..100).step_by(3), 2, 8), 0);
    }
    // an entry takes some bytes, and four times as much in memory
    let taken = memory(&harness);
    assert!(taken > 20 * 4 * 20, "{taken} bytes are counted");
    volumes.iter().for_each(|volume| _ = harness.snapshot(*volume, "t"));
    assert!(memory(&harness) >= taken / 2, "{} bytes of snapshots are counted", memory(&harness));
    harness.command(Command::Checkpoint).unwrap();
    let taken = memory(&harness);
    assert!(taken > 20 * 4 * 20, "what a checkpoint has stays in memory");
    harness.reopen();
    assert_eq!(memory(&harness), taken, "an import counts the same");
    for volume in volumes {
        harness.command(CatalogCommand::DestroyVolume { volume }).unwrap();
    }
    harness.settle();
    assert_eq!(memory(&harness), 0);
    harness.audit();
}

/// A missing device may have data that the others lack: a removal waits for it, reports that, and
/// ends when everything can be read.
#[test]
fn a_removal_waits_for_a_device_that_may_have_the_deadlists() {
    let (mut harness, volume, _) = aged_on(&[400, 400], Layout::Mirror { copies: 2 }, LIMIT, 6);
    let device = harness.new_device(500);
    let groups = vec![GroupSpec { class: Class::Data, layout: Layout::Linear, devices: None }];
    harness.command(DeviceCommand::AddDevices { groups, devices: vec![device] }).unwrap();
    harness.reopen();
    let flipped = flip_in_pieces(&mut harness.media[0], usize::MAX);
    assert!(!flipped.is_empty());
    harness.dead = vec![1];
    assert_eq!(harness.write_blocks(Target::Head(volume), 0..16, 77, 8), 0);
    harness.command(DeviceCommand::Remove { member: MemberId(0), dry_run: false }).unwrap();
    for _ in 0..300 {
        harness.now += 1_000;
        harness.settle();
    }
    let pool = harness.engine.pool().unwrap();
    assert!(pool.removal_ended.is_none() && pool.jobs.len() == 1, "{pool:?}");
    assert!(pool.removal_waits.as_ref().is_some_and(|why| why.contains("while member 1 is away")), "{pool:?}");
    flip_back(&mut harness.media[0], &flipped);
    for _ in 0..300 {
        harness.now += 1_000;
        harness.settle();
    }
    let pool = harness.engine.pool().unwrap();
    assert!(pool.removal_ended.is_none() && pool.removal_waits.is_none() && pool.devices.len() == 1, "{pool:?}");
    harness.audit();
}
