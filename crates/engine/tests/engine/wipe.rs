//! Wiping: data that nothing refers to is removed from all devices.

use millpond_block::Op;
use millpond_engine::{
    CatalogCommand, Class, Command, CommandError, Compression, Discard, GroupSpec, JobCommand, JobKind, Layout, Reply, SnapshotId, Target,
    Tuning, VolumeId, Wipe, WipePlan,
};

use crate::rig::Rig;

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
fn write(rig: &mut Rig, volume: VolumeId, mark: u8, nth: usize) {
    for at in (0..SIZE).step_by(STEP as usize * nth) {
        rig.request(Target::Head(volume), Op::Write, at, STEP, &pattern(mark, at)).unwrap();
    }
}

fn check(rig: &mut Rig, volume: VolumeId, mark: u8) {
    for at in (0..SIZE).step_by(STEP as usize) {
        let read = rig.request(Target::Head(volume), Op::Read, at, STEP, &[]);
        assert!(read.as_ref().is_ok_and(|read| *read == pattern(mark, at)), "at {at}: {:?}", read.map(|_| "other bytes"));
    }
}

/// Number of sectors with a mark on all devices.
fn sectors(rig: &Rig, mark: u8) -> usize {
    let marked = |sector: &&[u8]| sector[8..] == [mark; 504];
    rig.media.iter().map(|media| media.chunks_exact(512).filter(marked).count()).sum()
}

fn snapshot(rig: &mut Rig, volume: VolumeId, name: &str) -> SnapshotId {
    let targets = vec![(volume, name.to_owned())];
    match rig.command(CatalogCommand::Snapshot { targets, description: String::new(), expires: None }) {
        Ok(Reply::Snapshots(ids)) => ids[0],
        other => panic!("{other:?}"),
    }
}

fn wipe(rig: &mut Rig, how: Wipe) -> WipePlan {
    match rig.command(JobCommand::Wipe { how, dry_run: false }) {
        Ok(Reply::Wipe(plan)) => plan,
        other => panic!("{other:?}"),
    }
}

fn is_wiping(rig: &Rig) -> bool {
    rig.engine.pool().unwrap().jobs.iter().any(|job| job.kind == JobKind::Wipe)
}

/// Runs turns until the wipe has ended.
fn finish(rig: &mut Rig) {
    for _ in 0..2_000 {
        rig.settle();
        rig.now += 100;
        if !is_wiping(rig) {
            return rig.settle();
        }
    }
    panic!("it does not end: {:?} {}", rig.engine.pool(), rig.engine.space_report());
}

/// A volume that stays, and one to be destroyed whose blocks were overwritten, shared with
/// snapshots and moved by the cleaner.
fn aged(rig: &mut Rig) -> (VolumeId, VolumeId) {
    let (kept, doomed) = (rig.volume("kept", SIZE, Compression::Off), rig.volume("doomed", SIZE, Compression::Off));
    for round in 0..4 {
        write(rig, kept, 0x11, 1);
        write(rig, doomed, 0xd0 + round, 1 + usize::from(round));
        if round == 1 {
            snapshot(rig, doomed, "old");
        }
        rig.command(Command::Checkpoint).unwrap();
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
            let mut rig = Rig::with_groups(&sizes, groups.clone(), tuning);
            let (kept, doomed) = aged(&mut rig);
            rig.command(CatalogCommand::DestroyVolume { volume: doomed }).unwrap();
            rig.settle();
            let left: usize = (0xd0..0xd4).map(|mark| sectors(&rig, mark)).sum();
            assert!(left > 0, "{groups:?}: nothing to wipe");
            let plan = wipe(&mut rig, how);
            assert!(plan.erased > 0, "{plan:?}");
            finish(&mut rig);
            let left: Vec<usize> = (0xd0..0xd4).map(|mark| sectors(&rig, mark)).collect();
            assert_eq!(left, [0; 4], "{groups:?} {how:?}");
            check(&mut rig, kept, 0x11);
            rig.audit();
            rig.reopen();
            check(&mut rig, kept, 0x11);
            rig.audit();
        }
    }
}

#[test]
fn what_a_snapshot_or_clone_shares_stays() {
    let mut rig = Rig::new(&[96], Layout::Linear);
    let volume = rig.volume("disk0", SIZE, Compression::Off);
    write(&mut rig, volume, 0xa0, 1);
    let first = snapshot(&mut rig, volume, "first");
    write(&mut rig, volume, 0xa1, 2);
    let second = snapshot(&mut rig, volume, "second");
    write(&mut rig, volume, 0xa2, 1);
    rig.command(CatalogCommand::DestroySnapshots { snapshots: vec![second] }).unwrap();
    wipe(&mut rig, Wipe::Zero);
    finish(&mut rig);
    assert_eq!(sectors(&rig, 0xa1), 0, "only the destroyed snapshot had them");
    for at in (0..SIZE).step_by(STEP as usize) {
        let read = rig.request(Target::Snapshot(first), Op::Read, at, STEP, &[]).unwrap();
        assert!(read == pattern(0xa0, at), "at {at}");
    }
    check(&mut rig, volume, 0xa2);
    rig.audit();
    // segments that were wiped and not used since are not wiped again
    match rig.command(JobCommand::Wipe { how: Wipe::Zero, dry_run: true }) {
        Ok(Reply::Wipe(plan)) => assert!(plan.erased < SIZE, "{plan:?}"),
        other => panic!("{other:?}"),
    }
    assert!(!is_wiping(&rig), "a dry run began something");
}

