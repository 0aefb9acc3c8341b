//! Scan for checkpoints without any root, by the content of segments.
//!
//! A segment of checkpoint objects begins with a page that identifies it, and the objects of each
//! checkpoint are followed by a copy of its root (INV-REST-2: that copy is durable before the root
//! is written to a ring). So one page of each segment, and all pages of segments with objects, show
//! which checkpoints exist; a survey finds out whether they are whole. Roots that an import writes
//! have no copy: a pool writes a checkpoint soon after one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use millpond_block::{Buf, BufPool, DeviceError};
use millpond_format::{BatchHeader, PoolId, Root, SegmentId};

use super::import::ImportIo;
use crate::io::IoTable;
use crate::log::OBJECTS_HEAD;
use crate::space::SegmentLayout;

/// Reads in flight at a time.
const AT_A_TIME: usize = 64;
/// Pages of a segment of objects read at a time.
const WINDOW: u32 = 256;

/// Pages of a segment to read, and the copy to read them from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScanRead {
    segment: SegmentId,
    page: u32,
    pages: u32,
    copy: u8,
}

impl ScanRead {
    pub(super) fn segment(&self) -> SegmentId {
        self.segment
    }
}

/// A running scan for checkpoints.
#[derive(Debug)]
pub(crate) struct CheckpointScan {
    pool: PoolId,
    left: VecDeque<ScanRead>,
    /// Segments of objects found so far.
    objects: BTreeSet<SegmentId>,
    roots: BTreeMap<u64, Root>,
}

impl CheckpointScan {
    /// Creates a scan of all segments of a pool on devices: no checkpoint is in a bucket.
    pub(super) fn new(pool: PoolId, layout: &SegmentLayout) -> CheckpointScan {
        let first = |segment| ScanRead { segment, page: 0, pages: 1, copy: 0 };
        let has_pages = |id: &SegmentId| layout.pages(*id) > 0 && !layout.is_in_bucket(*id);
        let left = (0..layout.count()).map(SegmentId).filter(has_pages).map(first).collect();
        CheckpointScan { pool, left, objects: BTreeSet::new(), roots: BTreeMap::new() }
    }

    /// Continues. Returns true at the end.
    pub(super) fn step(&mut self, io: &mut IoTable<ImportIo>, layout: &SegmentLayout, bufs: &mut BufPool) -> bool {
        while io.in_flight() < AT_A_TIME {
            let Some(scan_read) = self.left.pop_front() else { break };
            io.read(ImportIo::ScanRead(scan_read), layout, scan_read.segment, scan_read.page, scan_read.pages, scan_read.copy, bufs);
        }
        self.left.is_empty() && io.in_flight() == 0
    }

    /// Handles a read. Of segments with objects every copy is read: one may have pages that the
    /// others lost.
    pub(super) fn seen(
        &mut self,
        scan_read: ScanRead,
        result: Result<(), DeviceError>,
        buf: Option<&Buf>,
        copies: u8,
        layout: &SegmentLayout,
    ) {
        let bytes = buf.filter(|_| result.is_ok()).map(|buf| buf.bytes()).unwrap_or_default();
        let has_header = scan_read.page == 0 && BatchHeader::peek_pages(bytes).is_some();
        if scan_read.copy + 1 < copies && !has_header {
            self.left.push_front(ScanRead { copy: scan_read.copy + 1, ..scan_read });
        }
        if scan_read.page > 0 {
            let found = bytes.chunks_exact(4096).take(scan_read.pages as usize).filter_map(|page| Root::decode(page).ok());
            self.roots.extend(found.filter(|root| root.pool == self.pool).map(|root| (root.generation, root)));
            return;
        }
        let Ok((header, _)) = BatchHeader::decode(bytes) else { return };
        let objects =
            header.pool == self.pool && header.incarnation == 0 && header.stream == OBJECTS_HEAD && header.segment == scan_read.segment;
        if objects && self.objects.insert(scan_read.segment) {
            let all = layout.pages(scan_read.segment);
            let windows = (1..all).step_by(WINDOW as usize).map(|page| ScanRead { page, pages: WINDOW.min(all - page), ..scan_read });
            self.left.extend(windows.map(|window| ScanRead { copy: 0, ..window }));
        }
    }

    /// Returns the roots that were found, by generation.
    pub(super) fn into_roots(self) -> BTreeMap<u64, Root> {
        self.roots
    }
}
