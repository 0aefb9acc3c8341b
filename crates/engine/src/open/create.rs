//! Creating a pool: labels and empty rings, then a first checkpoint.

use std::collections::BTreeMap;

use millpond_block::{BufPool, DeviceGeometry, DeviceSlot, MemberId};
use millpond_format::{
    BUCKET, BucketRecord, Class, ENCRYPTION, FeatureNames, FeatureSet, Layout, Lsn, MAX_DEVICES, MAX_OBJECT_BYTES, SegmentId, Shape, Term,
    second_area,
};

use crate::core::Core;
use crate::io::{Health, IoTable};
use crate::log::Log;
use crate::pool::Pool;
use crate::space::{AllocClass, SegmentLayout, Space};
use crate::store::{Config, Context, Store, add_groups, check_layouts, extent_space, invalid, new_members, take_groups};
use crate::task::{Lease, first_claim, fresh_area, pieces};
use crate::tree::NodeCache;
use crate::{CommandError, Invalid, Planted, PoolSpec, Time, Tuning};

/// Segments that a pool should have at least, so that the cleaner has a choice.
const WANTED_SEGMENTS: u64 = 1024;
/// Fewest data segments of a pool; of the log beside a bucket.
const LEAST_SEGMENTS: usize = 64;

/// Smallest and largest extent in bytes; the default depends on the size of the pool.
const EXTENTS: (u64, u64) = (64 << 10, 64 << 20);

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
        Layout::Linear | Layout::Bucket { .. } => 1,
        Layout::Stripe { width, .. } => u64::from(width).clamp(1, range.len() as u64),
        Layout::Mirror { copies } => u64::from(copies),
        Layout::Parity { width, .. } => u64::from(width).min(range.len() as u64),
    });
    let lasting = groups.iter().filter(|(group, _)| !group.class.is_auxiliary()).flat_map(|(_, range)| range.clone());
    let total: u64 = lasting.filter_map(|at| devices.get(at)).map(|d| extent_space(d.size)).sum();
    let fitting = (total / WANTED_SEGMENTS / segment_parts.max().unwrap_or(1)).max(1);
    if let Some(bytes) = spec.extent_bytes.filter(|bytes| !bytes.is_power_of_two() || !(EXTENTS.0..=EXTENTS.1).contains(bytes)) {
        return invalid(Invalid::ExtentBytes(bytes));
    }
    let has_bucket = groups.iter().any(|(group, _)| group.layout.is_bucket());
    // an object costs as much as a request, whatever its size
    let usual = if has_bucket { MAX_OBJECT_BYTES } else { 1 << fitting.ilog2() };
    let extent_bytes = spec.extent_bytes.unwrap_or(usual).clamp(EXTENTS.0, EXTENTS.1);
    let chunk_units = u32::try_from((extent_bytes / 512 / 8).clamp(16, 8192)).unwrap_or(8192);
    let mut shape = Shape { generation: 1, extent_bytes, chunk_units, next: SegmentId(0), members: Vec::new(), groups: Vec::new() };
    shape.members = new_members(&shape, devices, tuning.holder.as_ref())?;
    let groups = check_layouts(&shape, groups)?;
    add_groups(&mut shape, &groups);
    if !shape.fits() {
        return invalid(Invalid::LabelFull);
    }
    let sizes = devices.iter().map(|d| d.size).collect();
    // all labels are written with them before the pool is in service (INV-LABEL-3)
    let features = tuning.features.iter().filter(|feature| spec.features && !feature.automatic);
    let features = features.chain(has_bucket.then_some(&BUCKET));
    let config = Config {
        id: spec.id,
        name: spec.name,
        shape,
        features: FeatureSet::of(features.clone()),
        feature_names: FeatureNames::of(features),
        notes: Vec::new(),
        sizes,
        replacements: BTreeMap::new(),
    };
    let layout = SegmentLayout::new(&config.shape);
    let of_data =
        (0..layout.count()).filter(|id| layout.pages(SegmentId(*id)) > 0 && layout.alloc_class(SegmentId(*id)) == AllocClass::Data).count();
    if of_data < LEAST_SEGMENTS {
        return invalid(Invalid::FewSegments { segments: of_data, extent_bytes, least: LEAST_SEGMENTS });
    }
    let space = new_space(layout, &tuning);
    let core = Core::new(space, NodeCache::new(tuning.map_memory), chunk_units, pieces(extent_bytes, &tuning), tuning.planted);
    let slots = config.shape.ids().map(|member| Some(DeviceSlot(member.0))).collect();
    let io = IoTable::new(slots, Health::of(&config.shape));
    let mut pool = Pool::new(Store::new(config, core, Log::new(Lsn(0)), io, BufPool::default(), tuning, now));
    pool.store.incarnation = 1;
    pool.store.prepare_first();
    let mine = pool.store.tuning.holder.as_ref().map(|holder| first_claim(pool.store.config.id, holder, 1, now));
    pool.lease = Lease::new(mine, now);
    if !pool.store.reserve_streams() {
        return invalid(Invalid::DevicesTooSmall);
    }
    pool.begin_labels();
    Ok(pool)
}

/// Returns the space of a new pool, in which all segments are free and clean.
fn new_space(layout: SegmentLayout, tuning: &Tuning) -> Space {
    let in_bucket = (0..layout.count()).filter(|id| layout.is_in_bucket(SegmentId(*id))).count() as u64;
    let mut space = Space::new(layout);
    if in_bucket > 0 {
        let quota = in_bucket * space.layout.extent_bytes();
        space.names.set_bucket(BucketRecord { source: String::new(), quota, term: Term(0), settled: 0 });
    }
    space.segments.trust_all();
    space.reuse_at_once = tuning.plants(Planted::FreeTooEarly);
    space.wipe_once = tuning.plants(Planted::WipeOnce);
    space.keeps_targets = tuning.plants(Planted::ForwardKeepsTarget);
    space.chunks.forgets_forwarded = tuning.plants(Planted::ForwardForgotten);
    space
}

impl Pool {
    /// Writes the labels of a new pool; its key table before that, if it is to have one.
    fn begin_labels(&mut self) {
        if self.store.config.features.has(&ENCRYPTION) {
            self.store.keys.lay(None);
        } else {
            self.write_labels();
        }
    }

    /// Writes the labels of a new pool.
    pub(crate) fn write_labels(&mut self) {
        let mut writes = Vec::new();
        for (member, size) in (0..).map(MemberId).zip(self.store.config.sizes.clone()) {
            let piece = fresh_area(&mut self.store, &self.lease, member);
            writes.push((member, 0, piece.clone()));
            writes.push((member, second_area(size), piece));
        }
        self.store.io.write_raw(Context::Labels, writes);
    }
}
