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
    harness.now = until;
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
