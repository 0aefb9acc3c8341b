//! Special and log devices: nodes are on the former, new writes on the latter; both are added and
//! removed.

use std::collections::BTreeSet;

use millpond_block::{DeviceGeometry, MemberId, Op};
use millpond_engine::{
    Aim, CatalogCommand, Class, Command, Compression, DeviceCommand, Engine, GroupSpec, JobCommand, Layout, PoolId, PoolSpec, QueryCommand,
    Reply, Target, Time, Tuning, VolumeId, VolumeOptions, Wipe,
};

use crate::content::Steps;
use crate::harness::Harness;
use millpond_testing::Random;

const SIZE: u64 = 16 << 20;
const STEP: u64 = 64 << 10;
const DATA: Steps = Steps { size: SIZE, step: STEP };
const MIRROR: Layout = Layout::Mirror { copies: 2 };

fn group(class: Class, layout: Layout, devices: usize) -> GroupSpec {
    GroupSpec { class, layout, devices: Some(devices) }
}

fn tuning() -> Tuning {
    Tuning { map_memory: 256 << 10, checkpoint_log_bytes: 2 << 20, ..Tuning::default() }
}

/// A pool of one data device and two devices of another class.
fn pool(class: Class) -> (Harness, VolumeId) {
    let groups = vec![group(Class::Data, Layout::Linear, 1), group(class, MIRROR, 2)];
    let mut harness = Harness::with_groups(&[64, 16, 16], groups, tuning());
    let volume = harness.volume("disk0", SIZE, Compression::Off);
    DATA.write(&mut harness, volume, 1);
    (harness, volume)
}

fn written(harness: &Harness, device: usize) -> u64 {
    harness.engine.pool().unwrap().devices[device].counters.write_bytes
}

fn allocated(harness: &Harness, device: usize) -> u64 {
    harness.engine.pool().unwrap().devices[device].allocated
}

#[test]
fn nodes_are_on_special_devices_with_a_copy() {
    let (mut harness, volume) = pool(Class::Special);
    harness.command(Command::Checkpoint).unwrap();
    let (data, special) = (written(&harness, 0), written(&harness, 1));
    assert!(special > 128 << 10 && special == written(&harness, 2), "{special}");
    let metrics = harness.engine.metrics();
    let areas = 2 << 20;
    let most = metrics.user_bytes + metrics.header_bytes + metrics.metadata_bytes + areas;
    assert!(metrics.metadata_bytes > 256 << 10 && data <= most, "{data} {metrics:?}");
    harness.reopen();
    DATA.check(&mut harness, Target::Head(volume), 1);
    // the copy on the data device is not read
    let nodes = harness.engine.metrics().node_reads;
    assert!(nodes > 5 && harness.reads[1] + harness.reads[2] > nodes, "{nodes} {:?}", &harness.reads[..3]);
    harness.audit();
    // one of them is enough; without both, the import needs an option
    for lost in [1, 2] {
        let mut media = harness.media.clone();
        media.remove(lost);
        let mut harness = Harness::import_degraded(media, true).unwrap();
        DATA.check(&mut harness, Target::Head(volume), 1);
    }
    let refused = Harness::import_degraded(vec![harness.media[0].clone()], true).err().unwrap();
    assert!(refused.contains("member 1, 2 of the 3") && refused.contains("a special one"), "{refused}");
}

fn rebuild(media: &[Vec<u8>]) -> Harness {
    Harness::import_with(media.to_vec(), Tuning { aim: Aim::Rebuild, ..tuning() }, 1_000_000).unwrap()
}

