//! Labels are found at either end, grouped by pool, and gone after a wipe.

use millpond_block::MemberId;
use millpond_format::{Class, Column, DeviceId, Group, Layout, Member, MemberState, SegmentId, Shape};

use super::*;

fn label(pool: u8, member: u16, members: u16) -> Label {
    let device = |at: u16| DeviceId(1 << 16 | u64::from(at));
    let group = Group {
        class: Class::Data,
        layout: Layout::Linear,
        first: SegmentId(0),
        columns: (0..members).map(MemberId).map(|member| Column { member, first: 0, extents: 4 }).collect(),
    };
    let shape = Shape {
        generation: 1,
        extent_bytes: 1 << 20,
        chunk_units: 512,
        next: SegmentId(u32::from(members) * 4),
        members: (0..members)
            .map(|at| Member {
                device: device(at),
                extents: 4,
                state: MemberState::Present,
                replacement: None,
                leaving: false,
                down_since: 0,
            })
            .collect(),
        groups: vec![group],
    };
    Label {
        pool: PoolId([pool; 16]),
        name: format!("pool{pool}"),
        device: device(member),
        member: MemberId(member),
        shape,
        features: millpond_format::FeatureSet::default(),
        feature_names: millpond_format::FeatureNames::default(),
        notes: Vec::new(),
    }
}

/// Returns every pool found on the given files, or on files directly in the given directories.
fn scan(search: &[PathBuf]) -> Vec<Labelled> {
    let looked = search.iter().flat_map(|path| candidates(path).unwrap_or_default()).filter_map(|path| look(&path).ok().flatten());
    Labelled::group(looked.collect())
}

fn device(path: &Path, label: Option<&Label>, at_end_only: bool) {
    let size = 4 * AREA_BYTES;
    let file = File::create(path).expect("create");
    // An odd size: sizes are rounded down to the grain.
    file.set_len(size + 100).expect("size");
    if let Some(label) = label {
        file.write_all_at(&label.encode(), size - AREA_BYTES).expect("write");
        if !at_end_only {
            file.write_all_at(&label.encode(), 0).expect("write");
        }
    }
}

#[test]
fn pools_are_put_together_from_their_members() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = |name: &str| dir.path().join(name);
    device(&path("z"), Some(&label(1, 0, 2)), false);
    device(&path("a"), Some(&label(1, 1, 2)), true);
    device(&path("b"), Some(&label(2, 1, 2)), false);
    device(&path("c"), None, false);
    fs::write(path("small"), b"x").expect("write");
    let found = scan(&[dir.path().to_owned()]);
    assert_eq!(found.len(), 2);
    assert_eq!((found[0].devices(), found[0].missing.len()), (vec![path("z"), path("a")], 0));
    assert_eq!((found[1].devices(), &found[1].missing), (vec![path("b")], &vec![MemberId(0)]));
    assert_eq!(scan(&[path("b")]).len(), 1);
    assert_eq!(scan(&[path("none")]), []);
}

#[test]
fn a_wiped_device_has_no_label_and_no_root() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("d");
    device(&path, Some(&label(3, 0, 1)), false);
    assert!(read(&path).expect("read").is_some());
    wipe(&path, PoolId([4; 16]), |_| true).expect("left alone");
    assert!(read(&path).expect("read").is_some());
    assert_eq!(wipe(&path, PoolId([3; 16]), |_| true).expect("wipe"), Wiped::Done);
    assert_eq!(read(&path).expect("read"), None);
    let (file, size) = open(&path).expect("open");
    for area in areas(size) {
        let mut all = vec![1; AREA_BYTES as usize];
        file.read_exact_at(&mut all, area).expect("read");
        assert!(all.iter().all(|byte| *byte == 0), "something of it is left");
    }
}

