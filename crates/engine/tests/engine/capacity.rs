//! Pools with a bucket for their data. While no import has taken a term, all data is in the log, and the
//! segments of the bucket are neither written nor counted as space of devices.

mod objects;
mod placed;
mod uploads;

use millpond_block::{DeviceGeometry, MemberId, Op};
use millpond_engine::{
    Aim, CatalogCommand, Class, Command, CommandError, Compression, DeviceCommand, Engine, GroupSpec, Invalid, JobCommand, Layout, PoolId,
    PoolSpec, ReadySpace, Reply, Target, Time, Tuning, VolumeId, Wipe, WipePlan,
};
use millpond_format::{BASES, BUCKET, FEATURES, FORWARDS, Feature, FeatureSet, Label, SECTOR_BYTES};

use crate::content::Steps;
use crate::golden::second_area;
use crate::harness::Harness;
use millpond_testing::Random;

const EXTENT: u64 = 256 << 10;
/// As many segments as eight times the devices have.
const SEGMENTS: u32 = 2000;
const BUCKET_LAYOUT: Layout = Layout::Bucket { segments: SEGMENTS };
const MIRROR: Layout = Layout::Mirror { copies: 2 };
const SIZE: u64 = 12 << 20;
const DATA: Steps = Steps { size: SIZE, step: 16 << 10 };
/// Features of the programs before buckets.
static OLDER: &[Feature] = &[FEATURES[0], FEATURES[1], BASES, FORWARDS];

fn tuning() -> Tuning {
    Tuning { map_memory: 4 << 20, checkpoint_log_bytes: 2 << 20, ..Tuning::default() }
}

fn group(class: Class, layout: Layout, devices: usize) -> GroupSpec {
    GroupSpec { class, layout, devices: Some(devices) }
}

fn spec(groups: Vec<GroupSpec>, extent_bytes: Option<u64>) -> PoolSpec {
    PoolSpec { name: "pond".into(), id: PoolId([7; 16]), groups, extent_bytes, features: false }
}

/// A pool with a bucket, and a log on devices of these sizes.
fn pool(sizes_mib: &[usize], log: Layout, tuning: Tuning) -> Harness {
    let groups = vec![GroupSpec::data(BUCKET_LAYOUT), group(Class::Log, log, sizes_mib.len())];
    Harness::create(sizes_mib, spec(groups, Some(EXTENT)), tuning)
}

fn volume(harness: &mut Harness) -> VolumeId {
    let volume = harness.volume("disk0", SIZE, Compression::Off);
    DATA.write(harness, volume, 1);
    volume
}

#[test]
fn all_data_is_in_the_log() {
    let special = vec![GroupSpec::data(BUCKET_LAYOUT), group(Class::Log, MIRROR, 2), group(Class::Special, MIRROR, 2)];
    let pools = [
        pool(&[48], Layout::Linear, tuning()),
        pool(&[48, 48], MIRROR, tuning()),
        Harness::create(&[48, 48, 16, 16], spec(special, Some(EXTENT)), tuning()),
    ];
    for mut harness in pools {
        let size = harness.engine.pool().unwrap().size;
        assert!((24 << 20..46 << 20).contains(&size), "{size} bytes fit on the devices alone");
        let volume = volume(&mut harness);
        let snapshot = harness.snapshot(volume, "one");
        // more than the devices hold, a part of each segment at a time: the cleaner empties segments of the
        // log within the log
        let mut random = Random::new(1);
        for _ in 0..30 {
            for at in (0..SIZE).step_by(DATA.step as usize).filter(|_| random.once_in(3)) {
                harness.request(Target::Head(volume), Op::Write, at, DATA.step, &DATA.bytes(at, 2)).unwrap();
            }
        }
        DATA.write(&mut harness, volume, 11);
        assert!(harness.engine.metrics().segments_cleaned > 0);
        harness.command(JobCommand::Scrub).unwrap();
        harness.finish_jobs();
        let scrub = harness.engine.pool().unwrap().scrub.unwrap();
        assert!(scrub.complete && scrub.errors == 0, "{scrub:?}");
        harness.reopen();
        DATA.check(&mut harness, Target::Head(volume), 11);
        DATA.check(&mut harness, Target::Snapshot(snapshot), 1);
        harness.audit();
        harness.command(Command::Close).unwrap();
        let rebuilding = Tuning { aim: Aim::Rebuild, ..tuning() };
        let mut harness = Harness::import_with(harness.media, rebuilding, 1_000_000).unwrap();
        DATA.check(&mut harness, Target::Head(volume), 11);
        harness.audit();
    }
}

/// As in every pool whose log has devices of its own: after a quarter of a log that is small.
#[test]
fn a_small_log_has_its_checkpoints_in_time() {
    let mut harness = pool(&[96], Layout::Linear, Tuning { checkpoint_log_bytes: 1 << 30, ..tuning() });
    let volume = volume(&mut harness);
    let mut most = 0;
    for round in 2..12 {
        DATA.write(&mut harness, volume, round);
        most = most.max(harness.engine.metrics().log_bytes);
    }
    assert!((16 << 20..=26 << 20).contains(&most), "{most} bytes of log without a checkpoint");
    DATA.check(&mut harness, Target::Head(volume), 11);
}

