//! Devices that answer late or never.

use millpond_block::{DeviceError, DeviceSlot, Io, IoDone, MemberId, Op};
use millpond_engine::{
    Class, Command, Compression, DeviceCommand, DeviceTrouble, GroupSpec, Holder, Layout, MemberState, PoolState, Target, Tuning,
};

use crate::harness::Harness;

/// Bytes of an area, with label and roots, at each end of a device.
const AREA: usize = 1 << 20;

fn states(harness: &Harness) -> Vec<MemberState> {
    harness.engine.pool().unwrap().devices.iter().map(|d| d.state).collect()
}

/// Runs turns in which one device completes nothing; returns the operations that it was given.
fn hold(harness: &mut Harness, device: u16, turns: u32) -> Vec<Io> {
    let mut held = Vec::new();
    for _ in 0..turns {
        harness.turn();
        while let Some(io) = harness.engine.pop_io() {
            if io.device.0 == device { held.push(io) } else { harness.perform(io) }
        }
    }
    held
}

/// Delivers a completion that comes late.
fn late(harness: &mut Harness, io: Io, result: Result<(), DeviceError>) {
    let buf = if let millpond_block::IoKind::Read { buf, .. } = io.kind { Some(buf) } else { None };
    harness.engine.io_done(IoDone { id: io.id, result, buf });
}

/// INV-SPARE-1 for a replaced device: late completions of the old device count for no device.
#[test]
fn late_answers_of_a_device_that_was_replaced_count_for_nobody() {
    for result in [Err(DeviceError::Gone), Err(DeviceError::Failed(5)), Err(DeviceError::Full), Ok(())] {
        let mut harness = Harness::new(&[64, 64], Layout::Mirror { copies: 2 });
        let head = Target::Head(harness.volume("disk0", 8 << 20, Compression::Off));
        let mut held: Vec<Io> = Vec::new();
        for at in 0..4u64 {
            harness.write(head, at << 20, &[at as u8 + 1; 4096]);
            held.extend(hold(&mut harness, 1, 1));
        }
        assert!(held.len() >= 4, "{held:?}");
        let first = held.remove(0);
        late(&mut harness, first, Err(DeviceError::Gone));
        harness.settle();
        assert_eq!(states(&harness), [MemberState::Present, MemberState::Down]);
        assert_eq!(harness.engine.pool().unwrap().devices[1].trouble, Some(DeviceTrouble::Failed(DeviceError::Gone)));
        let answered = std::iter::from_fn(|| harness.engine.pop_completion()).filter(|done| done.result.is_ok()).count();
        assert_eq!(answered, 4, "nobody waits for the device that was given up");

        let device = harness.new_device(64);
        harness.command(DeviceCommand::Replace { member: MemberId(1), device }).unwrap();
        let second = held.remove(0);
        late(&mut harness, second, result);
        harness.finish_jobs();
        assert_eq!(states(&harness), [MemberState::Present, MemberState::Present], "it does not wait for the old device");
        // some complete only now, and operations begun meanwhile must not take these completions
        harness.write(head, 5 << 20, &[6; 4096]);
        harness.turn();
        for io in held {
            late(&mut harness, io, result);
        }
        harness.settle();
        assert!(harness.engine.pop_completion().is_some_and(|done| done.result.is_ok()));
        let info = harness.engine.pool().unwrap();
        assert_eq!((info.devices[1].state, info.devices[1].errors, info.devices[1].trouble), (MemberState::Present, 0, None));
        // the new device has all data
        harness.dead.push(0);
        for at in [0, 1, 2, 3, 5u64] {
            assert_eq!(harness.request(head, Op::Read, at << 20, 4096, &[]).unwrap(), [at as u8 + 1; 4096]);
        }
        harness.audit();
    }
}

/// A harness that gives devices up early.
fn impatient(sizes_mib: &[usize], layout: Layout) -> Harness {
    let tuning =
        Tuning { map_memory: 4 << 20, checkpoint_log_bytes: 2 << 20, silence_millis: 1000, reread_millis: 100, ..Tuning::default() };
    Harness::with(sizes_mib, layout, tuning)
}

