//! The reference system's volumes and snapshots: plain bytes in memory.

use std::collections::{BTreeMap, BTreeSet};

use millpond_block::{ByteRange, CacheMode, DiskError, Features, Geometry, SectorProfile};
use millpond_engine::{
    Absent, Busy, CatalogCommand, Command, CommandError, Compression, DiffExtent, HoldInfo, Invalid, PromotionPlan, Reply, SnapshotId,
    SnapshotInfo, Time, VolumeId, VolumeInfo, VolumeOptions,
};

use super::Bug;
use super::code::Entry;
use crate::disk::PAGE;
use crate::system::Target;

struct Volume {
    name: String,
    sector: SectorProfile,
    cache: CacheMode,
    compression: Compression,
    read_only: bool,
    origin: Option<SnapshotId>,
    /// The newest snapshot before its head.
    base: Option<SnapshotId>,
    bytes: Vec<u8>,
    /// Bytes that a shrink cut off (kept by a bug).
    tail: Vec<u8>,
}

struct Snapshot {
    volume: VolumeId,
    name: String,
    holds: u32,
    tags: BTreeSet<String>,
    bytes: Vec<u8>,
}

/// All volumes and snapshots.
pub struct Memory {
    bug: Bug,
    volumes: BTreeMap<VolumeId, Volume>,
    snapshots: BTreeMap<SnapshotId, Snapshot>,
    /// Every snapshot that ever existed, with its volume and its predecessor.
    links: BTreeMap<SnapshotId, (VolumeId, Option<SnapshotId>)>,
    next_volume: u32,
    next_snapshot: u64,
    pub closed: bool,
}

impl Memory {
    pub fn new(bug: Bug) -> Memory {
        let (volumes, snapshots, links) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Memory { bug, volumes, snapshots, links, next_volume: 1, next_snapshot: 1, closed: false }
    }

    pub fn last_snapshot(&self) -> SnapshotId {
        SnapshotId(self.next_snapshot - 1)
    }

    fn bytes(&self, target: Target) -> Option<&Vec<u8>> {
        match target {
            Target::Head(id) => self.volumes.get(&id).map(|v| &v.bytes),
            Target::Snapshot(id) => self.snapshots.get(&id).map(|s| &s.bytes),
        }
    }

    pub fn geometry(&self, target: Target) -> Option<(Geometry, Features, CacheMode)> {
        let size = self.bytes(target)?.len() as u64;
        let (volume, snapshot) = match target {
            Target::Head(id) => (self.volumes.get(&id)?, false),
            Target::Snapshot(id) => (self.volumes.get(&self.snapshots.get(&id)?.volume)?, true),
        };
        let features = Features { read_only: snapshot || volume.read_only, write_cache: true };
        Some((Geometry { size, sector: volume.sector }, features, volume.cache))
    }

    pub fn read(&self, target: Target, range: ByteRange) -> Vec<u8> {
        let (start, end) = (range.offset as usize, (range.offset + range.length) as usize);
        self.bytes(target).and_then(|b| b.get(start..end)).map(<[u8]>::to_vec).unwrap_or_default()
    }

    fn named(&self, name: &str) -> bool {
        self.volumes.values().any(|v| v.name == name)
    }

    fn snapshot_named(&self, volume: VolumeId, name: &str) -> bool {
        self.snapshots.values().any(|s| s.volume == volume && s.name == name)
    }

    /// Returns the number of other volumes with a version directly after this one, on a line to a
    /// head or listed snapshot.
    fn clones(&self, id: SnapshotId) -> u32 {
        let Some((own, _)) = self.links.get(&id) else { return 0 };
        let heads = self.volumes.iter().map(|(of, v)| (*of, v.base));
        let listed = self.snapshots.keys().filter_map(|id| self.links.get(id)).copied();
        let mut clones = BTreeSet::new();
        for (mut of, mut at) in heads.chain(listed) {
            while let Some((volume, before)) = at.and_then(|at| self.links.get(&at)) {
                if at == Some(id) && of != *own {
                    clones.insert(of);
                }
                (of, at) = (*volume, *before);
            }
        }
        clones.len() as u32
    }

    /// Returns the snapshots that a promotion moves, newest first.
    fn moved(&self, volume: VolumeId) -> Vec<SnapshotId> {
        let mut at = self.volumes.get(&volume).and_then(|v| v.base);
        let mut moved = Vec::new();
        let mut from = None;
        while let Some(id) = at {
            let Some((of, before)) = self.links.get(&id) else { break };
            if *of != volume && *from.get_or_insert(*of) == *of {
                moved.push(id);
            } else if from.is_some() {
                break;
            }
            at = *before;
        }
        moved
    }

