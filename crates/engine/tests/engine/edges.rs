//! Writes of parts of blocks that are in flight while their volume is rolled back: afterwards the
//! bytes around them are of the snapshot, or of another write after the rollback, never of the head
//! before.

use millpond_block::{Io, IoKind, Op};
use millpond_engine::{CatalogCommand, Command, Compression, Layout, SnapshotId, Target, VolumeId};

use crate::harness::Harness;

const BLOCKS: u64 = 512;

/// A freshly imported pool with a volume that has 1 in a snapshot and 2 in the head.
fn pool() -> (Harness, VolumeId, SnapshotId) {
    let mut harness = Harness::new(&[32], Layout::Linear);
    let volume = harness.volume("disk0", 8 << 20, Compression::Off);
    assert_eq!(harness.write_blocks(Target::Head(volume), 0..BLOCKS, 1, 8), 0);
    let snapshot = harness.snapshot(volume, "s");
    assert_eq!(harness.write_blocks(Target::Head(volume), 0..BLOCKS, 2, 8), 0);
    (harness, volume, snapshot)
}

/// Restarts the engine; only the leaf of the volume's first blocks is in memory.
fn restart(harness: &mut Harness, volume: VolumeId) {
    harness.reopen();
    harness.request(Target::Head(volume), Op::Read, 7 * 4096, 4096, &[]).unwrap();
}

fn reads_among(harness: &mut Harness) -> Vec<Io> {
    let (reads, others): (Vec<Io>, Vec<Io>) =
        std::iter::from_fn(|| harness.engine.pop_io()).partition(|io| matches!(io.kind, IoKind::Read { .. }));
    others.into_iter().for_each(|io| harness.perform(io));
    reads
}

/// Rolls back and destroys both snapshots: the new head is joined to the lineage that was rolled
/// back.
fn roll_back(harness: &mut Harness, volume: VolumeId, snapshot: SnapshotId) {
    harness.start(Command::Catalog(CatalogCommand::Rollback { snapshot, keep_as: "kept".into() }));
    let kept: Vec<SnapshotId> = harness.engine.snapshots().into_iter().filter(|s| s.volume == volume).map(|s| s.id).collect();
    assert!(kept.len() == 2 && kept.contains(&snapshot), "the rollback is in force at once");
    harness.start(Command::Catalog(CatalogCommand::DestroySnapshots { snapshots: kept }));
    assert!(!harness.engine.snapshots().iter().any(|s| s.volume == volume), "so is the destroy");
}

/// Rolls back, then promotes a clone and the volume in turn: the two lineages swap their ends.
fn roll_back_and_promote(harness: &mut Harness, volume: VolumeId, snapshot: SnapshotId) {
    harness.start(Command::Catalog(CatalogCommand::Clone { snapshot, name: "clone".into() }));
    let clone = harness.engine.find_volume("clone").expect("it is there at once").id;
    harness.start(Command::Catalog(CatalogCommand::Rollback { snapshot, keep_as: "kept".into() }));
    harness.start(Command::Catalog(CatalogCommand::Promote { volume: clone, dry_run: false }));
    harness.start(Command::Catalog(CatalogCommand::Promote { volume, dry_run: false }));
    assert!(harness.engine.snapshots().iter().any(|s| s.id == snapshot && s.volume == volume), "it has its snapshot back");
}

/// Checks that all requests are answered without errors.
fn all_is_well(harness: &mut Harness, replies: usize) {
    harness.settle();
    let answers: Vec<_> = std::iter::from_fn(|| harness.engine.pop_reply()).map(|(_, reply)| reply).collect();
    assert!(answers.len() == replies && answers.iter().all(Result::is_ok), "{answers:?}");
    let done = harness.engine.pop_completion().expect("the write is answered");
    assert!(done.result.is_ok() && harness.engine.pop_completion().is_none());
}

/// Checks that the first blocks are the snapshot's, except the bytes of a write.
fn expect_written(harness: &mut Harness, volume: VolumeId, offset: usize, length: usize) {
    let mut expected = vec![1; BLOCKS as usize * 4096];
    expected[offset..offset + length].fill(9);
    for reopens in [false, true] {
        if reopens {
            harness.reopen();
        }
        let read = harness.request(Target::Head(volume), Op::Read, 0, BLOCKS * 4096, &[]).unwrap();
        let wrong = (0..read.len()).find(|at| read[*at] != expected[*at]);
        assert_eq!(wrong.map(|at| (at, read[at])), None, "restarted {reopens}: what is before the rollback came back");
        harness.audit();
    }
}

/// Fixed defect: only lineages were compared, and a head can get the lineage back that it had
/// before a rollback.
#[test]
fn edges_that_are_read_during_a_rollback_are_read_again() {
    for (splices, replies) in [(true, 2), (false, 4)] {
        let (mut harness, volume, snapshot) = pool();
        restart(&mut harness, volume);
        harness.write(Target::Head(volume), 512, &[9; 8192]);
        harness.turn();
        let held = reads_among(&mut harness);
        assert_eq!(held.len(), 2, "the write reads what surrounds its bytes");
        if splices {
            roll_back(&mut harness, volume, snapshot);
        } else {
            roll_back_and_promote(&mut harness, volume, snapshot);
        }
        held.into_iter().for_each(|io| harness.perform(io));
        all_is_well(&mut harness, replies);
        expect_written(&mut harness, volume, 512, 8192);
    }
}

/// The same for a write that has read its edges and waits for space in a full pool.
#[test]
fn edges_of_a_write_that_waits_for_room_during_a_rollback_are_read_again() {
    let (mut harness, volume, snapshot) = pool();
    let other = harness.volume("other", 1 << 30, Compression::Off);
    let mut last = 0;
    while harness.write_blocks(Target::Head(other), last..last + 16, 3, 16) == 0 {
        last += 16;
    }
    restart(&mut harness, volume);
    let length = 256 * 4096;
    // space is about to be freed, but the deadlist is not read yet
    harness.start(Command::Catalog(CatalogCommand::DestroyVolume { volume: other }));
    harness.turn();
    let held = reads_among(&mut harness);
    assert!(!held.is_empty(), "the maps of the volume are read to free what is in it");
    harness.write(Target::Head(volume), 512, &vec![9; length]);
    let mut edges = 0;
    for _ in 0..8 {
        harness.turn();
        for io in reads_among(&mut harness) {
            edges += 1;
            harness.perform(io);
        }
    }
    assert_eq!(
        (edges, harness.engine.pop_completion().is_none()),
        (2, true),
        "it has its edges and waits: {}",
        harness.engine.space_report()
    );
    let room = harness.engine.pool().unwrap();
    roll_back(&mut harness, volume, snapshot);
    held.into_iter().for_each(|io| harness.perform(io));
    all_is_well(&mut harness, 3);
    assert!(harness.engine.pool().unwrap().allocated < room.allocated);
    expect_written(&mut harness, volume, 512, length);
}
