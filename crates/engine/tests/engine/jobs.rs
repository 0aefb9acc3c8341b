//! Jobs: rebalance and scrub, at a limited rate, continued after crashes.

use millpond_block::{DeviceSlot, MemberId};
use millpond_engine::{
    Command, CommandError, Compression, DeviceCommand, GroupFill, GroupSpec, JobCommand, JobInfo, JobKind, Layout, MemberState, Reply,
    Target, VolumeId,
};

use crate::content::Steps;
use crate::harness::Harness;

const SIZE: u64 = 24 << 20;
const DATA: Steps = Steps { size: SIZE, step: 256 << 10 };

fn add(harness: &mut Harness, layout: Layout, sizes: &[usize]) {
    let devices = sizes.iter().map(|mib| harness.new_device(*mib)).collect();
    harness.command(DeviceCommand::AddDevices { groups: vec![GroupSpec::data(layout)], devices }).unwrap();
}

/// A fairly full pool with another, empty group.
fn grown(layout: Layout, sizes: &[usize]) -> (Harness, VolumeId) {
    let mut harness = Harness::new(sizes, layout);
    let volume = harness.volume("disk0", SIZE, Compression::Off);
    DATA.write(&mut harness, volume, 1);
    harness.command(Command::Checkpoint).unwrap();
    add(&mut harness, layout, sizes);
    (harness, volume)
}

