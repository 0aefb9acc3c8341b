//! As many notes as fit; labels without notes have the same bytes as before notes existed.

use millpond_block::MemberId;

use super::*;
use crate::{Class, Column, Group, Label, Layout, Member, MemberState, PoolId, SegmentId, Shape};

fn label(devices: u16) -> Label {
    let member = |at: u16| Member {
        device: DeviceId(u64::from(at) + 1),
        extents: 4,
        state: MemberState::Present,
        replacement: None,
        leaving: false,
        down_since: 0,
    };
    let columns = (0..devices).map(MemberId).map(|member| Column { member, first: 0, extents: 4 }).collect();
    let group = Group { class: Class::Data, layout: Layout::Linear, first: SegmentId(0), columns };
    let shape = Shape {
        generation: 1,
        extent_bytes: 1 << 20,
        chunk_units: 512,
        next: SegmentId(u32::from(devices) * 4),
        members: (0..devices).map(member).collect(),
        groups: vec![group],
    };
    Label {
        pool: PoolId([7; 16]),
        name: "tank".into(),
        device: DeviceId(1),
        member: MemberId(0),
        shape,
        features: crate::FeatureSet::default(),
        feature_names: crate::FeatureNames::default(),
        notes: Vec::new(),
    }
}

fn note(device: u64, path: &str) -> DeviceNote {
    DeviceNote { device: DeviceId(device), size: 1 << 30, path: path.into(), serial: "WX11".into() }
}

#[test]
fn notes_are_read_as_they_were_written_as_many_as_fit() {
    let (few, path) = (label(2), "/dev/disk/by-id/".repeat(8));
    let both = [note(1, &path), note(2, "/dev/b")];
    let noted = few.clone().with_notes(&both);
    assert_eq!(noted.notes, both);
    assert_eq!(Label::decode(&noted.encode()), Ok(noted));
    // the shape has priority
    let notes: Vec<DeviceNote> = (1..=64).map(|device| note(device, &path)).collect();
    let many = label(64).with_notes(&notes);
    assert!(!many.notes.is_empty() && many.notes.len() < 64, "{}", many.notes.len());
    assert_eq!(Label::decode(&many.encode()), Ok(many.clone()));
    // a note that is too long is skipped, the next one is kept
    let long = [note(1, &"x".repeat(TEXT_MAX + 1)), note(2, "/dev/b")];
    assert_eq!(few.clone().with_notes(&long).notes, [note(2, "/dev/b")]);
    // without notes the label has zeroes after the shape, as before notes existed
    assert_eq!(Label::decode(&few.encode()), Ok(few));
}
