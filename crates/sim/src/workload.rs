//! Random actions of guests and operators: mixes, hot spots, sequential runs, filling the pool and
//! freeing space.

use std::collections::{BTreeMap, BTreeSet};

use millpond_block::{ByteRange, CacheMode, Op, Query, Request, SectorProfile, Since};
use millpond_engine::{CatalogCommand, Command, Compression, SnapshotId, VolumeId};

use crate::config::{Mix, base};
use crate::oracle::{BLOCK, Oracle, Snapshot, Volume};
use crate::rng::Rng;
use crate::system::Target;

/// Phase of the guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The usual mix.
    Mixed,
    /// Writing until the pool is full, for at most this number of steps.
    Filling(u32),
    /// Freeing space, for this number of steps.
    Relieving(u32),
}

/// A guest request to submit.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    pub target: Target,
    pub request: Request,
    /// The payload of the write is zeroes.
    pub zeroes: bool,
    /// Byte-granular, from a guest with a file: the range need not be whole sectors.
    pub bytes: bool,
}

impl Ask {
    /// Makes a request of a guest with a disk.
    pub fn new(target: Target, op: Op, range: ByteRange) -> Ask {
        Ask { target, request: Request { op, range, fua: false }, zeroes: false, bytes: false }
    }
}

/// A command to submit.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The command; `None` for the comparison in `diff`.
    pub command: Option<Command>,
    /// Two snapshots to compare, the older one optional.
    pub diff: Option<(Option<SnapshotId>, SnapshotId)>,
    /// Volumes that no other command may use meanwhile.
    pub volumes: Vec<VolumeId>,
    /// Targets that must have no request in flight meanwhile.
    pub quiet: Vec<Target>,
}

/// The guests and operators of one world.
#[derive(Clone, Debug)]
pub struct Workload {
    rng: Rng,
    mix: Mix,
    fills: bool,
    names: u64,
    phase: Phase,
    cursors: BTreeMap<VolumeId, u64>,
    /// Maximum bytes of all volumes together, so that worlds stay small.
    pub volume_limit: u64,
}

/// Maximum volumes and snapshots of a world.
const MAX_VOLUMES: usize = 8;
const MAX_SNAPSHOTS: usize = 24;

impl Workload {
    /// Makes guests with this mix. With `fills`, they sometimes fill the pool.
    pub fn new(mix: Mix, fills: bool, volume_limit: u64, rng: Rng) -> Workload {
        Workload { rng, mix, fills, names: 0, phase: Phase::Mixed, cursors: BTreeMap::new(), volume_limit }
    }

    /// Stops commands and filling.
    pub fn without_commands(&mut self) {
        (self.mix.commands, self.fills, self.phase) = (0, false, Phase::Mixed);
    }

    /// Returns a name that was never used.
    pub fn name(&mut self, prefix: &str) -> String {
        self.names += 1;
        format!("{prefix}{}", self.names)
    }

    /// Reacts to a write that found no space.
    pub fn no_space(&mut self) {
        if matches!(self.phase, Phase::Filling(_)) && self.rng.percent(30) {
            self.phase = Phase::Relieving(40);
        } else if self.phase == Phase::Mixed && self.rng.percent(5) {
            self.phase = Phase::Relieving(15);
        }
    }

    fn advance(&mut self) {
        self.phase = match self.phase {
            Phase::Mixed if self.fills && self.rng.percent(1) => Phase::Filling(150),
            Phase::Filling(1) | Phase::Relieving(1) => Phase::Mixed,
            Phase::Filling(n) => Phase::Filling(n - 1),
            Phase::Relieving(n) => Phase::Relieving(n - 1),
            Phase::Mixed => Phase::Mixed,
        };
    }

