use millpond_block::{DeviceError, DeviceSlot, DiskError, MemberId};
use millpond_engine::{Damage, OpenWrite, Unlabelled, Whole};
use millpond_format::{FormatError, Lsn, PoolId};

use super::*;

fn missing(need: Missing) -> OpenErrorKind {
    OpenErrorKind::MemberMissing { pool: "tank".to_owned(), members: vec![MemberId(1), MemberId(2)], of: 4, need }
}

fn claimed(why: ClaimRefusal) -> OpenErrorKind {
    OpenErrorKind::Claimed { pool: "tank".to_owned(), why }
}

#[test]
fn a_missing_device_leads_to_the_option_that_does_without_it() {
    assert_eq!(open(&missing(Missing::Needed).into()), "member 1, 2 of the 4 devices of pool 'tank' is missing; name it too");
    assert_eq!(
        open(&missing(Missing::Special).into()),
        "member 1, 2 of the 4 devices of pool 'tank' is missing, a special one; name it too, or do without it for good with --rebuild, which \
         says with -n what would be lost"
    );
    assert_eq!(
        open(&missing(Missing::Redundant).into()),
        "member 1, 2 of the 4 devices of pool 'tank' is missing; name it too, or import without it with --degraded"
    );
}

#[test]
fn a_claim_leads_to_its_host_or_to_force() {
    let in_use = claimed(ClaimRefusal::InUse { host: "a".to_owned(), heard_millis: 1_000 });
    assert_eq!(
        open(&in_use.into()),
        "pool 'tank' is not taken: it is in use on host 'a', which was heard of 1 s ago; export it there (--force takes it away from under \
         its guests)"
    );
    let silent = claimed(ClaimRefusal::NotClosed { host: "a".to_owned(), heard_millis: 7_200_000, watched_millis: 10_000 });
    assert_eq!(
        open(&silent.into()),
        "pool 'tank' is not taken: host 'a' has not closed it: it was last heard of 2 h ago, and has been silent for 10 s; export the pool \
         there, or take it over with --force when that host is off or has lost the devices for good"
    );
    let newer = FormatError::Version(9);
    for why in [ClaimRefusal::Newer(newer), ClaimRefusal::Importing, ClaimRefusal::UsedMeanwhile, ClaimRefusal::Unreadable] {
        assert_eq!(next_step(&claimed(why)), None);
    }
}

#[test]
fn a_refused_checkpoint_leads_to_others() {
    let next = |kind| next_step(&kind).expect("a next step");
    assert!(next(OpenErrorKind::LogReused { end: Lsn(1), needs: Lsn(2) }).ends_with("with --to, see 'millpond pool checkpoints'"));
    assert_eq!(next(OpenErrorKind::CheckpointAbsent { id: 7 }), "see 'millpond pool checkpoints'");
    let whole = Whole::No("gone".to_owned());
    assert_eq!(
        open(&OpenErrorKind::CheckpointNotWhole { id: 7, whole }.into()),
        "checkpoint 7 is not whole: gone; choose another, see 'millpond pool checkpoints'"
    );
    let stuck = OpenErrorKind::NoOlderWhole(Box::new(OpenErrorKind::LogGone(Lsn(5))));
    let stuck = OpenError { went_back: true, ..stuck.into() };
    assert!(
        open(&stuck)
            .ends_with("trusted, and no older checkpoint is whole; choose an older checkpoint with --to, see 'millpond pool checkpoints'")
    );
    // an older state does not help against an error that is not damage
    let other = OpenError { went_back: true, ..OpenErrorKind::OutOfOrder("no rings").into() };
    assert!(!open(&other).contains("--to"), "{}", open(&other));
}

#[test]
fn devices_that_did_not_answer_are_named_once() {
    let lacking = OpenError { unanswered: vec![DeviceSlot(3)], ..missing(Missing::Needed).into() };
    assert!(open(&lacking).ends_with("is missing; name it too; no answer from device 3"));
    let both = vec![DeviceSlot(0), DeviceSlot(1)];
    let silent = OpenError { unanswered: both.clone(), ..OpenErrorKind::NoAnswer { devices: both }.into() };
    assert_eq!(open(&silent), "no answer from devices 0, 1");
}

