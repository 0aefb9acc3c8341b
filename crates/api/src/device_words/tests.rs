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
fn parity_and_classes() {
    let (layout, _) = one("parity2 /d/a /d/b /d/c /d/d", None, None);
    assert_eq!(layout, LayoutSpec::Parity { width: 4, parity: 2, unit: 65536 });
    assert_eq!(one("parity1 /d/a /d/b /d/c /d/d", Some(3), Some(Size(16384))).0, LayoutSpec::Parity { width: 3, parity: 1, unit: 16384 });
    let groups = parse(&words("/d/a special mirror /d/b /d/c log /d/d"), None, None).expect("groups");
    let classes: Vec<_> = groups.iter().map(|group| (group.class, group.layout.spare())).collect();
    assert_eq!(classes, [(ClassSpec::Data, 0), (ClassSpec::Special, 1), (ClassSpec::Log, 0)]);
    assert_eq!(weakness(&groups, groups[0].layout), None);
    let groups = parse(&words("mirror /d/a /d/e special /d/b"), None, None).expect("groups");
    assert!(weakness(&groups, groups[0].layout).is_some_and(|line| line.contains("special")));
    for bad in ["parity1 /d/a /d/b", "parity2 /d/a /d/b /d/c", "/d/a special parity1 /d/b /d/c /d/d", "/d/a special", "/d/a log mirror"] {
        assert_eq!(parse(&words(bad), None, None).err().map(|failure| failure.code), Some(Code::Usage), "{bad}");
    }
    let groups = parse(&words("mirror /d/a /d/b cache /d/c /d/d"), None, None).expect("groups");
    assert_eq!((groups[1].class, groups[1].layout, groups[1].devices.len()), (ClassSpec::Cache, LayoutSpec::Linear, 2));
    assert_eq!(weakness(&groups, groups[0].layout), None);
    let groups = parse(&words("mirror /d/a /d/b spare /d/c /d/d"), None, None).expect("groups");
    assert_eq!((groups[1].class, groups[1].layout, groups[1].devices.len()), (ClassSpec::Spare, LayoutSpec::Linear, 2));
    assert_eq!(weakness(&groups, groups[0].layout), None);
    for bad in ["/d/a cache mirror /d/b /d/c", "/d/a cache", "/d/a cache linear /d/b", "/d/a spare mirror /d/b /d/c"] {
        assert_eq!(parse(&words(bad), None, None).err().map(|failure| failure.code), Some(Code::Usage), "{bad}");
    }
}

#[test]
fn words_of_other_systems_are_named_with_the_right_one() {
    let wrong =
        ["raidz1 /d/a /d/b /d/c", "raid5 /d/a", "RAID6 /d/a", "raid1 /d/a /d/b", "raid10 /d/a /d/b", "/d/a slog /d/b", "Mirror /d/a /d/b"];
    let right = ["parity1", "parity1", "parity2", "mirror", "mirror A B mirror C D", "log", "mirror"];
    for (wrong, right) in wrong.iter().zip(right) {
        let failure = parse(&words(wrong), None, None).expect_err(wrong);
        assert!(failure.code == Code::Usage && failure.to_string().contains(&format!("'{right}")), "{failure}");
    }
    assert_eq!(one("./raidz1", None, None).1.len(), 1, "a file of that name");
}

#[test]
fn a_group_without_redundancy_does_not_join_others_that_have_some() {
    let groups = |text: &str| parse(&words(text), None, None).expect(text);
    let alone = unprotected(&groups("/d/single:1G"), 1).expect("a lone device");
    assert!(alone.contains("/d/single would be a group of its own without redundancy") && alone.contains("'spare /d/single'"), "{alone}");
    assert!(unprotected(&groups("mirror /d/a /d/b linear /d/c /d/d"), 1).is_some_and(|why| why.starts_with("/d/c /d/d would")));
    assert_eq!(unprotected(&groups("/d/single"), 0), None);
    for fine in ["mirror /d/a /d/b", "spare /d/a", "cache /d/a", "log /d/a"] {
        assert_eq!(unprotected(&groups(fine), 1), None, "{fine}");
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
