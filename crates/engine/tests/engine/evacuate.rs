//! Devices are removed during writes, with every layout; afterwards the pool does not need them.

use millpond_block::{DeviceSlot, MemberId, Op};
use millpond_engine::{
    Busy, Class, Command, CommandError, Compression, DeviceChange, DeviceCommand, GroupSpec, Invalid, JobCommand, JobKind, Layout,
    RemovalPlan, Reply, SnapshotId, Target, Tuning, VolumeId,
};

use crate::content::Steps;
use crate::rig::Rig;
use millpond_testing::Random;

const SIZE: u64 = 8 << 20;
const DATA: Steps = Steps { size: SIZE, step: 256 << 10 };
const MIRROR: Layout = Layout::Mirror { copies: 2 };

/// A pool with a snapshot of one round and a head of another.
fn pool(sizes: &[usize], layout: Layout) -> (Rig, VolumeId, SnapshotId) {
    let mut rig = Rig::new(sizes, layout);
    let volume = rig.volume("disk0", SIZE, Compression::Off);
    DATA.write(&mut rig, volume, 1);
    let snapshot = rig.snapshot(volume, "one");
    DATA.write(&mut rig, volume, 2);
    (rig, volume, snapshot)
}

fn add(rig: &mut Rig, layout: Layout, sizes: &[usize]) {
    let devices = sizes.iter().map(|mib| rig.new_device(*mib)).collect();
    rig.command(DeviceCommand::AddDevices { groups: vec![GroupSpec { class: Class::Data, layout, devices: None }], devices }).unwrap();
}

/// Removes a member during writes, and then its device, whose position reads as noise.
fn remove(rig: &mut Rig, volume: VolumeId, member: MemberId, round: u8) {
    let device = rig.engine.pool().unwrap().devices.iter().find(|d| d.member == member).unwrap().slot.unwrap().index();
    rig.command(DeviceCommand::Remove { member, dry_run: false }).unwrap();
    DATA.write(rig, volume, round);
    rig.finish_jobs();
    assert!(rig.engine.pool().unwrap().devices.iter().all(|d| d.member != member), "{:?}", rig.engine.pool());
    rig.media[device].fill(0x77);
}

/// Imports from the devices that still belong to the pool.
fn reimport(rig: Rig) -> Rig {
    let here: Vec<usize> = rig.engine.pool().unwrap().devices.iter().filter_map(|d| d.slot.map(DeviceSlot::index)).collect();
    let media = here.iter().map(|at| rig.media[*at].clone()).collect();
    Rig::import(media).unwrap()
}

/// Imports from these devices, and checks a snapshot of round 1 and a head of another round.
fn reimport_whole(rig: Rig, volume: VolumeId, snapshot: SnapshotId, round: u8) -> Rig {
    let mut rig = reimport(rig);
    DATA.check(&mut rig, Target::Head(volume), round);
    DATA.check(&mut rig, Target::Snapshot(snapshot), 1);
    rig.audit();
    rig
}

#[test]
fn a_device_leaves_each_layout() {
    for layout in [Layout::Linear, Layout::Stripe { width: 2, unit: 16384 }, Layout::Stripe { width: 3, unit: 65536 }] {
        let (mut rig, volume, snapshot) = pool(&[64, 64, 64], layout);
        add(&mut rig, Layout::Linear, &[64]);
        remove(&mut rig, volume, MemberId(1), 3);
        DATA.check(&mut rig, Target::Head(volume), 3);
        DATA.check(&mut rig, Target::Snapshot(snapshot), 1);
        rig.audit();
        reimport_whole(rig, volume, snapshot, 3);
    }
}

