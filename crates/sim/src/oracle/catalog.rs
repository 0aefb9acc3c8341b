//! Commands and the catalog: the changes of each command, the commands that must be refused, and
//! the required listing.

use std::collections::BTreeSet;

use millpond_engine::{
    BASE_SNAPSHOT, CatalogCommand, Command, CommandError, DeviceCommand, Invalid, JobCommand, NewBase, QueryCommand, Reply, SnapshotId,
    SnapshotInfo, VolumeId, VolumeInfo,
};

use super::history::{Cell, Cut, ZERO};
use super::{BLOCK, Frozen, Oracle, Snapshot, Verdict, Volume, broken};
use crate::base::Publication;
use crate::trace::{Moment, NEVER};

/// The listing of a system.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    pub volumes: Vec<VolumeInfo>,
    pub snapshots: Vec<SnapshotInfo>,
}

impl Listing {
    fn named(&self, name: &str) -> Option<&VolumeInfo> {
        self.volumes.iter().find(|v| v.name == name)
    }

    fn volume(&self, id: VolumeId) -> Option<&VolumeInfo> {
        self.volumes.iter().find(|v| v.id == id)
    }

    fn snapshot(&self, id: SnapshotId) -> Option<&SnapshotInfo> {
        self.snapshots.iter().find(|s| s.id == id)
    }

    fn snapshot_named(&self, volume: VolumeId, name: &str) -> Option<&SnapshotInfo> {
        self.snapshots.iter().find(|s| s.volume == volume && s.name == name)
    }
}

/// The required outcome of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Success,
    Refusal,
    Either,
}

/// A command without an answer.
#[derive(Clone, Debug)]
pub struct Issued {
    pub(super) command: Command,
    pub(super) at: Moment,
    /// Moment of the crash that interrupted it.
    pub(super) until: Moment,
    due: Due,
}

impl Oracle {
    /// Records a command. Commands in flight together must not concern the same volumes.
    pub fn issue(&mut self, tag: u64, command: Command, at: Moment) {
        let due = self.due(&command);
        if let Command::Keys(change) = &command {
            self.issue_keys(tag, change.clone());
        }
        self.commands.insert(tag, Issued { command, at, until: NEVER, due });
    }

