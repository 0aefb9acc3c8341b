//! Commands: checked against the catalog, logged as records, applied, made durable, answered.

use millpond_block::{CacheMode, DiskError, Tag};
use millpond_format::{LineageId, Record, SnapshotId, VolumeId, VolumeRecord};

use super::op::{Owner, Work};
use super::requests::Requests;
use super::state::Pool;
use crate::core::{Reservations, cache_code, compression_code, sector_code};
use crate::store::Store;
use crate::task::rehearse_removal;
use crate::{Absent, Busy, CatalogCommand, Command, CommandError, DeviceCommand, Invalid, JobCommand, Planted, PoolState, QueryCommand, Reply};

/// Turns after which commands that wait for room fail with `NoSpace`.
pub(crate) const STARVED_TURNS: u32 = 20_000;
/// Milliseconds between checkpoints that are written to make room for commands when nothing else
/// does.
const CHECKPOINT_MILLIS: u64 = 200;
/// Most volumes of one group snapshot.
const MAX_GROUP: usize = 256;

/// Most bytes of a description.
const MAX_DESCRIPTION: usize = 1024;

impl Requests {
    /// Handles a command of a read-only pool: only queries and the close are possible.
    fn command_unwritten(&mut self, store: &mut Store, tag: Tag, command: Command) {
        match command {
            Command::Close => {
                store.closing = Some(tag);
                store.state = PoolState::Closing;
            }
            Command::Query(QueryCommand::Places { target }) => self.start_places(store, tag, target),
            Command::Query(QueryCommand::Lost { target }) => self.start_lost(store, tag, target),
            Command::Query(QueryCommand::WriteSizes) => self.start_census(store, tag),
            _ => store.replies.push_back((tag, Err(CommandError::Busy(Busy::ReadOnly)))),
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
        if let Err(error) = store.check_size(size).and_then(|()| store.known_volume(volume)) {
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
            return self.parked_commands.push((tag, Command::Catalog(CatalogCommand::ResizeVolume { volume, size })));
        }
        let old = store.core.catalog.volumes.get(&volume).map_or(0, |v| v.size);
        if self.log_records(store, tag, vec![Record::Resize { volume, size }], Reply::Done) && size < old {
            // blocks beyond the end are unreachable at once; their space is released in steps
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
            return self.parked_commands.push((tag, Command::Catalog(CatalogCommand::Promote { volume, dry_run: false })));
        }
        if self.log_records(store, tag, vec![Record::Promote { volume }], Reply::Promotion(promotion.plan())) {
            store.checkpoint.estimate.lists += bytes;
        }
    }

    /// Checks a command and turns it into records and the reply for success.
    fn records(&mut self, store: &mut Store, command: Command) -> Result<(Vec<Record>, Reply), CommandError> {
        let created = store.now.0;
        let catalog = &store.core.catalog;
        let lineage = LineageId(catalog.next_lineage);
        let one = |record, reply| Ok((vec![record], reply));
        match command {
            Command::Catalog(CatalogCommand::CreateVolume { name, size, sector, cache, compression }) => {
                store.free_volume_name(&name)?;
                store.check_growth()?;
                store.check_size(size)?;
                let id = VolumeId(catalog.next_volume);
                let volume = VolumeRecord {
                    id,
                    name,
                    size,
                    sector: sector_code(sector),
                    cache: cache_code(cache),
                    compression: compression_code(compression),
                    read_only: false,
                    lineage,
                    created,
                };
                one(Record::CreateVolume { volume }, Reply::Volume(id))
            }
            Command::Catalog(CatalogCommand::DestroyVolume { volume }) => {
                store.known_volume(volume)?;
                let needed = catalog.snapshots.iter().filter(|(_, s)| s.volume == volume);
                for (id, snapshot) in needed {
                    if catalog.clones_of(*id) > 0 {
                        let (snapshot, hidden) = (snapshot.name.clone(), snapshot.hidden);
                        return Err(CommandError::Busy(Busy::HasClones { snapshot, hidden }));
                    }
                    if !snapshot.hidden && store.is_held(snapshot) {
                        return Err(CommandError::Busy(Busy::Held { snapshot: snapshot.name.clone() }));
                    }
                }
                one(Record::RemoveVolume { volume }, Reply::Done)
            }
            Command::Catalog(CatalogCommand::RenameVolume { volume, name }) => {
                store.known_volume(volume)?;
                store.free_volume_name(&name)?;
                one(Record::RenameVolume { volume, name }, Reply::Done)
            }
            Command::Catalog(CatalogCommand::SetProperties { volume, cache, compression, read_only }) => {
                let v = catalog.volumes.get(&volume).ok_or(CommandError::NotFound(Absent::Volume))?;
                let record = Record::Properties {
                    volume,
                    cache: cache_code(cache.unwrap_or(v.cache)),
                    compression: compression_code(compression.unwrap_or(v.compression)),
                    read_only: read_only.unwrap_or(v.read_only),
                };
                if cache.is_some_and(CacheMode::every_write_durable) {
                    self.tighten(store, volume);
                }
                one(record, Reply::Done)
            }
            Command::Catalog(CatalogCommand::SetOptions { volume, options }) => {
                store.known_volume(volume)?;
                let kept = Reservations::missing_for(options.reservation, catalog.owned_units(volume));
                let space = &store.core.space;
                let more = options.reservation > catalog.options_of(volume).reservation;
                if more && space.live_units() + catalog.reservations.missing_of_others(volume) + kept > space.usable_units() {
                    return Err(CommandError::NoSpace);
                }
                one(Record::Options { volume, options: options.record() }, Reply::Done)
            }
            Command::Catalog(CatalogCommand::SetSector { volume, sector }) => {
                store.known_volume(volume)?;
                one(Record::Sector { volume, sector: sector_code(sector) }, Reply::Done)
            }
            Command::Catalog(CatalogCommand::Snapshot { targets, description, expires }) => {
                if targets.is_empty() || targets.len() > MAX_GROUP || description.len() > MAX_DESCRIPTION {
                    let why = Invalid::GroupSnapshot { most: MAX_GROUP, most_description: MAX_DESCRIPTION };
                    return Err(CommandError::Invalid(why));
                }
                let mut seen = std::collections::BTreeSet::new();
                for (volume, name) in &targets {
                    store.known_volume(*volume)?;
                    store.free_snapshot_name(*volume, name)?;
                    if !seen.insert(*volume) {
                        return Err(CommandError::Invalid(Invalid::TwiceInGroup));
                    }
                }
                store.check_growth()?;
                let ids: Vec<SnapshotId> = (catalog.next_snapshot..).take(targets.len()).map(SnapshotId).collect();
                let targets = targets.into_iter().zip(&ids).map(|((volume, name), id)| (volume, *id, name)).collect();
                let expires = expires.map(|t| t.0);
                one(Record::Snapshot { targets, created, description, expires }, Reply::Snapshots(ids))
            }
            Command::Catalog(CatalogCommand::RenameSnapshot { snapshot, name }) => {
                let volume = store.known_snapshot(snapshot)?.volume;
                store.free_snapshot_name(volume, &name)?;
                one(Record::RenameSnapshot { snapshot, name }, Reply::Done)
            }
            Command::Catalog(CatalogCommand::Rollback { snapshot, keep_as }) => {
                let volume = store.known_snapshot(snapshot)?.volume;
                store.free_snapshot_name(volume, &keep_as)?;
                let keep = SnapshotId(catalog.next_snapshot);
                one(Record::Rollback { snapshot, keep, name: keep_as, lineage, created }, Reply::Snapshots(vec![keep]))
            }
            Command::Catalog(CatalogCommand::Clone { snapshot, name }) => {
                store.known_snapshot(snapshot)?;
                store.free_volume_name(&name)?;
                store.check_growth()?;
                let volume = VolumeId(catalog.next_volume);
                one(Record::Clone { snapshot, volume, lineage, name, created }, Reply::Volume(volume))
            }
            Command::Catalog(CatalogCommand::Hold { snapshot, tag, until, locked }) => one(store.hold(snapshot, tag, until, locked)?, Reply::Done),
            Command::Catalog(CatalogCommand::Release { snapshot, tag }) => one(store.release_hold(snapshot, tag)?, Reply::Done),
            Command::Catalog(CatalogCommand::ResizeVolume { .. } | CatalogCommand::DestroySnapshots { .. } | CatalogCommand::Promote { .. })
            | Command::Devices(DeviceCommand::AddDevices { .. } | DeviceCommand::Replace { .. } | DeviceCommand::CheckDevices(_) | DeviceCommand::Remove { .. } | DeviceCommand::StopRemoving)
            | Command::Job(JobCommand::Scrub | JobCommand::StopScrub | JobCommand::Rebalance { .. } | JobCommand::StopRebalance | JobCommand::Wipe { .. } | JobCommand::StopWipe | JobCommand::SetJobRate { .. })
            | Command::Query(QueryCommand::Places { .. } | QueryCommand::Lost { .. } | QueryCommand::WriteSizes)
            | Command::Close
            | Command::Checkpoint => Err(CommandError::Invalid(Invalid::NotACatalogChange)),
        }
    }
}

impl Pool {
    /// Starts a command.
    pub(crate) fn command(&mut self, tag: Tag, command: Command) {
        if let PoolState::Faulted(why) = &self.store.state {
            let error = CommandError::Faulted(why.clone());
            return self.store.replies.push_back((tag, Err(error)));
        }
        if self.store.closing.is_some() {
            return self.store.replies.push_back((tag, Err(CommandError::Busy(Busy::Closing))));
        }
        if self.store.tuning.read_only {
            return self.requests.command_unwritten(&mut self.store, tag, command);
        }
        let pages = pages_of(&command);
        if pages >= self.store.core.space.rows.smallest() as usize {
            let error = CommandError::Invalid(Invalid::TooManyNames);
            return self.store.replies.push_back((tag, Err(error)));
        }
        // commands that need no room in the log wait for none, above all those that free space
        let unlogged = matches!(
            command,
            Command::Devices(DeviceCommand::AddDevices { .. } | DeviceCommand::Replace { .. } | DeviceCommand::CheckDevices(_) | DeviceCommand::Remove { .. } | DeviceCommand::StopRemoving)
                | Command::Query(QueryCommand::Places { .. } | QueryCommand::Lost { .. } | QueryCommand::WriteSizes)
        );
        // these need no room either, but do not overtake other commands
        let bare = matches!(command, Command::Close | Command::Checkpoint) && self.requests.parked_commands.is_empty();
        let unlogged = unlogged || bare;
        if self.store.state == PoolState::Opening || (!unlogged && !self.store.record_room(pages) && !self.requests.records_starve()) {
            return self.requests.parked_commands.push((tag, command));
        }
        match command {
            Command::Close => {
                self.suspend_jobs();
                self.store.closing = Some(tag);
                self.store.state = PoolState::Closing;
            }
            Command::Checkpoint => self.store.checkpoint.wanted.push(tag),
            Command::Catalog(CatalogCommand::ResizeVolume { volume, size }) => self.requests.resize(&mut self.store, tag, volume, size),
            Command::Devices(DeviceCommand::AddDevices { groups, devices }) => self.change_devices(tag, |pool| pool.add_groups(&groups, &devices)),
            Command::Devices(DeviceCommand::Replace { member, device }) => self.change_devices(tag, |pool| pool.replace(member, device)),
            Command::Devices(DeviceCommand::CheckDevices(change)) => {
                let told = self.store.check_change(&change).map(|()| Reply::Done);
                self.store.replies.push_back((tag, told));
            }
            Command::Devices(DeviceCommand::Remove { member, dry_run: true }) => {
                let told = rehearse_removal(&self.store, &self.resilver, member).map(Reply::Removal);
                self.store.replies.push_back((tag, told));
            }
            Command::Devices(DeviceCommand::Remove { member, dry_run: false }) => self.change_devices(tag, |pool| pool.remove_member(member)),
            Command::Devices(DeviceCommand::StopRemoving) => self.change_devices(tag, |pool| pool.store.stop_removing()),
            Command::Job(JobCommand::Scrub) => self.change_jobs(tag, |pool| pool.scrubber.scrub(&mut pool.store)),
            Command::Job(JobCommand::StopScrub) => self.change_jobs(tag, |pool| pool.scrubber.stop_scrub(&mut pool.store)),
            Command::Job(JobCommand::Rebalance { dry_run: true }) => {
                let told = self.rebalancer.rebalance(&mut self.store, true);
                self.store.replies.push_back((tag, told));
            }
            Command::Job(JobCommand::Rebalance { dry_run: false }) => self.change_jobs(tag, |pool| pool.rebalancer.rebalance(&mut pool.store, false)),
            Command::Job(JobCommand::StopRebalance) => self.change_jobs(tag, |pool| pool.rebalancer.stop_rebalance(&mut pool.store)),
            Command::Job(JobCommand::Wipe { how, dry_run: true }) => {
                let told = self.wiper.wipe(&mut self.store, &self.resilver, how, true);
                self.store.replies.push_back((tag, told));
            }
            Command::Job(JobCommand::Wipe { how, dry_run: false }) => {
                self.change_jobs(tag, |pool| pool.wiper.wipe(&mut pool.store, &pool.resilver, how, false))
            }
            Command::Job(JobCommand::StopWipe) => self.change_jobs(tag, |pool| pool.wiper.stop_wipe(&mut pool.store)),
            Command::Job(JobCommand::SetJobRate { rate }) => self.change_jobs(tag, |pool| pool.store.set_job_rate(rate)),
            Command::Catalog(CatalogCommand::Promote { volume, dry_run: true }) => {
                let plan = self.store.plan_promotion(volume).map(|promotion| Reply::Promotion(promotion.plan()));
                self.store.replies.push_back((tag, plan));
            }
            Command::Catalog(CatalogCommand::Promote { volume, dry_run: false }) => self.requests.promote(&mut self.store, tag, volume),
            Command::Catalog(CatalogCommand::DestroySnapshots { snapshots }) => self.requests.start_destroy(&mut self.store, tag, snapshots),
            Command::Query(QueryCommand::Places { target }) => self.requests.start_places(&mut self.store, tag, target),
            Command::Query(QueryCommand::Lost { target }) => self.requests.start_lost(&mut self.store, tag, target),
            Command::Query(QueryCommand::WriteSizes) => self.requests.start_census(&mut self.store, tag),
            other => match self.requests.records(&mut self.store, other) {
                Ok((records, reply)) => {
                    let begun = records.iter().find_map(|record| match record {
                        Record::Rollback { snapshot, .. } => self.store.core.catalog.snapshots.get(snapshot).map(|s| s.volume),
                        Record::Clone { volume, .. } => Some(*volume),
                        _ => None,
                    });
                    if self.requests.log_records(&mut self.store, tag, records, reply)
                        && let Some(volume) = begun
                    {
                        // the snapshot may be from the time when the discard after a shrink was in
                        // progress
                        self.requests.trim_beyond(&mut self.store, volume);
                    }
                }
                Err(error) => self.store.replies.push_back((tag, Err(error))),
            },
        }
    }