    /// Returns the next guest request, or `None` if all targets are taken.
    pub fn ask(&mut self, oracle: &Oracle, taken: &BTreeSet<Target>) -> Option<Ask> {
        self.advance();
        let heads: Vec<&Volume> = oracle.volumes().filter(|v| !taken.contains(&Target::Head(v.id))).collect();
        if heads.is_empty() {
            return None;
        }
        let volume = *self.rng.pick(&heads);
        let target = Target::Head(volume.id);
        let kind = match self.phase {
            Phase::Mixed => self.rng.weighted(&self.mix.requests),
            Phase::Filling(_) if !volume.is_base() => return Some(self.fill(volume)),
            Phase::Filling(_) => 0,
            Phase::Relieving(_) => self.rng.weighted(&[20, 10, 50, 0, 10, 0, 0]),
        };
        let kind = if self.spares(volume) { 0 } else { kind };
        let fua = self.rng.percent(self.mix.fua);
        let range = self.range(volume);
        let ask = |op, range, fua| Ask { request: Request { op, range, fua }, ..Ask::new(target, op, range) };
        Some(match kind {
            0 => {
                let readable: Vec<&Snapshot> = oracle.snapshots().filter(|s| !taken.contains(&Target::Snapshot(s.id))).collect();
                if readable.is_empty() || self.rng.percent(70) {
                    ask(Op::Read, range, false)
                } else {
                    let snapshot = *self.rng.pick(&readable);
                    self.read_snapshot(snapshot)
                }
            }
            1 => Ask { zeroes: self.rng.percent(3), ..ask(Op::Write, range, fua) },
            2 => {
                let range = if self.rng.percent(30) { self.large(volume) } else { range };
                ask(Op::Discard, range, fua)
            }
            3 => ask(Op::WriteZeroes { may_unmap: self.rng.percent(50) }, range, fua),
            4 => ask(Op::Flush, ByteRange { offset: 0, length: 0 }, false),
            5 => ask(Op::Cache, range, false),
            _ => self.malformed(volume, oracle, taken),
        })
    }

    fn fill(&mut self, volume: &Volume) -> Ask {
        let cursor = self.cursors.entry(volume.id).or_default();
        let length = (BLOCK * 32).min(volume.size());
        let offset = if *cursor + length > volume.size() { 0 } else { *cursor };
        *cursor = offset + length;
        Ask::new(Target::Head(volume.id), Op::Write, ByteRange { offset, length })
    }

    fn read_snapshot(&mut self, snapshot: &Snapshot) -> Ask {
        let blocks = snapshot.size() / BLOCK;
        let first = self.rng.below(blocks);
        let count = self.rng.between(1, 16).min(blocks - first);
        Ask::new(Target::Snapshot(snapshot.id), Op::Read, ByteRange { offset: first * BLOCK, length: count * BLOCK })
    }

    fn range(&mut self, volume: &Volume) -> ByteRange {
        let unaligned = volume.sector != SectorProfile::S4kn && self.rng.percent(self.mix.unaligned);
        let unit = if unaligned { 512 } else { BLOCK };
        let units = volume.size() / unit;
        let most = if unaligned { self.mix.blocks * 8 } else { self.mix.blocks };
        let count = if self.rng.percent(50) { 1 } else { self.rng.between(1, most) }.min(units);
        let place = if self.rng.percent(self.mix.sequential) {
            self.cursors.get(&volume.id).copied().unwrap_or(0) / unit
        } else if self.rng.percent(self.mix.hot) {
            self.rng.below(units.div_ceil(10))
        } else {
            self.rng.below(units)
        };
        let first = place.min(units - count);
        self.cursors.insert(volume.id, (first + count) * unit);
        ByteRange { offset: first * unit, length: count * unit }
    }

    fn large(&mut self, volume: &Volume) -> ByteRange {
        let blocks = volume.size() / BLOCK;
        let first = self.rng.below(blocks);
        ByteRange { offset: first * BLOCK, length: self.rng.between(1, blocks - first) * BLOCK }
    }