fn fills(harness: &mut Harness, dry_run: bool) -> Vec<GroupFill> {
    harness.start(Command::Job(JobCommand::Rebalance { dry_run }));
    for _ in 0..100 {
        some_turns(harness, 1);
        match harness.engine.pop_reply() {
            Some((_, Ok(Reply::Fills(fills)))) => return fills,
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
    panic!("no reply");
}

/// Percentage of each group that is in use.
fn shares(harness: &mut Harness) -> Vec<u64> {
    fills(harness, true).iter().map(|fill| fill.allocated * 100 / fill.size).collect()
}

fn job(harness: &Harness, kind: JobKind) -> Option<JobInfo> {
    harness.engine.pool().unwrap().jobs.into_iter().find(|job| job.kind == kind)
}

/// Runs a number of turns with their device operations.
fn some_turns(harness: &mut Harness, turns: u32) {
    for _ in 0..turns {
        harness.turn();
        while let Some(io) = harness.engine.pop_io() {
            harness.perform(io);
        }
    }
}

#[test]
fn groups_are_evened_out() {
    for (layout, sizes) in
        [(Layout::Linear, &[64][..]), (Layout::Stripe { width: 2, unit: 16384 }, &[32, 32]), (Layout::Mirror { copies: 2 }, &[64, 64])]
    {
        let (mut harness, volume) = grown(layout, sizes);
        let planned = fills(&mut harness, true);
        let surplus: u64 = planned.iter().map(|fill| fill.surplus).sum();
        assert!(planned.len() == 2 && surplus > SIZE / 4 && planned[1].surplus == 0, "{planned:?}");
        assert!(job(&harness, JobKind::Rebalance).is_none(), "a dry run began something");
        let begun: Vec<GroupFill> = match harness.command(JobCommand::Rebalance { dry_run: false }) {
            Ok(Reply::Fills(fills)) => fills,
            other => panic!("{other:?}"),
        };
        assert_eq!(begun, planned);
        harness.finish_jobs();
        let after = shares(&mut harness);
        assert!(after[0].abs_diff(after[1]) <= 10, "{layout:?}: {after:?}");
        DATA.check(&mut harness, Target::Head(volume), 1);
        harness.audit();
        // there is nothing left to do, and nothing begins
        assert!(fills(&mut harness, false).iter().all(|fill| fill.surplus == 0));
        assert!(harness.engine.pool().unwrap().jobs.is_empty());
        harness.reopen();
        DATA.check(&mut harness, Target::Head(volume), 1);
        assert!(harness.engine.pool().unwrap().jobs.is_empty());
        harness.audit();
    }
}

#[test]
fn what_is_written_goes_to_groups_by_what_is_free() {
    let (mut harness, volume) = grown(Layout::Linear, &[64]);
    let before = shares(&mut harness);
    for round in 2..4 {
        DATA.write(&mut harness, volume, round);
        harness.command(Command::Checkpoint).unwrap();
    }
    let after = shares(&mut harness);
    assert!(after[1] > before[1] + 10 && after[0].abs_diff(after[1]) < 30, "{before:?} {after:?}");
    DATA.check(&mut harness, Target::Head(volume), 3);
    harness.audit();
}

#[test]
fn a_rebalance_goes_on_after_a_crash_and_can_be_stopped() {
    for crash_at in [3, 30, 100, 300] {
        let (mut harness, volume) = grown(Layout::Linear, &[64]);
        harness.start(Command::Job(JobCommand::Rebalance { dry_run: false }));
        some_turns(&mut harness, crash_at);
        let answered = harness.engine.pop_reply().is_some();
        harness.reopen();
        let goes_on = job(&harness, JobKind::Rebalance).is_some();
        harness.finish_jobs();
        let after = shares(&mut harness);
        assert!(!answered || after[0].abs_diff(after[1]) <= 10, "forgotten after {crash_at} turns (went on: {goes_on}): {after:?}");
        DATA.check(&mut harness, Target::Head(volume), 1);
        harness.audit();
    }
    let (mut harness, volume) = grown(Layout::Linear, &[64]);
    fills(&mut harness, false);
    assert!(matches!(harness.command_beside(Command::Job(JobCommand::Rebalance { dry_run: false })), Err(CommandError::Busy(_))));
    harness.command(JobCommand::StopRebalance).unwrap();
    assert!(matches!(harness.command(JobCommand::StopRebalance), Err(CommandError::NotFound(_))));
    harness.reopen();
    assert!(harness.engine.pool().unwrap().jobs.is_empty());
    DATA.check(&mut harness, Target::Head(volume), 1);
    harness.audit();
}

#[test]
fn a_scrub_goes_on_where_it_was() {
    for clean in [false, true] {
        let mut harness = Harness::new(&[64, 64], Layout::Mirror { copies: 2 });
        let volume = harness.volume("disk0", SIZE, Compression::Off);
        DATA.write(&mut harness, volume, 1);
        harness.command(Command::Checkpoint).unwrap();
        // slow, so that it is still running at the next check
        harness.command(JobCommand::SetJobRate { rate: 4 << 20 }).unwrap();
        harness.command(JobCommand::Scrub).unwrap();
        while job(&harness, JobKind::Scrub).is_some_and(|job| job.done < SIZE) {
            harness.now += 250;
            some_turns(&mut harness, 4);
        }
        let (begun, before) = (harness.engine.pool().unwrap().scrub.unwrap().begun, job(&harness, JobKind::Scrub).unwrap());
        assert!(before.rate > 0 && before.rate < 8 << 20, "{before:?}");
        if clean {
            harness.command(Command::Close).unwrap();
        }
        let reads: u64 = harness.reads.iter().sum();
        harness.reopen();
        let after = job(&harness, JobKind::Scrub).unwrap();
        assert!(after.done + (SIZE / 2) >= before.done, "from the start: {before:?} {after:?}");
        harness.command(JobCommand::SetJobRate { rate: 0 }).unwrap();
        harness.finish_jobs();
        let found = harness.engine.pool().unwrap().scrub.unwrap();
        assert!(found.complete && found.begun == begun && found.errors == 0, "{found:?}");
        assert!(harness.reads.iter().sum::<u64>() > reads);
        // its result is known afterwards, too
        harness.now += 10_000;
        harness.settle();
        harness.reopen();
        assert_eq!(harness.engine.pool().unwrap().scrub.unwrap(), found);
        assert!(harness.engine.pool().unwrap().jobs.is_empty());
        harness.audit();
    }
}

#[test]
fn jobs_keep_to_their_rate_and_a_changed_one_holds_at_once() {
    let (mut harness, volume) = grown(Layout::Linear, &[64]);
    harness.command(JobCommand::SetJobRate { rate: 1 << 20 }).unwrap();
    assert!(matches!(harness.command(JobCommand::SetJobRate { rate: 7 }), Err(CommandError::Invalid(_))));
    harness.reopen();
    assert_eq!(harness.engine.pool().unwrap().job_rate, Some(1 << 20));
    let moved = harness.engine.metrics().cleaner_bytes;
    fills(&mut harness, false);
    let begun = harness.now;
    while harness.now < begun + 4_000 {
        harness.now += 100;
        some_turns(&mut harness, 8);
    }
    let moved = harness.engine.metrics().cleaner_bytes - moved;
    assert!((2 << 20..8 << 20).contains(&moved), "{moved} bytes in four seconds at 1 MiB/s");
    assert!(job(&harness, JobKind::Rebalance).is_some());
    harness.command(JobCommand::SetJobRate { rate: 0 }).unwrap();
    harness.finish_jobs();
    assert_eq!(harness.engine.pool().unwrap().job_rate, None);
    DATA.check(&mut harness, Target::Head(volume), 1);
    harness.audit();
}

/// Runs turns until the job ends: while the pool still lists what the job changes, the job must be
/// listed.
fn job_outlives(harness: &mut Harness, kind: JobKind, under_way: impl Fn(&Harness) -> bool) {
    for turns in 0..100_000 {
        harness.step();
        let listed = harness.engine.pool().unwrap().jobs.iter().any(|job| job.kind == kind);
        assert!(listed || !under_way(harness), "{kind:?} has ended in turn {turns}, but {:?}", harness.engine.pool().unwrap().devices);
        if !listed {
            return;
        }
    }
    panic!("{kind:?} does not end");
}

#[test]
fn jobs_of_devices_end_when_the_labels_say_so() {
    let mut harness = Harness::new(&[64, 64], Layout::Mirror { copies: 2 });
    let volume = harness.volume("disk0", SIZE, Compression::Off);
    DATA.write(&mut harness, volume, 1);
    let device = harness.new_device(64);
    harness.command(DeviceCommand::Replace { member: MemberId(1), device }).unwrap();
    job_outlives(&mut harness, JobKind::Replace, |harness| harness.engine.pool().unwrap().devices[1].replacement.is_some());
    assert_eq!(harness.engine.pool().unwrap().devices[1].slot, Some(DeviceSlot(2)));

    let mut media = harness.media.clone();
    media.remove(1);
    media.remove(0);
    let mut harness = Harness::import_degraded(media, true).unwrap();
    let device = harness.new_device(64);
    harness.command(DeviceCommand::Replace { member: MemberId(0), device }).unwrap();
    job_outlives(&mut harness, JobKind::Resilver, |harness| harness.engine.pool().unwrap().devices[0].state == MemberState::Filling);
    DATA.check(&mut harness, Target::Head(volume), 1);
}