#[test]
fn a_crash_and_guests_in_between_change_nothing_of_the_promise() {
    for crash_at in [5, 60, 400] {
        let mut rig = Rig::new(&[96], Layout::Linear);
        let (kept, doomed) = aged(&mut rig);
        rig.command(CatalogCommand::DestroyVolume { volume: doomed }).unwrap();
        // slow, so that the crash interrupts it
        rig.command(JobCommand::SetJobRate { rate: 256 << 10 }).unwrap();
        rig.start(Command::Job(JobCommand::Wipe { how: Wipe::Zero, dry_run: false }));
        let mut answered = false;
        for _ in 0..crash_at {
            rig.now += 20;
            rig.turn();
            while let Some(io) = rig.engine.pop_io() {
                rig.perform(io);
            }
            answered |= rig.engine.pop_reply().is_some();
        }
        assert!(answered, "after {crash_at} turns");
        write(&mut rig, kept, 0x22, 1);
        rig.reopen();
        assert!(is_wiping(&rig), "forgotten after {crash_at} turns");
        write(&mut rig, kept, 0x33, 1);
        rig.command(JobCommand::SetJobRate { rate: 0 }).unwrap();
        finish(&mut rig);
        let left: Vec<usize> = (0xd0..0xd4).map(|mark| sectors(&rig, mark)).collect();
        assert_eq!(left, [0; 4], "crash after {crash_at} turns");
        check(&mut rig, kept, 0x33);
        rig.audit();
    }
}

#[test]
fn a_wipe_ends_when_its_zeroes_are_flushed() {
    for (groups, sizes) in layouts() {
        let tuning = Tuning { map_memory: 4 << 20, checkpoint_log_bytes: 2 << 20, discard: Discard::Never, ..Tuning::default() };
        let mut rig = Rig::with_groups(&sizes, groups.clone(), tuning);
        let (_, doomed) = aged(&mut rig);
        rig.command(CatalogCommand::DestroyVolume { volume: doomed }).unwrap();
        rig.start(Command::Job(JobCommand::Wipe { how: Wipe::Zero, dry_run: false }));
        let (mut zeroed, mut began) = (0, false);
        while !began || is_wiping(&rig) {
            rig.now += 5;
            rig.turn();
            while let Some(io) = rig.engine.pop_io() {
                rig.perform(io);
            }
            zeroed += rig.unflushed_zeroes.iter().flatten().count();
            began |= rig.engine.pop_reply().is_some();
        }
        assert!(zeroed > 0, "{groups:?}");
        let left: Vec<_> = rig.unflushed_zeroes.iter().flatten().collect();
        assert!(left.is_empty(), "{groups:?}: a power cut brings back what was at {left:?}");
    }
}

#[test]
fn a_wipe_can_be_stopped_and_needs_all_devices() {
    let mut rig = Rig::new(&[96, 96], Layout::Mirror { copies: 2 });
    let (kept, doomed) = aged(&mut rig);
    assert!(matches!(rig.command(JobCommand::StopWipe), Err(CommandError::NotFound(_))));
    rig.command(CatalogCommand::DestroyVolume { volume: doomed }).unwrap();
    rig.start(Command::Job(JobCommand::Wipe { how: Wipe::Zero, dry_run: false }));
    for _ in 0..30 {
        rig.turn();
        while let Some(io) = rig.engine.pop_io() {
            rig.perform(io);
        }
    }
    assert!(matches!(rig.engine.pop_reply(), Some((_, Ok(Reply::Wipe(_))))));
    rig.command(JobCommand::StopWipe).unwrap();
    assert!(!is_wiping(&rig));
    check(&mut rig, kept, 0x11);
    rig.audit();
    rig.reopen();
    assert!(!is_wiping(&rig));
    rig.dead.push(1);
    write(&mut rig, kept, 0x44, 1);
    rig.command(Command::Checkpoint).unwrap();
    assert!(matches!(rig.command(JobCommand::Wipe { how: Wipe::Zero, dry_run: false }), Err(CommandError::Busy(_))));
    check(&mut rig, kept, 0x44);
}

#[test]
fn guests_get_all_the_space_there_is() {
    let mut rig = Rig::new(&[96], Layout::Linear);
    let (kept, doomed) = aged(&mut rig);
    rig.command(CatalogCommand::DestroyVolume { volume: doomed }).unwrap();
    rig.reopen();
    // at the low rate it would take hours
    rig.command(JobCommand::SetJobRate { rate: 64 << 10 }).unwrap();
    wipe(&mut rig, Wipe::Zero);
    let big = rig.volume("big", 64 << 20, Compression::Off);
    for at in (0..60 << 20).step_by(STEP as usize) {
        rig.request(Target::Head(big), Op::Write, at, STEP, &pattern(0x55, at)).unwrap();
        rig.now += 5;
    }
    assert!(is_wiping(&rig));
    check(&mut rig, kept, 0x11);
    rig.audit();
}
