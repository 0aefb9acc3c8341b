use millpond_block::{Buf, BufSlice, DeviceError};

use super::*;
use crate::quantile;

const DISK: DeviceSlot = DeviceSlot(0);
const MILLI: u64 = 1_000_000;

fn write(id: u64, pages: usize) -> Io {
    let piece = BufSlice::new(Buf::zeroed(pages * 4096), 0..pages * 4096);
    Io { id: IoId(id), device: DISK, kind: IoKind::Write { offset: 0, pieces: vec![piece] }, urgent: false }
}

fn done(id: u64) -> IoDone {
    IoDone { id: IoId(id), result: Ok(()), buf: None }
}

#[test]
fn without_a_cap_everything_passes_and_is_counted() {
    let mut gate = Gate::default();
    assert!(gate.admit(write(1, 2), 100).is_some());
    assert!(gate.admit(Io { id: IoId(2), device: DISK, kind: IoKind::Flush, urgent: false }, 100).is_some());
    assert_eq!(gate.of(DISK, 150).0.in_flight, 2);
    assert_eq!(gate.of(DISK, 150).0.busy_nanos, 50);
    gate.done(&done(1), 350);
    gate.done(&IoDone { result: Err(DeviceError::Full), ..done(2) }, 400);
    gate.done(&done(1), 500);
    let want = DeviceLoad { writes: 1, write_bytes: 8192, write_nanos: 250, errors: 1, busy_nanos: 300, ..DeviceLoad::default() };
    assert_eq!(gate.of(DISK, 900).0, want, "the device was busy from the first to the last");
    assert_eq!(gate.next_release(), None);
    assert_eq!(gate.of(DISK, 900).1.writes.counts(), [1], "what failed has no latency");
}

#[test]
fn waiting_and_the_device_are_told_apart() {
    let mut gate = Gate::default();
    gate.limit(DISK, DeviceLimit { bytes_per_second: None, ops_per_second: Some(10) });
    assert!(gate.admit(write(1, 1), 1000 * MILLI).is_some());
    assert!(gate.admit(write(2, 1), 1000 * MILLI).is_none());
    let free = gate.next_release().expect("one waits");
    assert_eq!(gate.release(free).map(|io| io.id), Some(IoId(2)));
    gate.done(&done(1), 1001 * MILLI);
    gate.done(&done(2), free + 2 * MILLI);
    let (load, times, _) = gate.of(DISK, 0);
    assert_eq!((load.write_nanos, load.write_queue_nanos), (free - 1000 * MILLI + 3 * MILLI, free - 1000 * MILLI));
    let (writes, queue) = (times.writes.counts(), times.queue.counts());
    assert_eq!((writes.iter().sum::<u64>(), queue.iter().sum::<u64>()), (2, 2));
    assert!(quantile(&writes, 0.99).is_some_and(|nanos| nanos < 2.5e6), "{writes:?}");
    assert!(quantile(&queue, 0.99).is_some_and(|nanos| (40e6..60e6).contains(&nanos)), "{queue:?}");
}

/// A device without operations must not count as one that does not answer.
#[test]
fn who_waits_for_the_cap_alone_is_known() {
    let mut gate = Gate::default();
    gate.limit(DISK, DeviceLimit { bytes_per_second: None, ops_per_second: Some(10) });
    assert!(gate.admit(write(1, 1), 1000 * MILLI).is_some());
    assert!(gate.admit(write(2, 1), 1000 * MILLI).is_none());
    assert_eq!(gate.holding().count(), 0, "the device has one");
    gate.done(&done(1), 1001 * MILLI);
    assert_eq!(gate.holding().collect::<Vec<_>>(), [DISK]);
    let free = gate.next_release().expect("one waits");
    assert!(gate.release(free).is_some());
    assert_eq!(gate.holding().count(), 0);
}

/// Drives a gate for `millis` with as much as it admits; returns the number of operations.
fn carried(gate: &mut Gate, pages: usize, millis: u64) -> u64 {
    let (mut id, mut started) = (0, 0);
    for now in 0..millis {
        let now = (1000 + now) * MILLI;
        while gate.release(now).is_some() {
            started += 1;
        }
        while gate.next_release().is_none() {
            id += 1;
            started += u64::from(gate.admit(write(id, pages), now).is_some());
        }
    }
    started
}