    fn due(&self, command: &Command) -> Due {
        let refused = |refused| if refused { Due::Refusal } else { Due::Success };
        // A destroy in flight may remove the clones in the way; since promotions exist, also clones
        // that belong to other volumes.
        let unless_destroyed = if self.destroys_under_way() { Due::Either } else { Due::Refusal };
        let taken = |name: &String| self.volumes.values().any(|v| v.name == *name);
        let snapshot_taken = |id: VolumeId, name: &String| self.snapshots.values().any(|s| s.volume == id && s.name == *name);
        let command = match command {
            Command::Catalog(command) => command,
            Command::Close | Command::Checkpoint => return Due::Success,
            // The outcome depends on the devices and on running jobs. The workload submits no
            // queries but one; a world that does may judge the answer itself.
            Command::Devices(_) | Command::Job(_) | Command::Query(_) => return Due::Either,
            Command::Keys(_) => return Due::Success,
        };
        match command {
            _ if self.bases_forbid(command) => Due::Refusal,
            CatalogCommand::CreateVolume { name, size, .. } | CatalogCommand::CreateBase { name, size, .. } => {
                refused(taken(name) || *size == 0 || size % BLOCK != 0)
            }
            CatalogCommand::RenameVolume { volume, name } => refused(!self.volumes.contains_key(volume) || taken(name)),
            CatalogCommand::ResizeVolume { volume, size } => refused(!self.volumes.contains_key(volume) || *size == 0 || size % BLOCK != 0),
            CatalogCommand::SetProperties { volume, .. } | CatalogCommand::SetSector { volume, .. } => {
                refused(!self.volumes.contains_key(volume))
            }
            CatalogCommand::MoveBase { volume, .. } => refused(self.publication(*volume).is_none()),
            CatalogCommand::Clone { snapshot, name } => refused(!self.snapshots.contains_key(snapshot) || taken(name)),
            CatalogCommand::Promote { volume, .. } => refused(!self.may_promote(*volume)),
            CatalogCommand::Snapshot { targets, .. } => {
                refused(targets.iter().any(|(id, name)| !self.volumes.contains_key(id) || snapshot_taken(*id, name)))
            }
            CatalogCommand::DestroySnapshots { snapshots } => {
                if snapshots.iter().any(|id| self.snapshots.get(id).is_none_or(Snapshot::is_held)) {
                    Due::Refusal
                } else if snapshots.iter().any(|id| self.clones(*id) > 0) {
                    unless_destroyed
                } else {
                    Due::Success
                }
            }
            CatalogCommand::Rollback { snapshot, keep_as } => {
                refused(self.snapshots.get(snapshot).is_none_or(|s| snapshot_taken(s.volume, keep_as)))
            }
            CatalogCommand::RenameSnapshot { snapshot, name } => {
                refused(self.snapshots.get(snapshot).is_none_or(|s| snapshot_taken(s.volume, name)))
            }
            CatalogCommand::Hold { snapshot, tag, .. } => {
                refused(self.snapshots.get(snapshot).is_none_or(|s| tag.as_ref().is_some_and(|tag| s.tags.contains(tag))))
            }
            CatalogCommand::Release { snapshot, tag } => refused(self.snapshots.get(snapshot).is_none_or(|s| match tag {
                Some(tag) => !s.tags.contains(tag),
                None => s.holds == 0,
            })),
            CatalogCommand::DestroyVolume { volume } => {
                let own = || self.snapshots.values().filter(|s| s.volume == *volume);
                if !self.volumes.contains_key(volume) {
                    Due::Refusal
                } else if self.is_needed_by_others(*volume) {
                    unless_destroyed
                } else if own().any(Snapshot::is_held) {
                    Due::Either
                } else {
                    Due::Success
                }
            }
            // The workload never submits these; a world that does may judge the answer itself.
            CatalogCommand::SetOptions { .. } => Due::Either,
        }
    }

    /// Returns whether a volume is a clone, not of a base, whose promotion would move no snapshot to a
    /// name already in use.
    pub fn may_promote(&self, volume: VolumeId) -> bool {
        let taken = |name: &String| self.snapshots.values().any(|s| s.volume == volume && s.name == *name);
        let clash = self.promotion(volume).iter().filter_map(|id| self.snapshots.get(id)).any(|s| taken(&s.name));
        let origin = self.origin_volume(volume).is_some_and(|origin| self.publication(origin).is_none());
        origin && !clash
    }

    fn destroys_under_way(&self) -> bool {
        let is_destroy = |command: &Command| {
            matches!(command, Command::Catalog(CatalogCommand::DestroySnapshots { .. } | CatalogCommand::DestroyVolume { .. }))
        };
        self.commands.values().any(|issued| is_destroy(&issued.command))
    }

