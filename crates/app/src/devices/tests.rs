//! Device specs.

use super::*;
use crate::failure::Code;

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// The one group of a spec.
fn one(text: &str, stripes: Option<u16>, unit: Option<Size>) -> (LayoutSpec, Vec<DeviceSpec>) {
    let mut groups = parse(&words(text), stripes, unit).expect(text);
    assert_eq!(groups.len(), 1, "{text}");
    groups.pop().map(|group| (group.layout, group.devices)).expect("a group")
}

#[test]
fn a_plain_list_is_a_stripe_over_all() {
    let (layout, devices) = one("/d/a:1G /d/b:2G", None, None);
    assert_eq!(layout, LayoutSpec::Stripe { width: 2, unit: 65536 });
    assert_eq!(devices[1], DeviceSpec { path: "/d/b".to_owned(), create: Some(2 << 30) });
}

#[test]
fn layouts_come_before_their_devices() {
    assert_eq!(one("linear /d/a /d/b", None, None).0, LayoutSpec::Linear);
    assert_eq!(one("mirror /d/a /d/b", None, None).0, LayoutSpec::Mirror { copies: 2 });
    let (layout, _) = one("stripe /d/a /d/b /d/c", Some(2), Some(Size(131_072)));
    assert_eq!(layout, LayoutSpec::Stripe { width: 2, unit: 131_072 });
    let groups = parse(&words("mirror /d/a /d/b mirror /d/c /d/d linear /d/e"), None, None).expect("groups");
    let shapes: Vec<_> = groups.iter().map(|group| (group.layout, group.devices.len())).collect();
    let mirror = LayoutSpec::Mirror { copies: 2 };
    assert_eq!(shapes, [(mirror, 2), (mirror, 2), (LayoutSpec::Linear, 1)]);
    for bad in ["/d/a linear", "linear stripe /d/a", "linear", "", "mirror /d/a", "mirror /d/a /d/b linear /d/a"] {
        assert_eq!(parse(&words(bad), None, None).expect_err(bad).code, Code::Usage, "{bad}");
    }
}

#[test]
fn what_comes_later_says_so() {
    for later in ["parity1 /d/a", "/d/a special /d/b", "/d/a log /d/b", "/d/a cache /d/b"] {
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
    assert_eq!(one(&word, None, None).1, [DeviceSpec { path: word, create: None }]);
}
