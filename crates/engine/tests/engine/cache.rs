//! Devices of the cache: what is read again comes from them, after a restart too, and nothing depends on them.

use millpond_block::Op;
use millpond_engine::{Class, Command, Compression, GroupSpec, Layout, MemberState, PoolState, Target, Tuning, VolumeId};

use crate::rig::Rig;

const SIZE: u64 = 8 << 20;
pub const STEP: u64 = 64 << 10;

/// Bytes of which a quarter can be packed.
pub fn pattern(at: u64, round: u8) -> Vec<u8> {
    let noise = |i: u64| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8;
    (at..at + STEP).map(|i| if i % 4096 < 1024 { 7 } else { noise(i ^ u64::from(round) << 40) }).collect()
}

fn write_all(rig: &mut Rig, volume: VolumeId, round: u8) {
    for at in (0..SIZE).step_by(STEP as usize) {
        rig.request(Target::Head(volume), Op::Write, at, STEP, &pattern(at, round)).unwrap();
    }
}

fn check(rig: &mut Rig, volume: VolumeId, round: u8) {
    for at in (0..SIZE).step_by(STEP as usize) {
        assert!(rig.request(Target::Head(volume), Op::Read, at, STEP, &[]).unwrap() == pattern(at, round), "at {at}");
    }
}

fn group(class: Class, layout: Layout, devices: usize) -> GroupSpec {
    GroupSpec { class, layout, devices: Some(devices) }
}

/// One device for data, the others for the cache.
fn pool(sizes_mib: &[usize], compression: Compression) -> (Rig, VolumeId) {
    let groups = vec![group(Class::Data, Layout::Linear, 1), group(Class::Cache, Layout::Linear, sizes_mib.len() - 1)];
    let tuning = Tuning { map_memory: 8 << 20, checkpoint_log_bytes: 2 << 20, ..Tuning::default() };
    let mut rig = Rig::with_groups(sizes_mib, groups, tuning);
    let volume = rig.volume("disk0", SIZE, compression);
    write_all(&mut rig, volume, 1);
    (rig, volume)
}

/// Reads of each device, and blocks that were found in the cache and not, while everything is read.
fn read_all(rig: &mut Rig, volume: VolumeId, round: u8) -> (Vec<u64>, u64, u64) {
    let (before, metrics) = (rig.reads.clone(), rig.engine.metrics());
    check(rig, volume, round);
    let after = rig.engine.metrics();
    let reads = rig.reads.iter().zip(&before).map(|(after, before)| after - before).collect();
    (reads, after.cache_hits - metrics.cache_hits, after.cache_misses - metrics.cache_misses)
}

fn close(rig: &mut Rig) {
    rig.command(Command::Close).unwrap();
    assert_eq!(*rig.engine.state(), PoolState::Closed);
}

#[test]
fn what_is_read_again_comes_from_the_cache_after_a_restart_too() {
    for compression in [Compression::Off, Compression::Lz4] {
        let (mut rig, volume) = pool(&[64, 32], compression);
        let blocks = SIZE / 4096;
        // once: a scan leaves nothing behind; twice: it is copied
        let (reads, hits, misses) = read_all(&mut rig, volume, 1);
        assert_eq!((reads[1], hits, misses), (0, 0, blocks));
        assert_eq!(rig.engine.metrics().cache_fill_bytes, 0);
        read_all(&mut rig, volume, 1);
        assert!(rig.engine.metrics().cache_fill_bytes > SIZE / 8, "{compression:?} {:?}", rig.engine.metrics());
        let (reads, hits, misses) = read_all(&mut rig, volume, 1);
        assert!(hits > blocks * 8 / 10 && hits + misses == blocks && reads[1] > 0, "{hits} {misses} {:?}", &reads[..2]);
        close(&mut rig);
        rig.reopen();
        let (reads, hits, misses) = read_all(&mut rig, volume, 1);
        assert!(hits > blocks * 8 / 10 && hits + misses == blocks, "{hits} {misses} {:?}", &reads[..2]);
        assert_eq!(rig.engine.pool().unwrap().devices[1].errors, 0);
        // what is written anew has other addresses
        write_all(&mut rig, volume, 2);
        let (_, hits, _) = read_all(&mut rig, volume, 2);
        assert_eq!(hits, 0);
        rig.audit();
    }
}

