//! Segments with parity: the bytes of each device, and how to compute the bytes of devices that
//! lack them from the others.
//!
//! P is the exclusive or of the data, Q its Reed-Solomon syndrome (H. P. Anvin, "The mathematics of
//! RAID-6"); a library does the arithmetic.
//!
//! INV-PARITY-1: a stripe (one turn of all devices) is written whole and once in each use of its
//! segment, so parity always belongs to the data beside it.

use std::collections::BTreeMap;

use millpond_block::{Buf, BufPool, BufSlice, ByteRange, MemberId};
use rusty_erasure::{Coder, Matrix};
use smallvec::SmallVec;

use crate::space::Stripe;

/// Bytes of each column that are verified at a time, so that the computed parity stays in the
/// processor's cache.
const COMPARED: usize = 4 << 10;

/// A set of columns of a stripe, one bit each.
pub(crate) type Columns = u32;

fn has(set: Columns, column: usize) -> bool {
    set & 1 << column != 0
}

/// Bytes to be read from a segment with parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// Bytes of the segment.
    Bytes { from: u64, to: u64 },
    /// A range of one column.
    Column { column: usize, local: ByteRange },
}

impl Want {
    /// Columns that have these bytes.
    pub(crate) fn columns(&self, stripe: &Stripe<'_>) -> Columns {
        match *self {
            Want::Column { column, .. } => 1 << column,
            Want::Bytes { from, to } => {
                let (data, first) = (stripe.data() as u64, from / stripe.unit);
                let turns = (to - 1) / stripe.unit - first + 1;
                (first..first + turns.min(data)).fold(0, |set, turn| set | 1 << (turn % data))
            }
        }
    }
}

/// Returns the columns that a read does without: the `missing` ones, and, at later attempts because
/// the result was wrong, others in turn, beginning with `first`. `None` when more columns are
/// missing than parity can replace.
pub(crate) fn erased(columns: usize, spare: usize, missing: Columns, first: usize, attempt: u8) -> Option<Columns> {
    let left = spare.checked_sub(missing.count_ones() as usize)?;
    let mut attempt = usize::from(attempt);
    if attempt == 0 || left == 0 {
        return Some(missing);
    }
    attempt -= 1;
    let there: SmallVec<[usize; 16]> = (0..columns).map(|at| (first + at) % columns).filter(|at| !has(missing, *at)).collect();
    if let Some(one) = there.get(attempt) {
        return Some(missing | 1 << one);
    }
    attempt -= there.len();
    if left > 1 {
        for (at, one) in there.iter().enumerate() {
            let others = there.get(at + 1..).unwrap_or_default();
            if let Some(other) = others.get(attempt) {
                return Some(missing | 1 << one | 1 << other);
            }
            attempt -= others.len();
        }
    }
    Some(missing)
}

/// Returns the number of different results of [`erased`].
pub(crate) fn answers(columns: usize, spare: usize, missing: Columns) -> u8 {
    let there = columns - missing.count_ones() as usize;
    let count = match spare.saturating_sub(missing.count_ones() as usize) {
        0 => 1,
        1 => 1 + there,
        _ => 1 + there + there * there.saturating_sub(1) / 2,
    };
    u8::try_from(count).unwrap_or(u8::MAX)
}

/// A read that computes bytes from other columns than those that store them.
#[derive(Debug)]
pub(crate) struct Rebuild {
    want: Want,
    unit: u64,
    data: usize,
    parity: usize,
    /// The columns to read, and the range of each.
    sources: SmallVec<[usize; 16]>,
    local: ByteRange,
}

impl Rebuild {
    /// Plans a read without the `erased` columns, of which there are at most as many as parity
    /// columns.
    pub(crate) fn new(stripe: &Stripe<'_>, want: Want, erased: Columns) -> Rebuild {
        let (data, unit) = (stripe.data(), stripe.unit);
        let local = match want {
            Want::Column { local, .. } => local,
            Want::Bytes { from, to } => {
                let (first, last) = (from / unit, (to - 1) / unit);
                let row = |turn: u64| turn / data as u64;
                if first == last {
                    ByteRange { offset: row(first) * unit + from % unit, length: to - from }
                } else {
                    ByteRange { offset: row(first) * unit, length: (row(last) - row(first) + 1) * unit }
                }
            }
        };
        let mut sources: SmallVec<[usize; 16]> = (0..stripe.width()).filter(|column| !has(erased, *column)).collect();
        sources.truncate(data);
        Rebuild { want, unit, data, parity: stripe.parity, sources, local }
    }

