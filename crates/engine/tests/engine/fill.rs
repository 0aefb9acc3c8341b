//! Devices that are filled: in the place of another device, and after they were away.

use millpond_block::{DeviceSlot, IoKind, MemberId, Op};
use millpond_engine::{Command, Compression, DeviceCommand, Layout, MemberState, PoolState, Target, Tuning};
use millpond_format::{Label, RING_OFFSET, RING_SLOTS, SECTOR_BYTES};

use crate::harness::Harness;
use crate::mirror::{DATA, MIRROR, mirrored, states};
use millpond_testing::Random;

/// The device that a piece is read from is given up. The device that is being filled is no source
/// for the next try, although it is the next one to be read.
#[test]
fn a_device_is_not_filled_from_itself() {
    let (mut harness, volume) = mirrored(&[64, 64, 64], 3);
    harness.dead = vec![2];
    DATA.write(&mut harness, volume, 2);
    let mut harness = Harness::begin_import(harness.media, harness.tuning, harness.now);
    let mut held = Vec::new();
    for _ in 0..2_000 {
        harness.turn();
        let copies = *harness.engine.state() == PoolState::Online && states(&harness)[2] == MemberState::Filling;
        for io in std::iter::from_fn(|| harness.engine.pop_io()).collect::<Vec<_>>() {
            // an extent; nodes are shorter
            let piece = matches!(io.kind, IoKind::Read { length, .. } if length == 64 << 10);
            if copies && piece && io.device.0 == 0 && held.len() < 4 {
                held.push(io);
            } else {
                harness.perform(io);
            }
        }
        if !held.is_empty() && harness.dead.is_empty() {
            harness.dead = vec![0];
            harness.write(Target::Head(volume), 0, &DATA.bytes(0, 2));
        }
    }
    assert!(!held.is_empty());
    assert_eq!(states(&harness)[0], MemberState::Down);
    held.into_iter().for_each(|io| harness.perform(io));
    harness.finish_jobs();
    assert_eq!(states(&harness), [MemberState::Down, MemberState::Present, MemberState::Present]);
    let mut alone = Harness::import_degraded(vec![harness.media[2].clone()], true).unwrap();
    DATA.check(&mut alone, Target::Head(volume), 2);
    alone.audit();
}

/// A root is not written while labels that name a new device are: it would be on the old one alone.
#[test]
fn no_root_is_written_before_all_labels_name_a_new_device() {
    let mut harness = Harness::new(&[16], Layout::Linear);
    let head = Target::Head(harness.volume("disk0", 1 << 20, Compression::Off));
    let old = harness.engine.pool().unwrap().devices[0].id;
    let device = harness.new_device(16);
    harness.start(Command::Devices(DeviceCommand::Replace { member: MemberId(0), device }));
    let ring = RING_OFFSET..RING_OFFSET + RING_SLOTS * SECTOR_BYTES as u64;
    let mut label = None;
    for turn in 0..500u64 {
        if turn % 10 == 0 {
            harness.write(head, turn % 256 * 4096, &[7; 4096]);
            harness.start(Command::Checkpoint);
        }
        harness.turn();
        for io in std::iter::from_fn(|| harness.engine.pop_io()).collect::<Vec<_>>() {
            let IoKind::Write { offset, pieces } = &io.kind else {
                harness.perform(io);
                continue;
            };
            assert!(label.is_none() || !ring.contains(offset), "a root on device {}", io.device.0);
            let sector = (*offset == 0).then(|| Label::decode(&pieces[0].bytes()[..SECTOR_BYTES]).unwrap());
            if label.is_none() && sector.is_some_and(|label| label.shape.members[0].device != old) {
                label = Some(io);
            } else {
                harness.perform(io);
            }
        }
    }
    harness.perform(label.expect("labels name the new device"));
    harness.finish_jobs();
    assert!(std::iter::from_fn(|| harness.engine.pop_reply()).filter(|(_, reply)| reply.is_ok()).count() > 40);
    assert_eq!(harness.engine.pool().unwrap().devices[0].slot, Some(DeviceSlot(1)));
}

