//! Labels are found at either end, grouped by pool, and gone after a wipe.

use super::*;
use millpond_format::Layout;

fn label(pool: u8, member: u16, members: usize) -> Label {
    Label {
        pool: PoolId([pool; 16]),
        name: format!("pool{pool}"),
        member,
        layout: Layout::Linear,
        extent_bytes: 1 << 20,
        chunk_units: 512,
        extents: vec![4; members],
    }
}

fn device(path: &Path, label: Option<&Label>, at_end_only: bool) {
    let size = 4 * AREA_BYTES;
    let file = File::create(path).expect("create");
    // Ragged on purpose: the grain is rounded down.
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
    assert_eq!(found[0].complete(), Some(vec![path("z"), path("a")]));
    assert_eq!((found[1].complete(), found[1].missing()), (None, vec![0]));
    assert_eq!(scan(&[path("b")]).len(), 1);
    assert_eq!(scan(&[path("none")]), []);
}

#[test]
fn a_wiped_device_has_no_label_and_no_root() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("d");
    device(&path, Some(&label(3, 0, 1)), false);
    assert!(read(&path).expect("read").is_some());
    wipe(&path).expect("wipe");
    assert_eq!(read(&path).expect("read"), None);
    assert_eq!(ring(&[path], PoolId([3; 16])).expect("ring"), []);
}
