//! Wiping: data that nothing refers to is removed from all devices.

use millpond_block::Op;
use millpond_engine::{
    CatalogCommand, Class, Command, CommandError, Compression, Discard, GroupSpec, JobCommand, JobKind, Layout, Reply, SnapshotId, Target,
    Tuning, VolumeId, Wipe, WipePlan,
};

use crate::harness::Harness;

const SIZE: u64 = 12 << 20;
const STEP: u64 = 64 << 10;

/// Data with a mark in every sector.
fn pattern(mark: u8, at: u64) -> Vec<u8> {
    let sector = |n: u64| {
        let mut bytes = [mark; 512];
        bytes[..8].copy_from_slice(&(at + n * 512).to_le_bytes());
        bytes
    };
    (0..STEP / 512).flat_map(sector).collect()
}

/// Writes every `nth` step of a volume.
fn write(harness: &mut Harness, volume: VolumeId, mark: u8, nth: usize) {
    for at in (0..SIZE).step_by(STEP as usize * nth) {
        harness.request(Target::Head(volume), Op::Write, at, STEP, &pattern(mark, at)).unwrap();
    }
}

fn check(harness: &mut Harness, volume: VolumeId, mark: u8) {
    for at in (0..SIZE).step_by(STEP as usize) {
        let read = harness.request(Target::Head(volume), Op::Read, at, STEP, &[]);
        assert!(read.as_ref().is_ok_and(|read| *read == pattern(mark, at)), "at {at}: {:?}", read.map(|_| "other bytes"));
    }
}

/// Number of sectors with a mark on all devices.
fn sectors(harness: &Harness, mark: u8) -> usize {
    let marked = |sector: &&[u8]| sector[8..] == [mark; 504];
    harness.media.iter().map(|media| media.chunks_exact(512).filter(marked).count()).sum()
}

fn snapshot(harness: &mut Harness, volume: VolumeId, name: &str) -> SnapshotId {
    let targets = vec![(volume, name.to_owned())];
    match harness.command(CatalogCommand::Snapshot { targets, description: String::new(), expires: None, lock_millis: None }) {
        Ok(Reply::Snapshots(ids)) => ids[0],
        other => panic!("{other:?}"),
    }
}

fn wipe(harness: &mut Harness, how: Wipe) -> WipePlan {
    match harness.command(JobCommand::Wipe { how, dry_run: false }) {
        Ok(Reply::Wipe(plan)) => plan,
        other => panic!("{other:?}"),
    }
}

fn is_wiping(harness: &Harness) -> bool {
    harness.engine.pool().unwrap().jobs.iter().any(|job| job.kind == JobKind::Wipe)
}

/// Runs turns until the wipe has ended.
fn finish(harness: &mut Harness) {
    for _ in 0..2_000 {
        harness.settle();
        harness.now += 100;
        if !is_wiping(harness) {
            return harness.settle();
        }
    }
    panic!("it does not end: {:?} {}", harness.engine.pool(), harness.engine.space_report());
}

/// A volume that stays, and one to be destroyed whose blocks were overwritten, shared with
/// snapshots and moved by the cleaner.
fn aged(harness: &mut Harness) -> (VolumeId, VolumeId) {
    let (kept, doomed) = (harness.volume("kept", SIZE, Compression::Off), harness.volume("doomed", SIZE, Compression::Off));
    for round in 0..4 {
        write(harness, kept, 0x11, 1);
        write(harness, doomed, 0xd0 + round, 1 + usize::from(round));
        if round == 1 {
            snapshot(harness, doomed, "old");
        }
        harness.command(Command::Checkpoint).unwrap();
    }
    (kept, doomed)
}

