//! Free segments with space on the host: allocated first, kept while the log needs them, discarded
//! after a while, prepared ahead.

use millpond_block::{DeviceSlot, DeviceSpace, Op};
use millpond_engine::{
    CatalogCommand, Class, Command, Compression, Discard, GroupSpec, Layout, ReadySpace, SpaceInfo, Target, Tuning, VolumeId,
};

use crate::harness::Harness;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 4 * MIB;
const STEP: u64 = 64 << 10;

fn tuning(ready: ReadySpace) -> Tuning {
    Tuning { map_memory: 4 << 20, checkpoint_log_bytes: 2 << 20, rewind_millis: 60_000, ready, ..Tuning::default() }
}

fn bounds() -> ReadySpace {
    ReadySpace { least: 4 * MIB, most: 32 * MIB, retained: MIB, ..ReadySpace::default() }
}

/// A pool of `mib` MiB with a volume.
fn harness(mib: usize, tuning: Tuning) -> (Harness, VolumeId) {
    let mut harness = Harness::with(&[mib], Layout::Linear, tuning);
    let volume = harness.volume("disk", SIZE, Compression::Off);
    (harness, volume)
}

/// Overwrites the whole volume `times` times; returns the last byte.
fn overwrite(harness: &mut Harness, volume: VolumeId, times: u8) -> u8 {
    for pass in 1..=times {
        for at in (0..SIZE).step_by(STEP as usize) {
            harness.request(Target::Head(volume), Op::Write, at, STEP, &[pass; STEP as usize]).unwrap();
        }
    }
    times
}

fn expect(harness: &mut Harness, volume: VolumeId, byte: u8) {
    for at in (0..SIZE).step_by(STEP as usize) {
        assert!(harness.request(Target::Head(volume), Op::Read, at, STEP, &[]).unwrap() == [byte; STEP as usize], "at {at}");
    }
}

fn space(harness: &Harness) -> SpaceInfo {
    harness.engine.pool().unwrap().space
}

/// Bytes that were zeroed ahead of the log on all devices.
fn zeroed_bytes(harness: &Harness) -> u64 {
    harness.zeroed.iter().sum()
}

/// A pool with a log of `log` MiB beside data devices of 512 MiB, and a volume.
fn small_log(log: usize, tuning: Tuning) -> (Harness, VolumeId) {
    let group = |class| GroupSpec { class, layout: Layout::Linear, devices: Some(1) };
    let mut harness = Harness::with_groups(&[512, log], vec![group(Class::Data), group(Class::Log)], tuning);
    let volume = harness.volume("disk", SIZE, Compression::Off);
    (harness, volume)
}

/// Lets `millis` milliseconds pass, in the steps of a caller with nothing to do.
fn pause(harness: &mut Harness, millis: u64) {
    let end = harness.now + millis;
    while harness.now < end {
        harness.now += 500;
        harness.settle();
    }
}

#[test]
fn a_rewritten_volume_stays_in_the_same_segments() {
    let (mut harness, volume) = harness(256, tuning(bounds()));
    let touched =
        |harness: &Harness| harness.media[0].chunks_exact(4096).filter(|page| page.iter().any(|byte| *byte != 0)).count() as u64 * 4096;
    let mut byte = 0;
    for _ in 0..5 {
        byte = overwrite(&mut harness, volume, 20);
        pause(&mut harness, 3_000);
    }
    expect(&mut harness, volume, byte);
    assert_eq!(harness.discarded, 0, "a pause of three seconds gives nothing back");
    // 400 MiB were written; touched are live data, two checkpoints in retention, segments kept
    // beyond them, and the ready target
    assert!(touched(&harness) < 32 * MIB, "{} MiB were touched; {:?}", touched(&harness) / MIB, space(&harness));
    assert!(space(&harness).holes > 200 * MIB, "{:?}", space(&harness));
    harness.audit();
}

#[test]
fn a_small_pool_does_not_spread_over_its_holes_between_checkpoints() {
    let usual = Tuning::default().checkpoint_log_bytes;
    let (mut harness, volume) = harness(2048, Tuning { checkpoint_log_bytes: usual, ..tuning(bounds()) });
    // as many bytes as the pool has
    overwrite(&mut harness, volume, 250);
    overwrite(&mut harness, volume, 250);
    let space = space(&harness);
    assert!(space.retained <= 3 * 256 * MIB && space.holes > 800 * MIB, "{space:?}");
}

#[test]
fn what_rests_is_bounded_by_what_is_in_use() {
    let millis = Tuning { rewind_millis: u64::MAX, ..tuning(bounds()) };
    let (mut harness, volume) = harness(256, millis.clone());
    overwrite(&mut harness, volume, 40);
    // segments of the last checkpoints stay in retention in any case
    assert!(space(&harness).retained < 16 * MIB, "{:?}", space(&harness));
    let (mut harness, volume) = self::harness(256, Tuning { ready: ReadySpace { retained: 1 << 30, ..bounds() }, ..millis });
    overwrite(&mut harness, volume, 40);
    let retained = space(&harness).retained;
    assert!((24 * MIB..40 * MIB).contains(&retained), "an eighth of the pool, where more may rest: {:?}", space(&harness));
}

