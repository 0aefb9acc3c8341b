//! The extents of which devices make up each segment.
//!
//! They follow from the shape in the label alone, so a segment id means certain extents as soon as
//! one label is read.

use std::collections::BTreeSet;

use millpond_block::{ByteRange, MemberId};
use millpond_format::{AREA_BYTES, Class, Layout, SegmentId, Shape};
use smallvec::SmallVec;

/// Bytes of a page: the grain of offsets in segments.
pub(crate) const PAGE: u64 = 4096;

/// Byte ranges on devices.
pub(crate) type Places = SmallVec<[(MemberId, ByteRange); 2]>;

/// How the parts of a segment make it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The parts take turns of this many bytes; a linear segment has one part.
    Spread(u64),
    /// Each part is a copy of the whole segment.
    Mirror,
    /// The parts take turns of this many bytes, except the last ones, whose number is the second
    /// field: these hold parity.
    Parity(u64, usize),
    /// There are no parts: the segment is an object of a bucket.
    Bucket,
    /// There are no parts: their devices are gone from the pool.
    Gap,
}

/// Allocation class of segments. Each class has its own free segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AllocClass {
    /// Data that stays there; all data in most pools. Beside a bucket, the segments of the log: all
    /// that is on devices is there, as in a pool without classes.
    Data,
    /// New writes, until the cleaner moves them to data. Not beside a bucket.
    Log,
    /// Small writes; in a pool without a class for nodes, nodes and checkpoint objects, too.
    Special,
    /// Map nodes and checkpoint objects, mirrored over special devices and a data device.
    Nodes,
    /// Objects of a bucket. They are written whole, and take no space on devices.
    Bucket,
}

impl AllocClass {
    /// All classes.
    pub(crate) const ALL: [AllocClass; 5] = [AllocClass::Data, AllocClass::Log, AllocClass::Special, AllocClass::Nodes, AllocClass::Bucket];
    /// The classes whose segments are on devices.
    pub(crate) const LOCAL: [AllocClass; 4] = [AllocClass::Data, AllocClass::Log, AllocClass::Special, AllocClass::Nodes];
}

/// The columns of a segment with parity.
#[derive(Debug)]
pub(crate) struct Stripe<'a> {
    parts: &'a [(MemberId, u32)],
    extent_bytes: u64,
    /// Bytes on one device before the next device follows.
    pub(crate) unit: u64,
    /// Number of columns with parity, which are the last ones.
    pub(crate) parity: usize,
}

impl Stripe<'_> {
    /// Number of columns.
    pub(crate) fn width(&self) -> usize {
        self.parts.len()
    }

    /// Number of data columns.
    pub(crate) fn data(&self) -> usize {
        self.parts.len() - self.parity
    }

    /// Device and first byte of each column.
    pub(crate) fn columns(&self) -> SmallVec<[(MemberId, u64); 16]> {
        self.parts.iter().map(|(device, at)| (*device, AREA_BYTES + u64::from(*at) * self.extent_bytes)).collect()
    }

    /// Place of one column of a range of pages that is made up of whole stripes.
    pub(crate) fn column(&self, column: usize, page: u32, pages: u32) -> Option<(MemberId, ByteRange)> {
        let (device, start) = self.columns().get(column).copied()?;
        let local = |pages: u32| u64::from(pages) * PAGE / self.data() as u64;
        Some((device, ByteRange { offset: start + local(page), length: local(pages) }))
    }
}

#[derive(Clone, Debug)]
struct Row {
    kind: Kind,
    alloc_class: AllocClass,
    /// See [`Layout::is_written_whole`].
    written_whole: bool,
    /// First segment of the group.
    group: SegmentId,
    parts: SmallVec<[(MemberId, u32); 1]>,
    /// Number of parts, from the first on, that are read in turn. The others, on data devices, are
    /// read only when these cannot be.
    front: usize,
}

impl Row {
    /// An id that the shape does not have, or no longer.
    fn gap() -> Row {
        let class = AllocClass::Data;
        Row { kind: Kind::Gap, alloc_class: class, written_whole: false, group: SegmentId(0), parts: SmallVec::new(), front: 0 }
    }
}

/// Extents of each segment.
#[derive(Debug)]
pub(crate) struct SegmentLayout {
    extent_bytes: u64,
    /// By segment id.
    rows: Vec<Row>,
}

impl SegmentLayout {
    /// The segments of a shape.
    pub(crate) fn new(shape: &Shape) -> SegmentLayout {
        let mut rows = SegmentLayout { extent_bytes: shape.extent_bytes, rows: Vec::new() };
        rows.extend(shape);
        rows
    }