#[test]
fn bytes_and_operations_are_capped_at_the_rate() {
    let mut gate = Gate::default();
    gate.limit(DISK, DeviceLimit { bytes_per_second: Some(50 << 20), ops_per_second: None });
    // 512 KiB each: 100 a second.
    let started = carried(&mut gate, 128, 2000);
    assert!((200..=206).contains(&started), "{started}");

    let mut gate = Gate::default();
    gate.limit(DISK, DeviceLimit { bytes_per_second: Some(50 << 20), ops_per_second: Some(1000) });
    let started = carried(&mut gate, 1, 2000);
    assert!((2000..=2051).contains(&started), "{started}");
}

#[test]
fn flushes_pass_what_is_held_and_lifting_the_cap_frees_it() {
    let mut gate = Gate::default();
    gate.limit(DISK, DeviceLimit { bytes_per_second: Some(4096), ops_per_second: None });
    assert!(gate.admit(write(1, 10), 10_000 * MILLI).is_some());
    assert!(gate.admit(write(2, 1), 10_000 * MILLI).is_none());
    assert!(gate.admit(Io { id: IoId(3), device: DISK, kind: IoKind::Flush, urgent: false }, 10_000 * MILLI).is_some());
    assert!(gate.admit(write(4, 1), 10_000 * MILLI).is_none());
    assert!(gate.next_release().is_some_and(|when| when > 19_000 * MILLI));
    assert!(gate.release(10_001 * MILLI).is_none());
    gate.limit(DISK, DeviceLimit::default());
    let freed: Vec<u64> = std::iter::from_fn(|| gate.release(10_001 * MILLI)).map(|io| io.id.0).collect();
    assert_eq!(freed, [2, 4], "in order");
}

#[test]
fn what_is_urgent_passes_what_is_held_and_what_comes_back_counts_nowhere() {
    let mut gate = Gate::default();
    gate.limit(DISK, DeviceLimit { bytes_per_second: Some(4096), ops_per_second: None });
    assert!(gate.admit(write(1, 10), 10_000 * MILLI).is_some());
    assert!(gate.admit(write(2, 1), 10_000 * MILLI).is_none());
    assert!(gate.admit(Io { urgent: true, ..write(3, 1) }, 10_000 * MILLI).is_some());
    gate.undone(IoId(1), 0);
    gate.undone(IoId(1), 0);
    gate.done(&done(3), 10_001 * MILLI);
    let load = gate.of(DISK, 0).0;
    assert_eq!((load.in_flight, load.writes), (1, 1), "the one that is held, and the urgent one");
}

/// A device that left the pool: nothing of it is released or stays behind, and a later device at
/// its position starts afresh.
#[test]
fn a_device_that_left_gets_nothing_and_leaves_nothing() {
    const OTHER: DeviceSlot = DeviceSlot(1);
    let cap = DeviceLimit { bytes_per_second: Some(4096), ops_per_second: None };
    let now = 10_000 * MILLI;
    let mut gate = Gate::default();
    [DISK, OTHER].into_iter().for_each(|device| gate.limit(device, cap));
    for id in 1..=3 {
        assert_eq!(gate.admit(write(id, 10), now).is_some(), id == 1, "one is in flight");
    }
    for id in 4..=5 {
        assert_eq!(gate.admit(Io { device: OTHER, ..write(id, 10) }, now).is_some(), id == 4);
    }
    let ended: Vec<IoDone> = gate.forget(DISK).into_iter().map(|io| io.fail(DeviceError::Gone)).collect();
    assert_eq!(ended.iter().map(|done| (done.id.0, done.result)).collect::<Vec<_>>(), [2, 3].map(|id| (id, Err(DeviceError::Gone))));
    assert!(gate.forget(DISK).is_empty(), "each is returned once");
    // a new device at the position: no cap, and nothing of the old one counts on it
    assert!(gate.admit(write(6, 10), now).is_some());
    gate.done(&done(1), now + MILLI);
    assert_eq!(gate.of(DISK, 0).0, DeviceLoad { in_flight: 1, ..DeviceLoad::default() });
    // the operation of the other device still leaves, and is the only one
    assert!(gate.next_release().is_some_and(|when| when > now));
    gate.limit(OTHER, DeviceLimit::default());
    let freed: Vec<u64> = std::iter::from_fn(|| gate.release(now)).map(|io| io.id.0).collect();
    assert_eq!((freed, gate.next_release()), (vec![5], None));
}