#[test]
fn surplus_goes_back_when_there_was_some_for_long() {
    let (mut harness, volume) = harness(256, tuning(bounds()));
    let other = harness.volume("other", 16 * SIZE, Compression::Off);
    for at in (0..16 * SIZE).step_by(STEP as usize) {
        harness.request(Target::Head(other), Op::Write, at, STEP, &[7; STEP as usize]).unwrap();
    }
    let byte = overwrite(&mut harness, volume, 2);
    harness.command(CatalogCommand::DestroyVolume { volume: other }).unwrap();
    pause(&mut harness, 120_000);
    let before = space(&harness);
    assert!(before.ready > 48 * MIB && harness.discarded == 0, "{before:?}, {} given back", harness.discarded);
    // an idle pool waits a quarter as long, from a minute without requests on
    pause(&mut harness, 20_000);
    assert_eq!(harness.discarded, 0);
    pause(&mut harness, 160_000);
    let after = space(&harness);
    assert!(after.ready <= 5 * MIB && after.ready >= 4 * MIB, "{after:?}");
    assert!(harness.discarded > 40 * MIB, "{}", harness.discarded);
    expect(&mut harness, volume, byte);
    harness.audit();
}

#[test]
fn a_busy_pool_gives_back_a_segment_a_second() {
    let (mut harness, volume) = harness(256, tuning(ReadySpace { surplus_millis: 2_000, ..bounds() }));
    let other = harness.volume("other", 16 * SIZE, Compression::Off);
    for at in (0..16 * SIZE).step_by(STEP as usize) {
        harness.request(Target::Head(other), Op::Write, at, STEP, &[7; STEP as usize]).unwrap();
    }
    harness.command(CatalogCommand::DestroyVolume { volume: other }).unwrap();
    let read = |harness: &mut Harness, seconds: u64| {
        for _ in 0..seconds * 10 {
            harness.now += 100;
            harness.request(Target::Head(volume), Op::Read, 0, 4096, &[]).unwrap();
        }
    };
    for _ in 0..4 {
        // emptied segments stay in retention until checkpoints without them are committed
        harness.request(Target::Head(volume), Op::Write, 0, 4096, &[1; 4096]).unwrap();
        harness.command(Command::Checkpoint).unwrap();
    }
    read(&mut harness, 70);
    let (before, extent) = (harness.discarded, 256 << 10);
    read(&mut harness, 10);
    let given = harness.discarded - before;
    assert!((5 * extent..=11 * extent).contains(&given), "{given} bytes in ten seconds");
}

#[test]
fn a_host_that_runs_full_gets_all_of_it_at_once() {
    let (mut harness, volume) = harness(256, Tuning { ready: ReadySpace { prepare: true, ..bounds() }, ..tuning(bounds()) });
    overwrite(&mut harness, volume, 20);
    pause(&mut harness, 70_000);
    let (before, zeroed) = (space(&harness), zeroed_bytes(&harness));
    assert!(before.ready > 2 * MIB && harness.discarded == 0, "{before:?}");
    harness.engine.set_short(true);
    pause(&mut harness, 1_000);
    assert!(space(&harness).ready <= MIB, "{:?}", space(&harness));
    overwrite(&mut harness, volume, 1);
    assert_eq!(zeroed_bytes(&harness), zeroed, "nothing is taken ahead");
    harness.engine.set_short(false);
    pause(&mut harness, 1_000);
    assert!(zeroed_bytes(&harness) > zeroed);
}

#[test]
fn nothing_goes_back_where_that_is_not_wanted() {
    let (mut harness, volume) = harness(256, Tuning { discard: Discard::Never, ..tuning(bounds()) });
    overwrite(&mut harness, volume, 20);
    pause(&mut harness, 1_000_000);
    assert_eq!(harness.discarded, 0);
    let (mut harness, volume) = self::harness(256, Tuning { discard: Discard::Now, ..tuning(bounds()) });
    overwrite(&mut harness, volume, 20);
    pause(&mut harness, 120_000);
    assert!(harness.discarded > 0 && space(&harness).ready == 0, "{:?}", space(&harness));
}

#[test]
fn holes_are_prepared_ahead_of_the_log() {
    let ready = ReadySpace { prepare: true, at_first: 16 * MIB, ..bounds() };
    let (mut harness, volume) = harness(256, tuning(ready));
    pause(&mut harness, 10_000);
    let (first, segment) = (zeroed_bytes(&harness), MIB);
    assert!((15 * MIB..=16 * MIB + segment).contains(&first), "{first}: not a sixteenth of a new pool");
    let snapshots = 6;
    for nth in 0..snapshots {
        let before = space(&harness);
        assert!(before.ready >= before.wanted.min(4 * MIB) / 2, "snapshot {nth}: {before:?}");
        overwrite(&mut harness, volume, 1);
        harness.snapshot(volume, &format!("s{nth}"));
        pause(&mut harness, 1_000);
    }
    assert!(zeroed_bytes(&harness) > first);
    expect(&mut harness, volume, 1);
    harness.audit();
    let mut harness = Harness::import_with(harness.media, tuning(ReadySpace::default()), harness.now + 1).unwrap();
    expect(&mut harness, volume, 1);
}

