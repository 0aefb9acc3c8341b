//! Devices on a full filesystem or volume.

use millpond_block::{DiskError, Io, IoKind, Op};
use millpond_engine::{Compression, DeviceTrouble, Layout, MemberState, PoolState, Target, Tuning};

use crate::rig::Rig;

/// Runs turns in which writes to these devices find no space. Returns the number of such writes.
fn refuse(rig: &mut Rig, devices: &[u16], turns: u32, millis: u64) -> usize {
    let mut refused = 0;
    for _ in 0..turns {
        rig.now += millis - 1;
        rig.turn();
        for io in std::iter::from_fn(|| rig.engine.pop_io()).collect::<Vec<Io>>() {
            if matches!(io.kind, IoKind::Write { .. }) && devices.contains(&io.device.0) {
                refused += 1;
                rig.refuse(io);
            } else {
                rig.perform(io);
            }
        }
    }
    refused
}

fn answers(rig: &mut Rig) -> Vec<Option<DiskError>> {
    std::iter::from_fn(|| rig.engine.pop_completion()).map(|done| done.result.err()).collect()
}

fn states(rig: &Rig) -> Vec<MemberState> {
    rig.engine.pool().unwrap().devices.iter().map(|d| d.state).collect()
}

/// Guests do not notice a short shortage: one write is retried now and then, the others wait for
/// it.
#[test]
fn a_device_that_is_full_for_a_moment_is_waited_for() {
    let mut rig = Rig::new(&[32], Layout::Linear);
    let head = Target::Head(rig.volume("disk0", 8 << 20, Compression::Off));
    rig.request(head, Op::Write, 0, 4096, &[7; 4096]).unwrap();
    for _ in 0..2 {
        for block in 0..20 {
            rig.write(head, block * 4096, &[8; 4096]);
            rig.turn();
        }
        let held: Vec<_> = std::iter::from_fn(|| rig.engine.pop_io()).collect();
        assert!(held.len() >= 20, "each turn wrote a batch: {}", held.len());
        held.into_iter().for_each(|io| rig.refuse(io));
        let knocks = refuse(&mut rig, &[0], 6, 100);
        assert!((2..10).contains(&knocks), "{knocks} tries, with those of a checkpoint that begins meanwhile");
        assert_eq!(answers(&mut rig), []);
        // there is space again: all writes succeed
        rig.now += 200;
        rig.settle();
        assert_eq!(answers(&mut rig), [None; 20]);
    }
}

/// Fixed defect: guests waited for half a minute and got EIO, and the pool stayed stopped although
/// there was space again.
#[test]
fn guests_of_a_full_device_get_enospc_and_the_pool_goes_on_by_itself() {
    let mut rig = Rig::new(&[32], Layout::Linear);
    let volume = rig.volume("disk0", 8 << 20, Compression::Off);
    let head = Target::Head(volume);
    rig.request(head, Op::Write, 0, 8192, &[7; 8192]).unwrap();
    rig.request(head, Op::Flush, 0, 0, &[]).unwrap();
    rig.write(head, 0, &[8; 4096]);
    rig.write(head, 4096, &[9; 512]);
    refuse(&mut rig, &[0], 13, 100);
    assert_eq!(answers(&mut rig), [Some(DiskError::NoSpace); 2], "those that wait are told within a second or so");
    let info = rig.engine.pool().unwrap();
    assert!(info.refuses_writes && info.devices[0].full.is_some() && info.state == PoolState::Online, "{info:?}");

    rig.write(head, 1 << 20, &[9; 4096]);
    rig.write(head, (1 << 20) + 4096, &[9; 512]);
    rig.submit(head, Op::WriteZeroes { may_unmap: true }, 0, 4096);
    rig.submit(head, Op::Flush, 0, 0);
    rig.submit(head, Op::Read, 1 << 20, 4096);
    refuse(&mut rig, &[0], 3, 100);
    let told = answers(&mut rig);
    assert_eq!(told.iter().filter(|answer| **answer == Some(DiskError::NoSpace)).count(), 3, "new ones at once: {told:?}");
    assert_eq!(told.iter().filter(|answer| answer.is_none()).count(), 2, "what needs no write goes on: {told:?}");
    // data that is not written yet is not returned, and a read of it does not wait for ever
    rig.submit(head, Op::Read, 0, 4096);
    refuse(&mut rig, &[0], 100, 100);
    assert_eq!(answers(&mut rig), []);
    refuse(&mut rig, &[0], 300, 100);
    assert_eq!(answers(&mut rig), [Some(DiskError::Io)]);

    // there is space again
    rig.now += 200;
    rig.settle();
    let info = rig.engine.pool().unwrap();
    assert!(!info.refuses_writes && info.devices[0].full.is_none(), "{info:?}");
    rig.request(head, Op::Write, 1 << 20, 4096, &[5; 4096]).unwrap();
    let read = rig.request(head, Op::Read, 0, 4096, &[]).unwrap();
    assert!(read == [7; 4096] || read == [8; 4096], "a write that failed was done or not");
    rig.audit();
    rig.reopen();
    assert_eq!(rig.request(head, Op::Read, 0, 4096, &[]).unwrap(), read);
    assert_eq!(rig.request(head, Op::Read, 1 << 20, 4096, &[]).unwrap(), [5; 4096]);
}