/// Lets time pass in steps of 10 ms, while one device completes nothing.
fn wait(harness: &mut Harness, device: u16, millis: u64) -> Vec<Io> {
    let mut held = Vec::new();
    for _ in 0..millis / 10 {
        harness.now += 9;
        held.extend(hold(harness, device, 1));
    }
    held
}

fn answered(harness: &mut Harness) -> usize {
    std::iter::from_fn(|| harness.engine.pop_completion()).filter(|done| done.result.is_ok()).count()
}

/// Fixed defect: a mirror hung with one of its devices.
#[test]
fn a_device_that_does_not_answer_is_given_up_when_others_have_everything() {
    for layout in [
        Layout::Mirror { copies: 2 },
        Layout::Parity { width: 5, parity: 1, unit: 65536 },
        Layout::Parity { width: 5, parity: 2, unit: 65536 },
    ] {
        let sizes: &[usize] = if matches!(layout, Layout::Mirror { .. }) { &[64, 64] } else { &[64, 64, 64, 64, 64] };
        let mut harness = impatient(sizes, layout);
        let head = Target::Head(harness.volume("disk0", 8 << 20, Compression::Off));
        harness.write(head, 0, &[1; 4096]);
        harness.turn();
        // a device that got operations, but not the first one
        let first: Vec<Io> = std::iter::from_fn(|| harness.engine.pop_io()).collect();
        let member = first.iter().map(|io| io.device.0).max().unwrap();
        let at = usize::from(member);
        assert!(at > 0, "{layout:?}");
        let (mut held, others): (Vec<Io>, Vec<Io>) = first.into_iter().partition(|io| io.device.0 == member);
        others.into_iter().for_each(|io| harness.perform(io));
        for at in 1..4u64 {
            harness.write(head, at << 20, &[at as u8 + 1; 4096]);
            harness.submit(head, Op::Flush, 0, 0);
        }
        held.extend(wait(&mut harness, member, 500));
        assert_eq!(states(&harness)[at], MemberState::Present, "{layout:?}: given up too soon");
        assert!(harness.engine.pool().unwrap().devices[at].silent.is_some_and(|millis| millis >= 100), "{layout:?}: nobody says so");
        held.extend(wait(&mut harness, member, 1000));
        assert_eq!(states(&harness)[at], MemberState::Down, "{layout:?}");
        assert_eq!(harness.engine.pool().unwrap().devices[at].trouble, Some(DeviceTrouble::Silent));
        held.extend(wait(&mut harness, member, 100));
        assert_eq!(answered(&mut harness), 7, "{layout:?}: guests go on");

        // the device is replaced while it still has its operations; their completions, when they
        // come, count for no device
        harness.replace(member, 64);
        assert_eq!(states(&harness)[at], MemberState::Present, "{layout:?}: the resilver waits for the old device");
        for (nth, io) in held.into_iter().enumerate() {
            late(&mut harness, io, if nth % 2 == 0 { Ok(()) } else { Err(DeviceError::Failed(5)) });
        }
        harness.settle();
        assert_eq!(harness.engine.pool().unwrap().devices[at].errors, 0);
        harness.dead.push(0);
        harness.expect_numbered(head, 4, 1 << 20);
        harness.audit();
    }
}

/// INV-LABEL-1: after a power cut that leaves only the other device, data that was flushed without
/// the silent device is there.
#[test]
fn a_flush_without_the_silent_device_waits_for_labels_that_say_so() {
    let mut harness = impatient(&[64, 64], Layout::Mirror { copies: 2 });
    let head = Target::Head(harness.volume("disk0", 8 << 20, Compression::Off));
    harness.request(head, Op::Write, 0, 4096, &[1; 4096]).unwrap();
    harness.write(head, 0, &[2; 4096]);
    harness.submit(head, Op::Flush, 0, 0);
    wait(&mut harness, 1, 1500);
    let label = harness.media[0][..4096].to_vec();
    harness.write(head, 0, &[3; 4096]);
    harness.submit(head, Op::Flush, 0, 0);
    wait(&mut harness, 1, 50);
    assert_eq!(answered(&mut harness), 4);
    assert_eq!(harness.media[0][..4096], label, "the label said so before");
    let media = harness.media.clone();
    let stale = Harness::import_degraded(vec![media[1].clone()], true);
    drop(stale); // alone it may be imported: its labels cannot show that it is out of date
    let mut both = Harness::import(media).unwrap();
    assert_eq!(both.request(head, Op::Read, 0, 4096, &[]).unwrap(), [3; 4096]);
}

