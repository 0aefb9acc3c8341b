use std::time::Duration;

use millpond_device::{Ring, Wait};

use super::*;

#[test]
fn a_queue_without_work_lets_its_shard_sleep() {
    let helpers = Helpers::start(2);
    let ring = Ring::new().expect("io_uring");
    let queue = helpers.queue(ring.waker());
    assert!(queue.may_sleep() && queue.is_empty() && queue.take().is_none() && queue.take_finished().is_empty());
    drop(helpers);
    queue.awake();
}

#[test]
fn finished_work_wakes_a_shard_that_sleeps_and_no_other() {
    let mut ring = Ring::new().expect("io_uring");
    let helpers = Helpers::start(0);
    let queue = helpers.queue(ring.waker());
    let announce = |queue: &WorkQueue| {
        queue.finished.has_some.store(true, Ordering::SeqCst);
        if queue.finished.asleep.swap(false, Ordering::SeqCst) {
            queue.finished.waker.wake();
        }
    };
    announce(&queue);
    assert!(!queue.may_sleep(), "work is finished");
    queue.awake();
    assert!(queue.take_finished().is_empty() && queue.may_sleep());
    announce(&queue);
    ring.turn(Wait::AtMost(Duration::from_secs(60))).expect("a turn");
    assert!(ring.pop().is_some(), "a wake-up");
}