    /// Returns the pages of the smallest segment.
    pub(crate) fn smallest(&self) -> u32 {
        u32::try_from(self.extent_bytes / PAGE).unwrap_or(u32::MAX)
    }

    /// Adds the segments of groups that were appended to `shape`.
    pub(crate) fn extend(&mut self, shape: &Shape) {
        let for_data = |class: Class| matches!(class, Class::Data | Class::Log);
        let data: BTreeSet<MemberId> =
            shape.groups.iter().filter(|g| for_data(g.class)).flat_map(|g| &g.columns).map(|c| c.member).collect();
        for group in &shape.groups {
            if (group.first.0 as usize) < self.rows.len() {
                continue;
            }
            let kind = match group.layout {
                Layout::Linear => Kind::Spread(self.extent_bytes),
                Layout::Stripe { unit, .. } => Kind::Spread(u64::from(unit)),
                Layout::Mirror { .. } => Kind::Mirror,
                Layout::Parity { parity, unit, .. } => Kind::Parity(u64::from(unit), usize::from(parity)),
                Layout::Bucket { .. } => Kind::Bucket,
            };
            let alloc_class = match group.class {
                Class::Data if kind == Kind::Bucket => AllocClass::Bucket,
                Class::Log if shape.has_bucket() => AllocClass::Data,
                Class::Data => AllocClass::Data,
                Class::Log => AllocClass::Log,
                Class::Special if group.columns.iter().any(|column| data.contains(&column.member)) => AllocClass::Nodes,
                Class::Special => AllocClass::Special,
                Class::Cache | Class::Spare => continue,
            };
            let (first, written_whole) = (group.first, group.layout.is_written_whole());
            self.rows.resize(first.0 as usize, Row::gap());
            let rows = &mut self.rows;
            group.for_each_row(|parts| {
                let slow = parts.iter().filter(|(member, _)| alloc_class == AllocClass::Nodes && data.contains(member)).count();
                let (front, parts) = (parts.len() - slow, SmallVec::from_slice(parts));
                rows.push(Row { kind, alloc_class, written_whole, group: first, parts, front });
            });
        }
        // segments of lost devices may still be referred to, so their ids get entries
        self.rows.resize(self.rows.len().max(shape.next.0 as usize), Row::gap());
    }

