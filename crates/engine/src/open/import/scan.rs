//! Reading rings of roots, and the log behind a root.

use std::collections::BTreeSet;

use millpond_block::{Buf, ByteRange, DeviceError};
use millpond_format::{Item, Lsn, NO_SEGMENT, RING_OFFSET, RING_SLOTS, Root, SECTOR_BYTES, SegmentId, StreamStart, second_area};

use super::{Import, ImportIo, Stage};
use crate::log::Stream;
use crate::open::log_replication::LogReplication;
use crate::open::replay::Replay;
use crate::open::scan::{Extent, Found, StreamScan, extent};
use crate::{Damage, OpenErrorKind, Planted};

impl Import {
    pub(super) fn read_rings(&mut self) {
        let (Some(rings), Some(config)) = (&self.rings, &self.config) else { return };
        for member in rings.members() {
            let size = config.size_of(member);
            for (second, area) in [(false, 0), (true, second_area(size))] {
                let range = ByteRange { offset: area + RING_OFFSET, length: RING_SLOTS * SECTOR_BYTES as u64 };
                self.io.read_raw(ImportIo::Ring(member, second), member, range, &mut self.bufs);
            }
        }
        self.read_key_tables();
        self.stage = Stage::Rings;
    }

    pub(crate) fn begin_root(&mut self, root: Root) {
        self.wanted.push(root.checkpoint);
        self.root = Some(root);
        self.stage = Stage::Root;
    }

    /// Starts reading the log after a root.
    pub(crate) fn scan_from(&mut self, root: &Root) -> Result<(), OpenErrorKind> {
        let pool = self.config.as_ref().ok_or(OpenErrorKind::OutOfOrder("no label"))?.id;
        for log_tail in &root.log_tails {
            for stream in Stream::all() {
                self.scans.push(StreamScan::new(pool, log_tail, stream, stream.start_in(log_tail), root.lsn));
            }
        }
        self.stage = Stage::Scan;
        (0..self.scans.len()).try_for_each(|scan| self.scan_next(scan))
    }

    fn scan_next(&mut self, at: usize) -> Result<(), OpenErrorKind> {
        let layout = self.core.as_ref().map(|core| &core.space.layout).or(self.layout.as_ref());
        let (Some(scan), Some(layout)) = (self.scans.get_mut(at), layout) else { return Ok(()) };
        if scan.done {
            return Ok(());
        }
        let pages = layout.pages(scan.segment);
        if layout.is_gap(scan.segment) && scan.is_small() {
            scan.done = true;
            self.lost_small = self.lost_small.max(Some(scan.incarnation()));
            return Ok(());
        }
        if scan.page > pages || pages == 0 {
            return Err(Damage::LogOutside.into());
        }
        if scan.page == pages {
            scan.end();
            return self.scan_next(at);
        }
        let want = scan.want.min(pages - scan.page);
        scan.losses = self.losses;
        self.io.read(ImportIo::Scan(at), layout, scan.segment, scan.page, want, scan.copy, &mut self.bufs);
        Ok(())
    }

    pub(super) fn scan_read(&mut self, at: usize, result: Result<(), DeviceError>, buf: Option<&Buf>) -> Result<(), OpenErrorKind> {
        let layout = self.core.as_ref().map(|core| &core.space.layout).or(self.layout.as_ref());
        let (Some(scan), Some(layout)) = (self.scans.get_mut(at), layout) else { return Ok(()) };
        let pages = layout.pages(scan.segment);
        let want = scan.want.min(pages - scan.page) as usize;
        let copies = self.io.copies(layout, scan.segment);
        let quantum = layout.quantum(scan.segment);
        // a device was given up meanwhile: the remaining copies are renumbered, so all of them are
        // read again
        let renumbered = scan.losses != self.losses;
        match (result, buf) {
            _ if renumbered => scan.begin_place(),
            (Ok(()), Some(buf)) => {
                scan.take(buf.bytes().get(..want * 4096).unwrap_or_default(), pages, quantum, copies, &mut self.found);
            }
            (Err(_), _) if scan.unreadable((pages, quantum), copies) => {}
            (Err(error), _) => return Err(OpenErrorKind::LogUnreadable(error)),
            (Ok(()), None) => scan.done = true,
        }
        self.scan_next(at)
    }

