//! What lies on special devices alone is told elsewhere: batches on other devices say which batches of small writes came directly before them
//! and what these hold, so that a pool without special devices knows where its log goes on and what it has lost.
//!
//! INV-LOG-4: of the batches between one with a note and the last one before it that is not on special devices, the note tells all. So no
//! other batch of guests is open while one of small writes is sealed.

use millpond_format::{BlockNo, ChunkId, Encoder, Item, Lsn, SegmentId, SmallRun, VolumeId};

/// Bytes of a note at most: so much of a header's first page that what it is written for fits, too.
const MOST_BYTES: usize = 2000;

/// What the next batch on other devices has to say.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// Batches of small writes since the last one that was not.
    batches: u32,
    /// What they hold.
    sealed: Vec<SmallRun>,
    /// What the open one holds.
    open: Vec<SmallRun>,
    /// Of both.
    bytes: usize,
}

impl Notes {
    /// Adds what the open batch holds more.
    pub(crate) fn add(&mut self, volume: VolumeId, block: BlockNo, segment: SegmentId, chunk: ChunkId, slot: u32, crcs: &[u32]) {
        self.bytes += crcs.len() * 4;
        let follows = |run: &&mut SmallRun| {
            let length = run.crcs.len();
            (run.volume, run.chunk) == (volume, chunk)
                && run.block.0 + length as u64 == block.0
                && usize::from(run.slot) + length == slot as usize
        };
        if let Some(run) = self.open.last_mut().filter(follows) {
            return run.crcs.extend_from_slice(crcs);
        }
        self.bytes += SmallRun::BYTES;
        let slot = u16::try_from(slot).unwrap_or(u16::MAX);
        self.open.push(SmallRun { lsn: Lsn(0), volume, block, segment, chunk, slot, crcs: crcs.to_vec() });
    }

    /// The open batch got its number.
    pub(crate) fn seal(&mut self, lsn: Lsn) {
        self.batches += 1;
        self.sealed.extend(self.open.drain(..).map(|run| SmallRun { lsn, ..run }));
    }

    /// Blocks of one more run that can be told.
    pub(crate) fn room(&self) -> usize {
        MOST_BYTES.saturating_sub(self.bytes + SmallRun::BYTES) / 4
    }

    /// Bytes that [`take`](Self::take) gives at most.
    pub(crate) fn bytes(&self) -> usize {
        if self.batches == 0 { 0 } else { self.bytes + 16 }
    }

    /// The items that a batch on other devices begins with.
    pub(crate) fn take(&mut self) -> Encoder {
        let mut items = Encoder::default();
        if self.batches > 0 {
            let runs = std::mem::take(&mut self.sealed);
            self.bytes = self.open.iter().map(|run| SmallRun::BYTES + run.crcs.len() * 4).sum();
            Item::Small { batches: std::mem::take(&mut self.batches), runs }.encode(&mut items);
        }
        items
    }
}
