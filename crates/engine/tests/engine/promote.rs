//! Promotion of clones.

use millpond_block::Op;
use millpond_engine::{CatalogCommand, Command, CommandError, Compression, Layout, Reply, SnapshotId, Target, VolumeId, VolumeOptions};

use crate::harness::Harness;

const BLOCKS: u64 = 512;

fn clone_of(harness: &mut Harness, snapshot: SnapshotId, name: &str) -> VolumeId {
    let Reply::Volume(clone) = harness.command(CatalogCommand::Clone { snapshot, name: name.into() }).unwrap() else { panic!() };
    clone
}

fn promote(harness: &mut Harness, volume: VolumeId) -> Vec<SnapshotId> {
    let Reply::Promotion(plan) = harness.command(CatalogCommand::Promote { volume, dry_run: false }).unwrap() else { panic!() };
    plan.snapshots
}

fn reads(harness: &mut Harness, target: Target, byte: u8) {
    assert!(
        harness.request(target, Op::Read, 0, BLOCKS * 4096, &[]).unwrap() == vec![byte; BLOCKS as usize * 4096],
        "{target:?} is not all {byte}"
    );
}

fn origin(harness: &Harness, volume: VolumeId) -> Option<String> {
    harness.engine.volumes().into_iter().find(|v| v.id == volume).unwrap().origin
}

fn owned(harness: &Harness, volume: VolumeId) -> u64 {
    harness.engine.volumes().into_iter().find(|v| v.id == volume).unwrap().unique_bytes / 4096
}

/// A volume with three snapshots, and a clone of the second one with a snapshot of its own.
fn golden() -> (Harness, VolumeId, VolumeId, [SnapshotId; 4]) {
    let mut harness = Harness::new(&[96], Layout::Linear);
    let disk = harness.volume("golden", BLOCKS * 4096, Compression::Off);
    let mut snapshots = Vec::new();
    for byte in 1..=3 {
        assert_eq!(harness.write_blocks(Target::Head(disk), 0..BLOCKS, byte, 8), 0);
        snapshots.push(harness.snapshot(disk, &format!("s{byte}")));
    }
    assert_eq!(harness.write_blocks(Target::Head(disk), 0..BLOCKS, 4, 8), 0);
    let clone = clone_of(&mut harness, snapshots[1], "vm");
    assert_eq!(harness.write_blocks(Target::Head(clone), 0..BLOCKS / 2, 5, 8), 0);
    let own = harness.snapshot(clone, "own");
    assert_eq!(harness.write_blocks(Target::Head(clone), 0..BLOCKS, 6, 8), 0);
    (harness, disk, clone, [snapshots[0], snapshots[1], snapshots[2], own])
}

#[test]
fn what_a_clone_starts_from_becomes_its_own() {
    for reopens in [false, true] {
        let (mut harness, disk, clone, [one, two, three, _]) = golden();
        assert_eq!((owned(&harness, disk), owned(&harness, clone)), (4 * BLOCKS, BLOCKS * 3 / 2));
        let planned = harness.command(CatalogCommand::Promote { volume: clone, dry_run: true }).unwrap();
        assert_eq!(origin(&harness, clone).as_deref(), Some("golden@s2"), "a dry run changes nothing");
        assert_eq!(harness.command(CatalogCommand::Promote { volume: clone, dry_run: false }).unwrap(), planned);
        let Reply::Promotion(plan) = planned else { panic!("{planned:?}") };
        assert_eq!((plan.from, plan.snapshots, plan.bytes), (disk, vec![one, two], 2 * BLOCKS * 4096));
        if reopens {
            harness.reopen();
        }
        harness.audit();
        assert_eq!((origin(&harness, clone), origin(&harness, disk).as_deref()), (None, Some("vm@s2")));
        assert_eq!((owned(&harness, disk), owned(&harness, clone)), (2 * BLOCKS, BLOCKS * 7 / 2));
        let mut names: Vec<_> = harness.engine.snapshots().into_iter().map(|s| (s.volume, s.name, s.clones)).collect();
        names.sort();
        let of = |volume, name: &str, clones| (volume, name.to_owned(), clones);
        assert_eq!(names, [of(disk, "s3", 0), of(clone, "own", 0), of(clone, "s1", 0), of(clone, "s2", 1)]);
        for (target, byte) in [(Target::Head(disk), 4), (Target::Head(clone), 6), (Target::Snapshot(one), 1), (Target::Snapshot(three), 3)]
        {
            reads(&mut harness, target, byte);
        }
        // the promoted volume cannot be destroyed while the other one starts from its snapshot
        assert!(matches!(harness.command(CatalogCommand::DestroyVolume { volume: clone }), Err(CommandError::Busy(_))));
        harness.command(CatalogCommand::DestroyVolume { volume: disk }).unwrap();
        harness.settle();
        harness.audit();
        assert_eq!(owned(&harness, clone), BLOCKS * 7 / 2);
        harness.command(CatalogCommand::DestroySnapshots { snapshots: vec![one, two] }).unwrap();
        harness.settle();
        harness.command(Command::Checkpoint).unwrap();
        harness.audit();
        // left are "own", with half of the blocks of the golden image, and the head
        assert_eq!(owned(&harness, clone), BLOCKS * 2);
        reads(&mut harness, Target::Head(clone), 6);
    }
}

