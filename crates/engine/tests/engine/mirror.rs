//! Mirrors: data that one device loses or damages comes from another, and devices are added,
//! removed and replaced.

use millpond_block::{DeviceSlot, Io, IoKind, MemberId, Op};
use millpond_engine::{
    Class, Command, Compression, DeviceChange, DeviceCommand, GroupSpec, LabelsInForce, Layout, MemberState, NewestLabel, PoolState,
    Target, Tuning, VolumeId,
};
use millpond_format::{BatchHeader, DeviceId, DeviceNote, Encoder, Item, Label, RING_OFFSET, SECTOR_BYTES, crc32c};

use crate::content::Steps;
use crate::harness::Harness;

pub const SIZE: u64 = 8 << 20;
pub const DATA: Steps = Steps { size: SIZE, step: 64 << 10 };
pub const MIRROR: Layout = Layout::Mirror { copies: 2 };

pub fn mirrored(sizes: &[usize], copies: u16) -> (Harness, VolumeId) {
    let mut harness = Harness::new(sizes, Layout::Mirror { copies });
    let volume = harness.volume("disk0", SIZE, Compression::Off);
    DATA.write(&mut harness, volume, 1);
    (harness, volume)
}

pub fn states(harness: &Harness) -> Vec<MemberState> {
    harness.engine.pool().unwrap().devices.iter().map(|d| d.state).collect()
}

#[test]
fn both_copies_serve_and_either_is_enough() {
    let (mut harness, volume) = mirrored(&[64, 64], 2);
    harness.command(Command::Checkpoint).unwrap();
    harness.reopen();
    DATA.check(&mut harness, Target::Head(volume), 1);
    assert!(harness.reads[0] > 20 && harness.reads[1] > 20, "{:?}", &harness.reads[..2]);
    for lost in [0, 1] {
        let mut media = harness.media.clone();
        media.remove(lost);
        let refused = Harness::import(media.clone()).err().unwrap();
        assert_eq!(refused, format!("member {lost} of the 2 devices of pool 'pond' is missing"));
        let mut harness = Harness::import_degraded(media, true).unwrap();
        DATA.check(&mut harness, Target::Head(volume), 1);
        DATA.write(&mut harness, volume, 2);
        // an import without a device that the labels record as missing needs no option
        let mut harness = Harness::import(harness.media).unwrap();
        DATA.check(&mut harness, Target::Head(volume), 2);
        assert_eq!(states(&harness)[lost], MemberState::Down);
    }
}

#[test]
fn labels_in_force_say_who_is_up_to_date_and_an_older_half_can_be_refused() {
    let (mut harness, volume) = mirrored(&[64, 64], 2);
    let before = harness.engine.labels_in_force().unwrap();
    assert_eq!(before.current.len(), 2);
    harness.dead = vec![0];
    DATA.write(&mut harness, volume, 2);
    let after = harness.engine.labels_in_force().unwrap();
    assert!(after.generation > before.generation, "{before:?} {after:?}");
    assert_eq!(after.current, before.current[1..]);
    let expected = |labels: &LabelsInForce| NewestLabel {
        generation: labels.generation,
        devices: labels.current.iter().map(|(_, device)| *device).collect(),
    };
    let import = |at: usize, newest: NewestLabel| {
        let tuning = Tuning { degraded: true, newest_label: Some(newest), ..Tuning::default() };
        Harness::import_with(vec![harness.media[at].clone()], tuning, harness.now + 1000)
    };
    // the labels of the device that was given up call it complete
    let refused = import(0, expected(&after)).err().unwrap();
    assert!(refused.contains("older state"), "{refused}");
    assert!(import(0, expected(&before)).is_ok());
    assert!(import(1, expected(&after)).is_ok());
    // equally new labels on a device that is not trusted: the devices were used separately
    let other = NewestLabel { devices: vec![before.current[0].1], ..expected(&after) };
    assert!(import(1, other).is_err());
}

