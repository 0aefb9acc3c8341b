//! Spares replace lost devices automatically, and a crash at any moment leaves a consistent pool.

use millpond_block::{DeviceSlot, MemberId};
use millpond_engine::{Class, Command, Compression, DeviceCommand, GroupSpec, Layout, MemberState, PoolState, Target, Tuning, VolumeId};

use crate::content::Steps;
use crate::rig::Rig;

const SIZE: u64 = 8 << 20;
const DATA: Steps = Steps { size: SIZE, step: 64 << 10 };
const MIRROR: Layout = Layout::Mirror { copies: 2 };
/// How long an import waits for a missing device, in milliseconds.
const PATIENCE: u64 = 60_000;

fn tuning(degraded: bool) -> Tuning {
    Tuning { map_memory: 4 << 20, checkpoint_log_bytes: 2 << 20, spare_millis: PATIENCE, degraded, ..Tuning::default() }
}

/// A pool with `data` data devices; the others are spares.
fn pool(sizes_mib: &[usize], layout: Layout, data: usize) -> (Rig, VolumeId) {
    let group = |class, layout, devices| GroupSpec { class, layout, devices: Some(devices) };
    let groups = vec![group(Class::Data, layout, data), group(Class::Spare, Layout::Linear, sizes_mib.len() - data)];
    let mut rig = Rig::with_groups(sizes_mib, groups, tuning(false));
    let volume = rig.volume("disk0", SIZE, Compression::Off);
    DATA.write(&mut rig, volume, 1);
    (rig, volume)
}

fn import(media: Vec<Vec<u8>>) -> Rig {
    Rig::import_with(media, tuning(true), 1).unwrap()
}

/// Class, state and slot of each device.
fn devices(rig: &Rig) -> Vec<(Class, MemberState, Option<usize>)> {
    rig.engine.pool().unwrap().devices.iter().map(|d| (d.class, d.state, d.slot.map(DeviceSlot::index))).collect()
}

fn data(slot: usize) -> (Class, MemberState, Option<usize>) {
    (Class::Data, MemberState::Present, Some(slot))
}

#[test]
fn a_spare_takes_the_place_of_a_device_that_fails() {
    let (mut rig, volume) = pool(&[64, 64, 64], MIRROR, 2);
    assert_eq!(devices(&rig), [data(0), data(1), (Class::Spare, MemberState::Present, Some(2))]);
    let size = rig.engine.pool().unwrap().size;
    rig.dead = vec![1];
    DATA.write(&mut rig, volume, 2);
    assert_eq!(*rig.engine.state(), PoolState::Online);
    rig.finish_jobs();
    assert_eq!(devices(&rig), [data(0), data(2)]);
    let pool = rig.engine.pool().unwrap();
    assert_eq!((pool.size, pool.devices[1].errors), (size, 0));
    DATA.check(&mut rig, Target::Head(volume), 2);
    rig.audit();
    // the former spare by itself has all data, and the failed device is not part of the pool
    let mut alone = import(vec![rig.media[2].clone()]);
    DATA.check(&mut alone, Target::Head(volume), 2);
    let refused = Rig::import_degraded(rig.media, true).err().unwrap();
    assert_eq!(refused, "device 1 was removed from pool 'pond'; leave it out");
}

/// After a power cut at any stage of the change, the spare's role is recognised; no data is lost.
#[test]
fn a_crash_while_a_spare_takes_a_place_is_no_harm() {
    let (mut rig, volume) = pool(&[24, 24, 24], MIRROR, 2);
    rig.dead = vec![1];
    rig.write(Target::Head(volume), 0, &DATA.bytes(0, 1));
    let mut stages = Vec::new();
    for at in 0..200_000 {
        rig.turn();
        let mut ios = Vec::new();
        while let Some(io) = rig.engine.pop_io() {
            ios.push(io);
        }
        for io in ios {
            rig.perform(io);
            let media = [rig.media[0].clone(), rig.media[2].clone()];
            // labels and rings differ at each of the first stages; the resilver itself is checked
            // now and then
            if stages.len() < 40 || at % 97 == 0 {
                stages.push(media);
            }
        }
        if devices(&rig) == [data(0), data(2)] && rig.engine.pool().unwrap().jobs.is_empty() {
            break;
        }
    }
    assert!(devices(&rig) == [data(0), data(2)] && stages.len() >= 40, "{} {:?}", stages.len(), devices(&rig));
    for (nth, media) in stages.into_iter().enumerate() {
        let mut rig = Rig::import_with(media.to_vec(), tuning(true), 1).unwrap_or_else(|why| panic!("at {nth}: {why}"));
        // before the labels record it, the import waits for the missing device
        rig.now += PATIENCE;
        rig.finish_jobs();
        assert_eq!(devices(&rig), [data(0), data(1)], "at {nth}");
        let mut alone = import(vec![rig.media.remove(1)]);
        DATA.check(&mut alone, Target::Head(volume), 1);
    }
}

#[test]
fn a_device_that_is_missing_is_waited_for() {
    let (rig, volume) = pool(&[64, 64, 64], MIRROR, 2);
    let mut media = rig.media;
    let away = media.remove(0);
    let mut rig = import(media);
    rig.now += PATIENCE / 2;
    rig.settle();
    assert_eq!(devices(&rig)[0], (Class::Data, MemberState::Down, None));
    // it is back in time: the spare stays a spare
    let mut media = rig.media.clone();
    media.push(away);
    let mut back = import(media);
    back.now += 2 * PATIENCE;
    back.finish_jobs();
    assert_eq!(devices(&back), [data(2), data(0), (Class::Spare, MemberState::Present, Some(1))]);
    rig.now += PATIENCE;
    rig.finish_jobs();
    assert_eq!(devices(&rig), [data(1), data(0)]);
    DATA.check(&mut rig, Target::Head(volume), 1);
}

