//! Removals that are stopped: the extents that they took out of segments are used again.

use millpond_block::{MemberId, Op};
use millpond_engine::{Class, Command, Compression, DeviceCommand, GroupSpec, JobCommand, JobKind, Layout, Target, Tuning};

use crate::evacuate::{DATA, MIRROR, SIZE, pool, reimport_whole, without_room_elsewhere};
use crate::harness::Harness;

/// Extents that a stopped removal took out of segments are used again, also after a crash.
#[test]
fn a_removal_that_was_stopped_gives_rows_back() {
    for (sizes, layout) in without_room_elsewhere() {
        let mut given_up = 0;
        for steps in 1..4 {
            let (mut harness, volume, snapshot) = pool(&sizes, layout);
            let size = harness.engine.pool().unwrap().size;
            // the labels record the removal, and then the state after each step
            let end = harness.engine.label_generation().unwrap() + 1 + steps;
            harness.start(Command::Devices(DeviceCommand::Remove { member: MemberId(1), dry_run: false }));
            let leaves = |harness: &Harness| harness.engine.pool().unwrap().devices.len() == sizes.len();
            while leaves(&harness) && harness.engine.label_generation().is_none_or(|now| now < end) {
                harness.now += 5;
                harness.turn();
                while let Some(io) = harness.engine.pop_io() {
                    harness.perform(io);
                }
            }
            if !leaves(&harness) {
                continue;
            }
            harness.start(Command::Devices(DeviceCommand::StopRemoving));
            harness.turn();
            let left = harness.engine.pool().unwrap().given_up;
            given_up += left;
            harness.settle();
            while harness.engine.pop_reply().is_some() {}
            if steps == 2 {
                harness.reopen();
            }
            for _ in 0..40 {
                harness.now += 1_000;
                harness.settle();
            }
            let info = harness.engine.pool().unwrap();
            assert!(info.jobs.is_empty() && info.devices.len() == sizes.len(), "{layout:?} {steps}: {info:?}");
            // segments over some of the devices, or over different sizes, leave a remainder
            let least = info.devices.iter().map(|device| device.size).min().unwrap();
            assert!(info.given_up * 32 <= least, "{layout:?} of {sizes:?} after {steps}: {left} {info:?}");
            assert!(info.size * 100 >= size * 99, "{layout:?} {steps}: {size} {info:?}");
            DATA.write(&mut harness, volume, 3);
            DATA.check(&mut harness, Target::Head(volume), 3);
            DATA.check(&mut harness, Target::Snapshot(snapshot), 1);
            harness.audit();
            let mut harness = reimport_whole(harness, volume, snapshot, 3);
            harness.finish_jobs();
            assert!(harness.engine.pool().unwrap().given_up <= info.given_up);
        }
        assert!(given_up > 0, "no removal of {layout:?} over {sizes:?} was stopped half-way");
    }
}

/// Stops a removal of member 1 after `steps` steps, and waits until the labels record it. `None`
/// when it ended before.
fn stopped_half_way(harness: &mut Harness, steps: u64) -> Option<()> {
    let devices = harness.engine.pool().unwrap().devices.len();
    let end = harness.engine.label_generation().unwrap() + 1 + steps;
    harness.start(Command::Devices(DeviceCommand::Remove { member: MemberId(1), dry_run: false }));
    while harness.engine.label_generation().is_none_or(|now| now < end) {
        harness.now += 5;
        harness.step();
        if harness.engine.pool().unwrap().devices.len() < devices {
            return None;
        }
    }
    harness.start(Command::Devices(DeviceCommand::StopRemoving));
    harness.step();
    while harness.engine.label_generation().is_none() {
        harness.step();
    }
    Some(()).filter(|()| harness.engine.pool().unwrap().given_up > 0)
}

fn runs(harness: &Harness, kind: JobKind) -> bool {
    harness.engine.pool().unwrap().jobs.iter().any(|job| job.kind == kind)
}

