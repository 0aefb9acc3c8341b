//! Spares replace lost devices automatically, and a crash at any moment leaves a consistent pool.

use millpond_block::{DeviceSlot, MemberId};
use millpond_engine::{Class, Command, Compression, DeviceCommand, GroupSpec, Layout, MemberState, PoolState, Target, Tuning, VolumeId};

use crate::content::Steps;
use crate::harness::Harness;

const SIZE: u64 = 8 << 20;
const DATA: Steps = Steps { size: SIZE, step: 64 << 10 };
const MIRROR: Layout = Layout::Mirror { copies: 2 };
/// How long an import waits for a missing device, in milliseconds.
const PATIENCE: u64 = 60_000;

fn tuning(degraded: bool) -> Tuning {
    Tuning { map_memory: 4 << 20, checkpoint_log_bytes: 2 << 20, spare_millis: PATIENCE, degraded, ..Tuning::default() }
}

/// A pool with `data` data devices; the others are spares.
fn pool(sizes_mib: &[usize], layout: Layout, data: usize) -> (Harness, VolumeId) {
    let group = |class, layout, devices| GroupSpec { class, layout, devices: Some(devices) };
    let groups = vec![group(Class::Data, layout, data), group(Class::Spare, Layout::Linear, sizes_mib.len() - data)];
    let mut harness = Harness::with_groups(sizes_mib, groups, tuning(false));
    let volume = harness.volume("disk0", SIZE, Compression::Off);
    DATA.write(&mut harness, volume, 1);
    (harness, volume)
}

fn import(media: Vec<Vec<u8>>) -> Harness {
    Harness::import_with(media, tuning(true), 1).unwrap()
}

/// Class, state and slot of each device.
fn devices(harness: &Harness) -> Vec<(Class, MemberState, Option<usize>)> {
    harness.engine.pool().unwrap().devices.iter().map(|d| (d.class, d.state, d.slot.map(DeviceSlot::index))).collect()
}

fn data(slot: usize) -> (Class, MemberState, Option<usize>) {
    (Class::Data, MemberState::Present, Some(slot))
}

#[test]
fn a_spare_takes_the_place_of_a_device_that_fails() {
    let (mut harness, volume) = pool(&[64, 64, 64], MIRROR, 2);
    assert_eq!(devices(&harness), [data(0), data(1), (Class::Spare, MemberState::Present, Some(2))]);
    let size = harness.engine.pool().unwrap().size;
    harness.dead = vec![1];
    DATA.write(&mut harness, volume, 2);
    assert_eq!(*harness.engine.state(), PoolState::Online);
    harness.finish_jobs();
    assert_eq!(devices(&harness), [data(0), data(2)]);
    let pool = harness.engine.pool().unwrap();
    assert_eq!((pool.size, pool.devices[1].errors), (size, 0));
    DATA.check(&mut harness, Target::Head(volume), 2);
    harness.audit();
    // the former spare by itself has all data, and the failed device is not part of the pool
    let mut alone = import(vec![harness.media[2].clone()]);
    DATA.check(&mut alone, Target::Head(volume), 2);
    let refused = Harness::import_degraded(harness.media, true).err().unwrap();
    assert_eq!(refused, "device 1 was removed from pool 'pond'; leave it out");
}

