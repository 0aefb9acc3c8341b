//! Histories that labels tell apart, and those that they do not; and groups in a bucket.

use super::*;

/// A mirror of three devices; member `at` in `states[at]`, down since the generation given there.
fn mirror(generation: u64, states: [(MemberState, u64); 3]) -> Shape {
    let member = |(at, (state, down_since)): (u64, (MemberState, u64))| Member {
        device: DeviceId(at),
        extents: 4,
        state,
        replacement: None,
        leaving: false,
        down_since,
    };
    let columns = (0..3).map(MemberId).map(|member| Column { member, first: 0, extents: 4 }).collect();
    let group = Group { class: Class::Data, layout: Layout::Mirror { copies: 3 }, first: SegmentId(0), columns };
    let members = (1..).zip(states).map(member).collect();
    Shape { generation, extent_bytes: 1 << 20, chunk_units: 512, next: SegmentId(4), members, groups: vec![group] }
}

const PRESENT: (MemberState, u64) = (MemberState::Present, 0);

fn down(since: u64) -> (MemberState, u64) {
    (MemberState::Down, since)
}

#[test]
fn a_member_that_went_down_is_apart_when_its_label_gives_up_another_one() {
    let theirs = mirror(2, [down(2), PRESENT, PRESENT]);
    let ours = |first: (MemberState, u64), since: u64| mirror(9, [first, PRESENT, down(since)]);
    // the other one never went down here, did so earlier, or later than this member
    assert!(ours(PRESENT, 3).parted_from(&theirs, MemberId(2)));
    assert!(ours((MemberState::Present, 1), 3).parted_from(&theirs, MemberId(2)));
    assert!(ours(down(4), 2).parted_from(&theirs, MemberId(2)));
    // it went down in that generation, and this member later
    assert!(!ours(down(2), 3).parted_from(&theirs, MemberId(2)));
    assert!(!ours((MemberState::Present, 2), 3).parted_from(&theirs, MemberId(2)));
    // a label that lists all members, that of a member in service, and one that is not older
    assert!(!ours(PRESENT, 3).parted_from(&mirror(2, [PRESENT; 3]), MemberId(2)));
    assert!(!ours(PRESENT, 3).parted_from(&theirs, MemberId(1)));
    assert!(!mirror(2, [PRESENT, PRESENT, down(2)]).parted_from(&theirs, MemberId(2)));
}

#[test]
fn a_member_that_could_not_be_spared_yet_is_apart_whatever_became_of_the_others() {
    // here both others have been down since, in later generations than in the history of the third
    let ours = |since: u64| mirror(9, [down(7), (MemberState::Present, 4), down(since)]);
    let alone = mirror(2, [down(2), down(2), PRESENT]);
    let filling = mirror(3, [down(2), (MemberState::Filling, 2), PRESENT]);
    // another one is filled, is complete, and then the third goes down: three changes
    assert!(ours(3).parted_from(&alone, MemberId(2)) && ours(4).parted_from(&alone, MemberId(2)));
    assert!(!ours(5).parted_from(&alone, MemberId(2)));
    assert!(ours(4).parted_from(&filling, MemberId(2)) && !ours(5).parted_from(&filling, MemberId(2)));
    // a device that replaces one that is down, or a removal, is complete in one change, too
    let mut replaced = alone.clone();
    replaced.members[0].replacement = Some(DeviceId(9));
    assert!(ours(3).parted_from(&replaced, MemberId(2)) && !ours(4).parted_from(&replaced, MemberId(2)));
    let mut leaving = alone.clone();
    leaving.members[1].leaving = true;
    assert!(ours(3).parted_from(&leaving, MemberId(2)) && !ours(4).parted_from(&leaving, MemberId(2)));
    // with another complete one it may go down at once
    let two = mirror(3, [down(2), (MemberState::Present, 2), PRESENT]);
    assert!(!ours(4).parted_from(&two, MemberId(2)));
}

#[test]
fn the_last_member_of_a_special_group_may_go_down_after_one_change() {
    // the special devices of member 0's group were lost: the rest of the group is on it alone
    let mut theirs = mirror(4, [PRESENT, PRESENT, PRESENT]);
    let columns = vec![Column { member: MemberId(0), first: 4, extents: 1 }];
    theirs.groups.push(Group { class: Class::Special, layout: Layout::Linear, first: SegmentId(4), columns });
    let ours = |since: u64| mirror(9, [down(since), PRESENT, PRESENT]);
    assert!(ours(5).parted_from(&theirs, MemberId(0)) && !ours(6).parted_from(&theirs, MemberId(0)));
}

