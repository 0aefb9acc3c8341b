use std::sync::Arc;

use vm_memory::{Bytes, MmapRegion, VolatileMemory};

use super::{Inflight, InflightMemory, part_size};

const SIZE: u16 = 4;

fn area() -> InflightMemory {
    Arc::new(MmapRegion::new(4096).expect("a page"))
}

fn part(memory: &InflightMemory) -> Inflight {
    Inflight::new(memory.clone(), 0, SIZE).expect("it fits")
}

#[test]
fn a_successor_finds_what_was_not_answered_in_order() {
    let memory = area();
    let mut first = part(&memory);
    assert_eq!(first.recover(0), None, "never used");
    for head in [2, 0, 3] {
        first.begin(head);
    }
    first.answering(0);
    first.answered(0, 1);
    first.begin(1);
    first.begin(0);
    assert_eq!(part(&memory).recover(1), Some(vec![2, 3, 1, 0]));
    // A third daemon finds the same, whether the second one died at once or after it had begun the
    // requests again in that order.
    let mut third = part(&memory);
    assert_eq!(third.recover(1), Some(vec![2, 3, 1, 0]));
    for head in [2, 3, 1, 0] {
        third.begin(head);
    }
    assert_eq!(part(&memory).recover(1), Some(vec![2, 3, 1, 0]));
}

/// The daemon dies between any two stores of an answer. A request is repeated exactly if the guest
/// does not see its answer.
#[test]
fn death_in_the_middle_of_an_answer() {
    for (stage, left) in [(0, vec![0, 1]), (1, vec![0, 1]), (2, vec![0]), (3, vec![0])] {
        let memory = area();
        let mut first = part(&memory);
        assert_eq!(first.recover(40), None);
        first.begin(0);
        first.begin(1);
        let mut used = 40;
        if stage >= 1 {
            first.answering(1);
        }
        if stage >= 2 {
            used = 41; // the guest sees the answer
        }
        if stage >= 3 {
            first.answered(1, used);
        }
        assert_eq!(part(&memory).recover(used), Some(left), "stage {stage}");
    }
}

/// Another back end may answer several requests at once and die before it has unmarked any of them.
#[test]
fn a_batch_of_others_is_taken_as_answered() {
    let memory = area();
    let mut first = part(&memory);
    assert_eq!(first.recover(u16::MAX), None);
    (0..4).for_each(|head| first.begin(head));
    first.answering(3);
    first.answering(1);
    assert_eq!(part(&memory).recover(1), Some(vec![0, 2]), "two answers, past the end of the index");
}

#[test]
fn hostile_areas_end() {
    let memory = area();
    part(&memory).recover(0);
    // All requests marked, the list of the last batch a loop, and arbitrary counters.
    let slice = memory.get_slice(12, part_size(SIZE) - 12).expect("inside");
    for at in 0..part_size(SIZE) - 12 {
        slice.write_obj(if at % 3 == 0 { 1u8 } else { 0xff }, at).expect("inside");
    }
    for used in [0, 1, 4, 5, u16::MAX] {
        let found = part(&memory).recover(used).expect("used before");
        assert!(found.len() <= usize::from(SIZE) && found.iter().all(|head| *head < SIZE));
    }
    assert!(Inflight::new(memory.clone(), 4096 - 64, SIZE).is_err(), "beyond the end");
    assert!(Inflight::new(memory.clone(), usize::MAX, SIZE).is_err());
    assert!(Inflight::new(memory, 4, SIZE).is_err(), "not aligned");
}

#[test]
fn parts_have_the_size_of_the_document() {
    assert_eq!([1, 3, 4, 128].map(part_size), [64, 64, 128, 2112]);
}