#[test]
fn without_special_devices_everything_is_there() {
    let layouts =
        [(vec![64usize], Layout::Linear), (vec![64, 64], MIRROR), (vec![64; 4], Layout::Parity { width: 16, parity: 2, unit: 4096 })];
    for (sizes, layout) in layouts {
        let data = sizes.len();
        let groups = vec![group(Class::Data, layout, data), group(Class::Special, MIRROR, 2)];
        let mut harness = Harness::with_groups(&[sizes, vec![16, 16]].concat(), groups, tuning());
        let volume = harness.volume("disk0", SIZE, Compression::Off);
        DATA.write(&mut harness, volume, 1);
        let old = harness.snapshot(volume, "old");
        DATA.write(&mut harness, volume, 2);
        harness.command(Command::Checkpoint).unwrap();
        for at in (0..SIZE / 2).step_by(STEP as usize) {
            harness.request(Target::Head(volume), Op::Write, at, STEP, &DATA.bytes(at, 3)).unwrap();
        }
        let mut harness = rebuild(&harness.media[..data]);
        for round in 3..5 {
            for at in (0..SIZE).step_by(STEP as usize) {
                let head = if at < SIZE / 2 { round } else { 2 };
                assert!(
                    harness.request(Target::Head(volume), Op::Read, at, STEP, &[]).unwrap() == DATA.bytes(at, head),
                    "{layout:?} at {at}"
                );
                assert!(
                    harness.request(Target::Snapshot(old), Op::Read, at, STEP, &[]).unwrap() == DATA.bytes(at, 1),
                    "{layout:?} at {at}"
                );
            }
            harness.audit();
            // the labels record the loss, and the pool continues without options
            for at in (0..SIZE / 2).step_by(STEP as usize) {
                harness.request(Target::Head(volume), Op::Write, at, STEP, &DATA.bytes(at, 4)).unwrap();
            }
            harness = Harness::import(harness.media.clone()).unwrap();
        }
        assert_eq!(harness.engine.pool().unwrap().devices.len(), data);
        // new special devices are added
        let devices = vec![harness.new_device(16), harness.new_device(16)];
        harness.command(DeviceCommand::AddDevices { groups: vec![group(Class::Special, MIRROR, 2)], devices }).unwrap();
        DATA.write(&mut harness, volume, 5);
        harness.command(CatalogCommand::DestroySnapshots { snapshots: vec![old] }).unwrap();
        harness.reopen();
        DATA.check(&mut harness, Target::Head(volume), 5);
        harness.audit();
    }
}

#[test]
fn small_writes_that_are_lost_are_known() {
    let (mut harness, volume) = pool(Class::Special);
    let options = VolumeOptions { special_small_blocks: 8192, ..VolumeOptions::default() };
    harness.command(Command::Checkpoint).unwrap();
    harness.command(CatalogCommand::SetOptions { volume, options }).unwrap();
    let mut small = BTreeSet::new();
    let old = harness.snapshot(volume, "old");
    let mut random = Random::new(7);
    for step in 0..600 {
        let at = random.below(SIZE / STEP) * STEP;
        if step % 5 == 0 {
            harness.request(Target::Head(volume), Op::Write, at, STEP, &DATA.bytes(at, 2)).unwrap();
            small.remove(&at);
        } else {
            harness.request(Target::Head(volume), Op::Write, at, 4096, &DATA.bytes(at, 3)[..4096]).unwrap();
            small.insert(at);
        }
        match step {
            200 => drop(harness.command(Command::Checkpoint).unwrap()),
            300 | 400 => harness.reopen(),
            _ => {}
        }
    }
    // the newest small writes are indexed after a while, whether anything else is written or not
    let headers = harness.engine.metrics().header_bytes;
    harness.now += 1_100;
    harness.turn();
    harness.settle();
    assert_eq!(harness.engine.metrics().header_bytes, headers + 4096, "told once");
    assert!(small.len() > 50);
    let media = vec![harness.media[0].clone()];
    harness.reopen();
    harness.audit();
    let mut harness = rebuild(&media);
    for round in 0..3 {
        let lost: Vec<u64> = match harness.command(QueryCommand::Lost { target: Target::Head(volume) }).unwrap() {
            Reply::Lost(lost) => lost.iter().flat_map(|range| (range.offset..range.offset + range.length).step_by(4096)).collect(),
            other => panic!("{other:?}"),
        };
        assert_eq!(lost, small.iter().copied().collect::<Vec<_>>());
        assert_eq!(harness.command(QueryCommand::Lost { target: Target::Snapshot(old) }).unwrap(), Reply::Lost(Vec::new()));
        for at in (0..SIZE).step_by(STEP as usize) {
            let read = harness.request(Target::Head(volume), Op::Read, at, 4096, &[]);
            assert_eq!(read.is_err(), small.contains(&at), "at {at}");
            let read = harness.request(Target::Snapshot(old), Op::Read, at, 4096, &[]);
            assert!(read.unwrap() == DATA.bytes(at, 1)[..4096]);
        }
        harness.audit();
        // blocks that are written again can be read again
        for at in small.iter().copied().take(20 * round).collect::<Vec<_>>() {
            harness.request(Target::Head(volume), Op::Write, at, STEP, &DATA.bytes(at, 4)).unwrap();
            small.remove(&at);
        }
        harness.reopen();
    }
    harness.command(JobCommand::Scrub).unwrap();
    harness.finish_jobs();
    DATA.write(&mut harness, volume, 5);
    harness.command(CatalogCommand::DestroySnapshots { snapshots: vec![old] }).unwrap();
    harness.command(Command::Checkpoint).unwrap();
    harness.reopen();
    DATA.check(&mut harness, Target::Head(volume), 5);
    harness.audit();
}