fn layouts() -> Vec<(Vec<GroupSpec>, Vec<usize>)> {
    let special = GroupSpec { class: Class::Special, layout: Layout::Linear, devices: None };
    vec![
        (vec![GroupSpec::data(Layout::Linear)], vec![96]),
        (vec![GroupSpec::data(Layout::Stripe { width: 2, unit: 16384 })], vec![48, 48]),
        (vec![GroupSpec::data(Layout::Mirror { copies: 2 })], vec![96, 96]),
        (vec![GroupSpec::data(Layout::Parity { width: 3, parity: 1, unit: 16384 })], vec![96, 96, 96]),
        (vec![GroupSpec { devices: Some(1), ..GroupSpec::data(Layout::Linear) }, special], vec![96, 24]),
    ]
}

#[test]
fn nothing_of_what_was_destroyed_is_on_any_device() {
    for (groups, sizes) in layouts() {
        for how in [Wipe::Zero, Wipe::Discard] {
            let tuning = Tuning { map_memory: 4 << 20, checkpoint_log_bytes: 2 << 20, discard: Discard::Never, ..Tuning::default() };
            let mut harness = Harness::with_groups(&sizes, groups.clone(), tuning);
            let (kept, doomed) = aged(&mut harness);
            harness.command(CatalogCommand::DestroyVolume { volume: doomed }).unwrap();
            harness.settle();
            let left: usize = (0xd0..0xd4).map(|mark| sectors(&harness, mark)).sum();
            assert!(left > 0, "{groups:?}: nothing to wipe");
            let plan = wipe(&mut harness, how);
            assert!(plan.erased > 0, "{plan:?}");
            finish(&mut harness);
            let left: Vec<usize> = (0xd0..0xd4).map(|mark| sectors(&harness, mark)).collect();
            assert_eq!(left, [0; 4], "{groups:?} {how:?}");
            check(&mut harness, kept, 0x11);
            harness.audit();
            harness.reopen();
            check(&mut harness, kept, 0x11);
            harness.audit();
        }
    }
}

#[test]
fn what_a_snapshot_or_clone_shares_stays() {
    let mut harness = Harness::new(&[96], Layout::Linear);
    let volume = harness.volume("disk0", SIZE, Compression::Off);
    write(&mut harness, volume, 0xa0, 1);
    let first = snapshot(&mut harness, volume, "first");
    write(&mut harness, volume, 0xa1, 2);
    let second = snapshot(&mut harness, volume, "second");
    write(&mut harness, volume, 0xa2, 1);
    harness.command(CatalogCommand::DestroySnapshots { snapshots: vec![second] }).unwrap();
    wipe(&mut harness, Wipe::Zero);
    finish(&mut harness);
    assert_eq!(sectors(&harness, 0xa1), 0, "only the destroyed snapshot had them");
    for at in (0..SIZE).step_by(STEP as usize) {
        let read = harness.request(Target::Snapshot(first), Op::Read, at, STEP, &[]).unwrap();
        assert!(read == pattern(0xa0, at), "at {at}");
    }
    check(&mut harness, volume, 0xa2);
    harness.audit();
    // segments that were wiped and not used since are not wiped again
    match harness.command(JobCommand::Wipe { how: Wipe::Zero, dry_run: true }) {
        Ok(Reply::Wipe(plan)) => assert!(plan.erased < SIZE, "{plan:?}"),
        other => panic!("{other:?}"),
    }
    assert!(!is_wiping(&harness), "a dry run began something");
}

#[test]
fn a_crash_and_guests_in_between_change_nothing_of_the_promise() {
    for crash_at in [5, 60, 400] {
        let mut harness = Harness::new(&[96], Layout::Linear);
        let (kept, doomed) = aged(&mut harness);
        harness.command(CatalogCommand::DestroyVolume { volume: doomed }).unwrap();
        // slow, so that the crash interrupts it
        harness.command(JobCommand::SetJobRate { rate: 256 << 10 }).unwrap();
        harness.start(Command::Job(JobCommand::Wipe { how: Wipe::Zero, dry_run: false }));
        let mut answered = false;
        for _ in 0..crash_at {
            harness.now += 20;
            harness.turn();
            while let Some(io) = harness.engine.pop_io() {
                harness.perform(io);
            }
            answered |= harness.engine.pop_reply().is_some();
        }
        assert!(answered, "after {crash_at} turns");
        write(&mut harness, kept, 0x22, 1);
        harness.reopen();
        assert!(is_wiping(&harness), "forgotten after {crash_at} turns");
        write(&mut harness, kept, 0x33, 1);
        harness.command(JobCommand::SetJobRate { rate: 0 }).unwrap();
        finish(&mut harness);
        let left: Vec<usize> = (0xd0..0xd4).map(|mark| sectors(&harness, mark)).collect();
        assert_eq!(left, [0; 4], "crash after {crash_at} turns");
        check(&mut harness, kept, 0x33);
        harness.audit();
    }
}