    /// A request with one error in it.
    fn malformed(&mut self, volume: &Volume, oracle: &Oracle, taken: &BTreeSet<Target>) -> Ask {
        let target = Target::Head(volume.id);
        let sector = u64::from(volume.sector.logical());
        let op = *self.rng.pick(&[Op::Read, Op::Write, Op::Discard, Op::WriteZeroes { may_unmap: true }]);
        let ask = |target, op, offset, length| Ask::new(target, op, ByteRange { offset, length });
        let snapshots: Vec<&Snapshot> = oracle.snapshots().filter(|s| !taken.contains(&Target::Snapshot(s.id))).collect();
        match self.rng.below(4) {
            _ if volume.read_only || volume.is_base() => ask(target, Op::Read, volume.size(), BLOCK),
            0 => ask(target, op, volume.size() - BLOCK, 2 * BLOCK),
            1 => ask(target, op, u64::MAX - BLOCK + 1, BLOCK),
            2 if sector > 512 => ask(target, op, 512, sector),
            3 if !snapshots.is_empty() => ask(Target::Snapshot(self.rng.pick(&snapshots).id), Op::Write, 0, BLOCK),
            _ => ask(target, op, sector, sector / 2),
        }
    }

    /// Returns the next command, if chance wants one and no volume that it uses is busy.
    pub fn plan(&mut self, oracle: &Oracle, busy: &BTreeSet<VolumeId>) -> Option<Plan> {
        let due = match self.phase {
            Phase::Relieving(_) => self.rng.percent(20),
            _ => self.rng.below(1000) < self.mix.commands,
        };
        if !due {
            return None;
        }
        let free: Vec<&Volume> = oracle.volumes().filter(|v| !busy.contains(&v.id)).collect();
        let snapshots: Vec<&Snapshot> = oracle.snapshots().filter(|s| !busy.contains(&s.volume)).collect();
        if free.is_empty() {
            return None;
        }
        let volume = *self.rng.pick(&free);
        let snapshot = (!snapshots.is_empty()).then(|| snapshots[self.rng.index(snapshots.len())]);
        let spared = (self.spares(volume), snapshot.is_some_and(Snapshot::is_origin) && self.rng.percent(95));
        let many = oracle.snapshots().count() >= MAX_SNAPSHOTS;
        let weights = match self.phase {
            Phase::Relieving(_) => [0, 20, 0, 0, 2, 0, 0, 0, 3, 0, 2, 0],
            _ if self.mix.bases && many => [0, 30, 12, 12, 4, 10, 3, 4, 5, 1, 2, 6],
            _ if self.mix.bases => [22, 12, 10, 18, 4, 12, 3, 4, 5, 2, 2, 6],
            _ if self.mix.clones && many => [0, 30, 12, 12, 6, 0, 20, 4, 3, 0, 1, 2],
            _ if self.mix.clones => [25, 12, 10, 18, 5, 0, 20, 4, 3, 1, 1, 2],
            _ if many => [0, 30, 5, 5, 2, 2, 2, 6, 3, 2, 2, 4],
            _ => [30, 12, 6, 6, 2, 3, 2, 6, 3, 2, 2, 4],
        };
        let head = |command, volume: VolumeId, quiet| Some(Plan { command: Some(command), diff: None, volumes: vec![volume], quiet });
        match (self.rng.weighted(&weights), snapshot) {
            (4..=6, _) if spared.0 => {
                // no draw: a base that moves keeps its content
                let publication = oracle.publication(volume.id)?;
                let source = format!("{}@{}", publication.name(), self.name("place"));
                head(Command::Catalog(CatalogCommand::MoveBase { volume: volume.id, source }), volume.id, vec![])
            }
            (1 | 2 | 10, Some(_)) if spared.1 => None,
            (0, _) => self.snapshot(&free),
            (1, Some(s)) => Some(self.destroy_snapshots(s, &snapshots)),
            (2, Some(s)) if s.undecided().is_empty() && writable(oracle, s.volume) => {
                let command = Command::Catalog(CatalogCommand::Rollback { snapshot: s.id, keep_as: self.name("kept") });
                head(command, s.volume, vec![Target::Head(s.volume)])
            }
            (3, Some(s)) if s.undecided().is_empty() && self.room(oracle, s.size()) => {
                let s = self.origin(s, &snapshots);
                head(Command::Catalog(CatalogCommand::Clone { snapshot: s.id, name: self.name("clone") }), s.volume, vec![])
            }
            (4, _) if free.len() > 1 => destroy_volume(oracle, busy, volume.id),
            (5, _) if !volume.read_only => {
                let size = (volume.size() * self.rng.between(50, 150) / 100 / BLOCK).max(1) * BLOCK;
                let fits = size <= volume.size() || self.room(oracle, size - volume.size());
                let command = Command::Catalog(CatalogCommand::ResizeVolume { volume: volume.id, size });
                fits.then(|| head(command, volume.id, vec![Target::Head(volume.id)])).flatten()
            }
            // No draw for clones, so that worlds without them stay unchanged.
            (6, _)
                if (self.mix.clones || self.names.is_multiple_of(2))
                    && volume.origin.and_then(|id| oracle.snapshot(id)).is_some_and(|s| !s.is_origin() || self.rng.percent(5)) =>
            {
                promote(oracle, busy, volume.id)
            }
            (6, _) => head(self.set_properties(volume), volume.id, vec![Target::Head(volume.id)]),
            (7, Some(s)) => {
                // Often a snapshot that is held already: a release must leave the other holds.
                let held: Vec<&Snapshot> = snapshots.iter().copied().filter(|s| s.is_held()).collect();
                let s = if !held.is_empty() && self.rng.percent(50) { *self.rng.pick(&held) } else { s };
                let release = s.is_held() && self.rng.percent(60);
                head(hold_or_release(s, release), s.volume, vec![])
            }
            (8, _) => Some(Plan { command: Some(Command::Checkpoint), diff: None, volumes: vec![], quiet: vec![] }),
            (9, _) if self.room(oracle, volume.size()) => Some(self.create(volume)),
            (10, Some(s)) if self.rng.percent(50) => {
                let taken = self.rng.percent(20).then(|| snapshots.iter().find(|o| o.volume == s.volume).map(|o| o.name.clone())).flatten();
                let name = taken.unwrap_or_else(|| self.name("renamed"));
                if name == s.name {
                    None
                } else {
                    head(Command::Catalog(CatalogCommand::RenameSnapshot { snapshot: s.id, name }), s.volume, vec![])
                }
            }
            (10, _) => {
                head(Command::Catalog(CatalogCommand::RenameVolume { volume: volume.id, name: self.name("vol") }), volume.id, vec![])
            }
            (_, Some(s)) => self.compare(s, &snapshots),
            _ => None,
        }
    }