#[test]
fn only_a_damaged_state_leads_back() {
    let failed = DeviceError::Failed(5);
    assert_eq!(way_back(&OpenErrorKind::NoRoot), Some("--rebuild"));
    for damaged in [
        OpenErrorKind::RootDamaged { generation: 3, member: MemberId(0), device: Some(DeviceSlot(0)), slot: 3 },
        OpenErrorKind::LogUnreadable(failed),
        OpenErrorKind::BatchUnreadable(Lsn(1)),
        OpenErrorKind::LogGone(Lsn(1)),
        OpenErrorKind::ObjectUnreadable(failed),
        Damage::ObjectChecksum.into(),
        Damage::BatchVolume(Lsn(1)).into(),
    ] {
        assert_eq!(way_back(&damaged), Some("--rewind"), "{damaged}");
        assert_eq!(next_step(&damaged), None, "{damaged}");
    }
    let named = |why| OpenErrorKind::NoLabel { device: DeviceSlot(0), why };
    let (pool, wanted) = ("a".to_owned(), "b".to_owned());
    for other in [
        OpenErrorKind::TooSmall,
        named(Unlabelled::Unreadable(failed)),
        named(Unlabelled::NotAPool(FormatError::Magic)),
        OpenErrorKind::OtherPool { device: DeviceSlot(1), pool: pool.clone(), id: PoolId([1; 16]), wanted, wanted_id: PoolId([2; 16]) },
        OpenErrorKind::OnlyCache,
        OpenErrorKind::Contradicts { device: DeviceSlot(1) },
        OpenErrorKind::WrittenApart { device: DeviceSlot(1) },
        OpenErrorKind::Removed { device: DeviceSlot(1), pool: pool.clone() },
        OpenErrorKind::Duplicate { device: DeviceSlot(1) },
        OpenErrorKind::LabelsOlder { pool: pool.clone() },
        OpenErrorKind::Indispensable,
        OpenErrorKind::CutOff { pool, member: MemberId(1) },
        OpenErrorKind::NoRoom { write: OpenWrite::Root, devices: vec![DeviceSlot(1)] },
        OpenErrorKind::NotWritten { write: OpenWrite::Claim, error: failed },
        OpenErrorKind::NewerRoot { member: MemberId(1), device: None, slot: 2, error: FormatError::Version(9) },
        OpenErrorKind::NoCheckpointFound,
        OpenErrorKind::NoCheckpoint,
        OpenErrorKind::NoneWhole { count: 2, newest: Whole::Yes },
        OpenErrorKind::OutOfOrder("no rings"),
    ] {
        assert_eq!(way_back(&other), None, "{other}");
        assert_eq!(next_step(&other), None, "{other}");
    }
}