#[test]
fn a_cache_smaller_than_what_is_read_goes_round() {
    let (mut rig, volume) = pool(&[64, 4], Compression::Off);
    for _ in 0..8 {
        read_all(&mut rig, volume, 1);
    }
    // some of it is read all the time
    for _ in 0..8 {
        for at in (0..STEP * 8).step_by(STEP as usize) {
            assert!(rig.request(Target::Head(volume), Op::Read, at, STEP, &[]).unwrap() == pattern(at, 1));
        }
    }
    let before = rig.engine.metrics();
    for at in (0..STEP * 8).step_by(STEP as usize) {
        assert!(rig.request(Target::Head(volume), Op::Read, at, STEP, &[]).unwrap() == pattern(at, 1));
    }
    let hits = rig.engine.metrics().cache_hits - before.cache_hits;
    assert!(hits > 100, "{hits}");
    close(&mut rig);
    rig.reopen();
    check(&mut rig, volume, 1);
    let info = rig.engine.pool().unwrap();
    assert!(info.devices[1].allocated > 0 && info.devices[1].errors == 0, "{:?}", info.devices[1]);
}

#[test]
fn memory_for_the_cache_has_a_bound() {
    let groups = vec![group(Class::Data, Layout::Linear, 1), group(Class::Cache, Layout::Linear, 1)];
    let tuning = Tuning { cache_memory: 1500 * 20, ..Tuning::default() };
    let mut rig = Rig::with_groups(&[64, 64], groups, tuning);
    let volume = rig.volume("disk0", SIZE, Compression::Off);
    write_all(&mut rig, volume, 1);
    // some of it again and again, until all of it was
    for start in (0..SIZE - SIZE / 4).step_by(SIZE as usize / 32) {
        for at in (0..4).flat_map(|_| (start..start + SIZE / 4).step_by(STEP as usize)) {
            assert!(rig.request(Target::Head(volume), Op::Read, at, STEP, &[]).unwrap() == pattern(at, 1));
        }
    }
    // of 2048 blocks no more than 1500 are remembered
    let cached = rig.engine.pool().unwrap().devices[1].allocated;
    assert!(cached > 2 << 20 && cached <= 1800 * 4096, "{cached}");
    close(&mut rig);
    rig.reopen();
    check(&mut rig, volume, 1);
}

#[test]
fn a_damaged_cache_spoils_nothing() {
    let (mut rig, volume) = pool(&[64, 32], Compression::Off);
    (0..3).for_each(|_| drop(read_all(&mut rig, volume, 1)));
    let whole = rig.media[1].clone();
    // all of it but the labels
    for (at, byte) in rig.media[1].iter_mut().enumerate().skip(1 << 20).take(30 << 20) {
        *byte ^= (at % 251) as u8 | 1;
    }
    let (_, hits, _) = read_all(&mut rig, volume, 1);
    // those that were not written yet were written since
    assert!(hits < 256, "{hits}");
    let info = rig.engine.pool().unwrap();
    assert!(info.devices[1].errors > 0 && info.state == PoolState::Online, "{info:?}");
    rig.reopen();
    check(&mut rig, volume, 1);
    // blocks in the places of others
    rig.media[1] = whole;
    let (pages, first) = (4096, (1 << 20) + 4096);
    for at in (0..3000).step_by(2) {
        let (one, two) = (first + at * pages, first + (at + 1) * pages);
        let page = rig.media[1][one..one + pages].to_vec();
        rig.media[1].copy_within(two..two + pages, one);
        rig.media[1][two..two + pages].copy_from_slice(&page);
    }
    rig.reopen();
    check(&mut rig, volume, 1);
    // no label at all: it is not known as a device of the pool, and not missed
    rig.media[1].fill(0);
    rig.reopen();
    assert_eq!(rig.engine.pool().unwrap().devices[1].state, MemberState::Down);
    check(&mut rig, volume, 1);
    // but it is not enough
    let refused = Rig::import(vec![rig.media[1].clone()]).err().unwrap();
    assert!(refused.contains("label"), "{refused}");
}

#[test]
fn a_cache_that_fails_is_let_go() {
    let (mut rig, volume) = pool(&[64, 32, 32], Compression::Off);
    (0..3).for_each(|_| drop(read_all(&mut rig, volume, 1)));
    rig.dead = vec![1];
    (0..3).for_each(|_| check(&mut rig, volume, 1));
    let info = rig.engine.pool().unwrap();
    assert_eq!((info.devices[1].state, info.state), (MemberState::Down, PoolState::Online));
    // the other takes over
    let (_, hits, _) = read_all(&mut rig, volume, 1);
    assert!(hits > 500, "{hits}");
    write_all(&mut rig, volume, 2);
    close(&mut rig);
    // it is there again, or not at all: both without a word from the user
    let mut media = rig.media.clone();
    media.pop();
    let mut without = Rig::import(media).unwrap();
    check(&mut without, volume, 2);
    rig.dead.clear();
    rig.reopen();
    assert!(rig.engine.pool().unwrap().devices.iter().all(|device| device.state == MemberState::Present));
    (0..3).for_each(|_| check(&mut rig, volume, 2));
    // devices of the cache alone are no pool
    let refused = Rig::import(rig.media[1..].to_vec()).err().unwrap();
    assert!(refused.contains("cache"), "{refused}");
}

