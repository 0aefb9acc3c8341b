//! Devices are removed during writes, with every layout; afterwards the pool does not need them.

use millpond_block::{DeviceSlot, IoKind, MemberId, Op};
use millpond_engine::{
    Busy, Class, Command, CommandError, Compression, DeviceChange, DeviceCommand, GroupSpec, Invalid, JobCommand, JobKind, Layout,
    PoolState, RemovalPlan, Reply, SnapshotId, Target, Tuning, VolumeId,
};

use crate::content::Steps;
use crate::harness::Harness;
use millpond_testing::Random;

pub const SIZE: u64 = 8 << 20;
pub const DATA: Steps = Steps { size: SIZE, step: 256 << 10 };
pub const MIRROR: Layout = Layout::Mirror { copies: 2 };

/// A pool with a snapshot of one round and a head of another.
pub fn pool(sizes: &[usize], layout: Layout) -> (Harness, VolumeId, SnapshotId) {
    let mut harness = Harness::new(sizes, layout);
    let volume = harness.volume("disk0", SIZE, Compression::Off);
    DATA.write(&mut harness, volume, 1);
    let snapshot = harness.snapshot(volume, "one");
    DATA.write(&mut harness, volume, 2);
    (harness, volume, snapshot)
}

fn add(harness: &mut Harness, layout: Layout, sizes: &[usize]) {
    let devices = sizes.iter().map(|mib| harness.new_device(*mib)).collect();
    harness.command(DeviceCommand::AddDevices { groups: vec![GroupSpec { class: Class::Data, layout, devices: None }], devices }).unwrap();
}

/// Removes a member during writes, and then its device, whose position reads as noise.
fn remove(harness: &mut Harness, volume: VolumeId, member: MemberId, round: u8) {
    let device = harness.engine.pool().unwrap().devices.iter().find(|d| d.member == member).unwrap().slot.unwrap().index();
    harness.command(DeviceCommand::Remove { member, dry_run: false }).unwrap();
    DATA.write(harness, volume, round);
    harness.finish_jobs();
    assert!(harness.engine.pool().unwrap().devices.iter().all(|d| d.member != member), "{:?}", harness.engine.pool());
    harness.media[device].fill(0x77);
}

/// Imports from the devices that still belong to the pool.
fn reimport(harness: Harness) -> Harness {
    let here: Vec<usize> = harness.engine.pool().unwrap().devices.iter().filter_map(|d| d.slot.map(DeviceSlot::index)).collect();
    let media = here.iter().map(|at| harness.media[*at].clone()).collect();
    Harness::import(media).unwrap()
}

/// Imports from these devices, and checks a snapshot of round 1 and a head of another round.
pub fn reimport_whole(harness: Harness, volume: VolumeId, snapshot: SnapshotId, round: u8) -> Harness {
    let mut harness = reimport(harness);
    DATA.check(&mut harness, Target::Head(volume), round);
    DATA.check(&mut harness, Target::Snapshot(snapshot), 1);
    harness.audit();
    harness
}

#[test]
fn a_device_leaves_each_layout() {
    for layout in [Layout::Linear, Layout::Stripe { width: 2, unit: 16384 }, Layout::Stripe { width: 3, unit: 65536 }] {
        let (mut harness, volume, snapshot) = pool(&[64, 64, 64], layout);
        add(&mut harness, Layout::Linear, &[64]);
        remove(&mut harness, volume, MemberId(1), 3);
        DATA.check(&mut harness, Target::Head(volume), 3);
        DATA.check(&mut harness, Target::Snapshot(snapshot), 1);
        harness.audit();
        reimport_whole(harness, volume, snapshot, 3);
    }
}

/// Pools in which nearly every segment has a part on every device.
pub fn without_room_elsewhere() -> Vec<(Vec<usize>, Layout)> {
    let stripe = |width| Layout::Stripe { width, unit: 16384 };
    let parity = |parity| Layout::Parity { width: 16, parity, unit: 65536 };
    vec![
        (vec![64; 2], stripe(2)),
        (vec![64, 72, 80], stripe(3)),
        (vec![32; 5], stripe(4)),
        (vec![64; 3], Layout::Mirror { copies: 2 }),
        (vec![128; 3], parity(1)),
        (vec![96, 128, 96, 96], parity(1)),
        (vec![96; 6], parity(2)),
    ]
}