    /// Judges the answer to a command and applies its changes.
    ///
    /// # Errors
    /// If the answer is not legal.
    pub fn reply(&mut self, tag: u64, result: &Result<Reply, CommandError>, listing: &Listing, now: Moment) -> Verdict {
        let Some(mut issued) = self.commands.remove(&tag) else {
            return broken(format!("an answer to command #{tag}, which has none to get"));
        };
        if matches!(issued.command, Command::Keys(_)) {
            self.keys_answered(tag, result);
        }
        match (result, issued.due) {
            // After an import, until all labels name the feature.
            (Err(CommandError::Invalid(Invalid::NoEncryption)), _) if matches!(issued.command, Command::Keys(_)) => Ok(()),
            (Ok(_), Due::Refusal) => broken(format!("command #{tag} must be refused and succeeds: {:?}", issued.command)),
            (Ok(reply), _) => {
                if !self.fits(&issued.command, reply, listing) {
                    return broken(format!(
                        "command #{tag} is answered {reply:?}, which does not fit what is listed: {:?}",
                        issued.command
                    ));
                }
                self.apply(&issued, now, listing)?;
                if self.commands.is_empty() && self.unanswered.is_empty() { self.compare(listing) } else { Ok(()) }
            }
            (Err(CommandError::Faulted(_) | CommandError::NodeUnreadable | CommandError::Request(_)), _) if self.errors_allowed => {
                issued.until = now;
                self.unanswered.push(issued);
                Ok(())
            }
            (Err(_), Due::Refusal) | (Err(CommandError::Busy(_)), Due::Either) => Ok(()),
            // The data of the device does not fit on the others, the device was removed already, or
            // no such job runs.
            (Err(CommandError::Invalid(_) | CommandError::NotFound(_)), _)
                if matches!(
                    issued.command,
                    Command::Devices(DeviceCommand::Remove { .. } | DeviceCommand::StopRemoving)
                        | Command::Job(JobCommand::StopScrub | JobCommand::StopRebalance | JobCommand::StopWipe)
                ) =>
            {
                Ok(())
            }
            (Err(CommandError::NoSpace), _) if grows(&issued.command) => Ok(()),
            // The blocks that an earlier shrink cut off could not be read.
            (Err(CommandError::Busy(_)), _)
                if self.errors_allowed && matches!(issued.command, Command::Catalog(CatalogCommand::ResizeVolume { .. })) =>
            {
                Ok(())
            }
            (Err(error), _) => broken(format!("command #{tag} fails ({error}) and must not: {:?}", issued.command)),
        }
    }

    /// Returns whether an answer names the objects that the command made.
    fn fits(&self, command: &Command, reply: &Reply, listing: &Listing) -> bool {
        match (command, reply) {
            (Command::Catalog(CatalogCommand::CreateVolume { name, .. } | CatalogCommand::Clone { name, .. }), Reply::Volume(id)) => {
                listing.named(name).is_some_and(|v| v.id == *id)
            }
            (Command::Catalog(CatalogCommand::CreateBase { name, .. }), reply) => {
                let made = listing.named(name).and_then(|v| listing.snapshots.iter().find(|s| s.volume == v.id));
                made.is_some_and(|s| *reply == Reply::Base(NewBase { volume: s.volume, snapshot: s.id }))
            }
            (Command::Catalog(CatalogCommand::CreateVolume { .. } | CatalogCommand::Clone { .. } | CatalogCommand::Snapshot { .. }), _) => {
                match (command, reply) {
                    (Command::Catalog(CatalogCommand::Snapshot { targets, .. }), Reply::Snapshots(ids)) => {
                        let listed = targets.iter().map(|(volume, name)| listing.snapshot_named(*volume, name).map(|s| s.id));
                        listed.eq(ids.iter().map(|id| Some(*id)))
                    }
                    _ => false,
                }
            }
            (Command::Catalog(CatalogCommand::Promote { volume, .. }), reply) => {
                let mut moved = self.promotion(*volume);
                moved.sort_unstable();
                matches!(reply, Reply::Promotion(plan) if plan.snapshots == moved)
            }
            (Command::Query(QueryCommand::WriteSizes), reply) => matches!(reply, Reply::WriteSizes(_)),
            _ => true,
        }
    }

