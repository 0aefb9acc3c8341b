//! Devices on a full filesystem or volume.

use millpond_block::{DiskError, Io, IoKind, Op};
use millpond_engine::{Compression, DeviceTrouble, Layout, MemberState, PoolState, Target, Tuning};

use crate::harness::Harness;

/// Runs turns in which writes to these devices find no space. Returns the number of such writes.
fn refuse(harness: &mut Harness, devices: &[u16], turns: u32, millis: u64) -> usize {
    let mut refused = 0;
    for _ in 0..turns {
        harness.now += millis - 1;
        harness.turn();
        for io in std::iter::from_fn(|| harness.engine.pop_io()).collect::<Vec<Io>>() {
            if matches!(io.kind, IoKind::Write { .. }) && devices.contains(&io.device.0) {
                refused += 1;
                harness.refuse(io);
            } else {
                harness.perform(io);
            }
        }
    }
    refused
}

fn answers(harness: &mut Harness) -> Vec<Option<DiskError>> {
    std::iter::from_fn(|| harness.engine.pop_completion()).map(|done| done.result.err()).collect()
}

fn states(harness: &Harness) -> Vec<MemberState> {
    harness.engine.pool().unwrap().devices.iter().map(|d| d.state).collect()
}

/// Guests do not notice a short shortage: one write is retried now and then, the others wait for
/// it.
#[test]
fn a_device_that_is_full_for_a_moment_is_waited_for() {
    let mut harness = Harness::new(&[32], Layout::Linear);
    let head = Target::Head(harness.volume("disk0", 8 << 20, Compression::Off));
    harness.request(head, Op::Write, 0, 4096, &[7; 4096]).unwrap();
    for _ in 0..2 {
        for block in 0..20 {
            harness.write(head, block * 4096, &[8; 4096]);
            harness.turn();
        }
        let held: Vec<_> = std::iter::from_fn(|| harness.engine.pop_io()).collect();
        assert!(held.len() >= 20, "each turn wrote a batch: {}", held.len());
        held.into_iter().for_each(|io| harness.refuse(io));
        let knocks = refuse(&mut harness, &[0], 6, 100);
        assert!((2..10).contains(&knocks), "{knocks} tries, with those of a checkpoint that begins meanwhile");
        assert_eq!(answers(&mut harness), []);
        // there is space again: all writes succeed
        harness.now += 200;
        harness.settle();
        assert_eq!(answers(&mut harness), [None; 20]);
    }
}

/// Fixed defect: guests waited for half a minute and got EIO, and the pool stayed stopped although
/// there was space again.
#[test]
fn guests_of_a_full_device_get_enospc_and_the_pool_goes_on_by_itself() {
    let mut harness = Harness::new(&[32], Layout::Linear);
    let volume = harness.volume("disk0", 8 << 20, Compression::Off);
    let head = Target::Head(volume);
    harness.request(head, Op::Write, 0, 8192, &[7; 8192]).unwrap();
    harness.request(head, Op::Flush, 0, 0, &[]).unwrap();
    harness.write(head, 0, &[8; 4096]);
    harness.write(head, 4096, &[9; 512]);
    refuse(&mut harness, &[0], 13, 100);
    assert_eq!(answers(&mut harness), [Some(DiskError::NoSpace); 2], "those that wait are answered within a second or so");
    let info = harness.engine.pool().unwrap();
    assert!(info.refuses_writes && info.devices[0].full.is_some() && info.state == PoolState::Online, "{info:?}");

    harness.write(head, 1 << 20, &[9; 4096]);
    harness.write(head, (1 << 20) + 4096, &[9; 512]);
    harness.submit(head, Op::WriteZeroes { may_unmap: true }, 0, 4096);
    harness.submit(head, Op::Flush, 0, 0);
    harness.submit(head, Op::Read, 1 << 20, 4096);
    refuse(&mut harness, &[0], 3, 100);
    let answered = answers(&mut harness);
    assert_eq!(answered.iter().filter(|answer| **answer == Some(DiskError::NoSpace)).count(), 3, "new ones at once: {answered:?}");
    assert_eq!(answered.iter().filter(|answer| answer.is_none()).count(), 2, "what needs no write goes on: {answered:?}");
    // data that is not written yet is not returned, and a read of it does not wait for ever
    harness.submit(head, Op::Read, 0, 4096);
    refuse(&mut harness, &[0], 100, 100);
    assert_eq!(answers(&mut harness), []);
    refuse(&mut harness, &[0], 300, 100);
    assert_eq!(answers(&mut harness), [Some(DiskError::Io)]);

    // there is space again
    harness.now += 200;
    harness.settle();
    let info = harness.engine.pool().unwrap();
    assert!(!info.refuses_writes && info.devices[0].full.is_none(), "{info:?}");
    harness.request(head, Op::Write, 1 << 20, 4096, &[5; 4096]).unwrap();
    let read = harness.request(head, Op::Read, 0, 4096, &[]).unwrap();
    assert!(read == [7; 4096] || read == [8; 4096], "a write that failed was done or not");
    harness.audit();
    harness.reopen();
    assert_eq!(harness.request(head, Op::Read, 0, 4096, &[]).unwrap(), read);
    assert_eq!(harness.request(head, Op::Read, 1 << 20, 4096, &[]).unwrap(), [5; 4096]);
}

