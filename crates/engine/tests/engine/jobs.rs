//! Jobs: rebalance and scrub, at a limited rate, continued after crashes.

use millpond_block::{DeviceSlot, MemberId};
use millpond_engine::{
    Command, CommandError, Compression, DeviceCommand, GroupFill, GroupSpec, JobCommand, JobInfo, JobKind, Layout, MemberState, Reply,
    Target, VolumeId,
};

use crate::content::Steps;
use crate::rig::Rig;

const SIZE: u64 = 24 << 20;
const DATA: Steps = Steps { size: SIZE, step: 256 << 10 };

fn add(rig: &mut Rig, layout: Layout, sizes: &[usize]) {
    let devices = sizes.iter().map(|mib| rig.new_device(*mib)).collect();
    rig.command(DeviceCommand::AddDevices { groups: vec![GroupSpec::data(layout)], devices }).unwrap();
}

/// A fairly full pool with another, empty group.
fn grown(layout: Layout, sizes: &[usize]) -> (Rig, VolumeId) {
    let mut rig = Rig::new(sizes, layout);
    let volume = rig.volume("disk0", SIZE, Compression::Off);
    DATA.write(&mut rig, volume, 1);
    rig.command(Command::Checkpoint).unwrap();
    add(&mut rig, layout, sizes);
    (rig, volume)
}

