//! Streams: the place of the next batch of each lifetime class, and the queue of batches in flight.

use std::collections::VecDeque;

use millpond_block::BufSlice;
use millpond_format::{Addr, BlockNo, ChunkId, LineageId, Lsn, NO_SEGMENT, STREAMS, SegmentId, StreamStart};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::batch::{InFlight, OpenBatch};
use super::class::PerStream;
use super::small_write_index::SmallWriteIndex;
use crate::Time;

/// A chunk that is being appended to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenChunk {
    pub(crate) id: ChunkId,
    pub(crate) base: u32,
    pub(crate) grain: u8,
}

/// Position at which a stream writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    pub(crate) segment: SegmentId,
    /// Next free page.
    pub(crate) page: u32,
    /// Pages of the segment.
    pub(crate) pages: u32,
}

/// State of a stream of the log.
#[derive(Debug, Default)]
pub(crate) struct StreamState {
    pub(crate) cursor: Option<Cursor>,
    /// Segment that is reserved to follow.
    pub(crate) next: Option<SegmentId>,
    pub(crate) chunk: Option<OpenChunk>,
    pub(crate) batch: Option<OpenBatch>,
}

impl StreamState {
    /// Position from which replay has to read the stream.
    pub(crate) fn start(&self) -> StreamStart {
        let next = self.next.unwrap_or(NO_SEGMENT);
        match self.cursor {
            Some(cursor) => StreamStart { segment: cursor.segment, offset: cursor.page, next },
            None => StreamStart { segment: NO_SEGMENT, offset: 0, next },
        }
    }

    /// Pages of the segment after those written and those of the open batch.
    pub(crate) fn left(&self) -> u32 {
        let open = self.batch.as_ref().map_or(0, OpenBatch::pages);
        self.cursor.map_or(0, |cursor| (cursor.pages - cursor.page).saturating_sub(open))
    }
}

/// The log's volatile state.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) streams: PerStream<StreamState>,
    /// Number of the next batch to be sealed.
    pub(crate) next: Lsn,
    /// All batches up to here are written.
    pub(crate) completed: Lsn,
    /// All batches up to here are on stable media.
    pub(crate) durable: Lsn,
    in_flight: VecDeque<InFlight>,
    /// Batches in flight by segment, so that reads find them.
    by_segment: FxHashMap<SegmentId, SmallVec<[Lsn; 4]>>,
    /// Bytes appended since the last checkpoint began.
    pub(crate) since_checkpoint: u64,
    /// Small-write batches that are on special devices and not yet indexed on other devices.
    pub(crate) small_write_index: SmallWriteIndex,
    /// Time of the oldest of them.
    pub(crate) unindexed_since: Option<Time>,
}

impl Log {
    /// A log that continues after batch `last`.
    pub(crate) fn new(last: Lsn) -> Log {
        Log {
            streams: PerStream::default(),
            next: Lsn(last.0 + 1),
            completed: last,
            durable: last,
            in_flight: VecDeque::new(),
            by_segment: FxHashMap::default(),
            since_checkpoint: 0,
            small_write_index: SmallWriteIndex::default(),
            unindexed_since: None,
        }
    }

    /// Positions from which replay has to read the streams, for a log tail of a root.
    pub(crate) fn starts(&self) -> [StreamStart; STREAMS] {
        self.streams.map(StreamState::start)
    }

    /// True when a batch is being filled.
    pub(crate) fn has_open_batch(&self) -> bool {
        self.streams.values().any(|stream| stream.batch.is_some())
    }

    /// Number of batches in flight.
    pub(crate) fn in_flight_batches(&self) -> usize {
        self.in_flight.len()
    }

    /// Adds a batch that was sealed and passed to the devices.
    pub(crate) fn push(&mut self, batch: InFlight) {
        assert_eq!(batch.lsn, self.next, "INV-LOG-1: batches are numbered as they are sealed");
        self.next.0 += 1;
        self.by_segment.entry(batch.segment).or_default().push(batch.lsn);
        self.in_flight.push_back(batch);
    }

    fn find_mut(&mut self, lsn: Lsn) -> Option<&mut InFlight> {
        let first = self.in_flight.front()?.lsn;
        self.in_flight.get_mut(usize::try_from(lsn.0.checked_sub(first.0)?).ok()?)
    }

    /// Marks a batch as written. Returns the batches that this completes, in order.
    pub(crate) fn written(&mut self, lsn: Lsn) -> Vec<InFlight> {
        if let Some(batch) = self.find_mut(lsn) {
            batch.written = true;
        }
        let mut complete = Vec::new();
        while self.in_flight.front().is_some_and(|batch| batch.written) {
            if let Some(batch) = self.in_flight.pop_front() {
                self.completed = batch.lsn;
                if let Some(list) = self.by_segment.get_mut(&batch.segment) {
                    list.retain(|l| *l != batch.lsn);
                    if list.is_empty() {
                        self.by_segment.remove(&batch.segment);
                    }
                }
                complete.push(batch);
            }
        }
        complete
    }

    /// Removes and returns the operations that wait for batches in flight, each with its batch.
    pub(crate) fn take_waiters(&mut self) -> Vec<(Lsn, u32)> {
        self.in_flight.iter_mut().flat_map(|batch| std::mem::take(&mut batch.waiters).into_iter().map(|id| (batch.lsn, id))).collect()
    }

    /// Puts some of them back.
    pub(crate) fn give_waiters(&mut self, waiters: Vec<(Lsn, u32)>) {
        for (lsn, id) in waiters {
            self.find_mut(lsn).into_iter().for_each(|batch| batch.waiters.push(id));
        }
    }

    /// True when a segment has batches in flight.
    pub(crate) fn is_in_flight(&self, segment: SegmentId) -> bool {
        self.by_segment.contains_key(&segment)
    }

    /// Map changes that a planted bug delayed.
    pub(crate) fn take_deferred(&mut self, lsn: Lsn) -> Vec<(LineageId, BlockNo, Addr, u32)> {
        self.find_mut(lsn).map(|batch| std::mem::take(&mut batch.deferred)).unwrap_or_default()
    }

    /// Removes all batches in flight, because the pool has stopped.
    pub(crate) fn abandon(&mut self) -> Vec<InFlight> {
        self.by_segment.clear();
        self.in_flight.drain(..).collect()
    }

    /// Returns stored bytes that are still in flight: `units` units from `unit` of a segment, and
    /// their batch.
    pub(crate) fn find_bytes(&self, segment: SegmentId, unit: u32, units: u32) -> Option<(BufSlice, Lsn)> {
        let list = self.by_segment.get(&segment)?;
        let first = self.in_flight.front()?.lsn;
        list.iter().rev().find_map(|lsn| {
            let batch = self.in_flight.get(usize::try_from(lsn.0 - first.0).ok()?)?;
            batch.bytes(unit, units).map(|piece| (piece, *lsn))
        })
    }
}

#[cfg(test)]
mod tests;