#[test]
fn many_small_changes_of_nodes_do_not_fill_special_devices_up() {
    let (mut harness, volume) = pool(Class::Special);
    for round in 2..80 {
        // one block in every other leaf
        for at in (0..SIZE).step_by(4 << 20) {
            harness.request(Target::Head(volume), Op::Write, at, 4096, &DATA.bytes(at, 1)[..4096]).unwrap();
        }
        if round % 8 == 0 {
            harness.snapshot(volume, &format!("s{round}"));
        }
        harness.command(Command::Checkpoint).unwrap();
    }
    harness.audit();
    harness.reopen();
    DATA.check(&mut harness, Target::Head(volume), 1);
}

#[test]
fn special_devices_come_and_go() {
    let mut harness = Harness::with(&[64], Layout::Linear, tuning());
    let volume = harness.volume("disk0", SIZE, Compression::Off);
    DATA.write(&mut harness, volume, 1);
    let devices = vec![harness.new_device(16), harness.new_device(16)];
    harness.command(DeviceCommand::AddDevices { groups: vec![group(Class::Special, MIRROR, 2)], devices }).unwrap();
    DATA.write(&mut harness, volume, 2);
    harness.command(Command::Checkpoint).unwrap();
    assert!(written(&harness, 1) > 64 << 10);
    harness.reopen();
    DATA.check(&mut harness, Target::Head(volume), 2);
    DATA.write(&mut harness, volume, 3);
    harness.command(DeviceCommand::Remove { member: MemberId(1), dry_run: false }).unwrap();
    harness.finish_jobs();
    harness.audit();
    let mut harness = Harness::import(vec![harness.media[0].clone()]).unwrap();
    DATA.check(&mut harness, Target::Head(volume), 3);
    DATA.write(&mut harness, volume, 4);
    harness.audit();
}

#[test]
fn a_log_takes_writes_and_gives_them_on() {
    let (mut harness, volume) = pool(Class::Log);
    assert!(written(&harness, 1) >= SIZE, "{}", written(&harness, 1));
    DATA.write(&mut harness, volume, 2);
    harness.settle();
    assert!(written(&harness, 0) > SIZE / 2, "{}", written(&harness, 0));
    DATA.check(&mut harness, Target::Head(volume), 2);
    harness.reopen();
    DATA.check(&mut harness, Target::Head(volume), 2);
    harness.audit();
    // without it all writes go to data again
    harness.command(DeviceCommand::Remove { member: MemberId(1), dry_run: false }).unwrap();
    DATA.write(&mut harness, volume, 3);
    harness.finish_jobs();
    assert_eq!(harness.engine.pool().unwrap().devices.len(), 1);
    let mut harness = Harness::import(vec![harness.media[0].clone()]).unwrap();
    DATA.check(&mut harness, Target::Head(volume), 3);
    assert!(allocated(&harness, 0) > SIZE);
    harness.audit();
}