    fn set_properties(&mut self, volume: &Volume) -> Command {
        Command::Catalog(CatalogCommand::SetProperties {
            volume: volume.id,
            cache: self.rng.percent(50).then(|| *self.rng.pick(&CacheMode::ALL)),
            compression: self.rng.percent(50).then(|| *self.rng.pick(&[Compression::Off, Compression::Lz4, Compression::Zstd])),
            read_only: if volume.read_only { Some(false) } else { self.rng.percent(20).then_some(true) },
        })
    }

    /// Plans a comparison of a snapshot with an older one of its volume, or with the empty disk.
    fn compare(&mut self, s: &Snapshot, snapshots: &[&Snapshot]) -> Option<Plan> {
        // Clones of a base are also compared with it, and with each other.
        let across = self.mix.bases && self.rng.percent(50);
        let same = snapshots.iter().filter(|o| (o.volume == s.volume || across) && o.id <= s.id);
        let decided: Vec<&Snapshot> = same.copied().filter(|o| o.undecided().is_empty()).collect();
        let older = decided.iter().filter(|o| o.id < s.id).nth(self.rng.index(decided.len()));
        let quiet = older.into_iter().map(|o| o.id).chain([s.id]).map(Target::Snapshot).collect();
        let volumes = older.into_iter().map(|o| o.volume).filter(|of| *of != s.volume).chain([s.volume]).collect();
        let plan = Plan { command: None, diff: Some((older.map(|o| o.id), s.id)), volumes, quiet };
        s.undecided().is_empty().then_some(plan)
    }

