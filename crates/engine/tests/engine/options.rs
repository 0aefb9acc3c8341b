//! Options of volumes: reservations, limits, and placement of data.

use millpond_block::{DiskError, Op};
use millpond_engine::{
    CatalogCommand, Command, CommandError, Compression, Layout, QueryCommand, Rate, Reply, SegmentPlace, Target, VolumeId, VolumeOptions,
};

use crate::harness::Harness;

const MIB: u64 = 1 << 20;

fn reserve(harness: &mut Harness, volume: VolumeId, reservation: u64) -> Result<Reply, CommandError> {
    harness.command(CatalogCommand::SetOptions { volume, options: VolumeOptions { reservation, ..VolumeOptions::default() } })
}

fn places(harness: &mut Harness, target: Target) -> Vec<SegmentPlace> {
    match harness.command(QueryCommand::Places { target }).unwrap() {
        Reply::Places(places) => places,
        other => panic!("{other:?}"),
    }
}

/// Writes mebibytes of a volume until one is refused; returns the number written.
fn fill(harness: &mut Harness, volume: VolumeId, from: u64, most: u64) -> u64 {
    let target = Target::Head(volume);
    for at in 0..most {
        match harness.request(target, Op::Write, (from + at) * MIB, MIB, &vec![3; MIB as usize]) {
            Ok(_) => {}
            Err(DiskError::NoSpace) => return at,
            Err(other) => panic!("{other:?}"),
        }
    }
    most
}

#[test]
fn options_survive_the_log_and_checkpoints() {
    let mut harness = Harness::new(&[32], Layout::Linear);
    let (a, b) = (harness.volume("a", 4 * MIB, Compression::Off), harness.volume("b", 4 * MIB, Compression::Off));
    let mut options = VolumeOptions { reservation: MIB, ..VolumeOptions::default() };
    options.limits.iops = Rate { sustained: 1000, burst: 2000, seconds: 3 };
    harness.command(CatalogCommand::SetOptions { volume: a, options }).unwrap();
    let of = |harness: &Harness, id| harness.engine.options().get(&id).copied().unwrap_or_default();
    for _ in 0..2 {
        harness.reopen();
        assert_eq!((of(&harness, a), of(&harness, b)), (options, VolumeOptions::default()));
        assert_eq!(harness.engine.find_volume("a").unwrap().options, options);
        harness.command(Command::Checkpoint).unwrap();
    }
    harness.command(CatalogCommand::DestroyVolume { volume: a }).unwrap();
    harness.reopen();
    assert!(harness.engine.options().is_empty());
    harness.audit();
}

#[test]
fn what_is_reserved_is_there_whatever_others_take() {
    let mut harness = Harness::new(&[64], Layout::Linear);
    let (mine, other) = (harness.volume("mine", 64 * MIB, Compression::Off), harness.volume("other", 128 * MIB, Compression::Off));
    assert_eq!(fill(&mut harness, mine, 0, 2), 2);
    reserve(&mut harness, mine, 16 * MIB).unwrap();
    assert!(matches!(reserve(&mut harness, other, 60 * MIB), Err(CommandError::NoSpace)));
    let taken = fill(&mut harness, other, 0, 128);
    assert!(taken > 16 && taken < 64, "{taken}");
    assert_eq!(fill(&mut harness, mine, 2, 14), 14, "what was reserved");
    assert_eq!(fill(&mut harness, other, taken, 8), 0);
    assert_eq!(fill(&mut harness, mine, 0, 16), 16, "what is there can be overwritten");
    assert!(fill(&mut harness, mine, 16, 48) <= 5, "and no more");
    // after the discard, other volumes may use the space
    harness.request(Target::Head(mine), Op::Discard, 0, 64 * MIB, &[]).unwrap();
    assert!(fill(&mut harness, other, taken, 8) <= 1, "it is reserved still");
    reserve(&mut harness, mine, 0).unwrap();
    let more = (0..50)
        .map(|_| {
            harness.settle();
            fill(&mut harness, other, taken, 8)
        })
        .max();
    assert_eq!(more, Some(8));
    harness.audit();
}