    /// Decides from the listing whether an unanswered command has happened.
    pub(super) fn has_happened(&self, issued: &Issued, listing: &Listing) -> Result<bool, super::Violation> {
        if issued.due == Due::Refusal {
            return Ok(false);
        }
        let Command::Catalog(command) = &issued.command else { return Ok(false) };
        Ok(match command {
            CatalogCommand::CreateVolume { name, .. } | CatalogCommand::CreateBase { name, .. } | CatalogCommand::Clone { name, .. } => {
                listing.named(name).is_some()
            }
            CatalogCommand::DestroyVolume { volume } => listing.volume(*volume).is_none(),
            CatalogCommand::RenameVolume { volume, name } => listing.volume(*volume).is_some_and(|v| v.name == *name),
            CatalogCommand::ResizeVolume { volume, size } => {
                // A resize to the current size changes nothing and leaves no trace.
                let cells = self.cells_of(*size);
                let new = self.volumes.get(volume).is_some_and(|v| v.cells.len() != cells);
                new && listing.volume(*volume).is_some_and(|v| v.size == *size)
            }
            CatalogCommand::SetProperties { volume, cache, compression, read_only } => listing.volume(*volume).is_some_and(|v| {
                cache.is_none_or(|c| c == v.cache)
                    && compression.is_none_or(|c| c == v.compression)
                    && read_only.is_none_or(|r| r == v.read_only)
            }),
            CatalogCommand::SetSector { volume, sector } => listing.volume(*volume).is_some_and(|v| v.sector == *sector),
            CatalogCommand::MoveBase { volume, source } => {
                listing.volume(*volume).and_then(|v| v.base.as_ref()).is_some_and(|base| base.source == *source)
            }
            CatalogCommand::Snapshot { targets, .. } => {
                let there = targets.iter().filter(|(volume, name)| listing.snapshot_named(*volume, name).is_some()).count();
                if there != 0 && there != targets.len() {
                    return broken(format!("a group snapshot of {} volumes is there for {there} of them", targets.len()));
                }
                there != 0
            }
            CatalogCommand::DestroySnapshots { snapshots } => {
                let gone = snapshots.iter().filter(|id| listing.snapshot(**id).is_none()).count();
                if gone != 0 && gone != snapshots.len() {
                    return broken(format!("of {} snapshots destroyed by one command {gone} are gone", snapshots.len()));
                }
                gone != 0
            }
            CatalogCommand::RenameSnapshot { snapshot, name } => listing.snapshot(*snapshot).is_some_and(|s| s.name == *name),
            CatalogCommand::Rollback { snapshot, keep_as } => {
                self.snapshots.get(snapshot).is_some_and(|s| listing.snapshot_named(s.volume, keep_as).is_some())
            }
            CatalogCommand::Promote { volume, .. } => {
                let moved = self.promotion(*volume);
                let there = moved.iter().filter(|id| listing.snapshot(**id).is_some_and(|s| s.volume == *volume)).count();
                if there != 0 && there != moved.len() {
                    return broken(format!("a promotion moved {there} of {} snapshots", moved.len()));
                }
                there != 0
            }
            CatalogCommand::Hold { snapshot, .. } | CatalogCommand::Release { snapshot, .. } => {
                let listed = listing.snapshot(*snapshot).map(holds);
                listed.is_some() && listed != self.snapshots.get(snapshot).map(|s| (s.holds, s.tags.clone()))
            }
            CatalogCommand::SetOptions { .. } => false,
        })
    }