    /// Retries the commands and clears that wait for room; fails them when none has come for long.
    pub(super) fn retry_commands(&mut self) {
        if !self.requests.records_wait() || self.store.state == PoolState::Opening {
            self.requests.starved_commands = 0;
            return;
        }
        self.requests.starved_commands += 1;
        if !self.store.record_room(1) && self.cleaner.idle() && self.store.now.0 >= self.store.checkpoint.begun.0 + CHECKPOINT_MILLIS {
            // I9: until a checkpoint has written the changes so far, space is reserved for them,
            // which the cleaner may need; and only a checkpoint moves objects out of sparse
            // segments
            self.store.checkpoint.forced |= !self.store.checkpoint.running();
        }
        if self.store.record_room(1) || self.requests.records_starve() {
            for id in std::mem::take(&mut self.requests.record_waiters) {
                if self.requests.records_starve() {
                    self.requests.fail_op(&mut self.store, id, DiskError::NoSpace)
                } else {
                    self.requests.go_on(&mut self.store, id)
                }
            }
        }
        for (tag, command) in std::mem::take(&mut self.requests.parked_commands) {
            self.command(tag, command);
        }
    }
}

/// Returns the most pages that a command's records take, with the headers of their batches; for
/// commands with several records those of the first.
fn pages_of(command: &Command) -> usize {
    let bytes: usize = match command {
        Command::Catalog(CatalogCommand::Snapshot { targets, description, .. }) => {
            description.len() + targets.iter().map(|(_, name)| 32 + name.len()).sum::<usize>()
        }
        _ => 1024,
    };
    2 + bytes / 2048
}
