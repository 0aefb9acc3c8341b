use millpond_block::{Buf, BufPool, BufSlice, DeviceError, PAGE};
use millpond_format::{ObjectName, SegmentId, Term};
use millpond_testing::Random;

use super::{AT_ONCE, BucketIo, CREATES_AT_ONCE, KEPT, Manner, Object, Pages, UNIT};
use crate::io::Ended;
use crate::{BucketError, BucketOp, BucketWork};

const UNIT_PAGES: u32 = (UNIT / PAGE as u64) as u32;

fn object(count: u64, pages: u32) -> Object {
    Object { name: ObjectName::Segment { term: Term(3), import: 0, count }, pages }
}

/// The byte of an object at an offset.
fn byte(name: ObjectName, offset: u64) -> u8 {
    let ObjectName::Segment { count, .. } = name else { panic!("{name:?} is no segment") };
    (offset / 512 + offset / PAGE as u64 * 7 + count * 31) as u8 | 1
}

fn bytes_of(name: ObjectName, offset: u64, length: usize) -> Buf {
    let mut buf = Buf::zeroed(length);
    for (byte_of, at) in buf.bytes_mut().iter_mut().zip(offset..) {
        *byte_of = byte(name, at);
    }
    buf
}

struct Store {
    io: BucketIo<u32>,
    bufs: BufPool,
}

impl Store {
    fn new() -> Store {
        Store { io: BucketIo::default(), bufs: BufPool::default() }
    }

    fn read(&mut self, context: u32, object: Object, first: u32, count: u32, manner: Manner) {
        let pages = Pages { segment: SegmentId(9), first, count };
        self.io.read(context, Some(object), pages, manner, &mut self.bufs);
    }

    fn pop(&mut self) -> Option<(u64, ObjectName, u64, usize)> {
        let BucketWork { id, op } = self.io.pop(5, true)?;
        let BucketOp::Read { name, offset, length } = op else { panic!("nothing is created") };
        Some((id, name, offset, length))
    }

    /// Answers the next work as a store does; false when there is none.
    fn answer(&mut self) -> bool {
        let Some((id, name, offset, length)) = self.pop() else { return false };
        self.io.done(id, Ok(Some(bytes_of(name, offset, length))), &mut self.bufs);
        true
    }

    fn ended(&mut self) -> Vec<Ended<u32>> {
        std::iter::from_fn(|| self.io.pop_ended()).collect()
    }
}

fn check(ended: &Ended<u32>, object: Object, first: u32, count: u32) {
    assert_eq!((ended.result, ended.pin, ended.member), (Ok(()), Some(SegmentId(9)), None));
    let bytes = ended.buf.as_ref().expect("a read has bytes").bytes();
    for (at, found) in (u64::from(first) * PAGE as u64..).zip(&bytes[..count as usize * PAGE]) {
        let expected = if at < object.bytes() { byte(object.name, at) } else { 0 };
        assert_eq!(*found, expected, "offset {at} of {object:?}");
    }
}

#[test]
fn reads_are_cut_into_units_and_share_them() {
    let mut store = Store::new();
    let long = object(1, 3 * UNIT_PAGES + 5);
    store.read(1, long, UNIT_PAGES - 1, 2, Manner::Urgent);
    store.read(2, long, UNIT_PAGES, 8, Manner::Urgent);
    let works: Vec<_> = std::iter::from_fn(|| store.pop()).collect();
    assert_eq!(works.iter().map(|work| (work.2, work.3)).collect::<Vec<_>>(), [(0, UNIT as usize), (UNIT, UNIT as usize)]);
    store.io.done(works[1].0, Ok(Some(bytes_of(long.name, UNIT, UNIT as usize))), &mut store.bufs);
    let ended = store.ended();
    assert_eq!(ended.iter().map(|ended| ended.context).collect::<Vec<_>>(), [2], "the other read waits for the first unit");
    check(&ended[0], long, UNIT_PAGES, 8);
    store.io.done(works[0].0, Ok(Some(bytes_of(long.name, 0, UNIT as usize))), &mut store.bufs);
    check(&store.ended()[0], long, UNIT_PAGES - 1, 2);
    // what was read is kept
    store.read(3, long, 0, 2 * UNIT_PAGES, Manner::Urgent);
    assert!(store.pop().is_none());
    check(&store.ended()[0], long, 0, 2 * UNIT_PAGES);
    assert!(store.io.readings.is_empty());
}

#[test]
fn behind_the_end_of_an_object_are_zeroes() {
    let mut store = Store::new();
    let short = object(2, 5);
    store.read(1, short, 3, 32, Manner::Urgent);
    let (id, name, offset, length) = store.pop().expect("two pages are there");
    assert_eq!((offset, length), (0, 5 * PAGE));
    // the buffer of the caller is longer, and what it has behind the object is no part of it
    store.io.done(id, Ok(Some(bytes_of(name, 0, 9 * PAGE))), &mut store.bufs);
    check(&store.ended()[0], short, 3, 32);
    store.read(2, short, 4, 4, Manner::Later);
    check(&store.ended()[0], short, 4, 4);
    store.read(3, short, 5, 2, Manner::Urgent);
    assert!(store.pop().is_none(), "nothing is there to be read");
    check(&store.ended()[0], short, 5, 2);
}