/// Fixed defect: a mirror with one full device was stopped completely.
#[test]
fn a_full_device_is_given_up_alone_where_others_can_go_on() {
    for layout in [Layout::Mirror { copies: 2 }, Layout::Parity { width: 5, parity: 1, unit: 65536 }] {
        let sizes: &[usize] = if matches!(layout, Layout::Mirror { .. }) { &[64, 64] } else { &[64; 5] };
        let mut harness = Harness::with(sizes, layout, Tuning { map_memory: 4 << 20, checkpoint_log_bytes: 2 << 20, ..Tuning::default() });
        let head = Target::Head(harness.volume("disk0", 8 << 20, Compression::Off));
        harness.write(head, 0, &[1; 4096]);
        harness.turn();
        let first: Vec<Io> = std::iter::from_fn(|| harness.engine.pop_io()).collect();
        let member = first.iter().map(|io| io.device.0).max().unwrap();
        let at = usize::from(member);
        for io in first {
            if io.device.0 == member { harness.refuse(io) } else { harness.perform(io) }
        }
        for at in 1..8u64 {
            harness.write(head, at << 18, &[at as u8 + 1; 4096]);
        }
        harness.submit(head, Op::Flush, 0, 0);
        assert!(at > 0 && refuse(&mut harness, &[member], 30, 100) > 0, "{layout:?}");
        assert_eq!(answers(&mut harness), [None; 9], "{layout:?}");
        let info = harness.engine.pool().unwrap();
        assert_eq!((states(&harness)[at], info.devices[at].trouble), (MemberState::Down, Some(DeviceTrouble::Full)), "{layout:?}");
        assert!(info.state == PoolState::Online && !info.refuses_writes);
        harness.replace(member, 64);
        harness.dead.push(0);
        harness.expect_numbered(head, 8, 1 << 18);
        harness.audit();
    }
}

/// The usual cause: all devices are files on one filesystem.
#[test]
fn nothing_is_given_up_when_all_devices_are_full() {
    let mut harness = Harness::new(&[64, 64], Layout::Mirror { copies: 2 });
    let head = Target::Head(harness.volume("disk0", 8 << 20, Compression::Off));
    harness.write(head, 0, &[1; 4096]);
    refuse(&mut harness, &[0, 1], 50, 100);
    assert_eq!(answers(&mut harness), [Some(DiskError::NoSpace)]);
    assert_eq!(states(&harness), [MemberState::Present; 2]);
    harness.now += 200;
    harness.settle();
    harness.request(head, Op::Write, 0, 4096, &[2; 4096]).unwrap();
    assert_eq!(states(&harness), [MemberState::Present; 2]);
    harness.audit();
}
