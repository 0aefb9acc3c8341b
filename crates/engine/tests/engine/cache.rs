//! Cache devices: repeated reads come from them, after a restart too, and the pool does not depend
//! on them.

use millpond_block::{DeviceSlot, MemberId, Op};
use millpond_engine::{Class, Command, Compression, DeviceCommand, GroupSpec, Layout, MemberState, PoolState, Target, Tuning, VolumeId};

use crate::harness::Harness;

const SIZE: u64 = 8 << 20;
pub const STEP: u64 = 64 << 10;

/// Bytes of which a quarter can be compressed.
pub fn pattern(at: u64, round: u8) -> Vec<u8> {
    let noise = |i: u64| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8;
    (at..at + STEP).map(|i| if i % 4096 < 1024 { 7 } else { noise(i ^ u64::from(round) << 40) }).collect()
}

fn write_all(harness: &mut Harness, volume: VolumeId, round: u8) {
    for at in (0..SIZE).step_by(STEP as usize) {
        harness.request(Target::Head(volume), Op::Write, at, STEP, &pattern(at, round)).unwrap();
    }
}

fn check(harness: &mut Harness, volume: VolumeId, round: u8) {
    for at in (0..SIZE).step_by(STEP as usize) {
        assert!(harness.request(Target::Head(volume), Op::Read, at, STEP, &[]).unwrap() == pattern(at, round), "at {at}");
    }
}

fn group(class: Class, layout: Layout, devices: usize) -> GroupSpec {
    GroupSpec { class, layout, devices: Some(devices) }
}

/// A pool with one data device; all others are cache devices.
fn pool(sizes_mib: &[usize], compression: Compression) -> (Harness, VolumeId) {
    let groups = vec![group(Class::Data, Layout::Linear, 1), group(Class::Cache, Layout::Linear, sizes_mib.len() - 1)];
    let tuning = Tuning { map_memory: 8 << 20, checkpoint_log_bytes: 2 << 20, ..Tuning::default() };
    let mut harness = Harness::with_groups(sizes_mib, groups, tuning);
    let volume = harness.volume("disk0", SIZE, compression);
    write_all(&mut harness, volume, 1);
    (harness, volume)
}

/// Reads everything. Returns reads of each device, and blocks found and not found in the cache.
fn read_all(harness: &mut Harness, volume: VolumeId, round: u8) -> (Vec<u64>, u64, u64) {
    let (before, metrics) = (harness.reads.clone(), harness.engine.metrics());
    check(harness, volume, round);
    let after = harness.engine.metrics();
    let reads = harness.reads.iter().zip(&before).map(|(after, before)| after - before).collect();
    (reads, after.cache_hits - metrics.cache_hits, after.cache_misses - metrics.cache_misses)
}

fn close(harness: &mut Harness) {
    harness.command(Command::Close).unwrap();
    assert_eq!(*harness.engine.state(), PoolState::Closed);
}

#[test]
fn what_is_read_again_comes_from_the_cache_after_a_restart_too() {
    for compression in [Compression::Off, Compression::Lz4] {
        let (mut harness, volume) = pool(&[64, 32], compression);
        let blocks = SIZE / 4096;
        // the first read leaves only marks; the second copies
        let (reads, hits, misses) = read_all(&mut harness, volume, 1);
        assert_eq!((reads[1], hits, misses), (0, 0, blocks));
        assert_eq!(harness.engine.metrics().cache_fill_bytes, 0);
        read_all(&mut harness, volume, 1);
        assert!(harness.engine.metrics().cache_fill_bytes > SIZE / 8, "{compression:?} {:?}", harness.engine.metrics());
        let (reads, hits, misses) = read_all(&mut harness, volume, 1);
        assert!(hits > blocks * 8 / 10 && hits + misses == blocks && reads[1] > 0, "{hits} {misses} {:?}", &reads[..2]);
        close(&mut harness);
        harness.reopen();
        let (reads, hits, misses) = read_all(&mut harness, volume, 1);
        assert!(hits > blocks * 8 / 10 && hits + misses == blocks, "{hits} {misses} {:?}", &reads[..2]);
        assert_eq!(harness.engine.pool().unwrap().devices[1].errors, 0);
        // newly written blocks have other addresses
        write_all(&mut harness, volume, 2);
        let (_, hits, _) = read_all(&mut harness, volume, 2);
        assert_eq!(hits, 0);
        harness.audit();
    }
}

