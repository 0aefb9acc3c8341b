//! Findings of a scrub: counts, and the places of lost data.

use millpond_format::{BlockNo, ScrubRecord, SegmentId, VolumeId};

use crate::{LostData, ScrubInfo, Time};

/// Most lost places that are listed; more are only counted.
const MOST_PLACES: usize = 1000;
/// Most lost places that are recorded for a later import.
const MOST_WRITTEN: usize = 64;

/// The findings of a scrub.
#[derive(Debug, Default)]
pub(crate) struct Scrubbed {
    begun: Time,
    ended: Option<Time>,
    complete: bool,
    /// Copies that were wrong or unreadable, and places that were repaired.
    pub(crate) errors: u64,
    pub(crate) repaired: u64,
    /// Items that are right in no copy.
    pub(crate) lost: u64,
    blocks: Vec<(VolumeId, BlockNo)>,
    nodes: u64,
    unknown: u64,
}

impl Scrubbed {
    pub(crate) fn begin(now: Time) -> Scrubbed {
        Scrubbed { begun: now, ..Scrubbed::default() }
    }

    /// Restores the findings of an earlier import.
    pub(super) fn of(record: &ScrubRecord) -> Scrubbed {
        Scrubbed {
            begun: Time(record.begun),
            ended: record.ended.map(Time),
            complete: record.complete,
            errors: record.errors,
            repaired: record.repaired,
            lost: record.lost,
            blocks: record.blocks.clone(),
            nodes: record.lost_nodes,
            unknown: record.lost_unknown,
        }
    }

    /// Returns the record for a later import; segments before `next` are read, `done` bytes.
    pub(crate) fn record(&self, next: SegmentId, done: u64) -> ScrubRecord {
        ScrubRecord {
            begun: self.begun.0,
            ended: self.ended.map(|time| time.0),
            complete: self.complete,
            next: next.0,
            done,
            errors: self.errors,
            repaired: self.repaired,
            lost: self.lost,
            lost_nodes: self.nodes,
            lost_unknown: self.unknown,
            blocks: self.blocks.iter().take(MOST_WRITTEN).copied().collect(),
        }
    }

    pub(super) fn end(&mut self, now: Time, complete: bool) {
        (self.ended, self.complete) = (Some(now), complete);
    }

    /// Records a block of a volume without a good copy.
    pub(super) fn lose_block(&mut self, volume: VolumeId, block: BlockNo) {
        self.lost += 1;
        if self.blocks.len() < MOST_PLACES && !self.blocks.contains(&(volume, block)) {
            self.blocks.push((volume, block));
        }
    }

    /// Records a map node, or a piece of a deadlist, without a good copy.
    pub(super) fn lose_node(&mut self) {
        (self.lost, self.nodes) = (self.lost + 1, self.nodes + 1);
    }

    /// Records lost blocks whose volumes are unknown.
    pub(super) fn lose_unknown(&mut self, count: u64) {
        (self.lost, self.unknown) = (self.lost + count, self.unknown + count);
    }

    /// Returns the findings for a listing; `name` returns the name of a volume.
    pub(crate) fn info(&self, name: impl Fn(VolumeId) -> Option<String>) -> ScrubInfo {
        let mut blocks = self.blocks.clone();
        blocks.sort_unstable();
        let mut lost: Vec<LostData> = Vec::new();
        for (volume, block) in blocks {
            let offset = block.0 * 4096;
            match lost.last_mut().filter(|last| last.id == volume && last.offset + last.length == offset) {
                Some(last) => last.length += 4096,
                None => lost.push(LostData { id: volume, volume: name(volume), offset, length: 4096 }),
            }
        }
        ScrubInfo {
            begun: self.begun,
            ended: self.ended,
            complete: self.complete,
            errors: self.errors,
            repaired: self.repaired,
            lost_blocks: self.lost - self.nodes,
            lost_nodes: self.nodes,
            lost,
        }
    }
}