/// A log that grows by 12 MiB per second reaches holes: they are prepared for flushes that would wait for
/// them. A stream without flushes has the bandwidth of its device for itself.
#[test]
fn holes_are_prepared_for_flushes_and_not_for_streams() {
    let zeroed = [true, false].map(|flushes| {
        let ready = ReadySpace { prepare: true, at_first: 0, ..bounds() };
        let (mut harness, volume) = harness(256, Tuning { checkpoint_log_bytes: 1 << 30, ..tuning(ready) });
        overwrite(&mut harness, volume, 1);
        // each snapshot keeps what is overwritten
        for pass in 0..20 {
            harness.snapshot(volume, &format!("s{pass}"));
            for at in (0..SIZE).step_by(STEP as usize) {
                harness.now += 5;
                harness.request(Target::Head(volume), Op::Write, at, STEP, &[pass; STEP as usize]).unwrap();
                if flushes {
                    harness.request(Target::Head(volume), Op::Flush, 0, 0, &[]).unwrap();
                }
            }
        }
        harness.audit();
        zeroed_bytes(&harness)
    });
    assert!(zeroed[0] > 40 * MIB, "{zeroed:?} bytes for 80 MiB of log");
    assert!(zeroed[1] < 16 * MIB, "{zeroed:?} bytes for 80 MiB of log");
}

/// Guests write to the log alone. It has a ninth of the free space here, and got a ninth of what was
/// prepared.
#[test]
fn a_small_log_is_prepared_before_its_data() {
    let ready = ReadySpace { prepare: true, at_first: 16 * MIB, ..bounds() };
    let (mut harness, volume) = small_log(64, tuning(ready));
    pause(&mut harness, 10_000);
    assert!((15 * MIB..=17 * MIB).contains(&harness.zeroed[1]), "{:?}", harness.zeroed);
    assert!(harness.zeroed[0] <= MIB, "{:?}", harness.zeroed);
    let byte = overwrite(&mut harness, volume, 8);
    pause(&mut harness, 30_000);
    assert!(harness.zeroed[1] > 16 * MIB, "{:?}", harness.zeroed);
    expect(&mut harness, volume, byte);
    harness.audit();
}

/// Segments that the log emptied are not free before a checkpoint, so a log that is small beside its pool
/// has them more often: after a quarter of its size.
#[test]
fn a_small_log_has_its_checkpoints_in_time() {
    let (mut harness, volume) = small_log(96, Tuning { checkpoint_log_bytes: 1 << 30, ..tuning(bounds()) });
    let mut most = 0;
    for _ in 0..12 {
        overwrite(&mut harness, volume, 1);
        most = most.max(harness.engine.metrics().log_bytes);
    }
    assert!((18 * MIB..=26 * MIB).contains(&most), "{most} bytes of log without a checkpoint");
    harness.audit();
}

#[test]
fn a_device_that_refuses_zeros_is_left_alone_for_a_while() {
    let ready = ReadySpace { prepare: true, least: 4 * MIB, ..bounds() };
    let (mut harness, volume) = harness(256, tuning(ready));
    let zeroed = zeroed_bytes(&harness);
    harness.refuse_zeros = true;
    overwrite(&mut harness, volume, 1);
    pause(&mut harness, 30_000);
    let asked = harness.refused_zeros;
    assert!((1..=4).contains(&asked), "asked {asked} times in half a minute");
    harness.refuse_zeros = false;
    pause(&mut harness, 30_000);
    assert!(zeroed_bytes(&harness) > zeroed);
    expect(&mut harness, volume, 1);
}

#[test]
fn an_import_knows_what_the_host_has() {
    let (mut harness, volume) = harness(256, tuning(bounds()));
    let byte = overwrite(&mut harness, volume, 3);
    harness.command(Command::Close).unwrap();
    let media = harness.media.clone();
    let import = |space: Option<DeviceSpace>, ready: ReadySpace| {
        let mut harness = Harness::begin_import(media.clone(), tuning(ready), harness.now + 1);
        space.into_iter().for_each(|space| harness.engine.set_space(DeviceSlot(0), space));
        harness.settle();
        harness
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
    let mut harness = import(Some(full), ReadySpace { prepare: true, ..bounds() });
    assert_eq!(space(&harness).holes, 0);
    harness.now += 1_000;
    pause(&mut harness, 1_500_000);
    assert_eq!((harness.discarded, zeroed_bytes(&harness)), (0, 0));
    expect(&mut harness, volume, byte);
}