/// When no device answers, none is given up; nor is a device that the pool cannot do without.
#[test]
fn nothing_is_given_up_when_nothing_answers() {
    for (sizes, layout) in [(&[64usize, 64] as &[usize], Layout::Mirror { copies: 2 }), (&[64], Layout::Linear)] {
        let mut harness = impatient(sizes, layout);
        let head = Target::Head(harness.volume("disk0", 8 << 20, Compression::Off));
        harness.write(head, 0, &[1; 4096]);
        let mut held = Vec::new();
        for _ in 0..1000 {
            harness.now += 9;
            harness.turn();
            held.extend(std::iter::from_fn(|| harness.engine.pop_io()));
        }
        assert!(states(&harness).iter().all(|state| *state == MemberState::Present), "{:?}", states(&harness));
        assert_eq!(answered(&mut harness), 0);
        assert!(harness.engine.pool().unwrap().devices[0].silent.is_some_and(|millis| millis > 5000));
        held.into_iter().for_each(|io| harness.perform(io));
        harness.settle();
        assert_eq!(answered(&mut harness), 1);
        assert_eq!(harness.engine.pool().unwrap().devices[0].silent, None);
    }
}

/// A device is judged by whether it completes operations, not by its slowest one; not by time in
/// which this program did not run; and not while its operations are throttled.
#[test]
fn a_device_that_ends_something_is_not_given_up() {
    let mut harness = impatient(&[64, 64], Layout::Mirror { copies: 2 });
    let head = Target::Head(harness.volume("disk0", 8 << 20, Compression::Off));
    harness.write(head, 0, &[1; 4096]);
    let stuck = hold(&mut harness, 1, 1).remove(0);
    for nth in 1..40u64 {
        harness.write(head, nth * 4096, &[2; 4096]);
        let others = wait(&mut harness, 1, 500);
        others.into_iter().for_each(|io| harness.perform(io));
    }
    assert_eq!(states(&harness)[1], MemberState::Present);
    late(&mut harness, stuck, Err(DeviceError::Failed(5))); // the operation is retried
    harness.settle();
    assert_eq!(answered(&mut harness), 40);
    harness.write(head, 0, &[3; 4096]);
    let held = hold(&mut harness, 1, 1);
    harness.now += 3_600_000;
    harness.turn();
    harness.turn();
    assert_eq!(states(&harness)[1], MemberState::Present, "the host was paused");
    for _ in 0..1000 {
        harness.now += 9;
        harness.engine.excuse(DeviceSlot(1));
        assert_eq!(hold(&mut harness, 1, 1).len(), 0);
    }
    assert_eq!(states(&harness)[1], MemberState::Present, "it is slowed down on purpose");
    held.into_iter().for_each(|io| harness.perform(io));
    harness.settle();
    assert_eq!(answered(&mut harness), 1);
    harness.audit();
}

