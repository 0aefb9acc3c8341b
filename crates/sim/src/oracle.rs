//! The oracle: knows every legal answer and reports answers that are not.
//!
//! The oracle receives every request, command, answer and crash with its moment, and keeps the
//! possible values of every cell (see `history`). It requires:
//! - A read returns, block by block, a state of the volume at an instant between submission and
//!   answer. A map query that reports a hole, or a block as unchanged since a snapshot, is judged
//!   as a read of that content.
//! - A snapshot is the state of all its volumes at *one* instant between submission and answer of
//!   the command, and never changes.
//! - The death of the daemon loses nothing that was acknowledged or that a read has returned, in
//!   any cache mode.
//! - A power cut leaves each volume at an instant not before its last honoured flush, FUA or
//!   durable command. Durable writes are in that state.
//! - An answered command has happened and is durable. An unanswered one has happened wholly or not
//!   at all, and the outcome that an import lists is final.
//! - In a full pool, reads, flushes, discards, deletes and rollbacks work (I9).
//! - An answered change of the key table is there after each import, whatever devices were missing
//!   meanwhile.
//! - A block that a base or a clone of it never wrote has the content of the publication. A request
//!   that needs it fails only if the store refused its chunk meanwhile, or the pool is being closed.
//! - In a pool with a bucket a request that reads fails only if the bucket gave a wrong answer meanwhile
//!   and may give several, or the pool is being closed.

mod ancestry;
mod bases;
mod catalog;
mod crash;
mod diff;
mod guest;
mod history;
mod keys;
mod losses;
mod objects;
mod query;
mod room;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use millpond_block::{CacheMode, SectorProfile};
use millpond_engine::{Compression, SnapshotId, VolumeId};

use crate::base::Publication;
pub use crate::grid::BLOCK;
use crate::grid::Grid;
use crate::system::Target;
use crate::trace::Moment;
use ancestry::Ancestry;
use bases::Bases;
pub use catalog::{Issued, Listing};
pub use guest::Flight;
use history::{Cell, Cut, Pieces, Value};
use keys::Keys;
pub use losses::ByMode;
use objects::Objects;
use query::Questions;

/// A broken promise, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `Ok`, or the first broken promise.
pub type Verdict = Result<(), Violation>;

pub(crate) fn broken<T>(text: impl Into<String>) -> Result<T, Violation> {
    Err(Violation(text.into()))
}

/// The required state of a volume.
#[derive(Clone, Debug)]
pub struct Volume {
    pub id: VolumeId,
    /// Number in the stamps of its guest's writes.
    pub serial: u32,
    pub name: String,
    pub sector: SectorProfile,
    pub cache: CacheMode,
    pub compression: Compression,
    pub read_only: bool,
    /// The snapshot that it is a clone of; it may have been destroyed since.
    pub origin: Option<SnapshotId>,
    /// The newest snapshot before its head.
    base: Option<SnapshotId>,
    /// The publication that its blocks are fetched from, if it is a base.
    publication: Option<Publication>,
    /// The base that its never written blocks are those of.
    through: Option<VolumeId>,
    grid: Grid,
    cells: Vec<Cell>,
    /// Everything that took effect before this moment survives a power cut.
    floor: Moment,
    /// The state that a power cut left, until all of it has been read.
    crash: Option<Cut>,
    recovered: Vec<Option<Value>>,
}

impl Volume {
    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.grid.start(self.cells.len() as u64)
    }
}

/// One cell of a snapshot.
#[derive(Clone, Debug)]
enum Frozen {
    Known(Value),
    Open(Box<Cell>),
}

/// The required state of a snapshot.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub id: SnapshotId,
    pub volume: VolumeId,
    pub name: String,
    /// Number of holds without a tag.
    pub holds: u32,
    /// Tags of its other holds.
    pub tags: BTreeSet<String>,
    pub sector: SectorProfile,
    /// The base that its never written blocks are those of.
    through: Option<VolumeId>,
    grid: Grid,
    cells: Vec<Frozen>,
    cut: usize,
}

impl Snapshot {
    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.grid.start(self.cells.len() as u64)
    }

    /// Returns whether holds keep the snapshot from being destroyed.
    pub fn is_held(&self) -> bool {
        self.holds > 0 || !self.tags.is_empty()
    }

    /// Returns the blocks whose content is uncertain, because writes were in flight when the
    /// snapshot was taken.
    pub fn undecided(&self) -> BTreeSet<u64> {
        let open = |(i, cell): (usize, &Frozen)| matches!(cell, Frozen::Open(_)).then_some(i as u64 / self.grid.per_block());
        self.cells.iter().enumerate().filter_map(open).collect()
    }

    /// Returns the value of a cell, if it is certain.
    fn value(&self, cell: usize) -> Option<Value> {
        match self.cells.get(cell) {
            Some(Frozen::Known(value)) => Some(*value),
            _ => None,
        }
    }
}

