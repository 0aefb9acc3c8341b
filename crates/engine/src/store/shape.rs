//! Shapes of pools: groups of segments over devices, and the members that devices become.

mod nodes;

use std::ops::Range;

use millpond_block::{DeviceGeometry, MemberId};
use millpond_format::{
    AREA_BYTES, Class, Column, DeviceId, Holder, Layout, MAX_BUCKET_SEGMENTS, MAX_COPIES, MAX_OBJECT_BYTES, MAX_PARITY_WIDTH, Member,
    MemberState, Shape, crc32c, second_area,
};

use self::nodes::NodeRows;
use super::LEAST_LOG;
use crate::{CommandError, GroupSpec, Invalid};

/// Share (1/N) of each device with parity that is a log.
const LOG_SHARE: u32 = 16;

pub(crate) fn invalid<T>(why: Invalid) -> Result<T, CommandError> {
    Err(CommandError::Invalid(why))
}

/// Returns the bytes of a device between its label areas.
pub(crate) fn extent_space(size: u64) -> u64 {
    second_area(size).saturating_sub(AREA_BYTES)
}

/// Assigns devices to the groups of a new pool.
pub(crate) fn take_groups(specs: &[GroupSpec], devices: usize) -> Result<Vec<(GroupSpec, Range<usize>)>, CommandError> {
    if specs.first().is_none_or(|group| group.class != Class::Data) {
        return invalid(Invalid::NoDataGroup);
    }
    take_more(specs, devices)
}

/// Assigns devices to groups that are added to a pool.
pub(crate) fn take_more(specs: &[GroupSpec], devices: usize) -> Result<Vec<(GroupSpec, Range<usize>)>, CommandError> {
    let mut next = 0;
    let mut groups = Vec::new();
    for spec in specs {
        let count = if spec.layout.is_bucket() { 0 } else { spec.devices.unwrap_or(devices.saturating_sub(next)) };
        if (count == 0 && !spec.layout.is_bucket()) || next + count > devices {
            return invalid(Invalid::EmptyGroup);
        }
        groups.push((*spec, next..next + count));
        next += count;
    }
    if next < devices {
        return invalid(Invalid::DevicesLeft);
    }
    Ok(groups)
}

/// Returns the members for new devices.
pub(crate) fn new_members(shape: &Shape, devices: &[DeviceGeometry], import: Option<&Holder>) -> Result<Vec<Member>, CommandError> {
    let first = shape.members.len();
    let member = |(at, device): (usize, &DeviceGeometry)| {
        let extents = u32::try_from(extent_space(device.size) / shape.extent_bytes).unwrap_or(u32::MAX);
        if extents == 0 {
            return invalid(Invalid::DeviceTooSmall { device: at, least_bytes: 2 * AREA_BYTES + shape.extent_bytes });
        }
        Ok(Member {
            device: device_id(shape.generation, first + at, import),
            extents,
            state: MemberState::Present,
            replacement: None,
            leaving: false,
            down_since: 0,
        })
    };
    devices.iter().enumerate().map(member).collect()
}

/// Returns the id of a new device, unique in the pool. Generations of a shape are unique too,
/// except where halves of a pool were used separately: the session of the import makes the
/// difference there.
pub(crate) fn device_id(generation: u64, member: usize, import: Option<&Holder>) -> DeviceId {
    let own = import.map_or(0, |holder| u64::from(crc32c(&holder.session)) << 32);
    DeviceId(own ^ (generation << 16 | member as u64))
}

/// A group that can be added to a shape.
pub(crate) struct NewGroup {
    class: Class,
    /// The complete layout, which suits the number of members.
    layout: Layout,
    /// Positions of its members in the table of members.
    range: Range<usize>,
}

impl NewGroup {
    fn members(&self) -> impl Iterator<Item = MemberId> + Clone + use<> {
        self.range.clone().map(MemberId::at)
    }
}

/// Checks and completes the layouts of groups over members of a shape.
pub(crate) fn check_layouts(shape: &Shape, groups: Vec<(GroupSpec, Range<usize>)>) -> Result<Vec<NewGroup>, CommandError> {
    let check = |(spec, range): (GroupSpec, Range<usize>)| {
        let count = u16::try_from(range.len()).unwrap_or(u16::MAX);
        Ok(NewGroup { class: spec.class, layout: checked_layout(shape, &spec, count)?, range })
    };
    let groups: Vec<NewGroup> = groups.into_iter().map(check).collect::<Result<_, _>>()?;
    check_bucket(shape, &groups)?;
    Ok(groups)
}

/// Checks that a pool with a bucket has a log, and no data on devices but that log.
fn check_bucket(shape: &Shape, groups: &[NewGroup]) -> Result<(), CommandError> {
    let all = || {
        let old = shape.groups.iter().map(|group| (group.class, group.layout));
        old.chain(groups.iter().map(|group| (group.class, group.layout)))
    };
    if all().all(|(_, layout)| !layout.is_bucket()) {
        return Ok(());
    }
    if all().any(|(class, layout)| class == Class::Data && !layout.is_bucket()) {
        return invalid(Invalid::DataBesideBucket);
    }
    if all().all(|(class, _)| class != Class::Log) {
        return invalid(Invalid::BucketWithoutLog);
    }
    if shape.extent_bytes > MAX_OBJECT_BYTES {
        return invalid(Invalid::BucketExtentBytes(shape.extent_bytes));
    }
    Ok(())
}

