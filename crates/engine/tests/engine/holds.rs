//! Holds with tags: counted separately, durable, refused where necessary.

use millpond_engine::{CatalogCommand, Command, CommandError, Compression, Invalid, Layout, Reply, SnapshotId, Time, VolumeId};

use crate::rig::Rig;

fn held() -> (Rig, VolumeId, SnapshotId) {
    let mut rig = Rig::new(&[16], Layout::Linear);
    let volume = rig.volume("disk", 1 << 20, Compression::Off);
    let snapshot = rig.snapshot(volume, "one");
    (rig, volume, snapshot)
}

fn hold(rig: &mut Rig, snapshot: SnapshotId, tag: Option<&str>, until: Option<u64>, locked: bool) -> Result<Reply, CommandError> {
    rig.command(CatalogCommand::Hold { snapshot, tag: tag.map(str::to_owned), until: until.map(Time), locked })
}

fn release(rig: &mut Rig, snapshot: SnapshotId, tag: Option<&str>) -> Result<Reply, CommandError> {
    rig.command(CatalogCommand::Release { snapshot, tag: tag.map(str::to_owned) })
}

/// Tags of the only snapshot; `-` for a hold without a tag.
fn tags(rig: &Rig) -> String {
    let snapshots = rig.engine.snapshots();
    let holds = &snapshots.first().expect("a snapshot").hold_list;
    assert_eq!(snapshots[0].holds as usize, holds.len());
    holds.iter().map(|hold| hold.tag.clone().unwrap_or_else(|| "-".into())).collect::<Vec<_>>().join(" ")
}

#[test]
fn holds_with_tags_outlive_crashes_and_checkpoints() {
    let (mut rig, _, snapshot) = held();
    hold(&mut rig, snapshot, Some("audit"), None, false).unwrap();
    let since = rig.engine.snapshots()[0].hold_list[0].since.expect("known");
    hold(&mut rig, snapshot, None, None, false).unwrap();
    hold(&mut rig, snapshot, Some("backup"), Some(1 << 50), true).unwrap();
    // from the log, from the checkpoint, and from both
    for round in 0..3 {
        rig.reopen();
        assert_eq!(tags(&rig), "- audit backup", "round {round}");
        let list = rig.engine.snapshots().remove(0).hold_list;
        assert_eq!((list[1].since, list[1].until, list[1].locked), (Some(since), None, false));
        assert_eq!((list[2].until, list[2].locked), (Some(Time(1 << 50)), true));
        rig.audit();
        rig.command(Command::Checkpoint).unwrap();
    }
    release(&mut rig, snapshot, Some("audit")).unwrap();
    rig.reopen();
    assert_eq!(tags(&rig), "- backup");
    rig.command(Command::Checkpoint).unwrap();
    rig.reopen();
    assert_eq!(tags(&rig), "- backup");
    rig.audit();
}

#[test]
fn a_tag_is_one_hold_and_who_releases_has_to_name_it() {
    let (mut rig, volume, snapshot) = held();
    hold(&mut rig, snapshot, Some("a"), None, false).unwrap();
    assert!(matches!(hold(&mut rig, snapshot, Some("a"), None, false), Err(CommandError::Invalid(Invalid::TagTaken(tag))) if tag == "a"));
    assert!(release(&mut rig, snapshot, None).is_err(), "it has no hold without a tag");
    assert!(release(&mut rig, snapshot, Some("b")).is_err());
    hold(&mut rig, snapshot, None, None, false).unwrap();
    hold(&mut rig, snapshot, None, None, false).unwrap();
    release(&mut rig, snapshot, None).unwrap();
    assert_eq!(tags(&rig), "- a");
    release(&mut rig, snapshot, None).unwrap();
    assert!(matches!(rig.command(CatalogCommand::DestroySnapshots { snapshots: vec![snapshot] }), Err(CommandError::Busy(_))));
    assert!(matches!(rig.command(CatalogCommand::DestroyVolume { volume }), Err(CommandError::Busy(_))));
    release(&mut rig, snapshot, Some("a")).unwrap();
    rig.command(CatalogCommand::DestroySnapshots { snapshots: vec![snapshot] }).unwrap();
}

#[test]
fn tags_are_names_and_not_endless() {
    let (mut rig, _, snapshot) = held();
    for tag in ["", "a b", "@", &"x".repeat(65)] {
        assert!(matches!(hold(&mut rig, snapshot, Some(tag), None, false), Err(CommandError::Invalid(_))), "'{tag}'");
    }
    hold(&mut rig, snapshot, Some(&"x".repeat(64)), None, false).unwrap();
    for n in 1..256 {
        hold(&mut rig, snapshot, Some(&format!("tag{n}")), None, false).unwrap();
    }
    assert!(hold(&mut rig, snapshot, Some("more"), None, false).is_err());
    assert!(hold(&mut rig, snapshot, None, None, false).is_err());
    rig.command(Command::Checkpoint).unwrap();
    rig.reopen();
    assert_eq!(rig.engine.snapshots()[0].holds, 256);
    rig.audit();
}

#[test]
fn a_lock_ends_at_its_time_and_not_before() {
    let (mut rig, volume, snapshot) = held();
    assert!(hold(&mut rig, snapshot, Some("lock"), None, true).is_err(), "a lock without an end");
    assert!(hold(&mut rig, snapshot, None, Some(1 << 50), true).is_err(), "a lock without a tag");
    let until = rig.now + 100_000;
    hold(&mut rig, snapshot, Some("lock"), Some(until), true).unwrap();
    assert!(release(&mut rig, snapshot, Some("lock")).is_err());
    rig.command(Command::Checkpoint).unwrap();
    rig.reopen();
    assert!(release(&mut rig, snapshot, Some("lock")).is_err());
    assert!(matches!(rig.command(CatalogCommand::DestroyVolume { volume }), Err(CommandError::Busy(_))));
    rig.now = until;
    rig.settle();
    assert_eq!(tags(&rig), "", "it has ended");
    // the tag can be used again, and replaces the hold that ended
    hold(&mut rig, snapshot, Some("lock"), None, false).unwrap();
    assert_eq!(tags(&rig), "lock");
    release(&mut rig, snapshot, Some("lock")).unwrap();
    rig.reopen();
    assert_eq!(tags(&rig), "");
    rig.command(CatalogCommand::DestroyVolume { volume }).unwrap();
}
