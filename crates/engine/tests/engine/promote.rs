//! Promotion of clones.

use millpond_block::Op;
use millpond_engine::{CatalogCommand, Command, CommandError, Compression, Layout, Reply, SnapshotId, Target, VolumeId, VolumeOptions};

use crate::rig::Rig;

const BLOCKS: u64 = 512;

fn clone_of(rig: &mut Rig, snapshot: SnapshotId, name: &str) -> VolumeId {
    let Reply::Volume(clone) = rig.command(CatalogCommand::Clone { snapshot, name: name.into() }).unwrap() else { panic!() };
    clone
}

fn promote(rig: &mut Rig, volume: VolumeId) -> Vec<SnapshotId> {
    let Reply::Promotion(plan) = rig.command(CatalogCommand::Promote { volume, dry_run: false }).unwrap() else { panic!() };
    plan.snapshots
}

fn reads(rig: &mut Rig, target: Target, byte: u8) {
    assert!(
        rig.request(target, Op::Read, 0, BLOCKS * 4096, &[]).unwrap() == vec![byte; BLOCKS as usize * 4096],
        "{target:?} is not all {byte}"
    );
}

fn origin(rig: &Rig, volume: VolumeId) -> Option<String> {
    rig.engine.volumes().into_iter().find(|v| v.id == volume).unwrap().origin
}

fn owned(rig: &Rig, volume: VolumeId) -> u64 {
    rig.engine.volumes().into_iter().find(|v| v.id == volume).unwrap().unique_bytes / 4096
}

/// A volume with three snapshots, and a clone of the second one with a snapshot of its own.
fn golden() -> (Rig, VolumeId, VolumeId, [SnapshotId; 4]) {
    let mut rig = Rig::new(&[96], Layout::Linear);
    let disk = rig.volume("golden", BLOCKS * 4096, Compression::Off);
    let mut snapshots = Vec::new();
    for byte in 1..=3 {
        assert_eq!(rig.write_blocks(Target::Head(disk), 0..BLOCKS, byte, 8), 0);
        snapshots.push(rig.snapshot(disk, &format!("s{byte}")));
    }
    assert_eq!(rig.write_blocks(Target::Head(disk), 0..BLOCKS, 4, 8), 0);
    let clone = clone_of(&mut rig, snapshots[1], "vm");
    assert_eq!(rig.write_blocks(Target::Head(clone), 0..BLOCKS / 2, 5, 8), 0);
    let own = rig.snapshot(clone, "own");
    assert_eq!(rig.write_blocks(Target::Head(clone), 0..BLOCKS, 6, 8), 0);
    (rig, disk, clone, [snapshots[0], snapshots[1], snapshots[2], own])
}

#[test]
fn what_a_clone_starts_from_becomes_its_own() {
    for reopens in [false, true] {
        let (mut rig, disk, clone, [one, two, three, _]) = golden();
        assert_eq!((owned(&rig, disk), owned(&rig, clone)), (4 * BLOCKS, BLOCKS * 3 / 2));
        let planned = rig.command(CatalogCommand::Promote { volume: clone, dry_run: true }).unwrap();
        assert_eq!(origin(&rig, clone).as_deref(), Some("golden@s2"), "a dry run changes nothing");
        assert_eq!(rig.command(CatalogCommand::Promote { volume: clone, dry_run: false }).unwrap(), planned);
        let Reply::Promotion(plan) = planned else { panic!("{planned:?}") };
        assert_eq!((plan.from, plan.snapshots, plan.bytes), (disk, vec![one, two], 2 * BLOCKS * 4096));
        if reopens {
            rig.reopen();
        }
        rig.audit();
        assert_eq!((origin(&rig, clone), origin(&rig, disk).as_deref()), (None, Some("vm@s2")));
        assert_eq!((owned(&rig, disk), owned(&rig, clone)), (2 * BLOCKS, BLOCKS * 7 / 2));
        let mut names: Vec<_> = rig.engine.snapshots().into_iter().map(|s| (s.volume, s.name, s.clones)).collect();
        names.sort();
        let of = |volume, name: &str, clones| (volume, name.to_owned(), clones);
        assert_eq!(names, [of(disk, "s3", 0), of(clone, "own", 0), of(clone, "s1", 0), of(clone, "s2", 1)]);
        for (target, byte) in [(Target::Head(disk), 4), (Target::Head(clone), 6), (Target::Snapshot(one), 1), (Target::Snapshot(three), 3)]
        {
            reads(&mut rig, target, byte);
        }
        // the promoted volume cannot be destroyed while the other one starts from its snapshot
        assert!(matches!(rig.command(CatalogCommand::DestroyVolume { volume: clone }), Err(CommandError::Busy(_))));
        rig.command(CatalogCommand::DestroyVolume { volume: disk }).unwrap();
        rig.settle();
        rig.audit();
        assert_eq!(owned(&rig, clone), BLOCKS * 7 / 2);
        rig.command(CatalogCommand::DestroySnapshots { snapshots: vec![one, two] }).unwrap();
        rig.settle();
        rig.command(Command::Checkpoint).unwrap();
        rig.audit();
        // left are "own", with half of the blocks of the golden image, and the head
        assert_eq!(owned(&rig, clone), BLOCKS * 2);
        reads(&mut rig, Target::Head(clone), 6);
    }
}