#[test]
fn a_busy_pool_leads_to_the_command_that_shows_or_ends_the_cause() {
    let busy = |why| command(&CommandError::Busy(why));
    for (why, message) in [
        (Busy::ReadOnly, "the pool is imported read-only; export it and import it without --readonly to change it"),
        (Busy::Removing, "a device is being removed; wait for 'pool jobs', or stop that with 'pool remove --stop'"),
        (Busy::RemovingBeforeRebalance, "a device is being removed; rebalance when 'pool jobs' says that it is out"),
        (Busy::DevicesChanging, "devices are just being changed; try again when 'pool jobs' is empty"),
        (Busy::Scrubbing, "a scrub is running; see 'pool jobs', or stop it with 'pool scrub --stop'"),
        (Busy::Rebalancing, "a rebalance is running; see 'pool jobs', or stop it with 'pool rebalance --stop'"),
        (Busy::HasCache, "the pool has a cache, which may hold copies; take it out with 'pool remove', and add it again after the wipe"),
        (Busy::DeviceMissing, "a device is missing or being filled, and could not be wiped; see 'pool status'"),
        (
            Busy::Untrimmed(DiskError::Io),
            "what lies beyond the volume's end cannot be discarded (input/output error), so it cannot grow; see 'pool status -v'",
        ),
        (Busy::Opening, "the pool is still being opened; try again when it is online"),
        (Busy::Closing, "the pool is being closed"),
        (Busy::Relabeling, "devices are just being changed; try again"),
        (Busy::LabelUnwritten(MemberId(2)), "a copy of the label of member 2 cannot be written; replace it with 'pool replace'"),
        (Busy::Replacing, "this device is being replaced already"),
        (
            Busy::SnapshotNames { names: vec!["a".to_owned(), "b".to_owned()], more: true },
            "both volumes have snapshots named 'a', 'b' and others; rename one of each first",
        ),
        (
            Busy::HasClones { snapshot: "a".to_owned(), hidden: true },
            "snapshot 'a', which was destroyed, has clones; destroy or promote them first",
        ),
        (Busy::Held { snapshot: "a".to_owned() }, "snapshot 'a' is held; release it first"),
    ] {
        assert_eq!(busy(why), message);
    }
}

#[test]
fn a_layout_where_there_is_none_leads_to_the_word_before_the_devices() {
    let invalid = |why| command(&CommandError::Invalid(why));
    assert_eq!(invalid(Invalid::CacheLayout), "a cache has no layout; name its devices after 'cache'");
    assert_eq!(invalid(Invalid::SpareLayout), "spares have no layout; name them after 'spare'");
    assert_eq!(invalid(Invalid::VolumeSize(1)), "1 bytes is not a volume size; use a multiple of 4096 up to 64 PiB");
}

#[test]
fn a_command_to_a_pool_that_was_not_opened_says_the_next_step() {
    let refused = CommandError::Faulted(Fault::Open(Box::new(missing(Missing::Needed).into())));
    assert_eq!(
        command(&refused),
        "the pool is stopped: member 1, 2 of the 4 devices of pool 'tank' is missing; name it too; remove the cause, then export and \
         import it again"
    );
}

#[test]
fn a_device_that_cannot_be_read_is_checked_before_the_pool_goes_back() {
    let read = OpenErrorKind::NoRoot;
    assert_eq!(
        open(&read.clone().into()),
        "no root of the pool is readable; its devices were overwritten, or 'pool create' did not finish"
    );
    for kind in [read, OpenErrorKind::LogGone(Lsn(5))] {
        let unread = open(&OpenError { unreadable: true, ..kind.clone().into() });
        assert_eq!(unread, format!("{kind}; a device could not be read: check the devices and their cables, and import again"));
    }
    let silent = OpenError { unanswered: vec![DeviceSlot(1)], ..OpenErrorKind::NoRoot.into() };
    assert_eq!(open(&silent), "no root of the pool is readable; no answer from device 1");
    // an error that says so itself
    let label = OpenErrorKind::NoLabel { device: DeviceSlot(0), why: Unlabelled::Unreadable(DeviceError::Failed(5)) };
    assert!(!open(&OpenError { unreadable: true, ..label.into() }).contains("import again"));
}

#[test]
fn a_command_that_could_not_read_does_not_advise_an_import() {
    assert_eq!(
        command(&CommandError::NodeUnreadable),
        "a map node cannot be read on any device; check the devices with 'pool status', then run 'pool scrub'"
    );
    assert_eq!(command(&CommandError::Request(DiskError::Io)), "the command could not be carried out: input/output error");
}

#[test]
fn after_a_takeover_no_import_is_advised() {
    let taken = Fault::TakenOver { by: "host2".to_owned() };
    assert_eq!(command(&CommandError::Faulted(taken.clone())), format!("the pool is stopped: {taken}"));
    assert!(restart(&Fault::NoLogSegment, "tank").unwrap().ends_with("'millpond pool import tank'"));
    assert_eq!(restart(&Fault::TakenOver { by: "host2".to_owned() }, "tank"), None);
}