#[test]
fn a_cache_smaller_than_what_is_read_goes_round() {
    let (mut harness, volume) = pool(&[64, 4], Compression::Off);
    for _ in 0..8 {
        read_all(&mut harness, volume, 1);
    }
    // some blocks are read all the time
    for _ in 0..8 {
        for at in (0..STEP * 8).step_by(STEP as usize) {
            assert!(harness.request(Target::Head(volume), Op::Read, at, STEP, &[]).unwrap() == pattern(at, 1));
        }
    }
    let before = harness.engine.metrics();
    for at in (0..STEP * 8).step_by(STEP as usize) {
        assert!(harness.request(Target::Head(volume), Op::Read, at, STEP, &[]).unwrap() == pattern(at, 1));
    }
    let hits = harness.engine.metrics().cache_hits - before.cache_hits;
    assert!(hits > 100, "{hits}");
    close(&mut harness);
    harness.reopen();
    check(&mut harness, volume, 1);
    let info = harness.engine.pool().unwrap();
    assert!(info.devices[1].allocated > 0 && info.devices[1].errors == 0, "{:?}", info.devices[1]);
}

#[test]
fn memory_for_the_cache_has_a_bound() {
    let groups = vec![group(Class::Data, Layout::Linear, 1), group(Class::Cache, Layout::Linear, 1)];
    let tuning = Tuning { cache_memory: 1500 * 20, ..Tuning::default() };
    let mut harness = Harness::with_groups(&[64, 64], groups, tuning);
    let volume = harness.volume("disk0", SIZE, Compression::Off);
    write_all(&mut harness, volume, 1);
    // parts are read again and again, until everything was read
    for start in (0..SIZE - SIZE / 4).step_by(SIZE as usize / 32) {
        for at in (0..4).flat_map(|_| (start..start + SIZE / 4).step_by(STEP as usize)) {
            assert!(harness.request(Target::Head(volume), Op::Read, at, STEP, &[]).unwrap() == pattern(at, 1));
        }
    }
    // at most 1500 of 2048 blocks can be indexed
    let cached = harness.engine.pool().unwrap().devices[1].allocated;
    assert!(cached > 2 << 20 && cached <= 1800 * 4096, "{cached}");
    close(&mut harness);
    harness.reopen();
    check(&mut harness, volume, 1);
}

#[test]
fn a_damaged_cache_spoils_nothing() {
    let (mut harness, volume) = pool(&[64, 32], Compression::Off);
    (0..3).for_each(|_| drop(read_all(&mut harness, volume, 1)));
    let whole = harness.media[1].clone();
    // everything except the labels
    for (at, byte) in harness.media[1].iter_mut().enumerate().skip(1 << 20).take(30 << 20) {
        *byte ^= (at % 251) as u8 | 1;
    }
    let (_, hits, _) = read_all(&mut harness, volume, 1);
    // hits are of blocks that were written to the cache after the damage
    assert!(hits < 256, "{hits}");
    let info = harness.engine.pool().unwrap();
    assert!(info.devices[1].errors > 0 && info.state == PoolState::Online, "{info:?}");
    assert_eq!(info.devices[1].failed, 0, "wrong data is no failed operation");
    harness.reopen();
    check(&mut harness, volume, 1);
    // exchange the places of blocks
    harness.media[1] = whole;
    let (pages, first) = (4096, (1 << 20) + 4096);
    for at in (0..3000).step_by(2) {
        let (one, two) = (first + at * pages, first + (at + 1) * pages);
        let page = harness.media[1][one..one + pages].to_vec();
        harness.media[1].copy_within(two..two + pages, one);
        harness.media[1][two..two + pages].copy_from_slice(&page);
    }
    harness.reopen();
    check(&mut harness, volume, 1);
    // without any label it is not recognised as a device of the pool, and not missed
    harness.media[1].fill(0);
    harness.reopen();
    assert_eq!(harness.engine.pool().unwrap().devices[1].state, MemberState::Down);
    check(&mut harness, volume, 1);
    // but it is not a pool by itself
    let refused = Harness::import(vec![harness.media[1].clone()]).err().unwrap();
    assert!(refused.contains("label"), "{refused}");
}

#[test]
fn a_cache_that_fails_is_let_go() {
    let (mut harness, volume) = pool(&[64, 32, 32], Compression::Off);
    (0..3).for_each(|_| drop(read_all(&mut harness, volume, 1)));
    harness.dead = vec![1];
    (0..3).for_each(|_| check(&mut harness, volume, 1));
    let info = harness.engine.pool().unwrap();
    assert_eq!((info.devices[1].state, info.state), (MemberState::Down, PoolState::Online));
    // the other cache device is used instead
    let (_, hits, _) = read_all(&mut harness, volume, 1);
    assert!(hits > 500, "{hits}");
    write_all(&mut harness, volume, 2);
    close(&mut harness);
    // import with the device back, and without it: both work without options
    let mut media = harness.media.clone();
    media.pop();
    let mut without = Harness::import(media).unwrap();
    check(&mut without, volume, 2);
    harness.dead.clear();
    harness.reopen();
    assert!(harness.engine.pool().unwrap().devices.iter().all(|device| device.state == MemberState::Present));
    (0..3).for_each(|_| check(&mut harness, volume, 2));
    // cache devices without other devices are not a pool
    let refused = Harness::import(harness.media[1..].to_vec()).err().unwrap();
    assert!(refused.contains("cache"), "{refused}");
}