#[test]
fn parity_needs_a_log() {
    let groups = vec![group(Class::Data, Layout::Parity { width: 16, parity: 1, unit: 4096 }, 3), group(Class::Special, MIRROR, 2)];
    let mut harness = Harness::with_groups(&[48, 48, 48, 16, 16], groups, tuning());
    let volume = harness.volume("disk0", SIZE, Compression::Off);
    DATA.write(&mut harness, volume, 1);
    harness.command(Command::Checkpoint).unwrap();
    // special devices get the nodes from the log and can be removed
    assert!(written(&harness, 3) > 128 << 10);
    harness.command(DeviceCommand::Remove { member: MemberId(3), dry_run: false }).unwrap();
    harness.finish_jobs();
    let mut harness = Harness::import(harness.media[..3].to_vec()).unwrap();
    DATA.check(&mut harness, Target::Head(volume), 1);
    harness.audit();
    // with parity over three devices none can be removed
    assert!(harness.command(DeviceCommand::Remove { member: MemberId(0), dry_run: false }).is_err());
}

#[test]
fn small_writes_go_to_special_devices_and_stay_there() {
    let (mut harness, volume) = pool(Class::Special);
    harness.command(Command::Checkpoint).unwrap();
    let before = [written(&harness, 0), written(&harness, 1)];
    let options = VolumeOptions { special_small_blocks: 8192, ..VolumeOptions::default() };
    harness.command(CatalogCommand::SetOptions { volume, options }).unwrap();
    for round in 2..5 {
        for at in (0..SIZE).step_by(STEP as usize) {
            harness.request(Target::Head(volume), Op::Write, at, 4096, &DATA.bytes(at, round)[..4096]).unwrap();
        }
    }
    let after = [written(&harness, 0), written(&harness, 1)];
    let small = 3 * SIZE / STEP * 8192;
    assert!(after[1] - before[1] >= small && after[0] - before[0] < small / 4, "{before:?} {after:?}");
    // a larger write does not
    harness.request(Target::Head(volume), Op::Write, 0, 16384, &DATA.bytes(0, 6)[..16384]).unwrap();
    assert!(written(&harness, 0) >= after[0] + 16384);
    harness.reopen();
    for at in (STEP..SIZE).step_by(STEP as usize) {
        let read = harness.request(Target::Head(volume), Op::Read, at, STEP, &[]).unwrap();
        assert!(read[..4096] == DATA.bytes(at, 4)[..4096] && read[4096..] == DATA.bytes(at, 1)[4096..], "at {at}");
    }
    harness.audit();
    // when special devices are full, writes still succeed
    let many = 48 << 20 >> 12;
    let mut random = Random::new(7);
    for _ in 0..many / 2 {
        let at = random.below(SIZE / 4096) * 4096;
        harness.request(Target::Head(volume), Op::Write, at, 4096, &DATA.bytes(at, 8)[..4096]).unwrap();
    }
    harness.audit();
    harness.reopen();
    harness.audit();
}

#[test]
fn full_special_devices_keep_no_pool_from_opening() {
    let groups = vec![group(Class::Data, Layout::Linear, 1), group(Class::Special, MIRROR, 2)];
    let mut harness = Harness::with_groups(&[128, 8, 8], groups, tuning());
    let leaf = 2 << 20;
    let size = 1500 * leaf;
    let volume = harness.volume("disk0", size, Compression::Off);
    let block = |round: u8, at: u64| DATA.bytes(at, round)[..4096].to_vec();
    for at in (0..size).step_by(leaf as usize) {
        harness.request(Target::Head(volume), Op::Write, at, 4096, &block(1, at)).unwrap();
    }
    for round in 2..4 {
        harness.command(Command::Checkpoint).unwrap();
        let pool = harness.engine.pool().unwrap();
        assert!(pool.devices[1].free < 4 << 20, "not full: {:?}", pool.devices[1]);
        harness.reopen();
        for at in (0..size).step_by(leaf as usize) {
            assert!(harness.request(Target::Head(volume), Op::Read, at, 4096, &[]).unwrap() == block(round - 1, at), "at {at}");
            harness.request(Target::Head(volume), Op::Write, at, 4096, &block(round, at)).unwrap();
        }
        harness.audit();
    }
}

