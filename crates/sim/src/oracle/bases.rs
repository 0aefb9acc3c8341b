//! Bases: their content, the commands that they refuse, and the errors that their store explains.

use std::collections::BTreeMap;

use millpond_block::{DiskError, Op, Request};
use millpond_engine::{CatalogCommand, Command, VolumeId, VolumeInfo};

use super::history::Cell;
use super::{BLOCK, Flight, Frozen, Oracle, Snapshot, Verdict, Volume, broken};
use crate::base::Publication;
use crate::system::Target;
use crate::trace::Moment;

/// State of the bases of a world.
#[derive(Clone, Debug, Default)]
pub(super) struct Bases {
    /// The pool has the feature.
    allowed: bool,
    /// Chunks, and the last moment at which the store answered that it has none, or a damaged one.
    refused: BTreeMap<(VolumeId, u64), Moment>,
}

impl Volume {
    /// Returns whether its blocks are fetched.
    pub fn is_base(&self) -> bool {
        self.publication.is_some()
    }
}

impl Snapshot {
    /// Returns whether it is the snapshot of a base.
    pub fn is_origin(&self) -> bool {
        self.through == Some(self.volume)
    }
}

impl Oracle {
    /// Records that the pool has the feature `bases`.
    pub fn allow_bases(&mut self) {
        self.bases.allowed = true;
    }

    /// Returns the publication that a base is fetched from.
    pub fn publication(&self, base: VolumeId) -> Option<&Publication> {
        self.volumes.get(&base)?.publication.as_ref()
    }

    /// Returns the base that never written blocks of a target are those of.
    pub fn base_of(&self, target: Target) -> Option<VolumeId> {
        match target {
            Target::Head(id) => self.volumes.get(&id)?.through,
            Target::Snapshot(id) => self.snapshots.get(&id)?.through,
        }
    }

    /// Records that the store had no good copy of a chunk.
    pub fn refuse_chunk(&mut self, base: VolumeId, chunk: u64, now: Moment) {
        self.bases.refused.insert((base, chunk), now);
    }

    /// Returns the heads that were hit by a power cut and have not been read in full.
    pub fn unread(&self) -> Vec<Target> {
        let unread = |volume: &&Volume| volume.crash.is_some() && volume.recovered.iter().any(Option::is_none);
        self.volumes.values().filter(unread).map(|volume| Target::Head(volume.id)).collect()
    }

    /// Returns whether a command must be refused because of a base.
    pub(super) fn bases_forbid(&self, command: &CatalogCommand) -> bool {
        let is_base = |id: &VolumeId| self.publication(*id).is_some();
        match command {
            CatalogCommand::CreateBase { .. } => !self.bases.allowed,
            CatalogCommand::ResizeVolume { volume, .. } | CatalogCommand::SetSector { volume, .. } => is_base(volume),
            CatalogCommand::Snapshot { targets, .. } => targets.iter().any(|(volume, _)| is_base(volume)),
            CatalogCommand::SetProperties { volume, read_only: Some(false), .. } => is_base(volume),
            CatalogCommand::Rollback { snapshot, .. } | CatalogCommand::RenameSnapshot { snapshot, .. } => {
                self.snapshots.get(snapshot).is_some_and(|s| is_base(&s.volume))
            }
            CatalogCommand::DestroySnapshots { snapshots } => {
                snapshots.iter().any(|id| self.snapshots.get(id).is_some_and(Snapshot::is_origin))
            }
            CatalogCommand::Promote { volume, .. } => self.origin_volume(*volume).is_some_and(|origin| is_base(&origin)),
            _ => false,
        }
    }

    /// Returns the cells of a base.
    pub(super) fn content(&self, publication: &Publication) -> Vec<Cell> {
        let cells = 0..self.grid.cells(publication.size / BLOCK * BLOCK);
        cells.map(|cell| Cell::settled(publication.value(self.grid, cell))).collect()
    }

    /// Requires a volume to be listed as the base that it is, or as none.
    pub(super) fn compare_base(&self, volume: &Volume, info: &VolumeInfo) -> Verdict {
        let (is, must) = (&info.base, volume.publication.as_ref().map(|publication| &publication.info));
        if is.as_ref() == must { Ok(()) } else { broken(format!("volume {} is listed with the base {is:?}, must have {must:?}", info.id)) }
    }

    /// Returns whether a request may fail with this error because of the store: it needs a block
    /// of a chunk that the store refused since the request began, or the pool is being closed.
    pub(super) fn excuses(&self, flight: &Flight, error: DiskError) -> bool {
        let Some(base) = self.base_of(flight.target) else { return false };
        let Some(publication) = self.publication(base) else { return false };
        let refused = |block: u64| {
            let chunk = block * BLOCK / publication.unit();
            self.bases.refused.get(&(base, chunk)).is_some_and(|at| *at >= flight.at)
        };
        let read = read_blocks(&flight.request);
        let mut needed = read.filter(|block| self.may_read_through(flight.target, *block, publication));
        match error {
            DiskError::Io => needed.any(refused),
            DiskError::Shutdown => self.commands.values().any(|issued| issued.command == Command::Close) && needed.next().is_some(),
            _ => false,
        }
    }

    /// Returns whether a block may be that of the base, as far as its content shows: a clone
    /// replaces whole blocks.
    fn may_read_through(&self, target: Target, block: u64, publication: &Publication) -> bool {
        let first = block * self.grid.per_block();
        let differs = |cell: u64| {
            let index = cell as usize;
            let value = match target {
                Target::Head(id) => self.volumes.get(&id).and_then(|volume| volume.cells.get(index)).and_then(Cell::certain),
                Target::Snapshot(id) => match self.snapshots.get(&id).and_then(|snapshot| snapshot.cells.get(index)) {
                    Some(Frozen::Known(value)) => Some(*value),
                    _ => None,
                },
            };
            value.is_some_and(|value| value != publication.value(self.grid, cell))
        };
        block * BLOCK < publication.size && !(first..first + self.grid.per_block()).any(differs)
    }
}

/// Returns the blocks whose old content a request needs: those of a read, and those that a write
/// covers in part.
pub(super) fn read_blocks(request: &Request) -> impl Iterator<Item = u64> {
    let (start, end) = (request.range.offset, request.range.offset.saturating_add(request.range.length));
    let (reads, writes) = match request.op {
        Op::Read | Op::Cache => (true, false),
        Op::Write | Op::WriteZeroes { .. } => (false, true),
        Op::Flush | Op::Discard => (false, false),
    };
    let blocks = start / BLOCK..if reads || writes { end.div_ceil(BLOCK) } else { start / BLOCK };
    blocks.filter(move |block| reads || block * BLOCK < start || (block + 1) * BLOCK > end)
}

#[cfg(test)]
mod tests;
