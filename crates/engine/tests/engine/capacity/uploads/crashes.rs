//! The daemon dies, or power fails, at each step of an upload; and results come late.

use std::cell::Cell;

use millpond_block::IoKind;
use millpond_format::{BatchHeader, Item};

use super::*;

#[test]
fn a_crash_before_the_object_exists_loses_nothing() {
    let (mut harness, volume, snapshot) = with_uploads(uploading());
    DATA.check(&mut harness, Target::Head(volume), 1);
    assert!(harness.bucket.reads.is_empty(), "blocks are read in the log until their object exists");
    harness.audit();
    check_after_crash(&mut harness, (volume, 1), snapshot);
    // results of the earlier import: some objects were created
    harness.bucket.holds = false;
    harness.engine.set_bucket(ready(2)).unwrap();
    let held = std::mem::take(&mut harness.bucket.held);
    for (nth, (id, name, object)) in held.into_iter().enumerate() {
        let result = if nth % 2 == 0 { harness.bucket.create(name, object).map(|()| None) } else { Err(BucketError::Taken) };
        harness.engine.bucket_done(id, result);
    }
    harness.settle();
    assert_eq!(*harness.engine.state(), PoolState::Online);
    assert!(harness.bucket.objects.contains_key(&name(2, 0)));
    harness.audit();
    check_after_crash(&mut harness, (volume, 1), snapshot);
}

#[test]
fn a_crash_before_places_are_logged_loses_nothing() {
    let (mut harness, volume, snapshot) = with_uploads(uploading());
    answer_held(&mut harness);
    harness.reopen();
    harness.bucket.objects.clear();
    check_after_crash(&mut harness, (volume, 1), snapshot);
    assert!(harness.bucket.reads.is_empty());
}

/// Runs turns with writes that reach the devices, except for batches with places, and flushes that do not
/// end; requests that have ended are taken back. Returns the number of such batches.
fn run_without_flushes(harness: &mut Harness, turns: usize, request: impl Fn(&mut Harness, usize)) -> usize {
    let lost = Cell::new(0);
    for turn in 0..turns {
        request(harness, turn);
        harness.turn();
        while let Some(io) = harness.engine.pop_io() {
            let is_lost = match &io.kind {
                IoKind::Flush => continue,
                IoKind::Write { pieces, .. } => {
                    let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.bytes().iter().copied()).collect();
                    BatchHeader::decode(&bytes).is_ok_and(|(_, items)| items.iter().any(|item| matches!(item, Item::Placed(_))))
                }
                _ => false,
            };
            if is_lost {
                lost.set(lost.get() + 1);
                harness.engine.io_done(millpond_block::IoDone { id: io.id, result: Ok(()), buf: None });
            } else {
                harness.perform(io);
            }
        }
        while harness.engine.pop_completion().is_some() {}
    }
    lost.get()
}

/// Power fails before the batches with places are on stable media: the log ends before them, and segments
/// that they emptied have not been written again, although the log was short of space.
#[test]
fn a_power_cut_before_places_are_durable_loses_nothing() {
    let (mut harness, volume, snapshot) = with_uploads(uploading());
    answer_held(&mut harness);
    let lost = run_without_flushes(&mut harness, 4000, |harness, turn| {
        let at = turn as u64 * DATA.step % SIZE;
        harness.write(Target::Head(volume), at, &DATA.bytes(at, 3));
    });
    assert!(lost > 0);
    harness.bucket.objects.clear();
    harness.reopen();
    for at in (0..SIZE).step_by(4096) {
        let read = harness.request(Target::Head(volume), Op::Read, at, 4096, &[]).unwrap();
        let of = |round| DATA.bytes(at / DATA.step * DATA.step, round)[(at % DATA.step) as usize..][..4096].to_vec();
        assert!(read == of(1) || read == of(3), "at {at}");
    }
    DATA.check(&mut harness, Target::Snapshot(snapshot), 1);
    harness.audit();
}

/// After that replay places the chunks again, and needs no object for it.
#[test]
fn a_crash_after_places_are_durable_keeps_them() {
    let (mut harness, volume, snapshot) = with_uploads(uploading());
    finish_uploads(&mut harness);
    harness.request(Target::Head(volume), Op::Flush, 0, 0, &[]).unwrap();
    let objects = harness.bucket.objects.len();
    harness.bucket.reads.clear();
    harness.reopen();
    assert!(harness.bucket.reads.is_empty());
    assert!(blocks_in_bucket(&mut harness, Target::Head(volume)) > 1000);
    check_after_crash(&mut harness, (volume, 1), snapshot);
    // segments of the log are used again
    harness.engine.set_bucket(ready(2)).unwrap();
    for round in 2..9 {
        DATA.write(&mut harness, volume, round);
    }
    harness.settle();
    assert!(harness.bucket.objects.len() > objects);
    check_after_crash(&mut harness, (volume, 8), snapshot);
}