    /// Ranges to read, in the order in which [`assemble`](Self::assemble) takes their bytes.
    pub(crate) fn reads(&self, stripe: &Stripe<'_>) -> SmallVec<[(MemberId, ByteRange); 16]> {
        let columns = stripe.columns();
        let place = |column: &usize| {
            let (device, start) = columns.get(*column)?;
            Some((*device, ByteRange { offset: start + self.local.offset, length: self.local.length }))
        };
        self.sources.iter().filter_map(place).collect()
    }

    /// Length of the result in bytes.
    pub(crate) fn length(&self) -> usize {
        let length = match self.want {
            Want::Bytes { from, to } => to - from,
            Want::Column { local, .. } => local.length,
        };
        usize::try_from(length).unwrap_or(usize::MAX)
    }

    /// True when the bytes are in one turn of one column.
    fn is_narrow(&self) -> bool {
        matches!(self.want, Want::Bytes { from, to } if from / self.unit == (to - 1) / self.unit)
    }

    /// Columns that have the bytes of the result.
    fn wanted(&self) -> std::ops::Range<usize> {
        match self.want {
            Want::Column { column, .. } => column..column + 1,
            Want::Bytes { from, .. } if self.is_narrow() => {
                let column = (from / self.unit) as usize % self.data;
                column..column + 1
            }
            Want::Bytes { .. } => 0..self.data,
        }
    }

    /// Computes the result from columns in memory, each from byte `start` of its extent on. `None`
    /// when a column that it needs is not there.
    pub(super) fn recall(&self, columns: &[Option<&[u8]>], start: u64, coders: &mut Coders, out: &mut [u8]) -> Option<()> {
        let from = usize::try_from(self.local.offset.checked_sub(start)?).ok()?;
        let to = from + usize::try_from(self.local.length).ok()?;
        let read: Option<SmallVec<[&[u8]; 16]>> = self.sources.iter().map(|column| (*columns.get(*column)?)?.get(from..to)).collect();
        self.assemble(&read?, coders, out)
    }

    /// Computes the result from the bytes that were read. `None` when parts of them are missing.
    pub(crate) fn assemble(&self, read: &[&[u8]], coders: &mut Coders, out: &mut [u8]) -> Option<()> {
        let length = usize::try_from(self.local.length).ok()?;
        let targets: SmallVec<[usize; 2]> = self.wanted().filter(|column| !self.sources.contains(column)).collect();
        let mut rebuilt: Vec<Vec<u8>> = targets.iter().map(|_| vec![0; length]).collect();
        let mut shards: SmallVec<[Option<&[u8]>; 16]> = SmallVec::from_elem(None, self.data + self.parity);
        for (column, bytes) in self.sources.iter().zip(read) {
            *shards.get_mut(*column)? = Some(bytes.get(..length)?);
        }
        if !targets.is_empty() {
            let mut into: SmallVec<[&mut [u8]; 2]> = rebuilt.iter_mut().map(Vec::as_mut_slice).collect();
            coders.of(self.data, self.parity).recover(&shards, &targets, &mut into).ok()?;
        }
        for (column, bytes) in targets.iter().zip(&rebuilt) {
            *shards.get_mut(*column)? = Some(bytes);
        }
        let column = |at: usize| shards.get(at).copied().flatten();
        match self.want {
            Want::Column { column: at, .. } => out.get_mut(..length)?.copy_from_slice(column(at)?),
            Want::Bytes { from, .. } if self.is_narrow() => {
                out.get_mut(..length)?.copy_from_slice(column((from / self.unit) as usize % self.data)?);
            }
            Want::Bytes { from, to } => {
                let (mut at, mut done) = (from, 0usize);
                while at < to {
                    let turn = at / self.unit;
                    let step = (self.unit - at % self.unit).min(to - at);
                    let local = turn / self.data as u64 * self.unit + at % self.unit - self.local.offset;
                    let (local, bytes) = (usize::try_from(local).ok()?, usize::try_from(step).ok()?);
                    let source = column((turn % self.data as u64) as usize)?;
                    out.get_mut(done..done + bytes)?.copy_from_slice(source.get(local..local + bytes)?);
                    at += step;
                    done += bytes;
                }
            }
        }
        Some(())
    }
}

