//! Commands that change the catalog: checked, logged as a record, applied, made durable, answered.

use millpond_block::{ByteRange, CacheMode, DiskError, SectorProfile, Tag};
use millpond_format::{BASES, BaseRecord, LineageId, Record, SnapshotId, VolumeId, VolumeRecord};

use super::op::{Owner, Work};
use super::requests::Requests;
use crate::core::{Reservations, cache_code, compression_code, sector_code};
use crate::store::Store;
use crate::{
    Absent, BASE_SNAPSHOT, BaseInfo, Busy, CatalogCommand, CommandError, Compression, Invalid, MAX_BASE_SOURCE, NewBase, Planted, Reply,
    Target, Time, VolumeOptions,
};

/// Most volumes of one group snapshot.
const MAX_GROUP: usize = 256;
/// Longest lock of a snapshot: a hundred years, in milliseconds.
const LONGEST_LOCK_MILLIS: u64 = 36_525 * 86_400_000;
/// Most bytes of a description.
const MAX_DESCRIPTION: usize = 1024;

/// The record of a change, and the reply once it is durable.
type Change = Result<(Record, Reply), CommandError>;

impl Requests {
    /// Starts a change of the catalog.
    pub(super) fn change_catalog(&mut self, store: &mut Store, tag: Tag, command: CatalogCommand) {
        let change = match command {
            CatalogCommand::CreateVolume { name, size, sector, cache, compression } => {
                create_volume(store, VolumeRecord { cache: cache_code(cache), ..new_volume(store, name, size, sector, compression) })
            }
            CatalogCommand::CreateBase { name, size, sector, compression, source } => {
                let volume = VolumeRecord { read_only: true, ..new_volume(store, name, size, sector, compression) };
                create_base(store, volume, source)
            }
            CatalogCommand::MoveBase { volume, source } => move_base(store, volume, source),
            CatalogCommand::DestroyVolume { volume } => destroy_volume(store, volume),
            CatalogCommand::RenameVolume { volume, name } => rename_volume(store, volume, name),
            CatalogCommand::ResizeVolume { volume, size } => return self.resize(store, tag, volume, size),
            CatalogCommand::SetProperties { volume, cache, compression, read_only } => {
                self.set_properties(store, volume, (cache, compression, read_only))
            }
            CatalogCommand::SetOptions { volume, options } => set_options(store, volume, &options),
            CatalogCommand::SetSector { volume, sector } => {
                store.changeable(volume).map(|()| (Record::Sector { volume, sector: sector_code(sector) }, Reply::Done))
            }
            CatalogCommand::Snapshot { targets, description, expires, lock_millis } => {
                match snapshot(store, targets, description, expires).and_then(|change| locks(store, change, lock_millis)) {
                    Ok((records, reply)) => drop(self.log_records(store, tag, records, reply)),
                    Err(error) => store.replies.push_back((tag, Err(error))),
                }
                return;
            }
            CatalogCommand::DestroySnapshots { snapshots } => return self.start_destroy(store, tag, snapshots),
            CatalogCommand::RenameSnapshot { snapshot, name } => rename_snapshot(store, snapshot, name),
            CatalogCommand::Rollback { snapshot, keep_as } => roll_back(store, snapshot, keep_as),
            CatalogCommand::Clone { snapshot, name } => clone(store, snapshot, name),
            CatalogCommand::Promote { volume, dry_run: true } => {
                let plan = store.plan_promotion(volume).map(|promotion| Reply::Promotion(promotion.plan()));
                return store.replies.push_back((tag, plan));
            }
            CatalogCommand::Promote { volume, dry_run: false } => return self.promote(store, tag, volume),
            CatalogCommand::Hold { snapshot, tag, until, locked } => {
                store.hold(snapshot, tag, until, locked).map(|record| (record, Reply::Done))
            }
            CatalogCommand::Release { snapshot, tag } => store.release_hold(snapshot, tag).map(|record| (record, Reply::Done)),
        };
        match change {
            Ok((record, reply)) => self.log_change(store, tag, record, reply),
            Err(error) => store.replies.push_back((tag, Err(error))),
        }
    }

