use super::{MAX_OBJECT_NAME, ObjectFolder, ObjectId, ObjectName, Term};
use crate::{FormatError, PoolId};

const ID: ObjectId = ObjectId([0xab; 16]);

/// A name of each kind with its text.
fn names() -> Vec<(ObjectName, String)> {
    let (id, term) = ("ab".repeat(16), Term(0x1f));
    let pin = format!("pin/{id}/{}", "07".repeat(16));
    vec![
        (ObjectName::Format, "format".into()),
        (ObjectName::Term(term), "term/0000001f".into()),
        (ObjectName::Term(Term(u32::MAX)), "term/ffffffff".into()),
        (ObjectName::Root(term, 2), "root/0000001f/0000000000000002".into()),
        (ObjectName::Root(term, u64::MAX), "root/0000001f/ffffffffffffffff".into()),
        (ObjectName::Segment { term, import: 3, count: 0x1234 }, "seg/34/0000001f.0003-000000001234".into()),
        (ObjectName::Segment { term, import: u16::MAX, count: (1 << 48) - 1 }, "seg/ff/0000001f.ffff-ffffffffffff".into()),
        (ObjectName::Ship { term, import: 0, number: 17 }, "ship/0000001f.0000/0000000000000011".into()),
        (ObjectName::Beat(term), "beat/0000001f".into()),
        (ObjectName::Publication(ID), format!("pub/{id}")),
        (ObjectName::Pin(ID, PoolId([7; 16])), pin),
        (ObjectName::Probe(ID, 9), format!("probe/{id}/00000009")),
    ]
}

#[test]
fn every_name_has_one_text_and_is_read_again() {
    for (name, text) in names() {
        assert_eq!(name.to_string(), text);
        assert_eq!(ObjectName::parse(&text), Ok(name));
        assert!(text.len() <= MAX_OBJECT_NAME, "{text}");
    }
}

#[test]
fn other_texts_are_no_names() {
    let refused = Err(FormatError::Field("object name"));
    for (_, text) in names() {
        assert_eq!(ObjectName::parse(&format!("{text}/")), refused, "{text}");
        assert_eq!(ObjectName::parse(&format!("/{text}")), refused, "{text}");
        assert_eq!(ObjectName::parse(&format!("{text}0")), refused, "{text}");
        assert_eq!(ObjectName::parse(&text[..text.len() - 1]), refused, "{text}");
        if text.contains("1f") {
            assert_eq!(ObjectName::parse(&text.replace("1f", "1F")), refused, "{text}");
        }
    }
    for text in ["", "term", "term/", "term/+000001f", "term/1f", "seg/00/0000001f.0003-000000001234", "lost/0000001f"] {
        assert_eq!(ObjectName::parse(text), refused, "{text}");
    }
}

#[test]
fn names_sort_as_their_numbers_do() {
    let mut terms: Vec<Term> = [0, 9, 10, 255, 256, 4096, u32::MAX].map(Term).to_vec();
    terms.sort_by_key(|term| ObjectName::Term(*term).to_string());
    assert!(terms.is_sorted());
    let mut numbers = [1, 15, 16, 255, 1 << 40, u64::MAX];
    numbers.sort_by_key(|number| ObjectName::Root(Term(1), *number).to_string());
    assert!(numbers.is_sorted());
}

#[test]
fn names_lie_in_their_folders() {
    let term = Term(0x1f);
    for (folder, name) in [
        (ObjectFolder::Terms, ObjectName::Term(term)),
        (ObjectFolder::Roots(term), ObjectName::Root(term, 5)),
        (ObjectFolder::Segments(0x34), ObjectName::Segment { term, import: 0, count: 0x1234 }),
        (ObjectFolder::Ships(term, 2), ObjectName::Ship { term, import: 2, number: 1 }),
        (ObjectFolder::Publications, ObjectName::Publication(ID)),
        (ObjectFolder::Pins(ID), ObjectName::Pin(ID, PoolId([1; 16]))),
        (ObjectFolder::Probe(ID), ObjectName::Probe(ID, 1)),
    ] {
        assert!(name.to_string().starts_with(&folder.to_string()), "{name}");
    }
    assert_eq!(ObjectName::Beat(term).term(), Some(term));
    assert_eq!(ObjectName::Publication(ID).term(), None);
    assert_eq!((Term(1).next(), Term(u32::MAX).next()), (Some(Term(2)), None));
}