fn fills(rig: &mut Rig, dry_run: bool) -> Vec<GroupFill> {
    rig.start(Command::Job(JobCommand::Rebalance { dry_run }));
    for _ in 0..100 {
        some_turns(rig, 1);
        match rig.engine.pop_reply() {
            Some((_, Ok(Reply::Fills(fills)))) => return fills,
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
    panic!("no reply");
}

/// Percentage of each group that is in use.
fn shares(rig: &mut Rig) -> Vec<u64> {
    fills(rig, true).iter().map(|fill| fill.allocated * 100 / fill.size).collect()
}

fn job(rig: &Rig, kind: JobKind) -> Option<JobInfo> {
    rig.engine.pool().unwrap().jobs.into_iter().find(|job| job.kind == kind)
}

/// Runs a number of turns with their device operations.
fn some_turns(rig: &mut Rig, turns: u32) {
    for _ in 0..turns {
        rig.turn();
        while let Some(io) = rig.engine.pop_io() {
            rig.perform(io);
        }
    }
}

#[test]
fn groups_are_evened_out() {
    for (layout, sizes) in
        [(Layout::Linear, &[64][..]), (Layout::Stripe { width: 2, unit: 16384 }, &[32, 32]), (Layout::Mirror { copies: 2 }, &[64, 64])]
    {
        let (mut rig, volume) = grown(layout, sizes);
        let told = fills(&mut rig, true);
        let surplus: u64 = told.iter().map(|fill| fill.surplus).sum();
        assert!(told.len() == 2 && surplus > SIZE / 4 && told[1].surplus == 0, "{told:?}");
        assert!(job(&rig, JobKind::Rebalance).is_none(), "a dry run began something");
        let begun: Vec<GroupFill> = match rig.command(JobCommand::Rebalance { dry_run: false }) {
            Ok(Reply::Fills(fills)) => fills,
            other => panic!("{other:?}"),
        };
        assert_eq!(begun, told);
        rig.finish_jobs();
        let after = shares(&mut rig);
        assert!(after[0].abs_diff(after[1]) <= 10, "{layout:?}: {after:?}");
        DATA.check(&mut rig, Target::Head(volume), 1);
        rig.audit();
        // there is nothing left to do, and nothing begins
        assert!(fills(&mut rig, false).iter().all(|fill| fill.surplus == 0));
        assert!(rig.engine.pool().unwrap().jobs.is_empty());
        rig.reopen();
        DATA.check(&mut rig, Target::Head(volume), 1);
        assert!(rig.engine.pool().unwrap().jobs.is_empty());
        rig.audit();
    }
}

#[test]
fn what_is_written_goes_to_groups_by_what_is_free() {
    let (mut rig, volume) = grown(Layout::Linear, &[64]);
    let before = shares(&mut rig);
    for round in 2..4 {
        DATA.write(&mut rig, volume, round);
        rig.command(Command::Checkpoint).unwrap();
    }
    let after = shares(&mut rig);
    assert!(after[1] > before[1] + 10 && after[0].abs_diff(after[1]) < 30, "{before:?} {after:?}");
    DATA.check(&mut rig, Target::Head(volume), 3);
    rig.audit();
}

#[test]
fn a_rebalance_goes_on_after_a_crash_and_can_be_stopped() {
    for crash_at in [3, 30, 100, 300] {
        let (mut rig, volume) = grown(Layout::Linear, &[64]);
        rig.start(Command::Job(JobCommand::Rebalance { dry_run: false }));
        some_turns(&mut rig, crash_at);
        let answered = rig.engine.pop_reply().is_some();
        rig.reopen();
        let goes_on = job(&rig, JobKind::Rebalance).is_some();
        rig.finish_jobs();
        let after = shares(&mut rig);
        assert!(!answered || after[0].abs_diff(after[1]) <= 10, "forgotten after {crash_at} turns (went on: {goes_on}): {after:?}");
        DATA.check(&mut rig, Target::Head(volume), 1);
        rig.audit();
    }
    let (mut rig, volume) = grown(Layout::Linear, &[64]);
    fills(&mut rig, false);
    assert!(matches!(rig.command_beside(Command::Job(JobCommand::Rebalance { dry_run: false })), Err(CommandError::Busy(_))));
    rig.command(JobCommand::StopRebalance).unwrap();
    assert!(matches!(rig.command(JobCommand::StopRebalance), Err(CommandError::NotFound(_))));
    rig.reopen();
    assert!(rig.engine.pool().unwrap().jobs.is_empty());
    DATA.check(&mut rig, Target::Head(volume), 1);
    rig.audit();
}

#[test]
fn a_scrub_goes_on_where_it_was() {
    for clean in [false, true] {
        let mut rig = Rig::new(&[64, 64], Layout::Mirror { copies: 2 });
        let volume = rig.volume("disk0", SIZE, Compression::Off);
        DATA.write(&mut rig, volume, 1);
        rig.command(Command::Checkpoint).unwrap();
        // slow, so that it is still running at the next check
        rig.command(JobCommand::SetJobRate { rate: 4 << 20 }).unwrap();
        rig.command(JobCommand::Scrub).unwrap();
        while job(&rig, JobKind::Scrub).is_some_and(|job| job.done < SIZE) {
            rig.now += 250;
            some_turns(&mut rig, 4);
        }
        let (begun, before) = (rig.engine.pool().unwrap().scrub.unwrap().begun, job(&rig, JobKind::Scrub).unwrap());
        assert!(before.rate > 0 && before.rate < 8 << 20, "{before:?}");
        if clean {
            rig.command(Command::Close).unwrap();
        }
        let reads: u64 = rig.reads.iter().sum();
        rig.reopen();
        let after = job(&rig, JobKind::Scrub).unwrap();
        assert!(after.done + (SIZE / 2) >= before.done, "from the start: {before:?} {after:?}");
        rig.command(JobCommand::SetJobRate { rate: 0 }).unwrap();
        rig.finish_jobs();
        let found = rig.engine.pool().unwrap().scrub.unwrap();
        assert!(found.complete && found.begun == begun && found.errors == 0, "{found:?}");
        assert!(rig.reads.iter().sum::<u64>() > reads);
        // its result is known afterwards, too
        rig.now += 10_000;
        rig.settle();
        rig.reopen();
        assert_eq!(rig.engine.pool().unwrap().scrub.unwrap(), found);
        assert!(rig.engine.pool().unwrap().jobs.is_empty());
        rig.audit();
    }
}

#[test]
fn jobs_keep_to_their_rate_and_a_changed_one_holds_at_once() {
    let (mut rig, volume) = grown(Layout::Linear, &[64]);
    rig.command(JobCommand::SetJobRate { rate: 1 << 20 }).unwrap();
    assert!(matches!(rig.command(JobCommand::SetJobRate { rate: 7 }), Err(CommandError::Invalid(_))));
    rig.reopen();
    assert_eq!(rig.engine.pool().unwrap().job_rate, Some(1 << 20));
    let moved = rig.engine.metrics().cleaner_bytes;
    fills(&mut rig, false);
    let begun = rig.now;
    while rig.now < begun + 4_000 {
        rig.now += 100;
        some_turns(&mut rig, 8);
    }
    let moved = rig.engine.metrics().cleaner_bytes - moved;
    assert!((2 << 20..8 << 20).contains(&moved), "{moved} bytes in four seconds at 1 MiB/s");
    assert!(job(&rig, JobKind::Rebalance).is_some());
    rig.command(JobCommand::SetJobRate { rate: 0 }).unwrap();
    rig.finish_jobs();
    assert_eq!(rig.engine.pool().unwrap().job_rate, None);
    DATA.check(&mut rig, Target::Head(volume), 1);
    rig.audit();
}

/// Runs turns until the job ends: while the pool still lists what the job changes, the job must be
/// listed.
fn job_outlives(rig: &mut Rig, kind: JobKind, under_way: impl Fn(&Rig) -> bool) {
    for turns in 0..100_000 {
        rig.step();
        let listed = rig.engine.pool().unwrap().jobs.iter().any(|job| job.kind == kind);
        assert!(listed || !under_way(rig), "{kind:?} has ended in turn {turns}, but {:?}", rig.engine.pool().unwrap().devices);
        if !listed {
            return;
        }
    }
    panic!("{kind:?} does not end");
}

#[test]
fn jobs_of_devices_end_when_the_labels_say_so() {
    let mut rig = Rig::new(&[64, 64], Layout::Mirror { copies: 2 });
    let volume = rig.volume("disk0", SIZE, Compression::Off);
    DATA.write(&mut rig, volume, 1);
    let device = rig.new_device(64);
    rig.command(DeviceCommand::Replace { member: MemberId(1), device }).unwrap();
    job_outlives(&mut rig, JobKind::Replace, |rig| rig.engine.pool().unwrap().devices[1].successor.is_some());
    assert_eq!(rig.engine.pool().unwrap().devices[1].slot, Some(DeviceSlot(2)));

    let mut media = rig.media.clone();
    media.remove(1);
    media.remove(0);
    let mut rig = Rig::import_degraded(media, true).unwrap();
    let device = rig.new_device(64);
    rig.command(DeviceCommand::Replace { member: MemberId(0), device }).unwrap();
    job_outlives(&mut rig, JobKind::Resilver, |rig| rig.engine.pool().unwrap().devices[0].state == MemberState::Filling);
    DATA.check(&mut rig, Target::Head(volume), 1);
}
