//! Chunks of bases that are fetched ahead of guests, and fetches that no read waits for.

use std::cell::RefCell;
use std::collections::BTreeSet;

use millpond_block::{DiskError, Op};
use millpond_engine::{Compression, Fetch, FetchError, Target};

use super::{Store, UNIT, content, pool};
use crate::harness::Harness;

fn fetches_of(harness: &mut Harness) -> Vec<Fetch> {
    harness.settle();
    std::iter::from_fn(|| harness.engine.pop_fetch()).collect()
}

#[test]
fn chunks_are_fetched_ahead_of_a_guest_that_reads_in_order() {
    let (mut harness, base, clone) = pool(64, Compression::Off);
    let mut store = Store::default();
    // a chunk that the pool has is not fetched again
    store.check(&mut harness, Target::Head(clone), 7 * UNIT, &content(7 * UNIT, UNIT));
    let mut waited = Vec::new();
    for chunk in 0..16 {
        harness.submit(Target::Head(clone), Op::Read, chunk * UNIT, UNIT);
        let fetches = fetches_of(&mut harness);
        let (ahead, first): (Vec<Fetch>, Vec<Fetch>) = fetches.iter().partition(|fetch| fetch.ahead);
        assert!(fetches.iter().take(first.len()).all(|fetch| !fetch.ahead), "what guests wait for comes first: {fetches:?}");
        assert!(ahead.iter().all(|fetch| fetch.chunk > chunk), "{ahead:?} ahead of {chunk}");
        waited.extend(first.iter().map(|fetch| fetch.chunk));
        for fetch in fetches {
            let result = store.result(fetch);
            harness.engine.fetched(fetch, result);
        }
        store.serve(&mut harness);
        let read = harness.engine.pop_completion().unwrap().result.unwrap();
        assert_eq!(read.iter().map(|piece| piece.bytes()).collect::<Vec<_>>().concat(), content(chunk * UNIT, UNIT));
    }
    assert_eq!(waited, [0, 1, 2, 3], "later chunks were there");
    assert!(store.fetched.values().all(|times| *times == 1), "{:?}", store.fetched);
    assert_eq!(store.fetches(), 16 + 8, "half of what was read, beyond it");
    // they are kept
    harness.reopen();
    store.check(&mut harness, Target::Head(base.volume), 0, &content(0, 24 * UNIT));
    assert_eq!(store.fetches(), 16 + 8);
    harness.audit();
}

#[test]
fn a_fetch_that_is_given_up_fails_no_read() {
    let (mut harness, _, clone) = pool(64, Compression::Off);
    let (mut store, target) = (Store::default(), Target::Head(clone));
    for chunk in 0..3 {
        store.check(&mut harness, target, chunk * UNIT, &content(chunk * UNIT, UNIT));
    }
    let words = |fetches: &[Fetch]| fetches.iter().map(|fetch| (fetch.chunk, fetch.ahead)).collect::<Vec<_>>();
    harness.submit(target, Op::Read, 3 * UNIT, UNIT);
    let fetches = fetches_of(&mut harness);
    assert_eq!(words(&fetches), [(3, false), (4, true), (5, true)]);
    // no read waits for them: they are forgotten
    for fetch in [fetches[1], fetches[2]] {
        harness.engine.fetched(fetch, Err(FetchError::NotNow));
    }
    let result = store.result(fetches[0]);
    harness.engine.fetched(fetches[0], result);
    assert_eq!(fetches_of(&mut harness), []);
    assert!(harness.engine.pop_completion().unwrap().result.is_ok());
    // a read that came to wait for one has it fetched again
    harness.submit(target, Op::Read, 4 * UNIT, 2 * UNIT);
    let fetches = fetches_of(&mut harness);
    assert_eq!(words(&fetches), [(4, false), (5, false), (6, true), (7, true), (8, true)]);
    harness.submit(target, Op::Read, 6 * UNIT, UNIT);
    let more = fetches_of(&mut harness);
    assert!(more.iter().all(|fetch| fetch.ahead && fetch.chunk > 8), "{more:?}");
    assert!(harness.engine.is_fetch_wanted(fetches[2]) && !harness.engine.is_fetch_wanted(fetches[3]));
    harness.engine.fetched(fetches[2], Err(FetchError::NotNow));
    let again = fetches_of(&mut harness);
    assert_eq!(words(&again), [(6, false)]);
    // the same without read-ahead
    harness.engine.fetched(again[0], Err(FetchError::NotNow));
    let again = fetches_of(&mut harness);
    assert_eq!(words(&again), [(6, false)]);
    for fetch in [fetches[0], fetches[1], again[0]].into_iter().chain(more) {
        let result = store.result(fetch);
        harness.engine.fetched(fetch, result);
    }
    harness.settle();
    let results: Vec<bool> = std::iter::from_fn(|| harness.engine.pop_completion()).map(|done| done.result.is_ok()).collect();
    assert_eq!(results, [true, true]);
    harness.audit();
}

#[test]
fn requests_of_a_client_that_is_gone_do_not_wait() {
    let (mut harness, _, clone) = pool(64, Compression::Off);
    let (mut store, target) = (Store::default(), Target::Head(clone));
    harness.submit(target, Op::Read, 0, 2 * UNIT);
    harness.write(target, 4096 + 512, &[9; 512]);
    harness.submit(target, Op::Read, UNIT, 4096);
    let fetches = fetches_of(&mut harness);
    assert_eq!(fetches.iter().map(|fetch| fetch.chunk).collect::<Vec<_>>(), [0, 1]);
    let tags = RefCell::new(BTreeSet::new());
    harness.engine.end_fetch_waits(&|tag| !tags.borrow_mut().insert(tag));
    let kept = tags.take().pop_last().unwrap();
    harness.engine.end_fetch_waits(&|tag| tag != kept);
    harness.settle();
    for _ in 0..2 {
        assert_eq!(harness.engine.pop_completion().unwrap().result.map(|_| ()), Err(DiskError::Shutdown));
    }
    assert!(harness.engine.pop_completion().is_none());
    assert_eq!(fetches.iter().map(|fetch| harness.engine.is_fetch_wanted(*fetch)).collect::<Vec<_>>(), [false, true]);
    for fetch in fetches {
        let result = store.result(fetch);
        harness.engine.fetched(fetch, result);
    }
    harness.settle();
    assert!(harness.engine.pop_completion().unwrap().result.is_ok());
    // the blocks of the write that was not made have their content, and no lock
    store.check(&mut harness, target, 0, &content(0, 2 * UNIT));
    store.write(&mut harness, target, 4096 + 512, &[9; 512]);
    harness.audit();
}