/// Tables of the library for each number of data and parity columns.
#[derive(Default)]
pub(crate) struct Coders(BTreeMap<(usize, usize), Coder>);

impl Coders {
    fn of(&mut self, data: usize, parity: usize) -> &Coder {
        self.0.entry((data, parity)).or_insert_with(|| {
            let coder = Matrix::reed_solomon(data, parity).and_then(rusty_erasure::coder);
            coder.expect("INV-PARITY-2: shapes with layout that cannot be coded are refused")
        })
    }

    /// True when the parity columns, which are the last ones, match the data columns.
    pub(super) fn agrees(&mut self, stripe: &Stripe<'_>, columns: &[&[u8]]) -> bool {
        let coder = self.of(stripe.data(), stripe.parity);
        let length = columns.iter().map(|column| column.len()).max().unwrap_or(0);
        (0..length).step_by(COMPARED).all(|from| {
            let range = from..length.min(from + COMPARED);
            let parts: SmallVec<[&[u8]; 16]> = columns.iter().map(|column| column.get(range.clone()).unwrap_or_default()).collect();
            parts.split_at_checked(stripe.data()).is_some_and(|(data, parity)| coder.verify(data, parity).unwrap_or(false))
        })
    }

    /// Distributes the bytes of whole stripes to the data columns and adds parity: pieces for each
    /// column, in order.
    pub(super) fn split(&mut self, stripe: &Stripe<'_>, pieces: Vec<BufSlice>, bufs: &mut BufPool) -> Vec<Vec<BufSlice>> {
        let (data, unit) = (stripe.data(), usize::try_from(stripe.unit).unwrap_or(usize::MAX));
        let mut columns: Vec<Vec<BufSlice>> = vec![Vec::new(); data];
        let mut at = 0;
        for piece in &pieces {
            let mut from = 0;
            while from < piece.len() {
                let step = (unit - at % unit).min(piece.len() - from);
                if let Some(column) = columns.get_mut(at / unit % data) {
                    column.push(piece.slice(from..from + step));
                }
                at += step;
                from += step;
            }
        }
        assert!(at % (unit * data) == 0, "INV-PARITY-1: layout are written whole");
        let length = at / data;
        let mut parity: SmallVec<[Buf; 2]> = (0..stripe.parity).map(|_| bufs.take(length)).collect();
        let coder = self.of(data, stripe.parity);
        let mut places: SmallVec<[(usize, usize); 16]> = SmallVec::from_elem((0, 0), data);
        let mut done = 0;
        while done < length {
            let rest = |(column, (piece, from)): (&Vec<BufSlice>, &(usize, usize))| column.get(*piece).map_or(0, |p| p.len() - from);
            let run = columns.iter().zip(&places).map(rest).min().unwrap_or(0);
            let shards: SmallVec<[&[u8]; 16]> =
                columns.iter().zip(&places).filter_map(|(column, at)| column.get(at.0)?.bytes().get(at.1..at.1 + run)).collect();
            let mut out: SmallVec<[&mut [u8]; 2]> =
                parity.iter_mut().map(|buf| buf.bytes_mut().get_mut(done..done + run).unwrap_or_default()).collect();
            let coded = run > 0 && coder.encode(&shards, &mut out).is_ok();
            assert!(coded, "INV-PARITY-1: columns are of one length");
            for (column, place) in columns.iter().zip(&mut places) {
                place.1 += run;
                if column.get(place.0).is_some_and(|piece| piece.len() == place.1) {
                    *place = (place.0 + 1, 0);
                }
            }
            done += run;
        }
        columns.extend(parity.into_iter().map(|buf| vec![BufSlice::new(buf, 0..length)]));
        columns
    }
}

#[cfg(test)]
mod tests;
