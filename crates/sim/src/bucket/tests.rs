use millpond_bucket::{Answer, ErrorKind, Operation, Part, Verb};
use millpond_format::{ObjectFolder, ObjectName, Term};

use super::{BucketFault, LATE, LISTED, SLOW, SimBucket, TRAVEL};
use crate::rng::Rng;

const NAME: ObjectName = ObjectName::Term(Term(1));

fn put(name: ObjectName, create: bool, byte: u8) -> Operation {
    Operation::Put { name, create, object: vec![byte; 100] }
}

fn get(part: Part) -> Operation {
    Operation::Get { name: NAME, part }
}

/// A bucket, its time, and requests one after the other.
struct One {
    bucket: SimBucket,
    now: u64,
}

impl One {
    fn new(seed: u64) -> One {
        One { bucket: SimBucket::new(Rng::new(seed)), now: 0 }
    }

    fn carry_out(&mut self, operation: Operation, fault: Option<BucketFault>) -> Result<Answer, ErrorKind> {
        let ticket = self.bucket.send(self.now, operation, fault);
        loop {
            self.now = self.bucket.next_event().expect("an answer to come");
            let mut answers = self.bucket.advance(self.now);
            if let Some(at) = answers.iter().position(|(own, _)| *own == ticket) {
                return answers.swap_remove(at).1;
            }
        }
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        match self.carry_out(get(Part::Whole), None) {
            Ok(Answer::Read { bytes, .. }) => Some(bytes),
            Err(ErrorKind::Missing) => None,
            other => panic!("{other:?}"),
        }
    }

    /// Until every late request had its effect.
    fn wait(&mut self) {
        self.now += LATE * 2;
        self.bucket.advance(self.now);
    }
}

#[test]
fn one_create_of_a_name_succeeds_and_a_write_replaces() {
    let mut one = One::new(1);
    assert_eq!(one.carry_out(put(NAME, true, 1), None), Ok(Answer::Written));
    assert_eq!(one.carry_out(put(NAME, true, 2), None), Err(ErrorKind::Exists));
    assert_eq!(one.bytes(), Some(vec![1; 100]));
    assert_eq!(one.carry_out(put(NAME, false, 3), None), Ok(Answer::Written));
    for (part, length) in [(Part::Range { offset: 90, length: 50 }, 10), (Part::Range { offset: 500, length: 1 }, 0), (Part::Tail(7), 7)] {
        assert_eq!(one.carry_out(get(part), None), Ok(Answer::Read { bytes: vec![3; length], length: 100 }));
    }
    assert_eq!(one.carry_out(Operation::Delete { names: vec![NAME, NAME] }, None), Ok(Answer::Deleted));
    assert_eq!(one.bytes(), None);
}

#[test]
fn creates_at_the_same_time_have_one_winner() {
    for seed in 0..50 {
        let mut bucket = SimBucket::new(Rng::new(seed));
        let tickets: Vec<_> = (0..8).map(|byte| bucket.send(0, put(NAME, true, byte), None)).collect();
        let answers = bucket.advance(TRAVEL * 4);
        let won: Vec<usize> =
            answers.iter().filter(|(_, answer)| answer.is_ok()).filter_map(|(own, _)| tickets.iter().position(|t| t == own)).collect();
        assert_eq!((answers.len(), won.len()), (8, 1));
        assert_eq!(bucket.content(NAME).map(|bytes| usize::from(bytes[0])), won.first().copied());
    }
}

#[test]
fn requests_and_answers_are_lost_doubled_and_late() {
    use BucketFault::{AnswerLost, Late, Lost, ThrottledAfter, Twice};
    for (fault, answer, at_once, later) in [
        (Lost, Err(ErrorKind::Unknown), false, false),
        (AnswerLost, Err(ErrorKind::Unknown), true, true),
        (ThrottledAfter, Err(ErrorKind::Throttled), true, true),
        (Late, Err(ErrorKind::Unknown), false, true),
        (Twice, Ok(Answer::Written), true, true),
    ] {
        let mut one = One::new(2);
        assert_eq!(one.carry_out(put(NAME, true, 1), Some(fault)), answer, "{fault:?}");
        assert_eq!(one.bucket.content(NAME).is_some(), at_once, "{fault:?}");
        one.wait();
        assert_eq!(one.bytes().is_some(), later, "{fault:?}");
    }
    assert_eq!(One::new(3).carry_out(get(Part::Whole), Some(Lost)), Err(ErrorKind::Away));
    assert_eq!(One::new(3).carry_out(get(Part::Whole), Some(AnswerLost)), Err(ErrorKind::Away));
}