#[test]
fn a_device_leaves_where_every_segment_has_a_part_on_it() {
    for (sizes, layout) in without_room_elsewhere() {
        for member in [0, sizes.len() - 1].map(MemberId::at) {
            let (mut harness, volume, snapshot) = pool(&sizes, layout);
            let size = harness.engine.pool().unwrap().size;
            remove(&mut harness, volume, member, 3);
            DATA.check(&mut harness, Target::Head(volume), 3);
            DATA.check(&mut harness, Target::Snapshot(snapshot), 1);
            harness.audit();
            let mut harness = reimport_whole(harness, volume, snapshot, 3);
            // the remaining devices are completely in use
            let info = harness.engine.pool().unwrap();
            assert_eq!(info.devices.len() + 1, sizes.len());
            let parity = if let Layout::Parity { parity, .. } = layout { usize::from(parity) } else { 0 };
            let (before, after) = ((sizes.len() - parity) as u64, (sizes.len() - 1 - parity) as u64);
            assert!(info.size * before * 10 > size * after * 8, "{layout:?} {size} {info:?}");
            assert!(info.devices.iter().all(|device| device.class == Class::Data), "{info:?}");
            DATA.write(&mut harness, volume, 4);
            DATA.check(&mut harness, Target::Head(volume), 4);
        }
    }
}

#[test]
fn one_device_after_another_leaves_parity() {
    let (mut harness, volume, snapshot) = pool(&[96; 7], Layout::Parity { width: 16, parity: 2, unit: 65536 });
    for (member, round) in [(3, 3), (0, 4), (6, 5), (5, 6)] {
        remove(&mut harness, volume, MemberId(member), round);
        DATA.check(&mut harness, Target::Head(volume), round);
    }
    let harness = reimport_whole(harness, volume, snapshot, 6);
    assert_eq!(harness.engine.pool().unwrap().devices.len(), 3);
}

#[test]
fn a_removal_in_steps_goes_on_after_a_crash() {
    for (sizes, layout) in without_room_elsewhere() {
        for crash_at in [10, 40, 90, 160, 250, 400] {
            let (mut harness, volume, snapshot) = pool(&sizes, layout);
            harness.command(DeviceCommand::Remove { member: MemberId(1), dry_run: false }).unwrap();
            for _ in 0..crash_at {
                harness.turn();
                while let Some(io) = harness.engine.pop_io() {
                    harness.perform(io);
                }
            }
            harness.reopen();
            harness.finish_jobs();
            assert_eq!(harness.engine.pool().unwrap().devices.len(), sizes.len() - 1);
            reimport_whole(harness, volume, snapshot, 2);
        }
    }
}

#[test]
fn every_device_is_exchanged_for_new_ones() {
    let (mut harness, volume, snapshot) = pool(&[64, 72, 80], Layout::Stripe { width: 3, unit: 16384 });
    // the rings of roots have gone round once; those of new devices begin as zeroes
    (0..130).for_each(|_| _ = harness.command(Command::Checkpoint).unwrap());
    add(&mut harness, Layout::Mirror { copies: 2 }, &[96, 96]);
    for (member, round) in [(0, 3), (2, 4), (1, 5)] {
        remove(&mut harness, volume, MemberId(member), round);
        DATA.check(&mut harness, Target::Head(volume), round);
    }
    let mut harness = reimport_whole(harness, volume, snapshot, 5);
    assert_eq!(harness.engine.pool().unwrap().devices.len(), 2);
    // removing one side of the mirror that was added last removes the whole mirror
    add(&mut harness, Layout::Linear, &[64]);
    remove(&mut harness, volume, MemberId(3), 6);
    let harness = reimport_whole(harness, volume, snapshot, 6);
    assert_eq!(harness.engine.pool().unwrap().devices.len(), 1);
}