#[test]
fn what_cannot_be_read_ends_with_an_error() {
    let mut store = Store::new();
    for (result, context) in [
        (Err(BucketError::Missing), 1),
        (Err(BucketError::Damaged), 2),
        (Err(BucketError::Taken), 3),
        (Ok(None), 4),
        (Ok(Some(Buf::zeroed(PAGE))), 5),
    ] {
        store.read(context, object(3, 8), 0, 4, Manner::Urgent);
        let (id, ..) = store.pop().expect("nothing was kept");
        store.io.done(id, result, &mut store.bufs);
        let ended = store.ended();
        assert_eq!((ended[0].context, ended[0].result, ended[0].pin), (context, Err(DeviceError::Gone), Some(SegmentId(9))));
        assert!(ended[0].buf.is_none());
    }
    store.io.read(9, None, Pages { segment: SegmentId(9), first: 0, count: 1 }, Manner::Urgent, &mut store.bufs);
    assert_eq!(store.ended()[0].result, Err(DeviceError::Gone), "a segment without an object");
}

/// One unit of two is missing: the read ends once, when the other one is there, too.
#[test]
fn a_read_of_two_units_ends_once() {
    let mut store = Store::new();
    store.read(1, object(3, 2 * UNIT_PAGES), 0, 2 * UNIT_PAGES, Manner::Urgent);
    let (first, _, _, length) = store.pop().expect("two units");
    store.io.done(first, Err(BucketError::Missing), &mut store.bufs);
    assert!(!store.io.has_ended());
    let (second, name, offset, _) = store.pop().expect("two units");
    store.io.done(second, Ok(Some(bytes_of(name, offset, length))), &mut store.bufs);
    assert_eq!(store.ended().iter().map(|ended| ended.result).collect::<Vec<_>>(), [Err(DeviceError::Gone)]);
}

#[test]
fn a_second_attempt_reads_again_and_shares_nothing() {
    let mut store = Store::new();
    let of = object(4, 16);
    store.read(1, of, 0, 1, Manner::Urgent);
    let (slow, ..) = store.pop().expect("one unit");
    store.read(2, of, 0, 1, Manner::Again);
    let (again, name, offset, length) = store.pop().expect("a work of its own");
    assert_ne!(slow, again);
    store.io.done(again, Ok(Some(bytes_of(name, offset, length))), &mut store.bufs);
    assert_eq!(store.ended().iter().map(|ended| ended.context).collect::<Vec<_>>(), [2]);
    store.io.done(slow, Ok(Some(Buf::zeroed(length))), &mut store.bufs);
    assert_eq!(store.ended().iter().map(|ended| ended.context).collect::<Vec<_>>(), [1]);
    // the slow one may have been wrong: what came again is kept
    store.read(4, of, 0, 1, Manner::Urgent);
    assert!(store.pop().is_none());
    check(&store.ended()[0], of, 0, 1);
    // what was kept may be the wrong bytes
    store.read(3, of, 0, 1, Manner::Again);
    assert!(store.answer());
    check(&store.ended()[0], of, 0, 1);
}

#[test]
fn guests_come_first() {
    let mut store = Store::new();
    for at in 0..3 {
        store.read(at, object(u64::from(at), 16), 0, 1, Manner::Later);
    }
    store.read(7, object(7, 16), 0, 1, Manner::Urgent);
    // a guest wants what the cleaner waits for
    store.read(8, object(2, 16), 0, 1, Manner::Urgent);
    let order: Vec<ObjectName> = std::iter::from_fn(|| store.pop()).map(|work| work.1).collect();
    assert_eq!(order, [7, 2, 0, 1].map(|count| object(count, 16).name));
}

/// A result of another import, one that comes twice, and one of a read that was given up.
#[test]
fn strays_change_nothing() {
    let mut store = Store::new();
    store.read(1, object(1, 16), 0, 1, Manner::Urgent);
    let (id, name, offset, length) = store.pop().expect("one unit");
    for stray in [id + 1, id ^ 1 << 32, 0] {
        store.io.done(stray, Ok(Some(Buf::zeroed(length))), &mut store.bufs);
    }
    assert!(!store.io.has_ended());
    store.io.give_up(&mut store.bufs);
    assert_eq!(store.ended().iter().map(|ended| ended.result).collect::<Vec<_>>(), [Err(DeviceError::Gone)]);
    store.io.done(id, Ok(Some(bytes_of(name, offset, length))), &mut store.bufs);
    assert!(!store.io.has_ended() && store.io.readings.is_empty());
    store.read(2, object(1, 16), 0, 1, Manner::Urgent);
    assert!(store.pop().is_none() && store.ended()[0].result.is_err(), "a pool that closes reads nothing");
    let mut store = Store::new();
    // a work that the caller has not taken has no result
    store.read(2, object(1, 16), 0, 1, Manner::Urgent);
    store.io.done(id, Ok(Some(Buf::zeroed(length))), &mut store.bufs);
    assert!(!store.io.has_ended());
    assert!(store.answer());
    check(&store.ended()[0], object(1, 16), 0, 1);
}

