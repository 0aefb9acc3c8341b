//! Stripes with parity that a scrub read: their data as it is on the devices, and as the other
//! columns give it.

use millpond_block::{Buf, BufPool};
use millpond_format::{MAX_HEADER_PAGES, SegmentId};

use super::{Copy, Place};
use crate::io::{Columns, Want, answers, erased};
use crate::space::PAGE;
use crate::store::Store;

/// Write stamp: shows whether anything was written to a place while it was read. The segment is
/// full, so only repairs, and changes of devices, can write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteStamp {
    pub(super) repairs: u64,
    pub(super) shape: u64,
}

/// The columns of a place.
pub(crate) struct InMemory<'a> {
    pub(crate) segment: SegmentId,
    /// Byte offset of the place in the segment, and its length.
    pub(crate) from: u64,
    pub(crate) bytes: usize,
    pub(crate) columns: Vec<Option<&'a [u8]>>,
    /// Columns that were not read.
    pub(crate) lacking: Columns,
    /// Of these, columns on present devices whose read failed.
    pub(crate) unread: Columns,
}

pub(crate) fn copy_of(buf: &Buf, bytes: usize, bufs: &mut BufPool) -> Buf {
    let mut copy = bufs.take(bytes);
    if let (Some(to), Some(from)) = (copy.bytes_mut().get_mut(..bytes), buf.bytes().get(..bytes)) {
        to.copy_from_slice(from);
    }
    copy
}

impl Store {
    /// Returns the current write stamp.
    pub(crate) fn stillness(&self) -> WriteStamp {
        WriteStamp { repairs: self.repairs.begun, shape: self.config.shape.generation }
    }

    /// Returns the bytes that were read of a place, by column.
    pub(crate) fn in_memory<'a>(&self, place: &Place, read: &'a [Copy]) -> Option<InMemory<'a>> {
        let stripe = self.core.space.layout.stripe(place.segment)?;
        let bytes = place.pages as usize * PAGE as usize;
        let length = bytes / stripe.data();
        let of = |column: usize| read.iter().find(|(at, _)| *at == column)?.1.as_ref()?.bytes().get(..length);
        let columns: Vec<Option<&[u8]>> = (0..stripe.width()).map(of).collect();
        let lacking = (0..stripe.width()).filter(|at| columns.get(*at).is_none_or(Option::is_none)).fold(0, |set, at| set | 1 << at);
        let unread = lacking & !self.io.health.missing(&stripe);
        Some(InMemory { segment: place.segment, from: u64::from(place.page) * PAGE, bytes, columns, lacking, unread })
    }

    /// Computes bytes of a place without the `erased` columns. `None` when there is too little
    /// parity.
    pub(crate) fn recall(&mut self, rows: &InMemory<'_>, from: usize, bytes: usize, erased: Columns) -> Option<Buf> {
        let stripe = self.core.space.layout.stripe(rows.segment)?;
        let from = rows.from + from as u64;
        let want = Want::Bytes { from, to: from + bytes as u64 };
        self.io.recall(&stripe, want, erased, &rows.columns, rows.from / stripe.data() as u64, &mut self.bufs)
    }

    /// Returns all data of a place as it is on the devices. Missing columns are computed; where too
    /// many are missing they are zeroes, which match no checksum.
    pub(crate) fn joined(&mut self, rows: &InMemory<'_>) -> Option<Buf> {
        let spare = self.core.space.layout.spare(rows.segment);
        if rows.lacking.count_ones() as usize <= spare {
            return self.recall(rows, 0, rows.bytes, rows.lacking);
        }
        let nothing = vec![0; rows.bytes];
        let columns = rows.columns.iter().map(|column| Some(column.unwrap_or(&nothing))).collect();
        self.recall(&InMemory { columns, ..*rows }, 0, rows.bytes, 0)
    }

    /// Adds copies of a place with the header that identifies its blocks, computed from other
    /// columns.
    pub(crate) fn find_header(&mut self, rows: &InMemory<'_>, place: &Place, copies: &mut Vec<Copy>) {
        let head = rows.bytes.min(MAX_HEADER_PAGES * PAGE as usize);
        let mut attempt = 1;
        let mut unknown = self.items(place, copies).1;
        while unknown > 0
            && let Some(erased) = self.way(rows, 0, head, attempt)
        {
            attempt += 1;
            let Some(header) = self.recall(rows, 0, head, erased) else { continue };
            let Some(lies) = copies.first().and_then(|(_, lies)| lies.as_ref()) else { return };
            let mut copy = copy_of(lies, rows.bytes, &mut self.bufs);
            copy.bytes_mut().iter_mut().zip(header.bytes().iter().take(head)).for_each(|(to, right)| *to = *right);
            self.bufs.give(header);
            copies.push((usize::from(attempt), Some(copy)));
            let left = self.items(place, copies).1;
            if left < unknown {
                unknown = left;
            } else {
                copies.pop().and_then(|(_, copy)| copy).into_iter().for_each(|copy| self.bufs.give(copy));
            }
        }
    }

    /// Returns the columns that an attempt to compute some bytes does not use; `None` when all ways
    /// were tried.
    pub(crate) fn way(&self, rows: &InMemory<'_>, from: usize, bytes: usize, attempt: u8) -> Option<Columns> {
        let stripe = self.core.space.layout.stripe(rows.segment)?;
        let from = rows.from + from as u64;
        let first = Want::Bytes { from, to: from + bytes as u64 }.columns(&stripe).trailing_zeros() as usize;
        let ways = answers(stripe.width(), stripe.parity, rows.lacking);
        if rows.lacking.count_ones() as usize > stripe.parity || attempt >= ways {
            return None;
        }
        erased(stripe.width(), stripe.parity, rows.lacking, first, attempt)
    }
}
