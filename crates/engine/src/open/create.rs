//! Making a pool: labels and empty rings, then a first checkpoint.

use std::rc::Rc;

use millpond_block::{BufPool, Piece};
use millpond_device::{DeviceGeometry, DeviceIndex};
use millpond_format::{AREA_BYTES, Label, Layout, Lsn, MAX_DEVICES, RING_OFFSET, RING_SLOTS, SECTOR_BYTES};

use crate::core::Core;
use crate::io::IoTable;
use crate::log::Log;
use crate::pool::{Config, Context, Pool};
use crate::space::{Rows, Space};
use crate::task::second_area;
use crate::tree::NodeCache;
use crate::{CommandError, Planted, PoolSpec, Time, Tuning};

/// Segments that a pool should have at least, so that the cleaner has a choice.
const WANTED_SEGMENTS: u64 = 1024;
/// Fewer make no pool.
const LEAST_SEGMENTS: u32 = 64;
/// Bytes of an extent by default: as the size of the pool allows, between these.
const EXTENTS: (u64, u64) = (64 << 10, 64 << 20);

fn invalid<T>(why: String) -> Result<T, CommandError> {
    Err(CommandError::Invalid(why))
}

/// Bytes between the label areas.
pub(crate) fn extent_space(size: u64) -> u64 {
    second_area(size).saturating_sub(AREA_BYTES)
}

/// A pool being made over `devices`; in service when its first checkpoint is on them.
pub(crate) fn create(spec: PoolSpec, devices: &[DeviceGeometry], tuning: Tuning, now: Time) -> Result<Pool, CommandError> {
    crate::check_name(&spec.name)?;
    if spec.name.len() > 64 {
        return invalid(format!("'{}' is too long for a pool; use up to 64 characters", spec.name));
    }
    if devices.is_empty() || devices.len() > MAX_DEVICES {
        return invalid(format!("a pool has 1 to {MAX_DEVICES} devices, not {}", devices.len()));
    }
    let total: u64 = devices.iter().map(|d| extent_space(d.size)).sum();
    let width = match spec.layout {
        Layout::Linear => 1,
        Layout::Stripe { width, .. } => u64::from(width).clamp(1, devices.len() as u64),
    };
    let fitting = (total / WANTED_SEGMENTS / width).max(1);
    if let Some(bytes) = spec.extent_bytes.filter(|bytes| !bytes.is_power_of_two() || !(EXTENTS.0..=EXTENTS.1).contains(bytes)) {
        return invalid(format!("extents of {bytes} bytes are not possible; use a power of two from 64k to 64M"));
    }
    let extent_bytes = spec.extent_bytes.unwrap_or(1 << fitting.ilog2()).clamp(EXTENTS.0, EXTENTS.1);
    let layout = match spec.layout {
        Layout::Linear => Layout::Linear,
        Layout::Stripe { width, unit } => {
            if unit == 0 || u64::from(unit) % 4096 != 0 || !u64::from(unit).is_power_of_two() {
                return invalid(format!("a stripe unit of {unit} bytes is not possible; use a power of two from 4k"));
            }
            let unit = u32::try_from(u64::from(unit).min(extent_bytes)).unwrap_or(unit);
            Layout::Stripe { width: width.clamp(1, devices.len() as u16), unit }
        }
    };
    let extents: Vec<u32> = devices.iter().map(|d| u32::try_from(extent_space(d.size) / extent_bytes).unwrap_or(u32::MAX)).collect();
    if let Some(at) = extents.iter().position(|n| *n == 0) {
        return invalid(format!("device {at} is too small; it needs {} KiB at least", (2 * AREA_BYTES + extent_bytes) >> 10));
    }
    let chunk_units = u32::try_from((extent_bytes / 512 / 8).clamp(16, 8192)).unwrap_or(8192);
    let config = Config {
        id: spec.id,
        name: spec.name,
        layout,
        extent_bytes,
        chunk_units,
        extents,
        sizes: devices.iter().map(|d| d.size).collect(),
    };
    let rows = Rows::new(config.layout, config.extent_bytes, &config.extents);
    if rows.count() < LEAST_SEGMENTS {
        return invalid(format!(
            "the devices hold {} segments of {} KiB; {LEAST_SEGMENTS} are needed: use larger devices",
            rows.count(),
            extent_bytes >> 10
        ));
    }
    let mut space = Space::new(rows);
    space.reuse_at_once = cfg!(feature = "planted") && tuning.planted == Some(Planted::FreeTooEarly);
    let core = Core::new(space, NodeCache::new(tuning.map_memory), config.chunk_units, tuning.planted);
    let positions = (0..u16::try_from(devices.len()).unwrap_or(u16::MAX)).collect();
    let mut pool = Pool::new(config, core, Log::new(Lsn(0)), IoTable::new(positions), BufPool::default(), tuning, now);
    pool.incarnation = 1;
    if !pool.reserve_streams() {
        return invalid("the devices are too small".into());
    }
    pool.write_labels();
    Ok(pool)
}

impl Pool {
    /// Gives every stream the segment that it starts with.
    pub(crate) fn reserve_streams(&mut self) -> bool {
        let segments = &mut self.core.space.segments;
        self.log.streams.iter_mut().all(|stream| {
            stream.next = segments.reserve();
            stream.next.is_some()
        })
    }

    fn write_labels(&mut self) {
        let mut writes = Vec::new();
        for (member, size) in (0u16..).zip(self.config.sizes.clone()) {
            let label = Label {
                pool: self.config.id,
                name: self.config.name.clone(),
                member,
                layout: self.config.layout,
                extent_bytes: self.config.extent_bytes,
                chunk_units: self.config.chunk_units,
                extents: self.config.extents.clone(),
            };
            // with the label a ring of zeroes: what lay there before must not pass for a damaged root (INV-RING-2)
            let bytes = (RING_OFFSET + RING_SLOTS * SECTOR_BYTES as u64) as usize;
            let mut buf = self.bufs.take(bytes);
            if let Some((head, rest)) = buf.bytes_mut().get_mut(..bytes).and_then(|all| all.split_at_mut_checked(SECTOR_BYTES)) {
                head.copy_from_slice(&label.encode());
                rest.fill(0);
            }
            let piece = Piece::new(Rc::new(buf), 0..bytes);
            writes.push((DeviceIndex(member), 0, piece.clone()));
            writes.push((DeviceIndex(member), second_area(size), piece));
        }
        self.io.write_raw(Context::Labels, writes);
    }
}