/// Fixed defect: a mirror with one full device was stopped completely.
#[test]
fn a_full_device_is_given_up_alone_where_others_can_go_on() {
    for layout in [Layout::Mirror { copies: 2 }, Layout::Parity { width: 5, parity: 1, unit: 65536 }] {
        let sizes: &[usize] = if matches!(layout, Layout::Mirror { .. }) { &[64, 64] } else { &[64; 5] };
        let mut rig = Rig::with(sizes, layout, Tuning { map_memory: 4 << 20, checkpoint_log_bytes: 2 << 20, ..Tuning::default() });
        let head = Target::Head(rig.volume("disk0", 8 << 20, Compression::Off));
        rig.write(head, 0, &[1; 4096]);
        rig.turn();
        let first: Vec<Io> = std::iter::from_fn(|| rig.engine.pop_io()).collect();
        let member = first.iter().map(|io| io.device.0).max().unwrap();
        let at = usize::from(member);
        for io in first {
            if io.device.0 == member { rig.refuse(io) } else { rig.perform(io) }
        }
        for at in 1..8u64 {
            rig.write(head, at << 18, &[at as u8 + 1; 4096]);
        }
        rig.submit(head, Op::Flush, 0, 0);
        assert!(at > 0 && refuse(&mut rig, &[member], 30, 100) > 0, "{layout:?}");
        assert_eq!(answers(&mut rig), [None; 9], "{layout:?}");
        let info = rig.engine.pool().unwrap();
        assert_eq!((states(&rig)[at], info.devices[at].trouble), (MemberState::Down, Some(DeviceTrouble::Full)), "{layout:?}");
        assert!(info.state == PoolState::Online && !info.refuses_writes);
        rig.replace(member, 64);
        rig.dead.push(0);
        rig.expect_numbered(head, 8, 1 << 18);
        rig.audit();
    }
}

/// The usual cause: all devices are files on one filesystem.
#[test]
fn nothing_is_given_up_when_all_devices_are_full() {
    let mut rig = Rig::new(&[64, 64], Layout::Mirror { copies: 2 });
    let head = Target::Head(rig.volume("disk0", 8 << 20, Compression::Off));
    rig.write(head, 0, &[1; 4096]);
    refuse(&mut rig, &[0, 1], 50, 100);
    assert_eq!(answers(&mut rig), [Some(DiskError::NoSpace)]);
    assert_eq!(states(&rig), [MemberState::Present; 2]);
    rig.now += 200;
    rig.settle();
    rig.request(head, Op::Write, 0, 4096, &[2; 4096]).unwrap();
    assert_eq!(states(&rig), [MemberState::Present; 2]);
    rig.audit();
}