    /// Applies a command that happened at some instant between `issued.at` and `until`.
    pub(super) fn apply(&mut self, issued: &Issued, until: Moment, listing: &Listing) -> Verdict {
        let Command::Catalog(command) = &issued.command else { return Ok(()) };
        match command {
            CatalogCommand::CreateVolume { name, size, sector, cache, compression } => {
                let cells = vec![Cell::settled(ZERO); self.cells_of(*size)];
                self.add_volume(name, None, cells, until, listing)?;
                let asked = (*sector, *cache, *compression);
                let made = listing.named(name).map(|v| (v.sector, v.cache, v.compression));
                if made != Some(asked) {
                    return broken(format!("the new volume {name} is {made:?}, must be {asked:?}"));
                }
            }
            CatalogCommand::CreateBase { .. } => self.add_base(command, issued.at, until, listing)?,
            CatalogCommand::DestroyVolume { volume } => {
                self.volumes.remove(volume);
                self.snapshots.retain(|_, s| s.volume != *volume);
                self.hidden.retain(|_, s| s.volume != *volume);
            }
            CatalogCommand::RenameVolume { volume, name } => {
                if let Some(v) = self.volumes.get_mut(volume) {
                    v.name.clone_from(name);
                }
            }
            CatalogCommand::ResizeVolume { volume, size } => self.resize(*volume, *size, issued.at),
            CatalogCommand::SetProperties { volume, cache, compression, read_only } => {
                if let Some(v) = self.volumes.get_mut(volume) {
                    v.cache = cache.unwrap_or(v.cache);
                    v.compression = compression.unwrap_or(v.compression);
                    v.read_only = read_only.unwrap_or(v.read_only);
                }
            }
            CatalogCommand::MoveBase { volume, source } => {
                if let Some(publication) = self.volumes.get_mut(volume).and_then(|v| v.publication.as_mut()) {
                    publication.info.source.clone_from(source);
                }
            }
            CatalogCommand::SetSector { volume, sector } => {
                if let Some(v) = self.volumes.get_mut(volume) {
                    v.sector = *sector;
                }
            }
            CatalogCommand::Snapshot { targets, .. } => {
                self.cuts.push(Cut::between(issued.at, until));
                for (volume, name) in targets {
                    self.freeze(*volume, name, issued.at, listing)?;
                }
            }
            CatalogCommand::DestroySnapshots { snapshots } => {
                let gone = self.snapshots.extract_if(.., |id, _| snapshots.contains(id));
                self.hidden.extend(gone.filter(|(id, _)| self.targets.contains(id)));
            }
            CatalogCommand::RenameSnapshot { snapshot, name } => {
                if let Some(s) = self.snapshots.get_mut(snapshot) {
                    s.name.clone_from(name);
                }
            }
            CatalogCommand::Promote { volume, .. } => self.promote(*volume),
            CatalogCommand::Rollback { snapshot, keep_as } => self.roll_back(*snapshot, keep_as, issued.at, until, listing)?,
            CatalogCommand::Clone { snapshot, name } => {
                let cells = self.thaw(*snapshot)?;
                self.add_volume(name, Some(*snapshot), cells, until, listing)?;
                let sector = self.snapshots.get(snapshot).map(|s| s.sector);
                if listing.named(name).map(|v| (v.sector, v.read_only)) != sector.map(|s| (s, false)) {
                    return broken(format!("the clone {name} has not the sectors of its origin, or is read-only"));
                }
            }
            CatalogCommand::Hold { snapshot, tag, .. } => match (self.snapshots.get_mut(snapshot), tag) {
                (Some(s), Some(tag)) => {
                    s.tags.insert(tag.clone());
                }
                (Some(s), None) => s.holds += 1,
                (None, _) => {}
            },
            CatalogCommand::Release { snapshot, tag } => match (self.snapshots.get_mut(snapshot), tag) {
                (Some(s), Some(tag)) => {
                    s.tags.remove(tag);
                }
                (Some(s), None) => s.holds = s.holds.saturating_sub(1),
                (None, _) => {}
            },
            CatalogCommand::SetOptions { .. } => {}
        }
        Ok(())
    }

    fn add_volume(&mut self, name: &str, origin: Option<SnapshotId>, cells: Vec<Cell>, now: Moment, listing: &Listing) -> Verdict {
        let Some(info) = listing.named(name) else { return broken(format!("the new volume {name} is not listed")) };
        if !self.seen_volumes.insert(info.id) {
            return broken(format!("volume id {} is used twice", info.id));
        }
        self.serials += 1;
        let volume = Volume {
            id: info.id,
            serial: self.serials,
            name: name.to_owned(),
            sector: info.sector,
            cache: info.cache,
            compression: info.compression,
            read_only: info.read_only,
            origin,
            base: origin,
            publication: None,
            through: origin.and_then(|id| self.snapshots.get(&id)?.through),
            grid: self.grid,
            cells,
            floor: now,
            crash: None,
            recovered: Vec::new(),
        };
        self.volumes.insert(info.id, volume);
        Ok(())
    }

