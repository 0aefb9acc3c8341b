use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::{Event, Ring, Wait, WatchId};

fn descriptor(count: u32) -> Arc<OwnedFd> {
    Arc::new(eventfd(count, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("eventfd"))
}

fn kick(fd: &OwnedFd) {
    rustix::io::write(fd, &1u64.to_ne_bytes()).expect("write");
}

/// The longest wait for an expected signal.
const PATIENCE: Duration = Duration::from_secs(120);

fn turn(ring: &mut Ring, wait: Wait) -> Vec<WatchId> {
    ring.turn(wait).expect("turn");
    let signalled = |event| match event {
        Event::Signalled(id) => id,
        other => panic!("{other:?}"),
    };
    std::iter::from_fn(|| ring.pop()).map(signalled).collect()
}

/// Returns the signalled watches as soon as there are `count`; with 0, those signalled within 50
/// ms.
fn signalled(ring: &mut Ring, count: usize) -> Vec<WatchId> {
    if count == 0 {
        return turn(ring, Wait::AtMost(Duration::from_millis(50)));
    }
    let (mut found, start) = (Vec::new(), Instant::now());
    while found.len() < count && start.elapsed() < PATIENCE {
        found.extend(turn(ring, Wait::AtMost(PATIENCE)));
    }
    found
}

#[test]
fn every_signal_is_told_though_nobody_reads_it() {
    let mut ring = Ring::new().expect("ring");
    let (first, second) = (descriptor(0), descriptor(0));
    let (a, b) = (ring.watch(Arc::clone(&first)), ring.watch(Arc::clone(&second)));
    assert_eq!(signalled(&mut ring, 0), []);
    for _ in 0..50 {
        kick(&first);
        assert_eq!(signalled(&mut ring, 1), [a]);
    }
    kick(&second);
    kick(&first);
    let mut both = signalled(&mut ring, 2);
    both.sort_unstable();
    assert_eq!(both, [a, b]);
    assert_eq!(signalled(&mut ring, 0), [], "it is told once");
}

#[test]
fn one_that_was_signalled_before_is_told_at_once() {
    let mut ring = Ring::new().expect("ring");
    let id = ring.watch(descriptor(3));
    assert_eq!(signalled(&mut ring, 1), [id]);
}

#[test]
fn nothing_is_told_of_one_that_is_watched_no_more() {
    let mut ring = Ring::new().expect("ring");
    let fd = descriptor(0);
    let id = ring.watch(Arc::clone(&fd));
    signalled(&mut ring, 0);
    ring.unwatch(id);
    ring.unwatch(id);
    kick(&fd);
    assert_eq!(signalled(&mut ring, 0), []);
    assert_eq!(signalled(&mut ring, 0), []);
    assert_eq!(Arc::strong_count(&fd), 1, "the ring has let go of it");
    // The slot is reused, with another identity.
    let other = descriptor(0);
    let again = ring.watch(Arc::clone(&other));
    assert_ne!(again, id);
    ring.unwatch(id);
    kick(&other);
    assert_eq!(signalled(&mut ring, 1), [again]);
}

#[test]
fn a_look_elsewhere_ends_a_spin() {
    let mut ring = Ring::new().expect("ring");
    while ring.pop().is_some() {}
    let mut looks = 0;
    let found = ring.spin(PATIENCE, || {
        looks += 1;
        looks == 1000
    });
    assert!(found.expect("spin") && looks == 1000 && ring.pop().is_none());
}