    fn log_change(&mut self, store: &mut Store, tag: Tag, record: Record, reply: Reply) {
        let begun = match &record {
            Record::Rollback { snapshot, .. } => store.core.catalog.snapshots.get(snapshot).map(|s| s.volume),
            Record::Clone { volume, .. } => Some(*volume),
            _ => None,
        };
        if self.log_records(store, tag, vec![record], reply)
            && let Some(volume) = begun
        {
            // the snapshot may be from the time when the discard after a shrink was in progress
            self.trim_beyond(store, volume);
        }
    }

    /// Continues resizes whose volume's old end has been discarded.
    pub(super) fn retry_resizes(&mut self, store: &mut Store) {
        self.trimming.retain(|_, op| self.ops.get(*op).is_some_and(|op| matches!(op.work, Work::Clear(_))));
        for (tag, volume, size) in std::mem::take(&mut self.resizes) {
            let error = match self.untrimmed.get(&volume) {
                None => {
                    self.resize(store, tag, volume, size);
                    continue;
                }
                Some(DiskError::NoSpace) => CommandError::NoSpace,
                Some(error) => CommandError::Busy(Busy::Untrimmed(*error)),
            };
            store.replies.push_back((tag, Err(error)));
        }
    }

    fn resize(&mut self, store: &mut Store, tag: Tag, volume: VolumeId, size: u64) {
        if let Err(error) = store.check_size(size).and_then(|()| store.changeable(volume)) {
            return store.replies.push_back((tag, Err(error)));
        }
        if self.untrimmed.contains_key(&volume) && !self.trimming.contains_key(&volume) {
            // try again
            self.trim_beyond(store, volume);
        }
        if self.trimming.contains_key(&volume) {
            // data that an earlier shrink cut off must not reappear
            return self.resizes.push((tag, volume, size));
        }
        if !store.record_room(1) && !self.records_starve() {
            return self.parked_commands.push((tag, CatalogCommand::ResizeVolume { volume, size }.into()));
        }
        let old = store.core.catalog.volumes.get(&volume).map_or(0, |v| v.size);
        if self.log_records(store, tag, vec![Record::Resize { volume, size }], Reply::Done) && size < old {
            // blocks beyond the end are unreachable at once; their space is released in steps, which do
            // not wait for the old content of blocks that were to be written there
            let beyond = |target, range: ByteRange| target == Target::Head(volume) && range.offset + range.length > size;
            self.end_fetches(store, DiskError::OutOfBounds, beyond);
            self.trim_beyond(store, volume);
        }
    }

    /// Makes a volume's writes and clears in progress wait for durability: whoever sees that the
    /// new mode is strict may rely on every later completion.
    fn tighten(&mut self, store: &mut Store, volume: VolumeId) {
        if store.tuning.plants(Planted::LoosenUnderWay) {
            return;
        }
        let mut parents = Vec::new();
        for op in self.ops.iter_mut() {
            let of_it = match &op.work {
                Work::Write(work) => work.volume == volume,
                Work::Clear(work) => work.volume == volume,
                Work::Read(_) | Work::Barrier(_) | Work::Command(_) | Work::Compare(_) | Work::WriteSizes(_) | Work::Walk { .. } => false,
            };
            op.durable |= of_it;
            if let (true, Owner::Parent(parent)) = (of_it, op.owner) {
                parents.push(parent);
            }
        }
        // a part that found nothing to do waits for the record that made it so to complete; its
        // parent waits for that to be durable
        for parent in parents {
            self.ops.get_mut(parent).into_iter().for_each(|op| op.durable = true);
        }
    }

    fn set_properties(
        &mut self,
        store: &mut Store,
        volume: VolumeId,
        (cache, compression, read_only): (Option<CacheMode>, Option<Compression>, Option<bool>),
    ) -> Change {
        let v = store.core.catalog.volumes.get(&volume).ok_or(CommandError::NotFound(Absent::Volume))?;
        if read_only == Some(false) {
            store.changeable(volume)?;
        }
        let record = Record::Properties {
            volume,
            cache: cache_code(cache.unwrap_or(v.cache)),
            compression: compression_code(compression.unwrap_or(v.compression)),
            read_only: read_only.unwrap_or(v.read_only),
        };
        if cache.is_some_and(CacheMode::every_write_durable) {
            self.tighten(store, volume);
        }
        Ok((record, Reply::Done))
    }

