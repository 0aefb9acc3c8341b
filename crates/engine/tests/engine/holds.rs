//! Holds with tags: counted separately, durable, refused where necessary.

use millpond_engine::{CatalogCommand, Command, CommandError, Compression, Invalid, Layout, Reply, SnapshotId, Time, VolumeId};

use crate::harness::Harness;

fn held() -> (Harness, VolumeId, SnapshotId) {
    let mut harness = Harness::new(&[16], Layout::Linear);
    let volume = harness.volume("disk", 1 << 20, Compression::Off);
    let snapshot = harness.snapshot(volume, "one");
    (harness, volume, snapshot)
}

fn hold(harness: &mut Harness, snapshot: SnapshotId, tag: Option<&str>, until: Option<u64>, locked: bool) -> Result<Reply, CommandError> {
    harness.command(CatalogCommand::Hold { snapshot, tag: tag.map(str::to_owned), until: until.map(Time), locked })
}

fn release(harness: &mut Harness, snapshot: SnapshotId, tag: Option<&str>) -> Result<Reply, CommandError> {
    harness.command(CatalogCommand::Release { snapshot, tag: tag.map(str::to_owned) })
}

/// Tags of the only snapshot; `-` for a hold without a tag.
fn tags(harness: &Harness) -> String {
    let snapshots = harness.engine.snapshots();
    let holds = &snapshots.first().expect("a snapshot").hold_list;
    assert_eq!(snapshots[0].holds as usize, holds.len());
    holds.iter().map(|hold| hold.tag.clone().unwrap_or_else(|| "-".into())).collect::<Vec<_>>().join(" ")
}

#[test]
fn holds_with_tags_outlive_crashes_and_checkpoints() {
    let (mut harness, _, snapshot) = held();
    hold(&mut harness, snapshot, Some("audit"), None, false).unwrap();
    let since = harness.engine.snapshots()[0].hold_list[0].since.expect("known");
    hold(&mut harness, snapshot, None, None, false).unwrap();
    hold(&mut harness, snapshot, Some("backup"), Some(1 << 50), true).unwrap();
    // from the log, from the checkpoint, and from both
    for round in 0..3 {
        harness.reopen();
        assert_eq!(tags(&harness), "- audit backup", "round {round}");
        let list = harness.engine.snapshots().remove(0).hold_list;
        assert_eq!((list[1].since, list[1].until, list[1].locked), (Some(since), None, false));
        assert_eq!((list[2].until, list[2].locked), (Some(Time(1 << 50)), true));
        harness.audit();
        harness.command(Command::Checkpoint).unwrap();
    }
    release(&mut harness, snapshot, Some("audit")).unwrap();
    harness.reopen();
    assert_eq!(tags(&harness), "- backup");
    harness.command(Command::Checkpoint).unwrap();
    harness.reopen();
    assert_eq!(tags(&harness), "- backup");
    harness.audit();
}

#[test]
fn a_tag_is_one_hold_and_who_releases_has_to_name_it() {
    let (mut harness, volume, snapshot) = held();
    hold(&mut harness, snapshot, Some("a"), None, false).unwrap();
    assert!(
        matches!(hold(&mut harness, snapshot, Some("a"), None, false), Err(CommandError::Invalid(Invalid::TagTaken(tag))) if tag == "a")
    );
    assert!(release(&mut harness, snapshot, None).is_err(), "it has no hold without a tag");
    assert!(release(&mut harness, snapshot, Some("b")).is_err());
    hold(&mut harness, snapshot, None, None, false).unwrap();
    hold(&mut harness, snapshot, None, None, false).unwrap();
    release(&mut harness, snapshot, None).unwrap();
    assert_eq!(tags(&harness), "- a");
    release(&mut harness, snapshot, None).unwrap();
    assert!(matches!(harness.command(CatalogCommand::DestroySnapshots { snapshots: vec![snapshot] }), Err(CommandError::Busy(_))));
    assert!(matches!(harness.command(CatalogCommand::DestroyVolume { volume }), Err(CommandError::Busy(_))));
    release(&mut harness, snapshot, Some("a")).unwrap();
    harness.command(CatalogCommand::DestroySnapshots { snapshots: vec![snapshot] }).unwrap();
}

#[test]
fn tags_are_names_and_not_endless() {
    let (mut harness, _, snapshot) = held();
    for tag in ["", "a b", "@", &"x".repeat(65)] {
        assert!(matches!(hold(&mut harness, snapshot, Some(tag), None, false), Err(CommandError::Invalid(_))), "'{tag}'");
    }
    hold(&mut harness, snapshot, Some(&"x".repeat(64)), None, false).unwrap();
    for n in 1..256 {
        hold(&mut harness, snapshot, Some(&format!("tag{n}")), None, false).unwrap();
    }
    assert!(hold(&mut harness, snapshot, Some("more"), None, false).is_err());
    assert!(hold(&mut harness, snapshot, None, None, false).is_err());
    harness.command(Command::Checkpoint).unwrap();
    harness.reopen();
    assert_eq!(harness.engine.snapshots()[0].holds, 256);
    harness.audit();
}