#[test]
fn what_does_not_fit_is_refused_before_it_begins() {
    let (mut harness, volume, _) = pool(&[64, 16], Layout::Linear);
    let refused = harness.command(DeviceCommand::Remove { member: MemberId(0), dry_run: false });
    assert!(matches!(&refused, Err(CommandError::Invalid(Invalid::NoSpaceElsewhere { .. }))), "{refused:?}");
    harness.command(DeviceCommand::Remove { member: MemberId(1), dry_run: false }).unwrap();
    harness.finish_jobs();
    let refused = harness.command(DeviceCommand::Remove { member: MemberId(0), dry_run: false });
    assert!(matches!(&refused, Err(CommandError::Invalid(Invalid::DeviceNeeded))), "{refused:?}");
    assert!(matches!(harness.command(DeviceCommand::Remove { member: MemberId(1), dry_run: false }), Err(CommandError::NotFound(_))));
    DATA.check(&mut harness, Target::Head(volume), 2);
}

#[test]
fn what_just_fits_on_the_others_leaves() {
    let byte = |mib: u64| vec![mib as u8; 1 << 20];
    for (sizes, layout) in without_room_elsewhere().into_iter().step_by(2) {
        let fill = |filled: u64| {
            let mut harness = Harness::new(&sizes, layout);
            let volume = harness.volume("disk0", 1 << 30, Compression::Off);
            for mib in 0..filled {
                harness.request(Target::Head(volume), Op::Write, mib << 20, 1 << 20, &byte(mib)).unwrap();
            }
            (harness, volume)
        };
        let (mut harness, volume) = fill(0);
        let mut fits = 0;
        let refused = loop {
            harness.request(Target::Head(volume), Op::Write, fits << 20, 1 << 20, &byte(fits)).unwrap();
            match harness.command(DeviceCommand::Remove { member: MemberId(0), dry_run: true }) {
                Ok(_) => fits += 1,
                Err(refused) => break refused,
            }
        };
        assert!(matches!(&refused, CommandError::Invalid(Invalid::NoSpaceElsewhere { .. } | Invalid::NoRoomToMove)), "{refused:?}");
        let (mut harness, volume) = fill(fits);
        harness.command(DeviceCommand::Remove { member: MemberId(0), dry_run: false }).unwrap();
        harness.finish_jobs();
        assert_eq!(harness.engine.pool().unwrap().devices.len(), sizes.len() - 1, "{layout:?} {fits}");
        for mib in 0..fits {
            assert!(harness.request(Target::Head(volume), Op::Read, mib << 20, 1 << 20, &[]).unwrap() == byte(mib), "{mib}");
        }
        harness.audit();
    }
}

/// Bytes done and bytes to do of a removal.
fn progress(harness: &Harness) -> Option<(u64, u64)> {
    harness.engine.pool().unwrap().jobs.iter().find(|job| job.kind == JobKind::Remove).map(|job| (job.done, job.total))
}