/// Adds groups over whole members, of which a pool has at most [`MAX_DEVICES`](millpond_format::MAX_DEVICES).
/// Special groups among them share segments for nodes with the data groups.
pub(crate) fn add_groups(shape: &mut Shape, groups: &[NewGroup]) {
    let nodes = NodeRows::plan(shape, groups);
    groups.iter().for_each(|group| add_group(shape, group, &nodes));
    nodes.add_to(shape);
}

/// Adds a group over members, without their extents for nodes. With parity, part of it becomes a
/// log, with one copy more than devices may be missing, for data that is not in whole stripes yet.
fn add_group(shape: &mut Shape, group: &NewGroup, nodes: &NodeRows) {
    let extents = |at: MemberId| shape.member(at).map_or(0, |m| m.extents - nodes.taken(at));
    let Layout::Parity { parity, .. } = group.layout else {
        let columns = group.members().map(|member| Column { member, first: 0, extents: extents(member) }).collect();
        return shape.add(group.class, group.layout, columns);
    };
    let copies = u16::from(parity) + 1;
    let least = least_log_share(copies, group.range.len());
    let share = |at: MemberId| (extents(at) / LOG_SHARE).max(least).min(extents(at) / 2);
    let log = |member: MemberId| Column { member, first: extents(member) - share(member), extents: share(member) };
    let rest = |member: MemberId| Column { member, first: 0, extents: extents(member) - share(member) };
    let (rest, log) = (group.members().map(rest).collect(), group.members().map(log).collect());
    shape.add(Class::Data, group.layout, rest);
    shape.add(Class::Log, Layout::Mirror { copies }, log);
}

/// Returns the fewest extents of each device for a log that suffices for its streams and a
/// checkpoint.
fn least_log_share(copies: u16, devices: usize) -> u32 {
    (LEAST_LOG * u32::from(copies)).div_ceil(u32::try_from(devices).unwrap_or(1).max(1))
}

/// Checks and completes the layout of a group over `count` devices.
fn checked_layout(shape: &Shape, spec: &GroupSpec, count: u16) -> Result<Layout, CommandError> {
    let turns = |unit: u32| {
        if unit == 0 || u64::from(unit) % 4096 != 0 || !u64::from(unit).is_power_of_two() {
            return invalid(Invalid::StripeUnit(unit));
        }
        Ok(u32::try_from(u64::from(unit).min(shape.extent_bytes)).unwrap_or(unit))
    };
    match spec.layout {
        Layout::Linear => Ok(Layout::Linear),
        Layout::Bucket { .. } if spec.class != Class::Data => invalid(Invalid::BucketClass),
        Layout::Bucket { segments } if !(1..=MAX_BUCKET_SEGMENTS).contains(&segments) => invalid(Invalid::BucketSegments(segments)),
        bucket @ Layout::Bucket { .. } => Ok(bucket),
        _ if spec.class == Class::Cache => invalid(Invalid::CacheLayout),
        _ if spec.class == Class::Spare => invalid(Invalid::SpareLayout),
        Layout::Stripe { width, unit } => Ok(Layout::Stripe { width: width.clamp(1, count), unit: turns(unit)? }),
        Layout::Mirror { copies } if copies > count => invalid(Invalid::MirrorDevices { copies, devices: count }),
        Layout::Mirror { copies } if !(2..=MAX_COPIES).contains(&copies) => invalid(Invalid::MirrorCopies(copies)),
        mirror @ Layout::Mirror { .. } => Ok(mirror),
        Layout::Parity { parity, .. } if !(1..=2).contains(&parity) => invalid(Invalid::Parity(parity)),
        Layout::Parity { parity, .. } if spec.class != Class::Data => invalid(Invalid::ParityClass(parity)),
        Layout::Parity { parity, .. } if count < u16::from(parity) + 2 || count > MAX_PARITY_WIDTH => {
            invalid(Invalid::ParityDevices { parity, devices: count })
        }
        Layout::Parity { width, parity, unit } => {
            // stripes are written whole, so many of them must fit into a segment
            let unit = turns(unit)?.min(u32::try_from(shape.extent_bytes / 16).unwrap_or(u32::MAX)).max(4096);
            Ok(Layout::Parity { width: width.clamp(u16::from(parity) + 2, count), parity, unit })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Halves of a pool that were used separately have shapes of the same generation.
    #[test]
    fn devices_that_two_imports_add_have_different_ids() {
        let holder = |session: u8| Holder { host: [1; 16], name: "anna".into(), session: [session; 16] };
        let ids = [(7, 2, 1), (7, 2, 2), (7, 3, 1), (8, 2, 1)];
        let ids = ids.map(|(generation, member, session)| device_id(generation, member, Some(&holder(session))));
        (0..ids.len()).for_each(|at| assert!(!ids[..at].contains(&ids[at]), "{ids:?}"));
    }
}
