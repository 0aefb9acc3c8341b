use millpond_format::{Holder, ObjectFault, ObjectFolder, ObjectHead, ObjectName, PoolId, Term};

use super::{Newest, Search, Series};
use crate::{Answer, ErrorKind, Operation};

const POOL: PoolId = PoolId([1; 16]);

fn object(name: ObjectName) -> Result<Answer, ErrorKind> {
    let holder = Holder { host: [1; 16], name: "host".into(), session: [1; 16] };
    let bytes = ObjectHead::seal(POOL, name.term().unwrap_or_default(), holder, name, b"");
    let length = bytes.len() as u64;
    Ok(Answer::Read { bytes, length })
}

fn names(terms: &[u32], more: bool) -> Result<Answer, ErrorKind> {
    Ok(Answer::Names { names: terms.iter().map(|term| ObjectName::Term(Term(*term))).collect(), more })
}

/// Answers looks as if the terms up to `last` were there; returns the end and the terms looked at.
fn climb(search: &mut Newest, last: u32) -> (Search, Vec<u32>) {
    let mut looked = Vec::new();
    loop {
        let Operation::Get { name: ObjectName::Term(term), .. } = search.operation() else { panic!("{:?}", search.operation()) };
        looked.push(term.0);
        let answer = if term.0 <= last { object(ObjectName::Term(term)) } else { Err(ErrorKind::Missing) };
        match search.answer(&answer) {
            Search::Next => {}
            end => return (end, looked),
        }
    }
}

fn found(end: Search) -> Option<Term> {
    match end {
        Search::Found(head) => head.map(|head| head.term),
        other => panic!("{other:?}"),
    }
}

/// INV-BUCKET-2
#[test]
fn a_list_that_lacks_the_newest_is_a_hint_only() {
    for (listed, last) in [(&[1, 2, 3][..], 3), (&[1, 2], 5), (&[], 2), (&[], 0)] {
        let mut search = Newest::new(POOL, Series::Terms);
        assert_eq!(search.operation(), Operation::List { folder: ObjectFolder::Terms, after: None, most: 1000 });
        assert_eq!(search.answer(&names(listed, false)), Search::Next);
        let (end, looked) = climb(&mut search, last);
        assert_eq!(found(end), (last > 0).then_some(Term(last)));
        let from = listed.last().copied().unwrap_or(1);
        assert_eq!(looked, (from..=last + 1).collect::<Vec<_>>());
    }
}

#[test]
fn a_list_has_pages_and_may_be_refused() {
    let mut search = Newest::new(POOL, Series::Terms);
    assert_eq!(search.answer(&names(&[1, 2], true)), Search::Next);
    let next = Operation::List { folder: ObjectFolder::Terms, after: Some(ObjectName::Term(Term(2))), most: 1000 };
    assert_eq!(search.operation(), next);
    assert_eq!(search.answer(&Err(ErrorKind::Away)), Search::Later(ErrorKind::Away));
    assert_eq!(search.operation(), next);
    search.answer(&names(&[3], false));
    assert_eq!(found(climb(&mut search, 3).0), Some(Term(3)));
    let mut search = Newest::new(POOL, Series::Terms);
    assert_eq!(search.answer(&Err(ErrorKind::Refused)), Search::Next);
    assert_eq!(climb(&mut search, 2).1, [1, 2, 3]);
    assert_eq!(Newest::new(POOL, Series::Terms).answer(&Err(ErrorKind::Missing)), Search::Refused(ErrorKind::Missing));
}

#[test]
fn a_listed_object_that_is_missing_is_waited_for() {
    let mut search = Newest::new(POOL, Series::Terms);
    search.answer(&names(&[4], false));
    assert_eq!(search.answer(&Err(ErrorKind::Missing)), Search::Later(ErrorKind::Missing));
    assert_eq!(found(climb(&mut search, 4).0), Some(Term(4)));
}

#[test]
fn another_object_under_a_name_is_not_believed() {
    let anchors = Series::Anchors(Term(3));
    let mut search = Newest::new(POOL, anchors);
    search.answer(&Ok(Answer::Names { names: vec![ObjectName::Root(Term(3), 0), ObjectName::Root(Term(3), 1)], more: false }));
    let foreign = object(ObjectName::Root(Term(3), 0));
    assert_eq!(search.answer(&foreign), Search::Later(ErrorKind::Unknown));
    assert_eq!(search.answer(&foreign), Search::Later(ErrorKind::Unknown));
    let fault = ObjectFault::Name(ObjectName::Root(Term(3), 0));
    assert_eq!(search.answer(&foreign), Search::Damaged(ObjectName::Root(Term(3), 1), fault));
    let mut search = Newest::new(POOL, anchors);
    search.answer(&Ok(Answer::Names { names: Vec::new(), more: false }));
    assert_eq!(search.answer(&object(ObjectName::Root(Term(3), 0))), Search::Next);
    assert_eq!(found(search.answer(&Err(ErrorKind::Missing))), Some(Term(3)));
}
