//! Labels of other programs and of strangers.

use super::*;
use crate::{Column, Group, Layout, Member};

/// Bytes of a shape with [`MAX_DEVICES`](crate::MAX_DEVICES) members and one group, without columns.
const NO_COLUMNS: usize = 28 + 64 * 29 + 4 + 16;
/// Bytes of a column.
const COLUMN: usize = 10;

/// A label whose shape has so many columns of one extent.
fn label(columns: u16) -> Label {
    let member = |at: u16| Member {
        device: DeviceId(u64::from(at) + 1),
        extents: 16,
        state: MemberState::Present,
        replacement: None,
        leaving: false,
        down_since: 0,
    };
    let column = |at: u16| Column { member: MemberId(at % 64), first: u32::from(at / 64), extents: 1 };
    let group = Group { class: Class::Data, layout: Layout::Linear, first: SegmentId(0), columns: (0..columns).map(column).collect() };
    let shape = Shape {
        generation: 1,
        extent_bytes: 1 << 20,
        chunk_units: 512,
        next: SegmentId(u32::from(columns)),
        members: (0..64).map(member).collect(),
        groups: vec![group],
    };
    Label {
        pool: PoolId([7; 16]),
        name: "x".repeat(NAME_MAX),
        device: DeviceId(1),
        member: MemberId(0),
        features: FeatureSet::default(),
        feature_names: FeatureNames::default(),
        shape,
        notes: Vec::new(),
    }
}

