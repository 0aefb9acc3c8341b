//! Queries about the pool's state.

use millpond_block::MemberId;
use millpond_format::{Class, Layout, Member, MemberState, VolumeId};
use rustc_hash::FxHashMap;

use super::state::Pool;
use crate::space::SegmentState;
use crate::task::removal_waits;
use crate::{BaseInfo, DeviceInfo, Metrics, PoolInfo, Time, VolumeInfo};

impl Pool {
    pub(crate) fn info(&self) -> PoolInfo {
        let space = &self.store.core.space;
        let state = |id| space.segments.get(id).map(|s| s.state);
        let shape = &self.store.config.shape;
        let members = shape.members.len();
        let free = space.layout.count_extents(members, |id| {
            let empty = |state| {
                matches!(state, SegmentState::Free | SegmentState::Retained(_) | SegmentState::Discarding | SegmentState::Preparing)
            };
            state(id).is_some_and(empty)
        });
        // segments that leave the pool, and extents that no group can use, are neither free nor
        // allocated
        let used = space.layout.count_extents(members, |id| {
            let held = |state| matches!(state, SegmentState::Open | SegmentState::Sealed | SegmentState::Reserved);
            state(id).is_some_and(held)
        });
        let bytes = space.layout.extent_bytes();
        let listed = |(at, m): &(MemberId, &Member)| m.state != MemberState::Gone || self.store.labels.left.contains_key(at);
        let devices = shape.numbered().filter(listed).map(|(member, m)| {
            let i = member.index();
            let size = u64::from(m.extents) * bytes;
            let of_member = |counts: &[u64]| counts.get(i).copied().unwrap_or(0) * bytes;
            let (free, allocated) = match shape.is_auxiliary(member) {
                true => (size.saturating_sub(self.requests.cache.used(member)), self.requests.cache.used(member).min(size)),
                false => (of_member(&free), of_member(&used)),
            };
            let group = shape.group_of(member);
            // until the labels name the new device instead of the old one, the old one is listed
            let old = self.store.labels.switching.get(&member).copied();
            DeviceInfo {
                member,
                id: old.unwrap_or(m.device),
                slot: self.store.io.slot_of(member),
                state: match m.state {
                    MemberState::Present if self.store.labels.filled.contains(&member) => MemberState::Filling,
                    MemberState::Gone => MemberState::Present,
                    state => state,
                },
                replacement: self.store.io.replacement(member),
                replacement_id: m.replacement.or(old.map(|_| m.device)),
                class: group.map(|group| group.class).or_else(|| self.store.labels.left.get(&member).copied()).unwrap_or(Class::Data),
                layout: group.map_or(Layout::Linear, |group| group.layout),
                size,
                allocated,
                free,
                trouble: self.store.io.trouble(member),
                silent: Some(self.store.io.silence_of(member)).filter(|silence| *silence >= self.store.tuning.reread_millis.max(1)),
                full: self.store.io.full_since(member),
                errors: self.store.io.errors.get(i).copied().unwrap_or(0),
                failed: self.store.io.failures.get(i).copied().unwrap_or(0),
                repaired: self.store.io.repaired.get(i).copied().unwrap_or(0),
                counters: self.store.io.counters.get(i).copied().unwrap_or_default(),
            }
        });
        let (size, allocated) = (self.store.usable_units() * 512, space.live_units() * 512);
        PoolInfo {
            name: self.store.config.name.clone(),
            id: self.store.config.id,
            state: self.store.state.clone(),
            read_only: self.store.tuning.read_only,
            refuses_writes: self.requests.full_devices.refuses(),
            features: shape.features().with(self.store.features_in_force()),
            named_features: shape.features().with(self.store.features_named()),
            feature_names: self.store.config.feature_names,
            layout: shape.groups.iter().min_by_key(|group| group.class != Class::Data).map_or(Layout::Linear, |group| group.layout),
            size,
            allocated: allocated.min(size),
            free: size.saturating_sub(allocated),
            given_up: self.store.given_up_bytes(),
            removal_ended: self.store.removals.ended.clone(),
            removal_waits: removal_waits(&self.store, &self.rejoiner),
            fell_back: self.fell_back.clone(),
            space: self.store.space_info(),
            devices: devices.collect(),
            jobs: self.list_jobs(),
            job_rate: Some(self.store.core.catalog.jobs.rate).filter(|rate| *rate > 0),
            scrub: self.jobs.scrub_info(&self.store),
        }
    }