/// Segments that cannot be emptied because data in them has no correct copy are remembered and
/// reported, and tried again after a scrub.
#[test]
fn rows_that_cannot_be_read_stay_as_they_are() {
    let layouts = [(vec![64; 3], MIRROR), (vec![96; 6], Layout::Parity { width: 16, parity: 2, unit: 65536 })];
    let mut tried = 0;
    for (sizes, layout, steps) in layouts.into_iter().flat_map(|(sizes, layout)| (1..4).map(move |steps| (sizes.clone(), layout, steps))) {
        let (mut harness, volume, snapshot) = pool(&sizes, layout);
        if stopped_half_way(&mut harness, steps).is_none() {
            continue;
        }
        // until something has to be read
        let moves =
            |harness: &Harness| harness.engine.pool().unwrap().jobs.iter().any(|job| job.kind == JobKind::Rejoin && job.done < job.total);
        let mut turns = 0;
        while !moves(&harness) && turns < 2_000 {
            turns += 1;
            harness.now += 20;
            harness.step();
        }
        if !moves(&harness) {
            continue;
        }
        tried += 1;
        while harness.engine.pop_reply().is_some() {}
        harness.unreadable = true;
        for _ in 0..60 {
            harness.now += 1_000;
            harness.settle();
        }
        let pool = harness.engine.pool().unwrap();
        let given_up = pool.given_up;
        assert!(pool.jobs.is_empty() && given_up > 0, "{layout:?}: {pool:?}");
        assert!(pool.removal_waits.as_ref().is_some_and(|why| why.contains("no copy")), "{layout:?}: {pool:?}");
        harness.unreadable = false;
        let mut began = 0;
        for _ in 0..2_000 {
            harness.now += 1_000;
            harness.settle();
            began += u32::from(runs(&harness, JobKind::Rejoin));
        }
        let pool = harness.engine.pool().unwrap();
        assert_eq!((began, pool.given_up), (0, given_up), "{layout:?}: it is not tried again without a reason");
        harness.command(JobCommand::Scrub).unwrap();
        for _ in 0..300 {
            harness.now += 1_000;
            harness.settle();
        }
        let pool = harness.engine.pool().unwrap();
        let least = pool.devices.iter().map(|device| device.size).min().unwrap();
        assert!(pool.given_up * 32 <= least && pool.removal_waits.is_none(), "{layout:?}: {given_up} {pool:?}");
        DATA.check(&mut harness, Target::Head(volume), 2);
        DATA.check(&mut harness, Target::Snapshot(snapshot), 1);
        harness.audit();
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
                let mut harness = Harness::new(&sizes, layout);
                let volume = harness.volume("disk0", 1 << 30, Compression::Off);
                for at in 0..mib {
                    harness.request(Target::Head(volume), Op::Write, at << 20, 1 << 20, &vec![at as u8; 1 << 20]).ok()?;
                }
                harness.command(DeviceCommand::Remove { member: MemberId(1), dry_run: true }).ok()?;
                stopped_half_way(&mut harness, 1)?;
                let mut turns = 0;
                while wait && !runs(&harness, JobKind::Rejoin) && turns < 500 {
                    turns += 1;
                    harness.now += 100;
                    harness.step();
                }
                while harness.engine.pop_reply().is_some() {}
                let joins = runs(&harness, JobKind::Rejoin);
                harness.start(Command::Devices(DeviceCommand::Remove { member: MemberId(1), dry_run: false }));
                let mut reply = None;
                while reply.is_none() {
                    harness.step();
                    reply = harness.engine.pop_reply();
                }
                let accepted = reply.unwrap().1.is_ok();
                if accepted && joins {
                    harness.finish_jobs();
                    assert_eq!(harness.engine.pool().unwrap().devices.len(), sizes.len() - 1, "{layout:?} {mib}");
                    harness.audit();
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

/// A spare has no segments: extents that a stopped removal gave up are used again without it.
#[test]
fn rows_come_back_although_a_spare_is_missing() {
    let groups = vec![
        GroupSpec { class: Class::Data, layout: MIRROR, devices: Some(3) },
        GroupSpec { class: Class::Spare, layout: Layout::Linear, devices: Some(1) },
    ];
    let tuning = Tuning { map_memory: 4 << 20, checkpoint_log_bytes: 2 << 20, ..Tuning::default() };
    let mut harness = Harness::with_groups(&[64; 4], groups, tuning);
    let volume = harness.volume("disk0", SIZE, Compression::Off);
    DATA.write(&mut harness, volume, 1);
    stopped_half_way(&mut harness, 1).unwrap();
    let mut media = harness.media;
    media.pop();
    let mut harness = Harness::import(media).unwrap();
    let before = harness.engine.pool().unwrap();
    assert!(before.given_up > 0 && before.devices.iter().any(|device| device.slot.is_none()), "{before:?}");
    for _ in 0..40 {
        harness.now += 1_000;
        harness.settle();
    }
    let info = harness.engine.pool().unwrap();
    assert!(info.given_up * 32 <= info.devices[0].size, "{} {info:?}", before.given_up);
    DATA.check(&mut harness, Target::Head(volume), 1);
    harness.audit();
}