fn bytes(byte: u8) -> Vec<BufSlice> {
    let mut buf = Buf::zeroed(PAGE);
    buf.bytes_mut().fill(byte);
    vec![BufSlice::new(buf, 0..PAGE)]
}

#[test]
fn creates_come_after_reads_and_leave_room_for_them() {
    let mut store = Store::new();
    let creates: Vec<u32> = (0..AT_ONCE as u64).map(|count| store.io.create(object(count, 2).name, bytes(count as u8))).collect();
    store.read(1, object(99, 16), 0, 1, Manner::Later);
    assert_eq!(store.pop().map(|read| read.1), Some(object(99, 16).name), "the read, although it came later");
    assert!(store.io.pop(5, false).is_none(), "creates wait for the lease");
    let mut out = Vec::new();
    while let Some(BucketWork { id, op: BucketOp::Create { name, pieces } }) = store.io.pop(5, true) {
        let count = out.len() as u64;
        assert_eq!((name, pieces[0].bytes()[0], pieces.len()), (object(count, 2).name, count as u8, 1));
        out.push(id);
    }
    assert_eq!(out.len(), CREATES_AT_ONCE);
    store.read(2, object(98, 16), 0, 1, Manner::Urgent);
    assert!(store.answer(), "guests do not wait for creates");
    // results in another order; each counts for its own create, and once
    store.io.done(out[3], Ok(None), &mut store.bufs);
    store.io.done(out[1], Err(BucketError::Taken), &mut store.bufs);
    store.io.done(out[3], Err(BucketError::Taken), &mut store.bufs);
    store.io.done(out[0] ^ 1 << 32, Ok(None), &mut store.bufs);
    // of a create that the caller has not taken
    store.io.done(u64::from(creates[AT_ONCE - 1]) | 5 << 32, Ok(None), &mut store.bufs);
    let created: Vec<_> = std::iter::from_fn(|| store.io.pop_created()).collect();
    assert_eq!(created, [(creates[3], Ok(())), (creates[1], Err(BucketError::Taken))]);
    assert_eq!(std::iter::from_fn(|| store.io.pop(5, true)).count(), 2, "as many as have ended");
    store.io.give_up_creates();
    store.io.done(out[0], Ok(None), &mut store.bufs);
    assert!(store.io.pop_created().is_none() && store.io.pop(5, true).is_none());
    assert_eq!((store.io.out, store.io.units.len()), (1, 1), "one read is left");
}

/// A store that answers late, in any order, wrong, and twice: each read ends once, with its bytes or with
/// an error, and no more than what may be kept is kept.
#[test]
fn every_read_ends_once_with_its_bytes() {
    for seed in 0..5 {
        let mut random = Random::new(seed);
        let mut store = Store::new();
        let objects: Vec<Object> = (0..40).map(|count| object(count, 1 + random.below(400) as u32)).collect();
        let (mut out, mut asked, mut failing) = (Vec::new(), Vec::new(), 0);
        for _ in 0..1500 {
            match random.below(4) {
                0 => {
                    let of = *random.pick(objects.iter()).expect("there are some");
                    let (first, count) = (random.below(u64::from(of.pages) + 4) as u32, 1 + random.below(90) as u32);
                    let manner = *random.pick([Manner::Urgent, Manner::Later, Manner::Again].iter()).expect("one of three");
                    store.read(asked.len() as u32, of, first, count, manner);
                    asked.push(Some((of, first, count)));
                }
                1 => out.extend(store.pop()),
                _ if !out.is_empty() => {
                    let at = random.below(out.len() as u64) as usize;
                    let (id, name, offset, length) = out[at];
                    let fails = random.once_in(20);
                    let result = if fails { Err(BucketError::Missing) } else { Ok(Some(bytes_of(name, offset, length))) };
                    failing += usize::from(fails);
                    store.io.done(id, result, &mut store.bufs);
                    // some come twice
                    if !random.once_in(10) {
                        out.swap_remove(at);
                    }
                }
                _ => {}
            }
            assert!(store.io.out <= AT_ONCE && store.io.kept.bytes <= KEPT);
            for ended in store.ended() {
                let (of, first, count) = asked[ended.context as usize].take().expect("each read ends once");
                match ended.result {
                    Ok(()) => check(&ended, of, first, count),
                    Err(error) => assert_eq!((error, failing > 0), (DeviceError::Gone, true)),
                }
            }
        }
        store.io.give_up(&mut store.bufs);
        store.ended().iter().for_each(|ended| asked[ended.context as usize] = None);
        assert!(asked.iter().all(Option::is_none), "seed {seed}");
        assert!(asked.len() > 250 && store.io.units.is_empty() && store.io.shared.is_empty());
    }
}