/// The daemon dies after each of the first turns with confirmed objects: places may be logged in part.
#[test]
fn a_crash_in_any_turn_loses_nothing() {
    for turns in 0..12 {
        let (mut harness, volume, snapshot) = with_uploads(uploading());
        harness.bucket.holds = false;
        answer_held(&mut harness);
        for _ in 0..turns {
            harness.step();
            while let Some(work) = harness.engine.pop_bucket_work() {
                let id = work.id;
                let millpond_engine::BucketOp::Create { name, pieces } = work.op else { continue };
                let object = pieces.iter().map(|piece| piece.bytes()).collect::<Vec<_>>().concat();
                let result = harness.bucket.create(name, object).map(|()| None);
                harness.engine.bucket_done(id, result);
            }
        }
        check_after_crash(&mut harness, (volume, 1), snapshot);
    }
}

#[test]
fn a_result_counts_once() {
    let (mut harness, volume, snapshot) = with_uploads(uploading());
    let ids: Vec<u64> = harness.bucket.held.iter().map(|(id, ..)| *id).collect();
    finish_uploads(&mut harness);
    for id in ids {
        harness.engine.bucket_done(id, Err(BucketError::Taken));
        harness.engine.bucket_done(id, Ok(None));
    }
    harness.settle();
    assert_eq!(*harness.engine.state(), PoolState::Online);
    harness.audit();
    check_after_crash(&mut harness, (volume, 1), snapshot);
}

/// Another import writes names of this term: the pool stops before it relies on any of its objects.
#[test]
fn an_object_of_another_import_stops_the_pool() {
    let (mut harness, volume, snapshot) = with_uploads(uploading());
    let (id, taken, _) = harness.bucket.held.remove(1);
    harness.engine.bucket_done(id, Err(BucketError::Taken));
    assert_eq!(*harness.engine.state(), PoolState::Faulted(Fault::ObjectTaken(taken)));
    assert!(harness.engine.pop_bucket_work().is_none());
    finish_uploads(&mut harness);
    harness.audit();
    harness.bucket.objects.clear();
    check_after_crash(&mut harness, (volume, 1), snapshot);
    assert!(harness.engine.set_bucket(ready(1)).is_err(), "the term was taken by the other import, too");
    harness.engine.set_bucket(ready(2)).unwrap();
    harness.settle();
    assert!(harness.bucket.objects.contains_key(&name(2, 0)));
    check_after_crash(&mut harness, (volume, 1), snapshot);
}

/// Number of uploads, open ones included.
fn uploads(harness: &Harness) -> usize {
    let report = harness.engine.space_report();
    (0..100).find(|count| report.contains(&format!("uploads {count};"))).expect("a number of uploads")
}

#[test]
fn open_uploads_are_given_up_while_the_bucket_is_away() {
    let (mut harness, volume, snapshot) = with_data(Tuning { log_percent: 0, ..tuning() });
    harness.engine.set_bucket(ready(1)).unwrap();
    harness.settle();
    for state in [BucketState::Away, BucketState::Full] {
        assert_ne!(uploads(&harness), 0, "the last ones are not full");
        harness.audit();
        harness.engine.set_bucket(state).unwrap();
        assert_eq!(uploads(&harness), 0);
        harness.settle();
        harness.audit();
        harness.engine.set_bucket(ready(1)).unwrap();
        // the cleaner looks for segments again after a few turns
        (0..10).for_each(|_| harness.settle());
    }
    assert_ne!(uploads(&harness), 0);
    harness.command(Command::Close).unwrap();
    assert_eq!(uploads(&harness), 0);
    check_after_crash(&mut harness, (volume, 1), snapshot);
}

#[test]
fn a_close_waits_for_no_upload() {
    let (mut harness, volume, snapshot) = with_uploads(uploading());
    assert_eq!(uploads(&harness), 8);
    harness.command(Command::Close).unwrap();
    assert!(harness.engine.pop_bucket_work().is_none());
    assert!(harness.engine.set_bucket(ready(1)).is_err());
    harness.audit();
    // results come later
    answer_held(&mut harness);
    harness.audit();
    harness.bucket.objects.clear();
    check_after_crash(&mut harness, (volume, 1), snapshot);
}