/// Guests do not wait until a device that hangs is given up: other devices have the data that they
/// read.
#[test]
fn what_a_silent_device_should_read_is_read_elsewhere() {
    for layout in [Layout::Mirror { copies: 2 }, Layout::Parity { width: 5, parity: 1, unit: 65536 }] {
        let sizes: &[usize] = if matches!(layout, Layout::Mirror { .. }) { &[64, 64] } else { &[64, 64, 64, 64, 64] };
        let mut harness = impatient(sizes, layout);
        let head = Target::Head(harness.volume("disk0", 32 << 20, Compression::Off));
        for at in 0..64u64 {
            harness.request(head, Op::Write, at * 65536, 65536, &[at as u8; 65536]).unwrap();
        }
        harness.command(Command::Checkpoint).unwrap();
        for device in 0..sizes.len() as u16 {
            let mut held: Vec<Io> = Vec::new();
            for turn in 0..94u64 {
                if turn < 64 {
                    harness.submit(head, Op::Read, turn * 65536, 65536);
                } else {
                    harness.now += 9;
                }
                // moves that are in flight go to all devices
                let (reads, writes): (Vec<Io>, Vec<Io>) =
                    hold(&mut harness, device, 1).into_iter().partition(|io| matches!(io.kind, millpond_block::IoKind::Read { .. }));
                writes.into_iter().for_each(|io| harness.perform(io));
                held.extend(reads);
            }
            let done: Vec<_> = std::iter::from_fn(|| harness.engine.pop_completion()).collect();
            assert_eq!(done.len(), 64, "{layout:?}: guests wait for device {device}, which has {}", held.len());
            for done in done {
                let bytes: Vec<u8> = done.result.unwrap().iter().flat_map(|piece| piece.bytes().to_vec()).collect();
                assert!(bytes.len() == 65536 && bytes.iter().all(|byte| *byte == bytes[0]));
            }
            assert!(states(&harness).iter().all(|state| *state == MemberState::Present), "{layout:?}: it is not given up for that");
            held.into_iter().for_each(|io| harness.perform(io));
            harness.settle();
        }
        harness.audit();
    }
}

/// A device that hangs can be replaced, and its replacement may hang, too.
#[test]
fn a_replacement_waits_for_neither_device() {
    for hangs in [1u16, 2] {
        let mut harness = impatient(&[64, 64], Layout::Mirror { copies: 2 });
        let head = Target::Head(harness.volume("disk0", 8 << 20, Compression::Off));
        harness.request(head, Op::Write, 0, 4096, &[1; 4096]).unwrap();
        let device = harness.new_device(64);
        if hangs == 1 {
            harness.write(head, 4096, &[2; 4096]);
            assert!(!hold(&mut harness, 1, 1).is_empty());
        }
        harness.start(Command::Devices(DeviceCommand::Replace { member: MemberId(1), device }));
        for _ in 0..3 {
            wait(&mut harness, hangs, 1000);
        }
        assert!(harness.engine.pop_reply().is_some_and(|(_, reply)| reply.is_ok()));
        for _ in 0..30 {
            wait(&mut harness, hangs, 100);
        }
        let info = harness.engine.pool().unwrap();
        assert!(info.jobs.is_empty(), "{info:?}");
        let slot = DeviceSlot(if hangs == 1 { 2 } else { 1 });
        assert_eq!((info.devices[1].state, info.devices[1].slot), (MemberState::Present, Some(slot)), "device {hangs} hangs");
        harness.audit();
    }
}

/// A mirror with one written block, after the daemon was killed.
fn killed_mirror() -> Vec<Vec<u8>> {
    let mut harness = impatient(&[64, 64], Layout::Mirror { copies: 2 });
    let head = Target::Head(harness.volume("disk0", 8 << 20, Compression::Off));
    harness.request(head, Op::Write, 0, 4096, &[7; 4096]).unwrap();
    harness.request(head, Op::Flush, 0, 0, &[]).unwrap();
    harness.request(head, Op::Write, 4096, 4096, &[8; 4096]).unwrap();
    harness.media
}