#[test]
fn what_one_copy_spoils_is_mended_from_the_other() {
    for spoilt in [0, 1] {
        let (mut harness, volume) = mirrored(&[64, 64], 2);
        harness.command(Command::Checkpoint).unwrap();
        let clean = harness.media[spoilt].clone();
        // everything between the areas rots: data, nodes, objects, headers
        let end = harness.media[spoilt].len() - (1 << 20);
        harness.media[spoilt][1 << 20..end].iter_mut().for_each(|byte| *byte ^= 0x21);
        harness.reopen();
        DATA.check(&mut harness, Target::Head(volume), 1);
        let info = harness.engine.pool().unwrap();
        assert!(info.devices[spoilt].errors > 0 && info.devices[spoilt].repaired > 0, "{info:?}");
        assert_eq!(info.devices[1 - spoilt].errors, 0);
        let same = |media: &[u8]| media.chunks(4096).zip(clean.chunks(4096)).filter(|(a, b)| a == b).count();
        assert!(same(&harness.media[spoilt]) > 512, "{} {:?}", same(&harness.media[spoilt]), harness.engine.pool());
    }
}

#[test]
fn a_log_that_each_copy_has_in_part_is_read_whole() {
    let (harness, volume) = mirrored(&[64, 64], 2);
    // no checkpoint: only the log has the data; every second page of one copy is lost, and the
    // other pages of the other copy
    let mut media = harness.media.clone();
    let end = media[0].len() - (1 << 20);
    for (at, device) in (1 << 20..end).step_by(64 << 10).zip([0, 1].into_iter().cycle()) {
        media[device][at..at + (64 << 10)].fill(0);
    }
    let mut harness = Harness::import(media).unwrap();
    DATA.check(&mut harness, Target::Head(volume), 1);
}

/// INV-LEVEL-1: a batch that an import finds on one copy alone is on the others before it serves.
#[test]
fn what_one_copy_of_the_log_has_is_on_all_before_an_import_serves() {
    for lost in [0, 1] {
        let (mut harness, volume) = mirrored(&[32, 32], 2);
        let head = Target::Head(volume);
        harness.request(head, Op::Flush, 0, 0, &[]).unwrap();
        let before = harness.media[lost].clone();
        harness.request(head, Op::Write, 0, 4096, &[0xa7; 4096]).unwrap();
        // the power cut takes the write from one device
        harness.media[lost] = before;
        let mut harness = Harness::import(harness.media).unwrap();
        assert_eq!(harness.request(head, Op::Read, 0, 4096, &[]).unwrap(), [0xa7; 4096]);
        let mut alone = Harness::import_degraded(vec![harness.media[lost].clone()], true).unwrap();
        assert_eq!(alone.request(head, Op::Read, 0, 4096, &[]).unwrap(), [0xa7; 4096], "only device {} had it", 1 - lost);
    }
}

/// INV-LEVEL-1: a batch with the same number at the same place may be of an earlier incarnation. It
/// was never part of the log, and does not count as a copy of the batch that is.
#[test]
fn a_batch_of_an_earlier_incarnation_is_not_taken_for_a_copy() {
    let (harness, volume) = mirrored(&[32, 32], 2);
    let head = Target::Head(volume);
    let mut harness = Harness::import(harness.media).unwrap();
    let before = harness.media[0].clone();
    harness.request(head, Op::Write, 4096, 4096, &[0xb1; 4096]).unwrap();
    let mut media = harness.media;
    let at = (0..before.len()).step_by(4096).find(|at| before[*at..*at + 4096] != media[0][*at..*at + 4096]).unwrap();
    // a power cut takes the write from one device, which has such a batch there
    let (mut header, mut items) = BatchHeader::decode(&media[0][at..]).unwrap();
    header.incarnation -= 1;
    let payload = [0xa1; 4096];
    let mut encoder = Encoder::with_capacity(64);
    for item in &mut items {
        let Item::Blocks { stored, .. } = item else { panic!("{item:?}") };
        stored.iter_mut().for_each(|block| block.crc = crc32c(&payload));
        item.encode(&mut encoder);
    }
    header.encode(&encoder.into_bytes(), &mut media[0][at..at + 4096]);
    media[0][at + 4096..at + 8192].copy_from_slice(&payload);
    let mut harness = Harness::import(media).unwrap();
    assert_eq!(harness.request(head, Op::Read, 4096, 4096, &[]).unwrap(), [0xb1; 4096]);
    let mut alone = Harness::import_degraded(vec![harness.media[0].clone()], true).unwrap();
    assert_eq!(alone.request(head, Op::Read, 4096, 4096, &[]).unwrap(), [0xb1; 4096]);
    harness.audit();
}

