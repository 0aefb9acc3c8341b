//! The judge: knows every legal answer, and says so when one is not.
//!
//! It is told of every request, command, answer and crash, with the moment of each, and keeps for every cell its possible values (see `history`).
//! What it holds the system to:
//! - a read returns, block by block, a state of the volume at an instant between its submission and its answer; what an answer about the map calls a
//!   hole, or unchanged since a snapshot, is judged as a read of that;
//! - a snapshot is the state of all its volumes at *one* instant between the command's submission and its answer, the same for ever;
//! - the death of the daemon loses nothing acknowledged, and nothing a read has shown, in any cache mode;
//! - a power cut leaves each volume at an instant not before its last honoured flush, FUA or durable command; durable writes are in it;
//! - an answered command has happened and is durable; an unanswered one has happened wholly or not at all, and what an import lists stays;
//! - at 100 % full, reads, flushes, discards, deletes and rollbacks work (I9).

mod ancestry;
mod catalog;
mod crash;
mod diff;
mod guest;
mod history;
mod losses;
mod query;
mod room;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use millpond_block::{CacheMode, SectorProfile};
use millpond_engine::{Compression, SnapshotId, VolumeId};

pub use crate::grid::BLOCK;
use crate::grid::Grid;
use crate::system::Target;
use crate::trace::Moment;
use ancestry::Ancestry;
pub use catalog::{Issued, Listing};
pub use guest::Flight;
use history::{Cell, Cut, Pieces, Value};
pub use losses::ByMode;
use query::Questions;

/// A promise that was not kept, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Fine, or what is not.
pub type Verdict = Result<(), Violation>;

pub(crate) fn broken<T>(text: impl Into<String>) -> Result<T, Violation> {
    Err(Violation(text.into()))
}

/// A volume, as it must be.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Identity.
    pub id: VolumeId,
    /// What its guest stamps into sectors.
    pub serial: u32,
    /// Name.
    pub name: String,
    /// Sectors.
    pub sector: SectorProfile,
    /// Cache mode.
    pub cache: CacheMode,
    /// Compression.
    pub compression: Compression,
    /// Writes are refused.
    pub read_only: bool,
    /// The snapshot it is a clone of, if that is not one that was destroyed.
    pub origin: Option<SnapshotId>,
    /// The last snapshot before its head.
    base: Option<SnapshotId>,
    grid: Grid,
    cells: Vec<Cell>,
    /// What took effect before this moment survives a power cut.
    floor: Moment,
    /// The state that a power cut left, while it is not yet fully known.
    crash: Option<Cut>,
    recovered: Vec<Option<Value>>,
}

impl Volume {
    /// Size in bytes.
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

/// A snapshot, as it must be for ever.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Identity.
    pub id: SnapshotId,
    /// Its volume.
    pub volume: VolumeId,
    /// Name.
    pub name: String,
    /// Holds on it without a tag.
    pub holds: u32,
    /// Tags that it is held with.
    pub tags: BTreeSet<String>,
    /// Sectors.
    pub sector: SectorProfile,
    grid: Grid,
    cells: Vec<Frozen>,
    cut: usize,
}

impl Snapshot {
    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.grid.start(self.cells.len() as u64)
    }

    /// Does anything keep it from being destroyed, apart from clones?
    pub fn is_held(&self) -> bool {
        self.holds > 0 || !self.tags.is_empty()
    }

    /// Blocks whose content is not certain yet, because writes were under way when the snapshot was taken.
    pub fn undecided(&self) -> BTreeSet<u64> {
        let open = |(i, cell): (usize, &Frozen)| matches!(cell, Frozen::Open(_)).then_some(i as u64 / self.grid.per_block());
        self.cells.iter().enumerate().filter_map(open).collect()
    }

    /// The value of a cell, when it is certain.
    fn value(&self, cell: usize) -> Option<Value> {
        match self.cells.get(cell) {
            Some(Frozen::Known(value)) => Some(*value),
            _ => None,
        }
    }
}

