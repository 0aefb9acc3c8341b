//! Names: what is accepted, what is refused and how the error reads.

use super::*;

fn error<T: FromStr<Err = NameError> + fmt::Debug>(text: &str) -> String {
    text.parse::<T>().expect_err(text).to_string()
}

#[test]
fn a_volume_and_a_snapshot_parse_and_print_back() {
    for text in ["tank/vm-1", "t/d@s", "a.b_c:d-e/9@x.y"] {
        assert_eq!(text.parse::<Name>().expect(text).to_string(), text);
    }
    assert!(error::<VolumeName>("p/v@s").contains("names a snapshot"));
    assert!(error::<SnapshotName>("p/v").contains("names a volume"));
}

#[test]
fn ranges_are_taken_apart() {
    let of: VolumeName = "p/v".parse().expect("name");
    let range = |first: Option<&str>, last: Option<&str>| Doomed::Range {
        of: of.clone(),
        first: first.map(str::to_owned),
        last: last.map(str::to_owned),
    };
    assert_eq!("p/v@a%c".parse(), Ok(range(Some("a"), Some("c"))));
    assert_eq!("p/v@%".parse(), Ok(range(None, None)));
    assert_eq!("p/v@a%".parse(), Ok(range(Some("a"), None)));
    assert_eq!("p/v@%c".parse(), Ok(range(None, Some("c"))));
    assert!(matches!("p/v@a".parse(), Ok(Doomed::One(Name::Snapshot(_)))));
    assert!(matches!("p/v".parse(), Ok(Doomed::One(Name::Volume(_)))));
    assert!("p/v@a%b%c".parse::<Doomed>().is_err());
}

#[test]
fn limits_hold_to_the_character() {
    let long = |n: usize| "x".repeat(n);
    assert!(check(Kind::Pool, &long(64)).is_ok());
    assert!(check(Kind::Pool, &long(65)).is_err());
    assert!(check(Kind::Volume, &long(255)).is_ok());
    assert!(check(Kind::Snapshot, &long(256)).is_err());
    for bad in ["", "-a", ".a", "a b", "a/b", "a@b", "a%", "ä", "a\n"] {
        assert!(check(Kind::Volume, bad).is_err(), "{bad:?}");
    }
}

#[test]
fn look_alikes_are_named() {
    let refusal = error::<Name>("p/dis\u{441}");
    assert!(refusal.contains("CYRILLIC SMALL LETTER ES") && refusal.contains("U+0441") && refusal.contains("type 'c'"), "{refusal}");
    let refusal = error::<Name>("p/vm\u{2013}1");
    assert!(refusal.contains("EN DASH") && refusal.contains("U+2013") && refusal.contains("type '-'"), "{refusal}");
    let refusal = error::<Scope>("p\u{ff0f}v");
    assert!(refusal.contains("FULLWIDTH") && refusal.contains("'/'"), "{refusal}");
}

#[test]
fn no_look_alike_is_itself_allowed_and_none_is_listed_twice() {
    let mut seen = std::collections::BTreeSet::new();
    for (odd, plain, name) in LOOK_ALIKES {
        assert!(!odd.is_ascii() && plain.is_ascii(), "{name}");
        assert!(seen.insert(*odd), "{name} twice");
    }
}

#[test]
fn errors_are_one_line() {
    for text in ["", "p", "p/", "/v", "p/v@", "p/a\nb", "p/\u{7}"] {
        let refusal = error::<Name>(text);
        assert!(!refusal.contains('\n') && !refusal.contains('\u{7}'), "{refusal:?}");
    }
}

#[test]
fn look_alikes_in_options_are_named_with_what_to_type() {
    let described = |words: &str| describe_odd_option(words.split(' ').map(str::to_owned));
    for (words, parts) in [
        ("create p/v \u{2013}L 10G", ["EN DASH", "U+2013", "type '-L'"]),
        ("create p/v \u{2014}size 10G", ["EM DASH", "U+2014", "type '--size'"]),
        ("create p/v \u{2013}size=10G", ["EN DASH", "character 1", "type '--size=10G'"]),
        ("create p/v \u{2212}\u{2212}size", ["MINUS SIGN", "U+2212", "type '--size'"]),
        ("list -\u{441}", ["CYRILLIC SMALL LETTER ES", "U+0441", "type '-c'"]),
        ("snapshot p/v@a --expir\u{435} 1h", ["CYRILLIC SMALL LETTER IE", "character 8", "type '--expire'"]),
        ("pool create t \u{2013}o x=y /dev/a", ["EN DASH", "looks like '-'", "type '-o'"]),
    ] {
        let hint = described(words).expect(words);
        assert!(parts.iter().all(|part| hint.contains(part)), "{words}: {hint}");
    }
    for words in [
        "create p/v -L 10G --description=\u{2013}x",
        "snapshot p/v@a --description \u{2013}nightly",
        "diff -- \u{2013}x",
        "resize p/v -5G",
        "snapshot p/v@\u{441}",
        "pool create t /dev/\u{441}",
        "set x=\u{2013}L p/v",
    ] {
        assert_eq!(described(words), None, "{words}");
    }
}