#[test]
fn a_volume_that_is_promoted_back_is_as_before() {
    let (mut rig, disk, clone, [one, two, ..]) = golden();
    assert_eq!(promote(&mut rig, clone), [one, two]);
    assert_eq!(promote(&mut rig, disk), [one, two]);
    rig.audit();
    assert_eq!((origin(&rig, clone).as_deref(), origin(&rig, disk)), (Some("golden@s2"), None));
    assert_eq!((owned(&rig, disk), owned(&rig, clone)), (4 * BLOCKS, BLOCKS * 3 / 2));
    let error = rig.command(CatalogCommand::Promote { volume: disk, dry_run: false }).unwrap_err();
    assert!(error.to_string().contains("not a clone"), "{error}");
}

#[test]
fn snapshots_of_one_name_are_refused_by_name() {
    let (mut rig, _, clone, [_, two, _, own]) = golden();
    rig.command(CatalogCommand::RenameSnapshot { snapshot: own, name: "s1".into() }).unwrap();
    for dry_run in [true, false] {
        let error = rig.command(CatalogCommand::Promote { volume: clone, dry_run }).unwrap_err();
        assert_eq!(error.to_string(), "both volumes have snapshots named 's1'; rename one of each first");
    }
    rig.command(CatalogCommand::RenameSnapshot { snapshot: own, name: "s3".into() }).unwrap();
    assert_eq!(promote(&mut rig, clone).last(), Some(&two), "one that stays may have the name");
}

#[test]
fn holds_move_with_their_snapshots() {
    let (mut rig, disk, clone, [one, ..]) = golden();
    rig.command(CatalogCommand::Hold { snapshot: one, tag: Some("audit".into()), until: None, locked: false }).unwrap();
    promote(&mut rig, clone);
    rig.reopen();
    assert!(matches!(rig.command(CatalogCommand::DestroySnapshots { snapshots: vec![one] }), Err(CommandError::Busy(_))));
    rig.command(CatalogCommand::DestroyVolume { volume: disk }).unwrap();
    let error = rig.command(CatalogCommand::DestroyVolume { volume: clone }).unwrap_err();
    assert!(error.to_string().contains("held"), "{error}");
}

/// The origin was rolled back: its head starts from another snapshot than the clone.
#[test]
fn the_line_before_a_rollback_moves_as_far_as_the_clone_starts_from_it() {
    let (mut rig, disk, clone, [one, two, three, _]) = golden();
    rig.command(CatalogCommand::Rollback { snapshot: one, keep_as: "kept".into() }).unwrap();
    let late = clone_of(&mut rig, three, "late");
    assert_eq!(promote(&mut rig, clone), [one, two]);
    rig.audit();
    assert_eq!((origin(&rig, disk).as_deref(), origin(&rig, late).as_deref()), (Some("vm@s1"), Some("golden@s3")));
    // s3 starts from s2 and the head from s1: both snapshots have the volume as a clone
    let clones = |rig: &Rig, id| rig.engine.snapshots().into_iter().find(|s| s.id == id).unwrap().clones;
    assert_eq!((clones(&rig, one), clones(&rig, two), clones(&rig, three)), (1, 1, 1));
    assert_eq!(promote(&mut rig, late), [three]);
    rig.reopen();
    rig.audit();
    assert_eq!((origin(&rig, disk).as_deref(), origin(&rig, late).as_deref()), (Some("vm@s1"), Some("vm@s2")));
    reads(&mut rig, Target::Head(disk), 1);
    for volume in [disk, late, clone] {
        if rig.command(CatalogCommand::DestroyVolume { volume }).is_err() {
            panic!("{volume} cannot be destroyed: {:?}", rig.engine.snapshots());
        }
        rig.settle();
        rig.audit();
    }
    rig.command(Command::Checkpoint).unwrap();
    rig.command(Command::Checkpoint).unwrap();
    assert!(rig.engine.pool().unwrap().allocated < 1 << 20);
}

