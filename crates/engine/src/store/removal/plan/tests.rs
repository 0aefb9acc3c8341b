//! Tests which extents are joined to which segments.

use millpond_block::MemberId;
use millpond_format::DeviceId;

use super::*;
use millpond_testing::Random;

const MIRROR: Layout = Layout::Mirror { copies: 2 };

/// A group: class, layout, and for each column the member, its first extent, and the number of
/// extents.
type Planned<'a> = (Class, Layout, &'a [(u16, u32, u32)]);

/// Returns the shape of a pool over devices with these numbers of extents.
fn shape(extents: &[u32], groups: &[Planned<'_>]) -> Shape {
    let member = |(at, extents): (usize, &u32)| Member {
        device: DeviceId(at as u64 + 1),
        extents: *extents,
        state: MemberState::Present,
        replacement: None,
        leaving: false,
        down_since: 0,
    };
    let members = extents.iter().enumerate().map(member).collect();
    let mut shape = Shape { generation: 1, extent_bytes: 1 << 20, chunk_units: 512, next: SegmentId(0), members, groups: Vec::new() };
    for (class, layout, columns) in groups {
        let columns = columns.iter().map(|(member, first, extents)| Column { member: MemberId(*member), first: *first, extents: *extents });
        shape.add(*class, *layout, columns.collect());
    }
    shape
}

/// Returns the classes and members of the segments that a rejoin makes.
fn joined(shape: &Shape) -> Vec<(Class, Vec<u16>)> {
    let known = |group: &&Group| shape.groups.iter().all(|before| before.first != group.first);
    let after = Removal::plan_rejoin(shape, |_| true).map(|removal| removal.shape.groups).unwrap_or_default();
    after.iter().filter(known).map(|group| (group.class, group.columns.iter().map(|column| column.member.0).collect())).collect()
}

#[test]
fn extents_of_a_mirror_become_rows_of_it() {
    let shape = shape(&[64, 64], &[(Class::Data, MIRROR, &[(0, 0, 32), (1, 0, 32)])]);
    assert_eq!(joined(&shape), [(Class::Data, vec![0, 1])]);
}

/// Extents left on a device for the log never become data, nor the other way round.
#[test]
fn devices_for_the_log_take_no_data() {
    let data = (Class::Data, MIRROR, &[(0u16, 0u32, 64u32), (1, 0, 64)][..]);
    let log = (Class::Log, Layout::Linear, &[(2, 0, 16), (3, 0, 16)][..]);
    assert_eq!(joined(&shape(&[64; 4], &[data, log])), []);
    let data = (Class::Data, MIRROR, &[(0, 0, 32), (1, 0, 32)][..]);
    let log = (Class::Log, MIRROR, &[(2, 0, 16), (3, 0, 16)][..]);
    let both = shape(&[64; 4], &[data, log]);
    assert_eq!(joined(&both), [(Class::Data, vec![0, 1])]);
    let rest = Removal::plan_rejoin(&both, |_| true).unwrap().shape;
    assert_eq!(joined(&rest), [(Class::Log, vec![2, 3])]);
}

/// Extents left on the longer one of two special devices never hold data.
#[test]
fn uneven_special_devices_take_no_data() {
    let data = (Class::Data, MIRROR, &[(0u16, 0u32, 64u32), (1, 0, 64)][..]);
    let special = (Class::Special, MIRROR, &[(2, 0, 64), (3, 0, 64)][..]);
    assert_eq!(joined(&shape(&[64, 96, 64, 128], &[data, special])), []);
}

/// With parity the log is on the data devices: extents left by either may become the other.
#[test]
fn the_log_of_a_pool_with_parity_shares_its_devices() {
    let parity = Layout::Parity { width: 3, parity: 1, unit: 65536 };
    let data = (Class::Data, parity, &[(0u16, 8u32, 56u32), (1, 8, 24), (2, 8, 56)][..]);
    let log = (Class::Log, MIRROR, &[(0, 0, 8), (2, 0, 8)][..]);
    assert!(!joined(&shape(&[96; 3], &[data, log])).is_empty());
}

/// The last devices of a log stay where others need it: stripes with parity are written whole.
#[test]
fn the_last_log_does_not_leave_parity() {
    let gone = |data: Layout, devices: u16, member: u16| {
        let columns: Vec<(u16, u32, u32)> = (0..3).map(|at| (at, 0, 64)).collect();
        let logs: Vec<(u16, u32, u32)> = (3..3 + devices).map(|at| (at, 0, 64)).collect();
        let shape = shape(&vec![64; 3 + usize::from(devices)], &[(Class::Data, data, &columns), (Class::Log, MIRROR, &logs)]);
        Removal::plan(&shape, MemberId(member)).map(|removal| removal.members.into_iter().map(|at| at.0).collect::<Vec<_>>())
    };
    let parity = Layout::Parity { width: 3, parity: 1, unit: 65536 };
    // a mirror of two leaves as a whole
    assert_eq!(gone(parity, 2, 3), None);
    assert_eq!(gone(parity, 3, 3), Some(vec![3]));
    assert_eq!(gone(Layout::Linear, 2, 3), Some(vec![3, 4]));
}

/// Columns are longer than their segments where one device is shorter than the others: the extents
/// between segments are used, too.
#[test]
fn extents_between_rows_become_rows() {
    let three = Layout::Mirror { copies: 3 };
    let first = (Class::Data, three, &[(0u16, 0u32, 4u32), (2, 0, 12), (3, 0, 12)][..]);
    let second = (Class::Data, three, &[(0, 4, 4), (2, 12, 12), (3, 12, 12)][..]);
    let shape = shape(&[8, 8, 24, 24], &[first, second]);
    assert_eq!(shape.groups.iter().map(Group::rows).sum::<u64>(), 8);
    assert_eq!(joined(&shape), [(Class::Data, vec![0, 1, 2, 3])]);
    let after = Removal::plan_rejoin(&shape, |_| true).unwrap().shape;
    assert_eq!(after.groups.iter().map(Group::rows).sum::<u64>(), 16);
    assert!(unused_extents(&after).is_empty());
    // where a group is widened in part, the rest of its columns stays
    let after = Removal::plan_rejoin(&shape, |gone| gone.len() <= 5).unwrap().shape;
    let of_third: Vec<(u32, u32)> =
        after.groups.iter().flat_map(|group| &group.columns).filter(|c| c.member == MemberId(2)).map(|c| (c.first, c.extents)).collect();
    assert_eq!(of_third, [(13, 11), (0, 13)]);
}

/// A count and a plan agree on the extents that can be joined.
#[test]
fn a_look_finds_what_a_plan_joins() {
    let parity = |width| Layout::Parity { width, parity: 1, unit: 65536 };
    let stays = (Class::Data, parity(3), &[(0u16, 0u32, 32u32), (1, 0, 32), (2, 0, 32)][..]);
    let without = (Class::Data, parity(2), &[(0, 32, 32), (2, 32, 32)][..]);
    let shape = shape(&[64; 3], &[stays, without]);
    let (alone, kinds) = joinable(&shape);
    let kinds: Vec<Vec<u32>> = kinds.iter().map(|kind| kind.iter().map(|group| group.first.0).collect()).collect();
    assert_eq!((alone, kinds), (false, vec![vec![32]]));
    assert_eq!(joined(&shape), [(Class::Data, vec![0, 1, 2])]);
}

/// The computed number of segments equals their count.
#[test]
fn rows_are_counted_without_looking_at_each() {
    let mut random = Random::new(1);
    let mut below = |n| random.below(n);
    for _ in 0..500 {
        let width = below(4) as u16 + 2;
        let columns =
            (0..width + below(3) as u16).map(MemberId).map(|member| Column { member, first: 0, extents: below(40) as u32 }).collect();
        let layout = if width < 4 { Layout::Mirror { copies: width } } else { Layout::Parity { width, parity: 1, unit: 4096 } };
        let group = Group { class: Class::Data, layout, first: SegmentId(below(9) as u32), columns };
        assert_eq!(u64::from(count_rows(&group)), group.rows(), "{group:?}");
    }
}