#[test]
fn what_a_cache_kept_of_a_history_that_was_given_up_does_not_count() {
    let (mut rig, volume) = pool(&[64, 32], Compression::Off);
    (0..3).for_each(|_| drop(read_all(&mut rig, volume, 1)));
    close(&mut rig);
    let then = rig.media.clone();
    rig.reopen();
    write_all(&mut rig, volume, 2);
    (0..3).for_each(|_| drop(read_all(&mut rig, volume, 2)));
    close(&mut rig);
    rig.reopen();
    close(&mut rig);
    // the data of before, and a cache that has seen more
    let mut older = Rig::import(vec![then[0].clone(), rig.media[1].clone()]).unwrap();
    let (_, hits, _) = read_all(&mut older, volume, 1);
    assert_eq!(hits, 0);
    // a cache that was away for a time
    let mut newer = Rig::import(vec![rig.media[0].clone(), then[1].clone()]).unwrap();
    let (_, hits, _) = read_all(&mut newer, volume, 2);
    assert_eq!(hits, 0);
    // and both as they were
    let mut same = Rig::import(vec![rig.media[1].clone(), rig.media[0].clone()]).unwrap();
    let (_, hits, _) = read_all(&mut same, volume, 2);
    assert!(hits > 1000, "{hits}");
}

#[test]
fn devices_of_the_cache_come_and_go() {
    let mut rig = Rig::new(&[64], Layout::Linear);
    let volume = rig.volume("disk0", SIZE, Compression::Off);
    write_all(&mut rig, volume, 1);
    let size = rig.engine.pool().unwrap().size;
    let devices = vec![rig.new_device(16)];
    rig.command(Command::AddDevices { groups: vec![group(Class::Cache, Layout::Linear, 1)], devices }).unwrap();
    (0..3).for_each(|_| drop(read_all(&mut rig, volume, 1)));
    let info = rig.engine.pool().unwrap();
    assert!(rig.engine.metrics().cache_hits > 1000 && info.size == size, "{info:?}");
    assert_eq!((info.devices[1].class, info.devices[1].state), (Class::Cache, MemberState::Present));
    // another in its place is empty at first
    let device = rig.new_device(32);
    rig.command(Command::Replace { member: 1, device }).unwrap();
    rig.settle();
    let (_, hits, _) = read_all(&mut rig, volume, 1);
    assert_eq!((hits, rig.engine.pool().unwrap().devices[1].position), (0, Some(2)));
    (0..3).for_each(|_| drop(read_all(&mut rig, volume, 1)));
    rig.reopen();
    let (reads, hits, _) = read_all(&mut rig, volume, 1);
    assert!(reads[2] > 0 && hits > 0, "{hits}");
    // a layout is not possible
    let devices = vec![rig.new_device(16), rig.new_device(16)];
    let mirror = group(Class::Cache, Layout::Mirror { copies: 2 }, 2);
    assert!(rig.command(Command::AddDevices { groups: vec![mirror], devices }).unwrap_err().to_string().contains("no layout"));
    rig.command(Command::Remove { member: 1, dry_run: false }).unwrap();
    rig.finish_jobs();
    assert_eq!(rig.engine.pool().unwrap().devices.len(), 1);
    check(&mut rig, volume, 1);
    // a data device leaves a pool that has a cache
    let devices = vec![rig.new_device(16), rig.new_device(64)];
    let groups = vec![group(Class::Cache, Layout::Linear, 1), group(Class::Data, Layout::Linear, 1)];
    rig.command(Command::AddDevices { groups, devices }).unwrap();
    rig.command(Command::Remove { member: 0, dry_run: false }).unwrap();
    rig.finish_jobs();
    (0..3).for_each(|_| check(&mut rig, volume, 1));
    rig.audit();
    let media = vec![rig.media.pop().unwrap(), rig.media.pop().unwrap()];
    let mut rig = Rig::import(media).unwrap();
    check(&mut rig, volume, 1);
    rig.audit();
}