#[test]
fn a_reservation_that_would_not_fit_any_more_is_refused() {
    let (mut rig, disk, clone, _) = golden();
    let mut options = VolumeOptions { reservation: 16 << 20, ..VolumeOptions::default() };
    while rig.command(CatalogCommand::SetOptions { volume: disk, options }).is_ok() {
        options.reservation += 1 << 20;
    }
    assert_eq!(rig.command(CatalogCommand::Promote { volume: clone, dry_run: false }), Err(CommandError::NoSpace));
    let options = VolumeOptions { reservation: 8 << 20, ..options };
    rig.command(CatalogCommand::SetOptions { volume: disk, options }).unwrap();
    promote(&mut rig, clone);
    rig.audit();
    rig.reopen();
    rig.audit();
}

/// The daemon dies at each turn of a promotion: it has happened or not, and later operations work.
#[test]
fn a_crash_leaves_all_of_it_or_nothing() {
    for turns in 0..12 {
        let (mut rig, disk, clone, [_, two, ..]) = golden();
        rig.start(Command::Catalog(CatalogCommand::Promote { volume: clone, dry_run: false }));
        for _ in 0..turns {
            rig.step();
        }
        rig.reopen();
        rig.audit();
        let promoted = origin(&rig, clone).is_none();
        assert_eq!(origin(&rig, disk).is_some(), promoted);
        assert!(promoted || turns < 11, "it is durable by then");
        let (first, other) = if promoted { (disk, clone) } else { (clone, disk) };
        rig.command(CatalogCommand::DestroyVolume { volume: first }).unwrap();
        rig.settle();
        rig.audit();
        reads(&mut rig, Target::Snapshot(two), 2);
        rig.command(CatalogCommand::DestroyVolume { volume: other }).unwrap();
        rig.settle();
        rig.audit();
    }
}

/// After promotions each of two volumes has a snapshot that the other one starts from: neither can
/// be destroyed before the snapshots that nothing starts from.
#[test]
fn two_volumes_that_start_from_each_other_go_one_snapshot_after_the_other() {
    let mut rig = Rig::new(&[96], Layout::Linear);
    let disk = rig.volume("disk", BLOCKS * 4096, Compression::Off);
    let mut snapshots = Vec::new();
    for byte in 1..=3 {
        assert_eq!(rig.write_blocks(Target::Head(disk), 0..BLOCKS, byte, 8), 0);
        snapshots.push(rig.snapshot(disk, &format!("s{byte}")));
    }
    let [one, two, three] = snapshots[..] else { panic!() };
    let Reply::Snapshots(kept) = rig.command(CatalogCommand::Rollback { snapshot: one, keep_as: "kept".into() }).unwrap() else { panic!() };
    let clone = clone_of(&mut rig, two, "vm");
    assert_eq!(promote(&mut rig, clone), [one, two]);
    assert_eq!(promote(&mut rig, disk), [one]);
    rig.reopen();
    rig.audit();
    let refused = |rig: &mut Rig| [disk, clone].map(|volume| rig.command(CatalogCommand::DestroyVolume { volume }).is_err());
    assert_eq!(refused(&mut rig), [true, true]);
    for (target, byte) in [(Target::Head(disk), 1), (Target::Head(clone), 2), (Target::Snapshot(two), 2), (Target::Snapshot(three), 3)] {
        reads(&mut rig, target, byte);
    }
    rig.command(CatalogCommand::DestroySnapshots { snapshots: vec![three, kept[0]] }).unwrap();
    rig.settle();
    rig.audit();
    for volume in [clone, disk] {
        rig.command(CatalogCommand::DestroyVolume { volume }).unwrap();
        rig.settle();
        rig.audit();
    }
    (0..2).for_each(|_| assert_eq!(rig.command(Command::Checkpoint), Ok(Reply::Done)));
    assert!(rig.engine.pool().unwrap().allocated < 1 << 20);
}
