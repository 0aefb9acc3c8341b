//! The slab of requests in flight.

use std::collections::HashSet;

use super::*;

fn pending(cookie: u64) -> Pending {
    Pending { asked: RequestKey { cookie, offset: 0 }, bytes: 512, kind: Kind::Op { op: Op::Read, whole: false } }
}

#[test]
fn tags_are_distinct_and_find_their_request() {
    let mut slab = InFlight::new(0xdead_beef, 100);
    let tags: Vec<Tag> = (0..100).map(|cookie| slab.insert(pending(cookie))).collect();
    assert!(!slab.has_room(1));
    assert_eq!(tags.iter().collect::<HashSet<_>>().len(), 100);
    for (cookie, tag) in tags.iter().enumerate().rev() {
        assert_eq!(tag.0 >> 32, 0xdead_beef);
        assert_eq!(slab.remove(*tag).map(|p| p.asked.cookie), Some(cookie as u64));
    }
    assert_eq!(slab.len(), 0);
}

#[test]
fn a_tag_is_good_once() {
    let mut slab = InFlight::new(1, 4);
    let first = slab.insert(pending(1));
    assert!(slab.remove(first).is_some());
    assert!(slab.remove(first).is_none());
    let second = slab.insert(pending(2));
    assert_ne!(first, second, "the slot is used again, the tag is not");
    assert!(slab.remove(first).is_none());
    assert_eq!(slab.remove(second).map(|p| p.asked.cookie), Some(2));
}

#[test]
fn tags_of_others_are_refused() {
    let mut slab = InFlight::new(1, 4);
    let tag = slab.insert(pending(1));
    assert!(slab.remove(Tag(tag.0 ^ 1 << 32)).is_none());
    assert!(slab.remove(Tag(tag.0 + 1)).is_none());
    assert_eq!(slab.len(), 1);
}

#[test]
fn a_limit_of_none_still_serves_one() {
    let mut slab = InFlight::new(1, 0);
    assert!(slab.has_room(1) && slab.has_room(16));
    slab.insert(pending(1));
    assert!(!slab.has_room(1));
}