#[test]
fn what_is_too_small_for_data_is_no_pool() {
    let media = |mib: u64| DeviceGeometry { size: mib << 20, logical_sector: 512, physical_sector: 4096 };
    // the smallest device limits the number of segments, and a part of it is the log
    let devices = [media(12), media(5), media(12), media(64), media(64)];
    let groups = vec![group(Class::Data, Layout::Parity { width: 16, parity: 1, unit: 4096 }, 3), group(Class::Special, MIRROR, 2)];
    let spec = PoolSpec { name: "pond".into(), id: PoolId([7; 16]), groups, extent_bytes: None, features: false };
    let refused = Engine::create(spec, devices.to_vec(), tuning(), Time(1)).err().unwrap().to_string();
    assert!(refused.contains("segments") && refused.contains("larger devices"), "{refused}");
}

fn small_writes(harness: &mut Harness, volume: VolumeId) {
    let options = VolumeOptions { special_small_blocks: 8192, ..VolumeOptions::default() };
    harness.command(Command::Checkpoint).unwrap();
    harness.command(CatalogCommand::SetOptions { volume, options }).unwrap();
    harness.command(Command::Checkpoint).unwrap();
}

fn no_checkpoints() -> Tuning {
    Tuning { map_memory: 256 << 10, checkpoint_log_bytes: 256 << 20, ..Tuning::default() }
}

#[test]
fn small_writes_over_two_leaves_that_are_lost_are_known() {
    let groups = vec![group(Class::Data, Layout::Linear, 1), group(Class::Special, MIRROR, 2)];
    let mut harness = Harness::with_groups(&[256, 64, 64], groups, no_checkpoints());
    let volume = harness.volume("disk0", SIZE, Compression::Off);
    DATA.write(&mut harness, volume, 1);
    small_writes(&mut harness, volume);
    let before = harness.engine.metrics().checkpoints;
    let leaf = 2 << 20;
    let mut small = Vec::new();
    for end in (leaf..SIZE / 2).step_by(leaf as usize) {
        harness.request(Target::Head(volume), Op::Write, end - STEP, 4096, &[3; 4096]).unwrap();
        harness.request(Target::Head(volume), Op::Write, end - 4096, 8192, &[3; 8192]).unwrap();
        small.extend([end - STEP, end - 4096, end]);
    }
    harness.request(Target::Head(volume), Op::Flush, 0, 0, &[]).unwrap();
    // another write indexes them
    harness.request(Target::Head(volume), Op::Write, SIZE - STEP, STEP, &DATA.bytes(SIZE - STEP, 3)).unwrap();
    assert_eq!(harness.engine.metrics().checkpoints, before);
    let media = vec![harness.media[0].clone()];
    let mut harness = Harness::import_with(media, Tuning { aim: Aim::Rebuild, ..no_checkpoints() }, 1_000_000).unwrap();
    let old: Vec<u64> =
        small.iter().copied().filter(|at| harness.request(Target::Head(volume), Op::Read, *at, 4096, &[]).is_ok()).collect();
    assert_eq!(old, Vec::<u64>::new(), "read as they were before");
}

