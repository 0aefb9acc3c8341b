//! Reads of segments with parity: of a column, and of data computed from other columns because its
//! device is missing or not trusted.

use millpond_block::{Buf, BufPool, BufSlice, ByteRange, MemberId};
use millpond_format::SegmentId;
use smallvec::SmallVec;

use super::part::Part;
use super::{IoTable, Kind};
use crate::io::parity::{Coders, Columns, Rebuild, Want, erased};
use crate::space::{SegmentLayout, Stripe};

impl<C> IoTable<C> {
    /// Reads a range of a column of a segment with parity: from its device, or computed from the
    /// others.
    #[expect(clippy::too_many_arguments, reason = "a place, and who asks")]
    pub(crate) fn read_column(
        &mut self,
        context: C,
        layout: &SegmentLayout,
        segment: SegmentId,
        member: MemberId,
        local: ByteRange,
        attempt: u8,
        bufs: &mut BufPool,
    ) {
        let group = self.add(context, Kind::Read, Some(segment));
        if let Some(stripe) = layout.stripe(segment)
            && let Some(column) = stripe.columns().iter().position(|(device, _)| *device == member)
            && !self.rebuild(group, &stripe, Want::Column { column, local }, attempt, bufs)
            && let Some((device, start)) = stripe.columns().get(column)
        {
            self.push_read(group, *device, ByteRange { offset: start + local.offset, ..local }, bufs);
        }
        self.begin(group);
    }

    /// Computes bytes of stripes from columns in memory, which begin at byte `start` of their
    /// extents, without the `erased` ones.
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

    /// Returns the bytes of each column of whole stripes, parity last.
    pub(crate) fn split(&mut self, stripe: &Stripe<'_>, pieces: Vec<BufSlice>, bufs: &mut BufPool) -> Vec<Vec<BufSlice>> {
        self.coders.split(stripe, pieces, bufs)
    }

    /// True when parity matches the data in all columns of whole stripes.
    pub(crate) fn agrees(&mut self, stripe: &Stripe<'_>, columns: &[&[u8]]) -> bool {
        self.coders.agrees(stripe, columns)
    }

    /// Starts to read other columns when the wanted bytes are on a device that lacks them or is not
    /// trusted. False when they are to be read from their own device.
    pub(super) fn rebuild(&mut self, group: u32, stripe: &Stripe<'_>, want: Want, attempt: u8, bufs: &mut BufPool) -> bool {
        let (mut missing, wanted) = (self.health.missing(stripe), want.columns(stripe));
        let first = wanted.trailing_zeros() as usize;
        let reachable = self.health.missing_or_silent(stripe);
        // only at the first attempt: when that did not help, later ones wait for the silent devices
        if attempt == 0 && reachable.count_ones() as usize <= stripe.parity {
            missing = reachable;
        }
        let Some(erased) = erased(stripe.width(), stripe.parity, missing, first, attempt) else {
            // more are missing than parity can replace, but the wanted bytes may still be on their
            // device
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

/// Computes the result of a read from parts of other columns.
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