/// A device that replaces one which failed meanwhile gets flushes like the others: it is called whole
/// when everything on it is durable.
#[test]
fn what_replaces_a_failed_device_is_flushed_before_it_is_whole() {
    let (mut harness, volume) = mirrored(&[32, 32], 2);
    let device = harness.new_device(32);
    harness.start(Command::Devices(DeviceCommand::Replace { member: MemberId(1), device }));
    while harness.engine.pop_reply().is_none() {
        harness.step();
    }
    harness.dead = vec![1];
    harness.write(Target::Head(volume), 0, &DATA.bytes(0, 1));
    while states(&harness)[1] != MemberState::Down {
        harness.step();
    }
    // the device as it is after a loss of power
    let mut durable = harness.media[2].clone();
    while harness.engine.pool().unwrap().devices[1].slot != Some(DeviceSlot(2)) {
        harness.turn();
        harness.now += 10;
        for io in std::iter::from_fn(|| harness.engine.pop_io()).collect::<Vec<_>>() {
            let flushed = io.device.0 == 2 && matches!(io.kind, IoKind::Flush);
            harness.perform(io);
            if flushed {
                durable.clone_from(&harness.media[2]);
            }
        }
    }
    let mut alone = Harness::import_degraded(vec![durable], true).unwrap();
    DATA.check(&mut alone, Target::Head(volume), 1);
    alone.audit();
}

/// A filled device is listed as whole when the labels say so, and the pool is not closed before that.
#[test]
fn a_filled_device_is_whole_when_the_labels_say_so() {
    let (mut harness, volume) = mirrored(&[32, 32], 2);
    harness.dead = vec![1];
    DATA.write(&mut harness, volume, 2);
    let mut harness = Harness::begin_import(harness.media, harness.tuning, harness.now);
    let mut held = None;
    for _ in 0..2_000 {
        harness.turn();
        for io in std::iter::from_fn(|| harness.engine.pop_io()).collect::<Vec<_>>() {
            let sector = match &io.kind {
                IoKind::Write { offset: 0, pieces } => Label::decode(&pieces[0].bytes()[..SECTOR_BYTES]).ok(),
                _ => None,
            };
            if held.is_none() && io.device.0 == 1 && sector.is_some_and(|label| label.shape.members[1].state == MemberState::Present) {
                held = Some(io);
                harness.start(Command::Close);
            } else {
                harness.perform(io);
            }
        }
        assert!(held.is_none() || states(&harness)[1] == MemberState::Filling);
    }
    assert_eq!(*harness.engine.state(), PoolState::Closing);
    harness.perform(held.expect("labels say that it is whole"));
    harness.settle();
    assert_eq!(*harness.engine.state(), PoolState::Closed);
    let mut alone = Harness::import_degraded(vec![harness.media[1].clone()], true).unwrap();
    DATA.check(&mut alone, Target::Head(volume), 2);
}

/// Segments that are used again while a device is filled are not copied: guests' writes go to that
/// device, too, in any order with the copies.
#[test]
fn a_device_is_filled_beside_writes_that_end_in_any_order() {
    for seed in 0..20 {
        let tuning = Tuning { checkpoint_log_bytes: 256 << 10, ..Tuning::default() };
        let mut harness = Harness::with(&[9, 9], MIRROR, tuning);
        let head = Target::Head(harness.volume("disk0", 2 << 20, Compression::Off));
        assert_eq!(harness.write_blocks(head, 0..512, 0, 16), 0);
        harness.settle();
        let device = harness.new_device(9);
        harness.start(Command::Devices(DeviceCommand::Replace { member: MemberId(1), device }));
        let mut random = Random::new(seed);
        let (mut pending, mut newest, mut writes) = (Vec::new(), [0; 512], 0);
        while harness.engine.pool().unwrap().devices[1].slot != Some(DeviceSlot(2)) {
            harness.turn();
            pending.extend(std::iter::from_fn(|| harness.engine.pop_io()));
            while writes < 16 {
                let block = random.below(512);
                newest[block as usize] = random.byte();
                harness.write(head, block * 4096, &[newest[block as usize]; 4096]);
                writes += 1;
            }
            for _ in 0..random.below(5).min(pending.len() as u64) {
                let io = pending.swap_remove(random.below(pending.len() as u64) as usize);
                harness.perform(io);
            }
            writes -= std::iter::from_fn(|| harness.engine.pop_completion()).count();
        }
        pending.into_iter().for_each(|io| harness.perform(io));
        harness.settle();
        let mut alone = Harness::import_degraded(vec![harness.media[2].clone()], true).unwrap();
        for (block, byte) in newest.into_iter().enumerate() {
            assert_eq!(alone.request(head, Op::Read, block as u64 * 4096, 4096, &[]).unwrap(), [byte; 4096], "block {block}, seed {seed}");
        }
        alone.audit();
    }
}