/// After a power cut at any stage of the change, the spare's role is recognised; no data is lost.
#[test]
fn a_crash_while_a_spare_takes_a_place_is_no_harm() {
    let (mut harness, volume) = pool(&[24, 24, 24], MIRROR, 2);
    harness.dead = vec![1];
    harness.write(Target::Head(volume), 0, &DATA.bytes(0, 1));
    let mut stages = Vec::new();
    for at in 0..200_000 {
        harness.turn();
        let mut ios = Vec::new();
        while let Some(io) = harness.engine.pop_io() {
            ios.push(io);
        }
        for io in ios {
            harness.perform(io);
            let media = [harness.media[0].clone(), harness.media[2].clone()];
            // labels and rings differ at each of the first stages; the resilver itself is checked
            // now and then
            if stages.len() < 40 || at % 97 == 0 {
                stages.push(media);
            }
        }
        if devices(&harness) == [data(0), data(2)] && harness.engine.pool().unwrap().jobs.is_empty() {
            break;
        }
    }
    assert!(devices(&harness) == [data(0), data(2)] && stages.len() >= 40, "{} {:?}", stages.len(), devices(&harness));
    for (nth, media) in stages.into_iter().enumerate() {
        let mut harness = Harness::import_with(media.to_vec(), tuning(true), 1).unwrap_or_else(|why| panic!("at {nth}: {why}"));
        // before the labels record it, the import waits for the missing device
        harness.now += PATIENCE;
        harness.finish_jobs();
        assert_eq!(devices(&harness), [data(0), data(1)], "at {nth}");
        let mut alone = import(vec![harness.media.remove(1)]);
        DATA.check(&mut alone, Target::Head(volume), 1);
    }
}

#[test]
fn a_device_that_is_missing_is_waited_for() {
    let (harness, volume) = pool(&[64, 64, 64], MIRROR, 2);
    let mut media = harness.media;
    let away = media.remove(0);
    let mut harness = import(media);
    harness.now += PATIENCE / 2;
    harness.settle();
    assert_eq!(devices(&harness)[0], (Class::Data, MemberState::Down, None));
    // it is back in time: the spare stays a spare
    let mut media = harness.media.clone();
    media.push(away);
    let mut back = import(media);
    back.now += 2 * PATIENCE;
    back.finish_jobs();
    assert_eq!(devices(&back), [data(2), data(0), (Class::Spare, MemberState::Present, Some(1))]);
    harness.now += PATIENCE;
    harness.finish_jobs();
    assert_eq!(devices(&harness), [data(1), data(0)]);
    DATA.check(&mut harness, Target::Head(volume), 1);
}

#[test]
fn the_smallest_that_fits_is_taken() {
    let (mut harness, volume) = pool(&[64, 64, 96, 72, 32], MIRROR, 2);
    harness.dead = vec![0];
    DATA.write(&mut harness, volume, 2);
    harness.finish_jobs();
    let spare = |at| (Class::Spare, MemberState::Present, Some(at));
    assert_eq!(devices(&harness), [data(3), data(1), spare(2), spare(4)]);
    harness.dead = vec![0, 1];
    DATA.write(&mut harness, volume, 3);
    harness.finish_jobs();
    assert_eq!(devices(&harness), [data(3), data(2), spare(4)]);
    // a spare that is too small is not used
    harness.dead = vec![0, 1, 2];
    DATA.write(&mut harness, volume, 4);
    harness.finish_jobs();
    assert_eq!(devices(&harness), [data(3), (Class::Data, MemberState::Down, Some(2)), spare(4)]);
    DATA.check(&mut harness, Target::Head(volume), 4);
}

#[test]
fn two_devices_that_fail_get_the_spares_there_are() {
    let parity = Layout::Parity { width: 16, parity: 2, unit: 65536 };
    let (mut harness, volume) = pool(&[48, 48, 48, 48, 48], parity, 4);
    harness.dead = vec![0, 2];
    DATA.write(&mut harness, volume, 2);
    harness.finish_jobs();
    let down = devices(&harness).into_iter().filter(|(_, state, _)| *state == MemberState::Down).count();
    assert_eq!((down, devices(&harness).len()), (1, 4));
    // another spare is added later
    let device = harness.new_device(48);
    let groups = vec![GroupSpec { class: Class::Spare, layout: Layout::Linear, devices: None }];
    harness.command(DeviceCommand::AddDevices { groups, devices: vec![device] }).unwrap();
    harness.finish_jobs();
    assert!(
        devices(&harness).iter().all(|(class, state, _)| (*class, *state) == (Class::Data, MemberState::Present)),
        "{:?}",
        devices(&harness)
    );
    // two others may be lost now
    let media = harness.media;
    let mut harness = import(vec![media[4].clone(), media[5].clone()]);
    DATA.check(&mut harness, Target::Head(volume), 2);
    harness.audit();
}

