//! Histories that labels tell apart, and those that they do not.

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
