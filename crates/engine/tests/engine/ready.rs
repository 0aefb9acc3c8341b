//! Free segments with space on the host: allocated first, kept while the log needs them, discarded
//! after a while, prepared ahead.

use millpond_block::{DeviceSlot, DeviceSpace, Op};
use millpond_engine::{CatalogCommand, Command, Compression, Discard, Layout, ReadySpace, SpaceInfo, Target, Tuning, VolumeId};

use crate::rig::Rig;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 4 * MIB;
const STEP: u64 = 64 << 10;

fn tuning(ready: ReadySpace) -> Tuning {
    Tuning { map_memory: 4 << 20, checkpoint_log_bytes: 2 << 20, rewind_millis: 60_000, ready, ..Tuning::default() }
}

fn bounds() -> ReadySpace {
    ReadySpace { least: 4 * MIB, most: 32 * MIB, resting: MIB, ..ReadySpace::default() }
}

/// A pool of `mib` MiB with a volume.
fn rig(mib: usize, tuning: Tuning) -> (Rig, VolumeId) {
    let mut rig = Rig::with(&[mib], Layout::Linear, tuning);
    let volume = rig.volume("disk", SIZE, Compression::Off);
    (rig, volume)
}

/// Overwrites the whole volume `times` times; returns the last byte.
fn overwrite(rig: &mut Rig, volume: VolumeId, times: u8) -> u8 {
    for pass in 1..=times {
        for at in (0..SIZE).step_by(STEP as usize) {
            rig.request(Target::Head(volume), Op::Write, at, STEP, &[pass; STEP as usize]).unwrap();
        }
    }
    times
}

fn expect(rig: &mut Rig, volume: VolumeId, byte: u8) {
    for at in (0..SIZE).step_by(STEP as usize) {
        assert!(rig.request(Target::Head(volume), Op::Read, at, STEP, &[]).unwrap() == [byte; STEP as usize], "at {at}");
    }
}

fn space(rig: &Rig) -> SpaceInfo {
    rig.engine.pool().unwrap().space
}

/// Lets `millis` milliseconds pass, in the steps of a caller with nothing to do.
fn pause(rig: &mut Rig, millis: u64) {
    let end = rig.now + millis;
    while rig.now < end {
        rig.now += 500;
        rig.settle();
    }
}

#[test]
fn a_rewritten_volume_stays_in_the_same_segments() {
    let (mut rig, volume) = rig(256, tuning(bounds()));
    let touched = |rig: &Rig| rig.media[0].chunks_exact(4096).filter(|page| page.iter().any(|byte| *byte != 0)).count() as u64 * 4096;
    let mut byte = 0;
    for _ in 0..5 {
        byte = overwrite(&mut rig, volume, 20);
        pause(&mut rig, 3_000);
    }
    expect(&mut rig, volume, byte);
    assert_eq!(rig.discarded, 0, "a pause of three seconds gives nothing back");
    // 400 MiB were written; touched are live data, two checkpoints in retention, segments kept
    // beyond them, and the ready target
    assert!(touched(&rig) < 32 * MIB, "{} MiB were touched; {:?}", touched(&rig) / MIB, space(&rig));
    assert!(space(&rig).holes > 200 * MIB, "{:?}", space(&rig));
    rig.audit();
}

#[test]
fn a_small_pool_does_not_spread_over_its_holes_between_checkpoints() {
    let usual = Tuning::default().checkpoint_log_bytes;
    let (mut rig, volume) = rig(2048, Tuning { checkpoint_log_bytes: usual, ..tuning(bounds()) });
    // as many bytes as the pool has
    overwrite(&mut rig, volume, 250);
    overwrite(&mut rig, volume, 250);
    let space = space(&rig);
    assert!(space.resting <= 3 * 256 * MIB && space.holes > 800 * MIB, "{space:?}");
}