/// Pools in which nearly every segment has a part on every device.
fn without_room_elsewhere() -> Vec<(Vec<usize>, Layout)> {
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
            let (mut rig, volume, snapshot) = pool(&sizes, layout);
            let size = rig.engine.pool().unwrap().size;
            remove(&mut rig, volume, member, 3);
            DATA.check(&mut rig, Target::Head(volume), 3);
            DATA.check(&mut rig, Target::Snapshot(snapshot), 1);
            rig.audit();
            let mut rig = reimport_whole(rig, volume, snapshot, 3);
            // the remaining devices are completely in use
            let info = rig.engine.pool().unwrap();
            assert_eq!(info.devices.len() + 1, sizes.len());
            let parity = if let Layout::Parity { parity, .. } = layout { usize::from(parity) } else { 0 };
            let (before, after) = ((sizes.len() - parity) as u64, (sizes.len() - 1 - parity) as u64);
            assert!(info.size * before * 10 > size * after * 8, "{layout:?} {size} {info:?}");
            assert!(info.devices.iter().all(|device| device.class == Class::Data), "{info:?}");
            DATA.write(&mut rig, volume, 4);
            DATA.check(&mut rig, Target::Head(volume), 4);
        }
    }
}

#[test]
fn one_device_after_another_leaves_parity() {
    let (mut rig, volume, snapshot) = pool(&[96; 7], Layout::Parity { width: 16, parity: 2, unit: 65536 });
    for (member, round) in [(3, 3), (0, 4), (6, 5), (5, 6)] {
        remove(&mut rig, volume, MemberId(member), round);
        DATA.check(&mut rig, Target::Head(volume), round);
    }
    let rig = reimport_whole(rig, volume, snapshot, 6);
    assert_eq!(rig.engine.pool().unwrap().devices.len(), 3);
}

#[test]
fn a_removal_in_steps_goes_on_after_a_crash() {
    for (sizes, layout) in without_room_elsewhere() {
        for crash_at in [10, 40, 90, 160, 250, 400] {
            let (mut rig, volume, snapshot) = pool(&sizes, layout);
            rig.command(DeviceCommand::Remove { member: MemberId(1), dry_run: false }).unwrap();
            for _ in 0..crash_at {
                rig.turn();
                while let Some(io) = rig.engine.pop_io() {
                    rig.perform(io);
                }
            }
            rig.reopen();
            rig.finish_jobs();
            assert_eq!(rig.engine.pool().unwrap().devices.len(), sizes.len() - 1);
            reimport_whole(rig, volume, snapshot, 2);
        }
    }
}

#[test]
fn every_device_is_exchanged_for_new_ones() {
    let (mut rig, volume, snapshot) = pool(&[64, 72, 80], Layout::Stripe { width: 3, unit: 16384 });
    add(&mut rig, Layout::Mirror { copies: 2 }, &[96, 96]);
    for (member, round) in [(0, 3), (2, 4), (1, 5)] {
        remove(&mut rig, volume, MemberId(member), round);
        DATA.check(&mut rig, Target::Head(volume), round);
    }
    let mut rig = reimport_whole(rig, volume, snapshot, 5);
    assert_eq!(rig.engine.pool().unwrap().devices.len(), 2);
    // removing one side of the mirror that was added last removes the whole mirror
    add(&mut rig, Layout::Linear, &[64]);
    remove(&mut rig, volume, MemberId(3), 6);
    let rig = reimport_whole(rig, volume, snapshot, 6);
    assert_eq!(rig.engine.pool().unwrap().devices.len(), 1);
}

#[test]
fn what_does_not_fit_is_refused_before_it_begins() {
    let (mut rig, volume, _) = pool(&[64, 16], Layout::Linear);
    let refused = rig.command(DeviceCommand::Remove { member: MemberId(0), dry_run: false });
    assert!(matches!(&refused, Err(CommandError::Invalid(Invalid::NoSpaceElsewhere { .. }))), "{refused:?}");
    rig.command(DeviceCommand::Remove { member: MemberId(1), dry_run: false }).unwrap();
    rig.finish_jobs();
    let refused = rig.command(DeviceCommand::Remove { member: MemberId(0), dry_run: false });
    assert!(matches!(&refused, Err(CommandError::Invalid(Invalid::DeviceNeeded))), "{refused:?}");
    assert!(matches!(rig.command(DeviceCommand::Remove { member: MemberId(1), dry_run: false }), Err(CommandError::NotFound(_))));
    DATA.check(&mut rig, Target::Head(volume), 2);
}

