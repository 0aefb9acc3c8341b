//! Reads of segments with parity: of a column, and of what others say about one that is missing or not to be trusted.

use millpond_block::{Buf, BufPool, ByteRange, Piece};
use millpond_device::DeviceIndex;
use millpond_format::SegmentId;
use smallvec::SmallVec;

use super::super::parity::{Coders, Columns, Rebuild, Want, erased};
use super::{IoTable, Kind, Part};
use crate::space::{Rows, Stripe};

impl<C> IoTable<C> {
    /// Reads a range of a column of a segment with parity: from its device, or from the others.
    #[expect(clippy::too_many_arguments, reason = "a place, and who asks")]
    pub(crate) fn read_column(
        &mut self,
        context: C,
        rows: &Rows,
        segment: SegmentId,
        member: DeviceIndex,
        local: ByteRange,
        attempt: u8,
        bufs: &mut BufPool,
    ) {
        let group = self.add(context, Kind::Read, Some(segment));
        if let Some(stripe) = rows.stripe(segment)
            && let Some(column) = stripe.columns().iter().position(|(device, _)| *device == member)
            && !self.rebuild(group, &stripe, Want::Column { column, local }, attempt, bufs)
            && let Some((device, start)) = stripe.columns().get(column)
        {
            self.push_read(group, *device, ByteRange { offset: start + local.offset, ..local }, bufs);
        }
        self.begin(group);
    }

    /// What is asked of rows whose columns are in memory from byte `start` of their extents on, without the `erased` ones.
    pub(crate) fn recall(
        &mut self,
        stripe: &Stripe<'_>,
        want: Want,
        erased: Columns,
        columns: &[Option<&[u8]>],
        start: u64,
        bufs: &mut BufPool,
    ) -> Option<Buf> {
        let rebuild = Rebuild::new(stripe, want, erased);
        let mut out = bufs.take(rebuild.length());
        let done = rebuild.recall(columns, start, &mut self.coders, out.bytes_mut());
        if done.is_none() {
            bufs.give(out);
            return None;
        }
        Some(out)
    }

    /// What each column of whole rows should hold, parity last.
    pub(crate) fn split(&mut self, stripe: &Stripe<'_>, pieces: Vec<Piece>, bufs: &mut BufPool) -> Vec<Vec<Piece>> {
        self.coders.split(stripe, pieces, bufs)
    }

    /// Is the parity in all columns of rows that of their data?
    pub(crate) fn agrees(&mut self, stripe: &Stripe<'_>, columns: &[&[u8]]) -> bool {
        self.coders.agrees(stripe, columns)
    }

    /// Starts to read what others have, when what is wanted is on a device that lacks it or is not to be trusted. False when it is to be
    /// read where it is.
    pub(super) fn rebuild(&mut self, group: u32, stripe: &Stripe<'_>, want: Want, attempt: u8, bufs: &mut BufPool) -> bool {
        let (mut missing, wanted) = (self.health.missing(stripe), want.columns(stripe));
        let first = wanted.trailing_zeros() as usize;
        let reachable = self.health.missing_or_silent(stripe);
        // only at first: who found out that this does not help waits for those that are silent
        if attempt == 0 && reachable.count_ones() as usize <= stripe.parity {
            missing = reachable;
        }
        let Some(erased) = erased(stripe.width(), stripe.parity, missing, first, attempt) else {
            // too many are missing: what is wanted may still be there
            return wanted & missing != 0;
        };
        if wanted & erased == 0 {
            return false;
        }
        let rebuild = Rebuild::new(stripe, want, erased);
        for (device, range) in rebuild.reads(stripe) {
            self.push_read(group, device, range, bufs);
        }
        if let Some(group) = self.groups.get_mut(group) {
            group.rebuild = Some(Box::new(rebuild));
        }
        true
    }
}

/// What parts of a read say about other columns.
pub(super) fn compute(rebuild: &Rebuild, mut parts: SmallVec<[Part; 1]>, coders: &mut Coders, bufs: &mut BufPool) -> Option<Buf> {
    let read: SmallVec<[&[u8]; 16]> = parts.iter().filter_map(|part| part.buf.as_ref().map(Buf::bytes)).collect();
    let mut out = bufs.take(rebuild.length());
    let done = (read.len() == parts.len()).then(|| rebuild.assemble(&read, coders, out.bytes_mut())).flatten();
    drop(read);
    parts.iter_mut().filter_map(|part| part.buf.take()).for_each(|buf| bufs.give(buf));
    match done {
        Some(()) => Some(out),
        None => {
            bufs.give(out);
            None
        }
    }
}
