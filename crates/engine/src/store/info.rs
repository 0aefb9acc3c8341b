//! Information about a pool's labels, space, volumes and snapshots.

use millpond_block::{Features, Geometry, MemberId};
use millpond_format::{Member, MemberState, SnapshotId, VolumeId};

use super::Store;
use crate::codec::MEMORY_TIMES;
use crate::core::Catalog;
use crate::space::PAGE;
use crate::{Compression, ImageInfo, LabelsInForce, Planted, SnapshotInfo, SpaceInfo, Target, Time};

impl Store {
    /// Returns the generation of the labels in force; `None` while labels are being written.
    pub(crate) fn label_generation(&self) -> Option<u64> {
        Some(self.config.shape.generation).filter(|_| !self.labels.busy())
    }

    /// Returns the labels in force; `None` while labels are being written.
    pub(crate) fn labels_in_force(&self) -> Option<LabelsInForce> {
        let generation = self.label_generation()?;
        let shape = &self.config.shape;
        let members = shape.numbered().filter(|(at, m)| m.state == MemberState::Present && !shape.is_auxiliary(*at));
        let devices = members.flat_map(|(at, m)| [Some(m.device), m.replacement].into_iter().flatten().map(move |device| (at, device)));
        let down = |(at, m): (MemberId, &Member)| m.state == MemberState::Down && !shape.is_auxiliary(at);
        let left_behind = shape.numbered().any(down);
        Some(LabelsInForce { generation, current: devices.collect(), left_behind })
    }

    pub(crate) fn space_info(&self) -> SpaceInfo {
        let segments = &self.core.space.segments;
        let (pages, used) = (segments.pages(), segments.used_pages());
        let (ready, retained) = (pages.kept + pages.ready, pages.retained);
        SpaceInfo {
            in_use: used * PAGE,
            retained: retained * PAGE,
            ready: ready * PAGE,
            holes: segments.all_pages().saturating_sub(used + retained + ready) * PAGE,
            wanted: self.ready_target(),
        }
    }

    pub(crate) fn geometry(&self, target: Target) -> Option<(Geometry, Features)> {
        match target {
            Target::Head(id) => {
                let v = self.core.catalog.volumes.get(&id)?;
                let features = Features { read_only: v.read_only || self.tuning.read_only, write_cache: !v.cache.every_write_durable() };
                Some((Geometry { size: v.size, sector: v.sector }, features))
            }
            Target::Snapshot(id) => {
                let s = self.core.catalog.listed(id)?;
                let sector = self.core.catalog.volumes.get(&s.volume).map(|v| v.sector).unwrap_or_default();
                Some((Geometry { size: s.size, sector }, Features { read_only: true, write_cache: true }))
            }
        }
    }

    pub(crate) fn memory_times(&self, target: Target) -> u64 {
        let volume = self.volume_of(target).and_then(|volume| self.core.catalog.volumes.get(&volume));
        if volume.is_some_and(|volume| volume.compression != Compression::Off) { MEMORY_TIMES } else { 1 }
    }

    /// Returns up to `most` snapshots of a target's volume, by name, without the target.
    pub(crate) fn older_states(&self, target: Target, most: usize) -> Vec<(String, SnapshotId)> {
        let Some(volume) = self.volume_of(target) else { return Vec::new() };
        let names = self.core.catalog.snapshot_names_of(volume);
        names.filter(|(_, id)| Target::Snapshot(*id) != target).take(most).map(|(name, id)| (name.to_owned(), id)).collect()
    }

    /// Returns the snapshot with this name of a target's volume.
    pub(crate) fn older_state(&self, target: Target, name: &str) -> Option<SnapshotId> {
        self.core.catalog.snapshot_named(self.volume_of(target)?, name)
    }

    /// Returns the volume of a target. That of a head is not checked.
    pub(crate) fn volume_of(&self, target: Target) -> Option<VolumeId> {
        match target {
            Target::Head(volume) => Some(volume),
            Target::Snapshot(id) => self.core.catalog.snapshots.get(&id).map(|snapshot| snapshot.volume),
        }
    }

    /// Returns the snapshot with this name.
    pub(crate) fn find_snapshot(&self, volume: VolumeId, name: &str) -> Option<SnapshotInfo> {
        self.snapshot_info(self.core.catalog.snapshot_named(volume, name)?)
    }

