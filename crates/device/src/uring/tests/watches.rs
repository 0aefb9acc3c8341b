use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::{Event, Ring, Wait, WatchId};

fn descriptor(count: u32) -> Arc<OwnedFd> {
    Arc::new(eventfd(count, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("eventfd"))
}

fn kick(fd: &OwnedFd) {
    rustix::io::write(fd, &1u64.to_ne_bytes()).expect("write");
}

/// Who was signalled within a while; an empty list when nobody was.
fn signalled(ring: &mut Ring) -> Vec<WatchId> {
    let mut found = Vec::new();
    ring.turn(Wait::AtMost(Duration::from_millis(50))).expect("turn");
    while let Some(event) = ring.pop() {
        match event {
            Event::Signalled(id) => found.push(id),
            other => panic!("{other:?}"),
        }
    }
    found
}

#[test]
fn every_signal_is_told_though_nobody_reads_it() {
    let mut ring = Ring::new().expect("ring");
    let (first, second) = (descriptor(0), descriptor(0));
    let (a, b) = (ring.watch(Arc::clone(&first)), ring.watch(Arc::clone(&second)));
    assert_eq!(signalled(&mut ring), []);
    for _ in 0..50 {
        kick(&first);
        assert_eq!(signalled(&mut ring), [a]);
    }
    kick(&second);
    kick(&first);
    let mut both = signalled(&mut ring);
    both.sort_unstable();
    assert_eq!(both, [a, b]);
    assert_eq!(signalled(&mut ring), [], "it is told once");
}

#[test]
fn one_that_was_signalled_before_is_told_at_once() {
    let mut ring = Ring::new().expect("ring");
    let id = ring.watch(descriptor(3));
    assert_eq!(signalled(&mut ring), [id]);
}

#[test]
fn nothing_is_told_of_one_that_is_watched_no_more() {
    let mut ring = Ring::new().expect("ring");
    let fd = descriptor(0);
    let id = ring.watch(Arc::clone(&fd));
    signalled(&mut ring);
    ring.unwatch(id);
    ring.unwatch(id);
    kick(&fd);
    assert_eq!(signalled(&mut ring), []);
    assert_eq!(signalled(&mut ring), []);
    assert_eq!(Arc::strong_count(&fd), 1, "the ring has let go of it");
    // The place is used again, under another name.
    let other = descriptor(0);
    let again = ring.watch(Arc::clone(&other));
    assert_ne!(again, id);
    ring.unwatch(id);
    kick(&other);
    assert_eq!(signalled(&mut ring), [again]);
}

#[test]
fn a_look_elsewhere_ends_a_spin() {
    let mut ring = Ring::new().expect("ring");
    while ring.pop().is_some() {}
    let mut looks = 0;
    let found = ring.spin(Duration::from_secs(5), || {
        looks += 1;
        looks == 1000
    });
    assert!(found.expect("spin") && looks == 1000 && ring.pop().is_none());
}