/// Imports for at most three seconds. After `after` operations of some devices, `act` decides for
/// each further one whether to perform or keep it.
fn import_beside(
    media: Vec<Vec<u8>>,
    degraded: bool,
    devices: &[u16],
    after: usize,
    mut act: impl FnMut(&mut Harness, Io) -> Option<Io>,
) -> (Harness, Vec<Io>) {
    let holder = Some(Holder { host: [1; 16], name: "anna".into(), session: [1; 16] });
    let tuning = Tuning { silence_millis: 1000, reread_millis: 100, degraded, holder, map_memory: 4 << 20, ..Tuning::default() };
    let mut harness = Harness::begin_import(media, tuning, 1);
    let (mut held, mut done) = (Vec::new(), 0);
    for _ in 0..300 {
        harness.now += 9;
        harness.turn();
        while let Some(io) = harness.engine.pop_io() {
            if !devices.contains(&io.device.0) || done < after {
                done += usize::from(devices.contains(&io.device.0));
                harness.perform(io);
            } else {
                held.extend(act(&mut harness, io));
            }
        }
        if *harness.engine.state() != PoolState::Opening {
            return (harness, held);
        }
    }
    panic!("the import does not end: {:?}", harness.engine.state());
}

/// An import waits for no device for ever. It continues without a device that does not answer if it
/// may and the others have all data; otherwise it is refused, and names the device.
#[test]
fn an_import_does_not_wait_for_a_device_that_does_not_answer() {
    let media = killed_mirror();
    let mut stages = 0;
    for after in 0.. {
        let import = |degraded| import_beside(media.clone(), degraded, &[1], after, |_, io| Some(io));
        let (harness, held) = import(false);
        if held.is_empty() {
            break;
        }
        stages += 1;
        match harness.engine.state() {
            PoolState::Faulted(why) => assert!(why.to_string().contains("no answer from device 1"), "after {after}: {why}"),
            state => panic!("after {after}: it came to {state:?} without being allowed to"),
        }
        assert_eq!(harness.engine.unanswered(), [DeviceSlot(1)], "after {after}");
        let (mut harness, held) = import(true);
        assert_eq!(*harness.engine.state(), PoolState::Online, "after {after}");
        let info = harness.engine.pool().unwrap();
        assert_eq!((info.devices[0].state, info.devices[1].state), (MemberState::Present, MemberState::Down), "after {after}");
        // late completions count for no device
        for (nth, io) in held.into_iter().enumerate() {
            late(&mut harness, io, if nth % 2 == 0 { Ok(()) } else { Err(DeviceError::Failed(5)) });
        }
        harness.settle();
        let head = Target::Head(harness.engine.find_volume("disk0").unwrap().id);
        assert_eq!(harness.request(head, Op::Read, 0, 4096, &[]).unwrap(), [7; 4096], "after {after}");
        assert_eq!(harness.request(head, Op::Read, 4096, 4096, &[]).unwrap(), [8; 4096], "after {after}");
        harness.request(head, Op::Write, 8192, 4096, &[9; 4096]).unwrap();
        harness.request(head, Op::Flush, 0, 0, &[]).unwrap();
        // the device that was left out has older data, and an import with both devices does not
        // take it for the pool
        let mut again = Harness::import(harness.media).unwrap();
        assert_eq!(states(&again)[0], MemberState::Present, "after {after}");
        again.finish_jobs();
        assert_eq!(states(&again), [MemberState::Present, MemberState::Present], "after {after}: it is filled again");
        assert_eq!(again.request(head, Op::Read, 8192, 4096, &[]).unwrap(), [9; 4096], "after {after}");
    }
    assert!(stages > 8, "{stages}");
}

#[test]
fn an_import_is_refused_when_no_device_answers_or_none_can_be_spared() {
    let media = killed_mirror();
    let (harness, _) = import_beside(media, true, &[0, 1], 4, |_, io| Some(io));
    assert!(
        matches!(harness.engine.state(), PoolState::Faulted(why) if why.to_string() == "no answer from devices 0, 1"),
        "{:?}",
        harness.engine.state()
    );
    let mut harness = impatient(&[32], Layout::Linear);
    harness.volume("disk0", 4 << 20, Compression::Off);
    for after in [0, 2, 4] {
        let (harness, _) = import_beside(harness.media.clone(), true, &[0], after, |_, io| Some(io));
        let state = harness.engine.state();
        assert!(matches!(state, PoolState::Faulted(why) if why.to_string().contains("answer")), "after {after}: {state:?}");
        assert_eq!(harness.engine.unanswered(), [DeviceSlot(0)], "after {after}");
    }
}