    /// Number of segment ids in use, gaps included.
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.rows.len()).unwrap_or(u32::MAX - 1)
    }

    fn row(&self, segment: SegmentId) -> Option<&Row> {
        self.rows.get(segment.0 as usize).filter(|row| row.kind != Kind::Gap)
    }

    /// Pages of a segment; 0 when it does not exist.
    pub(crate) fn pages(&self, segment: SegmentId) -> u32 {
        let bytes = self.row(segment).map_or(0, |row| match row.kind {
            Kind::Spread(_) => row.parts.len() as u64 * self.extent_bytes,
            Kind::Mirror | Kind::Bucket => self.extent_bytes,
            Kind::Parity(_, parity) => (row.parts.len() - parity) as u64 * self.extent_bytes,
            Kind::Gap => 0,
        });
        u32::try_from(bytes / PAGE).unwrap_or(u32::MAX)
    }

    /// Devices that each hold a whole copy of a segment; none when the layout is not a mirror.
    pub(crate) fn copies(&self, segment: SegmentId) -> impl ExactSizeIterator<Item = MemberId> + '_ {
        let parts = self.row(segment).filter(|row| row.kind == Kind::Mirror).map_or(&[][..], |row| row.parts.as_slice());
        parts.iter().map(|(device, _)| *device)
    }

    /// Number of [`copies`](Rows::copies), from the first on, on devices that reads should use.
    pub(crate) fn front(&self, segment: SegmentId) -> usize {
        self.row(segment).map_or(0, |row| row.front)
    }

    /// True when the segment existed and its devices are gone from the pool.
    pub(crate) fn is_gap(&self, segment: SegmentId) -> bool {
        self.rows.get(segment.0 as usize).is_some_and(|row| row.kind == Kind::Gap)
    }

    /// True when the segment is an object of a bucket: it exists, and is on no device.
    pub(crate) fn is_in_bucket(&self, segment: SegmentId) -> bool {
        self.row(segment).is_some_and(|row| row.kind == Kind::Bucket)
    }

    /// Allocation class of a segment.
    pub(crate) fn alloc_class(&self, segment: SegmentId) -> AllocClass {
        self.row(segment).map_or(AllocClass::Data, |row| row.alloc_class)
    }

    /// Allocation class of a segment, first segment of its group, and its pages; `None` when it
    /// does not exist.
    pub(crate) fn home(&self, segment: SegmentId) -> Option<(AllocClass, SegmentId, u32)> {
        self.row(segment).map(|row| (row.alloc_class, row.group, self.pages(segment)))
    }

    /// Number of devices of a segment that may be lost without loss of data.
    pub(crate) fn spare(&self, segment: SegmentId) -> usize {
        self.row(segment).map_or(0, |row| match row.kind {
            Kind::Spread(_) | Kind::Bucket | Kind::Gap => 0,
            Kind::Mirror => row.parts.len() - 1,
            Kind::Parity(_, parity) => parity,
        })
    }

    /// The columns of a segment with parity; `None` for other layouts.
    pub(crate) fn stripe(&self, segment: SegmentId) -> Option<Stripe<'_>> {
        let row = self.row(segment)?;
        let Kind::Parity(unit, parity) = row.kind else { return None };
        Some(Stripe { parts: &row.parts, extent_bytes: self.extent_bytes, unit, parity })
    }

    /// True when a segment is written only in large whole parts, see
    /// [`Layout::is_written_whole`].
    pub(crate) fn is_written_whole(&self, segment: SegmentId) -> bool {
        self.row(segment).is_some_and(|row| row.written_whole)
    }

    /// Grain of writes to a segment, in pages: both start and length are multiples of it. With
    /// parity a whole stripe, else 1.
    pub(crate) fn quantum(&self, segment: SegmentId) -> u32 {
        self.stripe(segment).map_or(1, |stripe| u32::try_from(stripe.unit * stripe.data() as u64 / PAGE).unwrap_or(1))
    }

    /// True when a part of a segment is on `member`.
    pub(crate) fn has(&self, segment: SegmentId, member: MemberId) -> bool {
        self.row(segment).is_some_and(|row| row.parts.iter().any(|(device, _)| *device == member))
    }

    fn start(&self, extent: u32) -> u64 {
        AREA_BYTES + u64::from(extent) * self.extent_bytes
    }

    /// Byte range of an extent on its device.
    pub(crate) fn range_of(&self, extent: u32) -> ByteRange {
        ByteRange { offset: self.start(extent), length: self.extent_bytes }
    }

    /// Extents of a segment: device and byte range.
    pub(crate) fn extents(&self, segment: SegmentId) -> impl Iterator<Item = (MemberId, ByteRange)> + '_ {
        let row = self.row(segment).map_or(&[][..], |row| row.parts.as_slice());
        row.iter().map(|(device, at)| (*device, self.range_of(*at)))
    }

    /// Places of `pages` pages from `page` on: device and byte range of each piece, in order. For a
    /// mirror, those of copy `copy`; for parity, those of the data.
    pub(crate) fn map(&self, segment: SegmentId, page: u32, pages: u32, copy: usize) -> Places {
        let mut out = SmallVec::new();
        let Some(row) = self.row(segment) else { return out };
        let mut at = u64::from(page) * PAGE;
        let end = at + u64::from(pages) * PAGE;
        assert!(end <= u64::from(self.pages(segment)) * PAGE, "access beyond a segment");
        let (unit, parts) = match row.kind {
            Kind::Spread(unit) => (unit, row.parts.as_slice()),
            Kind::Mirror => (self.extent_bytes, row.parts.get(copy..=copy).unwrap_or_default()),
            Kind::Parity(unit, parity) => (unit, row.parts.get(..row.parts.len() - parity).unwrap_or_default()),
            Kind::Bucket | Kind::Gap => return out,
        };
        if let [(device, extent)] = parts {
            if at < end {
                out.push((*device, ByteRange { offset: self.start(*extent) + at, length: end - at }));
            }
            return out;
        }
        let width = parts.len() as u64;
        while at < end && width > 0 {
            let (turn, within) = (at / unit, at % unit);
            let Some((device, extent)) = parts.get((turn % width) as usize) else { return out };
            let length = (unit - within).min(end - at);
            out.push((*device, ByteRange { offset: self.start(*extent) + turn / width * unit + within, length }));
            at += length;
        }
        out
    }

    /// Counts, for each device, its extents in segments for which `pick` is true.
    pub(crate) fn count_extents(&self, devices: usize, mut pick: impl FnMut(SegmentId) -> bool) -> Vec<u64> {
        let mut counts = vec![0; devices];
        for (row, id) in self.rows.iter().zip(0u32..) {
            if pick(SegmentId(id)) {
                row.parts.iter().for_each(|(device, _)| {
                    if let Some(n) = counts.get_mut(device.index()) {
                        *n += 1;
                    }
                });
            }
        }
        counts
    }

    /// Bytes of an extent.
    pub(crate) fn extent_bytes(&self) -> u64 {
        self.extent_bytes
    }
}

#[cfg(test)]
mod tests;