/// The required state of everything.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    grid: Grid,
    pieces: Pieces,
    cuts: Vec<Cut>,
    volumes: BTreeMap<VolumeId, Volume>,
    snapshots: BTreeMap<SnapshotId, Snapshot>,
    /// Snapshots that volumes were rolled back to, and those of them that were destroyed since: they
    /// may stay hidden, and hold their blocks, as long as their volume exists.
    targets: BTreeSet<SnapshotId>,
    hidden: BTreeMap<SnapshotId, Snapshot>,
    ancestry: Ancestry,
    bases: Bases,
    keys: Keys,
    objects: Objects,
    flights: BTreeMap<u64, Flight>,
    questions: Questions,
    commands: BTreeMap<u64, Issued>,
    /// Commands that a crash or a fault left undecided.
    unanswered: Vec<Issued>,
    ops: u64,
    serials: u32,
    seen_volumes: BTreeSet<VolumeId>,
    seen_snapshots: BTreeSet<SnapshotId>,
    /// Faults were injected: errors are legal, wrong data is not.
    pub errors_allowed: bool,
    /// The pool went back to an older state: a read may return anything that was written at that
    /// place.
    pub rewound: bool,
    /// Writes acknowledged from now on need not survive.
    held: bool,
    /// The content of heads is taken from reads, until all of it has been read.
    adopting: bool,
}

impl Oracle {
    /// Makes an oracle for guests whose requests align to this grid.
    pub fn new(grid: Grid) -> Oracle {
        Oracle { grid, ..Oracle::default() }
    }

    /// Returns the grid that requests align to.
    pub fn grid(&self) -> Grid {
        self.grid
    }

    /// Returns the volumes.
    pub fn volumes(&self) -> impl Iterator<Item = &Volume> {
        self.volumes.values()
    }

    /// Returns the snapshots.
    pub fn snapshots(&self) -> impl Iterator<Item = &Snapshot> {
        self.snapshots.values()
    }

    /// Returns a volume.
    pub fn volume(&self, id: VolumeId) -> Option<&Volume> {
        self.volumes.get(&id)
    }

    /// Returns a snapshot.
    pub fn snapshot(&self, id: SnapshotId) -> Option<&Snapshot> {
        self.snapshots.get(&id)
    }

    /// Returns size in bytes and sector profile of a target.
    pub fn geometry(&self, target: Target) -> Option<(u64, SectorProfile)> {
        match target {
            Target::Head(id) => self.volumes.get(&id).map(|v| (v.size(), v.sector)),
            Target::Snapshot(id) => self.snapshots.get(&id).map(|s| (s.size(), s.sector)),
        }
    }

    /// Requires the current state to survive, and nothing written later.
    pub fn hold_floors(&mut self, now: Moment) {
        self.held = true;
        self.volumes.values_mut().for_each(|volume| volume.floor = now);
    }

    /// Returns all heads and snapshots.
    pub fn targets(&self) -> Vec<Target> {
        let heads = self.volumes.keys().map(|id| Target::Head(*id));
        heads.chain(self.snapshots.keys().map(|id| Target::Snapshot(*id))).collect()
    }

    /// Returns the number of requests and queries in flight.
    pub fn flights(&self) -> usize {
        self.flights.len() + self.questions.len()
    }

    /// Returns the requests in flight for a target.
    pub fn flights_of(&self, target: Target) -> Vec<u64> {
        self.flights.iter().filter(|(_, flight)| flight.target == target).map(|(tag, _)| *tag).collect()
    }

    /// Returns whether this request is in flight.
    pub fn has_flight(&self, tag: u64) -> bool {
        self.flights.contains_key(&tag)
    }

    /// Returns whether a request or query about the target is in flight.
    pub fn flies(&self, target: Target) -> bool {
        self.flights.values().any(|f| f.target == target) || self.questions.values().any(|q| q.is_about(target))
    }

    /// Returns the number of other volumes that start from a snapshot.
    pub fn clones(&self, snapshot: SnapshotId) -> usize {
        self.crossings().into_iter().filter(|(id, _)| *id == snapshot).count()
    }

    /// Returns the oldest instant that an answer may still reveal.
    fn horizon(&self, now: Moment) -> Moment {
        let flights = self.flights.values().map(|f| f.at);
        let commands = self.commands.values().map(|c| c.at);
        let questions = self.questions.values().map(|q| q.at);
        flights.chain(commands).chain(questions).min().unwrap_or(now)
    }
}