#[test]
fn a_device_that_fails_is_given_up_and_filled_when_it_is_back() {
    let (mut harness, volume) = mirrored(&[64, 64, 64], 2);
    harness.dead = vec![1];
    DATA.write(&mut harness, volume, 2);
    assert_eq!(*harness.engine.state(), PoolState::Online);
    assert_eq!(states(&harness), [MemberState::Present, MemberState::Down, MemberState::Present]);
    DATA.check(&mut harness, Target::Head(volume), 2);
    harness.dead.clear();
    harness.reopen();
    harness.finish_jobs();
    assert_eq!(states(&harness), [MemberState::Present; 3]);
    // now any other device may be lost
    for lost in 0..3 {
        let mut media = harness.media.clone();
        media.remove(lost);
        let mut harness = Harness::import_degraded(media, true).unwrap();
        DATA.check(&mut harness, Target::Head(volume), 2);
    }
}

#[test]
fn the_last_copy_is_not_given_up() {
    let (mut harness, volume) = mirrored(&[64, 64], 2);
    harness.dead = vec![1];
    DATA.write(&mut harness, volume, 2);
    harness.dead = vec![0, 1];
    assert!(harness.request(Target::Head(volume), Op::Write, 0, 4096, &[9; 4096]).is_err());
    assert!(matches!(harness.engine.state(), PoolState::Faulted(_)));
}

#[test]
fn a_missing_device_is_replaced_by_a_new_one() {
    let (harness, volume) = mirrored(&[64, 64], 2);
    let mut media = harness.media;
    media.remove(0);
    let mut harness = Harness::import_degraded(media, true).unwrap();
    let small = harness.new_device(16);
    // a rehearsal gives the command's answer, and changes nothing
    for member in [0, 1, 9].map(MemberId) {
        let rehearsed = harness.command(DeviceCommand::CheckDevices(DeviceChange::Replace { member, device: small.geometry })).unwrap_err();
        assert_eq!(rehearsed, harness.command(DeviceCommand::Replace { member, device: small }).unwrap_err());
    }
    harness.media.pop();
    let device = harness.new_device(72);
    harness.command(DeviceCommand::CheckDevices(DeviceChange::Replace { member: MemberId(0), device: device.geometry })).unwrap();
    assert_eq!(states(&harness), [MemberState::Down, MemberState::Present]);
    harness.command(DeviceCommand::Replace { member: MemberId(0), device }).unwrap();
    DATA.write(&mut harness, volume, 2);
    harness.finish_jobs();
    assert_eq!(states(&harness), [MemberState::Present; 2]);
    harness.reopen();
    DATA.check(&mut harness, Target::Head(volume), 2);
    // the new device by itself has all data
    let mut alone = Harness::import_degraded(vec![harness.media[1].clone()], true).unwrap();
    DATA.check(&mut alone, Target::Head(volume), 2);
    alone.audit();
}