/// A single full device is given up, as in a pool in service; when all are full, the import is
/// refused. Fixed defect: it waited for space for ever.
#[test]
fn an_import_does_not_wait_for_room_on_a_device() {
    let media = killed_mirror();
    let refuse = |harness: &mut Harness, io: Io| {
        if matches!(io.kind, millpond_block::IoKind::Write { .. }) {
            harness.refuse(io)
        } else {
            harness.perform(io)
        }
        None
    };
    let (harness, _) = import_beside(media.clone(), false, &[1], 0, refuse);
    assert_eq!(*harness.engine.state(), PoolState::Online);
    let info = harness.engine.pool().unwrap();
    assert_eq!((info.devices[0].state, info.devices[1].state), (MemberState::Present, MemberState::Down));
    assert_eq!(info.devices[1].trouble, Some(DeviceTrouble::Full));
    let (harness, _) = import_beside(media, false, &[0, 1], 0, refuse);
    assert!(
        matches!(harness.engine.state(), PoolState::Faulted(why) if why.to_string().contains("no room on devices 0, 1")),
        "{:?}",
        harness.engine.state()
    );
}

/// An import can do without a cache device or a spare: it leaves one out that does not answer, even
/// without permission to degrade.
#[test]
fn an_import_leaves_a_silent_cache_or_spare_out() {
    let group = |class, layout, devices| GroupSpec { class, layout, devices: Some(devices) };
    let groups = vec![
        group(Class::Data, Layout::Mirror { copies: 2 }, 2),
        group(Class::Cache, Layout::Linear, 1),
        group(Class::Spare, Layout::Linear, 1),
    ];
    let tuning = Tuning { map_memory: 4 << 20, checkpoint_log_bytes: 2 << 20, ..Tuning::default() };
    let mut harness = Harness::with_groups(&[32; 4], groups, tuning);
    let head = Target::Head(harness.volume("disk0", 4 << 20, Compression::Off));
    harness.request(head, Op::Write, 0, 4096, &[7; 4096]).unwrap();
    harness.request(head, Op::Flush, 0, 0, &[]).unwrap();
    for silent in [2, 3] {
        let mut stages = 0;
        // the device's class is known from its labels
        for after in 2.. {
            let (mut again, held) = import_beside(harness.media.clone(), false, &[silent], after, |_, io| Some(io));
            if held.is_empty() {
                break;
            }
            stages += 1;
            assert_eq!(*again.engine.state(), PoolState::Online, "device {silent} after {after}");
            let read = again.request(head, Op::Read, 0, 4096, &[]).unwrap();
            assert_eq!(read, [7; 4096], "device {silent} after {after}");
        }
        assert!(stages > 0, "device {silent} is asked for nothing but labels");
    }
}

/// An import does not give up a device whose operations the caller throttles.
#[test]
fn an_import_excuses_a_device_that_is_held_back() {
    let holder = Some(Holder { host: [1; 16], name: "anna".into(), session: [1; 16] });
    let tuning = Tuning { silence_millis: 1000, reread_millis: 100, holder, map_memory: 4 << 20, ..Tuning::default() };
    let mut harness = Harness::begin_import(killed_mirror(), tuning, 1);
    for _ in 0..200 {
        harness.now += 99;
        let held = hold(&mut harness, 1, 1);
        for _ in 0..15 {
            harness.now += 99;
            harness.turn();
            harness.engine.excuse(DeviceSlot(1));
        }
        held.into_iter().for_each(|io| harness.perform(io));
        if *harness.engine.state() != PoolState::Opening {
            break;
        }
    }
    assert_eq!(*harness.engine.state(), PoolState::Online);
    assert_eq!(states(&harness), [MemberState::Present, MemberState::Present]);
    assert!(harness.engine.unanswered().is_empty());
}