#[test]
fn a_late_or_doubled_write_replaces_a_later_one_and_a_create_does_not() {
    for (fault, create, left) in
        [(BucketFault::Late, true, 2), (BucketFault::Late, false, 1), (BucketFault::Twice, true, 2), (BucketFault::Twice, false, 1)]
    {
        let mut one = One::new(4);
        drop(one.carry_out(put(NAME, create, 1), Some(fault)));
        drop(one.carry_out(Operation::Delete { names: vec![NAME] }, None));
        drop(one.carry_out(put(NAME, create, 2), None));
        let waits = one.bucket.next_event().is_some();
        one.wait();
        assert!(!waits || one.bytes() == Some(vec![left; 100]), "{fault:?} {create}");
    }
}

#[test]
fn a_list_may_lack_the_newest_for_a_while() {
    let mut one = One::new(5);
    let second = ObjectName::Term(Term(2));
    drop(one.carry_out(put(NAME, true, 1), None));
    one.now += LISTED;
    drop(one.carry_out(put(second, true, 1), None));
    drop(one.carry_out(put(ObjectName::Beat(Term(1)), true, 1), None));
    let list = |after, most| Operation::List { folder: ObjectFolder::Terms, after, most };
    let names = |names: &[ObjectName], more| Ok(Answer::Names { names: names.to_vec(), more });
    let stale = Some(BucketFault::StaleList);
    assert_eq!(one.carry_out(list(None, 10), stale), names(&[NAME], false));
    assert_eq!(one.carry_out(list(None, 10), None), names(&[NAME, second], false));
    assert_eq!(one.carry_out(list(None, 1), None), names(&[NAME], true));
    assert_eq!(one.carry_out(list(Some(NAME), 10), None), names(&[second], false));
    one.now += LISTED;
    assert_eq!(one.carry_out(list(None, 10), stale), names(&[NAME, second], false));
}

#[test]
fn objects_are_hidden_lost_and_damaged() {
    let mut one = One::new(6);
    drop(one.carry_out(put(NAME, true, 1), None));
    drop(one.carry_out(put(ObjectName::Format, true, 9), None));
    let whole = vec![1; 100];
    let mut read = |fault| match one.carry_out(get(Part::Whole), Some(fault)) {
        Ok(Answer::Read { bytes, length }) => Ok((bytes, length)),
        Err(kind) => Err(kind),
        other => panic!("{other:?}"),
    };
    assert_eq!(read(BucketFault::Hidden), Err(ErrorKind::Missing));
    assert_eq!(read(BucketFault::Foreign), Ok((vec![9; 100], 100)));
    let (cut, length) = read(BucketFault::Truncated).expect("bytes");
    assert!(cut.len() < 100 && length == cut.len() as u64);
    let (rotten, _) = read(BucketFault::Rot).expect("bytes");
    let bits: u32 = rotten.iter().zip(&whole).map(|(a, b)| (a ^ b).count_ones()).sum();
    assert_eq!(bits, 1);
    assert_eq!(read(BucketFault::Gone), Err(ErrorKind::Missing));
    assert_eq!(one.bytes(), None, "for good");
    assert!(one.bucket.content(NAME).is_some());
    let list = Operation::List { folder: ObjectFolder::Terms, after: None, most: 10 };
    assert_eq!(one.carry_out(list, None), Ok(Answer::Names { names: vec![NAME], more: false }));
}

#[test]
fn a_store_is_away_throttles_denies_is_full_and_slow() {
    for (fault, kind) in [
        (BucketFault::Away, ErrorKind::Away),
        (BucketFault::Throttled, ErrorKind::Throttled),
        (BucketFault::Denied, ErrorKind::Denied),
        (BucketFault::Full, ErrorKind::Full),
    ] {
        let mut one = One::new(7);
        assert_eq!(one.carry_out(put(NAME, true, 1), Some(fault)), Err(kind));
        one.wait();
        assert_eq!(one.bytes(), None, "{fault:?}");
    }
    // a full store is read
    let mut one = One::new(8);
    assert_eq!(one.carry_out(get(Part::Whole), Some(BucketFault::Full)), Err(ErrorKind::Missing));
    let before = one.now;
    assert_eq!(one.carry_out(put(NAME, true, 1), Some(BucketFault::Slow)), Ok(Answer::Written));
    assert!(one.now - before >= 2 * SLOW);
}

#[test]
fn every_fault_suits_an_operation() {
    let verbs = [Verb::Create, Verb::Write, Verb::Read, Verb::List, Verb::Delete];
    for fault in BucketFault::ALL {
        assert!(verbs.iter().any(|verb| fault.suits(*verb)), "{fault:?}");
    }
}