/// True when a device is being filled, and not only about to be.
fn copying(harness: &Harness) -> bool {
    harness.engine.pool().unwrap().jobs.iter().any(|job| job.total > 0)
}

/// Requests do not wait for a device that is being filled, unless it has a lot to write; and it is
/// whole only when it has written everything (INV-FILL-3).
#[test]
fn requests_do_not_wait_for_a_device_that_is_filled() {
    for layout in [Layout::Linear, MIRROR] {
        let sizes: &[usize] = if layout == MIRROR { &[64, 64] } else { &[64] };
        let mut harness = Harness::new(sizes, layout);
        let head = Target::Head(harness.volume("disk0", 32 << 20, Compression::Off));
        assert_eq!(harness.write_blocks(head, 0..16, 1, 16), 0);
        harness.settle();
        let (new, device) = (sizes.len() as u16, harness.new_device(64));
        harness.start(Command::Devices(DeviceCommand::Replace { member: MemberId(0), device }));
        let (mut held, mut block, mut waiting) = (Vec::new(), 0u64, 0);
        let mut turns_without = 0;
        while turns_without < 200 {
            harness.turn();
            harness.now += 1;
            for io in std::iter::from_fn(|| harness.engine.pop_io()).collect::<Vec<_>>() {
                if io.device.0 == new && matches!(io.kind, IoKind::Write { .. }) && block > 0 {
                    held.push(io);
                } else {
                    harness.perform(io);
                }
            }
            let ended = std::iter::from_fn(|| harness.engine.pop_completion()).count();
            waiting -= ended;
            turns_without = if ended == 0 && block > 0 { turns_without + 1 } else { 0 };
            let fills = copying(&harness);
            while waiting < 8 && fills {
                harness.write(head, block % 8192 * 4096, &[(block % 251) as u8; 4096]);
                (block, waiting) = (block + 1, waiting + 1);
            }
        }
        // 8 MiB of batches, each of which has a page of its own
        let acknowledged = block - waiting as u64;
        assert!((900..=2048).contains(&acknowledged), "{acknowledged} blocks were acknowledged");
        assert_eq!(harness.engine.pool().unwrap().devices[0].slot, Some(DeviceSlot(0)), "a device that lacks writes is whole");
        held.into_iter().for_each(|io| harness.perform(io));
        harness.finish_jobs();
        assert_eq!(harness.engine.pool().unwrap().devices[0].slot, Some(DeviceSlot(new)));
        let mut alone = Harness::import_degraded(vec![harness.media[usize::from(new)].clone()], layout == MIRROR).unwrap();
        for at in 0..block {
            assert_eq!(alone.request(head, Op::Read, at * 4096, 4096, &[]).unwrap(), [(at % 251) as u8; 4096], "block {at}");
        }
        alone.audit();
    }
}