/// The device that the roots are read from for a resilvered device fails, and is no longer
/// complete.
#[test]
fn roots_come_from_another_device_when_the_first_fails() {
    let (mut harness, volume) = mirrored(&[64, 64], 2);
    let device = harness.new_device(64);
    harness.start(Command::Devices(DeviceCommand::Replace { member: MemberId(1), device }));
    let reads_roots = |io: &Io| io.device.0 == 0 && matches!(io.kind, IoKind::Read { offset: RING_OFFSET, .. });
    let mut late = None;
    for _ in 0..200 {
        harness.turn();
        while let Some(io) = harness.engine.pop_io() {
            if late.is_none() && reads_roots(&io) {
                harness.dead = vec![0];
                harness.write(Target::Head(volume), 0, &DATA.bytes(0, 1));
                late = Some(io);
            } else {
                harness.perform(io);
            }
        }
    }
    assert_eq!(states(&harness)[0], MemberState::Down);
    harness.perform(late.expect("the roots are read of the first device"));
    harness.finish_jobs();
    assert_eq!(states(&harness), [MemberState::Down, MemberState::Present]);
    let mut alone = Harness::import_degraded(vec![harness.media[2].clone()], true).unwrap();
    DATA.check(&mut alone, Target::Head(volume), 1);
}

#[test]
fn a_device_of_any_layout_is_replaced_while_it_is_written() {
    for layout in [Layout::Linear, Layout::Stripe { width: 2, unit: 16384 }, MIRROR] {
        let mut harness = Harness::new(&[64, 64], layout);
        let volume = harness.volume("disk0", SIZE, Compression::Off);
        DATA.write(&mut harness, volume, 1);
        let device = harness.new_device(64);
        harness.command(DeviceCommand::Replace { member: MemberId(1), device }).unwrap();
        DATA.write(&mut harness, volume, 2);
        harness.finish_jobs();
        let devices = harness.engine.pool().unwrap().devices;
        assert_eq!((devices[1].slot, devices[1].replacement), (Some(DeviceSlot(2)), None));
        DATA.write(&mut harness, volume, 3);
        // the old device is no longer part of the pool
        let old = harness.media.remove(1);
        let mut harness = Harness::import(harness.media).unwrap();
        DATA.check(&mut harness, Target::Head(volume), 3);
        harness.audit();
        let mut with_old = harness.media.clone();
        with_old.push(old);
        let refused = Harness::import(with_old).err().unwrap();
        assert_eq!(refused, "device 2 was removed from pool 'pond'; leave it out");
    }
}

#[test]
fn a_replacement_that_was_cut_off_begins_again() {
    let (mut harness, volume) = {
        let mut harness = Harness::new(&[64, 64], Layout::Linear);
        let volume = harness.volume("disk0", SIZE, Compression::Off);
        DATA.write(&mut harness, volume, 1);
        (harness, volume)
    };
    let device = harness.new_device(64);
    harness.start(Command::Devices(DeviceCommand::Replace { member: MemberId(0), device }));
    for _ in 0..40 {
        harness.turn();
        while let Some(io) = harness.engine.pop_io() {
            harness.perform(io);
        }
    }
    assert!(!harness.engine.pool().unwrap().jobs.is_empty());
    harness.reopen();
    harness.finish_jobs();
    harness.media.remove(0);
    let mut harness = Harness::import(harness.media).unwrap();
    DATA.check(&mut harness, Target::Head(volume), 1);
    harness.audit();
}

#[test]
fn a_pool_grows_by_devices() {
    let mut harness = Harness::new(&[16], Layout::Linear);
    let volume = harness.volume("disk0", 64 << 20, Compression::Off);
    let mut full = None;
    for at in (0..64 << 20).step_by(64 << 10) {
        if harness.request(Target::Head(volume), Op::Write, at, 64 << 10, &DATA.bytes(at, 1)).is_err() {
            full = Some(at);
            break;
        }
    }
    let full = full.expect("16 MiB are full");
    let (one, two) = (harness.new_device(64), harness.new_device(64));
    let before = harness.engine.pool().unwrap().size;
    harness
        .command(DeviceCommand::AddDevices {
            groups: vec![GroupSpec { class: Class::Data, layout: MIRROR, devices: None }],
            devices: vec![one, two],
        })
        .unwrap();
    let after = harness.engine.pool().unwrap().size;
    assert!(after > before + (50 << 20) && after < before + (64 << 20), "{before} {after}");
    for at in (full..64 << 20).step_by(64 << 10) {
        harness.request(Target::Head(volume), Op::Write, at, 64 << 10, &DATA.bytes(at, 1)).unwrap();
    }
    harness.reopen();
    for at in (0..64 << 20).step_by(64 << 10) {
        assert!(harness.request(Target::Head(volume), Op::Read, at, 64 << 10, &[]).unwrap() == DATA.bytes(at, 1));
    }
    harness.audit();
}

