//! What a scrub has found: counts, and the places of what is lost.

use millpond_format::{BlockNo, ScrubRecord, SegmentId, VolumeId};

use crate::{LostData, ScrubInfo, Time};

/// Places that are remembered; more are counted.
const MOST_PLACES: usize = 1000;
/// Of these, so many are remembered by the next import.
const MOST_WRITTEN: usize = 64;

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Scrubbed {
    begun: Time,
    ended: Option<Time>,
    complete: bool,
    /// Copies that were wrong or could not be read, and places that were right again after.
    pub(crate) errors: u64,
    pub(crate) repaired: u64,
    /// What no copy has.
    pub(crate) lost: u64,
    blocks: Vec<(VolumeId, BlockNo)>,
    nodes: u64,
    unknown: u64,
}

impl Scrubbed {
    pub(super) fn begin(now: Time) -> Scrubbed {
        Scrubbed { begun: now, ..Scrubbed::default() }
    }

    /// What an import before this one had found.
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

    /// The same for the next import; segments before `next` are read, `done` bytes.
    pub(super) fn record(&self, next: SegmentId, done: u64) -> ScrubRecord {
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

    /// A block of a volume has no good copy.
    pub(super) fn lose_block(&mut self, volume: VolumeId, block: BlockNo) {
        self.lost += 1;
        if self.blocks.len() < MOST_PLACES && !self.blocks.contains(&(volume, block)) {
            self.blocks.push((volume, block));
        }
    }

    /// A node of a map has none, or a piece of a deadlist.
    pub(super) fn lose_node(&mut self) {
        (self.lost, self.nodes) = (self.lost + 1, self.nodes + 1);
    }

    /// So many blocks have none of which nobody knows any more what they are.
    pub(super) fn lose_unknown(&mut self, count: u64) {
        (self.lost, self.unknown) = (self.lost + count, self.unknown + count);
    }

    /// For a listing; `name` tells what a volume is called.
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
