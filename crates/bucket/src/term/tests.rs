use millpond_format::{Holder, ObjectHead, ObjectName, PoolId, Term};

use super::{Claimed, TermClaim};
use crate::{Answer, ErrorKind, Operation};

const POOL: PoolId = PoolId([1; 16]);

fn holder(session: u8) -> Holder {
    Holder { host: [session; 16], name: format!("host{session}"), session: [session; 16] }
}

fn term(number: u32, session: u8) -> Result<Answer, ErrorKind> {
    let bytes = ObjectHead::seal(POOL, Term(number), holder(session), ObjectName::Term(Term(number)), &[]);
    let length = bytes.len() as u64;
    Ok(Answer::Read { bytes, length })
}

fn listed(names: Vec<ObjectName>) -> Result<Answer, ErrorKind> {
    Ok(Answer::Names { names, more: false })
}

/// A claim that has found term 4 of session 9, and is to create term 5.
fn claim() -> TermClaim {
    let mut claim = TermClaim::new(POOL, holder(1));
    assert_eq!(claim.answer(&listed(vec![ObjectName::Term(Term(4))])), Claimed::Next);
    assert_eq!(claim.answer(&term(4, 9)), Claimed::Next);
    match claim.answer(&Err(ErrorKind::Missing)) {
        Claimed::Found(Some(head)) => assert_eq!((head.term, head.holder), (Term(4), holder(9))),
        other => panic!("{other:?}"),
    }
    assert_eq!(claim.operation(), None, "the caller decides");
    assert_eq!(claim.take(), Claimed::Next);
    claim
}

#[test]
fn the_first_import_gets_term_1() {
    let mut claim = TermClaim::new(POOL, holder(1));
    claim.answer(&listed(Vec::new()));
    assert_eq!(claim.answer(&Err(ErrorKind::Missing)), Claimed::Found(None));
    claim.take();
    assert!(matches!(claim.operation(), Some(Operation::Put { name: ObjectName::Term(Term(1)), create: true, .. })));
    assert_eq!(claim.answer(&Ok(Answer::Written)), Claimed::Held(Term(1)));
}

/// INV-BUCKET-3
#[test]
fn a_term_belongs_to_the_session_in_its_head() {
    assert_eq!(claim().answer(&Ok(Answer::Written)), Claimed::Held(Term(5)));
    for doubt in [ErrorKind::Exists, ErrorKind::Unknown] {
        let mut own = claim();
        assert_eq!(own.answer(&Err(doubt)), Claimed::Next);
        assert_eq!(own.answer(&term(5, 1)), Claimed::Held(Term(5)));
        let mut other = claim();
        other.answer(&Err(doubt));
        match other.answer(&term(5, 2)) {
            Claimed::Lost(head) => assert_eq!(head.holder, holder(2)),
            answer => panic!("{answer:?}"),
        }
    }
    assert_eq!(claim().answer(&Err(ErrorKind::Denied)), Claimed::Later(ErrorKind::Denied));
}

#[test]
fn terms_end() {
    let mut claim = TermClaim::new(POOL, holder(1));
    claim.answer(&listed(vec![ObjectName::Term(Term(u32::MAX))]));
    assert!(matches!(claim.answer(&term(u32::MAX, 9)), Claimed::Found(Some(_))));
    assert_eq!(claim.take(), Claimed::Exhausted);
}