#[test]
fn both_labels_of_a_disk_of_any_size_are_found_and_wiped() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("d");
    // most disks are no multiple of a mebibyte: the second area is the last whole mebibyte
    let file = File::create_new(&path).expect("create");
    file.set_len(4 * AREA_BYTES + 512 * 1024).expect("size");
    file.write_all_at(&label(3, 0, 1).encode(), 3 * AREA_BYTES).expect("write");
    assert_eq!(read(&path).expect("read").map(|label| label.pool), Some(PoolId([3; 16])), "the first one was torn");
    assert_eq!(wipe(&path, PoolId([3; 16]), |_| true).expect("wipe"), Wiped::Done);
    assert_eq!(read(&path).expect("read"), None);
}

/// Returns the label as a later version writes it, with a feature that this one does not know.
fn newer(label: &Label) -> Label {
    let names = millpond_format::FeatureNames::read(b"dedup (since 9.4.0)");
    let features = millpond_format::FeatureSet { incompat: 1 << 31, ..label.features };
    Label { features, feature_names: names, ..label.clone() }
}

/// Writes the label of a later version over the first one.
fn upgrade_first(path: &Path, label: &Label) {
    let file = File::options().write(true).open(path).expect("open");
    file.write_all_at(&newer(label).encode(), 0).expect("write");
}

#[test]
fn a_first_label_of_a_later_version_hides_the_second_one() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("d");
    device(&path, Some(&label(3, 0, 1)), false);
    upgrade_first(&path, &label(3, 0, 1));
    assert_eq!(read(&path).expect("read"), None);
    let (pool, name, why) = of_other_program(&path).expect("read").expect("a label of a later version");
    assert_eq!((pool, name.as_str()), (PoolId([3; 16]), "pool3"));
    assert!(why.to_string().contains("dedup (since 9.4.0)"), "{why}");
}

/// A device of the pool that keeps its label is not reported as one without a label.
#[test]
fn a_label_of_a_later_version_is_not_wiped() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("d");
    device(&path, Some(&label(3, 0, 1)), false);
    upgrade_first(&path, &label(3, 0, 1));
    let refused = wipe(&path, PoolId([3; 16]), |_| true).expect_err("it keeps its label").to_string();
    assert!(refused.contains("newer version") && refused.contains("dedup (since 9.4.0)"), "{refused}");
    assert!(of_other_program(&path).expect("read").is_some());
    assert_eq!(wipe(&path, PoolId([4; 16]), |_| true).expect("left alone"), Wiped::Done, "it is of another pool");
}

/// A pool that this version may only read keeps its labels, too.
#[test]
fn a_label_with_features_that_writers_have_to_know_is_not_wiped() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("d");
    let names = millpond_format::FeatureNames::read(b"trees (since 9.4.0)");
    let features = millpond_format::FeatureSet { ro_compat: 1 << 31, ..millpond_format::FeatureSet::default() };
    let label = Label { features, feature_names: names, ..label(3, 0, 1) };
    device(&path, Some(&label), false);
    let refused = wipe(&path, PoolId([3; 16]), |_| true).expect_err("it keeps its label").to_string();
    assert!(refused.contains("newer version") && refused.contains("trees (since 9.4.0)"), "{refused}");
    assert_eq!(read(&path).expect("read"), Some(label));
    let found = scan(std::slice::from_ref(&path));
    assert_eq!(found[0].unknown.iter().map(|(at, unknown)| (at, unknown.bits)).collect::<Vec<_>>(), [(&path, 1 << 31)]);
    assert_eq!(wipe(&path, PoolId([4; 16]), |_| true).expect("left alone"), Wiped::Done, "it is of another pool");
}

#[test]
fn a_disk_in_the_place_of_another_one_is_not_wiped() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("d");
    let (released, swapped) = (label(3, 0, 2), label(3, 1, 2));
    device(&path, Some(&swapped), false);
    let left = wipe(&path, PoolId([3; 16]), |id| id == released.device).expect("looks");
    assert_eq!(left, Wiped::Other(swapped.device));
    assert_eq!(read(&path).expect("read").map(|label| label.device), Some(swapped.device));
    device(&path, Some(&released), false);
    assert_eq!(wipe(&path, PoolId([3; 16]), |id| id == released.device).expect("wipe"), Wiped::Done);
    assert_eq!(read(&path).expect("read"), None);
}

