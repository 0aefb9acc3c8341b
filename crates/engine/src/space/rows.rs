//! The layout: which extents of which devices make up each segment.
//!
//! Rows follow from the label alone, so that a segment id means the same extents before anything else was read. `linear`: device after
//! device, one extent a row. `stripe`: every row takes its extents from the devices with the most left, so that devices of different
//! size are used up together; rows get narrower when devices run out.

use millpond_block::ByteRange;
use millpond_device::DeviceIndex;
use millpond_format::{AREA_BYTES, Layout, SegmentId};
use smallvec::SmallVec;

/// Bytes of a page: the grain of offsets in segments.
pub(crate) const PAGE: u64 = 4096;

type Row = SmallVec<[(DeviceIndex, u32); 1]>;

/// Extents of every segment.
#[derive(Debug)]
pub(crate) struct Rows {
    extent_bytes: u64,
    unit: u64,
    rows: Vec<Row>,
}

impl Rows {
    /// Rows over devices with `extents` extents each, in member order.
    pub(crate) fn new(layout: Layout, extent_bytes: u64, extents: &[u32]) -> Rows {
        let (width, unit) = match layout {
            Layout::Linear => (1, extent_bytes),
            Layout::Stripe { width, unit } => (usize::from(width), u64::from(unit)),
        };
        let members = || extents.iter().zip(0u16..);
        let mut rows = Vec::new();
        if width == 1 && layout == Layout::Linear {
            members().for_each(|(n, member)| rows.extend((0..*n).map(|at| Row::from_slice(&[(DeviceIndex(member), at)]))));
        } else {
            let mut used: Vec<u32> = vec![0; extents.len()];
            loop {
                let mut left: Vec<(u32, u16)> =
                    members().zip(&used).map(|((n, member), u)| (n - u, member)).filter(|(left, _)| *left > 0).collect();
                if left.is_empty() {
                    break;
                }
                left.sort_by_key(|(left, member)| (u32::MAX - left, *member));
                left.truncate(width);
                left.sort_by_key(|(_, member)| *member);
                let mut row = Row::new();
                for (_, member) in left {
                    if let Some(u) = used.get_mut(usize::from(member)) {
                        row.push((DeviceIndex(member), *u));
                        *u += 1;
                    }
                }
                rows.push(row);
            }
        }
        Rows { extent_bytes, unit, rows }
    }

    /// Number of segments.
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.rows.len()).unwrap_or(u32::MAX - 1)
    }

    /// Pages of a segment; 0 when there is no such segment.
    pub(crate) fn pages(&self, segment: SegmentId) -> u32 {
        let bytes = self.rows.get(segment.0 as usize).map_or(0, |row| row.len() as u64 * self.extent_bytes);
        u32::try_from(bytes / PAGE).unwrap_or(u32::MAX)
    }

    /// The extents of a segment: device and byte range.
    pub(crate) fn extents(&self, segment: SegmentId) -> impl Iterator<Item = (DeviceIndex, ByteRange)> + '_ {
        let row = self.rows.get(segment.0 as usize).map_or(&[][..], |row| row.as_slice());
        row.iter()
            .map(|(device, at)| (*device, ByteRange { offset: AREA_BYTES + u64::from(*at) * self.extent_bytes, length: self.extent_bytes }))
    }

    /// Where `pages` pages from `page` on lie: device and byte range of each piece, in order.
    pub(crate) fn map(&self, segment: SegmentId, page: u32, pages: u32) -> SmallVec<[(DeviceIndex, ByteRange); 2]> {
        let mut out = SmallVec::new();
        let Some(row) = self.rows.get(segment.0 as usize) else { return out };
        let width = row.len() as u64;
        let mut at = u64::from(page) * PAGE;
        let end = at + u64::from(pages) * PAGE;
        assert!(end <= width * self.extent_bytes, "access beyond a segment");
        while at < end {
            let (turn, within) = (at / self.unit, at % self.unit);
            let Some((device, extent)) = row.get((turn % width) as usize) else { return out };
            let length = if width == 1 { end - at } else { (self.unit - within).min(end - at) };
            let local = if width == 1 { at } else { turn / width * self.unit + within };
            out.push((*device, ByteRange { offset: AREA_BYTES + u64::from(*extent) * self.extent_bytes + local, length }));
            at += length;
        }
        out
    }

    /// How many extents of each device are in segments for which `pick` is true.
    pub(crate) fn count_extents(&self, devices: usize, mut pick: impl FnMut(SegmentId) -> bool) -> Vec<u64> {
        let mut counts = vec![0; devices];
        for (row, id) in self.rows.iter().zip(0u32..) {
            if pick(SegmentId(id)) {
                row.iter().for_each(|(device, _)| {
                    if let Some(n) = counts.get_mut(usize::from(device.0)) {
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
