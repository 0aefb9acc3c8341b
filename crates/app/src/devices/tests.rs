//! Device specs.

use super::*;
use crate::failure::Code;

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_plain_list_is_a_stripe_over_all() {
    let (layout, devices) = parse(&words("/d/a:1G /d/b:2G"), None, None).expect("spec");
    assert_eq!(layout, LayoutSpec::Stripe { width: 2, unit: 65536 });
    assert_eq!(devices[1], DeviceSpec { path: "/d/b".to_owned(), create: Some(2 << 30) });
}

#[test]
fn layouts_are_named_first() {
    assert_eq!(parse(&words("linear /d/a /d/b"), None, None).expect("linear").0, LayoutSpec::Linear);
    let (layout, _) = parse(&words("stripe /d/a /d/b /d/c"), Some(2), Some(Size(131_072))).expect("stripe");
    assert_eq!(layout, LayoutSpec::Stripe { width: 2, unit: 131_072 });
    for bad in ["/d/a linear /d/b", "linear stripe /d/a", "linear", ""] {
        assert_eq!(parse(&words(bad), None, None).expect_err(bad).code, Code::Usage, "{bad}");
    }
}

#[test]
fn what_comes_later_says_so() {
    for later in ["mirror /d/a /d/b", "parity1 /d/a", "/d/a special /d/b", "/d/a log /d/b", "/d/a cache /d/b"] {
        let failure = parse(&words(later), None, None).expect_err(later);
        assert!(failure.code == Code::Failed && failure.to_string().contains("comes later"), "{failure}");
    }
}

#[test]
fn numbers_are_checked() {
    assert!(parse(&words("/d/a"), Some(2), None).is_err());
    assert!(parse(&words("/d/a"), Some(0), None).is_err());
    assert!(parse(&words("/d/a"), None, Some(Size(1000))).is_err());
    assert!(parse(&words("linear /d/a"), Some(1), None).is_err());
    assert!(parse(&words("/d/a /d/a"), None, None).is_err());
    assert!(parse(&words("/d/a:x"), None, None).is_err());
}

#[test]
fn an_existing_path_with_a_colon_is_a_path() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("disk:1G");
    std::fs::write(&path, b"").expect("write");
    let word = path.to_string_lossy().into_owned();
    assert_eq!(parse(std::slice::from_ref(&word), None, None).expect("spec").1, [DeviceSpec { path: word, create: None }]);
}