#[test]
fn a_wipe_ends_when_its_zeroes_are_flushed() {
    for (groups, sizes) in layouts() {
        let tuning = Tuning { map_memory: 4 << 20, checkpoint_log_bytes: 2 << 20, discard: Discard::Never, ..Tuning::default() };
        let mut harness = Harness::with_groups(&sizes, groups.clone(), tuning);
        let (_, doomed) = aged(&mut harness);
        harness.command(CatalogCommand::DestroyVolume { volume: doomed }).unwrap();
        harness.start(Command::Job(JobCommand::Wipe { how: Wipe::Zero, dry_run: false }));
        let (mut zeroed, mut began) = (0, false);
        while !began || is_wiping(&harness) {
            harness.now += 5;
            harness.turn();
            while let Some(io) = harness.engine.pop_io() {
                harness.perform(io);
            }
            zeroed += harness.unflushed_zeroes.iter().flatten().count();
            began |= harness.engine.pop_reply().is_some();
        }
        assert!(zeroed > 0, "{groups:?}");
        let left: Vec<_> = harness.unflushed_zeroes.iter().flatten().collect();
        assert!(left.is_empty(), "{groups:?}: a power cut brings back what was at {left:?}");
    }
}

#[test]
fn a_wipe_can_be_stopped_and_needs_all_devices() {
    let mut harness = Harness::new(&[96, 96], Layout::Mirror { copies: 2 });
    let (kept, doomed) = aged(&mut harness);
    assert!(matches!(harness.command(JobCommand::StopWipe), Err(CommandError::NotFound(_))));
    harness.command(CatalogCommand::DestroyVolume { volume: doomed }).unwrap();
    harness.start(Command::Job(JobCommand::Wipe { how: Wipe::Zero, dry_run: false }));
    for _ in 0..30 {
        harness.turn();
        while let Some(io) = harness.engine.pop_io() {
            harness.perform(io);
        }
    }
    assert!(matches!(harness.engine.pop_reply(), Some((_, Ok(Reply::Wipe(_))))));
    harness.command(JobCommand::StopWipe).unwrap();
    assert!(!is_wiping(&harness));
    check(&mut harness, kept, 0x11);
    harness.audit();
    harness.reopen();
    assert!(!is_wiping(&harness));
    harness.dead.push(1);
    write(&mut harness, kept, 0x44, 1);
    harness.command(Command::Checkpoint).unwrap();
    assert!(matches!(harness.command(JobCommand::Wipe { how: Wipe::Zero, dry_run: false }), Err(CommandError::Busy(_))));
    check(&mut harness, kept, 0x44);
}

#[test]
fn guests_get_all_the_space_there_is() {
    let mut harness = Harness::new(&[96], Layout::Linear);
    let (kept, doomed) = aged(&mut harness);
    harness.command(CatalogCommand::DestroyVolume { volume: doomed }).unwrap();
    harness.reopen();
    // at the low rate it would take hours
    harness.command(JobCommand::SetJobRate { rate: 64 << 10 }).unwrap();
    wipe(&mut harness, Wipe::Zero);
    let big = harness.volume("big", 64 << 20, Compression::Off);
    for at in (0..60 << 20).step_by(STEP as usize) {
        harness.request(Target::Head(big), Op::Write, at, STEP, &pattern(0x55, at)).unwrap();
        harness.now += 5;
    }
    assert!(is_wiping(&harness));
    check(&mut harness, kept, 0x11);
    harness.audit();
}
