use millpond_format::{Holder, ObjectHead, ObjectName, PoolId, Term};

use super::{AnchorCommit, Committed};
use crate::{Answer, ErrorKind, Operation};

fn object(term: u32, session: u8) -> Vec<u8> {
    let holder = Holder { host: [1; 16], name: "host".into(), session: [session; 16] };
    ObjectHead::seal(PoolId([1; 16]), Term(term), holder, ObjectName::Root(Term(term), 7), b"root")
}

fn written() -> AnchorCommit {
    let mut commit = AnchorCommit::new(object(3, 1)).expect("a head");
    assert!(matches!(commit.operation(), Some(Operation::Put { name: ObjectName::Root(Term(3), 7), create: true, .. })));
    assert_eq!(commit.answer(&Ok(Answer::Written)), Committed::Next);
    assert!(matches!(commit.operation(), Some(Operation::Get { name: ObjectName::Term(Term(4)), .. })));
    commit
}

/// INV-BUCKET-4
#[test]
fn an_anchor_counts_only_without_a_later_term() {
    assert_eq!(written().answer(&Err(ErrorKind::Missing)), Committed::Done);
    assert_eq!(written().answer(&Ok(Answer::Read { bytes: b"damaged".to_vec(), length: 7 })), Committed::Fenced);
    for kind in [ErrorKind::Away, ErrorKind::Throttled, ErrorKind::Denied, ErrorKind::Unknown] {
        assert_eq!(written().answer(&Err(kind)), Committed::Later(kind));
    }
    assert_eq!(written().answer(&Err(ErrorKind::Refused)), Committed::Refused(ErrorKind::Refused));
}

/// A term whose object was deleted may be taken twice: whoever meets an anchor of another host stops.
#[test]
fn an_anchor_of_another_host_in_the_own_term_fences() {
    let mut commit = AnchorCommit::new(object(3, 1)).expect("a head");
    commit.answer(&Err(ErrorKind::Exists));
    let holder = Holder { host: [2; 16], name: "other".into(), session: [1; 16] };
    let bytes = ObjectHead::seal(PoolId([1; 16]), Term(3), holder, ObjectName::Root(Term(3), 7), b"root");
    let length = bytes.len() as u64;
    assert_eq!(commit.answer(&Ok(Answer::Read { bytes, length })), Committed::Fenced);
}

#[test]
fn a_number_of_an_earlier_session_is_left_alone() {
    let mut commit = AnchorCommit::new(object(3, 1)).expect("a head");
    commit.answer(&Err(ErrorKind::Exists));
    let (bytes, length) = (object(3, 2), object(3, 2).len() as u64);
    match commit.answer(&Ok(Answer::Read { bytes, length })) {
        Committed::Taken(head) => assert_eq!(head.holder.session, [2; 16]),
        other => panic!("{other:?}"),
    }
    let mut last = AnchorCommit::new(object(u32::MAX, 1)).expect("a head");
    assert_eq!(last.answer(&Ok(Answer::Written)), Committed::Done);
    assert_eq!(last.operation(), None);
}
