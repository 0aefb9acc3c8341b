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
    assert!(queue.may_sleep());
    queue.finished.lose();
    ring.turn(Wait::AtMost(Duration::from_secs(60))).expect("a turn");
    assert!(ring.pop().is_some(), "a wake-up");
    assert!(!queue.may_sleep(), "work is finished");
}

#[test]
#[should_panic = "a helper thread panicked"]
fn a_shard_does_not_go_on_without_work_that_is_lost() {
    let ring = Ring::new().expect("io_uring");
    let queue = Helpers::start(0).queue(ring.waker());
    queue.finished.lose();
    queue.take_finished();
}
