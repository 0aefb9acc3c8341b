//! Segments for map nodes and checkpoint objects on special devices: each has a replica on a data
//! device (beside a bucket, a device of the log), so that a pool can be imported without the special devices
//! (`docs/decisions/0013-lost-special.md`).
//!
//! They take half of the special devices, and at most an eighth of each data device. Every group
//! has only one data device, so that the rest of it without special devices is a plain run of
//! extents.

use std::collections::BTreeMap;

use millpond_block::MemberId;
use millpond_format::{Class, Column, Layout, MAX_COPIES, Shape};

use super::NewGroup;

/// Most data devices that hold replicas: each takes a group of the label.
const MOST_DEVICES: usize = 8;
/// Most of a data device that holds replicas, as 1/N.
const SHARE: u32 = 8;

/// Groups of segments for nodes, and the number of extents that they take at the ends of members.
#[derive(Debug, Default)]
pub(super) struct NodeRows {
    groups: Vec<(Layout, Vec<Column>)>,
    taken: BTreeMap<MemberId, u32>,
}

impl NodeRows {
    /// Plans segments over the devices of groups that are added together.
    pub(super) fn plan(shape: &Shape, groups: &[NewGroup]) -> NodeRows {
        let extents = |at: MemberId| shape.member(at).map_or(0, |m| m.extents);
        let of = |class: Class| groups.iter().filter(move |group| group.class == class);
        let has_bucket = shape.has_bucket() || groups.iter().any(|group| group.layout.is_bucket());
        let local = if has_bucket { Class::Log } else { Class::Data };
        let mut data: Vec<MemberId> = of(local).flat_map(NewGroup::members).collect();
        data.sort_by_key(|at| (std::cmp::Reverse(extents(*at)), *at));
        data.truncate(MOST_DEVICES);
        let mut rows = NodeRows::default();
        for group in of(Class::Special) {
            let copies = match group.layout {
                Layout::Mirror { copies } => usize::from(copies.min(MAX_COPIES - 1)),
                _ => 1,
            };
            let mut room: BTreeMap<MemberId, u32> = group.members().map(|at| (at, extents(at) / 2)).collect();
            let whole: u32 = room.values().sum::<u32>() / u32::try_from(copies.max(1)).unwrap_or(1);
            let fair = whole.div_ceil(u32::try_from(data.len().max(1)).unwrap_or(1));
            for at in &data {
                let mut order: Vec<MemberId> = room.keys().copied().collect();
                order.sort_by_key(|special| (std::cmp::Reverse(room.get(special).copied()), *special));
                order.truncate(copies);
                let least = order.iter().filter_map(|special| room.get(special)).min().copied().unwrap_or(0);
                let own = (extents(*at) / SHARE).saturating_sub(rows.taken(*at));
                let share = fair.min(least).min(own);
                if share == 0 || order.len() < copies {
                    continue;
                }
                room.iter_mut().filter(|(special, _)| order.contains(special)).for_each(|(_, left)| *left -= share);
                order.push(*at);
                let columns = order.iter().map(|member| {
                    let taken = rows.taken.entry(*member).or_default();
                    *taken += share;
                    Column { member: *member, first: extents(*member) - *taken, extents: share }
                });
                let columns = columns.collect();
                rows.groups.push((Layout::Mirror { copies: copies as u16 + 1 }, columns));
            }
        }
        rows
    }

    /// Returns the number of extents at the end of a member that other groups cannot use.
    pub(super) fn taken(&self, member: MemberId) -> u32 {
        self.taken.get(&member).copied().unwrap_or(0)
    }

    /// Adds the groups to the shape.
    pub(super) fn add_to(self, shape: &mut Shape) {
        self.groups.into_iter().for_each(|(layout, columns)| shape.add(Class::Special, layout, columns));
    }
}