    /// Reads small writes on special devices that are present, but that no stream leads to, because
    /// earlier batches were on lost devices: later batches index their segments. Returns true when
    /// there is more to read.
    fn scan_indexed_segments(&mut self) -> Result<bool, OpenErrorKind> {
        let layout = self.core.as_ref().map(|core| &core.space.layout).or(self.layout.as_ref());
        let (Some(lost), Some(layout), Some(root), Some(config)) = (self.lost_small, layout, &self.root, &self.config) else {
            return Ok(false);
        };
        let seen: BTreeSet<SegmentId> = self.scans.iter().flat_map(|scan| scan.visited.iter().copied()).collect();
        let runs = |item: &Item| if let Item::Small { runs, .. } = item { runs.clone() } else { Vec::new() };
        let indexed = self.found.iter().flat_map(|found| found.items.iter().flat_map(runs)).filter(|run| run.lsn > root.lsn);
        let indexed: BTreeSet<SegmentId> =
            indexed.map(|run| run.segment).filter(|id| layout.pages(*id) > 0 && !seen.contains(id)).collect();
        let first = self.scans.len();
        for (segment, log_tail) in indexed.iter().flat_map(|segment| root.log_tails.iter().map(move |log_tail| (*segment, log_tail))) {
            if log_tail.incarnation <= lost {
                let start = StreamStart { segment, offset: 0, next: NO_SEGMENT };
                self.scans.push(StreamScan::new(config.id, log_tail, Stream::Small, start, root.lsn));
            }
        }
        (first..self.scans.len()).try_for_each(|scan| self.scan_next(scan))?;
        Ok(first < self.scans.len())
    }

    pub(super) fn scanned(&mut self) -> Result<(), OpenErrorKind> {
        if self.scan_indexed_segments()? {
            return Ok(());
        }
        let root = self.root.as_ref().ok_or(OpenErrorKind::OutOfOrder("no root"))?;
        let mut found = std::mem::take(&mut self.found);
        let extent = extent(&mut found, root.lsn, &root.log_tails, self.lost_small);
        if self.surveying {
            self.surveyed.log_damaged = matches!(extent, Extent::Damaged(_));
            self.surveyed.after = found.iter().map(Found::guest_bytes).sum();
            self.stage = Stage::Surveyed;
            return Ok(());
        }
        let (end, durable) = match extent {
            Extent::Until(end, durable) => (end, durable),
            // the sound part of the log is a state that existed; whether it is on all copies is not
            // known
            Extent::Damaged(lsn) if self.rewound.is_some() => (Lsn(lsn.0 - 1), root.lsn),
            Extent::Damaged(lsn) => return Err(OpenErrorKind::LogGone(lsn)),
        };
        if let Some(rewound) = &self.rewound
            && end < rewound.needs
        {
            return Err(OpenErrorKind::LogReused { end, needs: rewound.needs });
        }
        let visited = self.scans.iter().flat_map(|scan| scan.visited.iter().copied()).collect();
        let core = self.core.as_mut().ok_or(OpenErrorKind::OutOfOrder("no state"))?;
        if !cfg!(feature = "planted") || self.tuning.planted != Some(Planted::SkipLeveling) {
            self.log_replication = LogReplication::new(&found, durable, &core.space.layout);
        }
        let begun = self.rings.as_ref().and_then(|rings| rings.begun(root.checkpoint)).unwrap_or(root.generation);
        let age = (root.generation + 1).saturating_sub(begun).max(1);
        self.replay = Some(Replay::new(core, found, visited, root.lsn..end, age));
        self.stage = Stage::Replay;
        Ok(())
    }
}