#[test]
fn a_spare_that_fails_while_it_is_filled_is_followed_by_another() {
    let (mut harness, volume) = pool(&[64, 64, 64, 64], MIRROR, 2);
    harness.dead = vec![1];
    harness.start(Command::Checkpoint);
    for _ in 0..2000 {
        harness.turn();
        while let Some(io) = harness.engine.pop_io() {
            harness.perform(io);
        }
        if !harness.engine.pool().unwrap().jobs.is_empty() {
            break;
        }
    }
    assert_eq!(devices(&harness)[1], (Class::Data, MemberState::Filling, Some(2)));
    harness.dead = vec![1, 2];
    DATA.write(&mut harness, volume, 2);
    harness.finish_jobs();
    assert_eq!(devices(&harness), [data(0), data(3)]);
    DATA.check(&mut harness, Target::Head(volume), 2);
}

#[test]
fn a_spare_is_not_missed_and_can_be_taken_out() {
    let (mut harness, volume) = pool(&[64, 64, 64], MIRROR, 2);
    // without the spare, and with a spare that was overwritten, the pool is complete
    let mut without = Harness::import_with(harness.media[..2].to_vec(), tuning(false), 1).unwrap();
    assert_eq!(devices(&without), [data(0), data(1), (Class::Spare, MemberState::Down, None)]);
    DATA.check(&mut without, Target::Head(volume), 1);
    let mut media = without.media;
    media.push(harness.media[2].clone());
    let with = Harness::import_with(media.clone(), tuning(false), 1).unwrap();
    assert_eq!(devices(&with)[2], (Class::Spare, MemberState::Present, Some(2)));
    media[2].fill(0x33);
    let blank = Harness::import_with(media, tuning(false), 1).unwrap();
    assert_eq!(devices(&blank)[2].1, MemberState::Down);
    harness.command(DeviceCommand::Remove { member: MemberId(2), dry_run: false }).unwrap();
    assert_eq!(devices(&harness), [data(0), data(1)]);
    harness.dead = vec![1];
    DATA.write(&mut harness, volume, 2);
    harness.finish_jobs();
    assert_eq!(devices(&harness), [data(0), (Class::Data, MemberState::Down, Some(1))]);
    DATA.check(&mut harness, Target::Head(volume), 2);
}

/// Only a spare learned that one device was lost; then the other one was lost, and the spare with
/// it. The spare has no data that the pool needs.
#[test]
fn a_spare_with_another_history_is_left_alone() {
    let (mut harness, volume) = pool(&[64, 64, 64], MIRROR, 2);
    let mut other = Harness::import_with(harness.media.clone(), tuning(false), 1).unwrap();
    harness.dead = vec![2];
    DATA.write(&mut harness, volume, 2);
    let device = harness.new_device(64);
    harness.command(DeviceCommand::Replace { member: MemberId(1), device }).unwrap();
    harness.finish_jobs();
    other.dead = vec![1];
    other.write(Target::Head(volume), 0, &DATA.bytes(0, 3));
    let label = other.media[2][..4096].to_vec();
    while other.media[2][..4096] == label {
        other.step();
    }
    let media = vec![harness.media[0].clone(), harness.media[3].clone(), other.media[2].clone()];
    let mut joined = Harness::import_with(media, tuning(false), 1).unwrap();
    assert_eq!(devices(&joined), [data(0), data(1), (Class::Spare, MemberState::Down, None)]);
    DATA.check(&mut joined, Target::Head(volume), 2);
    joined.audit();
}