    /// Promotes a clone once the next checkpoint has room for the pages of snapshots that change.
    fn promote(&mut self, store: &mut Store, tag: Tag, volume: VolumeId) {
        let promotion = match store.plan_promotion(volume) {
            Ok(promotion) => promotion,
            Err(error) => return store.replies.push_back((tag, Err(error))),
        };
        let bytes = store.bytes_to_store(store.core.catalog.changed_by(&promotion));
        if bytes > store.room_for_lists() {
            if self.records_starve() {
                return store.replies.push_back((tag, Err(CommandError::NoSpace)));
            }
            store.ask_for_room();
            return self.parked_commands.push((tag, CatalogCommand::Promote { volume, dry_run: false }.into()));
        }
        if self.log_records(store, tag, vec![Record::Promote { volume }], Reply::Promotion(promotion.plan())) {
            store.checkpoint.estimate.lists += bytes;
        }
    }
}

/// Returns the record of a writable volume with the default cache mode and ids that were never used.
fn new_volume(store: &Store, name: String, size: u64, sector: SectorProfile, compression: Compression) -> VolumeRecord {
    VolumeRecord {
        id: VolumeId(store.core.catalog.next_volume),
        name,
        size,
        sector: sector_code(sector),
        cache: cache_code(CacheMode::default()),
        compression: compression_code(compression),
        read_only: false,
        lineage: LineageId(store.core.catalog.next_lineage),
        created: store.now.0,
    }
}

fn create_volume(store: &Store, volume: VolumeRecord) -> Change {
    store.free_volume_name(&volume.name)?;
    store.check_growth()?;
    store.check_size(volume.size)?;
    let id = volume.id;
    Ok((Record::CreateVolume { volume }, Reply::Volume(id)))
}

fn create_base(store: &Store, volume: VolumeRecord, source: BaseInfo) -> Change {
    if !store.features_in_force().has(&BASES) {
        return Err(CommandError::Invalid(Invalid::NoBases));
    }
    if !BaseRecord::is_unit(source.unit) || source.source.len() > MAX_BASE_SOURCE {
        return Err(CommandError::Invalid(Invalid::Base));
    }
    store.free_volume_name(&volume.name)?;
    store.check_growth()?;
    store.check_size(volume.size)?;
    let BaseInfo { unit, source } = source;
    let new = NewBase { volume: volume.id, snapshot: SnapshotId(store.core.catalog.next_snapshot) };
    let record = Record::CreateBase { volume, unit, source, snapshot: new.snapshot, name: BASE_SNAPSHOT.to_owned() };
    Ok((record, Reply::Base(new)))
}

fn move_base(store: &Store, volume: VolumeId, source: String) -> Change {
    store.known_volume(volume)?;
    if !store.core.catalog.bases.contains_key(&volume) {
        return Err(CommandError::Invalid(Invalid::NotBase));
    }
    if source.len() > MAX_BASE_SOURCE {
        return Err(CommandError::Invalid(Invalid::Base));
    }
    Ok((Record::MoveBase { volume, source }, Reply::Done))
}

fn destroy_volume(store: &Store, volume: VolumeId) -> Change {
    store.known_volume(volume)?;
    let catalog = &store.core.catalog;
    for (id, snapshot) in catalog.snapshots.iter().filter(|(_, s)| s.volume == volume) {
        if catalog.clones_of(*id) > 0 {
            let (snapshot, hidden) = (snapshot.name.clone(), snapshot.hidden);
            return Err(CommandError::Busy(Busy::HasClones { snapshot, hidden }));
        }
        if !snapshot.hidden && store.is_held(snapshot) {
            return Err(CommandError::Busy(Busy::Held { snapshot: snapshot.name.clone() }));
        }
    }
    Ok((Record::RemoveVolume { volume }, Reply::Done))
}

fn rename_volume(store: &Store, volume: VolumeId, name: String) -> Change {
    store.known_volume(volume)?;
    store.free_volume_name(&name)?;
    Ok((Record::RenameVolume { volume, name }, Reply::Done))
}