/// A device that is filled has answered all writes, and the flush after them, before it takes the
/// place of another one.
#[test]
fn a_device_that_lacks_a_write_is_not_whole() {
    let mut harness = Harness::new(&[16], Layout::Linear);
    let head = Target::Head(harness.volume("disk0", 1 << 20, Compression::Off));
    let device = harness.new_device(16);
    harness.start(Command::Devices(DeviceCommand::Replace { member: MemberId(0), device }));
    let mut held: Option<millpond_block::Io> = None;
    for turn in 0..1_000 {
        harness.turn();
        harness.now += 1;
        let fills = copying(&harness);
        if fills && turn < 500 && held.is_none() {
            harness.write(head, 0, &[9; 4096]);
        }
        for io in std::iter::from_fn(|| harness.engine.pop_io()).collect::<Vec<_>>() {
            let written =
                matches!(&io.kind, IoKind::Write { pieces, .. } if pieces.iter().any(|piece| piece.bytes().starts_with(&[9; 4096])));
            if held.is_none() && io.device.0 == 1 && written {
                held = Some(io);
            } else {
                harness.perform(io);
            }
        }
    }
    assert!(harness.engine.pop_completion().is_some(), "the write is acknowledged");
    assert_eq!(harness.engine.pool().unwrap().devices[0].slot, Some(DeviceSlot(0)));
    harness.perform(held.expect("a write to the new device"));
    harness.finish_jobs();
    assert_eq!(harness.engine.pool().unwrap().devices[0].slot, Some(DeviceSlot(1)));
    let mut alone = Harness::import(vec![harness.media[1].clone()]).unwrap();
    assert_eq!(alone.request(head, Op::Read, 0, 4096, &[]).unwrap(), [9; 4096]);
    alone.audit();
}

/// While labels give a filled device its place, the next device is filled: only that one may lag.
#[test]
fn a_device_that_is_about_to_be_whole_is_waited_for_while_the_next_one_is_filled() {
    let mut harness = Harness::new(&[16, 16], Layout::Linear);
    let head = Target::Head(harness.volume("disk0", 1 << 20, Compression::Off));
    let old = harness.engine.pool().unwrap().devices[0].id;
    for member in [MemberId(0), MemberId(1)] {
        let device = harness.new_device(16);
        harness.start(Command::Devices(DeviceCommand::Replace { member, device }));
        let mut reply = None;
        while reply.is_none() {
            harness.step();
            reply = harness.engine.pop_reply();
        }
        assert!(reply.is_some_and(|(_, reply)| reply.is_ok()));
    }
    assert_eq!(harness.engine.pool().unwrap().jobs.len(), 2);
    let (mut labels, mut held, mut written) = (Vec::new(), Vec::new(), false);
    for _ in 0..1_000 {
        harness.turn();
        harness.now += 1;
        if !written && !labels.is_empty() && copying(&harness) {
            written = true;
            harness.write(head, 0, &[9; 4096]);
        }
        for io in std::iter::from_fn(|| harness.engine.pop_io()).collect::<Vec<_>>() {
            let IoKind::Write { offset, pieces } = &io.kind else {
                harness.perform(io);
                continue;
            };
            let sector = (*offset == 0).then(|| Label::decode(&pieces[0].bytes()[..SECTOR_BYTES]).unwrap());
            if sector.is_some_and(|label| label.shape.members[0].device != old) {
                labels.push(io);
            } else if pieces.iter().any(|piece| piece.bytes().starts_with(&[9; 4096])) && io.device.0 == 2 {
                held.push(io);
            } else {
                harness.perform(io);
            }
        }
    }
    assert_eq!(held.len(), 1, "the write goes to the device that is about to be whole");
    assert!(harness.engine.pop_completion().is_none(), "a write is acknowledged that this device does not have");
    held.into_iter().chain(labels).for_each(|io| harness.perform(io));
    harness.finish_jobs();
    let media = [harness.media[2].clone(), harness.media[3].clone()];
    let mut alone = Harness::import(media.to_vec()).unwrap();
    assert_eq!(alone.request(head, Op::Read, 0, 4096, &[]).unwrap(), [9; 4096]);
    alone.audit();
}