#[test]
fn what_just_fits_on_the_others_leaves() {
    let byte = |mib: u64| vec![mib as u8; 1 << 20];
    for (sizes, layout) in without_room_elsewhere().into_iter().step_by(2) {
        let fill = |filled: u64| {
            let mut rig = Rig::new(&sizes, layout);
            let volume = rig.volume("disk0", 1 << 30, Compression::Off);
            for mib in 0..filled {
                rig.request(Target::Head(volume), Op::Write, mib << 20, 1 << 20, &byte(mib)).unwrap();
            }
            (rig, volume)
        };
        let (mut rig, volume) = fill(0);
        let mut fits = 0;
        let refused = loop {
            rig.request(Target::Head(volume), Op::Write, fits << 20, 1 << 20, &byte(fits)).unwrap();
            match rig.command(DeviceCommand::Remove { member: MemberId(0), dry_run: true }) {
                Ok(_) => fits += 1,
                Err(refused) => break refused,
            }
        };
        assert!(matches!(&refused, CommandError::Invalid(Invalid::NoSpaceElsewhere { .. } | Invalid::NoRoomToMove)), "{refused:?}");
        let (mut rig, volume) = fill(fits);
        rig.command(DeviceCommand::Remove { member: MemberId(0), dry_run: false }).unwrap();
        rig.finish_jobs();
        assert_eq!(rig.engine.pool().unwrap().devices.len(), sizes.len() - 1, "{layout:?} {fits}");
        for mib in 0..fits {
            assert!(rig.request(Target::Head(volume), Op::Read, mib << 20, 1 << 20, &[]).unwrap() == byte(mib), "{mib}");
        }
        rig.audit();
    }
}

/// Bytes done and bytes to do of a removal.
fn progress(rig: &Rig) -> Option<(u64, u64)> {
    rig.engine.pool().unwrap().jobs.iter().find(|job| job.kind == JobKind::Remove).map(|job| (job.done, job.total))
}