#[test]
fn small_writes_on_special_devices_behind_lost_ones_are_not_taken_back() {
    for lost in [1usize, 2] {
        let groups =
            vec![group(Class::Data, Layout::Linear, 1), group(Class::Special, Layout::Linear, 1), group(Class::Special, Layout::Linear, 1)];
        let tuning = Tuning { map_memory: 4 << 20, checkpoint_log_bytes: 256 << 20, ..Tuning::default() };
        let mut harness = Harness::with_groups(&[64, 32, 32], groups, tuning.clone());
        let volume = harness.volume("disk0", SIZE, Compression::Off);
        DATA.write(&mut harness, volume, 1);
        small_writes(&mut harness, volume);
        for step in 0..1000u64 {
            harness.request(Target::Head(volume), Op::Write, step * 8192, 4096, &[3; 4096]).unwrap();
        }
        harness.request(Target::Head(volume), Op::Flush, 0, 0, &[]).unwrap();
        harness.request(Target::Head(volume), Op::Write, SIZE - STEP, STEP, &DATA.bytes(SIZE - STEP, 3)).unwrap();
        let mut media = harness.media.clone();
        media.remove(lost);
        let mut harness = Harness::import_with(media, Tuning { aim: Aim::Rebuild, ..tuning }, 1_000_000).unwrap();
        let (mut gone, mut there, mut old) = (0, 0, 0);
        for step in 0..1000u64 {
            match harness.request(Target::Head(volume), Op::Read, step * 8192, 4096, &[]) {
                Err(_) => gone += 1,
                Ok(bytes) if bytes == [3; 4096] => there += 1,
                Ok(_) => old += 1,
            }
        }
        assert_eq!(old, 0, "without {lost}: {gone} lost, {there} there, {old} as they were before");
        harness.audit();
    }
}

#[test]
fn a_torn_end_does_not_keep_a_pool_without_special_devices() {
    let groups = vec![group(Class::Data, Layout::Linear, 1), group(Class::Special, MIRROR, 2)];
    let mut harness = Harness::with_groups(&[64, 16, 16], groups, no_checkpoints());
    let volume = harness.volume("disk0", SIZE, Compression::Off);
    DATA.write(&mut harness, volume, 1);
    small_writes(&mut harness, volume);
    let before = harness.engine.metrics().checkpoints;
    harness.request(Target::Head(volume), Op::Write, 0, 4096, &[3; 4096]).unwrap();
    harness.request(Target::Head(volume), Op::Flush, 0, 0, &[]).unwrap();
    harness.request(Target::Head(volume), Op::Write, 8 << 20, STEP, &[0xa7; STEP as usize]).unwrap();
    assert_eq!(harness.engine.metrics().checkpoints, before);
    // this write was not flushed: the power cut tears it
    let mut media = harness.media.clone();
    let at = media[0].chunks(4096).position(|page| page.iter().all(|byte| *byte == 0xa7)).unwrap();
    media[0][at * 4096..(at + 1) * 4096].fill(0);
    let whole = Harness::import_with(media.clone(), no_checkpoints(), 1_000_000).unwrap();
    drop(whole);
    media.truncate(1);
    let mut harness = Harness::import_with(media, Tuning { aim: Aim::Rebuild, ..no_checkpoints() }, 1_000_000).unwrap();
    let read = harness.request(Target::Head(volume), Op::Read, 8 << 20, STEP, &[]).unwrap();
    assert!(read == DATA.bytes(8 << 20, 1));
}

