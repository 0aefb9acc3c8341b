//! Files beside an image, and logical volumes in one volume group.
use std::os::unix::fs::symlink;

use super::*;

/// A directory like that of a volume group: `VG/LV -> ../dm-N`.
#[test]
fn a_logical_volume_lies_in_its_group() {
    let dir = tempfile::tempdir().expect("a directory");
    let dev = dir.path().canonicalize().expect("a path");
    let (group, other) = (dev.join("vg"), dev.join("other"));
    for path in [&group, &other] {
        std::fs::create_dir(path).expect("a directory");
    }
    std::fs::write(dev.join("dm-3"), "").expect("a file");
    std::fs::write(dev.join("secret"), "").expect("a file");
    symlink("../dm-3", group.join("base")).expect("a link");
    symlink("../dm-3", other.join("base")).expect("a link");
    symlink("../secret", group.join("leads-away")).expect("a link");
    let device = |real: &Path| real.starts_with(&dev) && !real.ends_with("secret");
    assert!(lies_in(&group.join("base"), &group, device));
    // the same link outside a directory of devices is refused: an archive can contain links
    assert!(!lies_in(&group.join("base"), &group, |_| false));
    assert!(!lies_in(&group.join("base"), &group, |real| real == group));
    for named in ["../dm-3", "../other/base", "../secret", "leads-away", "../vg/../dm-3", "missing", ".."] {
        assert!(!lies_in(&group.join(named), &group, device), "{named}");
    }
    // another path to the same directory
    assert!(lies_in(&dev.join("other/../vg/base"), &group, device));
    std::fs::write(group.join("plain"), "").expect("a file");
    assert!(lies_in(&group.join("plain"), &group, |_| false), "a plain file needs no device");
}

#[test]
fn devices_are_below_dev() {
    assert!(is_device(Path::new("/dev")));
    assert!(!is_device(Path::new("/dev/null")), "a character device");
    assert!(!is_device(Path::new("/etc")) && !is_device(Path::new("/dev/none")));
}