    /// Returns the properties of a volume or snapshot that a directory listing shows.
    pub(crate) fn image(&self, target: Target) -> Option<ImageInfo> {
        match target {
            Target::Head(id) => {
                let (v, line) = self.core.catalog.head(id)?;
                let referenced_bytes = line.head.map_or(0, |h| h.mapped * 4096);
                let (name, created) = (v.name.clone(), Time(v.created));
                Some(ImageInfo { name, size: v.size, referenced_bytes, created, read_only: v.read_only || self.tuning.read_only })
            }
            Target::Snapshot(id) => {
                let s = self.core.catalog.listed(id)?;
                let (name, created) = (s.name.clone(), Time(s.created));
                Some(ImageInfo { name, size: s.size, referenced_bytes: s.mapped * 4096, created, read_only: true })
            }
        }
    }

    /// Returns up to `most` volumes with ids above `after`, by id.
    pub(crate) fn volume_images(&self, after: Option<VolumeId>, most: usize) -> Vec<(VolumeId, ImageInfo)> {
        let first = VolumeId(after.map_or(0, |id| id.0.saturating_add(1)));
        let ids = self.core.catalog.volumes.range(first..).map(|(id, _)| *id);
        ids.filter_map(|id| Some((id, self.image(Target::Head(id))?))).take(most).collect()
    }

    /// Returns up to `most` snapshots of a volume with ids above `after`, by id.
    pub(crate) fn snapshot_images(&self, volume: VolumeId, after: Option<SnapshotId>, most: usize) -> Vec<(SnapshotId, ImageInfo)> {
        let first = SnapshotId(after.map_or(0, |id| id.0.saturating_add(1)));
        let mut ids: Vec<SnapshotId> = Vec::new();
        for line in self.core.catalog.lineages.values().filter(|line| line.volume == volume) {
            // hidden ones are not counted, so each line may give up to `most`
            let listed = line.snapshots.range(first..).copied();
            ids.extend(listed.filter(|id| self.core.catalog.listed(*id).is_some()).take(most));
        }
        ids.sort_unstable();
        ids.into_iter().filter_map(|id| Some((id, self.image(Target::Snapshot(id))?))).take(most).collect()
    }

    pub(crate) fn snapshots(&self) -> Vec<SnapshotInfo> {
        let mut all = self.snapshots_after(None, usize::MAX);
        all.sort_by_key(|s| (s.volume, s.epoch, s.id));
        all
    }

    /// Returns up to `most` snapshots with ids above `after`, by id.
    pub(crate) fn snapshots_after(&self, after: Option<SnapshotId>, most: usize) -> Vec<SnapshotInfo> {
        let ids = self.core.catalog.snapshots.ids_from(SnapshotId(after.map_or(0, |id| id.0 + 1)));
        ids.filter_map(|id| self.snapshot_info(id)).take(most).collect()
    }

    fn snapshot_info(&self, id: SnapshotId) -> Option<SnapshotInfo> {
        let catalog = &self.core.catalog;
        let s = catalog.listed(id)?;
        let line = catalog.lineages.get(&s.lineage)?;
        // the end of a lineage without a head: about all units born after the version before
        let born = || {
            let earlier = Catalog::before(line, id).or(line.origin);
            let kept = earlier.and_then(|e| catalog.snapshots.get(&e)).map_or(0, |e| e.mapped * 8);
            (s.mapped * 8 + s.deadlist.list().units()).saturating_sub(kept)
        };
        let unique = match catalog.units_alone(id) {
            Some(units) => units * 512,
            None if s.children.is_empty() => born() * 512,
            None => 0,
        };
        let holds = self.holds_of(s);
        Some(SnapshotInfo {
            id,
            volume: s.volume,
            name: s.name.clone(),
            created: Time(s.created),
            epoch: s.epoch.0,
            referenced_bytes: s.mapped * 4096,
            unique_bytes: if self.tuning.plants(Planted::NothingUnique) { 0 } else { unique },
            holds: holds.len() as u32,
            hold_list: holds,
            clones: catalog.clones_of(id),
            description: s.description.clone(),
            expires: s.expires.map(Time),
            size: s.size,
        })
    }
}