    pub(crate) fn space_report(&self) -> String {
        use std::fmt::Write;
        let segments = &self.store.core.space.segments;
        let mut states: std::collections::BTreeMap<String, u32> = std::collections::BTreeMap::new();
        for id in segments.ids() {
            let Some(s) = segments.get(id) else { continue };
            let full = (s.live + s.objects) * 10 / (self.store.core.space.layout.pages(id) * 8).max(1);
            let state = match s.state {
                SegmentState::Retained(_) => "resting".to_owned(),
                SegmentState::Sealed => format!("sealed {full}0% class {}", s.class),
                other => format!("{other:?}"),
            };
            *states.entry(state).or_default() += 1;
        }
        let mut report = String::new();
        for (state, count) in states {
            let _ = write!(report, "{state}: {count}; ");
        }
        let _ = write!(
            report,
            "{:?} closing {}; {}; freed {}; kept for guests {}, waiting writes {}, space_wait since {:?}, cleaner idle {}, \
             checkpoint running {}, live {} of {} units, {}",
            self.store.state,
            self.store.closing.is_some(),
            self.cleaner.report(&self.store),
            self.store.core.space.freed_units,
            self.store.floor(crate::store::Watermark::Guest),
            self.requests.space_waiters.len(),
            self.requests.space_wait,
            self.cleaner.idle(),
            self.store.checkpoint.running(),
            self.store.core.space.live_units(),
            self.store.core.space.usable_units(),
            self.store.needs_report()
        );
        report
    }

    pub(crate) fn volumes(&self) -> Vec<VolumeInfo> {
        self.volumes_after(None, usize::MAX)
    }

    /// Returns up to `most` volumes with ids above `after`, by id.
    pub(crate) fn volumes_after(&self, after: Option<VolumeId>, most: usize) -> Vec<VolumeInfo> {
        let catalog = &self.store.core.catalog;
        let first = VolumeId(after.map_or(0, |id| id.0.saturating_add(1)));
        let ids: Vec<VolumeId> = catalog.volumes.range(first..).map(|(id, _)| *id).take(most).collect();
        let mut owned: FxHashMap<VolumeId, u64> = FxHashMap::default();
        let listed = |volume: VolumeId| ids.first() <= Some(&volume) && ids.last() >= Some(&volume);
        for line in catalog.lineages.values().filter(|line| listed(line.volume)) {
            *owned.entry(line.volume).or_default() += line.owned_units;
        }
        ids.iter().filter_map(|id| self.volume_info(*id, owned.get(id).copied().unwrap_or(0))).collect()
    }

    /// Returns the volume with this name.
    pub(crate) fn find_volume(&self, name: &str) -> Option<VolumeInfo> {
        let catalog = &self.store.core.catalog;
        let id = catalog.volume_named(name)?;
        self.volume_info(id, catalog.lineages.values().filter(|l| l.volume == id).map(|l| l.owned_units).sum())
    }

    fn volume_info(&self, id: VolumeId, owned_units: u64) -> Option<VolumeInfo> {
        let catalog = &self.store.core.catalog;
        let (v, line) = catalog.head(id)?;
        let origin = catalog.origin_of(id).and_then(|origin| catalog.listed(origin.snapshot)).map(|s| {
            let name = catalog.volumes.get(&s.volume).map_or("?", |v| v.name.as_str());
            format!("{name}@{}", s.name)
        });
        Some(VolumeInfo {
            id,
            name: v.name.clone(),
            size: v.size,
            sector: v.sector,
            cache: v.cache,
            compression: v.compression,
            read_only: v.read_only || self.store.tuning.read_only,
            options: catalog.options_of(id),
            read_cache: self.requests.read_cache.uses(id),
            referenced_bytes: line.head.map_or(0, |h| h.mapped * 4096),
            unique_bytes: owned_units * 512,
            snapshots: catalog.snapshot_count(id),
            origin,
            created: Time(v.created),
            base: catalog.bases.get(&id).map(|base| BaseInfo { unit: base.unit, source: base.source.clone() }),
        })
    }

    pub(crate) fn metrics(&self) -> Metrics {
        let mut metrics = self.store.metrics;
        metrics.nodes_touched = self.store.core.nodes_touched;
        metrics.nodes_resident = self.store.core.nodes.len() as u64;
        metrics.forwarded_bytes = self.store.core.space.chunks.forwards() as u64 * 4096;
        metrics.forwards_full = !self.store.has_memory_for_forwards();
        metrics.piece_memory = self.store.core.pieces.memory() as u64;
        let (cache, ahead) = (&self.requests.read_cache, &self.requests.ahead);
        (metrics.read_cache_limit, metrics.read_cache_bytes) = (cache.size().bytes, cache.used());
        (metrics.read_ahead_bytes, metrics.read_ahead_used_bytes) = ahead.counters();
        metrics.read_ahead_memory_bytes = ahead.memory();
        let uses = self.requests.read_cache.all_uses();
        (metrics.read_cache_hits, metrics.read_cache_misses) = (uses.hits, uses.misses);
        metrics.written_bytes = self.store.core.clock * 4096;
        metrics.log_bytes = self.store.log.since_checkpoint;
        metrics.last_checkpoint = self.store.past_roots.back().map(|(_, time)| Time(*time));
        metrics.oldest_restore_point = self.store.oldest_restore_point().map(Time);
        let unreclaimed = self.store.unreclaimed_units();
        metrics.unreclaimed = unreclaimed * 512;
        // the sizes of deadlists that are still being cut are not known yet
        let uncounted = u64::from(self.store.core.catalog.has_uncounted_frees());
        metrics.reclaim_backlog = self.store.core.catalog.backlog.saturating_sub(unreclaimed).max(uncounted) * 512;
        metrics
    }
}
