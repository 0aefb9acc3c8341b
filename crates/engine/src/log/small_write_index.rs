//! Index of small-write batches. These batches exist only on special devices. Each batch on other
//! devices therefore carries an index of the small-write batches directly before it, so that
//! recovery without special devices knows where the log continues and which blocks are lost.
//!
//! INV-LOG-4: the index in a batch is complete: it lists all batches since the batch before it that
//! is not on special devices. So no other batch of guests is open while a batch of small writes is
//! sealed.

use millpond_format::{BlockNo, ChunkId, Encoder, Item, Lsn, SegmentId, SmallRun, VolumeId};

/// Maximum bytes of an index, so that the items of the batch that carries it also fit into the
/// first page of its header.
const MOST_BYTES: usize = 2000;

/// The index for the next batch on other devices.
#[derive(Debug, Default)]
pub(crate) struct SmallWriteIndex {
    /// Number of small-write batches since the last batch on other devices.
    batches: u32,
    /// Blocks in these batches.
    sealed: Vec<SmallRun>,
    /// Blocks in the open small-write batch.
    open: Vec<SmallRun>,
    /// Encoded bytes of both.
    bytes: usize,
}

impl SmallWriteIndex {
    /// Adds blocks of the open small-write batch.
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
        self.open.push(SmallRun { lsn: Lsn(0), volume, block, segment, chunk, slot, encrypted: false, crcs: crcs.to_vec() });
    }

    /// Assigns the open batch its number.
    pub(crate) fn seal(&mut self, lsn: Lsn) {
        self.batches += 1;
        self.sealed.extend(self.open.drain(..).map(|run| SmallRun { lsn, ..run }));
    }

    /// Number of blocks that fit into the index as one more run.
    pub(crate) fn room(&self) -> usize {
        MOST_BYTES.saturating_sub(self.bytes + SmallRun::BYTES) / 4
    }

    /// Maximum bytes that [`take`](Self::take) returns.
    pub(crate) fn bytes(&self) -> usize {
        if self.batches == 0 { 0 } else { self.bytes + 16 }
    }

    /// Returns the index as encoded items, with which a batch on other devices begins, and empties
    /// it.
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

#[cfg(test)]
mod tests;
