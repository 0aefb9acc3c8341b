//! Compares names with plain maps, across checkpoints that are encoded while names change.

use super::*;
use millpond_testing::Random;

const SEGMENTS: u64 = 700;
const EMPTY: ObjectRef = ObjectRef { segment: SegmentId(0), offset: 0, length: 0, crc: 0 };

fn bucket(term: u32) -> BucketRecord {
    BucketRecord { source: "s3://data/pond".into(), quota: 1 << 40, term: Term(term), settled: 0 }
}

fn named(count: u64) -> Named {
    Named { name: SegmentName { term: Term(1), import: 0, count }, pages: 2 + (count % 4000) as u16 }
}

/// Objects of a checkpoint as a device would have them, by their place.
type Media = BTreeMap<u32, Vec<u8>>;

/// Writes a part, and frees the object that it replaces.
fn write(names: &mut Names, media: &mut Media, next: &mut u32, (part, bytes): (NamePart, Vec<u8>)) {
    *next += 1;
    let at = ObjectRef { segment: SegmentId(*next), length: bytes.len() as u32, ..EMPTY };
    let at = (!bytes.is_empty()).then(|| {
        media.insert(*next, bytes);
        at
    });
    let old = names.set_stored(part, at);
    old.into_iter().for_each(|old| assert!(media.remove(&old.segment.0).is_some()));
}

/// Loads what a checkpoint names.
fn loaded(names: &Names, media: &Media) -> Names {
    let mut again = Names::default();
    again.set_bucket(names.bucket().unwrap().clone());
    for (page, at) in names.stored() {
        assert!(again.load_page(page, at, NameRecord::decode_page(&media[&at.segment.0]).unwrap()));
    }
    if let Some(at) = names.stored_doomed() {
        assert!(again.load_doomed(at, DoomedName::decode_list(&media[&at.segment.0]).unwrap()));
    }
    again
}

#[test]
fn checkpoints_have_the_names_of_the_moment_when_they_were_sealed() {
    let mut random = Random::new(3);
    let mut names = Names::default();
    names.set_bucket(bucket(1));
    let (mut plain, mut doomed) = (BTreeMap::new(), BTreeMap::new());
    let (mut media, mut next, mut count) = (Media::new(), 0, 0);
    for generation in 0..60 {
        for _ in 0..random.below(200) {
            change(&mut names, &mut plain, &mut doomed, &mut random, &mut count, generation);
        }
        // some end with the checkpoint, as `doom_free` has it
        let ending: Vec<SegmentId> = plain.keys().copied().filter(|_| random.once_in(6)).collect();
        let most = names.bytes_to_write(ending.len());
        for segment in ending {
            names.doom_segment(segment, generation);
            doomed.extend(plain.remove(&segment).map(|old: Named| (old.name, generation)));
        }
        let before = (plain.clone(), doomed.clone());
        names.seal();
        let mut written = 0;
        while let Some(part) = names.next_sealed() {
            written += part.1.len();
            write(&mut names, &mut media, &mut next, part);
            if random.once_in(3) {
                change(&mut names, &mut plain, &mut doomed, &mut random, &mut count, generation);
            }
        }
        assert!(written <= most, "INV-CKPT-5: {written} bytes of names, {most} at most");
        let again = loaded(&names, &media);
        assert!(again.iter().eq(before.0.iter().map(|(id, named)| (*id, *named))), "checkpoint {generation}");
        assert!(again.doomed().map(|doomed| (doomed.name, doomed.generation)).eq(before.1), "checkpoint {generation}");
        assert_eq!(again.unchanged().count(), media.len(), "nothing of it has changed");
        assert_eq!(media.len(), names.stored().count() + usize::from(names.stored_doomed().is_some()));
        if random.once_in(4) {
            names.rewrite(|at| at.segment.0 % 2 == 0);
        }
    }
    assert!(plain.len() > 100 && doomed.len() > 100);
}

/// Gives a segment an object, or dooms the one that it has.
fn change(
    names: &mut Names,
    plain: &mut BTreeMap<SegmentId, Named>,
    doomed: &mut BTreeMap<SegmentName, u64>,
    random: &mut Random,
    count: &mut u64,
    generation: u64,
) {
    let segment = SegmentId(random.below(SEGMENTS) as u32);
    if let Some(old) = plain.remove(&segment) {
        assert_eq!(names.get(segment), Some(old));
        names.doom_segment(segment, generation);
        doomed.insert(old.name, generation);
    } else {
        *count += 1;
        assert!(names.insert(segment, named(*count)));
        plain.insert(segment, named(*count));
    }
}

#[test]
fn a_name_is_given_once() {
    let mut names = Names::default();
    assert!(!names.insert(SegmentId(1), named(1)), "there is no bucket");
    names.set_bucket(bucket(0));
    assert!(!names.insert(SegmentId(1), named(1)), "nobody has taken that term");
    assert!(names.raise_term(Term(1)) && !names.raise_term(Term(1)) && !names.raise_term(Term(0)));
    assert!(names.insert(SegmentId(1), named(1)) && names.insert(SegmentId(1), named(1)), "in several parts");
    assert!(!names.insert(SegmentId(1), named(2)), "the segment has another object");
    assert!(!names.insert(SegmentId(2), named(1)), "the object is of another segment");
    assert!(!names.insert(SegmentId(1), Named { pages: 9, ..named(1) }), "of another length");
    assert!(!names.may_name(SegmentId(1), u64::MAX) && names.may_name(SegmentId(2), 0));
    names.doom_segment(SegmentId(1), 5);
    assert!(!names.insert(SegmentId(1), named(1)), "it is doomed");
    assert!(!names.may_name(SegmentId(1), 4), "an import may begin with a checkpoint that has its object");
    assert!(names.may_name(SegmentId(1), 5));
    assert!(names.insert(SegmentId(1), named(2)));
    assert!(!names.may_name(SegmentId(1), 5));
    // one that no segment ever had
    names.doom(named(9), 6);
    assert!(!names.insert(SegmentId(3), named(9)));
    assert_eq!(names.doomed().map(|doomed| doomed.object).collect::<Vec<_>>(), [3, 11].map(|pages| Doomed::There { pages }));
}

#[test]
fn a_checkpoint_with_a_name_twice_is_refused() {
    let record = |segment| NameRecord { segment: SegmentId(segment), name: named(1).name, pages: 3 };
    let mut names = Names::default();
    assert!(names.load_page(0, EMPTY, vec![record(5)]));
    assert!(!names.load_page(0, EMPTY, vec![record(6)]), "two segments are one object");
    assert!(!Names::default().load_page(1, EMPTY, vec![record(5)]), "a segment of another page");
    let doomed = DoomedName { name: named(1).name, object: Doomed::There { pages: 3 }, generation: 1 };
    assert!(!names.load_doomed(EMPTY, vec![doomed]));
}