#[test]
fn what_rests_is_bounded_by_what_is_in_use() {
    let millis = Tuning { rewind_millis: u64::MAX, ..tuning(bounds()) };
    let (mut rig, volume) = rig(256, millis.clone());
    overwrite(&mut rig, volume, 40);
    // segments of the last checkpoints stay in retention in any case
    assert!(space(&rig).resting < 16 * MIB, "{:?}", space(&rig));
    let (mut rig, volume) = self::rig(256, Tuning { ready: ReadySpace { resting: 1 << 30, ..bounds() }, ..millis });
    overwrite(&mut rig, volume, 40);
    let resting = space(&rig).resting;
    assert!((24 * MIB..40 * MIB).contains(&resting), "an eighth of the pool, where more may rest: {:?}", space(&rig));
}

#[test]
fn surplus_goes_back_when_there_was_some_for_long() {
    let (mut rig, volume) = rig(256, tuning(bounds()));
    let other = rig.volume("other", 16 * SIZE, Compression::Off);
    for at in (0..16 * SIZE).step_by(STEP as usize) {
        rig.request(Target::Head(other), Op::Write, at, STEP, &[7; STEP as usize]).unwrap();
    }
    let byte = overwrite(&mut rig, volume, 2);
    rig.command(CatalogCommand::DestroyVolume { volume: other }).unwrap();
    pause(&mut rig, 120_000);
    let before = space(&rig);
    assert!(before.ready > 48 * MIB && rig.discarded == 0, "{before:?}, {} given back", rig.discarded);
    // an idle pool waits a quarter as long, from a minute without requests on
    pause(&mut rig, 20_000);
    assert_eq!(rig.discarded, 0);
    pause(&mut rig, 160_000);
    let after = space(&rig);
    assert!(after.ready <= 5 * MIB && after.ready >= 4 * MIB, "{after:?}");
    assert!(rig.discarded > 40 * MIB, "{}", rig.discarded);
    expect(&mut rig, volume, byte);
    rig.audit();
}

#[test]
fn a_busy_pool_gives_back_a_segment_a_second() {
    let (mut rig, volume) = rig(256, tuning(ReadySpace { surplus_millis: 2_000, ..bounds() }));
    let other = rig.volume("other", 16 * SIZE, Compression::Off);
    for at in (0..16 * SIZE).step_by(STEP as usize) {
        rig.request(Target::Head(other), Op::Write, at, STEP, &[7; STEP as usize]).unwrap();
    }
    rig.command(CatalogCommand::DestroyVolume { volume: other }).unwrap();
    let read = |rig: &mut Rig, seconds: u64| {
        for _ in 0..seconds * 10 {
            rig.now += 100;
            rig.request(Target::Head(volume), Op::Read, 0, 4096, &[]).unwrap();
        }
    };
    for _ in 0..4 {
        // emptied segments stay in retention until checkpoints without them are committed
        rig.request(Target::Head(volume), Op::Write, 0, 4096, &[1; 4096]).unwrap();
        rig.command(Command::Checkpoint).unwrap();
    }
    read(&mut rig, 70);
    let (before, extent) = (rig.discarded, 256 << 10);
    read(&mut rig, 10);
    let given = rig.discarded - before;
    assert!((5 * extent..=11 * extent).contains(&given), "{given} bytes in ten seconds");
}

#[test]
fn a_host_that_runs_full_gets_all_of_it_at_once() {
    let (mut rig, volume) = rig(256, Tuning { ready: ReadySpace { prepare: true, ..bounds() }, ..tuning(bounds()) });
    overwrite(&mut rig, volume, 20);
    pause(&mut rig, 70_000);
    let (before, zeroed) = (space(&rig), rig.zeroed);
    assert!(before.ready > 2 * MIB && rig.discarded == 0, "{before:?}");
    rig.engine.set_short(true);
    pause(&mut rig, 1_000);
    assert!(space(&rig).ready <= MIB, "{:?}", space(&rig));
    overwrite(&mut rig, volume, 1);
    assert_eq!(rig.zeroed, zeroed, "nothing is taken ahead");
    rig.engine.set_short(false);
    pause(&mut rig, 1_000);
    assert!(rig.zeroed > zeroed);
}