/// The plan for the removal of a member.
fn planned(harness: &mut Harness, member: MemberId) -> RemovalPlan {
    match harness.command(DeviceCommand::Remove { member, dry_run: true }) {
        Ok(Reply::Removal(plan)) => plan,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_removal_counts_bytes_from_its_start() {
    let layouts = [(vec![64; 2], Layout::Linear), (vec![64; 3], Layout::Stripe { width: 3, unit: 16384 }), (vec![64; 3], MIRROR)];
    for (sizes, layout) in layouts {
        let (mut harness, _, _) = pool(&sizes, layout);
        let plan = planned(&mut harness, MemberId(0));
        assert!(plan.moved > SIZE && plan.moved < 4 * SIZE && plan.others.is_empty(), "{plan:?}");
        assert!(!plan.in_steps || layout != Layout::Linear, "{plan:?}");
        harness.start(Command::Devices(DeviceCommand::Remove { member: MemberId(0), dry_run: false }));
        let (mut last, mut seen) = ((0, 0), 0);
        while harness.engine.pool().unwrap().devices.len() == sizes.len() {
            harness.step();
            harness.now += 5;
            let Some((done, total)) = progress(&harness) else { continue };
            assert!(done >= last.0 && done <= total, "{done} of {total} after {last:?}");
            assert!(last.1 > 0 || (total + SIZE / 4 > plan.moved && done < SIZE), "{done} of {total}, and {plan:?} before");
            seen += u32::from(done > last.0 && done < total);
            last = (done, total);
        }
        // progress shows parts of a round, too
        assert!(seen > 3, "{seen} times, at last {last:?}, {layout:?}");
        assert_eq!(last.0, last.1);
        harness.finish_jobs();
        // the next removal begins with nothing done
        if sizes.len() == 3 && layout != MIRROR {
            harness.start(Command::Devices(DeviceCommand::Remove { member: MemberId(1), dry_run: false }));
            harness.step();
            assert!(progress(&harness).is_some_and(|(done, total)| done == 0 && total > SIZE), "{:?}", progress(&harness));
        }
    }
}

#[test]
fn a_rehearsal_names_the_devices_that_leave_too() {
    let (mut harness, _, _) = pool(&[64], Layout::Linear);
    add(&mut harness, MIRROR, &[96, 96]);
    assert_eq!(planned(&mut harness, MemberId(1)).others, [MemberId(2)]);
    assert_eq!(planned(&mut harness, MemberId(0)).others, []);
    harness.command(JobCommand::SetJobRate { rate: 1 << 20 }).unwrap();
    assert_eq!(planned(&mut harness, MemberId(1)).rate, 1 << 20);
}

#[test]
fn a_removal_goes_on_after_a_crash_and_can_be_stopped() {
    for crash_at in [3, 30, 120, 400] {
        let (mut harness, volume, snapshot) = pool(&[64, 64], Layout::Linear);
        harness.start(Command::Devices(DeviceCommand::Remove { member: MemberId(0), dry_run: false }));
        for _ in 0..crash_at {
            harness.turn();
            while let Some(io) = harness.engine.pop_io() {
                harness.perform(io);
            }
        }
        harness.reopen();
        harness.finish_jobs();
        DATA.check(&mut harness, Target::Head(volume), 2);
        DATA.check(&mut harness, Target::Snapshot(snapshot), 1);
        harness.audit();
        if harness.engine.pool().unwrap().devices.len() == 2 {
            // the request was not durable yet
            assert_eq!(crash_at, 3);
        }
    }
    let (mut harness, volume, _) = pool(&[64, 64], Layout::Linear);
    harness.start(Command::Devices(DeviceCommand::Remove { member: MemberId(0), dry_run: false }));
    harness.turn();
    assert_eq!(harness.engine.pool().unwrap().jobs.first().map(|job| job.kind), Some(JobKind::Remove));
    let size = harness.engine.pool().unwrap().size;
    harness.start(Command::Devices(DeviceCommand::StopRemoving));
    harness.settle();
    let info = harness.engine.pool().unwrap();
    assert!(info.jobs.is_empty() && info.devices.len() == 2 && info.size > size, "{info:?}");
    DATA.write(&mut harness, volume, 3);
    harness.reopen();
    DATA.check(&mut harness, Target::Head(volume), 3);
    harness.audit();
}

/// A removal is answered when the labels record it, for each class: a crash does not undo it.
#[test]
fn a_removal_that_was_answered_survives_a_crash() {
    for class in [None, Some(Class::Cache), Some(Class::Spare)] {
        let mut groups = vec![GroupSpec { class: Class::Data, layout: Layout::Linear, devices: Some(2) }];
        groups.extend(class.map(|class| GroupSpec { class, layout: Layout::Linear, devices: Some(1) }));
        let sizes: &[usize] = if class.is_some() { &[64, 64, 64] } else { &[64, 64] };
        let mut harness = Harness::with_groups(sizes, groups, Tuning::default());
        let member = MemberId(if class.is_some() { 2 } else { 0 });
        harness.start(Command::Devices(DeviceCommand::Remove { member, dry_run: false }));
        while harness.engine.pop_reply().is_none() {
            harness.turn();
            while let Some(io) = harness.engine.pop_io() {
                harness.perform(io);
            }
        }
        match Harness::import(harness.media) {
            Ok(harness) => {
                let info = harness.engine.pool().unwrap();
                let leaves = info.jobs.iter().any(|job| job.kind == JobKind::Remove && job.member == Some(member));
                let gone = info.devices.iter().all(|device| device.member != member);
                assert!(if class.is_some() { gone } else { leaves }, "{class:?}: {info:?}");
            }
            Err(why) => assert!(class.is_some() && why.contains("was removed"), "{class:?}: {why}"),
        }
    }
}

#[test]
fn sparse_segments_leave_without_anybody_asking() {
    let mut harness = Harness::new(&[128, 128], Layout::Mirror { copies: 2 });
    let volume = harness.volume("disk0", 32 << 20, Compression::Off);
    let mut random = Random::new(1);
    for nth in 0..20_000 {
        let (block, byte) = (random.below(8 << 10), random.byte());
        harness.write(Target::Head(volume), block * 4096, &[byte; 4096]);
        if nth % 16 == 0 {
            harness.settle();
        }
    }
    add(&mut harness, Layout::Mirror { copies: 2 }, &[128, 128]);
    harness.command(DeviceCommand::Remove { member: MemberId(0), dry_run: false }).unwrap();
    // only checkpoints are left to wait for
    let mut rounds = 0;
    while rounds < 10 && !harness.engine.pool().unwrap().jobs.is_empty() {
        rounds += 1;
        harness.now += 5_000;
        harness.settle();
    }
    let info = harness.engine.pool().unwrap();
    assert!(info.jobs.is_empty() && info.devices.len() == 2, "{:?} {}", info.jobs, harness.engine.space_report());
    harness.audit();
}

#[test]
fn a_removal_begins_in_the_middle_of_a_checkpoint() {
    for turns in 0..24 {
        let (mut harness, volume, snapshot) = pool(&[64, 64], Layout::Linear);
        harness.start(Command::Checkpoint);
        for _ in 0..turns {
            harness.turn();
            while let Some(io) = harness.engine.pop_io() {
                harness.perform(io);
            }
        }
        harness.start(Command::Devices(DeviceCommand::Remove { member: MemberId(0), dry_run: false }));
        harness.finish_jobs();
        while harness.engine.pop_reply().is_some() {}
        assert_eq!(harness.engine.pool().unwrap().devices.len(), 1);
        harness.audit();
        reimport_whole(harness, volume, snapshot, 2);
    }
}

#[test]
fn the_shape_is_not_changed_while_a_device_leaves() {
    let (mut harness, volume, _) = pool(&[64, 64], Layout::Linear);
    harness.command(Command::Checkpoint).unwrap();
    let (more, other) = (harness.new_device(64), harness.new_device(64));
    harness.start(Command::Devices(DeviceCommand::Remove { member: MemberId(0), dry_run: false }));
    harness.start(Command::Devices(DeviceCommand::AddDevices { groups: vec![GroupSpec::data(Layout::Linear)], devices: vec![more] }));
    harness.start(Command::Devices(DeviceCommand::Replace { member: MemberId(1), device: other }));
    harness.start(Command::Devices(DeviceCommand::CheckDevices(DeviceChange::Replace { member: MemberId(1), device: other.geometry })));
    let (groups, devices) = (vec![GroupSpec::data(Layout::Linear)], vec![more.geometry]);
    harness.start(Command::Devices(DeviceCommand::CheckDevices(DeviceChange::Add { groups, devices })));
    let mut refused = 0;
    harness.finish_jobs();
    while let Some((_, reply)) = harness.engine.pop_reply() {
        refused += u32::from(matches!(reply, Err(CommandError::Busy(Busy::Removing | Busy::RemovingBeforeRebalance))));
    }
    assert_eq!(refused, 4);
    assert_eq!(harness.engine.pool().unwrap().devices.len(), 1);
    // now it can be removed, and the added device is there after an import
    add(&mut harness, Layout::Linear, &[64]);
    DATA.write(&mut harness, volume, 3);
    let mut harness = reimport(harness);
    assert_eq!(harness.engine.pool().unwrap().devices.len(), 2);
    DATA.check(&mut harness, Target::Head(volume), 3);
    harness.audit();
}

/// A step gives up segments with objects longer than the free space: these wait for space.
#[test]
fn long_objects_leave_with_what_they_lie_in() {
    const BLOCKS: u64 = 16 << 10;
    const DEPTH: u64 = 16;
    let tuning = Tuning { checkpoint_log_bytes: 2 << 20, ..Tuning::default() };
    let mut harness = Harness::with(&[126; 6], Layout::Parity { width: 16, parity: 2, unit: 4096 }, tuning);
    let volume = harness.volume("disk0", BLOCKS * 4096, Compression::Off);
    // an odd factor visits all blocks, out of order
    let write = |harness: &mut Harness, round: u8| {
        assert_eq!(harness.write_blocks(Target::Head(volume), (0..BLOCKS).map(|i| i * 7919 % BLOCKS), round, DEPTH), 0);
    };
    write(&mut harness, 1);
    let snapshot = harness.snapshot(volume, "one");
    write(&mut harness, 2);
    harness.reopen();
    for (member, round) in [(4, 3), (1, 4)] {
        harness.command(DeviceCommand::Remove { member: MemberId(member), dry_run: false }).unwrap();
        write(&mut harness, round);
        harness.finish_jobs();
    }
    assert_eq!(harness.engine.pool().unwrap().devices.len(), 4);
    let mut harness = reimport(harness);
    for (target, round) in [(Target::Head(volume), 4), (Target::Snapshot(snapshot), 1)] {
        let found = (0..BLOCKS).all(|block| harness.request(target, Op::Read, block * 4096, 4096, &[]).unwrap() == [round; 4096]);
        assert!(found, "{round}");
    }
    harness.audit();
}

/// The header of a batch of moves identifies the blocks of many chunks, and is read once for all.
#[test]
fn headers_of_moves_are_read_once() {
    let (mut harness, volume, snapshot) = pool(&[64, 64], Layout::Linear);
    remove(&mut harness, volume, MemberId(0), 3);
    add(&mut harness, Layout::Linear, &[64]);
    // the chunks of the snapshot were moved once, many behind one header
    harness.start(Command::Devices(DeviceCommand::Remove { member: MemberId(1), dry_run: false }));
    let mut reads = Vec::new();
    while harness.engine.pool().unwrap().devices.len() > 1 {
        harness.turn();
        harness.now += 100;
        while let Some(io) = harness.engine.pop_io() {
            if let IoKind::Read { offset, .. } = io.kind {
                reads.push((io.device, offset));
            }
            harness.perform(io);
        }
    }
    let all = reads.len();
    reads.sort_unstable();
    reads.dedup();
    assert!(all > 10 && reads.len() == all, "{} of {all} reads are of another place", reads.len());
    harness.finish_jobs();
    reimport_whole(harness, volume, snapshot, 3);
}

/// A removal is listed, and can be stopped, from the moment of an import on; otherwise a command that
/// waits for its end would take it for ended.
#[test]
fn an_import_lists_a_removal_before_it_goes_on() {
    let (mut harness, _, _) = pool(&[64, 64], Layout::Linear);
    harness.start(Command::Devices(DeviceCommand::Remove { member: MemberId(0), dry_run: false }));
    while harness.engine.pop_reply().is_none() {
        harness.step();
    }
    let removes = |harness: &Harness| harness.engine.pool().unwrap().jobs.iter().any(|job| job.kind == JobKind::Remove);
    for stops in [false, true] {
        let mut again = Harness::begin_import(harness.media.clone(), Tuning::default(), 1);
        while *again.engine.state() == PoolState::Opening {
            again.step();
        }
        assert!(removes(&again), "{:?}", again.engine.pool());
        if stops {
            again.command(DeviceCommand::StopRemoving).unwrap();
            assert!(!removes(&again));
        }
        again.finish_jobs();
        assert_eq!(again.engine.pool().unwrap().devices.len(), 1 + usize::from(stops));
    }
}
