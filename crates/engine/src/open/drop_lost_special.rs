//! The shape of a pool that goes on without lost special devices.
//!
//! Segments that have a replica on another device stay, with fewer copies; the others become gaps,
//! whose ids are never used again. Blocks that were only there read as errors until they are
//! overwritten.

use std::collections::BTreeSet;

use millpond_block::MemberId;
use millpond_format::{Class, Group, Layout, MemberState, SegmentId, Shape};

use crate::store::runs;

/// Returns the shape without the lost members, if these are special and a label has room for the
/// result.
pub(super) fn drop_lost_special(shape: &Shape, lost: &BTreeSet<MemberId>) -> Option<Shape> {
    let mut groups: Vec<Group> = Vec::new();
    for group in &shape.groups {
        if !group.columns.iter().any(|column| lost.contains(&column.member)) {
            groups.push(group.clone());
            continue;
        }
        if group.class != Class::Special {
            return None;
        }
        let mut rows: Vec<(SegmentId, Vec<(MemberId, u32)>)> = Vec::new();
        let mut id = group.first.0;
        group.for_each_row(|parts| {
            let left: Vec<(MemberId, u32)> = parts.iter().copied().filter(|(member, _)| !lost.contains(member)).collect();
            let whole = matches!(group.layout, Layout::Mirror { .. }) || left.len() == parts.len();
            if whole && !left.is_empty() {
                rows.push((SegmentId(id), left));
            }
            id += 1;
        });
        groups.extend(runs(group, rows.iter()));
    }
    for group in &mut groups {
        if group.layout == (Layout::Mirror { copies: 1 }) {
            group.layout = Layout::Linear;
        }
    }
    let mut after = Shape { groups, ..shape.clone() };
    for (at, known) in after.numbered_mut() {
        if lost.contains(&at) {
            (known.state, known.replacement, known.leaving) = (MemberState::Gone, None, false);
        }
    }
    after.fits().then_some(after)
}