/// Turns a bit of `ro_compat` on, as only a program with that feature does.
fn with_feature(mut sector: [u8; SECTOR_BYTES]) -> [u8; SECTOR_BYTES] {
    sector[17] |= 0x80;
    let sum = crc32c(&sector[..SECTOR_BYTES - 4]);
    sector[SECTOR_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
    sector
}

/// No pool gets the feature yet. One of a later version is refused, and the refusal names it.
#[test]
fn a_pool_with_encryption_is_refused() {
    use crate::ENCRYPTION;
    assert!(FEATURES.iter().all(|other| (other.kind, other.bit) != (ENCRYPTION.kind, ENCRYPTION.bit) && other.name != ENCRYPTION.name));
    let (features, feature_names) = (FeatureSet::of([&ENCRYPTION]), FeatureNames::of([&ENCRYPTION]));
    let sector = Label { features, feature_names, ..label(1) }.encode();
    let Err(FormatError::Incompatible(unknown)) = Label::decode(&sector) else { panic!("{:?}", Label::decode(&sector)) };
    assert_eq!((unknown.bits, unknown.names.text()), (1 << 5, "encryption (since 0.2.0)"));
    let later = Label::decode_knowing(&sector, &[ENCRYPTION]).map(|label| label.features.has(&ENCRYPTION));
    assert_eq!(later, Ok(true));
}

/// Every label that is accepted can be written again.
#[test]
fn a_shape_that_leaves_no_room_for_names_is_refused() {
    let most = u16::try_from((crate::MAX_SHAPE_BYTES - NO_COLUMNS) / COLUMN).unwrap();
    let largest = label(most);
    assert!(largest.shape.fits());
    for sector in [largest.encode(), with_feature(largest.encode())] {
        let read = Label::decode(&sector).unwrap();
        assert_eq!((&read.shape, read.encode()), (&largest.shape, sector));
    }
    // larger than any shape that programs write; it ends before the place of the names, and in it
    for columns in [most + 1, most + 7] {
        let large = label(columns);
        assert!(!large.shape.fits());
        assert_eq!(Label::decode(&large.encode()), Err(FormatError::Field("shape")));
        assert!(Label::decode(&with_feature(large.encode())).is_err());
    }
}

/// Notes in the place of names are not read as both.
#[test]
fn notes_end_before_names() {
    let note = DeviceNote { device: DeviceId(1), size: 1, path: "p".repeat(255), serial: "s".repeat(255) };
    let mut noted = label(64).with_notes(&[note.clone(), note.clone(), note.clone()]);
    assert_eq!(noted.notes.len(), 2, "as many as fit");
    noted.notes.push(DeviceNote { serial: "s".repeat(60), ..note });
    // the last note begins before the names and ends in their place
    let room = NAMES_AT - FIXED_BYTES - NAME_MAX - NO_COLUMNS - 64 * COLUMN - 2;
    assert!(noted.notes.iter().map(|note| 20 + note.path.len() + note.serial.len()).sum::<usize>() > room);
    let sector = noted.encode();
    assert_eq!(Label::decode(&sector).map(|label| label.notes), Ok(noted.notes));
    assert_eq!(Label::decode(&with_feature(sector)), Err(FormatError::Truncated));
}

#[test]
fn unknown_features_are_named_before_anything_else_is_read() {
    let names = FeatureNames::read(b"dedup (since 9.4.0)");
    let features = FeatureSet { incompat: 1 << 31, ..FeatureSet::default() };
    let later = Label { features, feature_names: names, ..label(64) }.encode();
    let unknown = Unknown { bits: 1 << 31, count: 1, names };
    assert_eq!(Label::decode(&later), Err(FormatError::Incompatible(unknown)));
    let (pool, name, why) = Label::of_other_program(&later).unwrap();
    assert_eq!((pool, name, why), (PoolId([7; 16]), "x".repeat(NAME_MAX), FormatError::Incompatible(unknown)));
}

/// A later program names all features that are on. Those that this program knows are no reason to
/// refuse the pool.
#[test]
fn a_refusal_names_only_features_that_the_program_lacks() {
    let feature = |name, kind, bit, since| Feature { name, kind, bit, since, automatic: false, meaning: "", closes: "" };
    let trees = feature("trees", FeatureKind::RoCompat, 6, "0.4.0");
    let dedup = feature("dedup", FeatureKind::Incompat, 7, "0.5.0");
    let later = [FEATURES[0], FEATURES[1], trees, dedup];
    let label = Label { features: FeatureSet::of([&trees, &dedup]), feature_names: FeatureNames::of(&later[2..]), ..label(64) };
    assert_eq!(label.feature_names.text(), "dedup (since 0.5.0), trees (since 0.4.0)");
    let refused = |known: &[Feature]| Label::decode_knowing(&label.encode(), known).unwrap_err().to_string();
    let needs = "needs features that this program does not have: dedup (since 0.5.0)";
    assert_eq!(refused(&later[..3]), needs);
    assert_eq!(refused(FEATURES), format!("{needs}, trees (since 0.4.0)"));
    let writers = |known: &[Feature]| label.unknown_to_writers(known).map(|unknown| unknown.to_string());
    assert_eq!(writers(&[dedup]).as_deref(), Some("features that this program does not have: trees (since 0.4.0)"));
    assert_eq!(writers(&later), None);
}

/// The second label is written after the first one, so a first one with an older generation is from
/// before a write that failed or was lost.
#[test]
fn a_second_label_of_a_later_generation_counts() {
    let first = label(64);
    let features = FeatureSet { incompat: 1 << 7, ..FeatureSet::default() };
    let at =
        |generation| Label { shape: Shape { generation, ..first.shape.clone() }, name: "second".to_owned(), features, ..first.clone() };
    for (generation, counts) in [(0, "first"), (1, "first"), (2, "second")] {
        let counting = first.clone().or_newer(at(generation));
        assert_eq!(counting.name == "second", counts == "second", "generation {generation}");
        let same = Label { features: first.features, ..at(generation) };
        assert_eq!(first.clone().or_newer(same).name == "second", counts == "second", "generation {generation}");
    }
    let stranger = Label { device: DeviceId(9), ..at(7) };
    assert_eq!(first.clone().or_newer(stranger), first, "another device's label says nothing");
}

/// Only a later program's label may be newer than those that can be read.
#[test]
fn labels_of_earlier_versions_are_not_newer() {
    for (version, newer) in [(LABEL_VERSION - 1, false), (LABEL_VERSION + 1, true)] {
        let mut sector = label(64).encode();
        sector[8..10].copy_from_slice(&version.to_le_bytes());
        let sum = crc32c(&sector[..SECTOR_BYTES - 4]);
        sector[SECTOR_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(Label::decode(&sector), Err(FormatError::Version(version)));
        assert_eq!((FormatError::Version(version).is_newer_label(), Label::of_other_program(&sector).is_some()), (newer, newer));
    }
}

/// The bit and the shape agree, and a program that lacks the feature refuses the pool before it reads
/// a shape that it does not know.
#[test]
fn a_bucket_needs_its_feature() {
    let mut shape = label(16).shape;
    (shape.groups[0].class, shape.groups[0].first, shape.next) = (Class::Log, SegmentId(9), SegmentId(25));
    shape.groups.insert(0, Group { class: Class::Data, layout: Layout::Bucket { segments: 9 }, first: SegmentId(0), columns: Vec::new() });
    let on = |shape: &Shape, features: &[&Feature]| {
        let (set, names) = (FeatureSet::of(features.iter().copied()), FeatureNames::of(features.iter().copied()));
        Label { features: set, feature_names: names, shape: shape.clone(), ..label(16) }.encode()
    };
    let sector = on(&shape, &[&BUCKET]);
    let read = Label::decode(&sector).unwrap();
    assert_eq!((&read.shape, read.feature_names.text()), (&shape, "bucket (since 0.2.0)"));
    assert_eq!(Label::decode(&on(&shape, &[])), Err(FormatError::Field("flags")));
    assert_eq!(Label::decode(&on(&label(16).shape, &[&BUCKET])), Err(FormatError::Field("flags")));
    let older = Label::decode_knowing(&sector, &FEATURES[..4]).unwrap_err();
    assert_eq!(older.to_string(), "needs features that this program does not have: bucket (since 0.2.0)");
}