#[test]
fn nothing_goes_back_where_that_is_not_wanted() {
    let (mut rig, volume) = rig(256, Tuning { discard: Discard::Never, ..tuning(bounds()) });
    overwrite(&mut rig, volume, 20);
    pause(&mut rig, 1_000_000);
    assert_eq!(rig.discarded, 0);
    let (mut rig, volume) = self::rig(256, Tuning { discard: Discard::Now, ..tuning(bounds()) });
    overwrite(&mut rig, volume, 20);
    pause(&mut rig, 120_000);
    assert!(rig.discarded > 0 && space(&rig).ready == 0, "{:?}", space(&rig));
}

#[test]
fn holes_are_prepared_ahead_of_the_log() {
    let ready = ReadySpace { prepare: true, at_first: 16 * MIB, ..bounds() };
    let (mut rig, volume) = rig(256, tuning(ready));
    pause(&mut rig, 10_000);
    let (first, segment) = (rig.zeroed, MIB);
    assert!((15 * MIB..=16 * MIB + segment).contains(&first), "{first}: not a sixteenth of a new pool");
    let snapshots = 6;
    for nth in 0..snapshots {
        let before = space(&rig);
        assert!(before.ready >= before.wanted.min(4 * MIB) / 2, "snapshot {nth}: {before:?}");
        overwrite(&mut rig, volume, 1);
        rig.snapshot(volume, &format!("s{nth}"));
        pause(&mut rig, 1_000);
    }
    assert!(rig.zeroed > first);
    expect(&mut rig, volume, 1);
    rig.audit();
    let mut rig = Rig::import_with(rig.media, tuning(ReadySpace::default()), rig.now + 1).unwrap();
    expect(&mut rig, volume, 1);
}

#[test]
fn a_device_that_refuses_zeros_is_left_alone_for_a_while() {
    let ready = ReadySpace { prepare: true, least: 4 * MIB, ..bounds() };
    let (mut rig, volume) = rig(256, tuning(ready));
    let zeroed = rig.zeroed;
    rig.refuse_zeros = true;
    overwrite(&mut rig, volume, 1);
    pause(&mut rig, 30_000);
    let asked = rig.refused_zeros;
    assert!((1..=4).contains(&asked), "asked {asked} times in half a minute");
    rig.refuse_zeros = false;
    pause(&mut rig, 30_000);
    assert!(rig.zeroed > zeroed);
    expect(&mut rig, volume, 1);
}

#[test]
fn an_import_knows_what_the_host_has() {
    let (mut rig, volume) = rig(256, tuning(bounds()));
    let byte = overwrite(&mut rig, volume, 3);
    rig.command(Command::Close).unwrap();
    let media = rig.media.clone();
    let import = |space: Option<DeviceSpace>, ready: ReadySpace| {
        let mut rig = Rig::begin_import(media.clone(), tuning(ready), rig.now + 1);
        space.into_iter().for_each(|space| rig.engine.set_space(DeviceSlot(0), space));
        rig.settle();
        rig
    };
    // without information from the host, free segments count as holes, except those in retention,
    // which had data
    let unknown = space(&import(None, bounds()));
    assert!(unknown.ready < 8 * MIB && unknown.holes > 200 * MIB, "{unknown:?}");
    let half = DeviceSpace { kept: false, data: std::iter::once(0..128 * MIB).collect() };
    let ready = space(&import(Some(half.clone()), bounds())).ready;
    assert!((100 * MIB..128 * MIB).contains(&ready), "{ready}");
    // a file that was allocated in full is never punched
    let full = DeviceSpace { kept: true, data: std::iter::once(0..256 * MIB).collect() };
    let mut rig = import(Some(full), ReadySpace { prepare: true, ..bounds() });
    assert_eq!(space(&rig).holes, 0);
    rig.now += 1_000;
    pause(&mut rig, 1_500_000);
    assert_eq!((rig.discarded, rig.zeroed), (0, 0));
    expect(&mut rig, volume, byte);
}
