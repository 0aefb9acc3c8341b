//! Log replication at an import: brings the end of the log to every copy.
//!
//! A crash may leave batches that were not durable yet on some copies only. An import that
//! continues from them first writes them to all copies: otherwise the loss of the one device that
//! has them would take data that was read since, and even the log that the import's root refers to.
//!
//! INV-LEVEL-1: before an import's root is published, every batch that it replays and that was not
//! durable is on all copies that count.

use millpond_block::{Buf, BufPool, BufSlice, DeviceError, MemberId};
use millpond_format::{BatchHeader, Lsn, PoolId, SegmentId};

use super::import::ImportIo;
use super::scan::{Found, payload_sound};
use crate::OpenErrorKind;
use crate::io::IoTable;
use crate::space::{PAGE, SegmentLayout};

/// Batches in flight at a time.
const AT_A_TIME: usize = 16;
/// Times that all copies of a batch are tried: the only one left may fail temporarily.
const ROUNDS: u8 = 4;

/// A batch that may not be on all copies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnderReplicatedBatch {
    pool: PoolId,
    incarnation: u32,
    lsn: Lsn,
    segment: SegmentId,
    page: u32,
    pages: u32,
    attempt: u8,
    round: u8,
}

/// The batches to write to all copies.
#[derive(Debug, Default)]
pub(crate) struct LogReplication {
    left: Vec<UnderReplicatedBatch>,
}

impl LogReplication {
    /// Selects the batches after `durable` that have several copies.
    pub(super) fn new(found: &[Found], durable: Lsn, layout: &SegmentLayout) -> LogReplication {
        let uneven = |f: &&Found| f.header.lsn > durable && layout.spare(f.header.segment) > 0;
        let batch = |f: &Found| {
            let h = &f.header;
            UnderReplicatedBatch {
                pool: h.pool,
                incarnation: h.incarnation,
                lsn: h.lsn,
                segment: h.segment,
                page: h.offset,
                pages: u32::from(h.pages) + h.payload,
                attempt: 0,
                round: 0,
            }
        };
        LogReplication { left: found.iter().filter(uneven).map(batch).collect() }
    }

    /// Starts reading some batches. Returns true when all are read and nothing is in flight.
    pub(super) fn step(&mut self, io: &mut IoTable<ImportIo>, layout: &SegmentLayout, bufs: &mut BufPool) -> bool {
        while io.in_flight() < AT_A_TIME {
            let Some(batch) = self.left.pop() else { break };
            io.read(ImportIo::Level(batch), layout, batch.segment, batch.page, batch.pages, batch.attempt, bufs);
        }
        self.left.is_empty() && io.in_flight() == 0
    }

    /// Handles a read of a copy of a batch: writes a sound one to the others, else reads the next.
    #[expect(clippy::too_many_arguments, reason = "one call site; a struct would only rename them")]
    pub(super) fn read(
        &mut self,
        batch: UnderReplicatedBatch,
        result: Result<(), DeviceError>,
        buf: Option<Buf>,
        source: Option<MemberId>,
        io: &mut IoTable<ImportIo>,
        layout: &SegmentLayout,
        bufs: &mut BufPool,
    ) -> Result<(), OpenErrorKind> {
        let bytes = batch.pages as usize * PAGE as usize;
        // if the device was given up meanwhile, the buffer is lost
        let sound = buf.filter(|buf| result.is_ok() && is_sound(&batch, buf.bytes().get(..bytes).unwrap_or_default()));
        let Some(buf) = sound else {
            if batch.attempt + 1 < io.attempts(layout, batch.segment) {
                self.left.push(UnderReplicatedBatch { attempt: batch.attempt + 1, ..batch });
                return Ok(());
            }
            if batch.round + 1 < ROUNDS {
                self.left.push(UnderReplicatedBatch { attempt: 0, round: batch.round + 1, ..batch });
                return Ok(());
            }
            return Err(OpenErrorKind::BatchUnreadable(batch.lsn));
        };
        let piece = BufSlice::new(buf, 0..bytes);
        if layout.stripe(batch.segment).is_some() {
            let pages = batch.pages.next_multiple_of(layout.quantum(batch.segment)) - batch.pages;
            let padding = BufSlice::new(Buf::zeroed(pages as usize * PAGE as usize), 0..pages as usize * PAGE as usize);
            let pieces = [piece, padding].into_iter().filter(|piece| !piece.is_empty()).collect();
            // an import waits for all devices
            let _none = io.write(ImportIo::Leveled, layout, batch.segment, batch.page, pieces, bufs);
            return Ok(());
        }
        let others = layout.copies(batch.segment).enumerate().filter(|(_, member)| Some(*member) != source);
        let places = others.flat_map(|(copy, _)| layout.map(batch.segment, batch.page, batch.pages, copy));
        io.write_raw(ImportIo::Leveled, places.map(|(member, range)| (member, range.offset, piece.clone())).collect());
        Ok(())
    }
}

/// Returns whether this copy holds the batch that is replayed. It may hold a batch of an earlier
/// incarnation with the same number at the same place: one that was never part of the log, because
/// an import found the log's end before it.
fn is_sound(batch: &UnderReplicatedBatch, bytes: &[u8]) -> bool {
    let Ok((header, items)) = BatchHeader::decode(bytes) else { return false };
    let payload = bytes.get(usize::from(header.pages) * PAGE as usize..).unwrap_or_default();
    let same = (header.pool, header.incarnation, header.lsn) == (batch.pool, batch.incarnation, batch.lsn)
        && (header.segment, header.offset) == (batch.segment, batch.page);
    same && payload_sound(&header, &items, payload)
}