/// New devices get their labels before the others: a power cut at any stage leaves a pool that can be
/// imported with the new device or without it.
#[test]
fn a_crash_while_a_device_is_added_leaves_a_whole_pool() {
    let mut harness = Harness::new(&[16], Layout::Linear);
    let head = Target::Head(harness.volume("disk0", 1 << 20, Compression::Off));
    harness.request(head, Op::Write, 0, 4096, &[7; 4096]).unwrap();
    let (groups, devices) = (vec![GroupSpec::data(Layout::Linear)], vec![harness.new_device(16)]);
    harness.start(Command::Devices(DeviceCommand::AddDevices { groups, devices }));
    let (mut without, mut with) = (0, 0);
    while harness.engine.pop_reply().is_none() {
        harness.turn();
        for io in std::iter::from_fn(|| harness.engine.pop_io()).collect::<Vec<_>>() {
            harness.perform(io);
            let whole = Harness::import(harness.media.clone());
            with += u32::from(whole.is_ok());
            without += u32::from(whole.is_err());
            let alone = || Harness::import(vec![harness.media[0].clone()]);
            let mut pool = whole.or_else(|_| alone()).expect("it can be imported with the new device or without it");
            assert_eq!(pool.request(head, Op::Read, 0, 4096, &[]).unwrap(), [7; 4096]);
        }
    }
    assert!(with > 1, "{with} with the new device, {without} without it");
}

#[test]
fn two_halves_that_went_different_ways_are_not_joined() {
    let (harness, volume) = mirrored(&[64, 64], 2);
    let mut halves = Vec::new();
    for device in [0, 1] {
        let mut harness = Harness::import_degraded(vec![harness.media[device].clone()], true).unwrap();
        DATA.write(&mut harness, volume, 2 + device as u8);
        halves.push(harness.media.remove(0));
    }
    let refused = Harness::import(halves).err().unwrap();
    assert!(refused.contains("leave it out"), "{refused}");
}

#[test]
fn a_device_is_known_although_a_third_one_was_away_at_the_time() {
    let (harness, volume) = mirrored(&[64, 64, 64], 3);
    let [a, b, c] = <[Vec<u8>; 3]>::try_from(harness.media).unwrap();
    // the third device is missing, which the others' labels record; then the second is, and stays
    // unchanged
    let mut two = Harness::import_degraded(vec![a, b], true).unwrap();
    DATA.write(&mut two, volume, 2);
    let [a, b] = <[Vec<u8>; 2]>::try_from(two.media).unwrap();
    let mut one = Harness::import_degraded(vec![a], true).unwrap();
    DATA.write(&mut one, volume, 3);
    // the third is back and resilvered; the label of the second does not show that
    let mut two = Harness::import_degraded(vec![one.media.remove(0), c], true).unwrap();
    two.finish_jobs();
    DATA.write(&mut two, volume, 4);
    let [a, c] = <[Vec<u8>; 2]>::try_from(two.media).unwrap();
    let mut all = Harness::import(vec![a.clone(), b.clone(), c.clone()]).unwrap();
    all.finish_jobs();
    assert_eq!(states(&all), [MemberState::Present; 3]);
    let mut alone = Harness::import_degraded(vec![all.media.remove(1)], true).unwrap();
    DATA.check(&mut alone, Target::Head(volume), 4);
    // if it was used separately meanwhile, it is refused, even while one of the devices that it was
    // used without is missing
    let mut apart = Harness::import_degraded(vec![b], true).unwrap();
    DATA.write(&mut apart, volume, 5);
    let b = apart.media.remove(0);
    let refused = Harness::import(vec![a.clone(), b.clone(), c.clone()]).err().unwrap();
    assert_eq!(refused, "device 1 was written to without the others, and they without it; leave it out, or leave them out");
    let mut again = Harness::import_degraded(vec![c], true).unwrap();
    DATA.write(&mut again, volume, 6);
    let refused = Harness::import_degraded(vec![again.media.remove(0), b], true).err().unwrap();
    assert!(refused.contains("written to without the others"), "{refused}");
}