#[test]
fn a_volume_that_is_promoted_back_is_as_before() {
    let (mut harness, disk, clone, [one, two, ..]) = golden();
    assert_eq!(promote(&mut harness, clone), [one, two]);
    assert_eq!(promote(&mut harness, disk), [one, two]);
    harness.audit();
    assert_eq!((origin(&harness, clone).as_deref(), origin(&harness, disk)), (Some("golden@s2"), None));
    assert_eq!((owned(&harness, disk), owned(&harness, clone)), (4 * BLOCKS, BLOCKS * 3 / 2));
    let error = harness.command(CatalogCommand::Promote { volume: disk, dry_run: false }).unwrap_err();
    assert!(error.to_string().contains("not a clone"), "{error}");
}

#[test]
fn snapshots_of_one_name_are_refused_by_name() {
    let (mut harness, _, clone, [_, two, _, own]) = golden();
    harness.command(CatalogCommand::RenameSnapshot { snapshot: own, name: "s1".into() }).unwrap();
    for dry_run in [true, false] {
        let error = harness.command(CatalogCommand::Promote { volume: clone, dry_run }).unwrap_err();
        assert_eq!(error.to_string(), "both volumes have snapshots named 's1'; rename one of each first");
    }
    harness.command(CatalogCommand::RenameSnapshot { snapshot: own, name: "s3".into() }).unwrap();
    assert_eq!(promote(&mut harness, clone).last(), Some(&two), "one that stays may have the name");
}

#[test]
fn holds_move_with_their_snapshots() {
    let (mut harness, disk, clone, [one, ..]) = golden();
    harness.command(CatalogCommand::Hold { snapshot: one, tag: Some("audit".into()), until: None, locked: false }).unwrap();
    promote(&mut harness, clone);
    harness.reopen();
    assert!(matches!(harness.command(CatalogCommand::DestroySnapshots { snapshots: vec![one] }), Err(CommandError::Busy(_))));
    harness.command(CatalogCommand::DestroyVolume { volume: disk }).unwrap();
    let error = harness.command(CatalogCommand::DestroyVolume { volume: clone }).unwrap_err();
    assert!(error.to_string().contains("held"), "{error}");
}

/// The origin was rolled back: its head starts from another snapshot than the clone.
#[test]
fn the_line_before_a_rollback_moves_as_far_as_the_clone_starts_from_it() {
    let (mut harness, disk, clone, [one, two, three, _]) = golden();
    harness.command(CatalogCommand::Rollback { snapshot: one, keep_as: "kept".into() }).unwrap();
    let late = clone_of(&mut harness, three, "late");
    assert_eq!(promote(&mut harness, clone), [one, two]);
    harness.audit();
    assert_eq!((origin(&harness, disk).as_deref(), origin(&harness, late).as_deref()), (Some("vm@s1"), Some("golden@s3")));
    // s3 starts from s2 and the head from s1: both snapshots have the volume as a clone
    let clones = |harness: &Harness, id| harness.engine.snapshots().into_iter().find(|s| s.id == id).unwrap().clones;
    assert_eq!((clones(&harness, one), clones(&harness, two), clones(&harness, three)), (1, 1, 1));
    assert_eq!(promote(&mut harness, late), [three]);
    harness.reopen();
    harness.audit();
    assert_eq!((origin(&harness, disk).as_deref(), origin(&harness, late).as_deref()), (Some("vm@s1"), Some("vm@s2")));
    reads(&mut harness, Target::Head(disk), 1);
    for volume in [disk, late, clone] {
        if harness.command(CatalogCommand::DestroyVolume { volume }).is_err() {
            panic!("{volume} cannot be destroyed: {:?}", harness.engine.snapshots());
        }
        harness.settle();
        harness.audit();
    }
    harness.command(Command::Checkpoint).unwrap();
    harness.command(Command::Checkpoint).unwrap();
    assert!(harness.engine.pool().unwrap().allocated < 1 << 20);
}