    fn cells_of(&self, size: u64) -> usize {
        self.grid.cells(size / BLOCK * BLOCK) as usize
    }

    /// Adds a base and its snapshot, made at some instant between `at` and `until`.
    fn add_base(&mut self, command: &CatalogCommand, at: Moment, until: Moment, listing: &Listing) -> Verdict {
        let CatalogCommand::CreateBase { name, size, sector, compression, source } = command else { return Ok(()) };
        let publication = Publication { info: source.clone(), size: *size };
        self.add_volume(name, None, self.content(&publication), until, listing)?;
        let Some(volume) = self.volumes.values_mut().find(|volume| volume.name == *name) else { return Ok(()) };
        if (volume.sector, volume.compression) != (*sector, *compression) {
            return broken(format!("the new base {name} has {:?} and {:?}: {command:?}", volume.sector, volume.compression));
        }
        let id = volume.id;
        (volume.publication, volume.through) = (Some(publication), Some(id));
        self.cuts.push(Cut::between(at, until));
        self.freeze(id, BASE_SNAPSHOT, at, listing)
    }

    fn resize(&mut self, id: VolumeId, size: u64, at: Moment) {
        let cells = self.cells_of(size);
        if let Some(volume) = self.volumes.get_mut(&id) {
            volume.cells.resize(cells, Cell::settled(ZERO));
            volume.floor = volume.floor.max(at);
            if let Some(cut) = &mut volume.crash {
                cut.min = cut.min.max(at);
                volume.recovered.resize(cells, None);
            }
        }
    }

    /// Freezes a head at the newest cut.
    fn freeze(&mut self, volume: VolumeId, name: &str, at: Moment, listing: &Listing) -> Verdict {
        let cut_index = self.cuts.len() - 1;
        let (Some(head), Some(cut)) = (self.volumes.get_mut(&volume), self.cuts.get(cut_index)) else { return Ok(()) };
        let Some(info) = listing.snapshot_named(volume, name) else { return broken(format!("the new snapshot {name} is not listed")) };
        if !self.seen_snapshots.insert(info.id) {
            return broken(format!("snapshot id {} is used twice", info.id));
        }
        let mut cells = Vec::with_capacity(head.cells.len());
        for cell in &head.cells {
            cells.push(match cell.certain() {
                Some(value) => Frozen::Known(value),
                None => match cell.possible(cut, &self.pieces).as_slice() {
                    [value] => Frozen::Known(*value),
                    _ => Frozen::Open(Box::new(cell.clone())),
                },
            });
        }
        // The snapshot is durable and a crash leaves a prefix, so everything acknowledged before
        // the command is durable, too.
        head.floor = head.floor.max(at);
        if let Some(crash) = &mut head.crash {
            crash.min = crash.min.max(at);
        }
        let (id, name, sector, through, grid) = (info.id, name.to_owned(), head.sector, head.through, self.grid);
        let snapshot = Snapshot { id, volume, name, holds: 0, tags: BTreeSet::new(), sector, through, grid, cells, cut: cut_index };
        self.snapshots.insert(id, snapshot);
        self.descend(volume, id);
        Ok(())
    }

    /// Returns the cells of a new head on a snapshot.
    fn thaw(&self, id: SnapshotId) -> Result<Vec<Cell>, super::Violation> {
        let Some(snapshot) = self.snapshots.get(&id) else { return Ok(Vec::new()) };
        let cells: Option<Vec<Cell>> = (0..snapshot.cells.len()).map(|s| snapshot.value(s).map(Cell::settled)).collect();
        cells.map_or_else(|| broken("the world builds on a snapshot that it has not read"), Ok)
    }

