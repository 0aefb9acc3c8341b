//! Foreign content is recognised.

use millpond_block::MemberId;
use millpond_format::{Class, Column, DeviceId, Group, Layout, Member, MemberState, PoolId, SegmentId, Shape};

use super::*;

#[test]
fn every_magic_is_found_where_it_stands() {
    for magic in MAGICS {
        let mut start = vec![0; PROBED];
        start[magic.offset..magic.offset + magic.bytes.len()].copy_from_slice(magic.bytes);
        assert_eq!(name(&start).as_deref(), Some(magic.name));
    }
}

#[test]
fn a_device_of_zfs_is_known_by_any_of_its_uberblocks() {
    for (nth, magic) in [(0, ZFS_MAGICS[0]), (127, ZFS_MAGICS[1])] {
        let mut start = vec![0; PROBED];
        let at = ZFS_UBERBLOCKS.0 + nth * ZFS_UBERBLOCK;
        start[at..at + magic.len()].copy_from_slice(&magic);
        assert_eq!(name(&start).as_deref(), Some("a member of a ZFS pool"));
    }
}

#[test]
fn a_blank_or_short_device_holds_nothing() {
    assert_eq!(name(&[]), None);
    assert_eq!(name(&[0; 100]), None);
    assert_eq!(name(&vec![0; PROBED]), None);
}

fn label() -> Label {
    let group = Group {
        class: Class::Data,
        layout: Layout::Linear,
        first: SegmentId(0),
        columns: vec![Column { member: MemberId(0), first: 0, extents: 10 }],
    };
    let member = Member { device: DeviceId(1), extents: 10, state: MemberState::Present, replacement: None, leaving: false, down_since: 0 };
    let shape =
        Shape { generation: 1, extent_bytes: 1 << 20, chunk_units: 512, next: SegmentId(10), members: vec![member], groups: vec![group] };
    Label {
        pool: PoolId([7; 16]),
        name: "tank".to_owned(),
        device: DeviceId(1),
        member: MemberId(0),
        shape,
        features: millpond_format::FeatureSet::default(),
        feature_names: millpond_format::FeatureNames::default(),
        notes: Vec::new(),
    }
}

#[test]
fn our_own_label_names_its_pool_even_when_damaged() {
    let mut sector = label().encode();
    assert!(name(&sector).is_some_and(|name| name.contains("'tank'")));
    sector[100] ^= 1;
    assert!(name(&sector).is_some_and(|name| name.contains("damaged")));
}

/// The first label may have been overwritten, and the second one be of a later version, or rotten.
#[test]
fn a_second_label_is_found_whatever_its_version() {
    let (dir, size) = (tempfile::tempdir().expect("tempdir"), 4 << 20);
    let holds_second = |sector: &[u8]| {
        let path = dir.path().join("d");
        let file = File::create(&path).expect("create");
        file.set_len(size).expect("size");
        file.write_all_at(sector, millpond_format::second_area(size)).expect("write");
        holds(&path).expect("read")
    };
    let (own, mut rotten) = (label(), label().encode());
    assert!(holds_second(&own.encode()).is_some_and(|name| name.contains("'tank'")));
    let features = millpond_format::FeatureSet { incompat: 1 << 31, ..own.features };
    let feature_names = millpond_format::FeatureNames::read(b"dedup (since 9.4.0)");
    let later = Label { features, feature_names, ..own }.encode();
    assert!(holds_second(&later).is_some_and(|name| name.contains("newer pool label") && name.contains("dedup (since 9.4.0)")));
    rotten[100] ^= 1;
    assert!(holds_second(&rotten).is_some_and(|name| name.contains("damaged")));
    assert_eq!(holds_second(&[0; 4096]), None);
}