#[test]
fn a_reservation_that_would_not_fit_any_more_is_refused() {
    let (mut harness, disk, clone, _) = golden();
    let mut options = VolumeOptions { reservation: 16 << 20, ..VolumeOptions::default() };
    while harness.command(CatalogCommand::SetOptions { volume: disk, options }).is_ok() {
        options.reservation += 1 << 20;
    }
    assert_eq!(harness.command(CatalogCommand::Promote { volume: clone, dry_run: false }), Err(CommandError::NoSpace));
    let options = VolumeOptions { reservation: 8 << 20, ..options };
    harness.command(CatalogCommand::SetOptions { volume: disk, options }).unwrap();
    promote(&mut harness, clone);
    harness.audit();
    harness.reopen();
    harness.audit();
}

/// The daemon dies at each turn of a promotion: it has happened or not, and later operations work.
#[test]
fn a_crash_leaves_all_of_it_or_nothing() {
    for turns in 0..12 {
        let (mut harness, disk, clone, [_, two, ..]) = golden();
        harness.start(Command::Catalog(CatalogCommand::Promote { volume: clone, dry_run: false }));
        for _ in 0..turns {
            harness.step();
        }
        harness.reopen();
        harness.audit();
        let promoted = origin(&harness, clone).is_none();
        assert_eq!(origin(&harness, disk).is_some(), promoted);
        assert!(promoted || turns < 11, "it is durable by then");
        let (first, other) = if promoted { (disk, clone) } else { (clone, disk) };
        harness.command(CatalogCommand::DestroyVolume { volume: first }).unwrap();
        harness.settle();
        harness.audit();
        reads(&mut harness, Target::Snapshot(two), 2);
        harness.command(CatalogCommand::DestroyVolume { volume: other }).unwrap();
        harness.settle();
        harness.audit();
    }
}

/// After promotions each of two volumes has a snapshot that the other one starts from: neither can
/// be destroyed before the snapshots that nothing starts from.
#[test]
fn two_volumes_that_start_from_each_other_go_one_snapshot_after_the_other() {
    let mut harness = Harness::new(&[96], Layout::Linear);
    let disk = harness.volume("disk", BLOCKS * 4096, Compression::Off);
    let mut snapshots = Vec::new();
    for byte in 1..=3 {
        assert_eq!(harness.write_blocks(Target::Head(disk), 0..BLOCKS, byte, 8), 0);
        snapshots.push(harness.snapshot(disk, &format!("s{byte}")));
    }
    let [one, two, three] = snapshots[..] else { panic!() };
    let Reply::Snapshots(kept) = harness.command(CatalogCommand::Rollback { snapshot: one, keep_as: "kept".into() }).unwrap() else {
        panic!()
    };
    let clone = clone_of(&mut harness, two, "vm");
    assert_eq!(promote(&mut harness, clone), [one, two]);
    assert_eq!(promote(&mut harness, disk), [one]);
    harness.reopen();
    harness.audit();
    let refused = |harness: &mut Harness| [disk, clone].map(|volume| harness.command(CatalogCommand::DestroyVolume { volume }).is_err());
    assert_eq!(refused(&mut harness), [true, true]);
    for (target, byte) in [(Target::Head(disk), 1), (Target::Head(clone), 2), (Target::Snapshot(two), 2), (Target::Snapshot(three), 3)] {
        reads(&mut harness, target, byte);
    }
    harness.command(CatalogCommand::DestroySnapshots { snapshots: vec![three, kept[0]] }).unwrap();
    harness.settle();
    harness.audit();
    for volume in [clone, disk] {
        harness.command(CatalogCommand::DestroyVolume { volume }).unwrap();
        harness.settle();
        harness.audit();
    }
    (0..2).for_each(|_| assert_eq!(harness.command(Command::Checkpoint), Ok(Reply::Done)));
    assert!(harness.engine.pool().unwrap().allocated < 1 << 20);
}