/// The audit counts the units of volumes with reservations again (INV-CAT-3).
#[test]
fn what_reserved_volumes_own_is_known_through_clones_rollbacks_and_destroys() {
    let mut harness = Harness::new(&[96], Layout::Linear);
    let (a, b) = (harness.volume("a", 16 * MIB, Compression::Off), harness.volume("b", 16 * MIB, Compression::Off));
    assert_eq!(fill(&mut harness, a, 0, 4), 4);
    reserve(&mut harness, a, 8 * MIB).unwrap();
    reserve(&mut harness, b, 6 * MIB).unwrap();
    let first = harness.snapshot(a, "first");
    assert_eq!(fill(&mut harness, a, 2, 4), 4);
    let second = harness.snapshot(a, "second");
    harness.command(CatalogCommand::Clone { snapshot: second, name: "clone".into() }).unwrap();
    let clone = harness.engine.find_volume("clone").unwrap().id;
    reserve(&mut harness, clone, 5 * MIB).unwrap();
    assert_eq!(fill(&mut harness, clone, 0, 3), 3);
    assert_eq!(fill(&mut harness, b, 0, 2), 2);
    harness.audit();
    harness.command(CatalogCommand::Rollback { snapshot: first, keep_as: "before".into() }).unwrap();
    assert_eq!(fill(&mut harness, a, 0, 3), 3);
    harness.request(Target::Head(b), Op::Discard, MIB, MIB, &[]).unwrap();
    harness.audit();
    harness.reopen();
    harness.audit();
    // the lineage of the clone continues the lineage that it started from
    harness.command(CatalogCommand::DestroyVolume { volume: clone }).unwrap();
    harness.command(CatalogCommand::DestroySnapshots { snapshots: vec![second] }).unwrap();
    harness.settle();
    harness.audit();
    harness.command(CatalogCommand::DestroyVolume { volume: a }).unwrap();
    harness.settle();
    harness.audit();
    harness.reopen();
    harness.audit();
}

#[test]
fn places_name_the_segments_that_hold_the_data() {
    let mut harness = Harness::new(&[48, 48], Layout::Stripe { width: 2, unit: 65536 });
    let volume = harness.volume("disk", 32 * MIB, Compression::Off);
    let head = Target::Head(volume);
    assert_eq!(places(&mut harness, head), []);
    assert_eq!(fill(&mut harness, volume, 0, 20), 20);
    harness.request(head, Op::Discard, 0, 4 * MIB, &[]).unwrap();
    let found = places(&mut harness, head);
    assert_eq!(found.iter().map(|place| place.live_bytes).sum::<u64>(), 16 * MIB);
    for place in &found {
        let members: Vec<u16> = place.extents.iter().map(|extent| extent.member.0).collect();
        assert_eq!(members, [0, 1], "a stripe of two");
        assert!(place.extents.iter().all(|extent| extent.live_bytes <= extent.range.length), "{place:?}");
        let live: u64 = place.extents.iter().map(|extent| extent.live_bytes).sum();
        assert!(live > 0 && live == place.live_bytes, "{place:?}");
    }
    let each = |member: usize| found.iter().filter_map(|place| place.extents.get(member)).map(|extent| extent.live_bytes).sum::<u64>();
    assert!(each(0).abs_diff(each(1)) <= MIB, "{} and {} on a stripe of two", each(0), each(1));
    let snapshot = harness.snapshot(volume, "s");
    harness.request(head, Op::Discard, 0, 32 * MIB, &[]).unwrap();
    assert_eq!(places(&mut harness, head), []);
    assert_eq!(places(&mut harness, Target::Snapshot(snapshot)).iter().map(|place| place.live_bytes).sum::<u64>(), 16 * MIB);
    harness.reopen();
    assert_eq!(places(&mut harness, Target::Snapshot(snapshot)).iter().map(|place| place.live_bytes).sum::<u64>(), 16 * MIB);
    assert!(matches!(harness.command(QueryCommand::Places { target: Target::Head(VolumeId(99)) }), Err(CommandError::NotFound(_))));
}