    fn find_origins(&mut self) {
        let found: Vec<(VolumeId, Option<SnapshotId>)> = self.volumes.keys().map(|id| (*id, self.moved(*id).first().copied())).collect();
        for (id, origin) in found {
            self.volumes.get_mut(&id).into_iter().for_each(|v| v.origin = origin);
        }
    }

    fn own(&self, volume: VolumeId) -> impl Iterator<Item = SnapshotId> + '_ {
        self.snapshots.iter().filter(move |(_, s)| s.volume == volume).map(|(id, _)| *id)
    }

    pub fn check(&self, command: &Command) -> Result<(), CommandError> {
        let volume = |id: &VolumeId| self.volumes.get(id).map(|_| ()).ok_or(CommandError::NotFound(Absent::Volume));
        let snapshot = |id: &SnapshotId| self.snapshots.get(id).ok_or(CommandError::NotFound(Absent::Snapshot));
        let fresh = |taken: bool, name: &String| if taken { Err(CommandError::Exists(name.clone())) } else { Ok(()) };
        let busy = || CommandError::Busy(Busy::Replacing);
        let command = match command {
            Command::Catalog(command) => command,
            Command::Close | Command::Checkpoint => return Ok(()),
            Command::Devices(_) | Command::Keys(_) | Command::Job(_) | Command::Query(_) => {
                return Err(CommandError::Request(DiskError::NotSupported));
            }
        };
        match command {
            CatalogCommand::CreateVolume { name, .. } => fresh(self.named(name), name),
            CatalogCommand::RenameVolume { volume: id, name } => volume(id).and(fresh(self.named(name), name)),
            CatalogCommand::DestroyVolume { volume: id } if self.links.iter().any(|(s, link)| link.0 == *id && self.clones(*s) > 0) => {
                Err(busy())
            }
            CatalogCommand::DestroyVolume { volume: id }
            | CatalogCommand::ResizeVolume { volume: id, .. }
            | CatalogCommand::SetProperties { volume: id, .. }
            | CatalogCommand::SetSector { volume: id, .. } => volume(id),
            CatalogCommand::Snapshot { targets, .. } => {
                targets.iter().try_for_each(|(id, name)| volume(id).and(fresh(self.snapshot_named(*id, name), name)))
            }
            CatalogCommand::DestroySnapshots { snapshots } => snapshots.iter().try_for_each(|id| {
                let s = snapshot(id)?;
                let held = (s.holds > 0 || !s.tags.is_empty()) && self.bug != Bug::HoldIgnored;
                if held || self.clones(*id) > 0 { Err(busy()) } else { Ok(()) }
            }),
            CatalogCommand::RenameSnapshot { snapshot: id, name } | CatalogCommand::Rollback { snapshot: id, keep_as: name } => {
                fresh(self.snapshot_named(snapshot(id)?.volume, name), name)
            }
            CatalogCommand::Clone { snapshot: id, name } => snapshot(id).and(fresh(self.named(name), name)),
            CatalogCommand::Promote { volume: id, .. } => {
                let moved = self.moved(*id);
                let clash = |s: &SnapshotId| self.snapshots.get(s).is_some_and(|s| self.snapshot_named(*id, &s.name));
                volume(id)?;
                if moved.is_empty() || moved.iter().any(clash) { Err(busy()) } else { Ok(()) }
            }
            CatalogCommand::Hold { snapshot: id, tag, .. } => {
                let taken = tag.as_ref().is_some_and(|tag| self.snapshots.get(id).is_some_and(|s| s.tags.contains(tag)));
                snapshot(id).and(fresh(taken, &"a tag".to_owned()))
            }
            CatalogCommand::Release { snapshot: id, tag } => {
                let s = snapshot(id)?;
                let there = tag.as_ref().map_or(s.holds > 0, |tag| s.tags.contains(tag));
                if there { Ok(()) } else { Err(CommandError::Invalid(Invalid::NoHold(None))) }
            }
            CatalogCommand::SetOptions { .. } | CatalogCommand::CreateBase { .. } | CatalogCommand::MoveBase { .. } => {
                Err(CommandError::Request(DiskError::NotSupported))
            }
        }
    }

    pub fn reply(&self, command: &Command) -> Reply {
        match command {
            Command::Catalog(CatalogCommand::CreateVolume { .. } | CatalogCommand::Clone { .. }) => {
                Reply::Volume(VolumeId(self.next_volume))
            }
            Command::Catalog(CatalogCommand::Snapshot { targets, .. }) => {
                Reply::Snapshots((0..targets.len() as u64).map(|i| SnapshotId(self.next_snapshot + i)).collect())
            }
            Command::Catalog(CatalogCommand::Promote { volume, .. }) => {
                let mut snapshots = self.moved(*volume);
                let from = snapshots.first().and_then(|id| self.links.get(id)).map_or(*volume, |link| link.0);
                snapshots.retain(|id| self.snapshots.contains_key(id));
                snapshots.sort_unstable();
                Reply::Promotion(PromotionPlan { from, snapshots, bytes: 0 })
            }
            _ => Reply::Done,
        }
    }

    pub fn apply(&mut self, entry: &Entry, payload: &[u8]) {
        match entry {
            Entry::Write { volume, offset, length } => self.put(*volume, *offset, *length, |i| payload.get(i).copied().unwrap_or(0)),
            Entry::Zero { volume, offset, length } => self.put(*volume, *offset, *length, |_| 0),
            Entry::Command(command) => self.obey(command),
        }
    }

    fn put(&mut self, volume: VolumeId, offset: u64, length: u64, byte: impl Fn(usize) -> u8) {
        let range = offset as usize..(offset + length) as usize;
        let leaky = self.bug == Bug::SnapshotNotFrozen && offset.is_multiple_of(5);
        let newest = self.snapshots.iter_mut().rfind(|(_, s)| s.volume == volume);
        if let Some(slice) = newest.filter(|_| leaky).and_then(|(_, s)| s.bytes.get_mut(range.clone())) {
            slice.iter_mut().enumerate().for_each(|(i, b)| *b = byte(i));
        }
        if let Some(slice) = self.volumes.get_mut(&volume).and_then(|v| v.bytes.get_mut(range)) {
            slice.iter_mut().enumerate().for_each(|(i, b)| *b = byte(i));
        }
    }

    fn add_snapshot(&mut self, volume: VolumeId, name: &str, bytes: Vec<u8>) {
        let snapshot = Snapshot { volume, name: name.to_owned(), holds: 0, tags: BTreeSet::new(), bytes };
        let id = SnapshotId(self.next_snapshot);
        self.snapshots.insert(id, snapshot);
        let before = self.volumes.get_mut(&volume).and_then(|v| v.base.replace(id));
        self.links.insert(id, (volume, before));
        self.next_snapshot += 1;
    }

    fn obey(&mut self, command: &Command) {
        self.closed = false;
        let command = match command {
            Command::Catalog(command) => command,
            Command::Close => return self.closed = true,
            Command::Checkpoint | Command::Devices(_) | Command::Keys(_) | Command::Job(_) | Command::Query(_) => return,
        };
        match command {
            CatalogCommand::CreateVolume { name, size, sector, cache, compression } => {
                let (name, bytes) = (name.clone(), vec![0; *size as usize]);
                let (sector, cache, compression) = (*sector, *cache, *compression);
                let volume =
                    Volume { name, sector, cache, compression, read_only: false, origin: None, base: None, bytes, tail: Vec::new() };
                self.volumes.insert(VolumeId(self.next_volume), volume);
                self.next_volume += 1;
            }
            CatalogCommand::Clone { snapshot, name } => {
                let Some(s) = self.snapshots.get(snapshot) else { return };
                let Some(parent) = self.volumes.get(&s.volume) else { return };
                let (sector, cache, compression) = (parent.sector, parent.cache, parent.compression);
                let (name, bytes) = (name.clone(), s.bytes.clone());
                let (origin, tail) = (Some(*snapshot), Vec::new());
                let volume = Volume { name, sector, cache, compression, read_only: false, origin, base: origin, bytes, tail };
                self.volumes.insert(VolumeId(self.next_volume), volume);
                self.next_volume += 1;
            }
            CatalogCommand::DestroyVolume { volume } => {
                self.volumes.remove(volume);
                self.snapshots.retain(|_, s| s.volume != *volume);
            }
            CatalogCommand::RenameVolume { volume, name } => {
                if let Some(v) = self.volumes.get_mut(volume) {
                    v.name.clone_from(name);
                }
            }
            CatalogCommand::ResizeVolume { volume, size } => {
                let keeps = self.bug == Bug::ShrinkKeepsData;
                if let Some(v) = self.volumes.get_mut(volume) {
                    let (old, size) = (v.bytes.len(), *size as usize);
                    if size < old {
                        v.tail = v.bytes.split_off(size);
                    } else {
                        let tail = if keeps { std::mem::take(&mut v.tail) } else { Vec::new() };
                        v.bytes.extend(tail.into_iter().take(size - old));
                        v.bytes.resize(size, 0);
                    }
                }
            }
            CatalogCommand::SetProperties { volume, cache, compression, read_only } => {
                if let Some(v) = self.volumes.get_mut(volume) {
                    v.cache = cache.unwrap_or(v.cache);
                    v.compression = compression.unwrap_or(v.compression);
                    v.read_only = read_only.unwrap_or(v.read_only);
                }
            }
            CatalogCommand::SetSector { volume, sector } => {
                if let Some(v) = self.volumes.get_mut(volume) {
                    v.sector = *sector;
                }
            }
            CatalogCommand::Snapshot { targets, .. } => {
                for (volume, name) in targets {
                    let bytes = self.volumes.get(volume).map(|v| v.bytes.clone()).unwrap_or_default();
                    self.add_snapshot(*volume, name, bytes);
                }
            }
            CatalogCommand::DestroySnapshots { snapshots } => self.snapshots.retain(|id, _| !snapshots.contains(id)),
            CatalogCommand::RenameSnapshot { snapshot, name } => {
                if let Some(s) = self.snapshots.get_mut(snapshot) {
                    s.name.clone_from(name);
                }
            }
            CatalogCommand::Rollback { snapshot, keep_as } => {
                let Some(s) = self.snapshots.get(snapshot) else { return };
                let (volume, bytes) = (s.volume, s.bytes.clone());
                let Some(v) = self.volumes.get_mut(&volume) else { return };
                let mut old = std::mem::replace(&mut v.bytes, bytes.clone());
                if self.bug == Bug::RollbackForgetsHead {
                    old = bytes;
                }
                self.add_snapshot(volume, keep_as, old);
                self.volumes.get_mut(&volume).into_iter().for_each(|v| v.base = Some(*snapshot));
                self.find_origins();
            }
            CatalogCommand::Promote { volume, .. } => {
                for id in self.moved(*volume) {
                    self.links.get_mut(&id).into_iter().for_each(|link| link.0 = *volume);
                    self.snapshots.get_mut(&id).into_iter().for_each(|s| s.volume = *volume);
                }
                self.find_origins();
            }
            CatalogCommand::Hold { snapshot, tag, .. } => match (self.snapshots.get_mut(snapshot), tag) {
                (Some(s), Some(tag)) => {
                    s.tags.insert(tag.clone());
                }
                (Some(s), None) => s.holds += 1,
                (None, _) => {}
            },
            CatalogCommand::Release { snapshot, tag } => {
                let all = self.bug == Bug::ReleaseTakesAll;
                let Some(s) = self.snapshots.get_mut(snapshot) else { return };
                match tag {
                    _ if all => (s.holds, s.tags) = (0, BTreeSet::new()),
                    Some(tag) => {
                        s.tags.remove(tag);
                    }
                    None => s.holds = s.holds.saturating_sub(1),
                }
            }
            CatalogCommand::SetOptions { .. } | CatalogCommand::CreateBase { .. } | CatalogCommand::MoveBase { .. } => {}
        }
    }

    pub fn diff(&self, older: Option<Target>, newer: Target) -> Vec<DiffExtent> {
        let empty = Vec::new();
        let (old, new) = (older.and_then(|t| self.bytes(t)).unwrap_or(&empty), self.bytes(newer).unwrap_or(&empty));
        let mut extents = Vec::new();
        for (i, block) in new.chunks(PAGE).enumerate() {
            let before = old.get(i * PAGE..(i + 1) * PAGE);
            let data = block.iter().any(|b| *b != 0);
            let same = before.map_or(!data, |before| before == block);
            if !same && (data || self.bug != Bug::DiffMissesHoles) {
                extents.push(DiffExtent { offset: (i * PAGE) as u64, length: PAGE as u64, data });
            }
        }
        extents
    }

    pub fn volumes(&self) -> Vec<VolumeInfo> {
        let origin = |id: SnapshotId| {
            let s = self.snapshots.get(&id)?;
            Some(format!("{}@{}", self.volumes.get(&s.volume)?.name, s.name))
        };
        let info = |(id, v): (&VolumeId, &Volume)| VolumeInfo {
            id: *id,
            name: v.name.clone(),
            size: v.bytes.len() as u64,
            sector: v.sector,
            cache: v.cache,
            compression: v.compression,
            read_only: v.read_only,
            read_cache: millpond_engine::ReadCacheUse::default(),
            options: VolumeOptions::default(),
            referenced_bytes: 0,
            unique_bytes: 0,
            snapshots: self.own(*id).count() as u64,
            origin: v.origin.and_then(origin),
            base: None,
            created: Time(0),
        };
        self.volumes.iter().map(info).collect()
    }

    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        let info = |(id, s): (&SnapshotId, &Snapshot)| SnapshotInfo {
            id: *id,
            volume: s.volume,
            name: s.name.clone(),
            created: Time(0),
            epoch: id.0,
            referenced_bytes: 0,
            unique_bytes: 0,
            holds: s.holds + s.tags.len() as u32,
            hold_list: hold_list(s),
            clones: self.clones(*id),
            description: String::new(),
            expires: None,
            size: s.bytes.len() as u64,
        };
        self.snapshots.iter().map(info).collect()
    }
}

fn hold_list(s: &Snapshot) -> Vec<HoldInfo> {
    let tags = (0..s.holds).map(|_| None).chain(s.tags.iter().cloned().map(Some));
    tags.map(|tag| HoldInfo { tag, since: None, until: None, locked: false }).collect()
}