fn set_options(store: &Store, volume: VolumeId, options: &VolumeOptions) -> Change {
    store.known_volume(volume)?;
    if options.special_small_blocks > 0 {
        // what is lost with special devices is not fetched again
        store.changeable(volume)?;
    }
    let (catalog, space) = (&store.core.catalog, &store.core.space);
    let kept = Reservations::missing_for(options.reservation, catalog.owned_units(volume));
    let more = options.reservation > catalog.options_of(volume).reservation;
    if more && space.live_units() + catalog.reservations.missing_of_others(volume) + kept > space.usable_units() {
        return Err(CommandError::NoSpace);
    }
    Ok((Record::Options { volume, options: options.record() }, Reply::Done))
}

fn snapshot(store: &Store, targets: Vec<(VolumeId, String)>, description: String, expires: Option<Time>) -> Change {
    if targets.is_empty() || targets.len() > MAX_GROUP || description.len() > MAX_DESCRIPTION {
        let why = Invalid::GroupSnapshot { most: MAX_GROUP, most_description: MAX_DESCRIPTION };
        return Err(CommandError::Invalid(why));
    }
    let mut seen = std::collections::BTreeSet::new();
    for (volume, name) in &targets {
        store.changeable(*volume)?;
        store.free_snapshot_name(*volume, name)?;
        if !seen.insert(*volume) {
            return Err(CommandError::Invalid(Invalid::TwiceInGroup));
        }
    }
    store.check_growth()?;
    let ids: Vec<SnapshotId> = (store.core.catalog.next_snapshot..).take(targets.len()).map(SnapshotId).collect();
    let targets = targets.into_iter().zip(&ids).map(|((volume, name), id)| (volume, *id, name)).collect();
    let (created, expires) = (store.now.0, expires.map(|time| time.0));
    Ok((Record::Snapshot { targets, created, description, expires }, Reply::Snapshots(ids)))
}

/// Adds the locks of new snapshots to their record. A crash may keep the snapshots without the
/// locks, but only if the command was not answered.
fn locks(store: &Store, (record, reply): (Record, Reply), lock_millis: Option<u64>) -> Result<(Vec<Record>, Reply), CommandError> {
    let mut records = vec![record];
    if let (Some(millis), Reply::Snapshots(ids)) = (lock_millis, &reply) {
        if millis > LONGEST_LOCK_MILLIS {
            return Err(CommandError::Invalid(Invalid::LockTooLong { most_days: LONGEST_LOCK_MILLIS / 86_400_000 }));
        }
        records.extend(ids.iter().map(|id| store.lock_of_new(*id, millis)));
    }
    Ok((records, reply))
}

fn rename_snapshot(store: &Store, snapshot: SnapshotId, name: String) -> Change {
    let volume = store.known_snapshot(snapshot)?.volume;
    store.changeable(volume)?;
    store.free_snapshot_name(volume, &name)?;
    Ok((Record::RenameSnapshot { snapshot, name }, Reply::Done))
}

fn roll_back(store: &Store, snapshot: SnapshotId, keep_as: String) -> Change {
    let volume = store.known_snapshot(snapshot)?.volume;
    store.changeable(volume)?;
    store.free_snapshot_name(volume, &keep_as)?;
    let catalog = &store.core.catalog;
    let (keep, lineage) = (SnapshotId(catalog.next_snapshot), LineageId(catalog.next_lineage));
    let record = Record::Rollback { snapshot, keep, name: keep_as, lineage, created: store.now.0 };
    Ok((record, Reply::Snapshots(vec![keep])))
}

fn clone(store: &Store, snapshot: SnapshotId, name: String) -> Change {
    store.known_snapshot(snapshot)?;
    store.free_volume_name(&name)?;
    store.check_growth()?;
    let catalog = &store.core.catalog;
    let (volume, lineage) = (VolumeId(catalog.next_volume), LineageId(catalog.next_lineage));
    Ok((Record::Clone { snapshot, volume, lineage, name, created: store.now.0 }, Reply::Volume(volume)))
}