#[test]
fn a_lock_ends_at_its_time_and_not_before() {
    let (mut harness, volume, snapshot) = held();
    assert!(hold(&mut harness, snapshot, Some("lock"), None, true).is_err(), "a lock without an end");
    assert!(hold(&mut harness, snapshot, None, Some(1 << 50), true).is_err(), "a lock without a tag");
    let until = harness.now + 100_000;
    hold(&mut harness, snapshot, Some("lock"), Some(until), true).unwrap();
    assert!(release(&mut harness, snapshot, Some("lock")).is_err());
    harness.command(Command::Checkpoint).unwrap();
    harness.reopen();
    assert!(release(&mut harness, snapshot, Some("lock")).is_err());
    assert!(matches!(harness.command(CatalogCommand::DestroyVolume { volume }), Err(CommandError::Busy(_))));
    (harness.now, harness.host) = (until, harness.host + 100_000);
    harness.settle();
    assert_eq!(tags(&harness), "", "it has ended");
    // the tag can be used again, and replaces the hold that ended
    hold(&mut harness, snapshot, Some("lock"), None, false).unwrap();
    assert_eq!(tags(&harness), "lock");
    release(&mut harness, snapshot, Some("lock")).unwrap();
    harness.reopen();
    assert_eq!(tags(&harness), "");
    harness.command(CatalogCommand::DestroyVolume { volume }).unwrap();
}

const DAY: u64 = 86_400_000;

/// Takes a snapshot that is locked for a time in milliseconds.
fn lock(harness: &mut Harness, volume: VolumeId, name: &str, millis: u64) -> Result<SnapshotId, CommandError> {
    let (targets, description) = (vec![(volume, name.to_owned())], String::new());
    match harness.command(CatalogCommand::Snapshot { targets, description, expires: None, lock_millis: Some(millis) })? {
        Reply::Snapshots(ids) => Ok(ids[0]),
        other => panic!("{other:?}"),
    }
}

fn destroy(harness: &mut Harness, snapshot: SnapshotId) -> Result<Reply, CommandError> {
    harness.command(CatalogCommand::DestroySnapshots { snapshots: vec![snapshot] })
}

#[test]
fn no_clock_that_is_set_ends_a_lock_early() {
    // INV-HOLD-1
    let (mut harness, volume, _) = held();
    let locked = lock(&mut harness, volume, "safe", 7 * DAY).unwrap();
    assert!(matches!(lock(&mut harness, volume, "endless", u64::MAX / 2), Err(CommandError::Invalid(Invalid::LockTooLong { .. }))));
    // years forward, while the pool is in service and while it is not
    for _ in 0..2 {
        harness.now += 3000 * DAY;
        harness.settle();
        assert!(matches!(destroy(&mut harness, locked), Err(CommandError::Busy(_))));
        assert!(matches!(release(&mut harness, locked, Some("lock")), Err(CommandError::Invalid(Invalid::Locked(_)))));
        assert!(hold(&mut harness, locked, Some("lock"), None, false).is_err(), "another hold would replace it");
        let until = harness.engine.snapshots()[1].hold_list[0].until.expect("an end").0;
        assert!(until > harness.now + 6 * DAY, "the end that is shown moves with the clock");
        harness.command(Command::Close).unwrap();
        harness.reopen();
    }
    // back to the beginning: nothing of the lock is lost, and nothing is added to it
    harness.now = 1000;
    harness.reopen();
    harness.host += 6 * DAY;
    harness.settle();
    assert!(destroy(&mut harness, locked).is_err());
    harness.host += DAY;
    harness.settle();
    destroy(&mut harness, locked).unwrap();
    harness.audit();
}

#[test]
fn time_in_service_adds_up_over_imports_and_a_crash_loses_little_of_it() {
    let (mut harness, volume, _) = held();
    let (first, second) = (lock(&mut harness, volume, "first", DAY).unwrap(), lock(&mut harness, volume, "second", 2 * DAY).unwrap());
    // a day in four parts: each ends with a close
    for _ in 0..4 {
        assert!(destroy(&mut harness, first).is_err());
        harness.host += DAY / 4;
        harness.settle();
        harness.command(Command::Close).unwrap();
        harness.reopen();
    }
    // the milliseconds between a record and the end of the service do not count
    harness.host += 1000;
    harness.settle();
    destroy(&mut harness, first).unwrap();
    // and each with a crash: the time since the last record is lost, which is never in favour of
    // those who want to destroy it
    for _ in 0..4 {
        assert!(destroy(&mut harness, second).is_err());
        harness.host += DAY / 4;
        harness.now += DAY / 4;
        harness.settle();
        harness.host += 500_000;
        harness.settle();
        harness.reopen();
    }
    harness.host += 1000;
    harness.settle();
    destroy(&mut harness, second).unwrap();
    harness.audit();
}

#[test]
fn a_group_is_locked_with_the_command_that_takes_it() {
    let (mut harness, volume, _) = held();
    let other = harness.volume("other", 1 << 20, Compression::Off);
    let targets = vec![(volume, "g".to_owned()), (other, "g".to_owned())];
    let command = CatalogCommand::Snapshot { targets, description: "policy p".into(), expires: None, lock_millis: Some(DAY) };
    let Reply::Snapshots(ids) = harness.command(command).unwrap() else { panic!("snapshots") };
    // from the log, and from the checkpoint
    for _ in 0..2 {
        harness.reopen();
        for id in &ids {
            assert!(matches!(destroy(&mut harness, *id), Err(CommandError::Busy(_))));
            assert!(release(&mut harness, *id, Some("lock")).is_err());
        }
        assert!(harness.command(CatalogCommand::DestroyVolume { volume: other }).is_err());
        harness.command(Command::Checkpoint).unwrap();
    }
    harness.audit();
}
