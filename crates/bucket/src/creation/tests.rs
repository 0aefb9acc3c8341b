use millpond_format::{Holder, ObjectFault, ObjectHead, ObjectName, PoolId, Term};

use super::{Created, Creation};
use crate::{Answer, ErrorKind, Operation};

const POOL: PoolId = PoolId([1; 16]);
const NAME: ObjectName = ObjectName::Term(Term(4));

fn object(session: u8, name: ObjectName) -> Vec<u8> {
    let holder = Holder { host: [session; 16], name: format!("host{session}"), session: [session; 16] };
    ObjectHead::seal(POOL, Term(4), holder, name, b"")
}

fn own() -> Creation {
    Creation::new(object(1, NAME)).expect("a head")
}

fn read(bytes: Vec<u8>) -> Result<Answer, ErrorKind> {
    let length = bytes.len() as u64;
    Ok(Answer::Read { bytes, length })
}

fn looks(creation: &Creation) -> bool {
    matches!(creation.operation(), Operation::Get { name: NAME, .. })
}

#[test]
fn a_clear_answer_needs_no_look() {
    assert_eq!(own().answer(&Ok(Answer::Written)), Created::Own);
    for kind in [ErrorKind::Throttled, ErrorKind::Denied, ErrorKind::Full, ErrorKind::Away] {
        let mut creation = own();
        assert_eq!(creation.answer(&Err(kind)), Created::Later(kind));
        assert!(!looks(&creation), "{kind:?}");
    }
    assert_eq!(own().answer(&Err(ErrorKind::Refused)), Created::Refused(ErrorKind::Refused));
    assert_eq!(own().answer(&Err(ErrorKind::Missing)), Created::Refused(ErrorKind::Missing));
}

/// INV-BUCKET-1
#[test]
fn the_head_settles_an_answer_in_doubt() {
    for doubt in [ErrorKind::Exists, ErrorKind::Unknown] {
        let mut creation = own();
        assert_eq!(creation.answer(&Err(doubt)), Created::Next);
        assert!(looks(&creation));
        assert_eq!(creation.clone().answer(&read(object(1, NAME))), Created::Own);
        match creation.clone().answer(&read(object(2, NAME))) {
            Created::Other(head) => assert_eq!(head.holder.session, [2; 16]),
            other => panic!("{other:?}"),
        }
        assert_eq!(creation.clone().answer(&Err(ErrorKind::Away)), Created::Later(ErrorKind::Away));
        assert!(matches!(creation.answer(&Err(ErrorKind::Missing)), Created::Later(_)));
        assert!(!looks(&creation), "created again");
    }
}

/// A request that was given up, and is carried out later, is not this one.
#[test]
fn another_object_of_the_own_session_is_another() {
    let root = ObjectName::Root(Term(4), 7);
    let holder = Holder { host: [1; 16], name: "host1".to_owned(), session: [1; 16] };
    let of = |payload: &[u8]| ObjectHead::seal(POOL, Term(4), holder.clone(), root, payload);
    let mut creation = Creation::new(of(b"second")).expect("a head");
    assert_eq!(creation.answer(&Err(ErrorKind::Exists)), Created::Next);
    assert!(matches!(creation.clone().answer(&read(of(b"first"))), Created::Other(_)));
    assert_eq!(creation.answer(&read(of(b"second"))), Created::Own);
}

/// After an answer in doubt a refusal is no verdict: the head is looked at first.
#[test]
fn a_refusal_after_a_doubt_is_looked_at() {
    let mut creation = own();
    assert_eq!(creation.answer(&Err(ErrorKind::Throttled)), Created::Later(ErrorKind::Throttled));
    assert_eq!(creation.answer(&Err(ErrorKind::Refused)), Created::Next);
    assert!(looks(&creation));
    assert_eq!(creation.clone().answer(&read(object(1, NAME))), Created::Own);
    assert!(matches!(creation.answer(&Err(ErrorKind::Missing)), Created::Later(_)));
    assert_eq!(creation.answer(&Err(ErrorKind::Refused)), Created::Refused(ErrorKind::Refused));
}

#[test]
fn a_damaged_head_is_read_again_and_then_believed() {
    let mut creation = own();
    creation.answer(&Err(ErrorKind::Exists));
    let wrong = object(1, ObjectName::Term(Term(4)))[..100].to_vec();
    assert!(matches!(creation.answer(&read(wrong.clone())), Created::Later(_)));
    assert!(matches!(creation.answer(&read(object(1, ObjectName::Root(Term(4), 0)))), Created::Later(_)));
    assert!(matches!(creation.answer(&read(wrong)), Created::Damaged(ObjectFault::Head(_))));
    assert!(Creation::new(vec![0; 4096]).is_err());
}