#[test]
fn a_bucket_takes_no_space_on_hosts() {
    let ready = ReadySpace { prepare: true, least: 4 << 20, most: 8 << 20, at_first: 0, ..ReadySpace::default() };
    let mut harness = pool(&[64], Layout::Linear, Tuning { ready, ..tuning() });
    let volume = volume(&mut harness);
    for _ in 0..60 {
        harness.now += 500;
        harness.settle();
    }
    let space = harness.engine.pool().unwrap().space;
    let all = space.in_use + space.retained + space.ready + space.holes;
    assert_eq!(all, 62 << 20, "{space:?}");
    // the log is prepared, not the bucket that has most of the free segments
    assert!(harness.zeroed[0] > 0 && space.ready >= 2 << 20, "{:?} {space:?}", harness.zeroed);
    harness.command(CatalogCommand::DestroyVolume { volume }).unwrap();
    harness.settle();
    let plan = harness.command(JobCommand::Wipe { how: Wipe::Zero, dry_run: true }).unwrap();
    let Reply::Wipe(WipePlan { erased, .. }) = plan else { panic!("{plan:?}") };
    assert!((1..=62 << 20).contains(&erased), "{erased}");
    harness.command(JobCommand::Wipe { how: Wipe::Zero, dry_run: false }).unwrap();
    harness.finish_jobs();
    harness.reopen();
    // after an import no segment is known to be clean
    harness.command(JobCommand::Wipe { how: Wipe::Discard, dry_run: false }).unwrap();
    harness.finish_jobs();
    harness.audit();
}

#[test]
fn programs_without_buckets_refuse_the_pool() {
    let mut harness = pool(&[64, 64], MIRROR, tuning());
    let volume = volume(&mut harness);
    let check = |harness: &Harness, on: FeatureSet, names: &str| {
        for image in &harness.media {
            for at in [0, second_area(image)] {
                let label = Label::decode(&image[at..at + SECTOR_BYTES]).unwrap();
                assert_eq!((label.features, label.feature_names.text()), (on, names));
            }
        }
        let why = Harness::import_with(harness.media.clone(), Tuning { features: OLDER, ..tuning() }, 1).err().unwrap();
        assert!(why.contains("bucket (since 0.2.0)"), "{why}");
    };
    check(&harness, FeatureSet::of([&BUCKET]), "bucket (since 0.2.0)");
    harness.command(DeviceCommand::TurnFeaturesOn).unwrap();
    check(&harness, FeatureSet::of([&BASES, &FORWARDS, &BUCKET]), "bucket (since 0.2.0), forwards (since 0.2.0)");
    harness.reopen();
    assert!(harness.engine.pool().unwrap().features.has(&BUCKET));
    DATA.check(&mut harness, Target::Head(volume), 1);
    // a pool without a bucket can still be used by older programs
    let plain = Harness::create(&[64], spec(vec![GroupSpec::data(Layout::Linear)], None), tuning());
    assert!(Harness::import_with(plain.media, Tuning { features: OLDER, ..tuning() }, 1).is_ok());
}

#[test]
fn a_bucket_needs_a_log_and_no_other_data() {
    let created = |groups: Vec<GroupSpec>, devices: usize, extent_bytes: Option<u64>| {
        let device = DeviceGeometry { size: 4 << 30, logical_sector: 512, physical_sector: 4096 };
        Engine::create(spec(groups, extent_bytes), vec![device; devices], tuning(), Time(1)).map(|_| ())
    };
    let refused = |why| Err(CommandError::Invalid(why));
    let (bucket, log) = (GroupSpec::data(BUCKET_LAYOUT), group(Class::Log, Layout::Linear, 1));
    assert_eq!(created(vec![bucket, log], 1, None), Ok(()));
    let special = group(Class::Special, Layout::Linear, 1);
    assert_eq!(created(vec![bucket, special], 1, None), refused(Invalid::BucketWithoutLog));
    let data = group(Class::Data, Layout::Linear, 1);
    assert_eq!(created(vec![bucket, data, log], 2, None), refused(Invalid::DataBesideBucket));
    assert_eq!(created(vec![data, bucket, log], 2, None), refused(Invalid::DataBesideBucket));
    assert_eq!(created(vec![bucket, log], 1, Some(32 << 20)), refused(Invalid::BucketExtentBytes(32 << 20)));
    let none = GroupSpec::data(Layout::Bucket { segments: 0 });
    assert_eq!(created(vec![none, log], 1, None), refused(Invalid::BucketSegments(0)));
    let small = GroupSpec { class: Class::Special, ..bucket };
    assert_eq!(created(vec![bucket, log, small], 1, None), refused(Invalid::BucketClass));
}

#[test]
fn devices_of_the_log_come_and_go() {
    let mut harness = pool(&[64, 64], Layout::Linear, tuning());
    let volume = volume(&mut harness);
    let device = harness.new_device(64);
    let add = |groups: Vec<GroupSpec>| DeviceCommand::AddDevices { groups, devices: vec![device] };
    let refused = Err(CommandError::Invalid(Invalid::DataBesideBucket));
    assert_eq!(harness.command(add(vec![GroupSpec::data(Layout::Linear)])), refused);
    harness.command(add(vec![group(Class::Log, Layout::Linear, 1)])).unwrap();
    for (member, round) in [(0, 2), (1, 3)] {
        harness.command(DeviceCommand::Remove { member: MemberId(member), dry_run: false }).unwrap();
        DATA.write(&mut harness, volume, round);
        harness.finish_jobs();
    }
    let last = harness.command(DeviceCommand::Remove { member: MemberId(2), dry_run: false });
    assert_eq!(last, Err(CommandError::Invalid(Invalid::DeviceNeeded)));
    harness.audit();
    let mut harness = Harness::import(vec![harness.media[2].clone()]).unwrap();
    DATA.check(&mut harness, Target::Head(volume), 3);
    harness.audit();
}