#[test]
fn what_a_cache_kept_of_a_history_that_was_given_up_does_not_count() {
    let (mut harness, volume) = pool(&[64, 32], Compression::Off);
    (0..3).for_each(|_| drop(read_all(&mut harness, volume, 1)));
    close(&mut harness);
    let then = harness.media.clone();
    harness.reopen();
    write_all(&mut harness, volume, 2);
    (0..3).for_each(|_| drop(read_all(&mut harness, volume, 2)));
    close(&mut harness);
    harness.reopen();
    close(&mut harness);
    // older data devices, and a cache that has newer content
    let mut older = Harness::import(vec![then[0].clone(), harness.media[1].clone()]).unwrap();
    let (_, hits, _) = read_all(&mut older, volume, 1);
    assert_eq!(hits, 0);
    // newer data devices, and an older cache
    let mut newer = Harness::import(vec![harness.media[0].clone(), then[1].clone()]).unwrap();
    let (_, hits, _) = read_all(&mut newer, volume, 2);
    assert_eq!(hits, 0);
    // both unchanged
    let mut same = Harness::import(vec![harness.media[1].clone(), harness.media[0].clone()]).unwrap();
    let (_, hits, _) = read_all(&mut same, volume, 2);
    assert!(hits > 1000, "{hits}");
}

#[test]
fn devices_of_the_cache_come_and_go() {
    let mut harness = Harness::new(&[64], Layout::Linear);
    let volume = harness.volume("disk0", SIZE, Compression::Off);
    write_all(&mut harness, volume, 1);
    let size = harness.engine.pool().unwrap().size;
    let devices = vec![harness.new_device(16)];
    harness.command(DeviceCommand::AddDevices { groups: vec![group(Class::Cache, Layout::Linear, 1)], devices }).unwrap();
    (0..3).for_each(|_| drop(read_all(&mut harness, volume, 1)));
    let info = harness.engine.pool().unwrap();
    assert!(harness.engine.metrics().cache_hits > 1000 && info.size == size, "{info:?}");
    assert_eq!((info.devices[1].class, info.devices[1].state), (Class::Cache, MemberState::Present));
    // a replacement is empty at first
    let device = harness.new_device(32);
    harness.command(DeviceCommand::Replace { member: MemberId(1), device }).unwrap();
    harness.settle();
    let (_, hits, _) = read_all(&mut harness, volume, 1);
    assert_eq!((hits, harness.engine.pool().unwrap().devices[1].slot), (0, Some(DeviceSlot(2))));
    (0..3).for_each(|_| drop(read_all(&mut harness, volume, 1)));
    harness.reopen();
    let (reads, hits, _) = read_all(&mut harness, volume, 1);
    assert!(reads[2] > 0 && hits > 0, "{hits}");
    // other layouts than linear are refused
    let devices = vec![harness.new_device(16), harness.new_device(16)];
    let mirror = group(Class::Cache, Layout::Mirror { copies: 2 }, 2);
    assert!(harness.command(DeviceCommand::AddDevices { groups: vec![mirror], devices }).unwrap_err().to_string().contains("no layout"));
    harness.command(DeviceCommand::Remove { member: MemberId(1), dry_run: false }).unwrap();
    harness.finish_jobs();
    assert_eq!(harness.engine.pool().unwrap().devices.len(), 1);
    check(&mut harness, volume, 1);
    // a data device is removed from a pool with a cache
    let devices = vec![harness.new_device(16), harness.new_device(64)];
    let groups = vec![group(Class::Cache, Layout::Linear, 1), group(Class::Data, Layout::Linear, 1)];
    harness.command(DeviceCommand::AddDevices { groups, devices }).unwrap();
    harness.command(DeviceCommand::Remove { member: MemberId(0), dry_run: false }).unwrap();
    harness.finish_jobs();
    (0..3).for_each(|_| check(&mut harness, volume, 1));
    harness.audit();
    let media = vec![harness.media.pop().unwrap(), harness.media.pop().unwrap()];
    let mut harness = Harness::import(media).unwrap();
    check(&mut harness, volume, 1);
    harness.audit();
}

/// A device of the cache that cannot be read may be missing; a device that can be read and has no
/// label is not of the pool, and the refusal names it.
#[test]
fn a_device_that_is_not_of_the_pool_is_named_beside_a_dead_cache() {
    let (mut harness, _) = pool(&[64, 32], Compression::Off);
    close(&mut harness);
    let tuning = harness.tuning.clone();
    let import = |foreign: bool| {
        let mut media = harness.media.clone();
        if foreign {
            media.push(vec![0x33; 32 << 20]);
        }
        let mut again = Harness::begin_import(media, tuning.clone(), 1);
        again.dead = vec![1];
        again.settle();
        again.engine.state().clone()
    };
    assert_eq!(import(false), PoolState::Online);
    let PoolState::Faulted(why) = import(true) else { panic!("it was imported with a device that is not of the pool") };
    assert!(why.to_string().starts_with("device 2 "), "{why}");
}