    fn roll_back(&mut self, id: SnapshotId, keep_as: &str, at: Moment, until: Moment, listing: &Listing) -> Verdict {
        let Some(volume) = self.snapshots.get(&id).map(|s| s.volume) else { return Ok(()) };
        let cells = self.thaw(id)?;
        self.cuts.push(Cut::between(at, until));
        self.freeze(volume, keep_as, at, listing)?;
        if let Some(head) = self.volumes.get_mut(&volume) {
            head.cells = cells;
            head.floor = head.floor.max(until);
            head.crash = None;
            head.recovered = Vec::new();
        }
        self.start_from(volume, id);
        self.targets.insert(id);
        Ok(())
    }

    /// Compares the listing with the required state.
    ///
    /// # Errors
    /// If they differ.
    pub fn compare(&self, listing: &Listing) -> Verdict {
        let listed: BTreeSet<VolumeId> = listing.volumes.iter().map(|v| v.id).collect();
        if !listed.iter().eq(self.volumes.keys()) {
            return broken(format!("volumes {listed:?} are listed, {:?} must be", self.volumes.keys().collect::<Vec<_>>()));
        }
        let listed: BTreeSet<SnapshotId> = listing.snapshots.iter().map(|s| s.id).collect();
        if !listed.iter().eq(self.snapshots.keys()) {
            return broken(format!("snapshots {listed:?} are listed, {:?} must be", self.snapshots.keys().collect::<Vec<_>>()));
        }
        for info in &listing.volumes {
            let Some(volume) = self.volumes.get(&info.id) else { continue };
            let origin = volume
                .origin
                .and_then(|id| self.snapshots.get(&id))
                .and_then(|s| Some(format!("{}@{}", self.volumes.get(&s.volume)?.name, s.name)));
            let snapshots = self.snapshots.values().filter(|s| s.volume == info.id).count() as u64;
            let is = (&info.name, info.size, info.sector, info.cache, info.compression, info.read_only, info.snapshots, &info.origin);
            let must = (&volume.name, volume.size(), volume.sector, volume.cache, volume.compression, volume.read_only, snapshots, &origin);
            if is != must {
                return broken(format!("volume {} is listed as {is:?}, must be {must:?}", info.id));
            }
            self.compare_base(volume, info)?;
        }
        let crossings = self.crossings();
        for info in &listing.snapshots {
            let Some(snapshot) = self.snapshots.get(&info.id) else { continue };
            let (plain, tags) = (snapshot.holds, &snapshot.tags);
            let is = (info.volume, &info.name, info.holds as usize, holds(info), info.clones as usize, info.size);
            let held = plain as usize + tags.len();
            let clones = crossings.iter().filter(|(id, _)| *id == info.id).count();
            let must = (snapshot.volume, &snapshot.name, held, (plain, tags.clone()), clones, snapshot.size());
            if is != must {
                return broken(format!("snapshot {} is listed as {is:?}, must be {must:?}", info.id));
            }
        }
        Ok(())
    }
}

/// Returns the listed holds: the number without a tag, and the tags of the others.
fn holds(info: &SnapshotInfo) -> (u32, BTreeSet<String>) {
    let plain = info.hold_list.iter().filter(|hold| hold.tag.is_none()).count() as u32;
    (plain, info.hold_list.iter().filter_map(|hold| hold.tag.clone()).collect())
}

/// Returns whether a full pool may refuse the command. Commands that free space, and rollback, must
/// work (I9).
fn grows(command: &Command) -> bool {
    !matches!(
        command,
        Command::Catalog(
            CatalogCommand::DestroyVolume { .. }
                | CatalogCommand::DestroySnapshots { .. }
                | CatalogCommand::Rollback { .. }
                | CatalogCommand::Release { .. }
        ) | Command::Checkpoint
            | Command::Close
            | Command::Devices(_)
            | Command::Keys(_)
    )
}
