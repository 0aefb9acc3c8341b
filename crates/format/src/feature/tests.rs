use std::collections::BTreeSet;

use super::*;

const LATER: Feature = Feature {
    name: "dedup",
    kind: FeatureKind::Incompat,
    bit: 31,
    since: "9.4.0",
    automatic: false,
    meaning: "Equal blocks are stored once.",
    closes: "Older versions cannot import the pool.",
};

#[test]
fn names_and_bits_are_unique() {
    let names: BTreeSet<&str> = FEATURES.iter().map(|feature| feature.name).collect();
    let bits: BTreeSet<(FeatureKind, u8)> = FEATURES.iter().map(|feature| (feature.kind, feature.bit)).collect();
    assert_eq!((names.len(), bits.len()), (FEATURES.len(), FEATURES.len()));
    for feature in FEATURES {
        assert!(feature.bit < 32 && feature.name.len() <= 24, "{feature:?}");
        assert_eq!(FeatureNames::of([&Feature { kind: FeatureKind::Incompat, ..*feature }]).text().split(' ').next(), Some(feature.name));
    }
}

#[test]
fn sets_have_the_bits_of_their_features() {
    let known = FeatureSet::of(FEATURES);
    assert_eq!(known, FeatureSet { compat: 0, ro_compat: 0, incompat: 31 });
    assert!(!known.has(&LATER) && FEATURES.iter().all(|feature| known.has(feature)));
    let both = known.with(FeatureSet::of([&LATER]));
    assert_eq!(both.without(known), FeatureSet::of([&LATER]));
    assert!(both.has(&LATER) && known.without(both).is_empty());
}

#[test]
fn names_are_cut_between_features_and_strange_ones_are_ignored() {
    assert_eq!(FeatureNames::of([&LATER]).text(), "dedup (since 9.4.0)");
    assert_eq!(FeatureNames::of([&LATER; 5]).text(), ["dedup (since 9.4.0)"; 3].join(", "));
    assert_eq!(FeatureNames::of([&Feature { kind: FeatureKind::Compat, ..LATER }]).text(), "");
    for strange in [&b"\x1b[2J"[..], b"a\nb", b"\xff", b"Rm"] {
        assert_eq!(FeatureNames::read(strange).text(), "", "{strange:?}");
    }
    let unknown = |names, count| Unknown { bits: 1 << 31, count, names }.to_string();
    assert_eq!(unknown(FeatureNames::of([&LATER]), 1), "features that this program does not have: dedup (since 9.4.0)");
    assert_eq!(unknown(FeatureNames::of([&LATER]), 3), "features that this program does not have: dedup (since 9.4.0), and 2 more");
    assert_eq!(unknown(FeatureNames::default(), 1), "features 0x80000000 that this program does not have");
}

/// The newest features are those that most programs do not know: they are named first, in the order
/// of versions and not of letters, and those that do not fit are the oldest.
#[test]
fn the_newest_features_are_named() {
    let feature = |name, since| Feature { name, since, ..LATER };
    let table = [feature("dedup", "9.4.0"), feature("later-in-table", "9.4.0"), feature("wide-trees", "10.0.0"), feature("runs", "9.10.0")];
    let all = FeatureNames::of(&table);
    assert_eq!(all.text(), "wide-trees (since 10.0.0), runs (since 9.10.0)");
    assert_eq!(FeatureNames::of(&table[..2]).text(), "later-in-table (since 9.4.0), dedup (since 9.4.0)");
    assert_eq!(all.unknown_to(&table[3..]).text(), "wide-trees (since 10.0.0)");
    assert_eq!((all.unknown_to(&table).text(), all.unknown_to(&[])), ("", all));
    // an older one that fits is left out, too, if a newer one does not fit: the names have no gaps
    let table =
        [feature("d", "9.4.0"), feature("long-name-of-a-feature", "9.10.0"), feature("wide-trees", "10.0.0"), feature("runs", "9.11.0")];
    assert_eq!(FeatureNames::of(&table).text(), "wide-trees (since 10.0.0), runs (since 9.11.0)");
    // a name that only begins with a known one is another feature
    assert_eq!(all.unknown_to(&[feature("wide", "10.0.0")]), all);
}

#[test]
fn the_document_has_the_same_table() {
    let text = include_str!("../../../../docs/format.md");
    let rows: Vec<&str> =
        text.lines().skip_while(|line| !line.starts_with("| feature |")).skip(2).take_while(|l| l.starts_with('|')).collect();
    let row = |f: &Feature| format!("| `{}` | {}, bit {} | {} | {} | {} |", f.name, f.kind, f.bit, f.since, f.meaning, f.closes);
    assert_eq!(rows, FEATURES.iter().map(row).collect::<Vec<_>>());
}