/// The data device after a power cut: the newest batches were a small write, the batch with its
/// index, and one more; the batch with the index was not written.
fn without_the_batch_that_tells(flushed: bool) -> Result<Harness, String> {
    let groups = vec![group(Class::Data, Layout::Linear, 1), group(Class::Special, MIRROR, 2)];
    let mut harness = Harness::with_groups(&[64, 16, 16], groups, no_checkpoints());
    let volume = harness.volume("disk0", SIZE, Compression::Off);
    DATA.write(&mut harness, volume, 1);
    small_writes(&mut harness, volume);
    let before = harness.engine.metrics().checkpoints;
    let flush = |harness: &mut Harness| harness.request(Target::Head(volume), Op::Flush, 0, 0, &[]).unwrap();
    harness.request(Target::Head(volume), Op::Write, 0, 4096, &[3; 4096]).unwrap();
    flush(&mut harness);
    harness.request(Target::Head(volume), Op::Write, 8 << 20, STEP, &[0xa7; STEP as usize]).unwrap();
    if flushed {
        flush(&mut harness);
    }
    harness.request(Target::Head(volume), Op::Write, 9 << 20, STEP, &[0xa8; STEP as usize]).unwrap();
    assert_eq!(harness.engine.metrics().checkpoints, before);
    let mut media = harness.media.clone();
    let at = media[0].chunks(4096).position(|page| page.iter().all(|byte| *byte == 0xa7)).unwrap();
    // header and payload
    media[0][(at - 1) * 4096..at * 4096 + STEP as usize].fill(0);
    media.truncate(1);
    let mut harness = Harness::import_with(media, Tuning { aim: Aim::Rebuild, ..no_checkpoints() }, 1_000_000)?;
    for at in [8 << 20, 9 << 20] {
        assert!(harness.request(Target::Head(volume), Op::Read, at, STEP, &[]).unwrap() == DATA.bytes(at, 1), "{at}");
    }
    harness.audit();
    Ok(harness)
}

#[test]
fn a_lost_note_at_the_end_does_not_keep_a_pool_without_special_devices() {
    drop(without_the_batch_that_tells(false).unwrap());
    // a durable batch that is missing is noticed
    let refused = without_the_batch_that_tells(true).err().unwrap();
    assert!(refused.contains("was durable and is gone"), "{refused}");
}

#[test]
fn a_rebalance_goes_on_beside_full_special_devices() {
    let groups = vec![group(Class::Data, Layout::Linear, 1), group(Class::Special, MIRROR, 2)];
    let mut harness = Harness::with_groups(&[128, 8, 8], groups, tuning());
    let leaf = 2 << 20;
    let size = 1500 * leaf;
    let volume = harness.volume("disk0", size, Compression::Off);
    for at in (0..size).step_by(leaf as usize) {
        harness.request(Target::Head(volume), Op::Write, at, 4096, &DATA.bytes(at, 1)[..4096]).unwrap();
    }
    for at in (0..48 << 20).step_by(STEP as usize) {
        harness.request(Target::Head(volume), Op::Write, at, STEP, &DATA.bytes(at, 1)).unwrap();
    }
    harness.command(Command::Checkpoint).unwrap();
    let pool = harness.engine.pool().unwrap();
    assert!(pool.devices[1].free < 4 << 20, "not full: {:?}", pool.devices[1]);
    let devices = vec![harness.new_device(128)];
    harness.command(DeviceCommand::AddDevices { groups: vec![group(Class::Data, Layout::Linear, 1)], devices }).unwrap();
    match harness.command(JobCommand::Rebalance { dry_run: false }).unwrap() {
        Reply::Fills(fills) => assert!(fills.iter().any(|fill| fill.surplus > 0), "{fills:?}"),
        other => panic!("{other:?}"),
    }
    harness.finish_jobs();
    harness.audit();
}