#[test]
fn the_smallest_that_fits_is_taken() {
    let (mut rig, volume) = pool(&[64, 64, 96, 72, 32], MIRROR, 2);
    rig.dead = vec![0];
    DATA.write(&mut rig, volume, 2);
    rig.finish_jobs();
    let spare = |at| (Class::Spare, MemberState::Present, Some(at));
    assert_eq!(devices(&rig), [data(3), data(1), spare(2), spare(4)]);
    rig.dead = vec![0, 1];
    DATA.write(&mut rig, volume, 3);
    rig.finish_jobs();
    assert_eq!(devices(&rig), [data(3), data(2), spare(4)]);
    // a spare that is too small is not used
    rig.dead = vec![0, 1, 2];
    DATA.write(&mut rig, volume, 4);
    rig.finish_jobs();
    assert_eq!(devices(&rig), [data(3), (Class::Data, MemberState::Down, Some(2)), spare(4)]);
    DATA.check(&mut rig, Target::Head(volume), 4);
}

#[test]
fn two_devices_that_fail_get_the_spares_there_are() {
    let parity = Layout::Parity { width: 16, parity: 2, unit: 65536 };
    let (mut rig, volume) = pool(&[48, 48, 48, 48, 48], parity, 4);
    rig.dead = vec![0, 2];
    DATA.write(&mut rig, volume, 2);
    rig.finish_jobs();
    let down = devices(&rig).into_iter().filter(|(_, state, _)| *state == MemberState::Down).count();
    assert_eq!((down, devices(&rig).len()), (1, 4));
    // another spare is added later
    let device = rig.new_device(48);
    let groups = vec![GroupSpec { class: Class::Spare, layout: Layout::Linear, devices: None }];
    rig.command(DeviceCommand::AddDevices { groups, devices: vec![device] }).unwrap();
    rig.finish_jobs();
    assert!(devices(&rig).iter().all(|(class, state, _)| (*class, *state) == (Class::Data, MemberState::Present)), "{:?}", devices(&rig));
    // two others may be lost now
    let media = rig.media;
    let mut rig = import(vec![media[4].clone(), media[5].clone()]);
    DATA.check(&mut rig, Target::Head(volume), 2);
    rig.audit();
}

#[test]
fn a_spare_that_fails_while_it_is_filled_is_followed_by_another() {
    let (mut rig, volume) = pool(&[64, 64, 64, 64], MIRROR, 2);
    rig.dead = vec![1];
    rig.start(Command::Checkpoint);
    for _ in 0..2000 {
        rig.turn();
        while let Some(io) = rig.engine.pop_io() {
            rig.perform(io);
        }
        if !rig.engine.pool().unwrap().jobs.is_empty() {
            break;
        }
    }
    assert_eq!(devices(&rig)[1], (Class::Data, MemberState::Filling, Some(2)));
    rig.dead = vec![1, 2];
    DATA.write(&mut rig, volume, 2);
    rig.finish_jobs();
    assert_eq!(devices(&rig), [data(0), data(3)]);
    DATA.check(&mut rig, Target::Head(volume), 2);
}

#[test]
fn a_spare_is_not_missed_and_can_be_taken_out() {
    let (mut rig, volume) = pool(&[64, 64, 64], MIRROR, 2);
    // without the spare, and with a spare that was overwritten, the pool is complete
    let mut without = Rig::import_with(rig.media[..2].to_vec(), tuning(false), 1).unwrap();
    assert_eq!(devices(&without), [data(0), data(1), (Class::Spare, MemberState::Down, None)]);
    DATA.check(&mut without, Target::Head(volume), 1);
    let mut media = without.media;
    media.push(rig.media[2].clone());
    let with = Rig::import_with(media.clone(), tuning(false), 1).unwrap();
    assert_eq!(devices(&with)[2], (Class::Spare, MemberState::Present, Some(2)));
    media[2].fill(0x33);
    let blank = Rig::import_with(media, tuning(false), 1).unwrap();
    assert_eq!(devices(&blank)[2].1, MemberState::Down);
    rig.command(DeviceCommand::Remove { member: MemberId(2), dry_run: false }).unwrap();
    assert_eq!(devices(&rig), [data(0), data(1)]);
    rig.dead = vec![1];
    DATA.write(&mut rig, volume, 2);
    rig.finish_jobs();
    assert_eq!(devices(&rig), [data(0), (Class::Data, MemberState::Down, Some(1))]);
    DATA.check(&mut rig, Target::Head(volume), 2);
}

/// Only a spare learned that one device was lost; then the other one was lost, and the spare with
/// it. The spare has no data that the pool needs.
#[test]
fn a_spare_with_another_history_is_left_alone() {
    let (mut rig, volume) = pool(&[64, 64, 64], MIRROR, 2);
    let mut other = Rig::import_with(rig.media.clone(), tuning(false), 1).unwrap();
    rig.dead = vec![2];
    DATA.write(&mut rig, volume, 2);
    let device = rig.new_device(64);
    rig.command(DeviceCommand::Replace { member: MemberId(1), device }).unwrap();
    rig.finish_jobs();
    other.dead = vec![1];
    other.write(Target::Head(volume), 0, &DATA.bytes(0, 3));
    let label = other.media[2][..4096].to_vec();
    while other.media[2][..4096] == label {
        other.step();
    }
    let media = vec![rig.media[0].clone(), rig.media[3].clone(), other.media[2].clone()];
    let mut joined = Rig::import_with(media, tuning(false), 1).unwrap();
    assert_eq!(devices(&joined), [data(0), data(1), (Class::Spare, MemberState::Down, None)]);
    DATA.check(&mut joined, Target::Head(volume), 2);
    joined.audit();
}