#[test]
fn the_newest_label_says_who_belongs_to_a_pool() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = |name: &str| dir.path().join(name);
    device(&path("old"), Some(&label(1, 0, 2)), false);
    let mut newer = label(1, 1, 2);
    newer.shape.generation = 5;
    newer.shape.members[0].device = DeviceId(77);
    newer.shape.members[0].replacement = Some(DeviceId(78));
    device(&path("other"), Some(&newer), false);
    let mut replacement = Label { device: DeviceId(78), member: MemberId(0), ..newer.clone() };
    replacement.shape.generation = 4;
    device(&path("new"), Some(&replacement), false);
    let found = scan(&[dir.path().to_owned()]);
    // the replaced device is no member any more, and its replacement is known
    assert_eq!((found.len(), &found[0].members, &found[0].missing), (1, &vec![None, Some(path("other"))], &vec![MemberId(0)]));
    assert_eq!(found[0].replacements, [path("new")]);
}

#[test]
fn a_spare_is_known_in_its_new_place_before_its_label_says_so() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = |name: &str| dir.path().join(name);
    let mut before = label(1, 0, 3);
    before.shape.groups[0].columns.pop();
    let column = Column { member: MemberId(2), first: 0, extents: 4 };
    let spare = Group { class: Class::Spare, layout: Layout::Linear, first: SegmentId(8), columns: vec![column] };
    before.shape.groups.push(spare);
    let waiting = Label { member: MemberId(2), device: before.shape.members[2].device, ..before.clone() };
    device(&path("lost"), Some(&Label { member: MemberId(1), device: before.shape.members[1].device, ..before.clone() }), false);
    device(&path("spare"), Some(&waiting), false);
    let mut after = before.clone();
    after.shape.drop_auxiliary(MemberId(2));
    after.shape.generation = 2;
    (after.shape.members[1].device, after.shape.members[1].state) = (waiting.device, MemberState::Filling);
    device(&path("whole"), Some(&after), false);
    let found = scan(&[dir.path().to_owned()]);
    assert_eq!((found.len(), &found[0].missing), (1, &Vec::new()));
    assert_eq!(found[0].members, [Some(path("whole")), Some(path("spare")), None]);
}

/// A device counts as absent only if the host says so: a loop of links may lead to it again.
#[test]
fn a_path_that_cannot_be_looked_at_is_not_absent() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = |name: &str| dir.path().join(name);
    assert_eq!(candidates(&path("none")).expect("looks"), [] as [PathBuf; 0]);
    std::os::unix::fs::symlink(path("loop"), path("loop")).expect("link");
    assert!(!is_absent(&candidates(&path("loop")).expect_err("it is a loop")));
    assert!(is_absent(&look(&path("none")).expect_err("there is nothing")));
    // a disk that is offline
    for error in [rustix::io::Errno::NXIO, rustix::io::Errno::NODEV, rustix::io::Errno::IO] {
        assert!(!is_absent(&error.into()), "{error}");
    }
}

/// One area that cannot be read does not hide a label of a later version in the other.
#[test]
fn a_bad_area_does_not_hide_a_label_of_a_later_version() {
    let size = 4 * AREA_BYTES;
    let newer = newer(&label(3, 0, 1)).encode();
    let bad = || io::Error::from_raw_os_error(5);
    for bad_at in [0, second_area(size)] {
        let sector = |offset: u64| if offset == bad_at { Err(bad()) } else { Ok(newer) };
        let (pool, ..) = other_program(size, sector).expect("reads").expect("a label of a later version");
        assert_eq!(pool, PoolId([3; 16]));
        let nothing = |offset: u64| if offset == bad_at { Err(bad()) } else { Ok([0; SECTOR_BYTES]) };
        assert_eq!(other_program(size, nothing).expect_err("it may have one").raw_os_error(), Some(5));
    }
}
