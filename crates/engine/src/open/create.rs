//! Creating a pool: labels and empty rings, then a first checkpoint.

use std::collections::BTreeMap;
use std::ops::Range;

use millpond_block::{BufPool, DeviceGeometry, DeviceSlot, MemberId};
use millpond_format::{
    AREA_BYTES, Class, Column, DeviceId, Holder, Layout, Lsn, MAX_COPIES, MAX_DEVICES, MAX_PARITY_WIDTH, Member, MemberState, SegmentId,
    Shape, crc32c,
};

use super::nodes::NodeRows;
use crate::core::Core;
use crate::io::{Health, IoTable};
use crate::log::Log;
use crate::pool::Pool;
use crate::space::{Rows, Shelf, Space};
use crate::store::{Config, Context, LEAST_LOG, Store};
use crate::task::{Keeper, first_claim, pieces, second_area};
use crate::tree::NodeCache;
use crate::{CommandError, GroupSpec, Invalid, Planted, PoolSpec, Time, Tuning};

/// Segments that a pool should have at least, so that the cleaner has a choice.
const WANTED_SEGMENTS: u64 = 1024;
/// Fewest data segments of a pool.
const LEAST_SEGMENTS: usize = 64;
/// Share (1/N) of each device with parity that is a log.
const LOG_SHARE: u32 = 16;
/// Smallest and largest extent in bytes; the default depends on the size of the pool.
const EXTENTS: (u64, u64) = (64 << 10, 64 << 20);

fn invalid<T>(why: Invalid) -> Result<T, CommandError> {
    Err(CommandError::Invalid(why))
}

/// Returns the bytes of a device between its label areas.
pub(crate) fn extent_space(size: u64) -> u64 {
    second_area(size).saturating_sub(AREA_BYTES)
}

