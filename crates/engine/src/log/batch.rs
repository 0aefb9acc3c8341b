//! Batches that are being filled, and batches in flight.

use millpond_block::{Buf, BufSlice};
use millpond_format::{Addr, BlockNo, Encoder, LineageId, Lsn, SegmentId};

/// Size in bytes of the buffers that small payloads are copied into.
const GATHER: usize = 128 << 10;

/// Kind of a batch's items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchKind {
    /// Blocks only: batches of other streams may be open at the same time.
    Blocks,
    /// A clear or a record: no other batch may be open (INV-LOG-3).
    Exclusive,
}

/// Identity of an operation that waits for a batch.
pub(crate) type Written = u32;

/// A batch that is being filled.
#[derive(Debug)]
pub(crate) struct OpenBatch {
    pub(crate) kind: BatchKind,
    /// Page of its header in the segment.
    pub(crate) page: u32,
    /// Pages of the header.
    pub(crate) header_pages: u32,
    pub(crate) items: Encoder,
    /// Full parts of the payload.
    pieces: Vec<BufSlice>,
    /// The part that is being filled, and the bytes used in it.
    gather: Option<(Buf, usize)>,
    /// Bytes of payload.
    pub(crate) payload: usize,
    /// Operations to be notified when the batch is complete.
    pub(crate) waiters: Vec<Written>,
    /// First unit of the payload, counted from the chunk's base.
    pub(crate) first_unit: u32,
    /// Map changes that a planted bug delays.
    pub(crate) deferred: Vec<(LineageId, BlockNo, Addr, u32)>,
}

impl OpenBatch {
    pub(crate) fn new(kind: BatchKind, page: u32, header_pages: u32, first_unit: u32, items: Encoder) -> OpenBatch {
        OpenBatch {
            kind,
            page,
            header_pages,
            items,
            pieces: Vec::new(),
            gather: None,
            payload: 0,
            waiters: Vec::new(),
            first_unit,
            deferred: Vec::new(),
        }
    }

    /// Pages that the batch takes so far.
    pub(crate) fn pages(&self) -> u32 {
        self.header_pages + u32::try_from(self.payload.div_ceil(4096)).unwrap_or(u32::MAX)
    }

    /// Adds `bytes` bytes, at most [`GATHER`], to the payload and returns the space to copy them
    /// into.
    pub(crate) fn room(&mut self, bytes: usize, take: impl FnOnce(usize) -> Buf) -> &mut [u8] {
        if self.gather.as_ref().is_none_or(|(buf, used)| buf.size() - used < bytes) {
            self.close_gather();
            self.gather = Some((take(bytes.max(GATHER)), 0));
        }
        self.payload += bytes;
        match &mut self.gather {
            Some((buf, used)) => {
                let at = *used;
                *used += bytes;
                buf.bytes_mut().get_mut(at..at + bytes).unwrap_or_default()
            }
            None => &mut [],
        }
    }

    /// Copies whole blocks into the payload, each within one piece.
    pub(crate) fn copy(&mut self, mut bytes: &[u8], mut take: impl FnMut(usize) -> Buf) {
        while !bytes.is_empty() {
            let left = self.gather.as_ref().map_or(0, |(buf, used)| (buf.size() - used) / 4096 * 4096);
            let (now, later) = bytes.split_at(bytes.len().min(if left == 0 { GATHER } else { left }));
            self.room(now.len(), &mut take).copy_from_slice(now);
            bytes = later;
        }
    }

    fn close_gather(&mut self) {
        if let Some((buf, used)) = self.gather.take()
            && used > 0
        {
            self.pieces.push(BufSlice::new(buf, 0..used));
        }
    }

    /// Adds a piece to the payload without copying it.
    pub(crate) fn attach(&mut self, piece: BufSlice) {
        self.close_gather();
        self.payload += piece.len();
        self.pieces.push(piece);
    }

    /// Pads the payload to whole pages and returns its pieces.
    pub(crate) fn finish(&mut self, take: impl FnOnce(usize) -> Buf) -> Vec<BufSlice> {
        let rag = self.payload % 4096;
        if rag != 0 {
            self.room(4096 - rag, take).fill(0);
        }
        self.close_gather();
        std::mem::take(&mut self.pieces)
    }
}

/// A batch that was passed to the devices.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) lsn: Lsn,
    pub(crate) segment: SegmentId,
    /// Units from the segment's start to the payload.
    pub(crate) unit: u32,
    pub(crate) pieces: Vec<BufSlice>,
    pub(crate) waiters: Vec<Written>,
    pub(crate) written: bool,
    /// Map changes that a planted bug delays.
    pub(crate) deferred: Vec<(LineageId, BlockNo, Addr, u32)>,
}

impl InFlight {
    /// Returns `units` units of payload from `unit` of the segment, if one piece of this batch has
    /// them.
    pub(super) fn bytes(&self, unit: u32, units: u32) -> Option<BufSlice> {
        let mut at = usize::try_from(unit.checked_sub(self.unit)?).ok()? * 512;
        let bytes = units as usize * 512;
        for piece in &self.pieces {
            if at < piece.len() {
                return (at + bytes <= piece.len()).then(|| piece.slice(at..at + bytes));
            }
            at -= piece.len();
        }
        None
    }
}

#[cfg(test)]
mod tests;