#[test]
fn rows_left_behind_are_given_up() {
    for (sizes, layout) in [(vec![64, 64], MIRROR), (vec![64; 4], Layout::Parity { width: 16, parity: 2, unit: 4096 })] {
        let data = sizes.len();
        let groups = vec![group(Class::Data, layout, data), group(Class::Special, MIRROR, 2)];
        let mut harness = Harness::with_groups(&[sizes, vec![16, 16]].concat(), groups, tuning());
        let volume = harness.volume("disk0", SIZE, Compression::Off);
        DATA.write(&mut harness, volume, 1);
        let old = harness.snapshot(volume, "old");
        DATA.write(&mut harness, volume, 2);
        harness.command(Command::Checkpoint).unwrap();
        let mut harness = rebuild(&harness.media[..data]);
        harness.now += 1_000;
        harness.settle();
        harness.finish_jobs();
        assert!(harness.engine.pool().unwrap().devices.iter().all(|device| device.class == Class::Data), "{layout:?}");
        harness.audit();
        // at the end of the job, everything with one copy has two again
        for lost in 0..data {
            let mut media = harness.media.clone();
            media.remove(lost);
            let mut harness = Harness::import_degraded(media, true).unwrap();
            DATA.check(&mut harness, Target::Head(volume), 2);
            for at in (0..SIZE).step_by(STEP as usize) {
                assert!(
                    harness.request(Target::Snapshot(old), Op::Read, at, STEP, &[]).unwrap() == DATA.bytes(at, 1),
                    "{layout:?} at {at}"
                );
            }
        }
        // and new special devices work like the old ones
        let devices = [16, 16].map(|mib| harness.new_device(mib)).to_vec();
        harness.command(DeviceCommand::AddDevices { groups: vec![group(Class::Special, MIRROR, 2)], devices }).unwrap();
        DATA.write(&mut harness, volume, 3);
        harness.command(Command::Checkpoint).unwrap();
        harness.reopen();
        DATA.check(&mut harness, Target::Head(volume), 3);
        harness.audit();
    }
}

/// The stream of small writes leaves special devices that are removed by an empty batch on them. The
/// index on other devices counts it: these devices may be lost meanwhile.
#[test]
fn special_devices_may_be_lost_while_they_are_removed() {
    let groups = vec![group(Class::Data, Layout::Linear, 1), group(Class::Special, MIRROR, 2)];
    let mut harness = Harness::with_groups(&[64, 16, 16], groups, no_checkpoints());
    let volume = harness.volume("disk0", SIZE, Compression::Off);
    DATA.write(&mut harness, volume, 1);
    small_writes(&mut harness, volume);
    for at in (0..SIZE / 2).step_by(STEP as usize) {
        harness.request(Target::Head(volume), Op::Write, at, 4096, &[3; 4096]).unwrap();
    }
    harness.start(Command::Devices(DeviceCommand::Remove { member: MemberId(1), dry_run: false }));
    let mut turn = 0;
    while harness.engine.pool().unwrap().devices.len() == 3 {
        let at = SIZE / 2 + turn * STEP % (SIZE / 2);
        harness.write(Target::Head(volume), at, &DATA.bytes(at, 1));
        harness.submit(Target::Head(volume), Op::Flush, 0, 0);
        harness.step();
        turn += 1;
        if turn < 12 || turn % 50 == 0 {
            let tuning = Tuning { aim: Aim::Rebuild, ..no_checkpoints() };
            let rebuilt = Harness::import_with(vec![harness.media[0].clone()], tuning, 1_000_000);
            let mut rebuilt = rebuilt.unwrap_or_else(|why| panic!("after {turn} turns: {why}"));
            let read = rebuilt.request(Target::Head(volume), Op::Read, SIZE - STEP, STEP, &[]).unwrap();
            assert!(read == DATA.bytes(SIZE - STEP, 1), "after {turn} turns");
        }
    }
    assert!(turn > 8, "{turn}");
}

/// A log that is full of map nodes, which checkpoints alone move, holds no job up.
#[test]
fn a_wipe_ends_beside_a_log_of_nodes() {
    let layout = Layout::Parity { width: 16, parity: 1, unit: 4096 };
    let tuning = Tuning { map_memory: 64 << 20, checkpoint_log_bytes: 2 << 20, log_percent: 5, ..Tuning::default() };
    let mut harness = Harness::with(&[64; 4], layout, tuning);
    let leaf = 2 << 20;
    let size = 400 * leaf;
    let volume = harness.volume("disk0", size, Compression::Off);
    for at in (0..size).step_by(leaf as usize) {
        harness.request(Target::Head(volume), Op::Write, at, 4096, &DATA.bytes(at, 1)[..4096]).unwrap();
    }
    harness.command(Command::Checkpoint).unwrap();
    harness.command(JobCommand::Wipe { how: Wipe::Zero, dry_run: false }).unwrap();
    harness.finish_jobs();
    harness.audit();
}