/// Everything that should be true.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    grid: Grid,
    pieces: Pieces,
    cuts: Vec<Cut>,
    volumes: BTreeMap<VolumeId, Volume>,
    snapshots: BTreeMap<SnapshotId, Snapshot>,
    ancestry: Ancestry,
    flights: BTreeMap<u64, Flight>,
    questions: Questions,
    commands: BTreeMap<u64, Issued>,
    /// Commands that a crash left unanswered.
    unanswered: Vec<Issued>,
    ops: u64,
    serials: u32,
    seen_volumes: BTreeSet<VolumeId>,
    seen_snapshots: BTreeSet<SnapshotId>,
    /// Faults were injected: errors are legal, wrong data is not.
    pub errors_allowed: bool,
    /// The pool went back to an older state: what is read was written there once.
    pub rewound: bool,
    /// Nothing that is acknowledged from now on has to survive.
    held: bool,
    /// What heads hold is what is read of them, until all of it is.
    adopting: bool,
}

impl Oracle {
    /// For guests whose requests cover cells of this grid.
    pub fn new(grid: Grid) -> Oracle {
        Oracle { grid, ..Oracle::default() }
    }

    /// What requests cover.
    pub fn grid(&self) -> Grid {
        self.grid
    }

    /// The volumes.
    pub fn volumes(&self) -> impl Iterator<Item = &Volume> {
        self.volumes.values()
    }

    /// The snapshots.
    pub fn snapshots(&self) -> impl Iterator<Item = &Snapshot> {
        self.snapshots.values()
    }

    /// A volume.
    pub fn volume(&self, id: VolumeId) -> Option<&Volume> {
        self.volumes.get(&id)
    }

    /// A snapshot.
    pub fn snapshot(&self, id: SnapshotId) -> Option<&Snapshot> {
        self.snapshots.get(&id)
    }

    /// Size in bytes and sectors of what a request may address.
    pub fn geometry(&self, target: Target) -> Option<(u64, SectorProfile)> {
        match target {
            Target::Head(id) => self.volumes.get(&id).map(|v| (v.size(), v.sector)),
            Target::Snapshot(id) => self.snapshots.get(&id).map(|s| (s.size(), s.sector)),
        }
    }

    /// What is there now survives, and nothing later has to.
    pub fn hold_floors(&mut self, now: Moment) {
        self.held = true;
        self.volumes.values_mut().for_each(|volume| volume.floor = now);
    }

    /// Everything that can be read.
    pub fn targets(&self) -> Vec<Target> {
        let heads = self.volumes.keys().map(|id| Target::Head(*id));
        heads.chain(self.snapshots.keys().map(|id| Target::Snapshot(*id))).collect()
    }

    /// Requests and questions without an answer.
    pub fn flights(&self) -> usize {
        self.flights.len() + self.questions.len()
    }

    /// Requests for a target without an answer.
    pub fn flights_of(&self, target: Target) -> Vec<u64> {
        self.flights.iter().filter(|(_, flight)| flight.target == target).map(|(tag, _)| *tag).collect()
    }

    /// Is this request without an answer?
    pub fn has_flight(&self, tag: u64) -> bool {
        self.flights.contains_key(&tag)
    }

    /// True when a request for the target is without an answer.
    pub fn flies(&self, target: Target) -> bool {
        self.flights.values().any(|f| f.target == target) || self.questions.values().any(|q| q.is_about(target))
    }

    /// Volumes that start from a snapshot of another one.
    pub fn clones(&self, snapshot: SnapshotId) -> usize {
        self.crossings().into_iter().filter(|(id, _)| *id == snapshot).count()
    }

    /// The oldest instant that somebody may still learn of.
    fn horizon(&self, now: Moment) -> Moment {
        let flights = self.flights.values().map(|f| f.at);
        let commands = self.commands.values().map(|c| c.at);
        let questions = self.questions.values().map(|q| q.at);
        flights.chain(commands).chain(questions).min().unwrap_or(now)
    }
}
