use super::*;

const POOL: &str = "0123456789abcdef0123456789abcdef";

fn identity() -> SnapshotIdentity {
    SnapshotIdentity::new("01234567-89AB-cdef-0123-456789abcdef", 7, 9, 1_700_000_000_000)
}

#[test]
fn an_identity_has_one_text() {
    let text = format!("{POOL}:7:9:1700000000000");
    assert_eq!(identity().to_string(), text);
    assert_eq!(text.parse(), Ok(identity()));
    for wrong in [
        format!("{POOL}:07:9:1700000000000"),
        format!("{POOL}:7:9"),
        format!("{POOL}:7:9:1:2"),
        format!("{}:7:9:1", POOL.to_uppercase()),
        "x:7:9:1".to_owned(),
        String::new(),
    ] {
        assert_eq!(wrong.parse::<SnapshotIdentity>(), Err(NoIdentity), "{wrong}");
    }
}

#[test]
fn a_stored_description_is_split_again() {
    let base = SnapshotIdentity { id: 6, ..identity() };
    for (position, base) in [(None, None), (Some(0), None), (Some(1 << 40), Some(base))] {
        let origin = SnapshotOrigin { identity: identity(), position, base };
        for text in ["", "nightly", "two\nlines", "ends [received here]"] {
            let stored = origin.stored(text);
            assert_eq!(SnapshotOrigin::split(&stored), (text, Some(origin.clone())), "{stored}");
        }
    }
}

#[test]
fn a_long_description_is_cut_at_a_character() {
    let origin = SnapshotOrigin { identity: identity(), position: Some(4096), base: None };
    let stored = origin.stored(&"ü".repeat(600));
    assert!(stored.len() <= MAX_DESCRIPTION && stored.len() > MAX_DESCRIPTION - 4);
    let (text, found) = SnapshotOrigin::split(&stored);
    assert!(text.chars().all(|c| c == 'ü'));
    assert_eq!(found, Some(origin));
}

#[test]
fn other_text_is_no_origin() {
    for text in ["", "nightly", "[received x]", "[receiving 1 2]", "a [received b] c"] {
        assert_eq!(SnapshotOrigin::split(text), (text, None));
    }
}

#[test]
fn a_token_has_identity_and_position() {
    let token = Receiving { identity: identity(), position: 1 << 33, base: None }.token();
    assert_eq!(token.to_string(), format!("{}:8589934592", identity()));
    assert_eq!(token.to_string().parse(), Ok(token));
    for wrong in ["", "1:2", &identity().to_string(), "x"] {
        assert_eq!(wrong.parse::<ResumeToken>(), Err(NoToken), "{wrong}");
    }
}