#[test]
fn a_device_that_was_used_apart_is_known_although_all_others_failed_or_were_replaced() {
    let (harness, volume) = mirrored(&[64, 64, 64], 3);
    let [a, _, c] = <[Vec<u8>; 3]>::try_from(harness.media).unwrap();
    // the second device fails, and the third one with it: its label does not say so
    let mut two = Harness::import_degraded(vec![a, c.clone()], true).unwrap();
    DATA.write(&mut two, volume, 2);
    let mut one = Harness::import_degraded(vec![two.media.remove(0)], true).unwrap();
    // the second one is replaced, and then the first one fails
    one.replace(1, 64);
    DATA.write(&mut one, volume, 3);
    let [a, replaced] = <[Vec<u8>; 2]>::try_from(one.media).unwrap();
    let mut replaced = Harness::import_degraded(vec![replaced], true).unwrap();
    DATA.write(&mut replaced, volume, 4);
    let replaced = replaced.media.remove(0);
    // the third one alone is as it was before that
    let mut old = Harness::import_degraded(vec![replaced.clone(), c.clone()], true).unwrap();
    old.finish_jobs();
    let mut alone = Harness::import_degraded(vec![old.media.remove(1)], true).unwrap();
    DATA.check(&mut alone, Target::Head(volume), 4);
    // or it was used without the others
    let mut apart = Harness::import_degraded(vec![c], true).unwrap();
    DATA.write(&mut apart, volume, 5);
    let c = apart.media.remove(0);
    let refused = Harness::import(vec![a, replaced.clone(), c.clone()]).err().unwrap();
    assert_eq!(refused, "device 2 was written to without the others, and they without it; leave it out, or leave them out");
    let refused = Harness::import_degraded(vec![replaced.clone(), c.clone()], true).err().unwrap();
    assert!(refused.contains("written to without the others"), "{refused}");
    for (one, version) in [(replaced, 4), (c, 5)] {
        DATA.check(&mut Harness::import_degraded(vec![one], true).unwrap(), Target::Head(volume), version);
    }
}

#[test]
fn labels_say_how_devices_looked_and_go_on_saying_it_of_missing_ones() {
    let (mut harness, volume) = mirrored(&[64, 64], 2);
    let ids: Vec<DeviceId> = harness.engine.pool().unwrap().devices.iter().map(|d| d.id).collect();
    let note = |at: usize, path: &str| DeviceNote { device: ids[at], size: 64 << 20, path: path.into(), serial: format!("S{at}") };
    let notes = |harness: &Harness, at: usize| Label::decode(&harness.media[at][..SECTOR_BYTES]).unwrap().notes;
    let before = harness.engine.labels_in_force();
    harness.engine.describe_devices(vec![note(0, "/dev/a"), note(1, "/dev/b")]);
    harness.settle();
    assert_eq!(harness.engine.labels_in_force(), before, "the pool is what it was");
    assert_eq!(notes(&harness, 0), [note(0, "/dev/a"), note(1, "/dev/b")]);
    assert_eq!(notes(&harness, 0), notes(&harness, 1));
    let mut harness = Harness::import_degraded(vec![harness.media[1].clone()], true).unwrap();
    harness.engine.describe_devices(vec![note(1, "/dev/c")]);
    harness.settle();
    assert_eq!(notes(&harness, 0), [note(0, "/dev/a"), note(1, "/dev/c")]);
    DATA.check(&mut harness, Target::Head(volume), 1);
    // a read-only import writes nothing
    let tuning = Tuning { read_only: true, degraded: true, ..Tuning::default() };
    let mut harness = Harness::import_with(harness.media.clone(), tuning, 1).unwrap();
    harness.engine.describe_devices(vec![note(1, "/dev/d")]);
    harness.settle();
    assert_eq!(notes(&harness, 0), [note(0, "/dev/a"), note(1, "/dev/c")]);
}