/// The end of the log is read and at the same time written to devices that lack it: a device whose
/// writes fail is given up, and its reads go to others.
#[test]
fn a_device_that_fails_while_the_log_is_levelled_leaves_the_reads_to_others() {
    let mut harness = impatient(&[32, 32], Layout::Mirror { copies: 2 });
    let head = Target::Head(harness.volume("disk0", 4 << 20, Compression::Off));
    harness.request(head, Op::Flush, 0, 0, &[]).unwrap();
    for at in 0..24u64 {
        harness.request(head, Op::Write, at * 4096, 4096, &[at as u8 + 1; 4096]).unwrap();
    }
    let (media, mut kept) = (harness.media, 0);
    for after in 0.. {
        let act = |harness: &mut Harness, io: Io| {
            let read = matches!(io.kind, millpond_block::IoKind::Read { .. });
            if read {
                return Some(io);
            }
            late(harness, io, Err(DeviceError::Gone));
            None
        };
        let (mut again, held) = import_beside(media.clone(), true, &[1], after, act);
        if held.is_empty() {
            break;
        }
        kept += 1;
        assert_eq!(*again.engine.state(), PoolState::Online, "after {after}");
        let head = Target::Head(again.engine.find_volume("disk0").unwrap().id);
        again.dead.push(1);
        again.expect_numbered(head, 24, 4096);
    }
    assert!(kept > 8, "{kept}");
}

/// Batches in one copy of the log are found although two others are damaged there, and although the
/// copy that was read first is given up before the next one has answered.
#[test]
fn an_import_reads_all_copies_of_the_log_again_when_one_is_given_up() {
    let mut harness = impatient(&[20, 20, 20], Layout::Mirror { copies: 3 });
    let head = Target::Head(harness.volume("disk0", 1 << 20, Compression::Off));
    harness.request(head, Op::Write, 0, 4096, &[7; 4096]).unwrap();
    let before = harness.media[0].clone();
    harness.request(head, Op::Write, 0, 4096, &[8; 4096]).unwrap();
    harness.request(head, Op::Flush, 0, 0, &[]).unwrap();
    let mut pages = (AREA..before.len() - AREA).step_by(4096);
    let header = pages.find(|at| before[*at..at + 4096] != harness.media[0][*at..at + 4096]).unwrap();
    let mut held_up = 0;
    for (lost, late) in [(0u16, 1u16), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
        let mut media = harness.media.clone();
        [lost, late].into_iter().for_each(|device| media[usize::from(device)][header..header + 4096].fill(0x11));
        for after in 0.. {
            let tuning = Tuning { silence_millis: 1000, reread_millis: 100_000, degraded: true, map_memory: 4 << 20, ..Tuning::default() };
            let mut again = Harness::begin_import(media.clone(), tuning, 1);
            let (mut silent, mut waiting, mut done) = (Vec::new(), Vec::new(), 0);
            for _ in 0..100 {
                again.now += 99;
                again.turn();
                again.engine.excuse(DeviceSlot(late));
                while let Some(io) = again.engine.pop_io() {
                    let first = io.device.0 == lost && done < after;
                    done += usize::from(first);
                    match io.device.0 {
                        device if device == lost && !first => silent.push(io),
                        device if device == late && !silent.is_empty() && again.engine.unanswered().is_empty() => waiting.push(io),
                        _ => again.perform(io),
                    }
                }
                if !again.engine.unanswered().is_empty() {
                    waiting.drain(..).for_each(|io| again.perform(io));
                }
                if *again.engine.state() != PoolState::Opening {
                    break;
                }
            }
            if silent.is_empty() {
                break;
            }
            held_up += 1;
            assert_eq!(*again.engine.state(), PoolState::Online, "without {lost}, {late} late, after {after}");
            let head = Target::Head(again.engine.find_volume("disk0").unwrap().id);
            again.dead.push(lost);
            let read = again.request(head, Op::Read, 0, 4096, &[]).unwrap();
            assert_eq!(read, [8; 4096], "without {lost}, {late} late, after {after}");
        }
    }
    assert!(held_up > 40, "{held_up}");
}