#[test]
fn a_loss_that_only_one_shape_knows_tells_histories_apart() {
    // the other history lost member 1, and replaced it
    let theirs = mirror(4, [PRESENT, (MemberState::Present, 2), PRESENT]);
    assert!(mirror(6, [down(2), PRESENT, PRESENT]).parted_from(&theirs, MemberId(0)));
    assert!(mirror(6, [down(5), PRESENT, PRESENT]).parted_from(&theirs, MemberId(0)));
    assert!(!mirror(6, [down(5), (MemberState::Present, 2), PRESENT]).parted_from(&theirs, MemberId(0)));
    // this one lost member 0 in a generation of which the other should know it
    let theirs = mirror(5, [PRESENT, PRESENT, PRESENT]);
    assert!(mirror(9, [(MemberState::Present, 3), PRESENT, down(7)]).parted_from(&theirs, MemberId(2)));
    assert!(mirror(9, [(MemberState::Present, 4), PRESENT, down(7)]).parted_from(&theirs, MemberId(2)));
    // a power cut may leave a label of a generation on one device that the pool used anew
    assert!(!mirror(9, [(MemberState::Present, 5), PRESENT, down(7)]).parted_from(&theirs, MemberId(2)));
    assert!(!mirror(9, [(MemberState::Present, 6), PRESENT, down(7)]).parted_from(&theirs, MemberId(2)));
}

/// A pool with its data in a bucket, a log on two devices, and a cache.
fn with_bucket(segments: u32) -> Shape {
    let mut shape = mirror(1, [PRESENT; 3]);
    (shape.groups, shape.next) = (Vec::new(), SegmentId(0));
    let column = |member| Column { member: MemberId(member), first: 0, extents: 4 };
    shape.add(Class::Data, Layout::Bucket { segments }, Vec::new());
    shape.add(Class::Log, Layout::Mirror { copies: 2 }, vec![column(0), column(1)]);
    shape.add(Class::Cache, Layout::Linear, vec![column(2)]);
    shape
}

fn decoded(shape: &Shape, change: impl Fn(&mut [u8])) -> Result<Shape, FormatError> {
    let mut e = Encoder::default();
    shape.encode(&mut e);
    let mut bytes = e.into_bytes();
    change(&mut bytes);
    Shape::decode(&mut Decoder::new(&bytes))
}

#[test]
fn segments_in_a_bucket_have_no_columns() {
    let shape = with_bucket(9);
    assert!(shape.fits() && shape.has_bucket());
    assert_eq!((shape.local_class(), mirror(1, [PRESENT; 3]).local_class()), (Class::Log, Class::Data));
    assert_eq!(shape.groups.iter().map(|group| (group.first.0, group.rows())).collect::<Vec<_>>(), [(0, 9), (9, 4), (13, 0)]);
    let mut rows = 0;
    shape.groups[0].for_each_row(|parts| {
        assert!(parts.is_empty());
        rows += 1;
    });
    assert_eq!(rows, 9);
    assert_eq!(decoded(&shape, |_| {}), Ok(shape));
    assert!(with_bucket(MAX_BUCKET_SEGMENTS).fits());
}

#[test]
fn a_bucket_stays_when_a_cache_leaves() {
    let mut shape = with_bucket(9);
    shape.drop_auxiliary(MemberId(2));
    assert_eq!(shape.groups.iter().map(|group| group.class).collect::<Vec<_>>(), [Class::Data, Class::Log]);
    assert!(shape.fits() && shape.has_bucket());
}

#[test]
fn a_bucket_is_refused_where_it_does_not_fit() {
    let refused = |change: &dyn Fn(&mut Shape)| {
        let mut shape = with_bucket(9);
        change(&mut shape);
        shape.check()
    };
    let field = |field| Err(FormatError::Field(field));
    assert_eq!(refused(&|_| {}), Ok(()));
    assert_eq!(refused(&|shape| shape.groups[0].layout = Layout::Bucket { segments: 0 }), field("layout"));
    assert_eq!(refused(&|shape| shape.groups[0].layout = Layout::Bucket { segments: MAX_BUCKET_SEGMENTS + 1 }), field("layout"));
    assert_eq!(refused(&|shape| shape.groups[0].layout = Layout::Bucket { segments: 10 }), field("segments"), "into the next group");
    assert_eq!(refused(&|shape| shape.groups[0].class = Class::Special), field("layout"));
    assert_eq!(refused(&|shape| shape.groups[0].columns = shape.groups[1].columns.clone()), field("layout"));
    assert_eq!(refused(&|shape| shape.extent_bytes = 2 * MAX_OBJECT_BYTES), field("layout"));
    assert_eq!(refused(&|shape| shape.groups[1].class = Class::Data), field("class"), "data on devices, too");
    // class and layout of the first group follow the members; its width has to be 0
    let first = 28 + 3 * 29 + 4;
    assert_eq!(decoded(&with_bucket(9), |bytes| bytes[first + 2] = 1).map(|_| ()), field("layout"));
    assert_eq!(decoded(&with_bucket(9), |bytes| bytes[first + 1] = 6).map(|_| ()), field("layout"));
    assert_eq!(decoded(&with_bucket(9), |bytes| bytes[first + 1] = 0).map(|_| ()), field("segments"), "linear, without columns");
}