/// A batch that is torn on one copy and unreadable on the other was not durable: the log ends before
/// it, and the import is not refused.
#[test]
fn a_torn_batch_beside_a_copy_that_cannot_be_read_ends_the_log() {
    let (mut harness, volume) = mirrored(&[64, 64], 2);
    harness.request(Target::Head(volume), Op::Flush, 0, 0, &[]).unwrap();
    harness.request(Target::Head(volume), Op::Write, 0, 8192, &[0xa7; 8192]).unwrap();
    for (torn, other) in [(0, 1), (1, 0)] {
        let mut media = harness.media.clone();
        let page = |page: &[u8]| page.iter().all(|byte| *byte == 0xa7);
        let at = media[torn].chunks(4096).position(page).unwrap() * 4096;
        media[torn][at..at + 4096].fill(0);
        let mut again = Harness::begin_import(media, harness.tuning.clone(), harness.now);
        again.bad = Some((other as u16, at as u64));
        again.settle();
        assert_eq!(*again.engine.state(), PoolState::Online);
        again.bad = None;
        DATA.check(&mut again, Target::Head(volume), 1);
        again.audit();
    }
}

/// A page behind the end of the log that one copy cannot read: the other one shows the end.
#[test]
fn an_unreadable_page_behind_the_log_does_not_keep_a_mirror_from_opening() {
    let (mut harness, volume) = mirrored(&[64, 64], 2);
    harness.request(Target::Head(volume), Op::Write, 0, 4096, &[0xa7; 4096]).unwrap();
    let page = |page: &[u8]| page.iter().all(|byte| *byte == 0xa7);
    let at = harness.media[0].chunks(4096).position(page).unwrap() as u64 * 4096;
    for device in [0, 1] {
        let mut again = Harness::begin_import(harness.media.clone(), harness.tuning.clone(), harness.now);
        again.bad = Some((device, at + 4096));
        again.settle();
        assert_eq!(*again.engine.state(), PoolState::Online);
        assert_eq!(again.request(Target::Head(volume), Op::Read, 0, 4096, &[]).unwrap(), [0xa7; 4096]);
    }
}

/// A device that is given up between two tries of a read changes the order of the other copies: each
/// of them is tried all the same.
#[test]
fn every_copy_is_tried_although_a_device_is_given_up_meanwhile() {
    let (mut harness, volume) = mirrored(&[32, 32, 32], 3);
    harness.request(Target::Head(volume), Op::Write, 0, 4096, &[0xa7; 4096]).unwrap();
    harness.command(Command::Checkpoint).unwrap();
    let at = harness.media[0].chunks(4096).position(|page| page.iter().all(|byte| *byte == 0xa7)).unwrap() * 4096;
    let mut tried = 0;
    for (down, rotten) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
        let mut media = harness.media.clone();
        media[rotten][at + 7] ^= 1;
        let mut again = Harness::import(media).unwrap();
        again.submit(Target::Head(volume), Op::Read, 0, 4096);
        let mut held = None;
        for _ in 0..50 {
            again.turn();
            for io in std::iter::from_fn(|| again.engine.pop_io()).collect::<Vec<_>>() {
                let block = matches!(io.kind, IoKind::Read { offset, length: 4096, .. } if offset == at as u64);
                if held.is_none() && block && usize::from(io.device.0) == down {
                    held = Some(io);
                    again.dead = vec![down as u16];
                    again.write(Target::Head(volume), 1 << 20, &[1; 4096]);
                } else {
                    again.perform(io);
                }
            }
        }
        let Some(held) = held else { continue };
        tried += 1;
        again.perform(held);
        again.settle();
        assert_eq!(states(&again)[down], MemberState::Down);
        let answers: Vec<_> = std::iter::from_fn(|| again.engine.pop_completion()).collect();
        assert!(answers.len() == 2 && answers.iter().all(|done| done.result.is_ok()), "without {down}, {rotten} is wrong");
    }
    assert!(tried > 1, "{tried}");
}