/// The plan for the removal of a member.
fn planned(rig: &mut Rig, member: MemberId) -> RemovalPlan {
    match rig.command(DeviceCommand::Remove { member, dry_run: true }) {
        Ok(Reply::Removal(plan)) => plan,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_removal_counts_bytes_from_its_start() {
    let layouts = [(vec![64; 2], Layout::Linear), (vec![64; 3], Layout::Stripe { width: 3, unit: 16384 }), (vec![64; 3], MIRROR)];
    for (sizes, layout) in layouts {
        let (mut rig, _, _) = pool(&sizes, layout);
        let plan = planned(&mut rig, MemberId(0));
        assert!(plan.moved > SIZE && plan.moved < 4 * SIZE && plan.others.is_empty(), "{plan:?}");
        assert!(!plan.in_steps || layout != Layout::Linear, "{plan:?}");
        rig.start(Command::Devices(DeviceCommand::Remove { member: MemberId(0), dry_run: false }));
        let (mut last, mut seen) = ((0, 0), 0);
        while rig.engine.pool().unwrap().devices.len() == sizes.len() {
            rig.step();
            rig.now += 5;
            let Some((done, total)) = progress(&rig) else { continue };
            assert!(done >= last.0 && done <= total, "{done} of {total} after {last:?}");
            assert!(last.1 > 0 || (total + SIZE / 4 > plan.moved && done < SIZE), "{done} of {total}, and {plan:?} before");
            seen += u32::from(done > last.0 && done < total);
            last = (done, total);
        }
        // progress shows parts of a round, too
        assert!(seen > 3, "{seen} times, at last {last:?}, {layout:?}");
        assert_eq!(last.0, last.1);
        rig.finish_jobs();
        // the next removal begins with nothing done
        if sizes.len() == 3 && layout != MIRROR {
            rig.start(Command::Devices(DeviceCommand::Remove { member: MemberId(1), dry_run: false }));
            rig.step();
            assert!(progress(&rig).is_some_and(|(done, total)| done == 0 && total > SIZE), "{:?}", progress(&rig));
        }
    }
}

#[test]
fn a_rehearsal_names_the_devices_that_leave_too() {
    let (mut rig, _, _) = pool(&[64], Layout::Linear);
    add(&mut rig, MIRROR, &[96, 96]);
    assert_eq!(planned(&mut rig, MemberId(1)).others, [MemberId(2)]);
    assert_eq!(planned(&mut rig, MemberId(0)).others, []);
    rig.command(JobCommand::SetJobRate { rate: 1 << 20 }).unwrap();
    assert_eq!(planned(&mut rig, MemberId(1)).rate, 1 << 20);
}

#[test]
fn a_removal_goes_on_after_a_crash_and_can_be_stopped() {
    for crash_at in [3, 30, 120, 400] {
        let (mut rig, volume, snapshot) = pool(&[64, 64], Layout::Linear);
        rig.start(Command::Devices(DeviceCommand::Remove { member: MemberId(0), dry_run: false }));
        for _ in 0..crash_at {
            rig.turn();
            while let Some(io) = rig.engine.pop_io() {
                rig.perform(io);
            }
        }
        rig.reopen();
        rig.finish_jobs();
        DATA.check(&mut rig, Target::Head(volume), 2);
        DATA.check(&mut rig, Target::Snapshot(snapshot), 1);
        rig.audit();
        if rig.engine.pool().unwrap().devices.len() == 2 {
            // the request was not durable yet
            assert_eq!(crash_at, 3);
        }
    }
    let (mut rig, volume, _) = pool(&[64, 64], Layout::Linear);
    rig.start(Command::Devices(DeviceCommand::Remove { member: MemberId(0), dry_run: false }));
    rig.turn();
    assert_eq!(rig.engine.pool().unwrap().jobs.first().map(|job| job.kind), Some(JobKind::Remove));
    let size = rig.engine.pool().unwrap().size;
    rig.start(Command::Devices(DeviceCommand::StopRemoving));
    rig.settle();
    let info = rig.engine.pool().unwrap();
    assert!(info.jobs.is_empty() && info.devices.len() == 2 && info.size > size, "{info:?}");
    DATA.write(&mut rig, volume, 3);
    rig.reopen();
    DATA.check(&mut rig, Target::Head(volume), 3);
    rig.audit();
}

/// A removal is answered when the labels record it, for each class: a crash does not undo it.
#[test]
fn a_removal_that_was_answered_survives_a_crash() {
    for class in [None, Some(Class::Cache), Some(Class::Spare)] {
        let mut groups = vec![GroupSpec { class: Class::Data, layout: Layout::Linear, devices: Some(2) }];
        groups.extend(class.map(|class| GroupSpec { class, layout: Layout::Linear, devices: Some(1) }));
        let sizes: &[usize] = if class.is_some() { &[64, 64, 64] } else { &[64, 64] };
        let mut rig = Rig::with_groups(sizes, groups, Tuning::default());
        let member = MemberId(if class.is_some() { 2 } else { 0 });
        rig.start(Command::Devices(DeviceCommand::Remove { member, dry_run: false }));
        while rig.engine.pop_reply().is_none() {
            rig.turn();
            while let Some(io) = rig.engine.pop_io() {
                rig.perform(io);
            }
        }
        match Rig::import(rig.media) {
            Ok(rig) => {
                let info = rig.engine.pool().unwrap();
                let leaves = info.jobs.iter().any(|job| job.kind == JobKind::Remove && job.member == Some(member));
                let gone = info.devices.iter().all(|device| device.member != member);
                assert!(if class.is_some() { gone } else { leaves }, "{class:?}: {info:?}");
            }
            Err(why) => assert!(class.is_some() && why.contains("was removed"), "{class:?}: {why}"),
        }
    }
}

/// Extents that a stopped removal took out of segments are used again, also after a crash.
#[test]
fn a_removal_that_was_stopped_gives_rows_back() {
    for (sizes, layout) in without_room_elsewhere() {
        let mut given_up = 0;
        for steps in 1..4 {
            let (mut rig, volume, snapshot) = pool(&sizes, layout);
            let size = rig.engine.pool().unwrap().size;
            // the labels record the removal, and then the state after each step
            let end = rig.engine.label_generation().unwrap() + 1 + steps;
            rig.start(Command::Devices(DeviceCommand::Remove { member: MemberId(1), dry_run: false }));
            let leaves = |rig: &Rig| rig.engine.pool().unwrap().devices.len() == sizes.len();
            while leaves(&rig) && rig.engine.label_generation().is_none_or(|now| now < end) {
                rig.now += 5;
                rig.turn();
                while let Some(io) = rig.engine.pop_io() {
                    rig.perform(io);
                }
            }
            if !leaves(&rig) {
                continue;
            }
            rig.start(Command::Devices(DeviceCommand::StopRemoving));
            rig.turn();
            let left = rig.engine.pool().unwrap().given_up;
            given_up += left;
            rig.settle();
            while rig.engine.pop_reply().is_some() {}
            if steps == 2 {
                rig.reopen();
            }
            for _ in 0..40 {
                rig.now += 1_000;
                rig.settle();
            }
            let info = rig.engine.pool().unwrap();
            assert!(info.jobs.is_empty() && info.devices.len() == sizes.len(), "{layout:?} {steps}: {info:?}");
            // segments over some of the devices, or over different sizes, leave a remainder
            let least = info.devices.iter().map(|device| device.size).min().unwrap();
            assert!(info.given_up * 32 <= least, "{layout:?} of {sizes:?} after {steps}: {left} {info:?}");
            assert!(info.size * 100 >= size * 99, "{layout:?} {steps}: {size} {info:?}");
            DATA.write(&mut rig, volume, 3);
            DATA.check(&mut rig, Target::Head(volume), 3);
            DATA.check(&mut rig, Target::Snapshot(snapshot), 1);
            rig.audit();
            let mut rig = reimport_whole(rig, volume, snapshot, 3);
            rig.finish_jobs();
            assert!(rig.engine.pool().unwrap().given_up <= info.given_up);
        }
        assert!(given_up > 0, "no removal of {layout:?} over {sizes:?} was stopped half-way");
    }
}

/// Stops a removal of member 1 after `steps` steps, and waits until the labels record it. `None`
/// when it ended before.
fn stopped_half_way(rig: &mut Rig, steps: u64) -> Option<()> {
    let devices = rig.engine.pool().unwrap().devices.len();
    let end = rig.engine.label_generation().unwrap() + 1 + steps;
    rig.start(Command::Devices(DeviceCommand::Remove { member: MemberId(1), dry_run: false }));
    while rig.engine.label_generation().is_none_or(|now| now < end) {
        rig.now += 5;
        rig.step();
        if rig.engine.pool().unwrap().devices.len() < devices {
            return None;
        }
    }
    rig.start(Command::Devices(DeviceCommand::StopRemoving));
    rig.step();
    while rig.engine.label_generation().is_none() {
        rig.step();
    }
    Some(()).filter(|()| rig.engine.pool().unwrap().given_up > 0)
}

fn runs(rig: &Rig, kind: JobKind) -> bool {
    rig.engine.pool().unwrap().jobs.iter().any(|job| job.kind == kind)
}

/// Segments that cannot be emptied because data in them has no correct copy are remembered and
/// reported, and tried again after a scrub.
#[test]
fn rows_that_cannot_be_read_stay_as_they_are() {
    let layouts = [(vec![64; 3], MIRROR), (vec![96; 6], Layout::Parity { width: 16, parity: 2, unit: 65536 })];
    let mut tried = 0;
    for (sizes, layout, steps) in layouts.into_iter().flat_map(|(sizes, layout)| (1..4).map(move |steps| (sizes.clone(), layout, steps))) {
        let (mut rig, volume, snapshot) = pool(&sizes, layout);
        if stopped_half_way(&mut rig, steps).is_none() {
            continue;
        }
        // until something has to be read
        let moves = |rig: &Rig| rig.engine.pool().unwrap().jobs.iter().any(|job| job.kind == JobKind::Rejoin && job.done < job.total);
        let mut turns = 0;
        while !moves(&rig) && turns < 2_000 {
            turns += 1;
            rig.now += 20;
            rig.step();
        }
        if !moves(&rig) {
            continue;
        }
        tried += 1;
        while rig.engine.pop_reply().is_some() {}
        rig.unreadable = true;
        for _ in 0..60 {
            rig.now += 1_000;
            rig.settle();
        }
        let pool = rig.engine.pool().unwrap();
        let given_up = pool.given_up;
        assert!(pool.jobs.is_empty() && given_up > 0, "{layout:?}: {pool:?}");
        assert!(pool.removal_waits.as_ref().is_some_and(|why| why.contains("no copy")), "{layout:?}: {pool:?}");
        rig.unreadable = false;
        let mut began = 0;
        for _ in 0..2_000 {
            rig.now += 1_000;
            rig.settle();
            began += u32::from(runs(&rig, JobKind::Rejoin));
        }
        let pool = rig.engine.pool().unwrap();
        assert_eq!((began, pool.given_up), (0, given_up), "{layout:?}: it is not tried again without a reason");
        rig.command(JobCommand::Scrub).unwrap();
        for _ in 0..300 {
            rig.now += 1_000;
            rig.settle();
        }
        let pool = rig.engine.pool().unwrap();
        let least = pool.devices.iter().map(|device| device.size).min().unwrap();
        assert!(pool.given_up * 32 <= least && pool.removal_waits.is_none(), "{layout:?}: {given_up} {pool:?}");
        DATA.check(&mut rig, Target::Head(volume), 2);
        DATA.check(&mut rig, Target::Snapshot(snapshot), 1);
        rig.audit();
    }
    assert!(tried > 1, "{tried}");
}

/// A removal finds as much space during a rejoin as before it.
#[test]
fn a_removal_begins_while_rows_are_joined() {
    let (mut joined, mut accepted) = (0, 0);
    for (sizes, layout) in [(vec![64; 3], MIRROR), (vec![96; 6], Layout::Parity { width: 16, parity: 2, unit: 65536 })] {
        for mib in (8..200u64).step_by(24) {
            // requested before the rejoin begins, and while it runs
            let asked = |wait: bool| {
                let mut rig = Rig::new(&sizes, layout);
                let volume = rig.volume("disk0", 1 << 30, Compression::Off);
                for at in 0..mib {
                    rig.request(Target::Head(volume), Op::Write, at << 20, 1 << 20, &vec![at as u8; 1 << 20]).ok()?;
                }
                rig.command(DeviceCommand::Remove { member: MemberId(1), dry_run: true }).ok()?;
                stopped_half_way(&mut rig, 1)?;
                let mut turns = 0;
                while wait && !runs(&rig, JobKind::Rejoin) && turns < 500 {
                    turns += 1;
                    rig.now += 100;
                    rig.step();
                }
                while rig.engine.pop_reply().is_some() {}
                let joins = runs(&rig, JobKind::Rejoin);
                rig.start(Command::Devices(DeviceCommand::Remove { member: MemberId(1), dry_run: false }));
                let mut reply = None;
                while reply.is_none() {
                    rig.step();
                    reply = rig.engine.pop_reply();
                }
                let accepted = reply.unwrap().1.is_ok();
                if accepted && joins {
                    rig.finish_jobs();
                    assert_eq!(rig.engine.pool().unwrap().devices.len(), sizes.len() - 1, "{layout:?} {mib}");
                    rig.audit();
                }
                Some((joins, accepted))
            };
            let (Some((_, before)), Some((joins, beside))) = (asked(false), asked(true)) else { continue };
            if joins {
                joined += 1;
                accepted += u32::from(beside);
                assert_eq!(before, beside, "{layout:?} with {mib} MiB");
            }
        }
    }
    assert!(joined > 2 && accepted > 1, "{accepted} of {joined}");
}

#[test]
fn sparse_segments_leave_without_anybody_asking() {
    let mut rig = Rig::new(&[128, 128], Layout::Mirror { copies: 2 });
    let volume = rig.volume("disk0", 32 << 20, Compression::Off);
    let mut random = Random::new(1);
    for nth in 0..20_000 {
        let (block, byte) = (random.below(8 << 10), random.byte());
        rig.write(Target::Head(volume), block * 4096, &[byte; 4096]);
        if nth % 16 == 0 {
            rig.settle();
        }
    }
    add(&mut rig, Layout::Mirror { copies: 2 }, &[128, 128]);
    rig.command(DeviceCommand::Remove { member: MemberId(0), dry_run: false }).unwrap();
    // only checkpoints are left to wait for
    let mut rounds = 0;
    while rounds < 10 && !rig.engine.pool().unwrap().jobs.is_empty() {
        rounds += 1;
        rig.now += 5_000;
        rig.settle();
    }
    let info = rig.engine.pool().unwrap();
    assert!(info.jobs.is_empty() && info.devices.len() == 2, "{:?} {}", info.jobs, rig.engine.space_report());
    rig.audit();
}

#[test]
fn a_removal_begins_in_the_middle_of_a_checkpoint() {
    for turns in 0..24 {
        let (mut rig, volume, snapshot) = pool(&[64, 64], Layout::Linear);
        rig.start(Command::Checkpoint);
        for _ in 0..turns {
            rig.turn();
            while let Some(io) = rig.engine.pop_io() {
                rig.perform(io);
            }
        }
        rig.start(Command::Devices(DeviceCommand::Remove { member: MemberId(0), dry_run: false }));
        rig.finish_jobs();
        while rig.engine.pop_reply().is_some() {}
        assert_eq!(rig.engine.pool().unwrap().devices.len(), 1);
        rig.audit();
        reimport_whole(rig, volume, snapshot, 2);
    }
}

#[test]
fn the_shape_is_not_changed_while_a_device_leaves() {
    let (mut rig, volume, _) = pool(&[64, 64], Layout::Linear);
    rig.command(Command::Checkpoint).unwrap();
    let (more, other) = (rig.new_device(64), rig.new_device(64));
    rig.start(Command::Devices(DeviceCommand::Remove { member: MemberId(0), dry_run: false }));
    rig.start(Command::Devices(DeviceCommand::AddDevices { groups: vec![GroupSpec::data(Layout::Linear)], devices: vec![more] }));
    rig.start(Command::Devices(DeviceCommand::Replace { member: MemberId(1), device: other }));
    rig.start(Command::Devices(DeviceCommand::CheckDevices(DeviceChange::Replace { member: MemberId(1), device: other.geometry })));
    let (groups, devices) = (vec![GroupSpec::data(Layout::Linear)], vec![more.geometry]);
    rig.start(Command::Devices(DeviceCommand::CheckDevices(DeviceChange::Add { groups, devices })));
    let mut refused = 0;
    rig.finish_jobs();
    while let Some((_, reply)) = rig.engine.pop_reply() {
        refused += u32::from(matches!(reply, Err(CommandError::Busy(Busy::Removing | Busy::RemovingBeforeRebalance))));
    }
    assert_eq!(refused, 4);
    assert_eq!(rig.engine.pool().unwrap().devices.len(), 1);
    // now it can be removed, and the added device is there after an import
    add(&mut rig, Layout::Linear, &[64]);
    DATA.write(&mut rig, volume, 3);
    let mut rig = reimport(rig);
    assert_eq!(rig.engine.pool().unwrap().devices.len(), 2);
    DATA.check(&mut rig, Target::Head(volume), 3);
    rig.audit();
}

/// A step gives up segments with objects longer than the free space: these wait for space.
#[test]
fn long_objects_leave_with_what_they_lie_in() {
    const BLOCKS: u64 = 16 << 10;
    const DEPTH: u64 = 16;
    let tuning = Tuning { checkpoint_log_bytes: 2 << 20, ..Tuning::default() };
    let mut rig = Rig::with(&[126; 6], Layout::Parity { width: 16, parity: 2, unit: 4096 }, tuning);
    let volume = rig.volume("disk0", BLOCKS * 4096, Compression::Off);
    // an odd factor visits all blocks, out of order
    let write = |rig: &mut Rig, round: u8| {
        assert_eq!(rig.write_blocks(Target::Head(volume), (0..BLOCKS).map(|i| i * 7919 % BLOCKS), round, DEPTH), 0);
    };
    write(&mut rig, 1);
    let snapshot = rig.snapshot(volume, "one");
    write(&mut rig, 2);
    rig.reopen();
    for (member, round) in [(4, 3), (1, 4)] {
        rig.command(DeviceCommand::Remove { member: MemberId(member), dry_run: false }).unwrap();
        write(&mut rig, round);
        rig.finish_jobs();
    }
    assert_eq!(rig.engine.pool().unwrap().devices.len(), 4);
    let mut rig = reimport(rig);
    for (target, round) in [(Target::Head(volume), 4), (Target::Snapshot(snapshot), 1)] {
        let found = (0..BLOCKS).all(|block| rig.request(target, Op::Read, block * 4096, 4096, &[]).unwrap() == [round; 4096]);
        assert!(found, "{round}");
    }
    rig.audit();
}