    fn room(&self, oracle: &Oracle, more: u64) -> bool {
        let total: u64 = oracle.volumes().map(Volume::size).sum();
        total + more <= self.volume_limit && oracle.volumes().count() < MAX_VOLUMES
    }

    /// Returns whether a base is spared something that it would refuse, or its end: in most cases.
    fn spares(&mut self, volume: &Volume) -> bool {
        volume.is_base() && self.rng.percent(95)
    }

    /// Returns the snapshot of a base instead of another one, sometimes.
    fn origin<'a>(&mut self, s: &'a Snapshot, all: &[&'a Snapshot]) -> &'a Snapshot {
        let origins: Vec<&Snapshot> = all.iter().copied().filter(|s| s.is_origin()).collect();
        if origins.is_empty() || !self.rng.percent(50) {
            return s;
        }
        let picked: &&Snapshot = self.rng.pick(&origins);
        picked
    }

    fn create(&mut self, like: &Volume) -> Plan {
        if self.mix.bases && self.rng.percent(40) {
            let name = self.name("base");
            let command = Some(Command::Catalog(base(name, like.size() / BLOCK, &mut self.rng)));
            return Plan { command, diff: None, volumes: vec![], quiet: vec![] };
        }
        let command = Command::Catalog(CatalogCommand::CreateVolume {
            name: self.name("vol"),
            size: like.size(),
            sector: *self.rng.pick(&SectorProfile::ALL),
            cache: like.cache,
            compression: like.compression,
        });
        Plan { command: Some(command), diff: None, volumes: vec![], quiet: vec![] }
    }

    fn snapshot(&mut self, free: &[&Volume]) -> Option<Plan> {
        let mut volumes: Vec<VolumeId> = free.iter().filter(|v| !self.spares(v)).map(|v| v.id).collect();
        if volumes.is_empty() {
            return None;
        }
        self.rng.shuffle(&mut volumes);
        let count = if self.rng.percent(60) { 1 } else { self.rng.between(1, volumes.len() as u64) as usize };
        volumes.truncate(count);
        let targets = volumes.iter().map(|id| (*id, self.name("snap"))).collect();
        Some(Plan {
            command: Some(Command::Catalog(CatalogCommand::Snapshot {
                targets,
                description: String::new(),
                expires: None,
                lock_millis: None,
            })),
            diff: None,
            volumes,
            quiet: vec![],
        })
    }

    fn destroy_snapshots(&mut self, one: &Snapshot, all: &[&Snapshot]) -> Plan {
        let mut chosen = vec![one];
        if self.rng.percent(40) {
            chosen.extend(all.iter().filter(|s| s.id != one.id && !s.is_origin()).take(self.rng.index(5)));
        }
        let snapshots: Vec<SnapshotId> = chosen.iter().map(|s| s.id).collect();
        let volumes: BTreeSet<VolumeId> = chosen.iter().map(|s| s.volume).collect();
        let quiet = snapshots.iter().map(|id| Target::Snapshot(*id)).collect();
        Plan {
            command: Some(Command::Catalog(CatalogCommand::DestroySnapshots { snapshots })),
            diff: None,
            volumes: volumes.into_iter().collect(),
            quiet,
        }
    }
}

/// Draws a query about the map of a head or snapshot that is not taken.
pub fn query(rng: &mut Rng, oracle: &Oracle, taken: &BTreeSet<Target>) -> Option<(Target, Query)> {
    let free = |snapshot: &&Snapshot| !taken.contains(&Target::Snapshot(snapshot.id)) && snapshot.undecided().is_empty();
    let snapshots: Vec<&Snapshot> = oracle.snapshots().filter(free).collect();
    let (target, volume) = if !snapshots.is_empty() && rng.percent(20) {
        let snapshot = *rng.pick(&snapshots);
        (Target::Snapshot(snapshot.id), snapshot.volume)
    } else {
        let heads: Vec<&Volume> = oracle.volumes().filter(|v| !taken.contains(&Target::Head(v.id))).collect();
        let id = (!heads.is_empty()).then(|| rng.pick(&heads).id)?;
        (Target::Head(id), id)
    };
    let older: Vec<&Snapshot> = snapshots.into_iter().filter(|s| s.volume == volume).collect();
    let since = (!older.is_empty() && rng.percent(50)).then(|| Since(rng.pick(&older).id.0));
    let (size, sector) = oracle.geometry(target)?;
    let unit = if rng.percent(30) { u64::from(sector.logical()) } else { BLOCK };
    let units = size / unit;
    let first = rng.below(units);
    let longest = if rng.percent(30) { units - first } else { 64.min(units - first) };
    let range = ByteRange { offset: first * unit, length: rng.between(1, longest) * unit };
    Some((target, Query { range, since, most: rng.between(1, 12) as usize }))
}

fn writable(oracle: &Oracle, volume: VolumeId) -> bool {
    oracle.volume(volume).is_some_and(|v| !v.read_only)
}

fn destroy_volume(oracle: &Oracle, busy: &BTreeSet<VolumeId>, volume: VolumeId) -> Option<Plan> {
    // The origin is locked as well: whether its snapshot may be destroyed depends on this clone.
    let origin = oracle.origin_volume(volume);
    let targets = oracle.snapshots().filter(|s| s.volume == volume).map(|s| Target::Snapshot(s.id));
    let quiet = targets.chain([Target::Head(volume)]).collect();
    let volumes: Vec<VolumeId> = origin.into_iter().chain([volume]).collect();
    let command = Some(Command::Catalog(CatalogCommand::DestroyVolume { volume }));
    volumes.iter().all(|id| !busy.contains(id)).then_some(Plan { command, diff: None, volumes, quiet })
}

fn promote(oracle: &Oracle, busy: &BTreeSet<VolumeId>, volume: VolumeId) -> Option<Plan> {
    let volumes: Vec<VolumeId> = oracle.origin_volume(volume).into_iter().chain([volume]).collect();
    // A query about changes needs its snapshot to stay with the volume.
    let quiet = oracle.snapshots().filter(|s| volumes.contains(&s.volume)).map(|s| Target::Snapshot(s.id)).collect();
    let command = Some(Command::Catalog(CatalogCommand::Promote { volume, dry_run: false }));
    volumes.iter().all(|id| !busy.contains(id)).then_some(Plan { command, diff: None, volumes, quiet })
}

/// Holds or releases a snapshot, with or without a tag as its id and holds decide: no draw, so
/// worlds stay as they were when holds had no tags. Some tags exist already, which must be refused.
fn hold_or_release(s: &Snapshot, release: bool) -> Command {
    let n = s.id.0 + u64::from(s.holds) + s.tags.len() as u64;
    let tagged = n.is_multiple_of(2);
    if release {
        let tag = if s.holds == 0 || tagged { s.tags.first().cloned() } else { None };
        return Command::Catalog(CatalogCommand::Release { snapshot: s.id, tag });
    }
    Command::Catalog(CatalogCommand::Hold { snapshot: s.id, tag: tagged.then(|| format!("tag{}", n / 2 % 3)), until: None, locked: false })
}