/// Creates a pool over `devices`; it is in service when its first checkpoint is durable.
pub(crate) fn create(spec: PoolSpec, devices: &[DeviceGeometry], tuning: Tuning, now: Time) -> Result<Pool, CommandError> {
    crate::check_name(&spec.name)?;
    if spec.name.len() > 64 {
        return invalid(Invalid::PoolName(spec.name));
    }
    if devices.is_empty() || devices.len() > MAX_DEVICES {
        return invalid(Invalid::DeviceCount(devices.len()));
    }
    let members = devices.len();
    let groups = take_groups(&spec.groups, members)?;
    let segment_parts = groups.iter().filter(|(group, _)| group.class == Class::Data).map(|(group, range)| match group.layout {
        Layout::Linear => 1,
        Layout::Stripe { width, .. } => u64::from(width).clamp(1, range.len() as u64),
        Layout::Mirror { copies } => u64::from(copies),
        Layout::Parity { width, .. } => u64::from(width).min(range.len() as u64),
    });
    let lasting = groups.iter().filter(|(group, _)| !group.class.is_aside()).flat_map(|(_, range)| range.clone());
    let total: u64 = lasting.filter_map(|at| devices.get(at)).map(|d| extent_space(d.size)).sum();
    let fitting = (total / WANTED_SEGMENTS / segment_parts.max().unwrap_or(1)).max(1);
    if let Some(bytes) = spec.extent_bytes.filter(|bytes| !bytes.is_power_of_two() || !(EXTENTS.0..=EXTENTS.1).contains(bytes)) {
        return invalid(Invalid::ExtentBytes(bytes));
    }
    let extent_bytes = spec.extent_bytes.unwrap_or(1 << fitting.ilog2()).clamp(EXTENTS.0, EXTENTS.1);
    let chunk_units = u32::try_from((extent_bytes / 512 / 8).clamp(16, 8192)).unwrap_or(8192);
    let mut shape = Shape { generation: 1, extent_bytes, chunk_units, next: SegmentId(0), members: Vec::new(), groups: Vec::new() };
    shape.members = new_members(&shape, devices, tuning.holder.as_ref())?;
    add_groups(&mut shape, &groups)?;
    if !shape.fits() {
        return invalid(Invalid::LabelFull);
    }
    let sizes = devices.iter().map(|d| d.size).collect();
    let config = Config { id: spec.id, name: spec.name, shape, notes: Vec::new(), sizes, twins: BTreeMap::new() };
    let rows = Rows::new(&config.shape);
    let of_data = (0..rows.count()).filter(|id| rows.pages(SegmentId(*id)) > 0 && rows.shelf(SegmentId(*id)) == Shelf::Data).count();
    if of_data < LEAST_SEGMENTS {
        return invalid(Invalid::FewSegments { segments: of_data, extent_bytes, least: LEAST_SEGMENTS });
    }
    let mut space = Space::new(rows);
    space.segments.trust_all();
    space.reuse_at_once = tuning.plants(Planted::FreeTooEarly);
    space.wipe_once = tuning.plants(Planted::WipeOnce);
    let core = Core::new(space, NodeCache::new(tuning.map_memory), chunk_units, pieces(extent_bytes, &tuning), tuning.planted);
    let slots = (0..u16::try_from(members).unwrap_or(u16::MAX)).map(|member| Some(DeviceSlot(member))).collect();
    let io = IoTable::new(slots, Health::of(&config.shape));
    let mut pool = Pool::new(Store::new(config, core, Log::new(Lsn(0)), io, BufPool::default(), tuning, now));
    pool.store.incarnation = 1;
    pool.store.prepare_first();
    let mine = pool.store.tuning.holder.as_ref().map(|holder| first_claim(pool.store.config.id, holder, 1, now));
    pool.keeper = Keeper::new(mine, now);
    if !pool.store.reserve_streams() {
        return invalid(Invalid::DevicesTooSmall);
    }
    pool.write_labels();
    Ok(pool)
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
        let count = spec.devices.unwrap_or(devices.saturating_sub(next));
        if count == 0 || next + count > devices {
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
            successor: None,
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

/// Adds groups over whole members. Special groups among them share segments for nodes with the data
/// groups.
pub(crate) fn add_groups(shape: &mut Shape, groups: &[(GroupSpec, Range<usize>)]) -> Result<(), CommandError> {
    let nodes = NodeRows::plan(shape, groups);
    groups.iter().try_for_each(|(spec, range)| add_group(shape, spec, range.clone(), &nodes))?;
    nodes.add_to(shape);
    Ok(())
}

/// Adds a group over members, without their extents for nodes. With parity, part of it becomes a
/// log, with one copy more than devices may be missing, for data that is not in whole stripes yet.
fn add_group(shape: &mut Shape, spec: &GroupSpec, members: Range<usize>, nodes: &NodeRows) -> Result<(), CommandError> {
    let extents = |at: &usize| shape.members.get(*at).map_or(0, |m| m.extents - nodes.taken(*at));
    let column = |at: usize, first: u32, extents: u32| Column { member: u16::try_from(at).unwrap_or(u16::MAX), first, extents };
    let whole = |range: &Range<usize>| range.clone().map(|at| column(at, 0, extents(&at))).collect();
    let layout = checked_layout(shape, spec, u16::try_from(members.len()).unwrap_or(u16::MAX))?;
    let Layout::Parity { parity, .. } = layout else {
        let columns = whole(&members);
        shape.add(spec.class, layout, columns);
        return Ok(());
    };
    let copies = u16::from(parity) + 1;
    let share = |at: usize| (extents(&at) / LOG_SHARE).max(least_log_share(copies, members.len())).min(extents(&at) / 2);
    let log: Vec<Column> = members.clone().map(|at| column(at, extents(&at) - share(at), share(at))).collect();
    let rest = members.clone().map(|at| column(at, 0, extents(&at) - share(at))).collect();
    shape.add(Class::Data, layout, rest);
    shape.add(Class::Log, Layout::Mirror { copies }, log);
    Ok(())
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

impl Pool {
    /// Writes the labels of a new pool.
    fn write_labels(&mut self) {
        let mut writes = Vec::new();
        for (member, size) in (0..).map(MemberId).zip(self.store.config.sizes.clone()) {
            let piece = self.fresh_area(member);
            writes.push((member, 0, piece.clone()));
            writes.push((member, second_area(size), piece));
        }
        self.store.io.write_raw(Context::Labels, writes);
    }
}
